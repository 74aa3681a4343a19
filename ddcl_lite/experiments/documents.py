"""Long documents as codes of a few hundred numbers: a hierarchy of prototypes beside what else has that size.

`python -m ddcl_lite.experiments.documents` runs the full scale and stores its results.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from ..data import encode_long, speeches, split_by_group
from ..prototypes.hierarchy import HierarchicalReadout, read
from ..prototypes.loss import critical_temperature_by
from .comparison import Comparison
from .probes import Task, balanced_accuracy, components, concordance, try_neighbours, try_ridge

FEATURES = 48  # principal components that are kept of 384 features
SIZES = (64, 8)  # prototypes of each level: a code of 8 x 48 = 384 numbers, as many as the mean of all features has
RATIOS = (0.05, 0.2)  # of the critical temperature (q detached) of each level's input: validation chooses
COLD = 1e-6  # the ratio at which every token takes its nearest prototype
SPLITS = 15  # by president, of the stored run
SAMPLE = 128  # tokens of a document that a bank is trained on
STEPS = 10  # of EM, from where K-means ended
TEST_SHARE = 0.3  # of the presidents
YEAR = Comparison("code", "years off", "mean", TEST_SHARE, higher_is_better=False)
PARTY = Comparison("code", "party", "mean", TEST_SHARE)
NEIGHBOUR = Comparison("code", "same president", "mean", TEST_SHARE)


class Documents(NamedTuple):
    """Documents as the encoder left them.

    tokens: list of B tensors (n, D), float32, principal components; wide (B, 384): the mean over all tokens of all
    features; head (B, 384): the same over the first 512 tokens.
    years (B,), presidents (B,) int64 on the CPU; parties, ids: lists of B str.
    """

    tokens: list
    wide: Tensor
    head: Tensor
    years: Tensor
    presidents: Tensor
    parties: list
    ids: list


def choose(words: Sequence[int], presidents: Sequence[str]) -> list[int]:
    """About 40 rows that span the years and the lengths: two short messages of 16 or so presidents, and the longest.

    Presidents with at least two messages are taken in fives as they first served, and of each five those two whose two
    shortest messages have the fewest words. Returns ascending rows.
    """
    rows = {}
    for row, name in enumerate(presidents):
        rows.setdefault(name, []).append(row)
    shortest = [sorted(found, key=lambda row: words[row])[:2] for found in rows.values() if len(found) > 1]
    fives = [shortest[i : i + 5] for i in range(0, len(shortest), 5)]
    chosen = [pair for five in fives for pair in sorted(five, key=lambda pair: sum(words[row] for row in pair))[:2]]
    longest = max(range(len(words)), key=lambda row: words[row])
    return sorted({longest, *(row for pair in chosen for row in pair)})


def load(few: bool = True, features: int = FEATURES, device="cpu", progress: Callable = iter) -> Documents:
    """Presidential messages through the frozen encoder in windows of 128, their tokens cut to principal components.

    few: about 40 of them (`choose`), else all 249. The directions are those of largest variance of `SAMPLE` tokens a
    document, evenly spaced: they see all documents, and no label. Stores 4 x `features` bytes a token.
    """
    data = speeches()
    rows = choose([len(text.split()) for text in data.texts], data.presidents) if few else range(len(data.texts))
    blocks = [list(rows[start : start + 8]) for start in range(0, len(rows), 8)]  # not all states at a time

    def states(blocks):
        for block in blocks:
            for document in encode_long([data.texts[row] for row in block], device=device):
                yield document.float()

    some = torch.cat([spaced(document, SAMPLE) for document in states(progress(blocks))])
    origin = some.mean(0)
    directions = torch.linalg.eigh((some - origin).mT @ (some - origin)).eigenvectors[:, -features:].flip(-1)
    tokens, wide, head = zip(*[((z - origin) @ directions, z.mean(0), z[:512].mean(0)) for z in states(blocks)])
    names = sorted(set(data.presidents))
    presidents = torch.tensor([names.index(data.presidents[row]) for row in rows])
    labels = [[column[row] for row in rows] for column in (data.parties, data.ids)]
    return Documents(list(tokens), torch.stack(wide), torch.stack(head), data.years[list(rows)], presidents, *labels)


def spaced(tokens: Tensor, count: int) -> Tensor:
    """At most `count` evenly spaced rows of (n, D)."""
    return tokens[torch.linspace(0, len(tokens) - 1, min(count, len(tokens))).long().to(tokens.device)]


def split(docs: Documents, share: float, seed: int, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Split rows so that no president is on both sides, party by party: both sides see both large parties.

    Democrats, Republicans and all others are split each on their own, `share` of their presidents to the second side;
    of those with only one president, none.
    """
    rows = torch.arange(len(docs.ids)) if rows is None else rows
    kinds = torch.tensor([{"Democratic": 0, "Republican": 1}.get(docs.parties[row], 2) for row in rows.tolist()])
    sides = [], []
    for kind in range(3):
        members = rows[kinds == kind]
        parts = torch.arange(len(members)), torch.arange(0)
        if len(docs.presidents[members].unique()) > 1:
            parts = split_by_group(docs.presidents[members], share, seed, "presidents")
        for side, part in zip(sides, parts):
            side.append(members[part])
    return tuple(torch.cat(side).sort().values for side in sides)


def train_level(rows: Tensor, mass: Tensor, size: int, ratio: float, seed: int, steps: int = STEPS):
    """A bank (size, D) for rows (n, D) that count by mass (n,), and its temperature: K-means, then `steps` of EM.

    T = ratio * T_c, T_c = 2 lambda_max of the rows' covariance by mass. A step of EM puts each prototype where `read`
    would put its vector, were all rows one document. Where steps = 0, or cold, the bank is that of K-means.
    """
    clusters = KMeans(size, n_init=1, random_state=seed).fit(rows.cpu().numpy(), sample_weight=mass.cpu().numpy())
    bank = torch.from_numpy(clusters.cluster_centers_).to(rows)
    temperature = ratio * critical_temperature_by(mass, rows, detach_assignment=True)
    for _ in range(steps):
        vectors, shares = read(rows, mass, bank, temperature)
        bank = torch.where(shares[:, None] > 0, vectors, bank)
    return bank, temperature


def train_hierarchy(
    tokens: Sequence[Tensor], sizes: Sequence[int] = SIZES, ratio: float = 0.1, seed: int = 0, steps: int = STEPS
) -> HierarchicalReadout:
    """A hierarchy trained without labels on documents (n, D), level by level; every document counts alike.

    The first bank sees `SAMPLE` evenly spaced tokens of each; each later one sees the vectors that all tokens of each
    document become at the level below, by mass. Chapter 9.
    """
    readout = HierarchicalReadout(tokens[0].shape[-1], sizes, detach_assignment=True).requires_grad_(False)
    readout.to(tokens[0].device)
    rows = torch.cat([spaced(document, SAMPLE) for document in tokens])
    mass = rows.new_full((len(rows),), 1 / len(rows))
    inputs = [(document, document.new_full((len(document),), 1 / len(document))) for document in tokens]
    for level, size in enumerate(sizes):
        bank, temperature = train_level(rows, mass, size, ratio, seed, steps)
        readout.banks[level].copy_(bank)
        readout.temperature[level] = temperature
        if level + 1 < len(sizes):
            inputs = [read(*found, bank, temperature) for found in inputs]
            rows, mass = (torch.cat(part) for part in zip(*inputs))
            mass = mass / len(inputs)
    return readout


def train_several(tokens: Sequence[Tensor], seed: int = 0) -> dict[str, HierarchicalReadout]:
    """Stacks of `SIZES` and single banks of 8, at several temperatures and hard, by name."""
    found = {f"T = {ratio:g} T_c": train_hierarchy(tokens, SIZES, ratio, seed) for ratio in (0.05, 0.2, 0.8)}
    found["hard"] = train_hierarchy(tokens, SIZES, COLD, seed, 0)
    found["one bank of 8, T = 0.2 T_c"] = train_hierarchy(tokens, SIZES[-1:], 0.2, seed)
    return found | {"one bank of 8, hard": train_hierarchy(tokens, SIZES[-1:], COLD, seed, 0)}


def read_all(readout: HierarchicalReadout, tokens: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Vectors (B, K, D) and masses (B, K) of the last level, document by document."""
    found = []
    for document in tokens:
        at = document, document.new_full((len(document),), 1 / len(document))
        for bank, temperature in zip(readout.banks, readout.temperature):
            at = read(*at, bank, temperature)
        found.append(at)
    vectors, masses = zip(*found)
    return torch.stack(vectors), torch.stack(masses)


def fixed_codes(docs: Documents) -> dict[str, dict[str, Tensor]]:
    """Codes (B, numbers) that need no training, by name and variant. "the year itself" is a control, no code."""
    levels = torch.tensor([0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95], device=docs.wide.device)
    chunks, statistics, first = [], [], []
    for document in docs.tokens:
        chunks.append(torch.cat([part.mean(0) for part in document.tensor_split(SIZES[-1])]))
        ranks = (levels * (len(document) - 1)).round().long()
        statistics.append(torch.cat([document.mean(0), document.sort(0).values[ranks].flatten()]))
        first.append(document[: SIZES[-1]].flatten())
    codes = {
        "mean": docs.wide,
        "mean, 48 features": torch.stack([document.mean(0) for document in docs.tokens]),
        "mean and 7 quantiles": torch.stack(statistics),
        "8 chunk means": torch.stack(chunks),
        "first 512 tokens": docs.head,
        "first 8 tokens": torch.stack(first),
        "the year itself": docs.years[:, None].float(),
    }
    return {name: {"": code.cpu()} for name, code in codes.items()}


def learned_codes(docs: Documents, rows: Tensor, ratios: Sequence[float], seed: int) -> dict[str, dict[str, Tensor]]:
    """Codes (B, numbers) whose banks are trained on the documents `rows`, without labels, by name and variant.

    Of a bank's vectors x_k and masses w_k, "vectors" are x_k, "sums" w_k x_k: their sum over k is the document's mean.
    "48 components of means" are the leading ones of the means of all features, or a third as many as `rows`.
    """
    tokens, count = [docs.tokens[row] for row in rows.tolist()], min(FEATURES, len(rows) // 3)
    codes = {f"{FEATURES} components of means": {"": components(docs.wide.cpu(), rows, count)[0].float()}}
    plans = {"hierarchy": (SIZES, ratios, STEPS), "one bank of 8": (SIZES[-1:], ratios, STEPS)}
    plans |= {f"hard {name}": (sizes, (COLD,), 0) for name, (sizes, _, _) in list(plans.items())}
    for name, (sizes, temperatures, steps) in plans.items():
        codes[name] = {}
        for ratio in temperatures:
            readout = train_hierarchy(tokens, sizes, ratio, seed, steps)
            vectors, masses = (part.cpu() for part in read_all(readout, docs.tokens))
            codes[name][f"vectors at {ratio:g}"] = vectors.flatten(1)
            codes[name][f"sums at {ratio:g}"] = (masses[..., None] * vectors).flatten(1)
    codes["bag of 384 codes"] = bags(docs.tokens, tokens, SIZES[-1] * docs.tokens[0].shape[-1], seed)
    return codes


def bags(everything: Sequence[Tensor], tokens: Sequence[Tensor], size: int, seed: int) -> dict[str, Tensor]:
    """Shares of each document's tokens nearest to each of `size` K-means centres, trained on `tokens`; their roots."""
    rows = torch.cat([spaced(document, SAMPLE) for document in tokens])
    centres = torch.from_numpy(KMeans(size, n_init=1, random_state=seed).fit(rows.cpu().numpy()).cluster_centers_)
    centres = centres.to(rows)
    offsets = centres.square().sum(-1)
    nearest = [torch.addmm(-offsets, document, 2 * centres.mT).argmax(-1) for document in everything]
    shares = torch.stack([torch.bincount(index, minlength=size) / len(index) for index in nearest])
    return {"shares": shares.cpu(), "roots": shares.sqrt().cpu()}


def tasks(docs: Documents) -> dict[str, Task]:
    """Years: error of all documents. Party: balanced accuracy among Democrats and Republicans from 1861 on."""
    years = docs.years
    democratic = torch.tensor([party == "Democratic" for party in docs.parties])
    republican = torch.tensor([party == "Republican" for party in docs.parties])

    def error(predictions, rows, level):
        return -(predictions[rows] - years[rows]).abs().mean().item()

    def recognised(predictions, rows, level):
        return balanced_accuracy(predictions[rows] > level, democratic[rows])

    return {
        "year": Task(years, torch.ones_like(democratic), error),
        "party": Task(2 * democratic.double() - 1, (democratic | republican) & (years > 1860), recognised),
    }


def compare_codes(
    docs: Documents, seeds: Sequence[int] = range(5), ratios: Sequence[float] = RATIOS, progress: Callable = iter
) -> pd.DataFrame:
    """Every code with every seed, a seed being a split by president and a start of the banks: one row a code and seed.

    `TEST_SHARE` of each party's presidents is tested; of the others a quarter validates variants, strengths, metrics.
    Banks and components are learned, without labels, on all rows that are not tested. Columns: code, seed, numbers
    (size of a code), documents, "years off", "party" (balanced accuracy), "within 25 years" (pairs of a Democrat and a
    Republican in the right order), "same president" (nearest of all other messages), what validation chose, and CPU
    seconds of making all learned codes. "party" is NaN where a side lacks a party. Chapter 9.
    """
    goals, fixed, rows = tasks(docs), fixed_codes(docs), []
    democratic = goals["party"].targets > 0
    for seed in progress(seeds):
        known, test = split(docs, TEST_SHARE, seed)
        train, validation = split(docs, 0.25, seed, known)
        begun = time.process_time()
        codes = {**fixed, **learned_codes(docs, known, ratios, seed)}
        seconds = time.process_time() - begun
        for name, variants in codes.items():
            year, _, by_year = try_ridge(variants, goals["year"], train, validation, test)
            party, scores, by_party = try_ridge(variants, goals["party"], train, validation, test)
            near = test[goals["party"].concerns[test]]
            order = concordance(scores[near], democratic[near], goals["year"].targets[near], 25)
            same, by_same = try_neighbours(variants, docs.presidents, train, validation, test)
            rows.append({"code": name, "seed": seed, "numbers": next(iter(variants.values())).shape[1]})
            rows[-1] |= {"documents": len(docs.ids), "years off": -year, "party": party}
            rows[-1] |= {"within 25 years": order, "same president": same}
            rows[-1] |= {"chosen": " | ".join([by_year, by_party, by_same]), "seconds": round(seconds, 1)}
    return pd.DataFrame(rows)


if __name__ == "__main__":
    from ..notebook import progress, setup
    from .levels import growth, halves, time_of_length, variance_kept
    from .results import store

    device = setup(0, "full")
    docs = load(False, device=device, progress=progress("encoding"))
    table = compare_codes(docs, range(SPLITS), progress=progress("comparing"))
    readouts = train_several(docs.tokens)
    kept = variance_kept(docs.tokens, readouts, SIZES[-1], progress("variance")).groupby("code", sort=False)["kept"]
    longest = max(docs.tokens, key=len)
    times = time_of_length(readouts["T = 0.2 T_c"], longest, halves(longest))
    settings = {
        "documents": len(docs.ids),
        "tokens": sum(map(len, docs.tokens)),
        "features": FEATURES,
        "sizes": SIZES,
        "ratios": RATIOS,
        "kept": {name: kept.agg(name).to_dict() for name in ("mean", "min", "max")},
        "times": times.to_dict("list"),
        "growth": growth(times),
    }
    print(store("documents", table, settings, device, f"python -m {__spec__.name}"))
