"""D6, D7: below which temperature a collapsed bank leaves collapse, and when prototypes that coincide split."""

import torch

from ..experiments.transition import (
    cascade,
    descend,
    four_blobs,
    measured_critical,
    quasistatic,
    rare_cluster,
    three_clouds,
)
from ..measures import spread, token_variance
from ..prototypes import dense
from ..prototypes.loss import annealing_potential, critical_temperature, splitting_temperatures
from ..prototypes.training import draw_prototypes, schedule
from .registry import Evidence, claim

BINDINGS = {"detached": True, "attached": False}


@claim(
    "D6",
    "The exact decomposition ensures that prototypes remain distinct (abstract).",
    "conditional",
    "The temperature decides. A bank near collapse at the tokens' mean leaves it below T_c and returns to it above, "
    "T_c = 2 lambda_max(C) with q detached and 4 lambda_max(C) with q attached. Farther away it need not return: with "
    "skewed tokens or a rare cluster a split bank can persist above T_c, and can have the lower F. With q detached, "
    "none stays split above half the squared diameter of the tokens.",
    5,
)
def transition(seed, device):
    tokens, ratios = four_blobs(seed=seed).to(device), [0.8, 0.95, 1.05, 1.2]
    clouds, evidence = three_clouds(seed, device), []
    for name, detach in BINDINGS.items():
        banks = descend(tokens, ratios, steps=600, detach_assignment=detach, seed=seed)
        ends = [spread(bank, tokens) for bank in banks]
        evidence += [
            Evidence(f"{name}: least final spread, 0.8 and 0.95 T_c, in token sd", min(ends[:2]), at_least=0.1),
            Evidence(f"{name}: largest final spread, 1.05 and 1.2 T_c", max(ends[2:]), at_most=1e-6),
        ]
        for kind, cloud in clouds.items():
            measured = measured_critical(cloud, detach, seed=seed)
            ratio = measured / critical_temperature(cloud, None, detach).item()
            evidence.append(Evidence(f"{name}: T_c measured / formula, {kind}", ratio, at_least=0.97, at_most=1.03))
    return [*evidence, *beyond(seed, device, clouds["exponential, D = 5"][:, :1])]


def beyond(seed, device, skewed):
    """Above T_c, q detached: a rare cluster, skewed tokens, and the bound above which nothing stays split."""
    tokens = rare_cluster(seed=seed).to(device)
    critical = critical_temperature(tokens, None, detach_assignment=True).item()
    far = torch.stack([tokens[10:].mean(0)] * 3 + [tokens[:10].mean(0)])  # three on the bulk, one on the 2%
    near = tokens.mean(0).repeat(4, 1)
    split, returned = (quasistatic(tokens, bank, [3 * critical], seed=seed)[0] for bank in (far, near))
    bound = 1.02 * torch.cdist(tokens, tokens).square().max().item() / 2
    widest = [tokens[tokens[:, 0].argsort()[[0, 1, -2, -1]]], far]
    ends = [spread(quasistatic(tokens, bank, [bound], noise=1e-6, seed=seed)[0], tokens) for bank in widest]

    temperature = 1.02 * critical_temperature(skewed, None, detach_assignment=True).item()
    generator, lowest = torch.Generator().manual_seed(seed), float("inf")
    for _ in range(4):
        bank = draw_prototypes(skewed, 4, generator=generator)
        bank = quasistatic(skewed, bank, [temperature], seed=seed)[0]
        lowest = min(lowest, annealing_potential(skewed, bank, temperature).item() - token_variance(skewed))
    return [
        Evidence("a rare cluster (2%), 3 T_c: spread, started split", spread(split, tokens), at_least=0.5),
        Evidence("the same, started next to collapse", spread(returned, tokens), at_most=1e-3),
        Evidence("skewed tokens, 1.02 T_c: F of a split bank minus F at collapse", lowest, at_most=-1e-6),
        Evidence("the rare cluster, 1.02 diam^2/2: largest spread, started split", max(ends), at_most=1e-6),
    ]


@claim(
    "D7",
    "Prototypes that coincide exactly get identical gradients. Where the bank is at rest and q is held fixed, noise "
    "parts a group at p if and only if T < 2 lambda_max(sum_n a_n y_n y_n^T) / sum_n a_n, with a_n the weight that "
    "token n gives the group and y_n = z_n - p, both at this same T (Rose 1998; the form with q attached is ours).",
    "holds",
    "In exact arithmetic coincidence is never left without noise, and T < T_c only says: not all K together. The right "
    "side moves with T, so this is a test at each T. Away from rest it is the sign of the Hessian on relative "
    "displacements of the group, and it can change more than once.",
    5,
)
def twins(seed, device):
    tokens = four_blobs(100, seed).to(device)
    bank = draw_prototypes(tokens, 4, generator=torch.Generator().manual_seed(seed))
    critical = critical_temperature(tokens, None, detach_assignment=True).item()
    bank = quasistatic(tokens, bank, [0.1 * critical], seed=seed)[0]  # at rest
    cool = (critical * schedule(60, 1.2, 0.1)).tolist()  # eight prototypes, led slowly from collapse
    log = cascade(tokens, quasistatic(tokens, tokens.mean(0).repeat(8, 1), cool, seed=seed), cool)
    steps = log.index[log["distinct"].diff() > 0]
    ahead = [log["next split"][i - 1] / log["temperature"][i - 1] for i in steps]  # of the last bank before each split
    within = [log["next split"][i - 1] / log["temperature"][i] for i in steps]
    evidence = [
        Evidence("splits seen while cooling from 1.2 to 0.1 T_c, at rest", len(steps), at_least=2),
        Evidence("largest predicted T of a split / last T before it", max(ahead), at_most=1.03),
        Evidence("smallest predicted T of a split / first T after it", min(within), at_least=0.97),
    ]
    for name, detach in BINDINGS.items():
        temperatures = torch.logspace(-2, 0, 120, dtype=torch.float64) * (1 if detach else 2) * critical
        differences, changes, wrong = [], 0, 0
        for index in range(len(bank)):
            base = torch.cat([bank, bank[index : index + 1]])
            limits = [splitting_temperatures(tokens, base, t, None, detach)[index].item() for t in temperatures]
            above = temperatures > torch.tensor(limits, dtype=torch.float64)
            for step in (above[1:] != above[:-1]).nonzero().flatten().tolist():  # between two neighbours on the grid
                changes += 1
                for place in (step, step + 1):
                    stays = least_curvature(tokens, base, index, temperatures[place].item(), detach) > 0
                    wrong += stays != above[place].item()
            differences.append(difference(tokens, base, index, 0.2 * critical, detach))
        evidence += [
            Evidence(f"{name}: largest relative difference of twins' gradients", max(differences), at_most=1e-9),
            Evidence(f"{name}: predicted changes of stability, to within 4%", changes, at_least=2),
            Evidence(f"{name}: signs of the Hessian beside them that disagree", wrong, at_most=0),
        ]
    return evidence


def least_curvature(tokens, base, index, temperature, detach):
    """Smallest eigenvalue of the Hessian as prototype `index` of the bank moves by s and its twin, the last, by -s."""
    sides = torch.zeros_like(base)
    sides[index], sides[-1] = 1, -1

    def energy(shift):
        if detach:
            return dense.free_energy(tokens, base + sides * shift, temperature)
        return dense.decompose(tokens, base + sides * shift, temperature).total

    hessian = torch.autograd.functional.hessian(energy, torch.zeros_like(base[0]))
    return torch.linalg.eigvalsh(hessian)[0].item()


def difference(tokens, base, index, temperature, detach):
    """|g_i - g_last| / |g|, g the gradient of L_q, of a prototype and its twin."""
    leaf = base.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(dense.decompose(tokens, leaf, temperature, None, detach).total, leaf)
    return ((gradient[index] - gradient[-1]).norm() / gradient.norm()).item()
