"""The same small probes for every code: ridge for numbers and for two classes, nearest neighbours for groups."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

STRENGTHS = torch.logspace(-4, 2, 13, dtype=torch.float64)  # of ridge, in units of the codes' mean squared length
METRICS = ("distance", "cosine", "standardised cosine", "whitened 16", "whitened 32", "whitened 64")


def standardise(codes: Tensor, fit: Tensor) -> Tensor:
    """Codes (B, S) with mean 0 and, over all S together, mean squared length 1 on the rows `fit`, in float64.

    Every number has the same variance there; one that is constant there becomes 0.
    """
    codes = codes.double() - codes[fit].double().mean(0)
    deviations = codes[fit].square().mean(0).sqrt()
    varies = deviations > 1e-9 * deviations.max()
    return torch.where(varies, codes / torch.where(varies, deviations, 1), 0) / varies.sum().clamp_min(1).sqrt()


def components(codes: Tensor, fit: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` leading principal components (B, count) on the rows `fit`, or as many as they have, in float64, and
    their lengths there (count,)."""
    codes = codes.double() - codes[fit].double().mean(0)
    _, values, directions = torch.linalg.svd(codes[fit], full_matrices=False)
    kept = min(count, int((values > 1e-5 * values[0]).sum()))
    return codes @ directions[:kept].mT, values[:kept]


def whiten(codes: Tensor, fit: Tensor, count: int) -> Tensor:
    """`components`, each of length 1 on the rows `fit`."""
    found, lengths = components(codes, fit, count)
    return found / lengths


def ridge(codes: Tensor, fit: Tensor, targets: Tensor) -> Tensor:
    """Predictions (len(STRENGTHS), B) of ridge regression on standardised codes, with an intercept, fitted on the rows
    `fit`; targets (B,)."""
    codes, targets = standardise(codes, fit), targets.double()
    level = targets[fit].mean()
    values, vectors = torch.linalg.eigh(codes[fit] @ codes[fit].mT)
    along = vectors.mT @ (targets[fit] - level)
    strengths = len(fit) * STRENGTHS[:, None].to(codes)
    weights = along / (values.clamp_min(0) + strengths) @ vectors.mT  # (strengths, n)
    return weights @ codes[fit] @ codes.mT + level


def balanced_accuracy(says: Tensor, truth: Tensor) -> float:
    """Mean over both classes of the share that is recognised; NaN where one of them is missing. (n,) bool each."""
    return ((says & truth).sum() / truth.sum() + (~says & ~truth).sum() / (~truth).sum()).item() / 2


def concordance(scores: Tensor, truth: Tensor, years: Tensor, within: int) -> float:
    """Share of pairs, one of either class and at most `within` years apart, whose scores are in the right order.

    NaN without such a pair; a tie counts one half. All (n,), truth bool.
    """
    near = (years[truth][:, None] - years[~truth]).abs() <= within
    gaps = scores[truth][:, None] - scores[~truth]
    return ((gaps > 0) + 0.5 * (gaps == 0))[near].double().mean().item()


def embed(codes: Tensor, fit: Tensor, metric: str) -> Tensor:
    """Vectors whose distances compare codes, by one of METRICS learned on the rows `fit`; those with cosines and the
    whitened ones are unit vectors."""
    if metric == "distance":
        return codes.double()
    if metric == "cosine":
        codes = codes.double() - codes[fit].double().mean(0)
    elif metric == "standardised cosine":
        codes = standardise(codes, fit)
    else:
        codes = whiten(codes, fit, int(metric.split()[1]))
    return torch.nn.functional.normalize(codes, dim=-1)


def nearest_is_of_the_same_group(vectors: Tensor, groups: Tensor, queries: Tensor, gallery: Tensor) -> float:
    """Share of queries whose nearest other row of the gallery is of their group; those alone in theirs do not count."""
    same = groups[queries][:, None] == groups[gallery]
    oneself = queries[:, None] == gallery
    nearest = torch.cdist(vectors[queries], vectors[gallery]).masked_fill(oneself, torch.inf).argmin(1, keepdim=True)
    return same.gather(1, nearest)[(same & ~oneself).any(1)].double().mean().item()


class Task(NamedTuple):
    """What a probe is tested on: targets (B,), the rows that it concerns (B,) bool, and how predictions are scored.

    score(predictions (B,), rows, level) -> a number, the larger the better; level: the mean target in training.
    """

    targets: Tensor
    concerns: Tensor
    score: Callable[[Tensor, Tensor, Tensor], float]


def try_ridge(variants: dict[str, Tensor], task: Task, train: Tensor, validation: Tensor, test: Tensor):
    """(score on test rows, predictions (B,), variant): variant and strength are those that validate best.

    Ties go to the first variant and the strongest ridge. The winner is fitted again on training and validation rows.
    """
    train, validation, test = (rows[task.concerns[rows]] for rows in (train, validation, test))
    both, best = torch.cat([train, validation]), (-torch.inf,)
    level = task.targets[train].double().mean()
    for name, codes in variants.items():
        for index, predictions in reversed(list(enumerate(ridge(codes, train, task.targets)))):
            score = task.score(predictions, validation, level)
            if score > best[0]:
                best = score, name, index
    if len(best) == 1:  # nothing to validate with
        return torch.nan, task.targets * torch.nan, "none"
    _, name, index = best
    predictions = ridge(variants[name], both, task.targets)[index]
    return task.score(predictions, test, task.targets[both].double().mean()), predictions, name


def try_neighbours(
    variants: dict[str, Tensor],
    groups: Tensor,
    train: Tensor,
    validation: Tensor,
    test: Tensor,
    metrics: Sequence[str] = METRICS,
):
    """(share of test rows whose nearest row of all is of their group, variant and metric): those that validate best.

    A metric is learned on training rows, and validation rows look for their neighbours among them and among each other.
    Ties go to the first. The winner is learned again on training and validation rows.
    """
    known = torch.cat([train, validation])
    scores = {
        (name, metric): nearest_is_of_the_same_group(embed(codes, train, metric), groups, validation, known)
        for name, codes in variants.items()
        for metric in metrics
    }
    name, metric = max(scores, key=scores.get)
    everything = torch.arange(len(groups), device=groups.device)
    vectors = embed(variants[name], known, metric)
    return nearest_is_of_the_same_group(vectors, groups, test, everything), f"{name}, {metric}"
