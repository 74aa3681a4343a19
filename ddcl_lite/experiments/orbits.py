"""Rotary positions: the orbits that tokens reach, the laws one can put on them, and rotated queries and keys."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
import torch
from scipy.optimize import brentq
from scipy.special import ive
from torch import Tensor

from ..meanfield import dense, sphere
from ..meanfield.flow import integrate
from ..meanfield.kernels import Kernel, Rotary
from ..meanfield.maximizers import orbit, quantiles
from ..measures import circle_wasserstein

TARGETS = {  # densities on the circle, up to a factor
    "one bump": lambda angle: np.exp(2 * np.cos(angle)),
    "three bumps": lambda angle: np.exp(3 * np.cos(3 * angle)),
    "two arcs": lambda angle: (angle % np.pi < np.where(angle < np.pi, 1.5, 0.75)).astype(float),
}
COLLAPSED = 0.99  # Rbar from which a cloud counts as collapsed; one token of 48 opposite the others has 0.958
REFERENCE = 20000  # quantiles that stand for a target law: within pi / 20000 of it


def settle(
    kernel: Kernel,
    labels: Tensor,
    runs: int,
    dim: int,
    time: float,
    seed: int = 0,
    pole: Tensor | None = None,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Tensor:
    """Where `runs` uniform starts are after `time` (library unit): tokens (runs, n, dim).

    pole (dim,): tokens that start on the far side of the sphere are mirrored, so that all have <x, pole> >= 0.
    """
    start = sphere.uniform(runs, len(labels), dim, seed=seed, device=labels.device)
    if pole is not None:
        start = torch.where((start @ pole.to(start))[..., None] < 0, -start, start)
    return integrate(kernel, start, labels, time, tolerance=1e-4, states=21, progress=progress).tokens[-1]


def resultants(tokens: Tensor) -> Tensor:
    """Rbar = |mean token| of each cloud: (..., n, D) -> (...)."""
    return tokens.mean(-2).norm(dim=-1)


def point_reached(kernel: Rotary, tokens: Tensor, labels: Tensor) -> Tensor:
    """The point u of the gauge frame at which the tokens R(xi)^T u have met: the direction of the mean, (..., D)."""
    return torch.nn.functional.normalize(kernel.frame(tokens, labels)[0](tokens).mean(-2), dim=-1)


def orbit_angles(kernel: Rotary, tokens: Tensor, labels: Tensor) -> Tensor:
    """The place of each token (n, D) on its orbit: R(angle)^T u is there, measured in the first plane, in [0, 2 pi)."""
    u = point_reached(kernel, tokens, labels)
    around = torch.atan2(u[1], u[0]) - torch.atan2(tokens[:, 1], tokens[:, 0])
    return around.remainder(2 * math.pi)


def realise(target: str, levels: Tensor, how: str = "labels", beta: float = 1.0) -> tuple[Rotary, Tensor]:
    """A rotary kernel and labels whose maximisers carry a law of `TARGETS`: by the "labels", or by the "phases".

    levels (n,) in [0, 1] stand for the uniform law. "labels": standard phases, labels with the target's law. "phases":
    the levels themselves are the labels, and the phase map is the target's inverse distribution function. "neither":
    labels uniform on a full turn, standard phases. Claim U6; chapter 14.
    """
    density = TARGETS[target]
    if how == "phases":
        return Rotary(beta, lambda labels: quantiles(density, labels)[:, None]), levels
    if how not in ("labels", "neither"):
        raise ValueError(f"how: expected labels, phases or neither, got {how!r}")
    labels = quantiles(density, levels) if how == "labels" else 2 * math.pi * levels
    return Rotary(beta, [1.0]), labels


def reference(target: str) -> Tensor:
    """Angles that stand for the target law: 20,000 of its quantiles."""
    return quantiles(TARGETS[target], midpoints(REFERENCE))


def midpoints(n: int) -> Tensor:
    """Levels (i + 1/2)/n, (n,), float64."""
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def distance_to(target: str, kernel: Rotary, tokens: Tensor, labels: Tensor) -> float:
    """Wasserstein-1, in radians around the orbit, between the tokens (n, D) and the target law."""
    return circle_wasserstein(orbit_angles(kernel, tokens, labels), reference(target))


def convergence(
    sizes: Sequence[int] = (16, 64, 256, 1024),
    draws: int = 24,
    seed: int = 0,
    progress: Callable[[Iterable], Iterable] = iter,
) -> pd.DataFrame:
    """Mean Wasserstein-1 distance of n tokens on an exact orbit from each target law, in radians.

    Columns "target", "n", "sampled" (random labels with the target's law; mean over the draws), "grid" (uniform labels,
    equally spaced, and the target's phase map), "neither" (the same labels, standard phases). Chapter 14.
    """
    generator, rows = torch.Generator().manual_seed(seed), []
    u = torch.tensor([0.8, 0.0, 0.6], dtype=torch.float64)
    for target in progress(TARGETS):
        law = reference(target)
        for n in sizes:
            uniform = torch.rand(draws, n, generator=generator, dtype=torch.float64)
            choices = {"sampled": ("labels", uniform), "grid": ("phases", midpoints(n)[None])}
            row = {"target": target, "n": n}
            for name, (how, levels) in (choices | {"neither": ("neither", midpoints(n)[None])}).items():
                total = 0.0
                for each in levels:
                    kernel, labels = realise(target, each, how)
                    angles = orbit_angles(kernel, orbit(kernel, labels, u), labels)
                    total += circle_wasserstein(angles, law)
                row[name] = total / len(levels)
            rows.append(row)
    return pd.DataFrame(rows)


def top_rates(kernel: Kernel, tokens: Tensor, labels: Tensor) -> list[float]:
    """For each cloud on the circle (runs, n, 2) the largest growth rate, turning all tokens aside.

    On the circle turning commutes with rotated queries and keys, and the drift depends on differences of angles only:
    one rate is 0, at equilibria and elsewhere. The rate that is nearest to 0 is left out.
    """
    rates = [dense.rates(kernel, cloud, labels) for cloud in tokens]
    return [each[each.abs().argsort()[1:]].max().item() for each in rates]


def twisted(n: int) -> Tensor:
    """Tokens at the angles pi j (n - 1)/n on the circle, n odd: where rotating queries and keys can hold them, (n, 2).

    With labels `sphere.ring(n)`, neighbours in label are nearly opposite. Source: ours, for claim U9; chapter 14.
    """
    if n < 3 or n % 2 == 0:
        raise ValueError(f"n: expected an odd number >= 3, got {n}")
    angles = torch.arange(n, dtype=torch.float64) * (math.pi * (n - 1) / n)
    return torch.stack([angles.cos(), angles.sin()], -1)


def twisted_rates(beta: float, n: int) -> Tensor:
    """Growth rates at `twisted(n)` for `RotaryQueriesKeys`, one frequency, full turn: (n,), the first is 0.

    lambda_k = -(1/n) sum_D g(D) (1 - cos k D), g(D) = exp(beta (cos D - 1)) (cos D + beta sin^2 D), D = 2 pi m / n.
    """
    angle = sphere.ring(n)
    g = torch.exp(beta * (angle.cos() - 1)) * (angle.cos() + beta * angle.sin().square())
    return -((1 - torch.cos(torch.arange(n)[:, None] * angle)) @ g) / n


def twist_threshold() -> float:
    """beta at which 2 beta (1 - I_2/I_1)(beta) = 1: where mode 1 of `twisted(n)` turns stable as n grows."""
    return brentq(lambda beta: 2 * beta * (1 - ive(2, beta) / ive(1, beta)) - 1, 0.1, 5)
