"""U10, U11 and U12."""

import math

import torch

from ..experiments.signs import (
    consensus_threshold,
    contest,
    cosine,
    displaced,
    first_unstable,
    local_bias,
    outcomes,
    random_couplings,
    settled_balance,
    top_rate,
)
from ..meanfield.flow import integrate
from ..meanfield.kernels import library_time
from ..meanfield.maximizers import fourier_means, latitude_balance, latitude_circle, latitude_energy
from ..meanfield.sphere import ring, shaken, uniform
from .registry import Evidence, claim

SIZES, DIMS, BETAS = (2, 3, 6, 12), (2, 3, 5), (0.5, 2.0, 5.0)
ROUNDING = 1e-12


@claim(
    "U10",
    "With a non-negative distance bias the maximiser is consensus (summary).",
    "holds",
    "For every a >= 0 with a connected graph consensus is the only global maximiser, and in dimension d >= 3 every "
    "other equilibrium has a direction in which the energy grows, so that almost every start reaches consensus. On the "
    "circle a state that winds once around can be a strict local maximum up to rotation: there the flow sticks.",
    16,
)
def distance_bias(seed, device, count=24, beta=1.0):
    gains = []
    for size, dim in zip(SIZES, (2, 3, 5, 3)):
        couplings = random_couplings(40, size, torch.ones(40, dtype=torch.float64), 100 * seed + size).abs().to(device)
        energies = contest(couplings, beta, dim, seed=seed)
        gains.append((energies[:, 1:].amax(-1) - energies[:, 0]).max().item())
    kernel, labels, raw = local_bias(beta), ring(count, device), library_time(600, beta)
    circle = latitude_circle(labels)
    flat = integrate(kernel, shaken(circle[:, :2].contiguous(), 0.1, seed), labels, [raw], tolerance=1e-2).tokens[-1]
    angles = torch.atan2(flat[:, 1], flat[:, 0])
    steps = torch.remainder(angles.roll(-1) - angles + math.pi, 2 * math.pi) - math.pi
    starts = torch.cat([shaken(circle, 0.01, seed)[None], uniform(12, count, 3, seed=seed, device=device)])
    ends = integrate(kernel, starts, labels, [24000.0], tolerance=1e-2).tokens[-1].mean(-2).norm(dim=-1)
    note = f"a = exp(-5 distance) on a ring, n {count}, beta {beta:g}"
    return [
        Evidence("160 random a >= 0: largest E, drawn or ascended, minus E at consensus", max(gains), at_most=ROUNDING),
        Evidence(f"{note}, d 2, raw time 600 from a shaken winding state: windings", steps.sum().item() / (2 * math.pi),
                 at_least=0.999, at_most=1.001),
        Evidence("the same: Rbar", flat.mean(0).norm().item(), at_most=0.05),
        Evidence("the winding state, d 2: largest growth rate, rotations aside",
                 top_rate(kernel, circle[:, :2].contiguous(), labels), at_most=-1e-4),
        Evidence(f"{note}, d 3, library time 24000: Rbar from a shaken winding state", ends[0].item(), at_least=0.999),
        Evidence("the same: least Rbar of 12 uniform starts", ends[1:].min().item(), at_least=0.999),
    ]  # fmt: skip


@claim(
    "U11",
    "Kernels that change sign do not collapse (as popularly told).",
    "conditional",
    "We show: for a symmetric coupling a of any sign, one token per label, every beta > 0 and d >= 2, consensus is a "
    "global maximum if and only if a local one, if and only if the signed Laplacian diag(a 1) - a is positive "
    "semidefinite. On a ring with uniform labels: if and only if a^(0) >= a^(k) for all Fourier means. So a = c + cos "
    "leaves consensus for c < 1/2 and returns to it for c > 1/2, where it still changes sign up to c = 1.",
    16,
)
def signed_laplacian_decides(seed, device, each=30):
    generator, worst, gains, ratios = torch.Generator().manual_seed(seed), -math.inf, [], []
    shares = dict.fromkeys(SIZES, 0.0)
    for index, (size, dim) in enumerate((size, dim) for size in SIZES for dim in DIMS):
        margins, beta = torch.rand(2, each, generator=generator, dtype=torch.float64), BETAS[(index + index // 3) % 3]
        drawn = 1000 * seed + 2 * index
        above = random_couplings(each, size, margins[0], drawn).to(device)
        below = random_couplings(each, size, -0.1 - margins[1], drawn + 1).to(device)
        energies = contest(above, beta, dim, seed=seed)
        worst = max(worst, (energies[:, 1:].amax(-1) - energies[:, 0]).max().item())
        off = ~torch.eye(size, dtype=bool, device=device)
        shares[size] += (above[:, off] < 0).any(-1).double().mean().item() / len(DIMS)
        gain, predicted = displaced(below, beta, dim).unbind(-1)
        gains.append(gain.min().item())
        ratios.append((gain / predicted - 1).abs().max().item())
    total = each * len(SIZES) * len(DIMS)
    evidence = [
        Evidence(f"{total} random a, Laplacian PSD: largest E, random or ascended, minus E at consensus", worst,
                 at_most=ROUNDING),
        *(Evidence(f"the share with a negative entry off the diagonal, n {size}", share,
                   at_least=0.9 if size >= 6 else None, at_most=0 if size == 2 else None)
          for size, share in shares.items()),
        Evidence(f"{total} others: least gain of E, consensus displaced by 0.01 along the eigenvector", min(gains),
                 at_least=1e-9),
        Evidence("the same: largest relative error of the second variation", max(ratios), at_most=0.02),
    ]  # fmt: skip
    for beta in (1.0, 2.0):
        low, high = consensus_threshold(beta, seed=seed, device=device)
        note = f"a = c + cos, d 3, n 16, beta {beta:g}, simulation"
        evidence += [
            Evidence(f"{note}: largest c that leaves consensus", low, at_least=0.49, at_most=0.5),
            Evidence(f"{note}: smallest c that returns", high, at_least=0.5 - 1e-9, at_most=0.51),
        ]
    means = fourier_means(lambda difference: 0.5 + difference.cos())
    top = means[1:].max().item()
    return [
        *evidence,
        Evidence("Fourier means at c = 1/2: |a^(0) - max a^(k)|", abs(means[0].item() - top), at_most=ROUNDING),
    ]


@claim(
    "U12",
    "Kernels that change sign spread tokens on great circles or latitude circles (summary).",
    "conditional",
    "For a = c + cos on a ring, d = 3, c < 1/2: the best circle is the great one up to beta = t*(c), then the latitude "
    "circle with beta (1 - z^2) = t*(c). It is not always the best state, and not every start reaches it: other strict "
    "local maxima lie on a great circle with the labels torn apart, and for larger beta some have more "
    "energy than either circle.",
    16,
)
def circles(seed, device):
    evidence = []
    for name, value, dim, modes in (
        ("first unstable displacement", 1.545127, 3, 1),
        ("first one within the plane", 1.786627, 2, 1),
        ("third one within the plane", 1.810188, 2, 3),
    ):
        off = abs(first_unstable(dim, modes) - value)
        evidence.append(Evidence(f"c = 0, great circle: |beta of the {name} - {value}|", off, at_most=5e-6))
    means = [0.0, 0.3, 0.45]
    balance, share = settled_balance(means, 1.7, seed=seed, device=device)
    for mean, found in zip(means, balance):
        ratio = found / latitude_balance(mean)
        evidence += [
            Evidence(
                f"c = {mean:g}, beta 1.7, n 16: beta (1 - Rbar^2) at rest / t*", ratio, at_least=0.99, at_most=1.01
            ),
        ]
    evidence.append(Evidence("the same: least share of Fourier modes 0 and 1", min(share), at_least=0.999))
    for beta, mean, runs in ((1.0, 0.3, 24), (1.7, 0.0, 12)):
        table = outcomes(cosine(beta, mean), ring(48, device), runs, time=1000.0, seed=seed)
        circle = latitude_energy(beta, math.sqrt(1 - latitude_balance(mean) / beta), mean)
        others = table[table["state"] == "other"]
        note = f"beta {beta:g}, c = {mean:g}, n 48, {runs} starts"
        reached = table.loc[table["state"] == "latitude circle", "starts"].sum()
        evidence += [
            Evidence(f"{note}: reach the latitude circle", reached),
            Evidence(f"{note}: reach another state", others["starts"].sum(), at_least=1),
            Evidence(f"{note}: largest speed of a token at such a state", others["speed"].max(), at_most=1e-5),
            Evidence(f"{note}: largest growth rate there, rotations aside", others["top rate"].max(), at_most=-1e-4),
            Evidence(f"{note}: largest distance there from a plane", others["off plane"].max(), at_most=1e-3),
        ]
        bounds = {"at_most": ROUNDING} if mean else {"at_least": 1e-5}
        evidence.append(Evidence(f"{note}: largest E minus E of the latitude circle", table["E"][0] - circle, **bounds))
    return evidence
