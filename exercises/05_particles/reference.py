"""Set 5: what its checks compare with. Written with loops, numpy and quadrature, apart from the library."""

import copy
import functools
import math
import random

import numpy as np
import torch

from exercises.checks import Check, Mistake

WORDS = ["healthy", "projection", "step", "unit", "rows"]
ROWS = 13  # of a log


def instance(rng) -> dict:
    """The numbers of a course."""
    return copy.deepcopy(drawn(rng.getrandbits(64)))


@functools.lru_cache(256)
def drawn(seed):
    """The instance of this seed: drawn until every mistake can be told from the truth."""
    rng = random.Random(seed)
    while True:
        pair = {
            "beta": round(rng.uniform(2.8, 3.9), 2),
            "degrees": rng.randint(104, 128),
            "sizes": (rng.randint(2, 4), rng.randint(7, 11)),
        }
        if apart([lifetime(pair), *(mistake.gives(pair) for mistake in LIFETIME)], 0.08):
            break
    wide = rng.randint(115, 127)  # from beta = 4 on the raw lifetime grows at these angles
    stop = round(raw_lifetime(rng.uniform(7.0, 9.5), math.radians(wide)), 2)
    runs = {}
    for name, word in zip("ABCDE", rng.sample(WORDS, 5)):
        beta, log = round(rng.uniform(2.1, 3.1), 2), None
        while log is None:
            log = written(word, beta, rng.randrange(10**6))
        runs[name] = {column: list(values) for column, values in log}
    return pair | {"late_degrees": wide, "raw_stop": stop, "runs": runs}


def apart(values, share):
    """Whether any two positive numbers differ by this share."""
    ranked = sorted(values)
    return all(high > (1 + share) * low for low, high in zip(ranked, ranked[1:]))


# ---------------------------------------------------------------- 1. the velocity


def velocity(tokens, beta, normalised=False, *, project=1.0, raw=False, axis=1, own=True, factor=1.0):
    """By loops. axis: over which the weights are divided by their sum."""
    x = tokens.double().numpy()
    n = len(x)
    weights = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if own or i != j:
                weights[i, j] = math.exp(beta * (float(x[i] @ x[j]) - (0 if raw else 1)))
    weights = weights / weights.sum(axis, keepdims=True) if normalised else weights / n
    out = np.zeros_like(x)
    for i in range(n):
        pull = sum(weights[i, j] * x[j] for j in range(n))
        out[i] = factor * (pull - project * float(pull @ x[i]) * x[i])
    return torch.from_numpy(out)


def some_cloud(generator, instance):
    n = int(torch.randint(5, 9, (1,), generator=generator))
    dim = n - 2 if n % 2 else n + 2  # never n
    x = torch.randn(n, min(dim, 6) + (min(dim, 6) == n), generator=generator, dtype=torch.float64) + 0.3
    beta = 0.7 + 1.5 * float(torch.rand(1, generator=generator))
    return {"tokens": torch.nn.functional.normalize(x, dim=-1), "beta": beta}


def cold_cloud(generator, instance):
    """Next to each other and very cold: exp(beta) is beyond float64."""
    n, dim = 7, 4
    x = 0.02 * torch.randn(n, dim, generator=generator, dtype=torch.float64)
    x[:, 0] += 1
    return {"tokens": torch.nn.functional.normalize(x, dim=-1), "beta": 900.0}


def sa(tokens, beta, **how):
    return velocity(tokens, beta, normalised=True, **how)


def too_large(tokens, beta, late):
    weights = torch.exp(beta * tokens @ tokens.mT)
    weights = weights * math.exp(-beta) if late else weights / weights.sum(-1, keepdim=True)
    pull = weights @ tokens / (len(tokens) if late else 1)
    return pull - (tokens * pull).sum(-1, keepdim=True) * tokens


PROJECTION = "projection forgotten"
PROJECTED = (
    "The velocities point out of the sphere. Take from each pull its part along the token itself: only the "
    "tangent part "
    "can move it."
)
USA = [
    Mistake(PROJECTION, PROJECTED, lambda tokens, beta: velocity(tokens, beta, project=0.0)),
    Mistake(
        "projection added",
        "The part along the token is added where it should be taken away: the velocities are not tangent.",
        lambda tokens, beta: velocity(tokens, beta, project=-1.0),
    ),
    Mistake(
        "raw unit",
        "These are velocities in the papers' time. In the library's unit the exponent has a -1, so that a token "
        "weighs "
        "itself with 1 whatever beta is.",
        lambda tokens, beta: velocity(tokens, beta, raw=True),
    ),
    Mistake(
        "rows normalised",
        "The weights of each token sum to 1: this is SA. USA divides by the number of tokens and by nothing else.",
        sa,
    ),
    Mistake(
        "sum for mean",
        "The pulls are summed. They are averaged: divide by the number of tokens.",
        lambda tokens, beta: velocity(tokens, beta, factor=len(tokens)),
    ),
    Mistake(
        "others counted",
        "This divides by the number of other tokens. A token's own pull is projected away, but it counts in n.",
        lambda tokens, beta: velocity(tokens, beta, factor=len(tokens) / (len(tokens) - 1)),
    ),
    Mistake(
        "1/beta kept",
        "The kernel has a 1/beta in front. Its gradient has not: the derivative of the exponent brings a beta.",
        lambda tokens, beta: velocity(tokens, beta, factor=1 / beta),
    ),
    Mistake(
        "sign",
        "The tokens repel each other. They climb the energy: the gradient, without a minus.",
        lambda tokens, beta: velocity(tokens, beta, factor=-1.0),
    ),
]
SA = [
    Mistake(PROJECTION, PROJECTED, lambda tokens, beta: sa(tokens, beta, project=0.0)),
    Mistake(
        "columns normalised",
        "The columns of the weights sum to 1. In attention it is each query, a row, that divides itself among "
        "the keys.",
        lambda tokens, beta: sa(tokens, beta, axis=0),
    ),
    Mistake("not normalised", "This is USA: the rows of the weights do not sum to 1.", velocity),
    Mistake(
        "itself left out",
        "A token does not attend to itself here. Its own pull is projected away, but its weight is part of the "
        "sum below.",
        lambda tokens, beta: sa(tokens, beta, own=False),
    ),
    Mistake(
        "divided twice",
        "The softmax is a mean already. There is no further 1/n.",
        lambda tokens, beta: sa(tokens, beta, factor=1 / len(tokens)),
    ),
]
COLD = [
    Mistake(
        "overflow",
        "At a large beta this has NaN or infinite entries: exp(beta) is more than a float holds. Subtract the 1 "
        "inside the exponent.",
        lambda tokens, beta: too_large(tokens, beta, late=True),
    ),
    *USA,
]

# ---------------------------------------------------------------- 2. the energy


def total(tokens, beta, own=True, raw=False):
    """The sum of exp(beta (<x_i, x_j> - 1)) over pairs."""
    rows = tokens.tolist()
    return sum(
        math.exp(beta * (sum(a * b for a, b in zip(x, y)) - (0 if raw else 1)))
        for i, x in enumerate(rows)
        for j, y in enumerate(rows)
        if own or i != j
    )


def energy(tokens, beta):
    return total(tokens, beta) / (2 * beta * len(tokens) ** 2)


ENERGY = [
    Mistake(
        "pairs i = j left out",
        "This averages over pairs of two different tokens. The energy has all n^2 pairs: a token and itself included.",
        lambda tokens, beta: total(tokens, beta, own=False) / (2 * beta * len(tokens) * (len(tokens) - 1)),
    ),
    Mistake(
        "itself left out",
        "The pairs of a token with itself are missing from the sum, though not from the n^2 below it.",
        lambda tokens, beta: total(tokens, beta, own=False) / (2 * beta * len(tokens) ** 2),
    ),
    Mistake(
        "half the pairs",
        "The sum runs over i < j. The half in front belongs to the sum over all i and j.",
        lambda tokens, beta: total(tokens, beta, own=False) / (4 * beta * len(tokens) ** 2),
    ),
    Mistake(
        "no half",
        "This is twice the energy. Every pair stands twice in the double sum, and the half in front makes up for it.",
        lambda tokens, beta: 2 * energy(tokens, beta),
    ),
    Mistake(
        "no 1/beta",
        "The kernel has a 1/beta. Without it the energy is right up to a factor that depends on beta, and so is "
        "its gradient.",
        lambda tokens, beta: beta * energy(tokens, beta),
    ),
    Mistake(
        "raw unit",
        "This is the energy in the papers' unit, exp(beta) times the library's.",
        lambda tokens, beta: total(tokens, beta, raw=True) / (2 * beta * len(tokens) ** 2),
    ),
    Mistake(
        "one n",
        "The double sum is divided by n, not by n^2.",
        lambda tokens, beta: len(tokens) * energy(tokens, beta),
    ),
    Mistake(
        "sign",
        "The tokens climb, so the energy grows as they meet: no minus.",
        lambda tokens, beta: -energy(tokens, beta),
    ),
]


def sums(tokens, beta):
    """Z_i, |v_i|^2 under SA, |v_i|^2 under USA."""
    x = tokens.numpy()
    z = np.array([np.mean([math.exp(beta * (float(a @ b) - 1)) for b in x]) for a in x])
    fast, slow = (velocity(tokens, beta, normalised).square().sum(-1).numpy() for normalised in (True, False))
    return z, fast, slow


def climb(tokens, beta):
    """The chain rule, by a difference quotient of the energy along SA."""
    v, step = sa(tokens, beta), 1e-5
    after, before = (torch.nn.functional.normalize(tokens + s * step * v, dim=-1) for s in (1, -1))
    return (energy(after, beta) - energy(before, beta)) / (2 * step)


CLIMB = [
    Mistake(
        "the law of USA",
        "This is the mean squared speed, the rate for the gradient flow. SA is not the gradient flow of this "
        "energy: each "
        "token's speed was divided by a number of its own.",
        lambda tokens, beta: float(sums(tokens, beta)[1].mean()),
    ),
    Mistake(
        "along USA",
        "This is the rate at which the energy rises along USA. The tokens move with the velocities of SA.",
        lambda tokens, beta: float(sums(tokens, beta)[2].mean()),
    ),
    Mistake(
        "factor n",
        "There is one division by n too few: in the mean of the weights, or in the mean over the tokens.",
        lambda tokens, beta: len(tokens) * climb(tokens, beta),
    ),
    Mistake(
        "Z below",
        "The mean of a token's weights is on the wrong side. SA has already divided the speed by it: which power "
        "of it is left when the gradient meets the velocity?",
        lambda tokens, beta: float((sums(tokens, beta)[1] / sums(tokens, beta)[0]).mean()),
    ),
    Mistake(
        "means multiplied",
        "The mean of a product is not the product of the means: each token's weights belong to its own speed.",
        lambda tokens, beta: float(sums(tokens, beta)[0].mean() * sums(tokens, beta)[1].mean()),
    ),
    Mistake(
        "raw unit",
        "The weights are in the papers' unit: their exponents lack the -1.",
        lambda tokens, beta: math.exp(beta) * climb(tokens, beta),
    ),
]

# ---------------------------------------------------------------- 3. clusters


def a_chain(generator, instance):
    """Tokens along a great circle, in random order: short gaps, gaps just below and just above the angle."""
    angle = 0.8 + 0.2 * float(torch.rand(1, generator=generator))
    dim = int(torch.randint(3, 6, (1,), generator=generator))
    above, far, short = [(1, 0, 3), (1, 1, 2), (3, 0, 0)][int(torch.randint(3, (1,), generator=generator))]
    gaps = [0.29 * angle] * short + [0.68 * angle] * 3 + [1.015 * angle] * above + [1.4 * angle] * far
    gaps = [gaps[i] for i in torch.randperm(len(gaps), generator=generator).tolist()]
    places = torch.tensor([0.0, *gaps], dtype=torch.float64).cumsum(0)
    frame = torch.linalg.qr(torch.randn(dim, 2, generator=generator, dtype=torch.float64))[0]
    x = torch.stack([places.cos(), places.sin()], -1) @ frame.T
    return {"tokens": x[torch.randperm(len(x), generator=generator)], "angle": angle}


def near(tokens, bound):
    """Whether the angle of two tokens is below a bound."""
    rows = tokens.numpy()
    return [[2 * math.asin(min(1, float(np.linalg.norm(a - b)) / 2)) < bound for b in rows] for a in rows]


def clusters(tokens, angle):
    linked, unseen, count = near(tokens, angle), set(range(len(tokens))), 0
    while unseen:
        count, reached = count + 1, [unseen.pop()]
        while reached:
            i = reached.pop()
            more = {j for j in unseen if linked[i][j]}
            unseen -= more
            reached += more
    return count


def leaders(tokens, angle):
    linked, found = near(tokens, angle), []
    for i in range(len(tokens)):
        if not any(linked[i][j] for j in found):
            found.append(i)
    return len(found)


def no_earlier(tokens, angle):
    linked = near(tokens, angle)
    return sum(not any(linked[i][:i]) for i in range(len(tokens)))


CLUSTERS = [
    Mistake(
        "first come",
        "This counts tokens that are near no cluster's first token. Chains are missing: a token joins if it is "
        "near any member.",
        leaders,
    ),
    Mistake(
        "earlier tokens only",
        "This counts tokens that are near no token before them. One that arrives late can join two groups to one.",
        no_earlier,
    ),
    Mistake(
        "distance for angle",
        "A straight distance is compared with an angle. Two unit vectors at the angle a are 2 sin(a/2) apart.",
        lambda tokens, angle: clusters(tokens, 2 * math.asin(angle / 2)),
    ),
    Mistake(
        "alone",
        "This counts tokens with nobody near them. Groups count, too, once each.",
        lambda tokens, angle: sum(sum(row) == 1 for row in near(tokens, angle)),
    ),
    Mistake(
        "neighbourhoods",
        "Two tokens of one chain can have different neighbours, so counting different neighbourhoods counts too many.",
        lambda tokens, angle: len({tuple(row) for row in near(tokens, angle)}),
    ),
    Mistake(
        "degrees",
        "The angle is in radians.",
        lambda tokens, angle: clusters(tokens, math.radians(angle)),
    ),
]

# ---------------------------------------------------------------- 4. lifetimes

CLOSE = 0.1


def integral(function, start, end, pieces=4000):
    """Simpson's rule."""
    places = np.linspace(start, end, 2 * pieces + 1)
    values = function(places)
    weights = np.ones(len(places))
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return float((weights * values).sum() * (end - start) / (6 * pieces))


def raw_lifetime(beta, angle):
    """From the angle to 0.1, in raw time."""
    return integral(lambda phi: np.exp(-beta * np.cos(phi)) / np.sin(phi), CLOSE, angle)


def told(instance):
    return instance["beta"], math.radians(instance["degrees"])


def lifetime(instance):
    beta, angle = told(instance)
    return raw_lifetime(beta, angle) * math.exp(beta)


def share(instance, light):
    part = instance["sizes"][0] / sum(instance["sizes"])
    return part if light else 1 - part


def under_sa(instance):
    beta, angle = told(instance)
    a, b = share(instance, True), share(instance, False)

    def slowness(phi):
        w = np.exp(beta * (np.cos(phi) - 1))
        return 1 / (w * np.sin(phi) * (b / (a + b * w) + a / (b + a * w)))

    return integral(slowness, CLOSE, angle)


def sines_left_out(instance):
    beta, angle = told(instance)
    return integral(lambda phi: np.exp(beta * (1 - np.cos(phi))), CLOSE, angle)


LIFETIME = [
    Mistake(
        "raw unit",
        "This is the time in the papers' unit. The library's clock runs faster, by the exponential of beta.",
        lambda instance: lifetime(instance) * math.exp(-instance["beta"]),
    ),
    Mistake(
        "converted twice",
        "The time is in the library's unit already where `dl.integrate` or the integral with the -1 gives it. It "
        "is converted once more.",
        lambda instance: lifetime(instance) * math.exp(instance["beta"]),
    ),
    Mistake(
        "the light one stands",
        "Only the heavy cluster moves here. Both do, and their speeds add up.",
        lambda instance: lifetime(instance) / share(instance, True),
    ),
    Mistake(
        "the heavy one stands",
        "Only the light cluster moves here. Both do, and their speeds add up.",
        lambda instance: lifetime(instance) / share(instance, False),
    ),
    Mistake(
        "rows normalised",
        "This is the time under SA. Its rows are normalised: the clusters attract each other with other speeds. "
        "Take USA.",
        under_sa,
    ),
    Mistake(
        "large beta assumed",
        "This is the limit formula for large beta. At this beta it is too far off: simulate, or take the whole "
        "integral.",
        lambda instance: (
            math.exp(told(instance)[0] * (1 - math.cos(told(instance)[1])))
            / (told(instance)[0] * math.sin(told(instance)[1]) ** 2)
        ),
    ),
    Mistake(
        "projection forgotten",
        "The sine is missing: a pull towards a point at the angle phi has the tangent part sin(phi).",
        sines_left_out,
    ),
    Mistake(
        "twice as fast",
        "Each cluster pulls here as if all tokens were in it. Its pull counts by its share of the tokens: what do "
        "the two speeds then add up to?",
        lambda instance: lifetime(instance) / 2,
    ),
]


def root(function, low, high):
    """Where an increasing function is 0."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return low


def late(instance):
    return math.radians(instance["late_degrees"])


def outlives(instance):
    return root(lambda beta: raw_lifetime(beta, late(instance)) - instance["raw_stop"], 4.0, 14.0)


OUTLIVES = [
    Mistake(
        "units mixed",
        "A lifetime in the library's unit is compared with a stop in the raw one. Convert one of the two.",
        lambda instance: root(
            lambda beta: raw_lifetime(beta, late(instance)) * math.exp(beta) - instance["raw_stop"], 0.01, 14.0
        ),
    ),
    Mistake(
        "exponent only",
        "This takes the lifetime for a pure exponential of beta. The factor in front depends on beta, too.",
        lambda instance: math.log(instance["raw_stop"]) / -math.cos(late(instance)),
    ),
    Mistake(
        "large beta assumed",
        "This is the answer of the limit formula for large beta. At this beta it is not exact enough: take the "
        "whole integral.",
        lambda instance: root(
            lambda beta: (
                math.exp(-beta * math.cos(late(instance))) / (beta * math.sin(late(instance)) ** 2)
                - instance["raw_stop"]
            ),
            4.0,
            14.0,
        ),
    ),
]

# ---------------------------------------------------------------- 5. five logs


def pulls(x, beta, rows, project):
    weights = np.exp(beta * (x @ x.T - 1))
    pull = weights @ x / (weights.sum(1, keepdims=True) if rows else len(x))
    return pull - (pull * x).sum(1, keepdims=True) * x if project else pull


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def move(x, beta, h, rows=False, project=True):
    a = pulls(x, beta, rows, project)
    b = pulls(x + h / 2 * a, beta, rows, project)
    c = pulls(x + h / 2 * b, beta, rows, project)
    d = pulls(x + h * c, beta, rows, project)
    return x + h / 6 * (a + 2 * b + 2 * c + d)


@functools.lru_cache(4096)
def written(word, beta, seed):
    """The log of a run, as pairs (column, values); None where this start shows too little."""
    draw = np.random.default_rng(seed)
    x = unit(draw.standard_normal((10, 3)) + np.array([0.7, 0, 0]))
    how = {"rows": word == "rows", "project": word != "projection"}

    def level(x):
        return float(np.exp(beta * (x @ x.T - 1)).mean())

    states, h = [x], float(draw.uniform(0.06, 0.12)) * (0.1 if word == "projection" else 1.0)
    if word == "step":
        h = float(draw.uniform(2.4, 2.9))
        for _ in range(ROWS - 1):
            states.append(unit(states[-1] + h * pulls(states[-1], beta, False, True)))
    else:
        while len(states) < 400:
            x = move(states[-1], beta, h, **how)
            x = unit(x) if how["project"] else x
            within = np.linalg.norm(x, axis=1).max() < 1.4 and (level(x) < 0.72 or not how["project"])
            if not within:  # NaN included
                break
            states.append(x)
        every = (len(states) - 1) // (ROWS - 1)
        if every < 1 or len(states) == 400:
            return None
        states, h = states[::every][:ROWS], h * every
    found = [level(x) / (2 * beta) for x in states]
    speeds = [float((pulls(x, beta, **how) ** 2).sum(1).mean()) for x in states]
    lengths = [float(np.linalg.norm(x, axis=1).max()) for x in states]
    log = {"time": [i * h for i in range(ROWS)], "length": lengths, "energy": found, "speed2": speeds}
    if word == "unit":
        log["time"] = [t * math.exp(-beta) for t in log["time"]]
    rises, areas = np.diff(found), (np.array(speeds[1:]) + speeds[:-1]) / 2 * np.diff(log["time"])
    ratio = np.maximum(rises / areas, 1e-9)
    shows = {
        "healthy": abs(np.log(ratio)).max() < 0.03,
        "unit": abs(np.log(ratio) - beta).max() < 0.03,
        "rows": ratio.max() < 0.85 and ratio.max() > 1.2 * ratio.min(),
        "projection": lengths[-1] > 1.2 and (rises > 0).all(),
        "step": (rises < -0.02 * max(found)).sum() >= 2,
    }
    if not shows[word]:
        return None
    return tuple((column, tuple(float(f"{v:.6g}") for v in values)) for column, values in log.items())


def ratios(log):
    """The rise of the energy over the area below the mean squared speed, row by row."""
    areas = (np.array(log["speed2"][1:]) + log["speed2"][:-1]) / 2 * np.diff(log["time"])
    return np.diff(log["energy"]) / areas


def diagnosis(instance):
    found = {}
    for name, log in instance["runs"].items():
        ratio = ratios(log)
        if max(log["length"]) > 1.01:
            found[name] = "projection"
        elif min(np.diff(log["energy"])) < 0:
            found[name] = "step"
        elif abs(ratio - 1).max() < 0.05:
            found[name] = "healthy"
        else:
            found[name] = "unit" if ratio.max() < 1.07 * ratio.min() else "rows"
    return found


def confused(one, other):
    swap = {one: other, other: one}
    return lambda instance: {name: swap.get(word, word) for name, word in diagnosis(instance).items()}


DIAGNOSIS = [
    Mistake(
        "a rise is enough",
        "The energy rises along the run that you call healthy, but not at the mean squared speed. It rises along "
        "SA, too: compare rates.",
        confused("healthy", "rows"),
    ),
    Mistake(
        "lengths not looked at",
        "In the run that you call healthy the tokens leave the sphere. The energy of a plain gradient rises at "
        "the mean "
        "squared speed on and off it.",
        confused("healthy", "projection"),
    ),
    Mistake(
        "clock not looked at",
        "In the run that you call healthy the energy rises by the same factor too fast, from the first row to "
        "the last. What is constant there?",
        confused("healthy", "unit"),
    ),
    Mistake(
        "unit and rows",
        "A clock in another unit changes all rates by one factor. Rows that are normalised change them by a "
        "factor that moves. "
        "You have the two exchanged.",
        confused("unit", "rows"),
    ),
    Mistake(
        "step and projection",
        "A step that is too long keeps the tokens on the sphere and lets the energy fall; without the projection "
        "they leave it. "
        "You have the two exchanged.",
        confused("step", "projection"),
    ),
    Mistake(
        "a falling energy",
        "The energy falls in the run that you call healthy. Along a flow it cannot: it is the step.",
        confused("healthy", "step"),
    ),
    Mistake(
        "step and rows",
        "The two runs whose rates do not fit are exchanged. In which of them does the energy fall?",
        confused("step", "rows"),
    ),
]


def other_clock(instance):
    words = diagnosis(instance)
    return next(log for name, log in instance["runs"].items() if words[name] == "unit")


def found_beta(instance):
    log = other_clock(instance)
    areas = (np.array(log["speed2"][1:]) + log["speed2"][:-1]) / 2 * np.diff(log["time"])
    return math.log((log["energy"][-1] - log["energy"][0]) / areas.sum())


BETA = [
    Mistake(
        "the factor itself",
        "This is the factor between the two clocks. Which function of beta is it?",
        lambda instance: math.exp(found_beta(instance)),
    ),
    Mistake(
        "logarithm to base 10",
        "The logarithm is to base 10. Take the natural one.",
        lambda instance: found_beta(instance) / math.log(10),
    ),
    Mistake(
        "upside down",
        "The ratio is upside down: a beta is positive.",
        lambda instance: -found_beta(instance),
    ),
    Mistake(
        "consensus assumed",
        "This takes the last energy for the largest there is. The run stops long before consensus.",
        lambda instance: 1 / (2 * other_clock(instance)["energy"][-1]),
    ),
]
MODELS = ("Kernel", "sums")  # what every kernel is made of
CHECKS = {
    "velocity": Check(velocity, some_cloud, USA, MODELS),
    "normalised": Check(sa, some_cloud, SA, MODELS),
    "cold": Check(velocity, cold_cloud, COLD, MODELS),
    "energy": Check(energy, some_cloud, ENERGY, MODELS),
    "climb": Check(climb, some_cloud, CLIMB, trials=4),
    "clusters": Check(clusters, a_chain, CLUSTERS, ("cluster_count",), trials=8),
    "lifetime": Check(lifetime, mistakes=LIFETIME, tolerance=0.02),
    "outlives": Check(outlives, mistakes=OUTLIVES, tolerance=0.004),
    "diagnosis": Check(diagnosis, mistakes=DIAGNOSIS),
    "healthy": Check(lambda instance: [name for name, word in diagnosis(instance).items() if word == "healthy"]),
    "beta": Check(found_beta, mistakes=BETA, tolerance=0.03),
}
