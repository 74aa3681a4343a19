"""How long clusters last, how many form, and the staircase on which a cloud of tokens descends to one point."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from torch import Tensor

from ..meanfield.flow import integrate
from ..meanfield.harmonic import Harmonic
from ..meanfield.kernels import Exponential, Kernel
from ..meanfield.sphere import exponential, positive, tangent
from ..measures import cluster_count

CLOSE = 0.1  # radians: closer tokens share a cluster


def merge_time(beta: float, start: float = 2 * math.pi / 3, end: float = CLOSE) -> float:
    """How long two clusters need from the angle `start` to `end`, in the library's unit, by quadrature.

    phi' = -exp(beta (cos phi - 1)) sin phi, whatever their masses, so this is the integral of
    exp(beta (1 - cos phi))/sin phi. Raises ValueError unless 0 < end < start < pi. Claim U13; chapter 12.
    """
    beta = positive("beta", beta)
    if not 0 < end < start < math.pi:
        raise ValueError(f"start, end: expected 0 < end < start < pi, got start = {start}, end = {end}")
    top = 1 - math.cos(start)  # the largest exponent over beta, taken out: nothing overflows inside
    value, _ = quad(lambda phi: math.exp(beta * (1 - math.cos(phi) - top)) / math.sin(phi), end, start, epsabs=0)
    return value * math.exp(beta * top)


def threshold_angle(beta: float, time: float, end: float = CLOSE) -> float:
    """The angle from which two clusters need exactly `time` (library's unit) to come within `end`. Chapter 12.

    Pairs farther apart still show as two at that time. pi if even a pair 1e-6 rad from opposite merges sooner.
    Raises ValueError for a time that is not > 0.
    """
    time, widest = positive("time", time), math.pi - 1e-6
    if merge_time(beta, widest, end) < time:
        return math.pi
    return brentq(lambda start: merge_time(beta, start, end) / time - 1, end * (1 + 1e-9), widest)


def laplace_time(beta: float, start: float = 2 * math.pi / 3) -> float:
    """What `merge_time` tends to for large beta: exp(beta (1 - cos start))/(beta sin(start)^2). Chapter 12."""
    return math.exp(beta * (1 - math.cos(start))) / (beta * math.sin(start) ** 2)


def two_clusters(
    angle: float, sizes: tuple[int, int] = (1, 1), dim: int = 3, spread: float = 0.0, seed: int = 0
) -> Tensor:
    """Tokens (n, dim): sizes[0] of them at one point, then sizes[1] at another, `angle` radians away.

    Each token is moved off its point by about `spread` radians, at random, the mean displacement of a cluster being 0.
    float64, drawn on the CPU. Raises ValueError for an angle outside (0, pi), a size < 1 or dim < 2. Chapter 12.
    """
    if not 0 < angle < math.pi:
        raise ValueError(f"angle: expected radians in (0, pi), got {angle}")
    if len(sizes) != 2 or min(sizes) < 1 or dim < 2:
        raise ValueError(f"sizes, dim: expected two sizes >= 1 and dim >= 2, got {sizes} and {dim}")
    generator, clusters = torch.Generator().manual_seed(seed), []
    for place, size in zip((0.0, angle), sizes):
        centre = torch.zeros(size, dim, dtype=torch.float64)
        centre[:, 0], centre[:, 1] = math.cos(place), math.sin(place)
        noise = torch.randn(size, dim, generator=generator, dtype=torch.float64)
        clusters.append(exponential(centre, spread * tangent(centre, noise - noise.mean(0))))
    return torch.cat(clusters)


def separation(tokens: Tensor, first: int = 1) -> Tensor:
    """The angle between the mean directions of the first `first` tokens and of the others: (..., n, D) -> (...)."""
    a, b = (part.mean(-2) for part in (tokens[..., :first, :], tokens[..., first:, :]))
    a, b = (each / each.norm(dim=-1, keepdim=True) for each in (a, b))
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


def cluster_radius(tokens: Tensor) -> Tensor:
    """The root mean square distance of tokens (..., n, D) from their mean: (...)."""
    return (tokens - tokens.mean(-2, keepdim=True)).square().sum(-1).mean(-1).sqrt()


def first_time(
    kernel: Kernel,
    tokens: Tensor,
    reached: Callable[[Tensor], bool],
    accuracy: float = 1e-5,
    tolerance: float = 1e-6,
    horizon: float = 1e6,
) -> tuple[float, Tensor]:
    """When a flow first reaches a state, by simulation alone, and that state: (time, tokens).

    The flow runs on, 1/16 of its age at a time, until `reached(tokens)`, which must then stay true. The stretch where
    that happened is run again in quarters, the quarter in which it happened likewise, and so on, until the time is
    known to `accuracy`, relatively. tokens (n, D). Raises RuntimeError if `horizon` passes first. Chapter 12.
    """
    now, stretch, found = 0.0, 0.5, False
    if reached(tokens):
        return now, tokens
    while now < horizon:
        state = integrate(kernel, tokens, time=stretch, tolerance=tolerance, states=2).tokens[-1]
        if not reached(state):
            now, tokens = now + stretch, state
            stretch = stretch if found else max(0.5, now / 16)
        elif stretch <= accuracy * (now + stretch):
            return now + stretch, state
        else:
            stretch, found = stretch / 4, True
    raise RuntimeError(f"beta = {kernel.beta:g}: not reached within time {horizon:g}")


def growth_rates(beta: float, dim: int = 3) -> np.ndarray:
    """At which rate a small perturbation of degree l of the uniform law grows, l = 0, 1, ...; library's unit.

    lambda_l = l (l + dim - 2) H_l, with H_l the multiplier of the kernel on harmonics of degree l: on S^1 it is
    e^-beta I_l(beta)/beta, on S^2 e^-beta i_l(beta)/beta. dim = 2 or 3, else ValueError. Source: ours; chapter 12.
    """
    weights = Harmonic(beta).expansion(dim)
    degrees = np.arange(len(weights))
    halves = np.where((degrees > 0) & (dim == 2), 0.5, 1.0)  # the mean of cos^2 is 1/2; on S^2 Y.Y is normalised
    return degrees * (degrees + dim - 2) * halves * weights / beta


def formation(beta: float, starts: Tensor, folds: float = 8.0, angle: float = CLOSE) -> tuple[int, float, list[int]]:
    """Clusters soon after they formed: (fastest degree, time, cluster count of each cloud (R, n, D)).

    The time is `folds` divided by the fastest growth rate of a perturbation of the uniform law. Chapter 12.
    """
    rates = growth_rates(beta, starts.shape[-1])
    degree = int(rates.argmax())
    time = folds / rates[degree]
    clouds = integrate(Exponential(beta), starts, time=[time], tolerance=1e-5).tokens[-1]
    return degree, float(time), [cluster_count(cloud, angle) for cloud in clouds]


class Staircase(NamedTuple):
    """times (S,) in the library's unit, counts (S, R), energy (S, R), tokens (S, R, n, D)."""

    times: Tensor
    counts: Tensor
    energy: Tensor
    tokens: Tensor


def staircase(
    beta: float,
    starts: Tensor,
    times: Sequence[float],
    angle: float = CLOSE,
    tolerance: float = 1e-5,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Staircase:
    """Cluster counts and energies of clouds (R, n, D) at increasing times > 0, plain USA.

    Clouds are independent and share the step. A cloud whose tokens agree to 1e-6 is at rest and is carried no further:
    without it the others take longer steps. Chapter 12.
    """
    kernel, active, now = Exponential(beta), torch.arange(len(starts)), 0.0
    clouds, record = starts.clone(), []
    for end in progress([float(time) for time in times]):
        if end <= now:
            raise ValueError(f"times: expected increasing numbers > 0, got {end:g} after {now:g}")
        if len(active):
            clouds = clouds.clone()
            clouds[active] = integrate(kernel, clouds[active], time=[end - now], tolerance=tolerance).tokens[-1]
            active = active[(cluster_radius(clouds[active]) > 1e-6).cpu()]
        record.append(clouds)
        now = end
    tokens = torch.stack(record)
    counts = torch.tensor([[cluster_count(cloud, angle) for cloud in state] for state in tokens])
    return Staircase(torch.tensor(times, dtype=torch.float64), counts, kernel.energy(tokens).cpu(), tokens)


class LastMerge(NamedTuple):
    """How the last two clusters of a cloud meet: when they were first seen tight, their angle and masses then; when
    they should be one, by quadrature from that angle, and when they are, by simulation; and the last record that
    shows two of them and the first that shows one (inf: none)."""

    run: int
    seen: float
    angle: float
    masses: tuple[float, float]
    predicted: float
    simulated: float
    after: float
    before: float

    @property
    def error(self) -> float:
        """Of the predicted remaining time, relative to the simulated one."""
        return (self.predicted - self.seen) / (self.simulated - self.seen) - 1


def last_merges(beta: float, stairs: Staircase, angle: float = CLOSE, tight: float = 1e-3) -> list[LastMerge]:
    """The last merge of each cloud that some record shows as two tight clusters (radius < `tight`). Chapter 12.

    The simulated time is where the staircase's own flow, resumed at the last record with two clusters, brings the mean
    directions of the two within `angle`.
    """
    merges = []
    for run in range(stairs.counts.shape[1]):
        for time, count, cloud in zip(stairs.times, stairs.counts[:, run], stairs.tokens[:, run]):
            if count != 2:
                continue
            near = cloud @ cloud[0] > math.cos(angle)  # tight clusters: the one that token 0 is in
            if max(cluster_radius(cloud[near]), cluster_radius(cloud[~near])) >= tight:
                continue
            size, seen = int(near.sum()), time.item()
            apart = separation(torch.cat([cloud[near], cloud[~near]]), size).item()
            last = int((stairs.counts[:, run] > 1).nonzero().max())  # the last record with more than one cluster
            after, before = [*stairs.times.tolist(), math.inf][last : last + 2]
            cloud = stairs.tokens[last, run]
            pair = torch.cat([cloud[near], cloud[~near]])
            left, _ = first_time(Exponential(beta), pair, lambda x, k=size: bool(separation(x, k) <= angle), 1e-4)
            masses = (size / len(cloud), 1 - size / len(cloud))
            predicted = seen + merge_time(beta, apart, angle)
            merges.append(LastMerge(run, seen, apart, masses, predicted, after + left, after, before))
            break
    return merges
