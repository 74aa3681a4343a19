"""Gauges that encode a target law, the tokens that miss it, and what is left of a start once they have settled."""

import math
from collections.abc import Callable

import torch
from scipy.special import i0e, i1e, j1
from torch import Tensor

from ..meanfield.kernels import Exponential, Gauge, Rotary
from ..meanfield.maximizers import householder, latitude_circle
from ..meanfield.sphere import describe, positive

POLE = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
CORNERS = torch.tensor([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)], dtype=torch.float64) / 3**0.5
BEND = 2.0  # the nonlinear phase map is xi + BEND sin xi
DIGITS = 26


def unit_interval(labels: Tensor) -> Tensor:
    """Return labels (n,) in [0, 1) in float64. Raises ValueError for anything else, NaN included."""
    if not isinstance(labels, Tensor) or labels.is_complex() or labels.dim() != 1:
        raise ValueError(f"labels: expected numbers in [0, 1), shape (n,), got {describe(labels)}")
    if not ((labels >= 0) & (labels < 1)).all():
        raise ValueError("labels: expected numbers in [0, 1)")
    return labels.double()


def two_numbers(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The first, third, ... and the second, fourth, ... binary digits of labels (n,) in [0, 1): two numbers each, (n,).

    Of a uniform label they are independent and uniform, up to the 26 digits that are kept of each. This is why one
    number is label enough for any law on the sphere. Raises ValueError for labels outside [0, 1).
    Source: folklore; chapter 15.
    """
    digits = (unit_interval(labels) * 4.0**DIGITS).long()
    first, second = torch.zeros_like(digits), torch.zeros_like(digits)
    for place in range(DIGITS):
        second |= (digits >> 2 * place & 1) << place
        first |= (digits >> 2 * place + 1 & 1) << place
    return first.double() / 2.0**DIGITS, second.double() / 2.0**DIGITS


def point(height: Tensor, angle: Tensor) -> Tensor:
    """Points of S^2 at a height in [-1, 1] above the equator and an angle around the axis, (..., 3)."""
    radius = (1 - height**2).clamp_min(0).sqrt()
    return radius[..., None] * latitude_circle(angle) + height[..., None] * POLE.to(height.device)


def evenly(labels: Tensor) -> Tensor:
    """Target map for the uniform law on S^2: uniform labels (n,) in [0, 1) -> (n, 3), heights and angles."""
    height, angle = two_numbers(labels)
    return point(2 * height - 1, 2 * math.pi * angle)


def wave(labels: Tensor) -> Tensor:
    """Target map onto a closed curve with five waves around the equator: labels (n,) in [0, 1) -> (n, 3)."""
    angle = 2 * math.pi * unit_interval(labels)
    return point(0.5 * (5 * angle).sin(), angle)


def spots(labels: Tensor) -> Tensor:
    """Target map for three spots, caps of 0.3 rad around the axes: uniform labels (n,) in [0, 1) -> (n, 3)."""
    labels = unit_interval(labels)
    share, angle = two_numbers(3 * labels % 1)
    spot = point(1 - share * (1 - math.cos(0.3)), 2 * math.pi * angle)
    turns = torch.stack([spot.roll(shift, -1) for shift in range(3)])
    return turns[(3 * labels).long(), torch.arange(len(labels), device=labels.device)]


def half(labels: Tensor) -> Tensor:
    """Target map for half of the mass at the pole, half on the equator: uniform labels (n,) in [0, 1) -> (n, 3)."""
    labels = unit_interval(labels)
    return point((labels < 0.5).double(), 4 * math.pi * labels)


TARGETS = {"uniform": evenly, "a wave": wave, "three spots": spots, "half a point": half}


def encoding(target: Callable[[Tensor], Tensor], goal: Tensor = POLE) -> Callable[[Tensor], Tensor]:
    """The gauge labels -> (n, D, D) of Householder reflections that carry target(labels) to the goal. Claim U7."""
    return lambda labels: householder(target(labels), goal.to(labels.device))


def corners(labels: Tensor) -> Tensor:
    """Target map of eight prompts, integer labels 0 to 7, (n,) -> (n, 3): the corners of a cube."""
    if labels.is_floating_point() or labels.dtype == torch.bool or not ((labels >= 0) & (labels < 8)).all():
        raise ValueError("labels: expected whole numbers from 0 to 7, in an integer tensor")
    return CORNERS.to(labels.device)[labels]


def around(goal: Tensor, angle: float, *shape: int, seed: int = 0) -> Tensor:
    """Uniform points of the cap of `angle` radians, at most pi, around a goal (3,) of S^2: (*shape, 3), float64.

    Mapped by a gauge's `back` they are a start in which every token is within that angle of its target.
    """
    if not 0 < angle <= math.pi:
        raise ValueError(f"angle: expected radians in (0, pi], got {angle}")
    if goal.shape != (3,):
        raise ValueError(f"goal: expected a point (3,), got {describe(goal)}")
    share, turn = torch.rand(2, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    points = point(1 - share * (1 - math.cos(angle)), 2 * math.pi * turn).to(goal.device)
    return points @ householder(goal[None].double(), POLE.to(goal.device))[0]


def common(tokens: Tensor) -> Tensor:
    """The direction of the mean of each cloud (..., n, D), (..., D): once tokens agree, the point they agree on."""
    return torch.nn.functional.normalize(tokens.mean(-2), dim=-1)


def turn_mean(kernel: Exponential, labels: Tensor, dim: int = 3) -> Tensor:
    """A = (1/n) sum_i G(xi_i)^T, (D, D): once the tokens agree on w in the gauge frame, their mean is A w."""
    basis = torch.eye(dim, dtype=torch.float64, device=labels.device)[:, None].expand(dim, len(labels), dim)
    _, back = kernel.frame(basis, labels)
    return back(basis).mean(-2).T


def geometries(beta: float, count: int = 64, device="cpu") -> dict[str, tuple[Exponential, Tensor]]:
    """The four panels of claim U14 on S^2, by name: kernel, and `count` labels; count is a multiple of 8.

    USA; rotary with one full turn over evenly spaced labels; rotary with the phase map xi + 2 sin xi of the same
    labels; eight prompts, whose gauge encodes the corners of a cube. The settings are ours. Chapter 15.
    """
    if count % 8:
        raise ValueError(f"count: expected a multiple of 8, one of eight prompts for each token, got {count}")
    ring = 2 * math.pi * torch.arange(count, dtype=torch.float64, device=device) / count
    prompts = torch.arange(count, device=device) % 8
    return {
        "USA": (Exponential(beta), ring),
        "RoPE, standard": (Rotary(beta, [1.0]), ring),
        "RoPE, nonlinear": (Rotary(beta, lambda xi: (xi + BEND * xi.sin())[:, None]), ring),
        "eight prompts": (Gauge(beta, encoding(corners)), prompts),
    }


def resultant_lengths(height: Tensor) -> dict[str, Tensor]:
    """For each of `geometries` with labels: Rbar = |A w| of the content once the tokens agree on w, at heights t = w_3.

    |t|; sqrt(m^2 + (1 - m^2) t^2) with m = J_1(2); sqrt(1 - t^2)/2. The second is that of many labels: 16 on the ring
    have m = J_1(2) - J_15(2), less than 1/15! from it. Source: ours; chapter 15.
    """
    if not (height.abs() <= 1 + 1e-12).all():
        raise ValueError("height: expected numbers in [-1, 1]")
    square, least = height.square().clamp_max(1), float(j1(BEND)) ** 2
    return {
        "RoPE, standard": square.sqrt(),
        "RoPE, nonlinear": (least + (1 - least) * square).sqrt(),
        "eight prompts": (1 - square).sqrt() / 2,
    }


def resultant_laws() -> dict[str, Callable]:
    """The laws of `resultant_lengths` for a uniform w, r -> P(Rbar <= r) (arrays): t is uniform on [-1, 1].

    Each length is monotone in |t|. So a sample of w tests all three laws at once, or none. Source: ours; chapter 15.
    """
    least = float(j1(BEND))

    def bent(r):
        return (((r**2 - least**2) / (1 - least**2)).clip(0, 1)) ** 0.5

    return {
        "RoPE, standard": lambda r: r.clip(0, 1),
        "RoPE, nonlinear": bent,
        "eight prompts": lambda r: 1 - (1 - 4 * r.clip(0, 0.5) ** 2) ** 0.5,
    }


def start_share(start: Tensor, end: Tensor) -> float:
    """c^2, c = the mean of <u_i(0), u_i(t)> over tokens and runs (runs, n, D) of USA: how much of a start is left.

    The share of the variance of where a token started that is explained by the best multiple of where the same token
    is now: at most the share that all tokens tell. Once they agree, on w, and for independent uniform starts, it is
    that share, c = E<u_i(0), w> and c^2 <= 1/n, up to the error of the mean. Before, it may be anything up to 1. For a
    gauge kernel: both in the content or both in the gauge frame. Source: ours; chapter 15.
    """
    if start.shape != end.shape:
        raise ValueError(f"end: expected the shape {tuple(start.shape)} of start, got {tuple(end.shape)}")
    return (start * end).sum(-1).mean().item() ** 2


def leaving_speed(beta: float, height: float) -> float:
    """Speed at which tokens that all sit at one point of S^2 leave it, under rotary labels of one full turn.

    They see each other on a latitude circle: s z e^-t (I_0 - I_1)(t) with s^2 = 1 - z^2, t = beta s^2 and I_k modified
    Bessel functions; in the library's unit of time, for many labels. Raises ValueError unless beta > 0 and the height z
    is in [-1, 1]. Source: ours; chapter 15.
    """
    if not -1 <= height <= 1:
        raise ValueError(f"height: expected a number in [-1, 1], got {height}")
    square = 1 - height**2
    t = positive("beta", beta) * square
    return abs(height) * square**0.5 * float(i0e(t) - i1e(t))
