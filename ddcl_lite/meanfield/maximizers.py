"""The laws that the theorems name, built exactly: orbits, gauges for a target, circles, and who is maximal."""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import brentq
from scipy.special import i0e, i1e
from torch import Tensor

from ..attention import full_precision
from .kernels import Exponential
from .sphere import check_labels, check_tokens, positive

GRID = 4096  # points at which densities and profiles on a circle are sampled


def orbit(kernel: Exponential, labels: Tensor, point: Tensor) -> Tensor:
    """The tokens x(xi) = G(xi)^T u that a rotary or gauge kernel sends to one point u (D,): its maximisers, (n, D).

    Their energy is 1/(2 beta), the largest there is. Source: USA-AV (2605.30229), summary; chapters 14 and 15.
    """
    if not isinstance(kernel, Exponential):
        raise ValueError(f"kernel: expected Rotary or Gauge, got {kernel!r}")
    kernel.check_energy()
    tokens = check_tokens(point[None]).expand(len(labels), -1)
    with full_precision(tokens):
        return kernel.frame(tokens, check_labels(labels, tokens))[1](tokens)


def quantiles(density: Callable[[np.ndarray], np.ndarray], levels: Tensor) -> Tensor:
    """Angles in [0, 2 pi) at which the law with this density (up to a factor) has the cumulative `levels` in [0, 1].

    The inverse distribution function. As a label law it turns uniform levels into positions; as a phase map it turns
    uniform labels into angles. density maps an array of angles to numbers >= 0, is read at 4,096 midpoints and taken as
    constant around each. Raises ValueError for values that are negative, not finite or all 0, and for other levels.
    Source: ours, for claim U6; chapter 14.
    """
    edges = np.linspace(0, 2 * np.pi, GRID + 1)
    values = np.asarray(density((edges[1:] + edges[:-1]) / 2), dtype=float)
    if values.shape != (GRID,) or not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
        raise ValueError("density: expected finite numbers >= 0, not all 0, one for each angle: no probability law")
    if not ((levels >= 0) & (levels <= 1)).all():
        raise ValueError("levels: expected numbers in [0, 1]")
    cumulative = np.concatenate([[0.0], values.cumsum() / values.sum()])
    bins = np.flatnonzero(values)  # where the density is 0 there is nothing to invert
    ends = np.stack([bins, bins + 1], -1).ravel()
    angles = torch.as_tensor(np.interp(levels.detach().cpu().double().numpy(), cumulative[ends], edges[ends]))
    dtype = levels.dtype if levels.is_floating_point() else torch.float64
    below = torch.nextafter(torch.tensor(2 * np.pi, dtype=dtype), torch.tensor(0.0, dtype=dtype))
    return angles.to(dtype).clamp_max(below.item()).to(levels.device)


def householder(targets: Tensor, point: Tensor) -> Tensor:
    """Reflections G_i with G_i g_i = u for any targets g (n, D) and point u (D,): a gauge that encodes the map g.

    G = 1 - 2 w w^T/|w|^2 with w = g - u, the identity where g = u to rounding: (n, D, D). Then g = G u is a maximiser
    of `Gauge`. Source: ours, for claim U7; chapter 15.
    """
    targets, point = (F.normalize(check_tokens(x), dim=-1) for x in (targets, point[None]))
    total = targets + point  # w is orthogonal to it, but for rounding: take that away
    share = ((targets - point) * total).sum(-1, keepdim=True) / total.square().sum(-1, keepdim=True).clamp_min(1.0)
    difference = targets - point - share * total
    length = difference.norm(dim=-1, keepdim=True)
    apart = length > 8 * torch.finfo(length.dtype).eps
    direction = torch.where(apart, difference / length.clamp_min(torch.finfo(length.dtype).tiny), 0)
    return torch.eye(targets.shape[-1]).to(targets) - 2 * direction[:, :, None] * direction[:, None, :]


def latitude_circle(labels: Tensor, height: float = 0.0) -> Tensor:
    """Tokens (sqrt(1 - z^2) cos xi, sqrt(1 - z^2) sin xi, z) on S^2, for each label (n,); z = 0: a great circle."""
    labels = labels if labels.is_floating_point() else labels.double()
    _check_height(height)
    radius = math.sqrt(1 - height**2)
    return torch.stack([radius * labels.cos(), radius * labels.sin(), torch.full_like(labels, height)], -1)


def latitude_energy(beta: float, height: float = 0.0, mean: float = 0.0) -> float:
    """E of `latitude_circle` for the profile a = c + cos (`mean` = c) and labels uniform on the ring.

    With t = beta (1 - z^2): E = e^-t (c I_0(t) + I_1(t)) / (2 beta), I_k modified Bessel functions. The papers' unit
    has e^beta times as much. Source: ours; chapter 16.
    """
    _check_height(height)
    t = positive("beta", beta) * (1 - height**2)
    return float(mean * i0e(t) + i1e(t)) / (2 * beta)


def latitude_balance(mean: float) -> float:
    """t* > 0 at which `latitude_energy` is stationary: (1 - c)(I_0 - I_1)(t) = I_1(t)/t, for -1 < c = `mean` < 1/2.

    Where beta > t*, the best latitude circle has z^2 = 1 - t*/beta; otherwise the equator, z = 0. t* falls from 1.5451
    at c = 0 to 0 at c = 1/2. Source: ours; chapter 16.
    """
    if not -1 < mean < 0.5:
        raise ValueError(f"mean: expected -1 < c < 1/2 (from 1/2 on, consensus is the maximum), got {mean}")

    def slope(t):
        return (1 - mean) * (i0e(t) - i1e(t)) - i1e(t) / t

    return brentq(slope, 1e-9, 10 + 3 / (1 + mean)) if slope(1e-9) > 0 else 0.0


def fourier_means(profile: Callable[[Tensor], Tensor], highest: int = 32) -> Tensor:
    """a^(k) = mean of a(theta) cos(k theta) over the ring, k = 0, ..., `highest`.

    Consensus is a maximum for labels uniform on the ring if and only if a^(0) >= a^(k) for all k. Chapter 16.
    """
    angles = torch.arange(GRID, dtype=torch.float64) * (2 * torch.pi / GRID)
    values = profile(angles)
    if not torch.isfinite(values).all():
        raise ValueError("profile: expected finite numbers, got NaN or infinity")
    return torch.stack([(values * (k * angles).cos()).mean() for k in range(highest + 1)])


def signed_laplacian(coupling: Tensor) -> Tensor:
    """diag(a 1) - a of symmetric couplings (..., n, n): consensus is a maximum if and only if it is semidefinite, >= 0.

    Raises ValueError for a matrix that is not square, finite and symmetric. Source: ours, claim U11; chapter 16.
    """
    if coupling.dim() < 2 or coupling.shape[-1] != coupling.shape[-2] or not torch.isfinite(coupling).all():
        raise ValueError(f"coupling: expected finite square matrices, got shape {tuple(coupling.shape)}")
    if not torch.allclose(coupling, coupling.mT):
        raise ValueError("coupling: expected symmetric matrices")
    return torch.diag_embed(coupling.sum(-1)) - coupling


def _check_height(height: float) -> None:
    if not -1 <= height <= 1:
        raise ValueError(f"height: expected a number in [-1, 1], got {height}")
