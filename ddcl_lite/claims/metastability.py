"""U13: how long several clusters last before they are one."""

import math

import numpy as np
import torch

from ..experiments.metastability import (
    cluster_radius,
    first_time,
    growth_rates,
    last_merges,
    merge_time,
    separation,
    staircase,
    two_clusters,
)
from ..meanfield.kernels import Exponential
from ..meanfield.sphere import uniform
from .registry import Evidence, claim

OBTUSE, ACUTE = 2 * math.pi / 3, math.pi / 3


@claim(
    "U13",
    'Particles "remain trapped near a configuration of several clusters for an exponentially long period of time" '
    '(abstract of arXiv 2410.06833; that of 2410.23228, too, speaks of the "persistence of meta-stable phases").',
    "holds",
    "Exponential in beta for clusters a fixed angle apart, relative to the time of formation. Two tight clusters that "
    "start phi apart take, for large beta, about exp(beta (1 - cos phi))/(beta sin(phi)^2) in the library unit, "
    "whatever their masses and d, while the rate at which clusters form from the uniform law (d = 3) falls only like a "
    "power of beta. In the raw unit, where both times are e^-beta times as long, pairs up to a right angle apart merge "
    "sooner as beta grows. The first clusters on the circle are closer the larger beta is, about 2 pi/sqrt(2 beta), "
    "and a pair of such neighbours lasts a bounded time. From a uniform start on S^2, too, the angle of the last two "
    "clusters, once they are tight, tells when they merge.",
    12,
)
def lifetimes(seed, device):
    draw = torch.Generator().manual_seed(seed)
    size, heavy = (int(torch.randint(2, 6, (), generator=draw)) for _ in range(2))
    evidence, several, radii = [], [], []
    for beta in (2, 4, 6, 8):
        expected = merge_time(beta, OBTUSE)
        evidence.append(Evidence(f"beta = {beta}: from 2 pi/3 to 0.1 rad, quadrature, library unit", expected))
        ratio = simulated(beta, two_clusters(OBTUSE).to(device))[0] / expected
        evidence.append(Evidence(f"beta = {beta}: simulated over quadrature", ratio, at_least=0.999, at_most=1.001))
        if beta < 8:
            tokens = two_clusters(OBTUSE, (size, size), spread=0.05, seed=seed).to(device)
            time, end = simulated(beta, tokens)
            several.append(time / expected)
            radii.append((cluster_radius(end[:size]) / cluster_radius(tokens[:size])).item())
    unequal = simulated(4, two_clusters(OBTUSE, (1, heavy)).to(device), 1)[0] / merge_time(4, OBTUSE)
    evidence += [
        Evidence(f"two times {size} tokens, 0.05 rad of spread, beta = 2, 4, 6: least ratio", min(several), 0.98),
        Evidence("the largest", max(several), at_most=1.02),
        Evidence("spread left at the end, of that at the start, beta = 4, 6", max(radii[1:]), at_most=1e-6),
        Evidence(f"masses 1 : {heavy}, beta = 4: ratio", unequal, at_least=0.999, at_most=1.001),
    ]
    return [*evidence, *exponents(), *neighbours(), *last_steps(seed, device)]


def simulated(beta, tokens, first=None):
    """When the clusters, the first one of `first` tokens (default: half), are 0.1 rad apart; and the tokens then."""
    first = first or len(tokens) // 2
    return first_time(Exponential(beta), tokens, lambda x: bool(separation(x, first) <= 0.1))


def exponents(low=16, high=32):
    """Growth of logarithms per unit of beta, between two large betas; theory: 1 - cos phi, and -cos phi, for large."""
    times = {angle: np.log([merge_time(beta, angle) for beta in (low, high)]) for angle in (OBTUSE, ACUTE)}
    rates = np.log([growth_rates(beta, 3).max() for beta in (low, high)])
    raw, per_beta = np.array([low, high]), 1 / (high - low)
    slope = {
        "2 pi/3, times the fastest rate of formation on S^2 (for large beta 1.5)": times[OBTUSE] + rates,
        "pi/3, times the same (for large beta 0.5)": times[ACUTE] + rates,
        "pi/3, in the raw unit (for large beta -0.5)": times[ACUTE] - raw,
    }
    bounds = [(1.3, 1.6), (0.3, 0.6), (-0.7, -0.4)]
    return [
        Evidence(f"growth of log lifetime per unit of beta, {name}", np.diff(values)[0] * per_beta, *bound)
        for (name, values), bound in zip(slope.items(), bounds)
    ]


def neighbours():
    """How long two first neighbours on the circle last, 2 pi over the fastest degree apart; reported."""
    evidence = []
    for beta in (32, 512):
        rates = growth_rates(beta, 2)
        lasts = merge_time(beta, 2 * math.pi / rates.argmax()) * rates.max()
        name = f"beta = {beta}: lifetime of a pair 2 pi/l apart, l the fastest degree on S^1, times its rate"
        evidence.append(Evidence(name, lasts))
    return evidence


def last_steps(seed, device, beta=4, runs=3):
    """From uniform starts on S^2: the last merge, predicted from the angle of two tight clusters, and simulated."""
    times = np.geomspace(5, 4000, 32).tolist()
    merges = last_merges(beta, staircase(beta, uniform(runs, 32, 3, seed=seed, device=device), times))
    worst = max((abs(merge.error) for merge in merges), default=math.inf)
    return [
        Evidence(f"uniform starts, d = 3, n = 32, beta = 4, {runs} runs: two tight clusters seen in", len(merges), 1),
        Evidence("remaining time to 0.1 rad, by quadrature over simulated, minus 1: largest", worst, at_most=1e-3),
    ]
