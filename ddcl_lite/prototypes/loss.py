"""The loss and its exact decomposition, the energies behind it, and the temperatures at which a bank can separate."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..attention import full_precision
from .assignment import assign, log_weights, moments, squared_distances
from .dense import Decomposition
from .inputs import (
    check_one_bank,
    check_temperature,
    check_tokens,
    keep,
    mean_over_tokens,
    prepare,
    working_dtype,
)


def decompose(
    tokens: Tensor,
    prototypes: Tensor,
    temperature: float | Tensor,
    mask: Tensor | None = None,
    detach_assignment: bool = False,
) -> Decomposition:
    """The loss L_q and its two parts, averaged over unmasked tokens, without an N x K matrix.

    L_q = sum_k q_k |z - p_k|^2 = |z - mu|^2 + sum_k q_k |p_k - mu|^2 = L_OLS + V

    Arguments and errors as in `assign`. Returns Decomposition(total, reconstruction, variance, centroids): three
    scalars in units of squared distance, in float32 at least, and mu (..., N, D). All tokens masked: zeros. First
    derivatives only (`dense.decompose` has both).
    `detach_assignment` freezes q: gradients then reach the prototypes only through the p_k that q weights.
    The fused form computes V = E_q|p|^2 - |mu|^2 and DEFINES the total as the sum, so it cannot test the identity;
    `dense.decompose` can. V is exact to about 6e-8 of the bank's squared radius and shown as at least 0.
    Source: DDCL-Attention (2604.03850); fused form ours; chapters 2 and 3.
    """
    average = partial(mean_over_tokens, mask=mask)
    return decompose_by(average, tokens, prototypes, temperature, mask, detach_assignment)


def decompose_by(
    average: Callable[[Tensor], Tensor],
    tokens: Tensor,
    prototypes: Tensor,
    temperature: float | Tensor,
    mask: Tensor | None,
    detach_assignment: bool,
) -> Decomposition:
    """`decompose` with another average over tokens: (..., N) -> scalar, linear."""
    tokens, prototypes, temperature, dtype = prepare(tokens, prototypes, temperature, mask)
    with full_precision(tokens):
        means, norms, centre = moments(tokens, prototypes, temperature, detach_assignment)
        spread = norms - means.square().sum(-1)
        spread = spread + (spread.clamp_min(0) - spread).detach()  # the value is clamped, the gradient is not
        variance, reconstruction = average(spread), average((tokens - centre - means).square().sum(-1))
        centroids = keep(means + centre, mask).to(dtype)
        return Decomposition(reconstruction + variance, reconstruction, variance, centroids)


def free_energy(tokens: Tensor, prototypes: Tensor, temperature: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """The function that training with q frozen descends, averaged over unmasked tokens.

    F = -T log sum_k exp(-|z - p_k|^2/T) = L_q - T H(q), H the entropy of q

    Arguments and errors as in `assign`; returns a scalar in units of squared distance, in float32 at least; 0 if all
    tokens are masked. Stores N x K. First derivatives only. Source: Rose (1998); chapter 5.
    """
    tokens, prototypes, temperature, _ = prepare(tokens, prototypes, temperature, mask)
    with full_precision(tokens):
        exponents, nearest = log_weights(tokens, prototypes, temperature)
        energy = nearest - temperature * torch.logsumexp(exponents, -1, keepdim=True)
        return mean_over_tokens(energy.squeeze(-1), mask)


def annealing_potential(
    tokens: Tensor, prototypes: Tensor, temperature: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    """What training with q frozen descends also while the temperature falls, as F does not (claim D10).

    W = F + T log K = L_q + T mean KL(q, uniform) >= 0

    Arguments and errors as in `assign`; returns a scalar like `free_energy`. While heating, use F. Source: ours;
    chapter 5.
    """
    energy = free_energy(tokens, prototypes, temperature, mask)
    temperature = torch.as_tensor(temperature, dtype=energy.dtype, device=energy.device)
    lead = torch.broadcast_shapes(tokens.shape[:-2], prototypes.shape[:-2])
    each = temperature[..., None].expand(*lead, tokens.shape[-2])  # of every token: W is an average over tokens, as F
    return energy + mean_over_tokens(each, mask) * math.log(prototypes.shape[-2])


def splitting_temperatures(
    tokens: Tensor,
    prototypes: Tensor,
    temperature: float | Tensor,
    mask: Tensor | None = None,
    detach_assignment: bool = False,
) -> Tensor:
    """For each prototype, the temperature below which a group of prototypes that coincide there splits.

    2 lambda_max(sum_n a_n (1 + r_n) y_n y_n^T) / sum_n a_n r_n, with y_n = z_n - p_k, a_n = q_nk and
    r_n = 1 - (|y_n|^2 - L_n)/T, L_n = sum_j q_nj |z_n - p_j|^2; with q detached, r_n = 1 and 1 + r_n becomes 1

    tokens (..., N, D), one bank (K, D), a number T > 0 at which q is taken. Returns (K,), in units of squared distance;
    0 for a prototype without weight. With q attached and sum a r <= 0 there is no such temperature, only an answer at
    this T: inf where the group splits, 2 lambda_max > T sum a r, and 0 where it does not. For a bank collapsed onto the
    tokens' mean: `critical_temperature`. No gradient. Source: Rose (1998) for q detached, ours for q attached (claim
    D7); chapter 5.
    """
    tokens = check_tokens(tokens, mask)
    check_one_bank(prototypes, tokens)
    temperature = check_temperature(temperature, ())  # one for all
    dtype = working_dtype(tokens, prototypes)
    tokens, prototypes = tokens.detach().to(dtype), prototypes.detach().to(dtype)
    with full_precision(tokens):
        weights = assign(tokens, prototypes, temperature, mask).flatten(0, -2)  # (n, K)
        tokens = tokens.flatten(0, -2)
        squares = squared_distances(tokens, prototypes)
        relative = 1 - (squares - (weights * squares).sum(-1, keepdim=True)) / temperature
        result = []
        for p, a, r in zip(prototypes, weights.mT, relative.mT):
            outer, mass = (a, a.sum()) if detach_assignment else (a * (1 + r), (a * r).sum())
            y = tokens - p
            largest = torch.linalg.eigvalsh((outer[:, None] * y).mT @ y)[-1]
            if mass > 0:
                result.append(2 * largest.clamp_min(0) / mass)
            else:
                result.append(torch.full_like(mass, math.inf if 2 * largest > temperature * mass else 0.0))
        return torch.stack(result)


def certified_usage(
    tokens: Tensor,
    prototypes: Tensor,
    temperature: float | Tensor,
    mask: Tensor | None = None,
    detach_assignment: bool = False,
) -> int:
    """How many prototypes stay the nearest of some token ever after, under gradient flow and any further cooling.

    1 + the number of m with value < sum_{i >= m} lambda_i(C), value = W with q detached, L_q with q attached

    The flow never raises the value, and mean_n min_k |z_n - p_k|^2 <= L_q <= W. A bank that uses only m prototypes
    costs at least as much as the best m means, and m means lie in a plane of dimension m - 1, so they cost at least the
    eigenvalues of C from the m-th on: 0 beyond the D-th, so at most D + 1 is certified. temperature: a number, or a
    whole schedule (steps,), of which the value at the first is taken. Raises ValueError for a schedule that rises: then
    neither value need fall. Holds for the flow, and, q detached, for descent with lr <= 1. Source: ours (claim D9);
    chapter 5.
    """
    if isinstance(temperature, Tensor) and temperature.dim() == 1:
        if len(temperature) == 0:
            raise ValueError("temperature: expected a schedule of at least one step, got none")
        if not bool((temperature.diff() <= 0).all()):
            raise ValueError(
                "temperature: expected a schedule that never rises: under heating W is no Lyapunov function"
            )
        temperature = temperature[0]
    if mask is not None and not bool(mask.any()):
        raise ValueError("mask: expected at least one real token, got none")
    rows = check_tokens(tokens, mask)
    rows = rows.flatten(0, -2) if mask is None else rows[mask]
    check_one_bank(prototypes, rows)
    rows, prototypes = rows.detach().double(), prototypes.detach().double()
    with full_precision(rows):
        value = (
            annealing_potential(rows, prototypes, temperature)
            if detach_assignment
            else decompose(rows, prototypes, temperature).total
        )
        covariance = torch.atleast_2d(torch.cov(rows.mT, correction=0))
        tails = torch.linalg.eigvalsh(covariance).cumsum(0).flip(0)  # from the m-th eigenvalue on
        return 1 + int((value < tails - 1e-9 * tails[0]).sum())  # a tie, as at collapse, certifies nothing


def critical_temperature(tokens: Tensor, mask: Tensor | None = None, detach_assignment: bool = False) -> Tensor:
    """The temperature below which a bank that has collapsed onto the tokens' mean starts to separate.

    T_c = 4 lambda_max(C), or 2 lambda_max(C) with q detached; C = cov(z) with 1/N over all unmasked tokens

    tokens (..., N, D), mask (..., N) bool. Returns a scalar in units of squared distance, in float32 at least; 0 for
    one token, equal tokens, or none unmasked. No gradient. Raises ValueError naming the argument.
    Source: Rose (1998) for q detached, ours for q attached; chapters 2 and 5.
    """
    tokens = check_tokens(tokens, mask)
    weights = torch.ones_like(tokens[..., 0]) if mask is None else mask
    return critical_temperature_by(weights.to(working_dtype(tokens)), tokens, detach_assignment)


@torch.no_grad()
def critical_temperature_by(weights: Tensor, tokens: Tensor, detach_assignment: bool) -> Tensor:
    """`critical_temperature` where each token (..., N, D) counts by its weight (..., N) >= 0."""
    with full_precision(tokens):
        tokens, weights = tokens.to(working_dtype(tokens)).flatten(0, -2), weights.reshape(-1, 1)
        total = weights.sum()
        total = torch.where(total > 0, total, 1)
        tokens = tokens - tokens[weights.argmax(0)]  # from one of them: equal tokens become exactly 0
        centred_tokens = (tokens - (weights * tokens).sum(0) / total) * weights.sqrt()
        covariance = centred_tokens.mT @ centred_tokens / total
        return (2 if detach_assignment else 4) * torch.linalg.eigvalsh(covariance)[-1].clamp_min(0)
