"""U1, U2 and U16."""

import math

import torch
from scipy.integrate import simpson
from torch.nn.functional import normalize

from ..experiments.particles import (
    ambient_path,
    collapse_path,
    equiangular,
    equiangular_cosine,
    errors_by_step,
    is_certain,
)
from ..meanfield.coupled import Toeplitz
from ..meanfield.flow import integrate
from ..meanfield.kernels import Exponential, Rotary, SelfAttention
from ..meanfield.sphere import uniform
from .registry import Evidence, claim


@claim(
    "U1",
    "Tokens stay on the sphere, and the energy never falls: it grows at the tokens' mean squared speed (a summary).",
    "holds",
    "This is so for every symmetric kernel, by the chain rule. The equation as written, solved in R^3 by scipy with no "
    "normalisation, keeps norms at 1 up to the solver's error. Our integrator moves tokens by exponential maps, and "
    "halving its step divides its error by 2^order.",
    11,
)
def ascent(seed, device):
    tokens = uniform(48, 3, seed=seed, device=device)
    labels = 2 * math.pi * torch.arange(48, dtype=torch.float64, device=device) / 48
    kernels = {
        "USA": Exponential(2.0),
        "rotary": Rotary(2.0, torch.tensor([1.0])),
        "a = cos": Toeplitz(2.0, torch.cos),
    }
    evidence = []
    for name, kernel in kernels.items():
        path = integrate(kernel, tokens, labels, time=10.0, tolerance=1e-7, states=101)
        field = kernel.bind(tokens, labels)
        speeds = torch.stack([field.drift(x).square().sum(-1).mean() for x in path.tokens]).cpu().numpy()
        gain = (path.energy[-1] - path.energy[0]).item()
        integral = simpson(speeds, x=path.times.numpy())
        evidence += [
            Evidence(f"{name}: smallest change of E in time 0.1", path.energy.diff().min().item(), at_least=-1e-13),
            Evidence(f"{name}: rise of E / integral of the mean squared speed", gain / integral, 1 - 1e-4, 1 + 1e-4),
        ]
    for name, normed in (("USA", False), ("SA", True)):
        path = ambient_path(2.0, tokens[:8], [float(time) for time in range(1, 11)], normed)
        off = (path.norm(dim=-1) - 1).abs().max().item()
        name = f"{name} without normalisation, n = 8, d = 3, beta = 2:"
        evidence.append(Evidence(f"{name} largest | |x| - 1 | up to time 10", off, at_most=1e-7))
    for name, kernel in {"USA": Exponential(2.0), "SA": SelfAttention(2.0), "rotary": kernels["rotary"]}.items():
        errors = errors_by_step(kernel, tokens, (0.1, 0.05), labels)
        for order in (1, 2, 4):
            measured = math.log2(errors[order][0] / errors[order][1])
            evidence.append(Evidence(f"{name}: measured order, order {order}", measured, order - 0.2, order + 0.2))
    return evidence


@claim(
    "U2",
    "Without labels, tokens collapse to a single point, a Dirac measure (abstract).",
    "conditional",
    "As time goes to infinity almost every start of finitely many tokens does so for d >= 3 (Markdahl et al. 2018, "
    "Criscitiello et al. 2024), and every start in an open hemisphere. Within a given time it depends on beta: from a "
    "uniform start on S^2, by raw time 20, all of ours do at beta = 1, and some do not at beta = 4.",
    11,
)
def collapse(seed, device):
    evidence = []
    for beta in (1.0, 2.0):
        resultants = []
        for n, runs in ((64, 4), (128, 3), (256, 2)):
            path = collapse_path(beta, n, runs, [20], seed=1000 * seed + n, device=device)
            resultants.append(path[-1].mean(-2).norm(dim=-1))
        resultants = torch.cat(resultants)
        name = f"beta = {beta:g}, n = 64, 128, 256, raw time 20, 9 starts:"
        least = Evidence(f"{name} smallest Rbar", resultants.min().item(), at_least=0.999 if beta == 1 else None)
        share = (resultants > 0.99).double().mean().item()
        evidence += [least, Evidence(f"{name} share with Rbar > .99", share, at_least=1.0 if beta == 1 else 0.5)]
    path = collapse_path(4.0, 128, 4, [20], seed=1000 * seed + 1, device=device)
    resultants = path[-1].mean(-2).norm(dim=-1)
    name = "beta = 4, n = 128, raw time 20, 4 starts:"
    evidence += [
        Evidence(f"{name} smallest Rbar", resultants.min().item()),
        Evidence(f"{name} largest Rbar", resultants.max().item()),
        Evidence(f"{name} starts with Rbar > .99", (resultants > 0.99).sum().item(), at_most=3),
    ]
    path = collapse_path(4.0, 64, 6, [2, 40], seed=1000 * seed + 2, device=device)
    done, certain = (path.mean(-2).norm(dim=-1) > 0.99).sum(-1), is_certain(path).any(0).sum()
    name = "beta = 4, n = 64, 6 starts:"
    return [
        *evidence,
        Evidence(f"{name} Rbar > .99 at raw time 2", done[1].item()),
        Evidence(f"{name} how many more at raw time 40", (done[2] - done[1]).item(), at_least=1),
        Evidence(f"{name} in an open hemisphere, so sure to collapse, by raw time 40", certain.item(), at_least=1),
    ]


@claim(
    "U16",
    "n tokens in d >= n dimensions that start with one common cosine rho keep one, and "
    "rho' = (2/n) e^(beta rho) (1 - rho)(1 + (n - 1) rho) in the raw unit: for rho(0) > -1/(n - 1) they collapse, and "
    "1 - rho falls at the final rate 2 e^beta (we show).",
    "holds",
    "By symmetry. In the library's unit the final rate is 2. Orthogonal tokens are the case rho = 0. At "
    "rho = -1/(n - 1), a regular simplex, the tokens stand still.",
    11,
)
def equal_angles(seed, device):
    evidence = []
    for n, dim, beta, start in ((8, 8, 1.0, 0.0), (8, 12, 4.0, 0.2), (16, 24, 2.0, -0.05), (3, 64, 1.0, -0.4)):
        tokens = equiangular(n, dim, start, seed, device)
        times = [1.0 + i for i in range(10)]
        path = integrate(Exponential(beta), tokens, time=times, step=0.04)
        gram = path.tokens @ path.tokens.mT
        pairs = gram[:, ~torch.eye(n, dtype=torch.bool, device=gram.device)].cpu()
        difference = (pairs - equiangular_cosine(n, beta, start, [0.0, *times])[:, None]).abs().max().item()
        name = f"n = {n}, d = {dim}, beta = {beta:g}, rho(0) = {start:g}:"
        evidence.append(Evidence(f"{name} largest difference of a cosine, time <= 10", difference, at_most=1e-8))
    path = integrate(Exponential(1.0), equiangular(3, 3, 0.2, seed, device), time=[8.0, 10.0], tolerance=1e-9)
    gaps = (path.tokens[1:, 0] - path.tokens[1:, 1]).square().sum(-1).log()
    rate = (gaps[0] - gaps[1]).item() / 2
    simplex = normalize(torch.eye(4, dtype=torch.float64, device=device) - 1 / 4, dim=-1)
    still = Exponential(1.0).drift(simplex).norm(dim=-1).max().item()
    return [
        *evidence,
        Evidence("n = 3: rate at which 1 - rho falls from time 8 to 10", rate, 1.98, 2.02),
        Evidence("regular simplex, n = 4: largest drift", still, at_most=1e-14),
    ]
