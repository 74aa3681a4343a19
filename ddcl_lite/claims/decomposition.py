"""D1 to D3: the loss splits exactly, V is a variance, and its gradient with the assignment frozen."""

import torch

from ..prototypes import dense
from .registry import Evidence, claim

ROUNDING = 1e-12  # float64, quantities of order 1 to 100


def cloud(seed, device, tokens=64, prototypes=6, dim=5):
    """Random tokens, prototypes and a generator in float64, drawn on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randn(n, dim, generator=generator, dtype=torch.float64) for n in (tokens, prototypes)]
    return draw[0].to(device), draw[1].to(device), generator


@claim(
    "D1",
    "The loss decomposes exactly: L_q = L_OLS + V, and a run shows no violation (summary: in 500 epochs).",
    "holds",
    "An identity, the parallel-axis theorem: true for any tokens, prototypes and weights that sum to 1, trained or "
    "not. A run without violations tests the code, not the idea.",
    3,
)
def identity(seed, device):
    tokens, prototypes, generator = cloud(seed, device)
    noise = torch.randn(len(tokens), len(prototypes), generator=generator, dtype=torch.float64).to(device)
    signed = noise + (1 - noise.sum(-1, keepdim=True)) / noise.shape[-1]  # sums to 1, with negative entries
    heavy = 1.5 * dense.assign(tokens, prototypes, 1.0)  # sums to 1.5

    def gap(weights):
        parts = dense.split(tokens, prototypes, weights)
        return parts.total - parts.reconstruction - parts.variance, parts.centroids

    soft_gap, _ = gap(dense.assign(tokens, prototypes, 1.0))
    signed_gap, _ = gap(signed)
    heavy_gap, centroids = gap(heavy)
    predicted = 0.5 * (tokens.square().sum(-1) - centroids.square().sum(-1))
    return [
        Evidence("largest gap, Boltzmann weights", soft_gap.abs().max().item(), at_most=ROUNDING),
        Evidence("smallest of the signed weights", signed.min().item(), at_most=-0.5),
        Evidence("largest gap, signed weights that sum to 1", signed_gap.abs().max().item(), at_most=ROUNDING),
        Evidence("largest gap, weights that sum to s = 1.5", heavy_gap.abs().max().item(), at_least=0.1),
        Evidence(
            "that gap minus (s - 1)(|z|^2 - |mu|^2)", (heavy_gap - predicted).abs().max().item(), at_most=ROUNDING
        ),
    ]


@claim(
    "D2",
    "The variance term V = tr(P^T Sigma_q P) is never negative.",
    "holds",
    "Sigma_q = diag(q) - q q^T is positive semidefinite with Sigma_q 1 = 0, so V >= 0, and at a finite temperature "
    "V = 0 exactly when all prototypes coincide. A bound from below keeps nothing apart: collapse attains it.",
    3,
)
def variance_is_a_variance(seed, device):
    tokens, prototypes, _ = cloud(seed, device)
    weights = dense.assign(tokens, prototypes, 5.0)
    covariance = dense.assignment_covariance(weights)
    trace = (prototypes.mT @ covariance @ prototypes).diagonal(dim1=-2, dim2=-1).sum(-1)
    variance = dense.split(tokens, prototypes, weights).variance
    coincident = prototypes[:1].expand_as(prototypes)
    collapsed = dense.split(tokens, coincident, dense.assign(tokens, coincident, 5.0)).variance
    return [
        Evidence("smallest eigenvalue of Sigma_q", torch.linalg.eigvalsh(covariance).min().item(), at_least=-1e-15),
        Evidence("largest entry of Sigma_q 1", covariance.sum(-1).abs().max().item(), at_most=1e-15),
        Evidence("largest |V - tr(P^T Sigma_q P)|", (variance - trace).abs().max().item(), at_most=ROUNDING),
        Evidence("smallest V, distinct prototypes", variance.min().item(), at_least=1e-9),
        Evidence("largest V, coincident prototypes", collapsed.max().item(), at_most=ROUNDING),
    ]


@claim(
    "D3",
    "With the assignment q held fixed, the gradient of V with respect to the prototypes is 2 Sigma_q P.",
    "holds",
    "Row k is 2 q_k (p_k - mu). The condition matters: where q follows the prototypes, as in plain automatic "
    "differentiation, the gradient is another vector.",
    3,
)
def gradient_of_variance(seed, device, step=1e-3):
    tokens, prototypes, generator = cloud(seed, device)
    weights = dense.assign(tokens, prototypes, 1.0)
    formula = 2 * (dense.assignment_covariance(weights) @ prototypes).mean(0)

    def variance(bank, frozen):
        return dense.split(tokens, bank, weights if frozen else dense.assign(tokens, bank, 1.0)).variance.mean()

    def differences(frozen):
        """Central differences, entry by entry; V with q frozen is quadratic, so they are exact up to rounding."""
        gradient = torch.zeros_like(prototypes)
        for index in range(prototypes.numel()):
            shift = torch.zeros_like(prototypes).flatten()
            shift[index] = step
            shift = shift.view_as(prototypes)
            rise = variance(prototypes + shift, frozen) - variance(prototypes - shift, frozen)
            gradient.view(-1)[index] = rise / (2 * step)
        return gradient

    error = (differences(frozen=True) - formula).abs().max().item()
    detour = ((differences(frozen=False) - formula).norm() / formula.norm()).item()
    return [
        Evidence("largest |finite difference - 2 Sigma_q P|, q frozen", error, at_most=1e-8),
        Evidence("|gradient with q attached - 2 Sigma_q P| / |2 Sigma_q P|", detour, at_least=0.1),
    ]
