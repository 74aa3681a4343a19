"""D11 to D14: what a small ratio of learning rates buys, and what it does not."""

import math
from functools import partial

import torch

from ..experiments import timescales, transition
from ..experiments.cost import exponent
from ..measures import spread, tracking_distance
from ..prototypes import dense
from ..prototypes.loss import critical_temperature
from .registry import Evidence, claim

DEAD = 0.01  # of the token variance at the start
ROUNDING = 1e-12


def decades(low, high, count=5):
    """`count` ratios from 10^low to 10^high, evenly spaced on the log scale."""
    return torch.logspace(low, high, count, dtype=torch.float64).tolist()


@claim(
    "D11",
    "Prototypes that learn fast enough track a slowly trained encoder, by Tikhonov's theory (abstract: joint training "
    "is stable under a practical timescale condition).",
    "conditional",
    "On an isolated, exponentially stable branch, from its basin, after an initial layer and over a finite slow time, "
    "the distance from it is O(eps), with the constant |H^-1 dP*/dtau|. At a critical temperature the Hessian H is "
    "singular and two prototypes lag by eps^(1/4); a dead prototype is still in its initial layer, which lasts about "
    "exp(d/T), and has not moved.",
    6,
)
def tracking(seed, device):
    tokens = transition.four_blobs(100, seed).to(device)
    bank = timescales.settle(tokens, tokens[:4], 1.0)  # one prototype in each blob
    slow, path = decades(-3.5, -1.5), timescales.turn_and_stretch
    encoders, banks = timescales.track(tokens, bank, 1.0, slow, path)
    branch = timescales.lags(tokens, encoders, banks, 1.0)
    predicted = slow[0] * timescales.first_order_lag(tokens, banks[0], 1.0, path, 1.0)

    joint = decades(-4, -2)
    encoders, banks = timescales.track(tokens, bank, 1.0, joint, span=0.25)
    trained = timescales.lags(tokens, encoders, banks, 1.0)

    centred, end = tokens - tokens.mean(0), 0.5**0.5
    half = 0.5 * critical_temperature(centred, detach_assignment=True).item()
    lead = torch.linalg.eigh(centred.mT @ centred)[1][:, -1]
    pair = timescales.settle(centred, torch.stack([lead, -lead]), half)
    _, banks = timescales.track(centred, pair, half, slow, partial(timescales.shrink, end=end))
    crossing = [tracking_distance(bank, torch.zeros_like(bank)) for bank in banks]

    fast = decades(-3, -1, 3)
    extra = torch.cat([bank, bank.new_tensor([[0.0, 12.0]])])
    encoders, banks = timescales.track(tokens, extra, 1.0, fast, path)
    moved = (banks[:, -1] - extra[-1]).norm(dim=-1).max().item()
    weight = dense.assign(tokens @ encoders[0].mT, banks[0], 1.0)[:, -1].max().item()
    return [
        Evidence("exponent of eps on an isolated branch", exponent(slow, branch), 0.9, 1.1),
        Evidence("smallest lag / (eps |H^-1 dP*/dtau|)", branch[0] / predicted, 0.95, 1.05),
        Evidence("exponent, encoder trained on the same loss", exponent(joint, trained), 0.9, 1.1),
        Evidence("exponent at the critical temperature", exponent(slow, crossing), 0.2, 0.3),
        Evidence(
            "smallest lag there / leading order",
            crossing[0] / timescales.crossing_lag(tokens, half, slow[0], end),
            0.9,
            1.1,
        ),
        Evidence("largest weight of the dead prototype", weight, at_most=1e-9),
        Evidence("how far it has moved by itself, any eps", moved, at_most=1e-6),
    ]


def largest_rise(tokens, ratios, steps, lr):
    """Of F in one step, T = 1: bank and linear encoder descend it together, one run for each eps; q detached."""
    eps = torch.tensor(ratios, dtype=torch.float64, device=tokens.device)
    eye, heat = torch.eye(2, dtype=torch.float64, device=tokens.device), torch.ones_like(eps)
    many, eyes, banks = (one.repeat(len(eps), 1, 1) for one in (tokens, eye, tokens[:4]))
    run = timescales.joint_descent(many, [eyes], banks, heat, eps, heat > 0, steps, lr)
    energies = [-torch.logsumexp(-dense.squared_distances(z, bank), -1).mean(-1) for _, z, bank in run]
    return torch.stack(energies).diff(dim=0).max().item()


@claim(
    "D12",
    "eps <= 0.1 is stable; at eps = 1 the prototypes collapse (summary).",
    "conditional",
    "Gradient flow on one common potential descends at every eps, and with L_q as the only loss total collapse is its "
    "global minimum. With q detached eps is a speed: which values pass depends on when one looks. With q attached it "
    "decides a race at the start, so the threshold depends on the size of the start and on the temperature.",
    6,
)
def eps_is_a_speed(seed, device):
    look = partial(timescales.ablation, device=device)
    frame = look([seed], inits=["small"])
    left = frame.set_index(["q", "eps", "step"])["token variance"]
    many = range(10 * seed, 10 * seed + 10)
    eager = look(many, ratios=[1.0], horizons=[300], assignments=["attached"])
    alive = (eager["token variance"] > DEAD).groupby(eager["init"]).mean()

    tokens = transition.four_blobs(100, seed).to(device)
    rise = largest_rise(tokens, [1.0, 0.1, 0.01], 300, lr=0.1)
    cold, warm, tiny = (
        (timescales.race(seed, [heat], decades(-2, 0, 9), size)[0] > DEAD).double().mean().item()
        for heat, size in ((0.05, 0.1), (0.2, 0.1), (0.05, 0.001))
    )
    return [
        Evidence("q detached: largest rise of F in a step, any eps", rise, at_most=ROUNDING),
        Evidence("30 steps, eps = 1: token variance left", left["detached", 1.0, 30], at_most=DEAD),
        Evidence("30 steps, eps = 0.1", left["detached", 0.1, 30], at_least=DEAD),
        Evidence("300 steps, eps = 0.1", left["detached", 0.1, 300], at_most=DEAD),
        Evidence("300 steps, eps = 0.01", left["detached", 0.01, 300], at_least=DEAD),
        Evidence("3000 steps, eps = 0.01", left["detached", 0.01, 3000], at_most=DEAD),
        Evidence("q attached: 3000 steps, eps = 1", left["attached", 1.0, 3000], at_most=DEAD),
        Evidence("q attached: 3000 steps, eps = 0.01", left["attached", 0.01, 3000], at_least=DEAD),
        Evidence("q attached, eps = 1: share alive, small starts", alive["small"], at_most=0.5),
        Evidence("q attached, eps = 1: share alive, starts drawn from the tokens", alive["data"], at_least=0.5),
        Evidence("q attached: share of eps in [.01, 1] alive, 0.05 T_c minus 0.2 T_c", cold - warm, at_least=0.2),
        Evidence("the same at 0.05 T_c, start 0.1 minus start 0.001", cold - tiny, at_least=0.05),
    ]


@claim(
    "D13",
    "A condition on the learning rates keeps joint training stable (abstract: explicit learning-rate constraints).",
    "conditional",
    "With q detached and a linear encoder F descends if lr (1 + eps lambda) <= 1: stability, not health. A guard for "
    "every eps: if R + alpha L_q, with a task loss R that reads tokens through the bank, does not rise and is once "
    "below the best R of a single prototype, neither tokens nor bank collapse totally any more. At alpha = 10 eps "
    "and the seed decide whether and when it gets there. A frozen encoder saves the tokens, not a bank above T_c. "
    "Learning rates are timescales up to curvature only, and with Adam not even that.",
    6,
)
def what_guards(seed, device):
    record = timescales.guarded(seed, (0.1, 10.0), (1.0, 0.1, 0.01), steps=300, device=device)
    energy, best = record["energy"], record["best"]
    certified = energy < best  # (S, alpha, eps)
    since = certified.int().cummax(0).values.bool()  # from then on
    margin = torch.where(since, best - record["task"], math.inf)[:, 0].min().item()
    floor = (best.sqrt() - energy.clamp_max(best).sqrt()) / (2 * record["gain"])  # 2 = sqrt(K)
    above = torch.where(since, record["spread"] - floor, math.inf).min().item()
    left = record["variance"][-1] / record["variance"][0]

    tokens = transition.four_blobs(100, seed).to(device)
    limit = 1 / (1 + torch.linalg.eigvalsh(tokens.mT @ tokens / len(tokens))[-1].item())  # for eps = 1
    within, beyond = (largest_rise(tokens, [1.0], 50, factor * limit) for factor in (1, 2))
    hot = transition.descend(tokens, [1.5], steps=300, detach_assignment=True, seed=seed)[0]

    counts = torch.tensor([100, 50, 20, 10], device=device)
    centres = torch.stack([tokens[k::4].mean(0) for k in range(4)])
    tight = centres.repeat_interleave(counts, 0)
    plain = timescales.half_lives(tight, centres, 0.1, partial(torch.optim.SGD, lr=0.02))
    adam = timescales.half_lives(tight, centres, 0.1, partial(torch.optim.Adam, lr=0.01))
    expected = [math.log(0.5) / math.log(1 - 0.04 * count / 180) for count in counts.tolist()]
    worst = max(abs(one / two - 1) for one, two in zip(plain, expected))
    return [
        Evidence("q detached, eps = 1, lr (1 + lambda) = 1: largest rise of F in a step", within, at_most=ROUNDING),
        Evidence("the same with twice that lr", beyond, at_least=0.1),
        Evidence("largest rise of R + alpha L_q in a step", energy.diff(dim=0).max().item(), at_most=ROUNDING),
        Evidence("alpha = 0.1: eps that end certified, of 3", certified[-1, 0].sum().item(), at_least=3),
        Evidence("alpha = 10: certified at eps 0.1 and 0.01, of 2", certified[-1, 1, 1:].sum().item()),
        Evidence("alpha = 0.1: smallest (best of one prototype - R) ever since", margin, at_least=0),
        Evidence("spread of a certified bank minus its proved floor, smallest", above, at_least=0),
        Evidence("alpha = 0.1: smallest token variance left", left[0].min().item(), at_least=DEAD),
        Evidence("alpha = 10, eps = 1: E / best of one prototype", (energy[-1, 1, 0] / best).item(), at_least=1),
        Evidence("alpha = 10, eps = 1: token variance left", left[1, 0].item(), at_most=DEAD),
        Evidence("frozen encoder, 1.5 T_c: spread of the bank in token sd", spread(hot, tokens), at_most=1e-6),
        Evidence("largest |half-life / (log 2 / (2 lr mean q)) - 1|", worst, at_most=0.1),
        Evidence("half-lives, mass 1 to mass 10: plain descent", plain[-1] / plain[0], 9, 11),
        Evidence("the same with Adam", adam[-1] / adam[0], at_most=2),
    ]


@claim(
    "D14",
    "Prototypes that stay apart tell you that the model is healthy (popular summary).",
    "fails",
    "The encoder can die alone: all tokens end on one prototype, the loss is next to 0, and the others stop where they "
    "are by then, because their pull is of size exp(-D/T). Watch the token variance and the usage by argmax as well.",
    6,
)
def apart_is_not_healthy(seed, device, draws=80):
    seeds = range(draws * seed, draws * (seed + 1))
    options = dict(ratios=[1.0], horizons=[1000], temperature=0.3, inits=["data"], assignments=["detached"])
    frame = timescales.ablation(seeds, **options, device=device)
    fooled = frame[(frame["token variance"] < 1e-3) & (frame["spread"] > 0.2)]
    return [
        Evidence("share of starts with a dead encoder and a bank apart", len(fooled) / len(frame), at_least=0.5),
        Evidence("their spread at the end, token sd at the start, median", fooled["spread"].median(), at_least=0.3),
        Evidence("their token variance, of that at the start, median", fooled["token variance"].median(), at_most=1e-6),
        Evidence("their L_q, median", fooled["loss"].median(), at_most=1e-6),
        Evidence("their usage by argmax, times K, median", 4 * fooled["usage"].median(), at_most=1),
    ]
