"""D4, D5 and D8: which way V pushes, where separation comes from, and what an attached assignment adds."""

import itertools

import torch
from scipy.optimize import brentq

from ..experiments.forces import TERMS, curvatures, follow, forces, pulls
from ..experiments.transition import four_blobs
from ..prototypes import dense
from ..prototypes.loss import critical_temperature
from ..prototypes.training import draw_prototypes
from .decomposition import ROUNDING, cloud
from .registry import Evidence, claim


def in_use(tokens, banks):
    """Whether each prototype of the banks (B, K, D) is the nearest of some token: (B, K)."""
    nearest = dense.squared_distances(tokens, banks).argmin(-1)
    return torch.nn.functional.one_hot(nearest, banks.shape[-2]).amax(1).bool()


def growth(path):
    """Last over first spread (root mean square distance from the mean) of paths (steps + 1, ..., K, D): (...)."""
    sizes = (path - path.mean(-2, keepdim=True)).square().sum((-2, -1)).sqrt()
    return sizes[-1] / sizes[0]


@claim(
    "D4",
    "The gradient of the variance term acts as an implicit separation force that resists collapse (the predecessor's "
    "abstract).",
    "fails",
    "With q held fixed, the case in which grad V = 2 Sigma_q P, a step against it draws the bank together: "
    "<-grad V, P - 1c^T> = -2V for every centre c, and V alone shrinks the bank to a point. With q attached V restores "
    "at collapse too, and can push apart once tokens are decided between groups (two tokens, two prototypes: if and "
    "only if u tanh u > 1).",
    4,
)
def variance_contracts(seed, device):
    tokens, bank, generator = cloud(seed, device)
    centres = 3 * torch.randn(20, 1, tokens.shape[-1], generator=generator, dtype=torch.float64).to(device)
    drawn = ((bank - centres) * forces(tokens, bank, 3.0, True)["V"]).sum((-2, -1))  # one number per centre
    value = dense.decompose(tokens, bank, 3.0).variance

    blobs = four_blobs(seed=seed).to(device)
    critical = critical_temperature(blobs)
    start = blobs[:4]  # one token of each blob
    closed = growth(follow(blobs, start, 0.5 * critical, "V", True, rate=1.0, steps=100))
    small = blobs.mean(0) + 1e-3 * (start - start.mean(0))
    opened = growth(follow(blobs, small, 2 * critical, "L_OLS", True, rate=1.0, steps=100))
    both = critical * torch.tensor([0.1, 0.5], dtype=torch.float64, device=device)
    cold, warm = growth(follow(blobs, start.repeat(2, 1, 1), both, "V", False, steps=200)).tolist()

    sides = torch.tensor([[1.0], [-1.0]], dtype=torch.float64, device=device)  # tokens +-1, prototypes +-u, T = 2
    turn = brentq(lambda u: forces(sides, u * sides, 2.0)["V"][0, 0].item(), 0.5, 3.0)
    return [
        Evidence(
            "q fixed: largest |<-grad V, P - 1c^T> + 2V| / 2V over 20 centres c",
            ((drawn + 2 * value).abs().max() / (2 * value)).item(),
            at_most=ROUNDING,
        ),
        Evidence("q fixed, V alone, T = 0.5 T_c: final / initial spread", closed.item(), at_most=1e-6),
        Evidence("q fixed, L_OLS alone, T = 2 T_c, from near collapse: the same", opened.item(), at_least=10),
        Evidence("q attached, V alone, T = 0.5 T_c: the same", warm, at_most=1e-3),
        Evidence("q attached, V alone, T = 0.1 T_c: the same", cold, at_least=1),
        Evidence("two and two: |u at which attached V turns to pushing - 1.19968|", abs(turn - 1.19968), at_most=1e-4),
    ]


@claim(
    "D5",
    "We show: next to collapse, the variance term draws prototypes together, and what drives them apart is the "
    "reconstruction term, through the dependence of q on the prototypes.",
    "holds",
    "K/2 times the gradient per unit of a zero-mean offset: V +1; L_OLS -2C/T with q detached, -4C/T attached; L_q "
    "their sum. With q constant L_OLS gives 0: separation is competition for tokens, and V opposes it.",
    4,
)
def curvatures_at_collapse(seed, device, dim=4):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device)

    tokens = draw(50, dim) @ draw(dim, dim)
    mean, covariance = tokens.mean(0), torch.cov(tokens.T, correction=0)
    temperature = 0.3 * critical_temperature(tokens).item()
    errors = {"automatic": [], "differences": [], "together": []}
    for count, detach in itertools.product((2, 3, 5, 8), (True, False)):
        offsets, shift = draw(count, dim), draw(1, dim).expand(count, dim)
        offsets = offsets - offsets.mean(0)
        opening = -(2 if detach else 4) / temperature * offsets @ covariance
        table = {"V": offsets, "L_OLS": opening, "L_q": offsets + opening}
        for kind, step in (("automatic", None), ("differences", 1e-4)):
            found = curvatures(tokens, offsets, temperature, detach, step=step)
            errors[kind] += [((found[name] - table[name]).norm() / table[name].norm()).item() for name in TERMS]
        found = curvatures(tokens, shift, temperature, detach)
        table = {"V": 0 * shift, "L_OLS": shift, "L_q": shift}
        errors["together"] += [((found[name] - table[name]).norm() / shift.norm()).item() for name in TERMS]

    constant = torch.full((len(tokens), count), 1 / count, dtype=torch.float64, device=device)
    closed, opened = (
        dense.split(tokens, mean + scale * offsets, constant).reconstruction.mean().item() for scale in (0, 1)
    )
    note = "largest relative error of the table, anisotropic C, K = 2, 3, 5, 8"
    return [
        Evidence(f"{note}: automatic differentiation", max(errors["automatic"]), at_most=1e-10),
        Evidence(f"{note}: finite differences", max(errors["differences"]), at_most=5e-5),
        Evidence(
            "all moved together: largest error of 0 (V) and +1 (L_OLS, L_q)", max(errors["together"]), at_most=1e-10
        ),
        Evidence("q constant: relative change of L_OLS as the bank opens", abs(opened / closed - 1), at_most=ROUNDING),
    ]


@claim(
    "D8",
    "We show: with q attached, dL_q/dp_j = (2/N) sum_n q_nj [1 - (d_nj - L_n)/T] (p_j - z_n), d_nj = |z_n - p_j|^2, "
    "L_n = sum_k q_nk d_nk.",
    "holds",
    "The weights of a token sum to 1 and can be negative: a prototype farther than L_n + T is pushed away from that "
    "token (rival penalisation). More prototypes fall out of use than with q detached, and a far one that q detached "
    "would bring back is driven farther off.",
    4,
)
def rivals(seed, device):
    tokens, bank, _ = cloud(seed, device)
    weights = pulls(tokens, bank, 1.0)
    formula = 2 * (weights[..., None] * (tokens[:, None] - bank)).mean(0)
    error = (forces(tokens, bank, 1.0)["L_q"] - formula).norm() / formula.norm()
    distances = dense.squared_distances(tokens, bank)
    limit = (dense.assign(tokens, bank, 1.0) * distances).sum(-1, keepdim=True) + 1.0

    blobs = four_blobs(seed=seed).to(device)
    temperature = 0.3 * critical_temperature(blobs)
    away = blobs.mean(0) - 8 * torch.eye(2, dtype=torch.float64, device=device)[1]
    start = torch.cat([blobs[[0, 1, 3]], away[None]])  # three blobs have a prototype; the fourth prototype is far off
    ends = {detach: follow(blobs, start, temperature, "L_q", detach, steps=300)[-1] for detach in (True, False)}
    far = {detach: (end[3] - blobs.mean(0)).norm().item() / 8 for detach, end in ends.items()}
    nearest = dense.squared_distances(blobs, ends[False]).argmin(-1)
    lost = dict.fromkeys(ends, 0)
    banks = [draw_prototypes(blobs, 8, generator=torch.Generator().manual_seed(100 * seed + i)) for i in range(6)]
    for detach in lost:
        path = follow(blobs, torch.stack(banks), temperature / 1.5, "L_q", detach, steps=300)
        first, last = (in_use(blobs, path[step]) for step in (0, -1))
        lost[detach] = (first & ~last).sum().item()
    return [
        Evidence("relative error of the formula", error.item(), at_most=ROUNDING),
        Evidence("largest |sum of a token's weights - 1|", (weights.sum(-1) - 1).abs().max().item(), at_most=ROUNDING),
        Evidence("smallest weight", weights.min().item(), at_most=-0.01),
        Evidence(
            "weights whose sign is not that of L_n + T - d",
            ((weights > 0) != (distances < limit)).sum().item(),
            None,
            0,
        ),
        Evidence("a prototype far from all tokens, q attached: final / initial distance", far[False], at_least=1),
        Evidence("the same: tokens nearest to it at the end", (nearest == 3).sum().item(), at_most=0),
        Evidence("the same start, q detached: final / initial distance", far[True], at_most=0.5),
        Evidence("of 48 prototypes, fall out of use: attached minus detached", lost[False] - lost[True], at_least=1),
    ]
