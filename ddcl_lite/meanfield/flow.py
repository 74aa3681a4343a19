"""Tokens through time: Runge-Kutta steps in normal coordinates, so that every step is an exponential map."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..attention import full_precision
from .kernels import Kernel
from .sphere import check_tokens, describe, exponential, positive, pull_back

MAX_STEPS, EARLY = 1_000_000, 1000  # give up after so many steps, or after EARLY if it is bound to come to that


class Scheme(NamedTuple):
    """A Runge-Kutta scheme in which each stage starts from the slope before it."""

    nodes: tuple[float, ...]
    weights: tuple[float, ...]
    last: float  # error estimate: `last` h |last slope - slope where the step lands|,
    power: int  # of size h^power


SCHEMES = {
    1: Scheme((0,), (1,), 1 / 2, 2),  # Euler, beside the trapezoidal rule
    2: Scheme((0, 1), (1 / 2, 1 / 2), 1 / 2, 3),  # Heun
    4: Scheme((0, 1 / 2, 1 / 2, 1), (1 / 6, 1 / 3, 1 / 3, 1 / 6), 1 / 6, 4),  # classical, beside a scheme of order 3
}


class Trajectory(NamedTuple):
    """States of a flow: times (S,) in the library's unit, tokens (S, ..., n, D), labels, energy (S, ...) or None."""

    times: Tensor
    tokens: Tensor
    labels: Tensor | None
    energy: Tensor | None


def integrate(
    kernel: Kernel,
    tokens: Tensor,
    labels: Tensor | None = None,
    time: float | Sequence[float] | Tensor = 20.0,
    step: float | None = None,
    tolerance: float = 1e-6,
    order: int = 4,
    states: int = 65,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Trajectory:
    """Follow x_i' = drift on the sphere and record the way.

    x(t) = exp_{x_0}(w(t)) with w' the drift pulled back to the tangent space at x_0: there a Runge-Kutta scheme of
    order 1, 2 or 4 takes one step, and the next begins where it lands. Unit norms hold to rounding.

    tokens (..., n, D), labels (n,). time, in the library's unit (`library_time` converts), is where to stop, and
    `states` equally spaced states are recorded; or it is the times > 0 to record, increasing, after the start.
    step=None: a step is tried again, shorter, while its error estimate exceeds `tolerance` radians (in float32 2e-6 at
    least) for some token; otherwise at most `step`, evenly. Keeps no graph for gradients.
    Raises ValueError naming the argument; RuntimeError naming beta and the step where a fixed step is too long (its
    error estimate comes near the move itself: next to consensus above 1.9, 1.2 and 2.1 for order 1, 2, 4, where 2, 2
    and 2.8 are unstable), or where the time would take over a million steps. Source: ours; chapter 11.
    """
    tokens, times = check_tokens(tokens), _times(time, states)
    if tokens.numel() == 0:
        raise ValueError(f"tokens: expected at least one cloud, got shape {tuple(tokens.shape)}")
    if isinstance(order, bool) or not isinstance(order, int) or order not in SCHEMES:
        raise ValueError(f"order: expected 1, 2 or 4, got {order!r}")
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel: expected a kernel such as Exponential(beta), got {describe(kernel)}")
    step = None if step is None else positive("step", step)
    tolerance = max(positive("tolerance", tolerance), 16 * torch.finfo(tokens.dtype).eps)
    with torch.no_grad(), full_precision(tokens):
        start = torch.nn.functional.normalize(tokens, dim=-1)
        field = kernel.bind(start, labels)
        later = _walk(field.drift, start, times, SCHEMES[order], step, tolerance, kernel.beta, progress)
        path = torch.stack([start, *later])
        energy = field.energy and torch.stack([field.energy(x) for x in path])
    return Trajectory(torch.tensor(times, dtype=torch.float64), path, labels, energy)


def _walk(drift, x, times, scheme, step, tolerance, beta, progress) -> Iterator[Tensor]:
    """The states at times[1:], one after the other."""
    slope, now, count, longest = drift(x), times[0], 0, 0.0
    trial = tolerance ** (1 / scheme.power) / max(*_largest(slope[None]), 1e-300)
    for end in progress(times[1:]):
        if step is not None:
            trial = (end - now) / math.ceil((end - now) / step - 1e-9)
        while now < end:
            h = min(trial, end - now)
            landing, slope_there, error, move = _advance(drift, x, slope, h, scheme)
            accepted = error <= (tolerance if step is None else max(0.95 * move, 1e-3))
            if accepted:
                x, slope, longest = landing, slope_there, max(longest, h)
                now = end if end - now <= h * (1 + 1e-9) else now + h
            elif step is not None or h < 1e-12 * end:
                raise RuntimeError(
                    f"beta = {beta:g}: a step of {h:.3g} is too long here (error {error:.2g} radians, move {move:.2g})"
                    + ("; take a shorter one, or step=None" if step else "")
                )
            if step is None:
                factor = 0.9 * (tolerance / error) ** (1 / scheme.power) if error > 0 else 5.0
                grown = h * min(5.0, max(0.2, factor))
                trial = max(trial, grown) if accepted and h < trial else grown
            count += 1
            if count >= MAX_STEPS or (count > EARLY and times[-1] - now > longest * (MAX_STEPS - count)):
                raise RuntimeError(
                    f"beta = {beta:g}: time {times[-1]:.3g} would take over {MAX_STEPS:,} steps, since accuracy "
                    f"{tolerance:.2g} and stability hold the step at {longest:.3g} or less; ask for a shorter time"
                )
        yield x


def _advance(drift, x: Tensor, slope: Tensor, h: float, scheme: Scheme) -> tuple[Tensor, Tensor, float, float]:
    """Where one step lands, the drift there, its error estimate and the longest move, both in radians."""
    slopes = [slope]
    for node in scheme.nodes[1:]:
        w = h * node * slopes[-1]
        slopes.append(pull_back(x, w, drift(exponential(x, w))))
    w = h * sum(weight * each for weight, each in zip(scheme.weights, slopes))
    landing = exponential(x, w)
    slope = drift(landing)
    error, move = _largest(torch.stack([h * scheme.last * (slopes[-1] - pull_back(x, w, slope)), w]))
    return landing, slope, error if math.isfinite(error) else math.inf, move


def _largest(vectors: Tensor) -> list[float]:
    """The largest norm of a vector of each stack (S, ..., n, D)."""
    return vectors.norm(dim=-1).flatten(1).amax(1).tolist()


def _times(time, states: int) -> list[float]:
    """0 and the times to record."""
    try:
        several = [*time]
    except TypeError:  # a number, or a tensor or array that holds one
        end = positive("time", time)
        if isinstance(states, bool) or not isinstance(states, int) or states < 2:
            raise ValueError(f"states: expected an integer >= 2, got {states!r}") from None
        return [end * i / (states - 1) for i in range(states)]
    times = [0.0, *(positive("time", each) for each in several)]
    if len(times) < 2 or any(a >= b for a, b in zip(times, times[1:])):
        raise ValueError(f"time: expected a number > 0 or increasing numbers > 0, got {time!r}")
    return times
