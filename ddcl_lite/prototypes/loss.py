"""The loss and its exact decomposition, the free energy behind it, and the temperature at which a bank can separate."""

import torch
from torch import Tensor

from .assignment import log_weights, moments
from .dense import Decomposition
from .inputs import check_tokens, full_precision, keep, mean_over_tokens, prepare, working_dtype


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
    tokens, prototypes, temperature, dtype = prepare(tokens, prototypes, temperature, mask)
    with full_precision(tokens):
        means, norms, centre = moments(tokens, prototypes, temperature, detach_assignment)
        spread = norms - means.square().sum(-1)
        spread = spread + (spread.clamp_min(0) - spread).detach()  # the value is clamped, the gradient is not
        variance = mean_over_tokens(spread, mask)
        reconstruction = mean_over_tokens((tokens - centre - means).square().sum(-1), mask)
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


def critical_temperature(tokens: Tensor, mask: Tensor | None = None, detach_assignment: bool = False) -> Tensor:
    """The temperature below which a bank that has collapsed onto the tokens' mean starts to separate.

    T_c = 4 lambda_max(C), or 2 lambda_max(C) with q detached; C = cov(z) with 1/N over all unmasked tokens

    tokens (..., N, D), mask (..., N) bool. Returns a scalar in units of squared distance, in float32 at least; 0 for
    one token, equal tokens, or none unmasked. No gradient. Raises ValueError naming the argument.
    Source: Rose (1998) for q detached, ours for q attached; chapters 2 and 5.
    """
    tokens = check_tokens(tokens, mask)
    with full_precision(tokens), torch.no_grad():
        tokens = tokens.to(working_dtype(tokens)).flatten(0, -2)  # (tokens, D)
        weight = torch.ones_like(tokens[:, :1]) if mask is None else mask.reshape(-1, 1).to(tokens.dtype)
        count = weight.sum().clamp_min(1)
        tokens = tokens - tokens[weight.argmax(0)]  # from one of them: equal tokens become exactly 0
        centred_tokens = (tokens - (weight * tokens).sum(0) / count) * weight
        covariance = centred_tokens.mT @ centred_tokens / count
        return (2 if detach_assignment else 4) * torch.linalg.eigvalsh(covariance)[-1].clamp_min(0)
