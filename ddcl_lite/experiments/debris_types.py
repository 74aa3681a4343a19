"""Payload, rocket body or debris? Six classifiers of orbits, split by launch and at random."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from scipy.special import gammaln
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from torch import Tensor, nn

from ..data import orbit_features, split_by_group, split_by_launch
from ..prototypes.assignment import assign, squared_distances
from ..prototypes.loss import critical_temperature
from ..prototypes.training import draw_prototypes
from .comparison import Comparison

LEAK = 92.0  # minutes: almost everything below is a payload that has come down
TEST_SHARE = 0.3  # of the launches, or of the objects
COMPARISON = Comparison("method", "macro_f1", "prototypes", TEST_SHARE)
FLATTERY = Comparison("method", "flattered by", "logistic regression", TEST_SHARE)
SPLITS = {
    "by launch": split_by_launch,
    "random": lambda frame, share, seed: split_by_group(torch.arange(len(frame)), share, seed, "objects"),
}


class PrototypeVotes(nn.Module):
    """A bank whose weights vote: P(class | z) = sum_k q_k(z) softmax(votes_k).

    Trained by cross-entropy + loss_weight * L_q / D with Adam (`steps` batches of 512, rate falling to 0 along a
    cosine), q attached, T = ratio * T_c of the training tokens, from tokens drawn among them and votes 0. The ratio is
    the best of 0.02, 0.005, 0.002 and 0.0005 on validation launches of three seeds, some of them test launches of other
    seeds; loss_weight, steps and lr were set by hand. `balanced` weighs classes alike.
    fit(features (n, D), labels (n,)), predict(features) -> labels, as in scikit-learn. Chapter 10.
    """

    def __init__(self, num_prototypes, balanced=False, ratio=0.002, loss_weight=0.05, steps=400, lr=0.05, seed=0):
        super().__init__()
        self.count, self.balanced, self.ratio, self.loss_weight = num_prototypes, balanced, ratio, loss_weight
        self.steps, self.lr, self.seed = steps, lr, seed

    def forward(self, tokens: Tensor) -> Tensor:
        """log P(class | z): (n, D) -> (n, classes)."""
        return self._vote(assign(tokens, self.prototypes, self.temperature))

    def _vote(self, weights: Tensor) -> Tensor:
        return (weights @ self.votes.softmax(-1)).clamp_min(1e-12).log()

    def loss(self, tokens: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Cross-entropy + loss_weight * L_q / D."""
        q = assign(tokens, self.prototypes, self.temperature)
        compact = (q * squared_distances(tokens, self.prototypes)).sum(-1).mean()  # L_q
        return F.nll_loss(self._vote(q), labels, weight) + self.loss_weight * compact / tokens.shape[-1]

    def fit(self, features, labels) -> "PrototypeVotes":
        generator, tokens = torch.Generator().manual_seed(self.seed), torch.as_tensor(features, dtype=torch.float32)
        self.classes, codes = np.unique(labels, return_inverse=True)
        codes, self.temperature = torch.from_numpy(codes), self.ratio * float(critical_temperature(tokens))
        self.prototypes = nn.Parameter(draw_prototypes(tokens, self.count, generator=generator))
        self.votes = nn.Parameter(torch.zeros(self.count, len(self.classes)))
        weight = len(codes) / codes.bincount() / len(self.classes) if self.balanced else None
        optimiser = torch.optim.Adam(self.parameters(), self.lr)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        for _ in range(self.steps):
            rows = torch.randint(len(tokens), (512,), generator=generator)
            optimiser.zero_grad()
            self.loss(tokens[rows], codes[rows], weight).backward()
            optimiser.step()
            decay.step()
        return self

    @torch.no_grad()
    def predict(self, features) -> np.ndarray:
        return self.classes[self(torch.as_tensor(features, dtype=torch.float32)).argmax(-1).numpy()]


def _three(make: Callable, small: dict, large: dict, weighted: dict) -> list:
    """Three candidates: two sizes, and the larger one with classes weighed alike."""
    return [partial(make, **small), partial(make, **large), partial(make, **large, **weighted)]


BALANCED = {"class_weight": "balanced"}
CANDIDATES: dict[str, list[Callable]] = {  # the first of each is the quick scale's
    "majority": [lambda seed: DummyClassifier()],
    "logistic regression": [
        lambda seed, c=c, weight=weight: LogisticRegression(C=c, class_weight=weight, max_iter=500)
        for c, weight in ((1.0, None), (100.0, None), (1.0, "balanced"))
    ],
    "prototypes": _three(PrototypeVotes, {"num_prototypes": 64}, {"num_prototypes": 128}, {"balanced": True}),
    "nearest neighbours": [lambda seed, k=k: KNeighborsClassifier(k) for k in (5, 1, 25)],
    "boosting": _three(
        lambda seed, **options: HistGradientBoostingClassifier(random_state=seed, **options),
        {"max_leaf_nodes": 7}, {"max_leaf_nodes": 31}, BALANCED,
    ),
    "random forest": _three(
        lambda seed, **options: RandomForestClassifier(60, random_state=seed, **options),
        {"min_samples_leaf": 5}, {"min_samples_leaf": 1}, BALANCED,
    ),
}  # fmt: skip
LARGER = "prototypes, larger"  # the three, and one of four times the size and twice the steps
EXTRA = {
    LARGER: [*CANDIDATES["prototypes"], partial(PrototypeVotes, num_prototypes=512, steps=800, balanced=True)],
}


def _standardised(frame: pd.DataFrame, train, other):
    """Features and types of two sets of rows, standardised by the first."""
    known, new = frame.iloc[np.asarray(train)], frame.iloc[np.asarray(other)]
    x, y = (orbit_features(part, known).numpy() for part in (known, new))
    return x, known["type"].to_numpy(), y, new["type"].to_numpy()


def score_split(frame: pd.DataFrame, method: str, split: str, seed: int, candidates: int = 1) -> dict:
    """Choose, train and test one method on one split; the row of `compare_classifiers`."""
    begin, part = time.perf_counter(), SPLITS[split]
    train, test = part(frame, TEST_SHARE, seed)
    options, chosen = (CANDIDATES | EXTRA)[method][:candidates], 0
    if len(options) > 1:
        inner, validation = part(frame.iloc[train.numpy()], 0.2, seed)
        x, labels, y, truth = _standardised(frame, train[inner], train[validation])
        answers = [option(seed=seed).fit(x, labels).predict(y) for option in options]
        chosen = int(np.argmax([f1_score(truth, answer, average="macro") for answer in answers]))
    x, labels, y, truth = _standardised(frame, train, test)
    answer = options[chosen](seed=seed).fit(x, labels).predict(y)
    left = frame["period_min"].to_numpy()[test.numpy()] >= LEAK
    return {
        "split": split,
        "seed": seed,
        "method": method,
        "macro_f1": f1_score(truth, answer, average="macro"),
        "accuracy": accuracy_score(truth, answer),
        "f1_without_low": f1_score(truth[left], answer[left], average="macro"),
        "chosen": chosen,
        "test_share": len(test) / len(frame),
        "seconds": time.perf_counter() - begin,
    }


def compare_classifiers(
    frame: pd.DataFrame,
    seeds: Sequence[int] = range(5),
    candidates: int = 1,
    methods: Sequence[str] = tuple(CANDIDATES),
    splits: Sequence[str] = tuple(SPLITS),
    progress: Callable = iter,
) -> pd.DataFrame:
    """Every method on every split of every seed: one row a run.

    One rule for all: 30% of the launches (or of the objects) are held out; a fifth of the rest, split the same way,
    chooses among the first `candidates` of CANDIDATES (or EXTRA) by macro-F1; the choice is trained on all of the rest.
    Features are standardised by the rows trained on. Columns split, seed, method, macro_f1, accuracy, f1_without_low
    (macro-F1 of the test objects with a period of LEAK minutes or more, from the same answers), chosen, test_share (of
    the objects), seconds. Source: ours; chapter 10.
    """
    runs = [(method, split, seed) for split in splits for seed in seeds for method in methods]
    return pd.DataFrame([score_split(frame, *run, candidates) for run in progress(runs)])


def flattery(table: pd.DataFrame) -> pd.DataFrame:
    """Macro-F1 of the random split minus that by launch, paired: columns seed, method, "flattered by". Chapter 10."""
    scores = table.pivot(index=["seed", "method"], columns="split", values="macro_f1")
    gains = (scores["random"] - scores["by launch"]).rename(FLATTERY.score).reset_index()
    return gains.sort_values("method", key=lambda names: names.map(list(table["method"].unique()).index))


def summarise_splits(table: pd.DataFrame) -> pd.DataFrame:
    """Per method: mean macro-F1 of each split, and what a random split adds, with half widths of their intervals.

    Where a split is by launch, also the mean accuracy, and macro-F1 without periods below LEAK. Chapter 10.
    """
    known, random = (COMPARISON.summarise(table[table["split"] == split]) for split in SPLITS)
    gains, score = flattery(table), FLATTERY.score
    added = FLATTERY._replace(baseline=gains["method"].iloc[0]).summarise(gains)  # only the methods' own intervals
    means = table[table["split"] == "by launch"].groupby("method")
    columns = {"by launch": known["macro_f1"], "+-": known["+-"], "random": random["macro_f1"]}
    columns |= {"+- (random)": random["+-"], score: added[score], "+- (added)": added["+-"]}
    columns |= {"without low": means["f1_without_low"].mean(), "accuracy": means["accuracy"].mean()}
    return pd.DataFrame(columns, index=known.index)


def summarise_larger(table: pd.DataFrame, larger: pd.DataFrame) -> pd.DataFrame:
    """By launch: the gain of LARGER over each method of the table, paired by seed, and its half width, singly.

    larger: rows of LARGER, from `compare_classifiers`. Columns by launch (mean macro-F1 of the method), gain of LARGER,
    +- (gain). Chapter 10.
    """
    table = pd.concat([table[table["split"] == "by launch"], larger])
    summary = COMPARISON._replace(baseline=LARGER).summarise(table)
    columns = {"by launch": summary["macro_f1"], "gain of larger": 0 - summary[f"gain over {LARGER}"]}
    return pd.DataFrame(columns | {"+- (gain)": summary["+- (gain)"]}).drop("majority", errors="ignore")


def sibling_chance(launches, test_count: int) -> np.ndarray:
    """For each object, the chance that it has a sibling in training if a random split puts it into the test.

    1 - C(N - m, n - m) / C(N - 1, n - 1), m the size of its launch, N objects, n = test_count of them tested

    launches: N labels -> (N,). Chapter 10.
    """
    size = pd.Series(launches).groupby(launches).transform("size").to_numpy(dtype=float)
    total = len(size)

    def log_binomial(a, b):
        return gammaln(a + 1) - gammaln(b + 1) - gammaln(a - b + 1)

    possible = size <= test_count
    m = np.where(possible, size, 1)
    alone = np.exp(log_binomial(total - m, test_count - m) - log_binomial(total - 1, test_count - 1))
    return 1 - np.where(possible, alone, 0)


def compare_siblings(frame: pd.DataFrame, seeds: Sequence[int] = range(5)) -> pd.DataFrame:
    """Whom one nearest neighbour asks: an object of the same launch, or a stranger? Means over seeds, a row a split.

    Columns: has sibling (share of test objects with one in training), expected (by `sibling_chance`, 0 by launch),
    asks sibling (the nearest training object is one), right then, right else, accuracy. Chapter 10.
    """
    rows, launches = [], pd.factorize(frame["launch_id"])[0]
    for split, part in SPLITS.items():
        for seed in seeds:
            train, test = (rows_.numpy() for rows_ in part(frame, TEST_SHARE, seed))
            x, labels, y, truth = _standardised(frame, train, test)
            near = NearestNeighbors(n_neighbors=1).fit(x).kneighbors(y, return_distance=False)[:, 0]
            sibling, right = launches[train][near] == launches[test], labels[near] == truth
            expected = sibling_chance(launches, len(test)).mean() if split == "random" else 0.0
            rows.append({"split": split, "has sibling": np.isin(launches[test], launches[train]).mean()})
            rows[-1] |= {"expected": expected, "asks sibling": sibling.mean(), "accuracy": right.mean()}
            rows[-1] |= {"right then": right[sibling].mean() if sibling.any() else np.nan}
            rows[-1] |= {"right else": right[~sibling].mean()}
    columns = ["has sibling", "expected", "asks sibling", "right then", "right else", "accuracy"]
    return pd.DataFrame(rows).groupby("split", sort=False)[columns].mean()
