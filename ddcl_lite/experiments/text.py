"""Sentiment from few labels or many: six readouts of frozen tokens beside logistic regression on fixed features.

`python -m ddcl_lite.experiments.text` runs the full scale and stores its results.
"""

import copy
import time
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from ..data import split_by_film
from ..prototypes.assignment import assign
from ..prototypes.inputs import pool
from ..prototypes.loss import critical_temperature
from ..prototypes.training import draw_prototypes, em_step
from .comparison import Comparison
from .readouts import READOUTS, TEMPERATURE_RATIO, TEST_SHARE, Classifier, accuracy, batches, make_classifier

REGRESSIONS = ("regression on the mean", "the same, all features", "regression on the histogram")
METHODS = (*READOUTS, *REGRESSIONS)
COMPARISON = Comparison("method", "accuracy", "regression on the mean", TEST_SHARE)
RATES = (1e-2, 3e-3, 1e-3)  # what a trained readout chooses from
TEMPERATURES = ((1e-2, TEMPERATURE_RATIO), (3e-3, TEMPERATURE_RATIO), (1e-2, 0.05))  # and prototypes: (rate, T/T_c)
STRENGTHS = tuple(10.0**power for power in range(-3, 4))  # of a regression: the inverse of its L2 penalty
RATIOS = (0.02, 0.05, 0.1, 0.25, 1.0)  # T/T_c of a histogram, q detached
CODES = 32  # prototypes of a histogram, as many as the readout has
VALIDATION = 0.25  # of the films that a budget covers
PATIENCE, LIMIT = 40, 4000  # updates without a better validation loss, and in all
FULL_SCALE = {"budgets": (50, 150, 500, 1500, 5000), "candidates": 3}
FEATURES = 64  # principal components of the tokens, at both scales


def soft_bank(tokens: Tensor, num_prototypes: int, ratio: float, seed: int, steps: int = 20, sample: int = 4000):
    """A bank fitted without labels, and its temperature, `ratio` critical ones (q detached).

    tokens (n, D), real tokens without padding. From `num_prototypes` of them, `steps` EM steps (`em_step`: descent with
    q detached) on at most `sample` drawn ones. Returns (bank (K, D), temperature). Source: Rose (1998); chapter 7.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(tokens), generator=generator)[:sample].to(tokens.device)
    drawn = tokens[rows].float()
    temperature = ratio * critical_temperature(drawn, detach_assignment=True).item()
    bank = draw_prototypes(drawn, num_prototypes, generator=generator)
    for _ in range(steps):
        bank = em_step(drawn, bank, temperature)
    return bank, temperature


def histograms(tokens: Tensor, mask: Tensor, bank: Tensor, temperature: float) -> Tensor:
    """A text as a mixture of prototypes: h_k = mean_n q_nk over its real tokens, (B, N, D) -> (B, K), rows sum to 1.

    Raises ValueError as `assign` does. Source: ours; chapter 7.
    """
    parts = zip(tokens.split(512), mask.split(512))
    return torch.cat([pool(assign(part.float(), bank, temperature, m), m) for part, m in parts])


def draw_budget(rows: Tensor, films: Tensor, budget: int, seed: int) -> tuple[Tensor, Tensor]:
    """`budget` of the training rows, split by film into (training, validation): ascending rows.

    The validation part is VALIDATION of the films that were drawn, and counts as labelled. A larger budget with the
    same seed contains a smaller one. Raises ValueError for a budget that is no integer from 8 to len(rows).
    """
    if isinstance(budget, bool) or not isinstance(budget, int) or not 8 <= budget <= len(rows):
        raise ValueError(f"budget: expected an integer from 8 to {len(rows)}, the training snippets, got {budget!r}")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    drawn = rows[order[:budget]].sort().values
    train, validation = split_by_film(films[drawn], VALIDATION, seed)
    return drawn[train], drawn[validation]


@torch.no_grad()
def cross_entropy(model: Classifier, tokens: Tensor, mask: Tensor, labels: Tensor) -> float:
    """Mean cross-entropy of a classifier's answers."""
    total = 0.0
    for rows in batches(mask, 256, shuffle=False):
        logits = model(tokens[rows], mask[rows])
        total += F.binary_cross_entropy_with_logits(logits, labels[rows].float(), reduction="sum").item()
    return total / len(labels)


def fit_readout(
    name: str,
    train: tuple,
    validation: tuple,
    seed: int,
    candidates: int = 3,
    patience: int = PATIENCE,
    limit: int = LIMIT,
) -> tuple[Classifier, dict]:
    """Train one readout of chapter 2; keep the candidate and the epoch with the least validation cross-entropy.

    train, validation: (tokens, mask, labels). The first `candidates` of RATES, for prototypes of TEMPERATURES. Training
    goes on until `patience` updates, and at least two epochs, have brought no better validation loss, at most for about
    `limit` updates. With few labels an epoch is one update, so patience is counted in updates; and accuracy on a dozen
    snippets has a dozen values, so the loss decides. Returns (model, {"choice": ..., "updates": ...}).
    """
    best, kept, chosen = float("inf"), None, {}
    for candidate in (TEMPERATURES if name == "prototypes" else RATES)[:candidates]:
        rate, ratio = candidate if isinstance(candidate, tuple) else (candidate, None)
        model = make_classifier(name, *train[:2], seed)
        if ratio is not None:
            model.readout.layer.calibrate(train[0][train[1]].float()[None] / model.scale, ratio)
        optimiser = torch.optim.AdamW(model.parameters(), rate)
        least, updates, waited, epochs = float("inf"), 0, 0, 0
        while (waited < patience or epochs < 2) and updates < limit:
            rows_of_epoch = batches(train[1], 64, shuffle=True)
            for rows in rows_of_epoch:
                optimiser.zero_grad()
                model.loss(*(part[rows] for part in train)).backward()
                optimiser.step()
            updates += len(rows_of_epoch)
            loss = cross_entropy(model, *validation)
            better = loss < least
            least, waited, epochs = min(loss, least), 0 if better else waited + len(rows_of_epoch), epochs + 1
            epochs = 0 if better else epochs
            if loss < best:
                best, kept = loss, copy.deepcopy(model.state_dict())
                chosen = {"choice": f"rate {rate:g}" + (f", {ratio:g} T_c" if ratio else ""), "updates": updates}
    model.load_state_dict(kept)
    return model, chosen


def fit_regression(features: dict, labels: Tensor, train: Tensor, validation: Tensor, test: Tensor):
    """Logistic regression; the features and the strength with the least validation cross-entropy. (accuracy, choice).

    features: {choice: (n, F)}, for all n texts. They are centred on the training rows and divided by one number.
    """
    best, score, choice = float("inf"), 0.0, ""
    for name, values in features.items():
        values = values.double().cpu().numpy()
        values = (values - values[train].mean(0)) / values[train].std(0).mean()
        answers = labels.cpu().numpy()
        for strength in STRENGTHS:
            model = LogisticRegression(C=strength, max_iter=1000).fit(values[train], answers[train])
            signs = 1 - 2 * answers[validation]
            loss = np.logaddexp(0, signs * model.decision_function(values[validation])).mean()
            if loss < best:
                best, score = loss, model.score(values[test], answers[test])
                choice = f"C {strength:g}" + (f", {name} T_c" if name else "")
    return score, choice


def compare_budgets(
    tokens: Tensor,
    mask: Tensor,
    labels: Tensor,
    films: Tensor,
    vectors: Tensor,
    budgets: Sequence[int],
    seeds: Sequence[int] = range(5),
    methods: Sequence[str] = METHODS,
    candidates: int = 3,
    progress: Callable = iter,
) -> pd.DataFrame:
    """Test accuracy of every method with every budget of labelled snippets, validation included.

    A seed is another split of the films (70 / 30), other labelled snippets and another initialisation; within a seed
    all methods share snippets and test films. One rule for all: `fit_readout` and `fit_regression` keep what has the
    least validation cross-entropy. Three methods have fixed features: the mean of the tokens, `vectors` (n, F), and the
    histogram over CODES prototypes fitted to all tokens without labels. Columns method, seed, budget, accuracy, choice,
    updates, seconds. Raises ValueError for an unknown method or a bad budget. Chapter 7.
    """
    for method in methods:
        if method not in METHODS:
            raise ValueError(f"methods: expected some of {', '.join(METHODS)}, got {method!r}")
    rows, mean = [], pool(tokens.float(), mask)
    for seed, method in progress([(seed, method) for seed in seeds for method in methods]):
        split, test = split_by_film(films, TEST_SHARE, seed)
        start, features = time.perf_counter(), {"": vectors if method == REGRESSIONS[1] else mean}
        if method == REGRESSIONS[2]:
            banks = {f"{ratio:g}": soft_bank(tokens[mask], CODES, ratio, seed) for ratio in RATIOS}
            features = {name: histograms(tokens, mask, *bank) for name, bank in banks.items()}
        for budget in budgets:
            train, validation = draw_budget(split, films, budget, seed)
            if method in REGRESSIONS:
                score, choice = fit_regression(features, labels, train, validation, test)
                row = {"accuracy": score, "choice": choice, "updates": 0}
            else:
                parts = [(tokens[index], mask[index], labels[index]) for index in (train, validation, test)]
                model, chosen = fit_readout(method, *parts[:2], seed, candidates)
                row = {"accuracy": accuracy(model, *parts[2]), **chosen}
            seconds = time.perf_counter() - start
            rows.append({"method": method, "seed": seed, "budget": budget, **row, "seconds": seconds})
            start = time.perf_counter()
    return pd.DataFrame(rows)


def gains(table: pd.DataFrame) -> pd.DataFrame:
    """Per budget and method: accuracy, its gain over regression on the mean, and both half widths (95%)."""
    parts = {budget: COMPARISON.summarise(part) for budget, part in table.groupby("budget")}
    return pd.concat(parts, names=["budget"])


if __name__ == "__main__":
    from ..data import encode, sentiment
    from ..notebook import progress, setup
    from .readouts import principal_components
    from .results import store

    device = setup(0, "full")
    data = sentiment()
    tokens, mask, _ = encode(data.texts, device=device, progress=progress("encoding"))
    vectors = torch.stack([row[m].float().mean(0) for row, m in zip(tokens, mask)])
    tokens = principal_components(tokens, mask, FEATURES)
    start = time.perf_counter()
    arguments = {"labels": data.labels.to(device), "films": data.films, "vectors": vectors}
    arguments |= {"progress": progress("training")}
    table = compare_budgets(tokens, mask, **arguments, **FULL_SCALE)
    settings = {"snippets": len(data.texts), "features": FEATURES, "seconds": time.perf_counter() - start, **FULL_SCALE}
    print(store("text", table, settings, device, f"python -m {__spec__.name}"))
