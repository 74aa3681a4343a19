"""Tokens as particles: exact solutions to hold the flow against, its order of accuracy, and when a cloud collapses."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
import torch
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicSpline
from torch import Tensor

from ..meanfield.flow import integrate
from ..meanfield.harmonic import Harmonic
from ..meanfield.kernels import Exponential, Kernel, SelfAttention, library_time
from ..meanfield.sphere import uniform


def loop_layer(tokens: Tensor, beta: float, step: float, layers: int) -> Tensor:
    """The same attention layer, `layers` times: x <- normalise(x + step * softmax(beta x x^T) x); tokens (..., n, D).

    One head, and queries, keys and values are the tokens themselves. Chapter 11.
    """
    for _ in range(layers):
        weights = torch.softmax(beta * tokens @ tokens.mT, -1)
        tokens = torch.nn.functional.normalize(tokens + step * weights @ tokens, dim=-1)
    return tokens


def errors_by_step(kernel: Kernel, tokens: Tensor, steps: Sequence[float], labels=None, time: float = 2.0) -> dict:
    """Largest distance of a token from where it belongs at `time`, for each step: {order: [error, ...]}, order 1, 2, 4.

    The reference is of order 4 with an eighth of the shortest step. For `SelfAttention` the key "layer" has the errors
    of `loop_layer`, and `time` should be a multiple of all steps. Claim U1; chapter 11.
    """

    def end(order, step):
        return integrate(kernel, tokens, labels, time, step=step, order=order, states=2).tokens[-1]

    exact = end(4, min(steps) / 8)
    ends = {order: [end(order, step) for step in steps] for order in (1, 2, 4)}
    if isinstance(kernel, SelfAttention):
        ends["layer"] = [loop_layer(tokens, kernel.beta, step, round(time / step)) for step in steps]
    return {name: [(x - exact).norm(dim=-1).max().item() for x in states] for name, states in ends.items()}


def _solve(slope: Callable[[float], float], start: float, times) -> Tensor:
    """c(t) with c' = slope(c), c(0) = start, at increasing times >= 0."""
    times = np.asarray(times, dtype=float)
    solution = solve_ivp(
        lambda _, c: [slope(c[0])], (0, times[-1]), [start], t_eval=times, method="DOP853", rtol=1e-13, atol=1e-14
    )
    return torch.from_numpy(solution.y[0])


def two_token_cosine(beta: float, cosine: float, times) -> Tensor:
    """The cosine of two tokens under `SelfAttention` in any dimension, at increasing times (S,): float64 (S,).

    c' = 2 (1 - c^2) e^(beta c)/(e^beta + e^(beta c)), c(0) = `cosine`; solved by scipy. Chapter 11.
    """
    return _solve(lambda c: 2 * (1 - c * c) / (math.exp(beta * (1 - c)) + 1), cosine, times)


def equiangular_cosine(n: int, beta: float, cosine: float, times) -> Tensor:
    """The common cosine of n tokens that start equiangular, under USA, at increasing times (S,): float64 (S,).

    rho' = (2/n) e^(beta (rho - 1)) (1 - rho)(1 + (n - 1) rho) in the library's unit, rho(0) = `cosine`; solved by
    scipy. Claim U16; chapter 11.
    """
    return _solve(lambda r: 2 / n * math.exp(beta * (r - 1)) * (1 - r) * (1 + (n - 1) * r), cosine, times)


def equiangular(n: int, dim: int, cosine: float, seed: int = 0, device: str | torch.device = "cpu") -> Tensor:
    """n unit vectors in dim >= n dimensions, any two of which have this cosine, randomly rotated: (n, dim), float64.

    Raises ValueError for dim < n, or a cosine outside (-1/(n - 1), 1). Claim U16; chapter 11.
    """
    if dim < n:
        raise ValueError(f"dim: expected at least n = {n}, got {dim}")
    if not -1 / max(n - 1, 1) < cosine < 1:
        raise ValueError(f"cosine: expected -1/(n - 1) < cosine < 1, got {cosine}")
    gram = (1 - cosine) * torch.eye(n, dtype=torch.float64) + cosine
    normal = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (torch.linalg.cholesky(gram) @ torch.linalg.qr(normal).Q[:n]).to(device)


def ambient_path(beta: float, tokens: Tensor, times: Sequence[float], normed: bool = False) -> Tensor:
    """USA (`normed`: SA) as it is written, in R^D and with no normalisation of the tokens: (S, n, D) at `times` > 0.

    x' = P_x a with P_x v = v - <x, v> x, solved by scipy (relative tolerance 1e-10): nothing but P_x keeps |x| at 1.
    tokens (n, D); float64 on the CPU. Claim U1.
    """
    start = tokens.cpu().double().numpy()

    def slope(_, flat):
        x = flat.reshape(start.shape)
        weights = np.exp(beta * (x @ x.T - 1))
        pull = weights @ x / (weights.sum(1, keepdims=True) if normed else len(x))
        return (pull - (x * pull).sum(1, keepdims=True) * x).ravel()

    solution = solve_ivp(slope, (0, times[-1]), start.ravel(), t_eval=times, method="DOP853", rtol=1e-10, atol=1e-12)
    return torch.from_numpy(solution.y.T.reshape(-1, *start.shape))


def is_certain(tokens: Tensor) -> Tensor:
    """Whether every token of a cloud (..., n, D) has a positive product with the mean: (...,), bool.

    Then all lie in an open hemisphere, and `Exponential` and `SelfAttention` must bring them to one point. Chapter 11.
    """
    return (tokens * tokens.mean(-2, keepdim=True)).sum(-1).amin(-1) > 0


def collapse_path(beta: float, n: int, runs: int, horizons: Sequence[float], seed: int = 0, device="cpu") -> Tensor:
    """`runs` uniform clouds of n tokens on S^2 under USA at 0 and the raw times `horizons`: (S + 1, runs, n, 3).

    Heun steps with an error estimate of at most 0.01 radians. Claim U2; chapter 11.
    """
    kernel = Exponential(beta) if n <= 128 else Harmonic(beta)  # whichever is faster on a CPU
    times = [library_time(each, beta) for each in horizons]
    start = uniform(runs, n, 3, seed=seed, device=device)
    return integrate(kernel, start, time=times, tolerance=1e-2, order=2).tokens


def collapse_times(
    sizes: Sequence[int],
    tokens: int = 2**13,
    seed: int = 0,
    device: str | torch.device = "cpu",
    most: int = 16,
    progress: Callable[[Iterable], Iterable] = iter,
) -> pd.DataFrame:
    """When uniform clouds on S^2 under USA at beta = 1 reach Rbar = 1/2: rows with "n", "start" (Rbar at 0) and "time".

    Of each size as many clouds as have about `tokens` tokens together, at least one and at most `most`. float32;
    `Harmonic` of degree 4, whose tail is below 1e-3; order 4, step 2 in the library's unit (rates are at most 1);
    between steps the logit of Rbar is a cubic spline. Chapter 11.
    """
    rows, kernel = [], Harmonic(1.0, degree=4)
    for index, n in enumerate(progress(sizes)):
        runs = min(most, max(1, tokens // n))
        x = uniform(runs, n, 3, seed=1000 * seed + index, dtype=torch.float32, device=device)
        paths = [x.double().mean(-2).norm(dim=-1)]
        while (paths[-1] < 0.5).any():
            if len(paths) > 100:
                raise RuntimeError(f"n = {n}: no collapse by time {2 * len(paths)}")
            x = integrate(kernel, x, time=2.0, step=2.0, states=2).tokens[-1]
            paths.append(x.double().mean(-2).norm(dim=-1))
        for path in torch.stack(paths, -1).cpu():
            after = int((path >= 0.5).nonzero()[0])
            curve = CubicSpline(2.0 * np.arange(after + 1), path[: after + 1].logit()) if after else None
            time = curve.solve(0, extrapolate=False)[-1] if after else 0.0
            rows.append({"n": n, "start": path[0].item(), "time": time})
    return pd.DataFrame(rows)
