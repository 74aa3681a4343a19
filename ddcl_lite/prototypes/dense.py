"""The formulas as written, N x K and all: the reference for the fused path, for teaching and for second derivatives.

`assign`, `soft_centroids` and `decompose` have the signatures of their namesakes in `ddcl_lite`. Memory is O(N K D);
every function here can be differentiated twice, which fused attention cannot.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..attention import full_precision
from .inputs import keep, mean_over_tokens, prepare


class Decomposition(NamedTuple):
    """L_q = L_OLS + V: the total, its two parts, and the soft centroids (..., N, D) they were measured with."""

    total: Tensor
    reconstruction: Tensor
    variance: Tensor
    centroids: Tensor


def squared_distances(tokens: Tensor, prototypes: Tensor) -> Tensor:
    """D_nk = |z_n - p_k|^2: (..., N, D), (..., K, D) -> (..., N, K)."""
    return (tokens[..., :, None, :] - prototypes[..., None, :, :]).square().sum(-1)


def assign(tokens: Tensor, prototypes: Tensor, temperature: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """q_nk = exp(-D_nk/T) / sum_j exp(-D_nj/T), shape (..., N, K); rows of masked tokens are 0."""
    tokens, prototypes, temperature, dtype = prepare(tokens, prototypes, temperature, mask)
    with full_precision(tokens):
        weights = torch.softmax(-squared_distances(tokens, prototypes) / temperature, -1)
        return keep(weights, mask).to(dtype)


def soft_centroids(
    tokens: Tensor, prototypes: Tensor, temperature: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    """mu_n = sum_k q_nk p_k, shape (..., N, D); 0 for masked tokens."""
    tokens, prototypes, temperature, dtype = prepare(tokens, prototypes, temperature, mask)
    with full_precision(tokens):
        weights = torch.softmax(-squared_distances(tokens, prototypes) / temperature, -1)
        return keep(weights @ prototypes, mask).to(dtype)


def split(tokens: Tensor, prototypes: Tensor, weights: Tensor) -> Decomposition:
    """The three terms token by token, for ANY weights (..., N, K), each summed by its own definition.

    total          sum_k q_k |z - p_k|^2
    reconstruction |z - mu|^2, with mu = sum_k q_k p_k
    variance       sum_k q_k |p_k - mu|^2
    Where the weights sum to 1, even signed ones, total = reconstruction + variance (claim D1).
    """
    centroids = weights @ prototypes
    total = (weights * squared_distances(tokens, prototypes)).sum(-1)
    reconstruction = (tokens - centroids).square().sum(-1)
    variance = (weights * squared_distances(centroids, prototypes)).sum(-1)
    return Decomposition(total, reconstruction, variance, centroids)


def decompose(
    tokens: Tensor,
    prototypes: Tensor,
    temperature: float | Tensor,
    mask: Tensor | None = None,
    detach_assignment: bool = False,
) -> Decomposition:
    """`split` with Boltzmann weights, averaged over unmasked tokens; the three terms are summed independently."""
    tokens, prototypes, temperature, dtype = prepare(tokens, prototypes, temperature, mask)
    with full_precision(tokens):
        weights = torch.softmax(-squared_distances(tokens, prototypes) / temperature, -1)
        parts = split(tokens, prototypes, weights.detach() if detach_assignment else weights)
        terms = (mean_over_tokens(part, mask) for part in parts[:3])
        return Decomposition(*terms, keep(parts.centroids, mask).to(dtype))


def free_energy(tokens: Tensor, prototypes: Tensor, temperature: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """F = -T log sum_k exp(-D_nk/T), averaged over unmasked tokens."""
    tokens, prototypes, temperature, _ = prepare(tokens, prototypes, temperature, mask)
    with full_precision(tokens):
        exponents = -squared_distances(tokens, prototypes) / temperature
        energy = -temperature * torch.logsumexp(exponents, -1, keepdim=True)
        return mean_over_tokens(energy.squeeze(-1), mask)


def assignment_covariance(weights: Tensor) -> Tensor:
    """Sigma_q = diag(q) - q q^T for each token: (..., N, K) -> (..., N, K, K)."""
    return torch.diag_embed(weights) - weights[..., :, None] * weights[..., None, :]
