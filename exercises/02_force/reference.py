"""Set 2: what its checks compare with. Written with loops and numpy, apart from the library."""

import math

import numpy as np
import torch

from exercises.checks import Check, Mistake

RUNS = ["right", "factor 2", "sum", "attached", "sign of V"]


def instance(rng) -> dict:
    """The numbers of a course."""
    share = round(rng.uniform(0.38, 0.44), 3)
    return {
        "seed": rng.randrange(10**6),
        "share": share,
        "gap": round(rng.uniform(3.0, 6.0), 2),
        "ratio": round(rng.uniform(0.28, 0.36), 3),
        "count": rng.randrange(110, 150, 2),
        **steps(rng),
    }


# ---------------------------------------------------------------- weights and gradients, with loops


def boltzmann(z, p, temperature):
    squares = np.array([[((one - other) ** 2).sum() for other in p] for one in z])
    exponents = np.exp(-(squares - squares.min(1, keepdims=True)) / temperature)
    return exponents / exponents.sum(1, keepdims=True)


def gradient(z, p, temperature, term="V", attached=False):
    """Of the mean over tokens of V or L_OLS."""
    q, out = boltzmann(z, p, temperature), np.zeros_like(p)
    for n in range(len(z)):
        mu = q[n] @ p
        offsets = p - mu if term == "V" else np.broadcast_to(mu - z[n], p.shape)
        squares = ((p - mu) ** 2).sum(1) if term == "V" else 2 * (p - mu) @ (mu - z[n])
        mean = q[n] @ squares
        for j in range(len(p)):
            pull = offsets[j] - (squares[j] - mean) / temperature * (p[j] - z[n]) if attached else offsets[j]
            out[j] += 2 * q[n, j] * pull / len(z)
    return out


# ---------------------------------------------------------------- 1. the three terms


def terms(tokens, prototypes, weights, mask, mean="all", spread="own", hard=False, square=True):
    """(L_q, L_OLS, V). mean: all, sequences, none, padded, zeros."""
    z, p, q, real = (one.double().numpy() for one in (tokens, prototypes, weights, mask))
    rows = []
    for b in range(len(z)):
        mine = []
        for n in range(z.shape[1]):
            if not real[b, n] and mean != "padded":
                continue
            w = q[b, n]
            mu = p[w.argmax()] if hard else sum(w[k] * p[k] for k in range(len(p)))
            centre = p.mean(0) if spread == "bank" else mu
            share = np.full(len(p), 1 / len(p)) if spread == "even" else w
            length = (lambda v: float(v @ v)) if square else (lambda v: math.sqrt(v @ v))
            mine.append(
                (
                    sum(share[k] * length(z[b, n] - p[k]) for k in range(len(p))),
                    length(z[b, n] - mu),
                    sum(share[k] * length(p[k] - centre) for k in range(len(p))),
                )
            )
        rows.append(mine)
    if mean == "sequences":
        return np.mean([np.mean(mine, 0) for mine in rows if mine], 0)
    total = np.array([one for mine in rows for one in mine])
    if mean == "none":
        return total.sum(0)
    return total.sum(0) / mask.numel() if mean == "zeros" else total.mean(0)


def term(index, **changed):
    return lambda **inputs: float(terms(**inputs, **changed)[index])


def some_sequences(generator, instance, padding=40.0):
    batch, count, dim = (torch.randint(2, 4, (3,), generator=generator).cumsum(0) + torch.tensor([0, 1, 1])).tolist()
    size = dim + 2
    mask = torch.rand(batch, count, generator=generator) < 0.6
    mask[0, :3] = torch.tensor([True, False, True])
    mask[1:, 1:] = False  # sequences of different lengths
    mask[1:, 0] = True
    tokens = torch.randn(batch, count, dim, generator=generator, dtype=torch.float64) + 0.5
    tokens[~mask] = padding
    return {
        "tokens": tokens,
        "prototypes": 1.5 * torch.randn(size, dim, generator=generator, dtype=torch.float64),
        "weights": torch.softmax(1.5 * torch.randn(batch, count, size, generator=generator, dtype=torch.float64), -1),
        "mask": mask,
    }


def padded_with_nan(generator, instance):
    return some_sequences(generator, instance, padding=float("nan"))


def all_terms(tokens, mask, **rest):
    return torch.from_numpy(terms(tokens=torch.where(mask[..., None], tokens, 0), mask=mask, **rest))


def averages(index):
    return [
        Mistake(
            "mask ignored",
            "The padding is in the average. Leave masked tokens out.",
            term(index, mean="padded"),
        ),
        Mistake(
            "sum",
            "This is a sum over tokens. The terms are means: otherwise a longer text would be a worse one.",
            term(index, mean="none"),
        ),
        Mistake(
            "divided by all positions",
            "The padding adds nothing, and still it is counted: divide by the number of real tokens.",
            term(index, mean="zeros"),
        ),
        Mistake(
            "mean of means",
            "This averages sequence by sequence first. Then a token of a short text counts more than another.",
            term(index, mean="sequences"),
        ),
        Mistake(
            "mean over features",
            "The features are averaged. A squared distance is a sum over them.",
            lambda **inputs: term(index)(**inputs) / inputs["tokens"].shape[-1],
        ),
        Mistake("not squared", "These are distances, and their squares are asked for.", term(index, square=False)),
    ]


TOTAL = [
    Mistake(
        "weights not used",
        "Every prototype counts the same here. In the expectation each counts by its weight.",
        term(0, spread="even"),
    ),
    Mistake("L_OLS for L_q", "This measures from the token to the mixture. First measure, then mix.", term(1)),
    *averages(0),
]
RECONSTRUCTION = [
    Mistake(
        "hard assignment",
        "This is the distance to the one prototype with the largest weight. The mixture takes part of each.",
        term(1, hard=True),
    ),
    Mistake("L_q for L_OLS", "This mixes the squared distances. First mix the prototypes, then measure once.", term(0)),
    *averages(1),
]
VARIANCE = [
    Mistake(
        "about the bank's mean",
        "The spread is taken about the bank's mean. V is the spread about the mixture, and each token has its own.",
        term(2, spread="bank"),
    ),
    Mistake(
        "weights not used",
        "Every prototype counts the same here. V weighs each of them by its share in the mixture.",
        term(2, spread="even"),
    ),
    *averages(2),
]
PADDING = [
    Mistake(
        "mask multiplied",
        "What stands in the padding comes through: 0 times NaN is NaN. Choose the real tokens before you compute.",
        lambda **inputs: torch.tensor([math.nan, math.nan, float(all_terms(**inputs)[2])], dtype=torch.float64),
    ),
]

# ---------------------------------------------------------------- 2. two gradients


def some_bank(generator, instance):
    count, dim, size = (torch.randint(2, 4, (3,), generator=generator).cumsum(0) + torch.tensor([5, -2, -1])).tolist()
    dim, size = min(dim, 4), size + 1
    if len({count, dim, size}) < 3:
        count += 5
    return {
        "tokens": 1.3 * torch.randn(count, dim, generator=generator, dtype=torch.float64) + 0.4,
        "prototypes": torch.randn(size, dim, generator=generator, dtype=torch.float64),
        "temperature": float(2 + 2 * torch.rand((), generator=generator)),
    }


def slope(attached, terms="V", times=1.0, average=False, count=False, half=False):
    def gives(tokens, prototypes, temperature):
        z, p = tokens.double().numpy(), prototypes.double().numpy()
        if average:
            q = boltzmann(z, p, temperature).mean(0)
            return torch.from_numpy(2 * (np.diag(q) - np.outer(q, q)) @ p)
        out = sum(gradient(z, p, temperature, one, attached) for one in terms.split())
        if half:
            out = out - gradient(z, p, temperature)
        return torch.from_numpy(times * out * (len(z) if count else 1))

    return gives


def gradients(attached):
    which, other = ("attached", "held fixed") if attached else ("held fixed", "attached")
    sentence = {
        "attached": "This is the gradient with q held fixed. Here q answers to the bank, and its part is missing.",
        "held fixed": "q moved along. Hold it fixed: the weights are numbers here, whatever made them.",
    }[which]
    return [
        Mistake(f"q {other}", sentence, slope(not attached)),
        Mistake("missing factor 2", "A factor is missing: differentiate a square.", slope(attached, times=0.5)),
        Mistake("sum", "This is the gradient of a sum over tokens. V is a mean.", slope(attached, count=True)),
        Mistake("sign", "This is the force: minus the gradient. The gradient is asked for.", slope(attached, times=-1)),
        Mistake(
            "of L_q",
            "This is the gradient of the whole loss, not of V.",
            slope(attached, "V L_OLS"),
        ),
        Mistake(
            "of L_OLS",
            "This is the gradient of the other part, the distance from the token to its mixture.",
            slope(attached, "L_OLS"),
        ),
    ]


FIXED = [
    *gradients(False),
    Mistake(
        "weights averaged first",
        "The weights are averaged first. Sigma_q is not linear in q: one matrix a token, and then the mean.",
        slope(False, average=True),
    ),
]
ATTACHED = [
    *gradients(True),
    Mistake(
        "direct part forgotten",
        "Only the part through q is here. The prototypes stand in V themselves, too.",
        slope(True, half=True),
    ),
]

# ---------------------------------------------------------------- 3. how fast the bank opens


def some_state(generator, instance):
    inputs = some_bank(generator, instance)
    z, p = inputs["tokens"].numpy(), inputs["prototypes"].numpy()
    q = boltzmann(z, p, inputs["temperature"])
    mu = q @ p
    variance = float(np.mean([q[n] @ ((p - mu[n]) ** 2).sum(1) for n in range(len(z))]))
    return {
        "tokens": inputs["tokens"],
        "centroids": torch.from_numpy(mu),
        "centre": torch.from_numpy(p.mean(0)),
        "variance": variance,
    }


def opening(tokens, centroids, centre, variance, pull=4.0, v=-4.0, middle=True, total=False):
    z, mu, c = tokens.numpy(), centroids.numpy(), centre.numpy()
    work = [float((z[n] - mu[n]) @ (mu[n] - (c if middle else 0))) for n in range(len(z))]
    return pull * (sum(work) if total else sum(work) / len(work)) + v * variance


def opens(**changed):
    return lambda **inputs: opening(**inputs, **changed)


OPENING = [
    Mistake(
        "factor 2",
        "A factor is missing. The gradient has one, and S is a square: it brings another.",
        opens(pull=2.0, v=-2.0),
    ),
    Mistake(
        "both factors",
        "Constants are missing. Differentiate both squares, that of the loss and that in S.",
        opens(pull=1.0, v=-1.0),
    ),
    Mistake("V forgotten", "This is what one of the two parts does. The loss has a second one.", opens(v=0.0)),
    Mistake(
        "V taken for a push",
        "V enters with the wrong sign. Descent goes down V, and the gradient of V points to where the bank is wider.",
        opens(v=4.0),
    ),
    Mistake("sign", "The sign of the whole is wrong: this is the rate of a bank that climbs.", opens(pull=-4.0, v=4.0)),
    Mistake("one factor on V", "The two parts have the same factor in front.", opens(v=-2.0)),
    Mistake(
        "about the origin",
        "The size is taken about the origin. It is about the mean of the bank.",
        opens(middle=False),
    ),
    Mistake("sum", "The tokens are summed. The loss is a mean.", opens(total=True)),
]

# ---------------------------------------------------------------- 4. a pair on a cloud


def pair(instance):
    """The tokens' coordinate along the direction, about their mean, and the temperature."""
    draw = torch.Generator().manual_seed(instance["seed"])
    count, gap = instance["count"], instance["gap"]
    tokens = 0.1 * gap * torch.randn(count, 3, generator=draw, dtype=torch.float64)
    tokens[: round(instance["share"] * count), 0] += gap
    z = tokens.numpy()
    z = z - z.mean(0)
    return z[:, 0], instance["ratio"] * 4 * np.linalg.eigvalsh(z.T @ z / count)[-1]


def crossing(rate, y):
    """The smallest s > 0 at which the rate changes sign, by a scan and bisection."""
    grid = np.linspace(0.02, 4, 400) * y.std()
    values = [rate(s) for s in grid]
    low = next(i for i in range(399) if values[i] * values[i + 1] < 0)
    low, high = grid[low], grid[low + 1]
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(low) * rate(middle) > 0 else (low, middle)
    return float(low)


def turning(instance):
    y, temperature = pair(instance)
    u = 2 * y / temperature
    return crossing(lambda s: np.mean((1 - s * u * np.tanh(s * u)) / np.cosh(s * u) ** 2), y)


def rest(instance, attached=False):
    y, temperature = pair(instance)

    def rate(s):
        u = 2 * y * s / temperature
        return np.mean(y * np.tanh(u) + attached * y * u / np.cosh(u) ** 2) - s

    return crossing(rate, y)


def two_points(instance):
    y, temperature = pair(instance)
    return 1.19967864 * temperature / (2 * y.std())


def at_rest(attached):
    def right(instance):
        return rest(instance, attached)

    return [
        Mistake(
            f"q {'held fixed' if attached else 'attached'}",
            "This is where the pair rests if q is " + ("held fixed." if attached else "attached."),
            lambda instance: rest(instance, not attached),
        ),
        Mistake(
            "the whole distance",
            "This is the distance between the two. The distance from the mean is asked for.",
            lambda instance: 2 * right(instance),
        ),
        Mistake(
            "in deviations",
            "This is in standard deviations of the tokens. It is asked for in the units of the tokens.",
            lambda instance: right(instance) / pair(instance)[0].std(),
        ),
    ]


TURNING = [
    Mistake(
        "two tokens",
        "This is the formula for two tokens at the same distance. Your cloud has a nearer and a farther part.",
        two_points,
    ),
    Mistake(
        "the whole distance",
        "This is the distance between the two. The distance from the mean is asked for.",
        lambda instance: 2 * turning(instance),
    ),
    Mistake(
        "in deviations",
        "This is in standard deviations of the tokens. It is asked for in the units of the tokens.",
        lambda instance: turning(instance) / pair(instance)[0].std(),
    ),
]

# ---------------------------------------------------------------- 5. whose step is it


def steps(rng):
    """Tokens, a bank, and the bank after one step of each of five runs."""
    while True:
        tokens = [[round(rng.gauss(0, 1.6), 2), round(rng.gauss(0, 1.0), 2)] for _ in range(9)]
        bank = [[round(rng.gauss(0, 1.2), 2), round(rng.gauss(0, 1.2), 2)] for _ in range(3)]
        made = {
            "step_tokens": tokens,
            "step_bank": bank,
            "step_temperature": round(rng.uniform(2.0, 3.5), 2),
            "step_rate": round(rng.uniform(0.1, 0.3), 2),
        }
        moves = all_moves(made)
        size = np.linalg.norm(moves["right"])
        apart = [np.linalg.norm(moves[a] - moves[b]) for i, a in enumerate(RUNS) for b in RUNS[:i]]
        if min(apart) > 0.25 * size > 0.02:
            break
    order = rng.sample(RUNS, 5)
    after = {
        letter: [[round(float(x), 4) for x in row] for row in np.array(bank) + moves[word]]
        for letter, word in zip("ABCDE", order)
    }
    return made | {"step_after": after}


def all_moves(made):
    z, p = np.array(made["step_tokens"]), np.array(made["step_bank"])
    temperature, rate = made["step_temperature"], made["step_rate"]
    v, ols = (gradient(z, p, temperature, one) for one in ("V", "L_OLS"))
    both = sum(gradient(z, p, temperature, one, attached=True) for one in ("V", "L_OLS"))
    moves = {"right": v + ols, "factor 2": (v + ols) / 2, "sum": len(z) * (v + ols)}
    moves |= {"attached": both, "sign of V": ols - v}
    return {word: -rate * move for word, move in moves.items()}


def runs(instance):
    moves, bank = all_moves(instance), np.array(instance["step_bank"])
    return {
        letter: min(RUNS, key=lambda word: np.abs(np.array(after) - bank - moves[word]).max())
        for letter, after in instance["step_after"].items()
    }


def run_of(word):
    return lambda instance: next(letter for letter, found in runs(instance).items() if found == word)


def exchanged(one, other):
    swap = {one: other, other: one}
    return lambda instance: {letter: swap.get(word, word) for letter, word in runs(instance).items()}


WRITTEN_RIGHT = [
    Mistake(
        "attached taken for right",
        "That run's step is the gradient that automatic differentiation gives when nothing is detached.",
        run_of("attached"),
    ),
    Mistake(
        "factor 2 missed",
        "That run goes in the right direction, and not far enough. Compare lengths, too.",
        run_of("factor 2"),
    ),
    Mistake("sum missed", "That run goes in the right direction, and too far. Compare lengths, too.", run_of("sum")),
    Mistake(
        "V taken for a push",
        "In that run V pushes the prototypes away from their mixtures. Which way does a step down V go?",
        run_of("sign of V"),
    ),
]
WHO = [
    Mistake(
        "attached taken for right",
        "The run with q attached and the right one are exchanged. Does the step hold the weights fixed?",
        exchanged("right", "attached"),
    ),
    Mistake(
        "factor 2 taken for right",
        "Two runs that go in the same direction are exchanged. Which of them has the length that the step size gives?",
        exchanged("right", "factor 2"),
    ),
    Mistake(
        "factor 2 and sum",
        "Two runs that differ from the right one by a factor are exchanged. Is the factor above 1 or below?",
        exchanged("sum", "factor 2"),
    ),
    Mistake(
        "V taken for a push",
        "The run in which V pushes is called right. A step down V takes prototypes towards their mixtures.",
        exchanged("right", "sign of V"),
    ),
    Mistake(
        "attached and sign of V",
        "The two runs that go in a direction of their own are exchanged. Only one of them needs a derivative of q.",
        exchanged("attached", "sign of V"),
    ),
]
LIBRARY = ("decompose", "split", "free_energy")
CHECKS = {
    "total": Check(term(0), some_sequences, TOTAL, LIBRARY),
    "reconstruction": Check(term(1), some_sequences, RECONSTRUCTION, LIBRARY),
    "variance": Check(term(2), some_sequences, VARIANCE, LIBRARY),
    "padding": Check(all_terms, padded_with_nan, PADDING, LIBRARY),
    "fixed": Check(slope(False), some_bank, FIXED, LIBRARY),
    "attached": Check(slope(True), some_bank, ATTACHED, LIBRARY),
    "opening": Check(opening, some_state, OPENING, trials=4),
    "turning": Check(turning, mistakes=TURNING, tolerance=0.02),
    "rest-fixed": Check(rest, mistakes=at_rest(False), tolerance=0.02),
    "rest-attached": Check(lambda instance: rest(instance, True), mistakes=at_rest(True), tolerance=0.02),
    "right-run": Check(run_of("right"), mistakes=WRITTEN_RIGHT),
    "runs": Check(runs, mistakes=WHO),
}
