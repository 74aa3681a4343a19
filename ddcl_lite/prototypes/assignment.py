"""Tokens to soft centroids through one attention call, without an N x K matrix.

|z|^2 cancels in the softmax, so q = softmax_k((2 z.p_k - |p_k|^2) / T): cross-attention whose keys and values are the
prototypes, with the bias -|p_k|^2/T (claim D18). Written with queries [z, 1], keys [2P/T, -|p|^2/T] and values
[P, |p|^2], PyTorch's fused attention returns the soft centroid and E_q|p|^2 together. Only where K <= D/2, so that the
matrix is at most half as large as the tokens, two plain products take its place: they are faster there.
"""

import torch
from torch import Tensor

from ..attention import attend, full_precision, widen
from .inputs import keep, prepare


def assign(tokens: Tensor, prototypes: Tensor, temperature: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """Boltzmann weights of every token over the prototypes.

    q_nk = exp(-|z_n - p_k|^2/T) / sum_j exp(-|z_n - p_j|^2/T)

    tokens (..., N, D), prototypes (..., K, D), temperature > 0 in units of squared distance (a number, or a tensor
    with one entry per leading index), mask (..., N) bool, True for real tokens. Returns (..., N, K); rows of masked
    tokens are 0. T -> 0 gives the nearest prototype (exact ties shared), T -> inf gives 1/K. First derivatives only
    (`ddcl_lite.prototypes.dense` has both).
    Raises ValueError naming the argument. Source: DDCL-Attention (2604.03850); chapter 2.
    """
    tokens, prototypes, temperature, dtype = prepare(tokens, prototypes, temperature, mask)
    with full_precision(tokens):
        weights = torch.softmax(log_weights(tokens, prototypes, temperature)[0], -1)
        return keep(weights, mask).to(dtype)


def soft_centroids(
    tokens: Tensor, prototypes: Tensor, temperature: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    """The mixture of prototypes that stands in for each token, in O(N K D) time and O((N + K) D) memory.

    mu_n = sum_k q_nk p_k, with q from `assign`

    Arguments and errors as in `assign`; returns (..., N, D), 0 at masked tokens. First derivatives only. It computes
    in float32 at least, also under autocast: in half precision squared norms overflow and cold assignments are wrong.
    Ties are shared up to rounding, about 1e-7 |z-c||p-c|/T in the logits (c the bank's mean).
    Source: DDCL-Attention (2604.03850), fused form ours; chapter 2.
    """
    tokens, prototypes, temperature, dtype = prepare(tokens, prototypes, temperature, mask)
    with full_precision(tokens):
        centre, weight, bias = _keys(prototypes, temperature)
        return keep(_attention(tokens, centre, weight, bias, prototypes), mask).to(dtype)


def log_weights(tokens: Tensor, prototypes: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    """(d_n - D_nk)/T, which never overflows, and d_n, the smallest D_nk of the row: (..., N, K), (..., N, 1)."""
    distances = squared_distances(tokens, prototypes)
    nearest = distances.detach().amin(-1, keepdim=True)
    return (nearest - distances) / temperature, nearest


def squared_distances(tokens: Tensor, prototypes: Tensor) -> Tensor:
    """|z_n - p_k|^2 as (..., N, K), from differences rather than products: exact ties stay exact."""
    return torch.cdist(tokens, prototypes, compute_mode="donot_use_mm_for_euclid_dist").square()


def moments(
    tokens: Tensor, prototypes: Tensor, temperature: float | Tensor, detach_assignment: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """(E_q[p] - c, E_q|p - c|^2, c) with c the bank's mean: shapes (..., N, D), (..., N), (..., 1, D).

    With `detach_assignment` queries and keys are cut off and values are not: exactly q frozen.
    """
    centre, weight, bias = _keys(prototypes, temperature)
    if detach_assignment:
        tokens, weight, bias = tokens.detach(), weight.detach(), bias.detach()
    spokes = prototypes - centre
    value = torch.cat([spokes, spokes.square().sum(-1, keepdim=True)], -1)
    out = _attention(tokens, centre, weight, bias, value)
    return out[..., :-1], out[..., -1], centre


def _keys(prototypes: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """c, 2(p - c)/T, -|p - c|^2/T: the logits are (z - c) . weight + bias, up to a constant per token.

    Moving the bank's mean c to the origin saves the digits that an offset would cost. It is a constant for autograd:
    nothing depends on where the origin is, so its gradient is exactly 0.
    """
    centre = prototypes.detach().mean(-2, keepdim=True)
    spokes = prototypes - centre
    return centre, 2 * spokes / temperature, -spokes.square().sum(-1, keepdim=True) / temperature


def _attention(tokens: Tensor, centre: Tensor, weight: Tensor, bias: Tensor, value: Tensor) -> Tensor:
    """softmax((tokens - centre) weight^T + bias^T) value, leading dimensions broadcast: (..., N, D) -> (..., N, D')."""
    width = value.shape[-1]
    if 2 * weight.shape[-2] <= weight.shape[-1]:  # N x K is at most half the tokens: two plain products are faster
        weights = torch.softmax((tokens - centre) @ weight.mT + bias.mT, -1)
        return (weights @ widen(value))[..., :width]
    if tokens.device.type == "cpu" and value.shape == weight.shape and not bias.requires_grad:
        return attend(tokens - centre, weight, value, bias.mT)
    query = tokens - centre  # fused kernels have no gradient for a bias, but they have one for a feature
    query = widen(torch.cat([query, query.new_ones(1).expand(*query.shape[:-1], 1)], -1))
    key = widen(torch.cat([weight, bias], -1))
    padded = widen(value, query.shape[-1])  # and they want values as wide as keys
    return attend(query, key, padded)[..., :width]
