"""Set 6: what its checks compare with. Written with loops, numpy and sums over a grid, apart from the library."""

import copy
import functools
import math
import random

import numpy as np
import torch

from exercises.checks import Check, Mistake

PROFILES = ["positive", "mixed", "negative mode", "first", "third", "deep"]
COUPLINGS = ["any", "plain", "single", "never"]  # "plain": any, and no negative coupling of different labels


def instance(rng) -> dict:
    """The numbers of a course."""
    return copy.deepcopy(drawn(rng.getrandbits(64)))


@functools.lru_cache(256)
def drawn(seed):
    """The instance of this seed: drawn until every mistake can be told from the truth."""
    rng = random.Random(seed)
    while True:
        gauge = {"seed": rng.randrange(10**6), "prompts": rng.randint(4, 6), "each": 2}
        gauge["beta"] = round(rng.uniform(0.8, 1.2), 2)
        met = settled(*gauge.values()) is not None
        if met and apart({"gauge": gauge}, (common, COMMON), (missed, MISSED), (turned, TURNED)):
            break
    while True:
        mean = round(rng.choice([-1, 1]) * rng.uniform(0.08, 0.3), 2)
        ring = {"mean": mean, "beta": round(balance(mean) * rng.uniform(1.2, 2.4), 2)}
        if apart({"ring": ring}, (threshold, THRESHOLD), (height, HEIGHT)):
            break
    profiles = {name: profile(word, rng) for name, word in zip("ABCDEF", rng.sample(PROFILES, 6))}
    order, couplings = rng.sample(COUPLINGS, 4), {}
    while not (couplings and apart({"couplings": couplings}, (classes, CLASSES))):
        couplings = {name: coupling(word, rng.randrange(10**6)) for name, word in zip("PQRS", order)}
    return {"gauge": gauge, "ring": ring, "profiles": profiles, "couplings": couplings}


def apart(instance, *checks):
    """Whether every mistake is far from the truth, and from the mistakes of other names."""
    for right, mistakes in checks:
        found = [("", right(instance))]
        for mistake in mistakes:
            try:
                found.append((mistake.name, mistake.gives(instance)))
            except ValueError:
                continue  # there is no such number
        for i, (name, a) in enumerate(found):
            for other, b in found[:i]:
                same = a == b if isinstance(a, dict) else np.abs(np.asarray(a) - np.asarray(b)).max() < 0.05
                if same and name != other:
                    return False
    return True


# ---------------------------------------------------------------- 1. variances


def labelled(generator, instance):
    """Labels of unequal sizes, in no order, that are no counts from 0."""
    sizes = (torch.randperm(4, generator=generator) + 2).tolist()
    names = (torch.randperm(9, generator=generator)[:4] + 3).tolist()
    labels = torch.tensor([name for name, size in zip(names, sizes) for _ in range(size)])
    labels = labels[torch.randperm(len(labels), generator=generator)]
    place = torch.randn(13, 5, generator=generator, dtype=torch.float64)
    x = torch.randn(len(labels), 5, generator=generator, dtype=torch.float64) + 1.2 * place[labels] + 0.8
    return {"tokens": torch.nn.functional.normalize(x, dim=-1), "labels": labels}


def groups(tokens, labels):
    return [
        tokens.numpy()[[j for j, other in enumerate(labels.tolist()) if other == one]] for one in set(labels.tolist())
    ]


def scatter(rows):
    return float(((rows - rows.mean(0)) ** 2).sum())


def within(tokens, labels):
    return sum(scatter(group) for group in groups(tokens, labels)) / len(tokens)


def overall(tokens, labels):
    return scatter(tokens.numpy()) / len(tokens)


def between(tokens, labels):
    return overall(tokens, labels) - within(tokens, labels)


def centres(tokens, labels):
    return np.array([group.mean(0) for group in groups(tokens, labels)])


WITHIN = [
    Mistake(
        "labels weighted equally",
        "This is the mean over the labels. The mean is over tokens: a label with more of them counts more.",
        lambda tokens, labels: float(np.mean([scatter(g) / len(g) for g in groups(tokens, labels)])),
    ),
    Mistake(
        "labels ignored",
        "This is the variance of all tokens about their common mean. Each token has the mean of its own label.",
        overall,
    ),
    Mistake(
        "n - 1",
        "Each label is divided by its count less one. These tokens are all there are, not a sample: divide by "
        "their number.",
        lambda tokens, labels: sum(scatter(g) * len(g) / (len(g) - 1) for g in groups(tokens, labels)) / len(tokens),
    ),
    Mistake(
        "per feature",
        "This is averaged over the features. A squared distance is their sum.",
        lambda tokens, labels: within(tokens, labels) / tokens.shape[-1],
    ),
    Mistake(
        "summed",
        "The labels' variances are summed, not averaged.",
        lambda tokens, labels: within(tokens, labels) * len(tokens),
    ),
    Mistake(
        "summed over labels",
        "The labels' variances are summed. Average over the tokens.",
        lambda tokens, labels: sum(scatter(g) / len(g) for g in groups(tokens, labels)),
    ),
    Mistake(
        "exchanged",
        "Within and between are exchanged.",
        between,
    ),
]
BETWEEN = [
    Mistake(
        "labels weighted equally",
        "This is the variance of the label means, each counted once. A mean counts as often as its label has tokens.",
        lambda tokens, labels: scatter(centres(tokens, labels)) / len(centres(tokens, labels)),
    ),
    Mistake(
        "labels ignored",
        "This is the variance of all tokens. Take that of the label means.",
        overall,
    ),
    Mistake("exchanged", "Within and between are exchanged.", within),
    Mistake(
        "K - 1",
        "This divides by the number of labels less one. Weight each label mean with its share of the tokens.",
        lambda tokens, labels: scatter(centres(tokens, labels)) / (len(centres(tokens, labels)) - 1),
    ),
    Mistake(
        "per feature",
        "This is averaged over the features. A squared distance is their sum.",
        lambda tokens, labels: between(tokens, labels) / tokens.shape[-1],
    ),
]


def some_counts(generator, instance):
    kinds = int(torch.randint(2, 9, (1,), generator=generator))
    return {"tokens": kinds + int(torch.randint(3, 60, (1,), generator=generator)), "kinds": kinds}


EXPECTED = [
    Mistake(
        "one",
        "This is the mean square distance from the centre of the sphere. A mean of few tokens lies away from the "
        "centre, towards each of them.",
        lambda tokens, kinds: 1.0,
    ),
    Mistake(
        "all tokens",
        "This is the variance about the mean of all tokens. Each label has a mean of its own, and each takes its part.",
        lambda tokens, kinds: 1 - 1 / tokens,
    ),
    Mistake(
        "one over K",
        "K labels do not make means of K tokens. How many tokens has a label, and what does its sum of squares lose?",
        lambda tokens, kinds: 1 - 1 / kinds,
    ),
    Mistake(
        "what is lost",
        "This is what the label means take away, not what is left.",
        lambda tokens, kinds: kinds / tokens,
    ),
    Mistake(
        "between",
        "This is the variance between the labels.",
        lambda tokens, kinds: (kinds - 1) / tokens,
    ),
    Mistake(
        "n - 1",
        "The variance is the mean over all n tokens, not over n - 1.",
        lambda tokens, kinds: (tokens - kinds) / (tokens - 1),
    ),
]

# ---------------------------------------------------------------- 2. rotary


def turns(labels, frequencies, dim, halves=False):
    """The matrices R(xi)."""
    out, planes = np.tile(np.eye(dim), (len(labels), 1, 1)), len(frequencies)
    for i, label in enumerate(labels.tolist()):
        for p, frequency in enumerate(frequencies.tolist()):
            a, b = (p, p + planes) if halves else (2 * p, 2 * p + 1)
            cos, sin = math.cos(label * frequency), math.sin(label * frequency)
            out[i, a, a], out[i, a, b], out[i, b, a], out[i, b, b] = cos, -sin, sin, cos
    return out


def rotary(
    tokens, labels, beta, frequencies, *, values="both", query=1, key=1, project=1, raw=False, rows=False, halves=False
):
    """By loops. values: both (R_i^T R_j x_j), forward (R_j x_j), twice (R_i R_j x_j), back (R_i^T x_j) or none."""
    x, R = tokens.numpy(), turns(labels, frequencies, tokens.shape[-1], halves)
    sides = {1: R, 0: np.tile(np.eye(x.shape[1]), (len(x), 1, 1)), -1: R.transpose(0, 2, 1)}
    out = np.zeros_like(x)
    for i in range(len(x)):
        q = sides[query][i] @ x[i]
        weights = [math.exp(beta * (float(q @ (sides[key][j] @ x[j])) - (0 if raw else 1))) for j in range(len(x))]
        pull = np.zeros(x.shape[1])
        for j, weight in enumerate(weights):
            value = x[j] if values in ("none", "back") else R[j] @ x[j]
            if values in ("both", "back"):
                value = R[i].T @ value
            elif values == "twice":
                value = R[i] @ value
            pull += weight * value / (sum(weights) if rows else len(x))
        out[i] = pull - project * float(pull @ x[i]) * x[i]
    return torch.from_numpy(out)


def positions(generator, instance):
    n = int(torch.randint(6, 9, (1,), generator=generator))
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return {
        "tokens": torch.nn.functional.normalize(x, dim=-1),
        "labels": 3 * torch.rand(n, generator=generator, dtype=torch.float64) + 0.5,
        "beta": 0.8 + float(torch.rand(1, generator=generator)),
        "frequencies": torch.tensor([1.0, 0.37], dtype=torch.float64) + 0.2 * torch.rand(2, generator=generator),
    }


def changed(**how):
    return lambda tokens, labels, beta, frequencies: rotary(tokens, labels, beta, frequencies, **how)


ONE_SIDE = (
    "Only one of the two tokens is rotated in the weights. Rotated queries and rotated keys together depend on "
    "the difference of "
    "two labels; one alone depends on where the counting began."
)
PROJECTED = (
    "The velocities are not tangent: take from each pull its part along its own token, the one that is not rotated."
)
SHARED = [
    Mistake("projection forgotten", PROJECTED, changed(project=0)),
    Mistake(
        "rotations one way only",
        "The angles of queries and keys add up: one of the two turns the other way. Both turn by their own "
        "label, the same way.",
        changed(key=-1),
    ),
    Mistake("raw unit", "The exponent has no -1: this is the papers' time.", changed(raw=True)),
    Mistake(
        "rows normalised", "Each row of weights sums to 1. This flow is unnormalised: divide by n.", changed(rows=True)
    ),
    Mistake(
        "halves",
        "The planes are paired as (p, p + P), as in some language models. Here they are (0, 1), (2, 3), ...",
        changed(halves=True),
    ),
]
ROTARY = [
    Mistake(
        "values not rotated",
        "The values are not rotated: that is the pattern of language models, not the gradient of the rotary energy.",
        changed(values="none"),
    ),
    Mistake(
        "not turned back",
        "The pull is a sum of rotated tokens, in the frame in which all are comparable. It is not turned back to "
        "the token that it pulls.",
        changed(values="forward"),
    ),
    Mistake(
        "turned twice",
        "The pull is turned once more the same way, where it is to be turned back.",
        changed(values="twice"),
    ),
    Mistake(
        "value turned on one side",
        "The value of token j is not turned by its own label, but the pull is turned back by that of token i. "
        "Both or neither.",
        changed(values="back"),
    ),
    Mistake("one side only", ONE_SIDE, changed(query=0)),
    Mistake("one side only", ONE_SIDE, changed(key=0)),
    Mistake("one side only", ONE_SIDE, changed(query=0, values="forward")),
    Mistake("one side only", ONE_SIDE, changed(key=0, values="back")),
    *SHARED,
    Mistake("no labels", "The labels have no effect: this is plain USA.", changed(query=0, key=0, values="none")),
]
PATTERN = [
    Mistake(
        "values rotated",
        "The values are rotated, too: this is the flow of the rotary energy. In language models the values are "
        "left alone.",
        changed(),
    ),
    Mistake("one side only", ONE_SIDE, changed(query=0, values="none")),
    Mistake("one side only", ONE_SIDE, changed(key=0, values="none")),
    Mistake("projection forgotten", PROJECTED, changed(values="none", project=0)),
    Mistake("raw unit", SHARED[2].sentence, changed(values="none", raw=True)),
    Mistake("rows normalised", SHARED[3].sentence, changed(values="none", rows=True)),
    Mistake("halves", SHARED[4].sentence, changed(values="none", halves=True)),
    Mistake("rotations one way only", SHARED[1].sentence, changed(values="none", key=-1)),
    Mistake("no labels", "The labels have no effect: this is plain USA.", changed(query=0, key=0, values="none")),
]


def pattern(tokens, labels, beta, frequencies):
    return rotary(tokens, labels, beta, frequencies, values="none")


# ---------------------------------------------------------------- 3. a gauge


def given(seed, prompts, each):
    """What the notebook draws: labels, matrices, start, Q."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(prompts).repeat_interleave(each)
    raw = torch.randn(prompts + 1, 3, 3, generator=draw, dtype=torch.float64)
    turns = torch.linalg.matrix_exp(raw - raw.mT)
    start = torch.nn.functional.normalize(torch.randn(len(labels), 3, generator=draw, dtype=torch.float64), dim=-1)
    return labels, turns[:-1], start, turns[-1]


@functools.lru_cache(256)
def settled(seed, prompts, each, beta):
    """(w, the start in the frame): plain USA in the gauge frame, by RK4; None if it is not one point by time 60."""
    labels, gauge, start, _ = given(seed, prompts, each)
    u = np.einsum("nij,nj->ni", gauge[labels].numpy(), start.numpy())
    first, h = u, 0.2

    def drift(x):
        pull = np.exp(beta * (x @ x.T - 1)) @ x / len(x)
        return pull - (pull * x).sum(1, keepdims=True) * x

    for _ in range(300):
        a = drift(u)
        b = drift(u + h / 2 * a)
        c = drift(u + h / 2 * b)
        u = u + h / 6 * (a + 2 * b + 2 * c + drift(u + h * c))
        u = u / np.linalg.norm(u, axis=1, keepdims=True)
    return None if np.ptp(u, axis=0).max() > 1e-7 else (u[0], first)


def frame(gauge):
    """w, and G of every token, the start in the frame, Q."""
    w, first = settled(gauge["seed"], gauge["prompts"], gauge["each"], gauge["beta"])
    labels, matrices, _, Q = given(gauge["seed"], gauge["prompts"], gauge["each"])
    return w, matrices[labels].numpy(), first, Q.numpy()


def direction(vector):
    return torch.from_numpy(vector / np.linalg.norm(vector))


def common(instance):
    return torch.from_numpy(frame(instance["gauge"])[0].copy())


def ends(instance):
    w, G, _, _ = frame(instance["gauge"])
    return np.einsum("nji,j->ni", G, w)


def missed(instance):
    w = frame(instance["gauge"])[0]
    return math.sqrt(2 - 2 * float(w[2]))


def targets(instance, back=True):
    _, G, _, _ = frame(instance["gauge"])
    return G[:, 2, :] if back else G[:, :, 2]


def turned(instance):
    w, G, _, Q = frame(instance["gauge"])
    return torch.from_numpy(G[0].T @ Q @ w)


COMMON = [
    Mistake(
        "gauge on the wrong side",
        "The tokens are turned by the transpose. The frame in which they meet is u = G x.",
        lambda instance: direction(np.einsum("nji,nj->ni", frame(instance["gauge"])[1], ends(instance)).mean(0)),
    ),
    Mistake(
        "content taken for the frame",
        "This is the direction of the mean of the contents x. They do not meet: turn each by its own G first.",
        lambda instance: direction(ends(instance).mean(0)),
    ),
    Mistake(
        "the mean of the start",
        "The mean at the start, in the frame, is turned on the way. Take the end.",
        lambda instance: direction(frame(instance["gauge"])[2].mean(0)),
    ),
    Mistake(
        "one content",
        "This is where one token's content ends. All tokens meet in the gauge frame alone.",
        lambda instance: torch.from_numpy(ends(instance)[0]),
    ),
]
MISSED = [
    Mistake(
        "angle",
        "This is an angle. A straight distance is wanted.",
        lambda instance: math.acos(float(frame(instance["gauge"])[0][2])),
    ),
    Mistake("squared", "This is the squared distance.", lambda instance: missed(instance) ** 2),
    Mistake(
        "targets on the wrong side",
        "The targets are turned by G where its transpose belongs. With the right ones all tokens miss by the "
        "same distance.",
        lambda instance: float(np.linalg.norm(ends(instance) - targets(instance, back=False), axis=1).mean()),
    ),
    Mistake(
        "distance of the means",
        "This is the distance of two means. Each token has a target of its own.",
        lambda instance: float(np.linalg.norm(ends(instance).mean(0) - targets(instance).mean(0))),
    ),
    Mistake(
        "contents at the pole",
        "This is a distance of contents from e itself. The target of a token is the transpose of its G times e.",
        lambda instance: float(np.linalg.norm(ends(instance) - np.array([0, 0, 1.0]), axis=1).mean()),
    ),
]
TURNED = [
    Mistake(
        "turned in the content",
        "Q was applied to the content. It is the frame that was turned: Q comes before the way back.",
        lambda instance: torch.from_numpy(frame(instance["gauge"])[3] @ ends(instance)[0]),
    ),
    Mistake(
        "not turned",
        "This is the end of the first start. Another start has another end.",
        lambda instance: torch.from_numpy(ends(instance)[0]),
    ),
    Mistake(
        "still in the frame",
        "This is the point where all meet in the frame. Token 0 has to be turned back by its own matrix.",
        lambda instance: torch.from_numpy(frame(instance["gauge"])[3] @ frame(instance["gauge"])[0]),
    ),
    Mistake(
        "Q the other way",
        "The frame was turned by Q, not by its transpose.",
        lambda instance: torch.from_numpy(
            frame(instance["gauge"])[1][0].T @ frame(instance["gauge"])[3].T @ frame(instance["gauge"])[0]
        ),
    ),
    Mistake(
        "gauge on the wrong side",
        "The way back from the frame is the transpose of G.",
        lambda instance: torch.from_numpy(
            frame(instance["gauge"])[1][0] @ frame(instance["gauge"])[3] @ frame(instance["gauge"])[0]
        ),
    ),
]


# ---------------------------------------------------------------- 4. circles


def some_orbit(generator, instance):
    count = int(torch.randint(5, 12, (1,), generator=generator))
    phases = 4 * torch.rand(count, generator=generator, dtype=torch.float64)
    return {"height": float(0.9 * torch.rand(1, generator=generator) - 0.95), "phases": phases}


def resultant(height, phases):
    side = math.sqrt(1 - height**2)
    x = np.array([(side * math.cos(p), -side * math.sin(p), height) for p in phases.tolist()])
    return float(np.linalg.norm(x.mean(0)))


def mean_turn(phases):
    return abs(np.exp(1j * phases.numpy()).mean())


RESULTANT = [
    Mistake(
        "full turn assumed",
        "This is right where the phases fill a full turn evenly. These do not: something of the plane is left.",
        lambda height, phases: abs(height),
    ),
    Mistake(
        "full turn assumed",
        "This is right where the phases fill a full turn evenly. These do not: something of the plane is left.",
        lambda height, phases: height,
    ),
    Mistake(
        "plane only",
        "This is what is left in the plane. The axis adds the height, as two sides of a right triangle add.",
        lambda height, phases: float(mean_turn(phases) * math.sqrt(1 - height**2)),
    ),
    Mistake(
        "radius forgotten",
        "The circle's radius is missing: in the plane the tokens are sqrt(1 - height^2) from the axis.",
        lambda height, phases: float(math.hypot(mean_turn(phases), height)),
    ),
    Mistake(
        "added, not squared",
        "The parts along the axis and in the plane are orthogonal: their squares add.",
        lambda height, phases: float(mean_turn(phases) * math.sqrt(1 - height**2) + abs(height)),
    ),
    Mistake(
        "added, not squared",
        "The parts along the axis and in the plane are orthogonal: their squares add.",
        lambda height, phases: float(mean_turn(phases) * math.sqrt(1 - height**2) + height),
    ),
    Mistake(
        "cosines only",
        "The mean of the cosines is one coordinate of the plane. There is a sine, too.",
        lambda height, phases: math.hypot(float(phases.cos().mean()) * math.sqrt(1 - height**2), height),
    ),
    Mistake("square of it", "This is the square of the length.", lambda height, phases: resultant(height, phases) ** 2),
]
THETA = (np.arange(512) + 0.5) * 2 * np.pi / 512


def slope(t, c):
    """F'(t), up to its sign."""
    return float(((1 - np.cos(THETA)) * (c + np.cos(THETA)) * np.exp(-t * (1 - np.cos(THETA)))).mean())


@functools.lru_cache(4096)
def balance(c):
    low, high = 1e-9, 60.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle, c) < 0 else (low, middle)
    return low


def ring(instance):
    return instance["ring"]["mean"], instance["ring"]["beta"]


def threshold(instance):
    return balance(ring(instance)[0])


def height(instance):
    return math.sqrt(1 - threshold(instance) / ring(instance)[1])


THRESHOLD = [
    Mistake(
        "sign of c",
        "This is the answer for minus c. Which sign makes far labels repel less?",
        lambda instance: balance(-ring(instance)[0]),
    ),
    Mistake("c ignored", "This is the answer for c = 0, the plain cosine.", lambda instance: balance(0.0)),
    Mistake(
        "where consensus ends",
        "This is about c alone: by how much it lies below the value from which on consensus is the maximum. A "
        "beta is wanted.",
        lambda instance: 0.5 - ring(instance)[0],
    ),
    Mistake(
        "squared distance",
        "The exponent holds 1 - <x, y>. The squared distance of two unit vectors is another number.",
        lambda instance: threshold(instance) / 2,
    ),
]
HEIGHT = [
    Mistake("squared", "This is the square of the height.", lambda instance: height(instance) ** 2),
    Mistake(
        "radius",
        "This is the radius of the circle, not its height.",
        lambda instance: math.sqrt(1 - height(instance) ** 2),
    ),
    Mistake(
        "sign of c",
        "This is the answer for minus c.",
        lambda instance: math.sqrt(1 - balance(-ring(instance)[0]) / ring(instance)[1]),
    ),
    Mistake(
        "c ignored",
        "This is the answer for c = 0, the plain cosine.",
        lambda instance: math.sqrt(1 - balance(0.0) / ring(instance)[1]),
    ),
    Mistake(
        "an angle",
        "This is an angle above the equator. The height is its sine.",
        lambda instance: math.asin(height(instance)),
    ),
]

# ---------------------------------------------------------------- 5. signs


def profile(word, rng):
    """c_0, ..., c_3 of a(theta) = sum c_k cos k theta."""
    base = rng.uniform(0.8, 1.2)
    shapes = {
        "positive": (1.0, 0.3, 0.2, 0.1),
        "mixed": (0.6, 0.85, 0.3, 0.2),  # negative somewhere; c_1 > c_0 > c_1 / 2
        "negative mode": (0.4, 0.3, -1.3, 0.2),
        "first": (0.3, 0.95, 0.2, 0.1),
        "third": (0.35, 0.4, -0.5, 1.05),
        "deep": (-0.3, 0.4, 0.2, -0.9),
    }
    return [round(base * value * rng.uniform(0.95, 1.05), 2) for value in shapes[word]]


def values(c):
    return sum(one * np.cos(k * THETA) for k, one in enumerate(c))


def by(test):
    """A verdict on each profile."""
    return lambda instance: {n: "consensus" if test(c) else "spread" for n, c in instance["profiles"].items()}


def modes(c):
    """The means of a cos k over the ring, by summing."""
    return [float((values(c) * np.cos(k * THETA)).mean()) for k in range(len(c))]


verdicts = by(lambda c: modes(c)[0] >= max(modes(c)[1:] + [0.0]))
VERDICTS = [
    Mistake(
        "any minus spreads",
        "A profile that is negative somewhere need not spread the tokens. Its means against cosines decide, not "
        "its sign.",
        by(lambda c: values(c).min() >= 0),
    ),
    Mistake(
        "mean is enough",
        "A positive mean is not enough: some cosine may have a larger one.",
        by(lambda c: c[0] > 0),
    ),
    Mistake(
        "half forgotten",
        "The mean of a cosine's square is one half. So the coefficient c_k and the mean of a cos k are not the "
        "same for k >= 1.",
        by(lambda c: c[0] >= max(c[1:])),
    ),
    Mistake(
        "absolute values",
        "The means are compared without their signs. A negative one is below the mean of the profile, however "
        "large it is.",
        by(lambda c: c[0] >= max(abs(one) / 2 for one in c[1:])),
    ),
    Mistake(
        "first mode only",
        "Only cos theta was looked at. All k count.",
        by(lambda c: c[0] >= c[1] / 2),
    ),
    Mistake(
        "exchanged",
        "The two words are exchanged. Try a profile that is positive everywhere: which has the larger energy, one "
        "point or a great circle?",
        by(lambda c: not modes(c)[0] >= max(modes(c)[1:] + [0.0])),
    ),
]


@functools.lru_cache(4096)
def coupling(word, seed):
    """A symmetric 4 x 4 matrix of this kind."""
    draw = np.random.default_rng(seed)
    while True:
        a = draw.uniform(0.1 if word == "plain" else -0.5, 1.2, (4, 4))
        a = np.triu(a, 1) + np.triu(a, 1).T + np.diag(draw.uniform(-2.5, 1.5, 4))
        a = a.round(2)
        values, rows = np.linalg.eigvalsh(np.diag(a.sum(1)) - a), a.sum(1).min()
        stays = values[0] > -1e-9 and values[1] > 0.2
        minus = (a - np.diag(np.diag(a))).min() < -0.1
        fits = {
            "plain": stays and rows > 0.15,
            "any": stays and rows > 0.15 and minus,
            "single": stays and rows < -0.2,
            "never": values[0] < -0.2 and rows > 0.15,
        }
        if fits[word]:
            return a.tolist()


def kinds(test):
    return lambda instance: {n: test(np.array(a)) for n, a in instance["couplings"].items()}


def signed(a):
    return bool(np.linalg.eigvalsh(np.diag(a.sum(1)) - a)[0] > -1e-6)


classes = kinds(lambda a: ("any" if a.sum(1).min() >= 0 else "single") if signed(a) else "never")
CLASSES = [
    Mistake(
        "row sums only",
        "Positive row sums are not enough: tokens of different labels can still gain by parting. Look at the "
        "signed Laplacian.",
        kinds(lambda a: "any" if a.sum(1).min() >= 0 else "never"),
    ),
    Mistake(
        "row sums only",
        "Positive row sums are not enough: tokens of different labels can still gain by parting. Look at the "
        "signed Laplacian.",
        kinds(lambda a: "any" if a.sum(1).min() >= 0 else "single"),
    ),
    Mistake(
        "tokens of one label forgotten",
        "The Laplacian of the labels alone was looked at. It does not contain what tokens of one label do to "
        "each other: the row sums do.",
        kinds(lambda a: "any" if signed(a) else "never"),
    ),
    Mistake(
        "signs of the entries",
        "A negative entry off the diagonal does not decide. The others can make up for it.",
        kinds(
            lambda a: "never" if (a - np.diag(np.diag(a))).min() < 0 else ("any" if a.sum(1).min() >= 0 else "single")
        ),
    ),
    Mistake(
        "coupling for its Laplacian",
        "These are the eigenvalues of the coupling itself. The signed Laplacian has the row sums on its diagonal.",
        kinds(lambda a: ("any" if a.sum(1).min() >= 0 else "single") if np.linalg.eigvalsh(a)[0] > -1e-6 else "never"),
    ),
    Mistake(
        "diagonal kept",
        "In the signed Laplacian the diagonal of the coupling cancels. Here it was left out of the row sums, but "
        "not out of what is subtracted.",
        kinds(
            lambda a: (
                ("any" if a.sum(1).min() >= 0 else "single")
                if np.linalg.eigvalsh(np.diag((a - np.diag(np.diag(a))).sum(1)) - a)[0] > -1e-6
                else "never"
            )
        ),
    ),
]
MODELS = ("Kernel", "sums", "orbit")
CHECKS = {
    "within": Check(within, labelled, WITHIN, ("within_label_variance", "between_label_variance")),
    "between": Check(between, labelled, BETWEEN, ("within_label_variance", "between_label_variance")),
    "expected": Check(lambda tokens, kinds: 1 - kinds / tokens, some_counts, EXPECTED, trials=4),
    "rotary": Check(rotary, positions, ROTARY, MODELS),
    "pattern": Check(pattern, positions, PATTERN, MODELS),
    "common": Check(common, mistakes=COMMON, tolerance=2e-3),
    "missed": Check(missed, mistakes=MISSED, tolerance=2e-3),
    "turned": Check(turned, mistakes=TURNED, tolerance=2e-3),
    "resultant": Check(resultant, some_orbit, RESULTANT, trials=4),
    "threshold": Check(threshold, mistakes=THRESHOLD, tolerance=0.005),
    "height": Check(height, mistakes=HEIGHT, tolerance=0.005),
    "profiles": Check(verdicts, mistakes=VERDICTS),
    "couplings": Check(classes, mistakes=CLASSES),
}
