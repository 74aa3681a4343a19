"""The exponential kernel on S^1 and S^2 in O(n): linear attention, exact up to a stated tail.

For unit vectors with t = <x, y>, the kernel has an expansion whose terms are products of features of x and of y:

    exp(beta (t - 1)) = sum_l w_l Y_l(x).Y_l(y), w_l = e^-beta i_l(beta) on S^2, (2 - [l = 0]) e^-beta I_l(beta) on S^1,

Y_l the 2l + 1 real spherical harmonics of degree l with Y_l(x).Y_l(y) = (2l + 1) P_l(t), or (cos l theta, sin l theta);
i_l and I_l are modified Bessel functions. Cut after degree L, the drift P_x (1/n) sum_j exp(...) x_j is
P_x Phi (Phi^T X)/n with Phi (n, M) the features, M = (L + 1)^2 or 2L + 1: two thin products.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from scipy.special import ive
from torch import Tensor

from .kernels import Field, Kernel
from .sphere import tangent

TAIL = 1e-6
BLOCK = 16384  # tokens, of all clouds together, whose features are held at a time


class Harmonic(Kernel):
    """`Exponential(beta)` for tokens in D = 2 or 3 dimensions in O(n M) time and, without gradients, O(n + M) memory.

    degree=None: the smallest degree whose tail, a bound on the error of every kernel value, is below 1e-6: on S^2
    (S^1) it is 12 (11) at beta = 4 and 37 (35) at beta = 50. In float32 rounding adds 1e-7 of the sum, and up to 4e-6
    at beta = 200. The drift is exactly the gradient of the energy that `energy` returns. Raises ValueError for D other
    than 2 or 3, or a degree that is no integer >= 0.
    Source: Jacobi-Anger and Gegenbauer expansions; chapter 11.
    """

    def __init__(self, beta: float, degree: int | None = None):
        super().__init__(beta)
        if degree is not None and (isinstance(degree, bool) or not isinstance(degree, int) or degree < 0):
            raise ValueError(f"degree: expected an integer >= 0 or None, got {degree!r}")
        self.degree = degree

    def expansion(self, dim: int) -> np.ndarray:
        """w_0, ..., w_L for tokens in `dim` dimensions."""
        if dim not in (2, 3):
            raise ValueError(f"tokens: Harmonic needs D = 2 or 3, got D = {dim}")
        if self.degree is not None:
            return _expansion(self.beta, self.degree, dim)
        weights = _expansion(self.beta, int(10 * math.sqrt(self.beta) + 20), dim)
        terms = weights * (2 * np.arange(len(weights)) + 1 if dim == 3 else 1)  # |P_l| and |cos| are at most 1
        beyond = terms[::-1].cumsum()[::-1] - terms  # the sum of all later terms
        return weights[: np.flatnonzero(beyond < TAIL)[0] + 1]

    def field(self, tokens: Tensor, labels: Tensor | None) -> Field:
        n, dim = tokens.shape[-2:]
        weights, rows = self.expansion(dim), max(1, BLOCK // max(1, math.prod(tokens.shape[:-2])))
        degree, weight = len(weights) - 1, _repeat(weights, tokens)
        energy_degree, energy_weight = degree + 1, _repeat(_antiderivative(weights, self.beta, dim), tokens)

        def drift(x):
            blocks = x.split(rows, -2)
            kept = [features(x, degree)] if len(blocks) == 1 else None  # few tokens: look once, use twice
            looks = kept or (features(block, degree) for block in blocks)
            moments = sum(look @ block for look, block in zip(looks, blocks)) * weight / n  # (..., M, D)
            looks = kept or (features(block, degree) for block in blocks)
            return tangent(x, torch.cat([look.mT @ moments for look in looks], -2))

        def energy(x):
            means = sum(features(block, energy_degree).sum(-1) for block in x.split(rows, -2)) / n  # (..., M)
            return (energy_weight[:, 0] * means.square()).sum(-1) / 2

        return Field(drift, energy)

    def pairs(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        """h of every two tokens, cut like the energy, (..., n, n): for `dense`."""
        weights, dim = self.expansion(tokens.shape[-1]), tokens.shape[-1]
        look = features(tokens, len(weights))
        return look.mT @ (_repeat(_antiderivative(weights, self.beta, dim), tokens) * look)


def features(tokens: Tensor, degree: int) -> Tensor:
    """Real harmonics up to `degree` of tokens (..., n, D) in D = 2 or 3 dimensions: (..., M, n).

    Cartesian recurrences, without a singular point: on S^2, Y_lm is a polynomial in z times the real or imaginary
    part of (x + i y)^m.
    """
    x, y = tokens[..., 0], tokens[..., 1]
    real, imaginary = [torch.ones_like(x)], [torch.zeros_like(x)]
    for _ in range(degree):
        a, b = real[-1], imaginary[-1]
        real.append(a * x - b * y)
        imaginary.append(a * y + b * x)
    real, imaginary = torch.stack(real, -2), torch.stack(imaginary, -2)  # (..., L + 1, n)
    if tokens.shape[-1] == 2:
        return torch.cat([real, imaginary[..., 1:, :]], -2)
    rows = []
    for degree_, legendre in enumerate(_legendre(tokens[..., None, :, 2], degree)):  # (..., l + 1, n)
        rows.append(legendre * real[..., : degree_ + 1, :])
        rows.append(legendre[..., 1:, :] * imaginary[..., 1 : degree_ + 1, :])
    return torch.cat(rows, -2)


def _legendre(z: Tensor, degree: int) -> Iterator[Tensor]:
    """For l = 0, ..., degree: the factors of Y_lm that depend on z (..., 1, n), m = 0, ..., l."""
    before, last, corner = None, torch.ones_like(z), 1.0
    yield last
    for l in range(1, degree + 1):  # noqa: E741
        m = torch.arange(l, dtype=z.dtype, device=z.device)[:, None]
        up = ((4 * l**2 - 1) / (l**2 - m**2)).sqrt()
        now = up * z * last
        if before is not None:
            down = (up[:-1].square() * ((l - 1) ** 2 - m[:-1] ** 2) / (4 * (l - 1) ** 2 - 1)).sqrt()
            now = torch.cat([now[..., :-1, :] - down * before, now[..., -1:, :]], -2)
        corner *= math.sqrt(3 if l == 1 else (2 * l + 1) / (2 * l))
        before, last = last, torch.cat([now, corner * torch.ones_like(z)], -2)
        yield last


def _expansion(beta: float, degree: int, dim: int) -> np.ndarray:
    """w_0, ..., w_degree."""
    orders = np.arange(degree + 1)
    if dim == 3:
        return math.sqrt(math.pi / (2 * beta)) * ive(orders + 0.5, beta)
    return np.where(orders == 0, 1, 2) * ive(orders, beta)


def _antiderivative(weights: np.ndarray, beta: float, dim: int) -> np.ndarray:
    """Weights of the h with dh/dt = sum_l w_l Y_l.Y_l, up to degree L + 1; the constant is that of exp(...)/beta."""
    below, above = weights, np.append(weights, [0, 0])[2:]  # w_{l-1}, w_{l+1} for l = 1, ..., L + 1
    orders = np.arange(1, len(weights) + 1)
    if dim == 3:
        return np.append(weights[0] / beta, (below - above) / (2 * orders + 1))
    return np.append(weights[0] / beta, (np.where(orders == 1, 2, 1) * below - above) / (2 * orders))


def _repeat(weights: np.ndarray, tokens: Tensor) -> Tensor:
    """One weight per feature, (M, 1)."""
    if tokens.shape[-1] == 3:
        repeated = np.repeat(weights, 2 * np.arange(len(weights)) + 1)
    else:
        repeated = np.concatenate([weights, weights[1:]])
    return torch.as_tensor(repeated).to(tokens)[:, None]
