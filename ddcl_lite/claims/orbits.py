"""U5, U6 and U9: the orbits of rotary kernels, the laws on them, and rotated queries and keys."""

import math

import numpy as np
import torch
from scipy.stats import kstest

from ..experiments.cost import exponent
from ..experiments.orbits import (
    COLLAPSED,
    TARGETS,
    convergence,
    distance_to,
    midpoints,
    point_reached,
    realise,
    reference,
    resultants,
    settle,
    top_rates,
    twisted,
    twisted_rates,
)
from ..meanfield import dense, sphere
from ..meanfield.flow import integrate
from ..meanfield.kernels import Exponential, Rotary, RotaryQueriesKeys
from ..meanfield.maximizers import orbit
from ..measures import circle_wasserstein
from .registry import Evidence, claim


@claim(
    "U5",
    "The energy maximisers of rotary kernels are rotation orbits (summary).",
    "holds",
    "They are the orbits x(xi) = R(xi)^T u, one for every point u, for almost every label. The point is free. On the "
    "axis its orbit is a point, which is collapse. From uniform starts u is uniform, so for d = 3 and a full turn the "
    "mean resultant length is |u_axis|, uniform on [0, 1].",
    14,
)
def orbits(seed, device):
    beta, labels = 4.0, sphere.ring(64, device)
    kernel, u = Rotary(beta, [1.0]), sphere.uniform(1, 3, seed=seed, device=device)[0]
    exact = orbit(kernel, labels, u)
    top = 1 / (2 * beta)
    kick = sphere.tangent(exact, sphere.uniform(64, 3, seed=seed + 1, device=device))
    kick[1:] = 0
    moved = sphere.exponential(exact, 0.1 * kick / kick[0].norm())
    pole = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64, device=device)

    labels, starts = sphere.ring(24, device), 200
    kernel = Rotary(1.0, [1.0])
    ends = settle(kernel, labels, starts, 3, time=60, seed=seed)
    lengths = resultants(ends)
    height = point_reached(kernel, ends, labels)[:, 2].abs()
    even = settle(Rotary(1.0, [1.0, 2.0]), labels, 40, 4, time=60, seed=seed)
    return [
        Evidence("an orbit, d = 3, beta = 4: |E / (1/(2 beta)) - 1|", abs(energy_gap(beta, exact, 64)), at_most=1e-12),
        Evidence(
            "its largest speed",
            Rotary(beta, [1.0]).drift(exact, sphere.ring(64, device)).norm(dim=-1).max().item(),
            at_most=1e-12,
        ),
        Evidence("E with one token moved by 0.1, minus 1/(2 beta)", -top * energy_gap(beta, moved, 64), at_most=-1e-6),
        Evidence("Rbar of the orbit of the axis", resultants(orbit(kernel, labels, pole)).item(), at_least=1 - 1e-12),
        Evidence(
            "200 starts, n = 24, beta = 1, library time 60: largest 1 - E/max E",
            (1 - 2 * kernel.energy(ends, labels)).max().item(),
            at_most=1e-4,
        ),
        Evidence("largest |Rbar - |u_axis||", (lengths - height).abs().max().item(), at_most=1e-3),
        Evidence("Rbar uniform on [0, 1]: p of the KS test", kstest(lengths.cpu(), "uniform").pvalue, at_least=1e-4),
        Evidence("share with Rbar > 0.9", (lengths > 0.9).double().mean().item()),
        Evidence("d = 4, frequencies 1 and 2, 40 starts: largest Rbar", resultants(even).max().item(), at_most=1e-3),
    ]


def energy_gap(beta, tokens, n):
    """1 - E / max E of a rotary kernel with one frequency on a full turn, from the matrix as written."""
    labels = sphere.ring(n, tokens.device)
    return 1 - 2 * beta * dense.energy(Rotary(beta, [1.0]), tokens, labels).item()


@claim(
    "U6",
    "Orbit universality: every probability law on a fixed orbit is the marginal of a maximiser (summary, Theorem 2).",
    "holds",
    "Over the choice of the label law, or of the phase map if the label law has no atoms. n tokens reach a target law "
    "to within O(1/n) in Wasserstein-1 with labels on a quantile grid and O(n^(-1/2)) with random labels, on whichever "
    "orbit off the axis the flow reaches. Fixed labels with standard phases carry one law only.",
    14,
)
def universality(seed, device):
    sizes, evidence = (16, 64, 256, 1024), []
    table = convergence(sizes, draws=24, seed=seed)
    for target, part in table.groupby("target", sort=False):
        for name, slope in (("sampled", -0.5), ("grid", -1.0)):
            found = exponent(sizes, list(part[name]))
            label = f"{target}, {name} labels: slope of log W1 against log n, n = 16 to 1024"
            evidence.append(Evidence(label, found, at_least=slope - 0.15, at_most=slope + 0.15))
        most = (part["grid"] * part["n"]).max() / math.pi
        evidence.append(Evidence(f"{target}, grid: largest W1 / (pi/n)", most, at_most=1.06))
        most = (part["sampled"] * part["n"] ** 0.5).max() / math.pi
        evidence.append(Evidence(f"{target}, sampled: largest mean W1 / (pi/sqrt n)", most, at_most=1.0))
        away = part["neither"].iloc[-1] - from_uniform(TARGETS[target])
        name = f"{target}, fixed labels and phases, n = 1024: |W1 - W1(uniform, target)|"
        evidence.append(Evidence(name, abs(away), at_most=math.pi / 1024 + 1e-3))
    drawn = torch.rand(64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for index, target in enumerate(TARGETS):
        kernel, labels = realise(target, drawn.to(device), "labels")
        end = settle(kernel, labels, 1, 3, time=60, seed=7 * seed + index)[0]
        miss = distance_to(target, kernel, end, labels)
        name = f"{target}, by random labels: W1 on the orbit reached, n = 64, random start"
        evidence.append(Evidence(name, miss, at_most=4 * math.pi / 64**0.5))
        gap = abs(miss - circle_wasserstein(labels, reference(target)))
        evidence.append(Evidence("the same, minus W1 of these labels themselves", gap, at_most=1e-3))
        kernel, labels = realise(target, midpoints(64).to(device), "phases")
        end = settle(kernel, labels, 1, 3, time=60, seed=7 * seed + index)[0]
        name = f"{target}, by the phases: W1 on the orbit reached, n = 64, random start"
        evidence.append(Evidence(name, distance_to(target, kernel, end, labels), at_most=1.1 * math.pi / 64))
    return evidence


def from_uniform(density):
    """Wasserstein-1 on the circle between the uniform law and a density: the integral of |F - G - median|."""
    angles = 2 * math.pi * (np.arange(20000) + 0.5) / 20000
    values = density(angles)
    gap = values.cumsum() / values.sum() - angles / (2 * math.pi)
    return 2 * math.pi * float(np.abs(gap - np.median(gap)).mean())


@claim(
    "U9",
    "Rotary position embeddings are why real transformers do not collapse (a popular reading, not a statement of the "
    "paper).",
    "fails",
    "It does not follow. In the usual implementations queries and keys are rotated, values are not. With this pattern "
    "in our model, without softmax, consensus is an equilibrium that attracts from nearby, and from any open "
    "hemisphere, for every beta, rotation and dimension. From random starts in d = 3 nearly all collapse. On the "
    "circle other states are stable too, even at beta = 1, and at beta = 2 and 3 a good share of the starts end in one "
    "(without rotation starts are late at beta = 3, not stable).",
    14,
)
def language_models(seed, device):
    evidence = consensus(seed, device)
    labels = sphere.ring(48, device)
    for dim, beta in ((2, 2.0), (3, 4.0)):
        kernel = RotaryQueriesKeys(beta, [1.0])
        ends = settle(kernel, labels, 20, dim, time=200, seed=seed, pole=torch.eye(dim)[0])
        name = f"20 starts in a hemisphere, d = {dim}, beta = {beta:g}, n = 48, library time 200: least Rbar"
        evidence.append(Evidence(name, resultants(ends).min().item(), at_least=0.999))
    ends = settle(RotaryQueriesKeys(1.0, [1.0]), labels, 20, 3, time=100, seed=seed)
    evidence.append(
        Evidence("random starts, d = 3, beta = 1, library time 100: not collapsed of 20", left(ends), None, 0)
    )
    few = sphere.ring(24, device)
    ends = uncollapsed(RotaryQueriesKeys(3.0, [1.0]), few, 3, (200, 1300), seed)
    name = "d = 3, beta = 3, n = 24, library time 1500: not collapsed of 20"
    evidence.append(Evidence(name, len(ends), at_most=2))
    for beta in (2.0, 3.0):
        kernel = RotaryQueriesKeys(beta, [1.0])
        ends = settle(kernel, labels, 20, 2, time=400, seed=seed)
        stuck = ends[resultants(ends) < COLLAPSED]
        name = f"on the circle, beta = {beta:g}, n = 48, library time 400: not collapsed of 20"
        evidence.append(Evidence(name, len(stuck), at_least=2))
        rates = top_rates(kernel, stuck, labels)
        evidence.append(
            Evidence("these states: largest growth rate, turning aside", max(rates, default=0.0), at_most=-1e-3)
        )
        kernel = Exponential(beta)
        late = uncollapsed(kernel, labels, 2, (100, 300), seed)
        evidence.append(Evidence("without rotation, the same starts and time: not collapsed of 20", len(late)))
        if len(late):
            lowest = min(top_rates(kernel, late[:5], labels))
            evidence.append(
                Evidence("the first of these states, at most 5: lowest of their largest growth rates", lowest)
            )
    return evidence


def uncollapsed(kernel, labels, dim, legs, seed):
    """Those of 20 uniform starts that have not collapsed after two legs of time. Only the late go on the second one."""
    late = settle(kernel, labels, 20, dim, time=legs[0], seed=seed)
    late = late[resultants(late) < COLLAPSED]  # the others are in an open hemisphere: they collapse
    if len(late):
        late = integrate(kernel, late, labels, time=[legs[1]], tolerance=1e-4).tokens[-1]
    return late[resultants(late) < COLLAPSED]


def left(ends):
    """How many clouds have not collapsed."""
    return int((resultants(ends) < COLLAPSED).sum())


def consensus(seed, device):
    """At consensus: no speed, the rates of a graph Laplacian; and what holds the twisted state."""
    labels = 2 * math.pi * torch.rand(20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    labels, beta, dim = labels.to(device), 3.0, 4
    tokens = sphere.uniform(1, dim, seed=seed, device=device).expand(20, -1).contiguous()
    kernel = RotaryQueriesKeys(beta, [1.0, 0.3])
    weights = kernel.weights(tokens, labels)
    laplacian = torch.diag(weights.sum(-1)) - weights
    predicted = -torch.linalg.eigvalsh(laplacian).repeat_interleave(dim - 1)
    rates = dense.rates(kernel, tokens, labels)
    twist, odd = twisted(25).to(device), sphere.ring(25, device)
    one = RotaryQueriesKeys(1.0, [1.0])
    exact = dense.rates(one, twist, odd).cpu() - twisted_rates(1.0, 25).sort(descending=True).values
    shake = sphere.tangent(twist, sphere.uniform(25, 2, seed=seed, device=device))
    near = sphere.exponential(twist, 0.05 * shake)
    end = integrate(one, near, odd, time=[200.0], tolerance=1e-4).tokens[-1]
    return [
        Evidence(
            "consensus, d = 4, beta = 3: largest speed",
            kernel.drift(tokens, labels).norm(dim=-1).max().item(),
            None,
            1e-12,
        ),
        Evidence("rates minus those of -graph Laplacian, largest", (rates - predicted).abs().max().item(), None, 1e-9),
        Evidence(
            "slowest decay of a difference / exp(-2 beta)", rates[dim - 1].item() / -math.exp(-2 * beta), at_least=1.0
        ),
        Evidence(
            "for the rotary energy's own flow: largest speed there",
            Rotary(beta, [1.0, 0.3]).drift(tokens, labels).norm(dim=-1).max().item(),
            at_least=1e-3,
        ),
        Evidence(
            "twisted state on the circle, n = 25, beta = 1: rates minus formula, largest",
            exact.abs().max().item(),
            None,
            1e-9,
        ),
        Evidence("its largest growth rate, turning aside", twisted_rates(1.0, 25)[1:].max().item(), at_most=-1e-3),
        Evidence("started 0.05 from it, library time 200: Rbar", resultants(end).item(), at_most=0.2),
    ]
