"""What tells collapse from health. No single one does: `checkup` gives them side by side (chapter 1).

Tokens are (..., N, D) with mask (..., N), True for real tokens; leading dimensions are pooled. Every measure is
invariant to rotation and to the order of tokens; those of directions ignore scale. Each returns a Python float and
raises ValueError for NaN or infinite tokens and where no token is left.
"""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components
from torch import Tensor


def resultant_length(tokens: Tensor, mask: Tensor | None = None) -> float:
    """|mean of z/|z||: 1 if all tokens point the same way, near 0 if directions cancel. A zero vector: ValueError."""
    return _directions(tokens, mask).mean(0).norm().item()


def mean_cosine(tokens: Tensor, mask: Tensor | None = None) -> float:
    """Mean of cos(z_i, z_j) over pairs i != j, from (n^2 Rbar^2 - n) / (n^2 - n); 1 for a single token."""
    count = len(_directions(tokens, mask))
    if count == 1:
        return 1.0
    return (count * resultant_length(tokens, mask) ** 2 - 1) / (count - 1)


def effective_rank(tokens: Tensor, mask: Tensor | None = None) -> float:
    """exp of the entropy of s_i / sum s, s the singular values of the centred tokens; 0 if all tokens are equal.

    Between 1 (a line) and D. Unchanged by scale. Source: Roy and Vetterli (2007).
    """
    tokens = _rows(tokens, mask)
    values = torch.linalg.svdvals(tokens - tokens.mean(0))
    if values.sum() <= tokens.abs().max() * torch.finfo(tokens.dtype).eps * len(tokens):
        return 0.0
    return _exp_entropy(values / values.sum())


def covariance_spectrum(tokens: Tensor, mask: Tensor | None = None) -> list[float]:
    """Eigenvalues of cov(z) with 1/n, largest first: D numbers >= 0 whose sum is `token_variance`."""
    rows = _rows(tokens, mask)
    values = torch.linalg.svdvals(rows - rows.mean(0)).square() / len(rows)
    return values.tolist() + [0.0] * (rows.shape[-1] - len(values))


def cluster_count(tokens: Tensor, angle: float = 0.1, mask: Tensor | None = None) -> int:
    """Number of clusters of directions: tokens closer than `angle` radians share one, and so do chains of them.

    Single linkage, cut at the angle. Raises ValueError for an angle outside (0, pi]. Chapter 12.
    """
    if not 0 < angle <= np.pi:
        raise ValueError(f"angle: expected radians in (0, pi], got {angle}")
    rows = _directions(tokens, mask).double()
    near = 2 * np.sin(angle / 2)  # as a distance: cosines lose the digits of small angles
    linked = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") < near
    return int(connected_components(linked.cpu().numpy(), directed=False)[0])


def within_label_variance(tokens: Tensor, labels: Tensor) -> float:
    """Mean square distance of tokens (n, D) from the mean of those with the same label (n,): 0 if each label sits at
    one point. Raises ValueError unless there is one label a token. Chapter 13."""
    rows, means = _label_means(tokens, labels)
    return (rows - means).square().sum(-1).mean().item()


def between_label_variance(tokens: Tensor, labels: Tensor) -> float:
    """`token_variance` less `within_label_variance`: how far the labels' means lie apart. Chapter 13."""
    return token_variance(_label_means(tokens, labels)[1])


def circle_wasserstein(angles: Tensor, others: Tensor) -> float:
    """Wasserstein-1 distance, in radians, of two samples of angles (n,), (m,) on the circle.

    min over c of the integral of |F - G - c| with F, G the distribution functions on [0, 2 pi): c is their weighted
    median. Raises ValueError for empty or non-finite samples. Source: Rabin, Delon and Gousseau (2011); chapter 14.
    """
    for name, sample in (("angles", angles), ("others", others)):
        if not isinstance(sample, Tensor) or sample.dim() != 1 or not len(sample) or not torch.isfinite(sample).all():
            got = tuple(sample.shape) if isinstance(sample, Tensor) else type(sample).__name__
            raise ValueError(f"{name}: expected a tensor of at least one finite angle (n,), got {got}")
    first, second = (np.mod(sample.detach().double().cpu().numpy(), 2 * np.pi) for sample in (angles, others))
    places = np.concatenate([first, second])
    jumps = np.concatenate([np.full(len(first), 1 / len(first)), np.full(len(second), -1 / len(second))])
    order = places.argsort()
    gap = jumps[order].cumsum()  # F - G after each place
    lengths = np.diff(places[order], append=places[order][0] + 2 * np.pi)
    ranked = gap.argsort()
    median = gap[ranked][np.searchsorted(lengths[ranked].cumsum(), np.pi)]
    return float((np.abs(gap - median) * lengths).sum())


def min_separation(prototypes: Tensor, tokens: Tensor | None = None, mask: Tensor | None = None) -> float:
    """Smallest distance between two of the prototypes (K, D); with tokens, in units of their standard deviation.

    The unit is sqrt(tr cov(z)), so the result does not change when tokens and prototypes are scaled together. K = 1:
    inf. Tokens that are all equal leave no unit: ValueError.
    """
    prototypes = _bank(prototypes)
    smallest = torch.nn.functional.pdist(prototypes).min().item() if len(prototypes) > 1 else float("inf")
    return smallest if tokens is None else smallest / _unit(tokens, mask)


def spread(prototypes: Tensor, tokens: Tensor | None = None, mask: Tensor | None = None) -> float:
    """Root mean square distance of prototypes (K, D) from their mean; with tokens, in their standard deviations."""
    prototypes = _bank(prototypes)
    size = (prototypes - prototypes[0]).var(0, correction=0).sum().sqrt().item()  # exactly 0 if all coincide
    return size if tokens is None else size / _unit(tokens, mask)


def token_variance(tokens: Tensor, mask: Tensor | None = None) -> float:
    """tr cov(z) with 1/n, in units of squared distance: 0 exactly if all tokens are equal."""
    rows = _rows(tokens, mask)
    return (rows - rows[0]).var(0, correction=0).sum().item()


def tracking_distance(prototypes: Tensor, targets: Tensor) -> float:
    """Root mean square distance of prototypes (K, D) from targets (K, D), each matched with one: the best matching.

    Raises ValueError for banks of different shapes. Chapter 6.
    """
    prototypes, targets = _bank(prototypes), _bank(targets, "targets")
    if prototypes.shape != targets.shape:
        raise ValueError(f"targets: expected shape {tuple(prototypes.shape)}, got {tuple(targets.shape)}")
    squares = (prototypes[:, None] - targets[None]).square().sum(-1).double().cpu()
    rows, columns = linear_sum_assignment(squares.numpy())
    return squares[rows, columns].mean().sqrt().item()


def usage(weights: Tensor, mask: Tensor | None = None, hard: bool = True) -> float:
    """Share of the K prototypes that are the largest weight of at least one token; weights (..., N, K).

    Blind to scale: a bank of spread 1e-9 can still score 1. Give `min_separation` beside it. With hard=False, the share
    with any weight > 0, which softmax gives to all, dead or alive (claim D15): shown in this book only to be caught.
    """
    rows = _rows(weights, mask, "weights")
    used = _histogram(rows) if hard else (rows > 0).any(0)
    return used.count_nonzero().item() / weights.shape[-1]


def perplexity(weights: Tensor, mask: Tensor | None = None, hard: bool = True) -> float:
    """exp of the entropy of the argmax histogram: 1 (one prototype takes all) to K (all take equal shares).

    With hard=False, of the mean weights instead: a bank in full collapse then scores K (claim D15).
    """
    rows = _rows(weights, mask, "weights")
    shares = _histogram(rows) if hard else rows.mean(0)
    return _exp_entropy(shares / shares.sum())


def checkup(tokens: Tensor, prototypes: Tensor, weights: Tensor, mask: Tensor | None = None) -> dict[str, float]:
    """The measures of this module side by side, by name: each collapse escapes most of them.

    tokens (..., N, D), prototypes (K, D), weights (..., N, K), mask (..., N). "within a sequence" is the mean over
    sequences that have a token. Raises ValueError as the single measures do. Chapter 1.
    """
    if weights.shape != (*tokens.shape[:-1], len(prototypes)):
        expected = (*tokens.shape[:-1], len(prototypes))
        raise ValueError(f"weights: expected shape {expected} for these tokens, got {tuple(weights.shape)}")
    report = {
        "usage by q > 0": usage(weights, mask, hard=False),
        "perplexity of mean q": perplexity(weights, mask, hard=False),
        "usage by argmax": usage(weights, mask),
        "perplexity of argmax": perplexity(weights, mask),
        "separation, token sd": min_separation(prototypes, tokens, mask),
        "effective rank, bank": effective_rank(prototypes),
        "effective rank, tokens": effective_rank(tokens, mask),
        "mean cosine, all tokens": mean_cosine(tokens, mask),
    }
    sequences = tokens.reshape(-1, *tokens.shape[-2:])  # (B, N, D)
    masks = [None] * len(sequences) if mask is None else mask.reshape(len(sequences), -1)
    within = [mean_cosine(z, m) for z, m in zip(sequences, masks, strict=True) if m is None or m.any()]
    return report | {"mean cosine, within a sequence": sum(within) / len(within)}


def _rows(values: Tensor, mask: Tensor | None, name: str = "tokens") -> Tensor:
    """The unmasked rows (n, D), leading dimensions pooled, in float32 at least."""
    if not isinstance(values, Tensor) or values.dim() < 2 or not values.is_floating_point():
        got = f"{values.dtype} {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"{name}: expected a floating-point tensor (..., N, D), got {got}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != values.shape[:-1]):
        raise ValueError(
            f"mask: expected bool of shape {tuple(values.shape[:-1])}, got {mask.dtype} {tuple(mask.shape)}"
        )
    rows = values.detach().flatten(0, -2) if mask is None else values.detach()[mask]
    if len(rows) == 0:
        raise ValueError(f"{'mask' if mask is not None else name}: expected at least one row to measure, got none")
    if not torch.isfinite(rows).all():
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    return rows if rows.dtype == torch.float64 else rows.float()


def _bank(prototypes: Tensor, name: str = "prototypes") -> Tensor:
    if prototypes.dim() != 2:
        raise ValueError(f"{name}: expected one bank (K, D), got shape {tuple(prototypes.shape)}")
    return _rows(prototypes, None, name)


def _unit(tokens: Tensor, mask: Tensor | None) -> float:
    deviation = token_variance(tokens, mask) ** 0.5
    if deviation == 0:
        raise ValueError("tokens: expected tokens that differ, got equal ones, which leave no unit of distance")
    return deviation


def _directions(tokens: Tensor, mask: Tensor | None) -> Tensor:
    rows = _rows(tokens, mask)
    lengths = rows.norm(dim=-1, keepdim=True)
    if (lengths == 0).any():
        raise ValueError("tokens: expected vectors with a direction, got a zero vector")
    return rows / lengths


def _label_means(tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The rows (n, D), and for each of them the mean of those with the same label (n, D)."""
    rows = _rows(tokens, None)
    if not isinstance(labels, Tensor) or labels.dim() not in (1, 2) or len(labels) != len(rows) or tokens.dim() != 2:
        got = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"labels: expected a tensor with one for each of the {len(rows)} tokens (n, D), got {got}")
    index = torch.unique(labels.to(rows.device), dim=0, return_inverse=True)[1]
    count = index.bincount().to(rows)[:, None]
    means = rows.new_zeros(len(count), rows.shape[-1]).index_add(0, index, rows) / count
    return rows, means[index]


def _histogram(rows: Tensor) -> Tensor:
    """How many of the rows (n, K) have each prototype as their largest weight: (K,)."""
    return torch.bincount(rows.argmax(-1), minlength=rows.shape[-1]).to(rows.dtype)


def _exp_entropy(shares: Tensor) -> float:
    return torch.special.entr(shares).sum().exp().item()
