"""Set 3: what its checks compare with. Written with loops and numpy, apart from the library."""

import functools
import math

import numpy as np
import torch

from exercises.checks import Check, Mistake


def instance(rng) -> dict:
    """The numbers of a course."""
    shapes = [(60, 0.0, 0.0, 1.5, 0.5), (50, 4.8, 0.2, 0.8, 0.6), (40, 2.0, 4.8, 0.6, 0.9)]
    size = rng.uniform(0.8, 1.5)
    return {
        "seed": rng.randrange(10**6),
        "rare": rng.randint(9, 10),
        "far": round(rng.uniform(7.4, 8.4), 2),
        "width": round(rng.uniform(1.3, 1.45), 2),
        "scale": round(rng.uniform(0.7, 1.6), 2),
        "blobs": [
            (count, *(round(size * rng.uniform(0.97, 1.03) * x, 3) for x in shape))
            for count, *shape in rng.sample(shapes, 3)
        ],
        "gain": round(rng.uniform(0.9, 1.5), 2),
        "cold": round(rng.uniform(0.11, 0.17), 3),
        "begin": round(rng.uniform(0.005, 0.02), 4),
        **recorded(rng),
    }


def once(function):
    """Keep what was measured on an instance: the mistakes ask for it again."""
    known = {}

    @functools.wraps(function)
    def kept(instance, *rest, **named):
        key = repr((instance, rest, named))
        if key not in known:
            known[key] = function(instance, *rest, **named)
        return known[key]

    return kept


def assign(z, p, temperature):
    """Weights and squared distances."""
    squares = ((z[:, None] - p) ** 2).sum(-1)
    weights = np.exp(-(squares - squares.min(1, keepdims=True)) / temperature)
    return weights / weights.sum(1, keepdims=True), squares


def settled(z, p, temperature, steps=3000):
    """The bank after EM has come to rest."""
    for _ in range(steps):
        q, _ = assign(z, p, temperature)
        new = (q.T @ z) / q.sum(0)[:, None]
        if np.abs(new - p).max() < 1e-6:
            break
        p = new
    return new


def largest(matrix):
    return float(np.linalg.eigvalsh(matrix)[-1])


def moment(z, centre):
    return sum(np.outer(row - centre, row - centre) for row in z)


# ---------------------------------------------------------------- 1. critical temperatures


def critical(tokens, mask, attached, factor=(2, 4), less=0, centred=True, padded=False, pick=largest, each=False):
    z = tokens.double().numpy()
    groups = [z.reshape(-1, z.shape[-1])] if padded else [z[mask.numpy()]]
    if each:
        groups = [row[real] for row, real in zip(z, mask.numpy()) if real.any()]
    covariances = [moment(g, g.mean(0) if centred else 0) / (len(g) - less) for g in groups]
    return factor[attached] * pick(np.mean(covariances, 0))


def kelvin(**changed):
    return lambda **inputs: critical(**inputs, **changed)


def some_cloud(attached, padding=9.0):
    def inputs(generator, instance):
        sizes = torch.randint(2, 4, (3,), generator=generator).cumsum(0) + torch.tensor([0, 0, -2])
        batch, count, dim = sizes.tolist()
        dim += dim in (batch, count)
        tokens = torch.randn(batch, count, dim, generator=generator, dtype=torch.float64) + 1.5
        mask = torch.rand(batch, count, generator=generator) < 0.7
        mask[0, :4] = torch.tensor([True, False, True, True])[: min(4, count)]
        mask[1, :2] = True
        tokens[~mask] = padding
        return {"tokens": tokens, "mask": mask, "attached": attached}

    return inputs


def as_tensor(tokens, mask, attached):
    return torch.tensor([critical(torch.where(mask[..., None], tokens, 0), mask, attached)], dtype=torch.float64)


def criticals(attached):
    swapped = "q held fixed" if attached else "q attached"
    return [
        Mistake(
            swapped,
            f"This is the critical temperature for {swapped}. Which of the two lets competition count twice?",
            kelvin(factor=(4, 2)),
        ),
        Mistake("1/(N - 1)", "The covariance is a mean over the tokens: divide by N, not by N - 1.", kelvin(less=1)),
        Mistake("not centred", "Take the mean off first: this is the second moment about 0.", kelvin(centred=False)),
        Mistake("mask ignored", "The padding is in the covariance. Leave masked tokens out.", kelvin(padded=True)),
        Mistake(
            "trace",
            "This adds up all directions. A bank opens along one of them, the widest.",
            kelvin(pick=lambda c: float(np.trace(c))),
        ),
        Mistake(
            "standard deviation",
            "A temperature is a squared distance here. This has a deviation in it where a variance belongs.",
            kelvin(pick=lambda c: math.sqrt(largest(c))),
        ),
        Mistake(
            "sequence by sequence",
            "Every sequence is centred on its own here. The bank sees the tokens of all of them together.",
            kelvin(each=True),
        ),
        Mistake(
            "lambda_max itself",
            "This is the largest eigenvalue alone. Where is it that the curvature of the loss is 0?",
            kelvin(factor=(1, 1)),
        ),
    ]


NOT_A_NUMBER = [
    Mistake(
        "mask multiplied",
        "What stands in the padding comes through: 0 times NaN is NaN. Choose the real tokens before you compute.",
        lambda **inputs: torch.full((1,), float("nan"), dtype=torch.float64),
    ),
]

# ---------------------------------------------------------------- 2. growth and decay, by the step


def some_rates(generator, instance):
    closing = generator.initial_seed() % 2 == 1  # every second trial
    while True:
        draw = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        ratio, lr = round(0.3 + 1.2 * draw[0], 3), round(0.3 + 0.5 * draw[1], 3)
        count = int(torch.randint(3, 9, (1,), generator=generator))
        if (ratio > 1) == closing and abs(lr / count * (1 / ratio - 1)) > 0.015:
            return {"ratio": ratio, "count": count, "lr": lr}


def some_share(generator, instance):
    draw = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    return {"share": round(0.05 + 0.4 * draw[0], 3), "lr": round(0.15 + 0.3 * draw[1], 3)}


STEP = [
    Mistake(
        "K forgotten",
        "K is missing. Each prototype has only its share of the tokens, and moves accordingly.",
        lambda ratio, count, lr: 1 + 2 * lr * (1 / ratio - 1),
    ),
    Mistake(
        "factor 2",
        "A factor is missing: differentiate a square.",
        lambda ratio, count, lr: 1 + lr / count * (1 / ratio - 1),
    ),
    Mistake(
        "T and T_c exchanged",
        "By this a cold bank closes and a hot one opens. Which way round is the ratio?",
        lambda ratio, count, lr: 1 + 2 * lr / count * (ratio - 1),
    ),
    Mistake(
        "sign",
        "By this a cold bank closes. Descent goes against the curvature: a negative one makes offsets grow.",
        lambda ratio, count, lr: 1 - 2 * lr / count * (1 / ratio - 1),
    ),
    Mistake(
        "flow for steps",
        "This is what the flow does in that time. A step is a straight line, and no exponential.",
        lambda ratio, count, lr: math.exp(2 * lr / count * (1 / ratio - 1)),
    ),
    Mistake(
        "attached curvature",
        "Here T_c is that of q held fixed, and the curvature that of q attached. Take both from one column.",
        lambda ratio, count, lr: 1 + 2 * lr / count * (2 / ratio - 1),
    ),
    Mistake(
        "rate for factor",
        "This is by how much the offset changes. The factor is what it is multiplied by.",
        lambda ratio, count, lr: 2 * lr / count * (1 / ratio - 1),
    ),
]
EM = [
    Mistake(
        "T and T_c exchanged",
        "By this a cold bank closes and a hot one opens. Which way round is the ratio?",
        lambda ratio, count, lr: ratio,
    ),
    Mistake(
        "EM as a unit step",
        "An EM step is not a gradient step of size 1. Which step size takes a prototype to the mean of its tokens?",
        lambda ratio, count, lr: 1 + 2 / count * (1 / ratio - 1),
    ),
    Mistake(
        "the step's own size",
        "This is the gradient step again. An EM step does not depend on the learning rate.",
        lambda ratio, count, lr: 1 + 2 * lr / count * (1 / ratio - 1),
    ),
    Mistake(
        "rate for factor",
        "This is by how much the offset changes. The factor is what it is multiplied by.",
        lambda ratio, count, lr: 1 / ratio - 1,
    ),
    Mistake(
        "attached curvature",
        "An EM step holds q fixed. This has the curvature of q attached in it.",
        lambda ratio, count, lr: 2 / ratio,
    ),
]
HALF = [
    Mistake(
        "flow for steps",
        "This is the half-life of the flow. A step multiplies the distance by a factor: count steps.",
        lambda share, lr: math.log(2) / (2 * lr * share),
    ),
    Mistake(
        "factor 2",
        "A factor is missing: differentiate a square.",
        lambda share, lr: math.log(2) / -math.log(1 - lr * share),
    ),
    Mistake(
        "learning rate for timescale",
        "By this all prototypes are equally fast. One with few tokens has a small gradient.",
        lambda share, lr: math.log(2) / -math.log(1 - 2 * lr),
    ),
    Mistake(
        "e for 2",
        "This is the time to the e-th part. Half is asked for.",
        lambda share, lr: 1 / -math.log(1 - 2 * lr * share),
    ),
    Mistake(
        "share inverted",
        "By this a prototype with few tokens is fast. Its gradient is small: it is slow.",
        lambda share, lr: math.log(2) / -math.log(1 - 2 * lr * (1 - share)),
    ),
]

# ---------------------------------------------------------------- 3. there and back


def rare_cloud(instance):
    draw = torch.Generator().manual_seed(instance["seed"])
    cloud = torch.randn(300, 2, generator=draw, dtype=torch.float64)
    cloud = cloud * torch.tensor([instance["width"], 0.8], dtype=torch.float64)
    cloud[: instance["rare"]] = 0.3 * cloud[: instance["rare"]]
    cloud[: instance["rare"], 1] += instance["far"]
    return (instance["scale"] * (cloud + 2)).numpy()


def leaves(instance, pick=largest, centred=True, factor=2):
    z = rare_cloud(instance)
    return factor * pick(moment(z, z.mean(0) if centred else 0) / len(z))


@once
def returns(instance):
    z, unit, rare = rare_cloud(instance), leaves(instance), instance["rare"]
    bank = np.array([z[rare:].mean(0), z[:rare].mean(0)])
    ratio = 1.0
    while True:
        bank = settled(z, bank, ratio * unit)
        if np.linalg.norm(bank[0] - bank[1]) < 0.05 * math.sqrt(unit):
            return ratio * unit
        ratio *= 1.01


def half_diameter(instance):
    z = rare_cloud(instance)
    return max(((one - z) ** 2).sum(1).max() for one in z) / 2


LEAVES = [
    Mistake(
        "q attached",
        "This is for q attached. An EM step, and annealing with it, holds q fixed.",
        lambda instance: leaves(instance, factor=4),
    ),
    Mistake("lambda_max itself", "This is the eigenvalue alone.", lambda instance: leaves(instance, factor=1)),
    Mistake(
        "trace",
        "This adds up all directions. A bank opens along one of them.",
        lambda instance: leaves(instance, pick=lambda c: float(np.trace(c))),
    ),
    Mistake(
        "not centred",
        "Take the mean off first: this is the second moment about 0.",
        lambda instance: leaves(instance, centred=False),
    ),
]
RETURNS = [
    Mistake(
        "no hysteresis",
        "This is where a bank that is together opens. One that is split holds on to its tokens: heat it and look.",
        leaves,
    ),
    Mistake(
        "q attached",
        "This is the critical temperature for q attached, which has nothing to do with a way back.",
        lambda instance: leaves(instance, factor=4),
    ),
    Mistake(
        "the bound",
        "This is the bound above which no bank stays split. Yours returns below it: measure where.",
        half_diameter,
    ),
    Mistake(
        "in critical temperatures",
        "This is in units of the temperature at which the bank leaves. It is asked for in squared units of the tokens.",
        lambda instance: returns(instance) / leaves(instance),
    ),
]

# ---------------------------------------------------------------- 4. the next split


def next_split(tokens, prototypes, temperature, factor=2.0, mass="own", hard=False, centre="own", same=False):
    z, p = tokens.double().numpy(), prototypes.double().numpy()
    q, squares = assign(z, p, temperature)
    if hard:
        q = np.eye(len(p))[squares.argmin(1)]
    found = []
    for k in range(len(p)):
        a = np.ones(len(z)) if same else q[:, k]
        y = z - (z.mean(0) if centre == "all" else p[k])
        outer = sum(a[n] * np.outer(y[n], y[n]) for n in range(len(z)))
        found.append(factor * largest(outer) / (len(z) if mass == "all" else max(a.sum(), 1e-9)))
    return torch.tensor(found, dtype=torch.float64)


def splits(**changed):
    return lambda **inputs: next_split(**inputs, **changed)


def some_groups(generator, instance):
    size, dim, count = (torch.randint(2, 4, (3,), generator=generator).cumsum(0) + torch.tensor([1, -2, 5])).tolist()
    dim += dim == size
    tokens = 2 * torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return {
        "tokens": tokens,
        "prototypes": tokens[:size] + 0.5 * torch.randn(size, dim, generator=generator, dtype=torch.float64),
        "temperature": float(3 + 2 * torch.rand((), generator=generator)),
    }


NEXT = [
    Mistake(
        "divided by N",
        "The sum is divided by N. It is an average over the group's own tokens: divide by their weights.",
        splits(mass="all"),
    ),
    Mistake(
        "hard assignment",
        "Each token belongs to its nearest prototype here. The weights at this temperature are soft.",
        splits(hard=True),
    ),
    Mistake(
        "about the mean of all",
        "The offsets are taken from the mean of all tokens. The group stands elsewhere.",
        splits(centre="all"),
    ),
    Mistake("q attached", "The factor in front is that of q attached.", splits(factor=4.0)),
    Mistake("factor 2", "The factor in front is missing.", splits(factor=1.0)),
    Mistake(
        "all tokens alike",
        "Every token counts the same. A token counts for a group by the weight that it gives to it.",
        splits(same=True),
    ),
]


def blobs(instance):
    draw = torch.Generator().manual_seed(instance["seed"] + 1)
    parts = []
    for count, x, y, wide, high in instance["blobs"]:
        noise = torch.randn(count, 2, generator=draw, dtype=torch.float64)
        parts.append(noise * torch.tensor([wide, high]) + torch.tensor([x, y]))
    z = torch.cat(parts).numpy()
    return z, np.array([blob[1:3] for blob in instance["blobs"]]), 1.2 * largest(moment(z, z.mean(0)) / len(z))


def ahead(z, p, temperature):
    return float(next_split(torch.tensor(z), torch.tensor(p), temperature).max())


@once
def first_split(instance):
    z, p, start = blobs(instance)
    temperature = start
    while True:
        p = settled(z, p, temperature)
        if ahead(z, p, temperature) >= temperature:
            return temperature
        temperature *= 0.99


def read_at_start(instance):
    z, p, start = blobs(instance)
    return ahead(z, settled(z, p, start), start)


FIRST = [
    Mistake(
        "read at the start",
        "This is the formula at the start. Weights and prototypes change while you cool: read it again and again.",
        read_at_start,
    ),
    Mistake(
        "the first of all",
        "This is where a bank that is all together opens. Yours has opened already: each group has tokens of its own.",
        lambda instance: blobs(instance)[2] / 0.6,
    ),
    Mistake(
        "the start",
        "This is the temperature at which you begin. With q held fixed the groups are whole there.",
        lambda instance: blobs(instance)[2],
    ),
]

# ---------------------------------------------------------------- 5. three columns, five runs

KINDS = ["hot", "cold", "cooling", "heating", "broken"]


def energies(z, p, temperature):
    """(L_q, F, W)."""
    q, squares = assign(z, p, temperature)
    least = squares.min(1)
    free = np.mean(least - temperature * np.log(np.exp(-(squares - least[:, None]) / temperature).sum(1)))
    return float((q * squares).sum(1).mean()), float(free), float(free + temperature * math.log(len(p)))


def descend(z, p, heats, lr):
    rows = []
    for temperature in heats:
        rows.append(energies(z, p, temperature))
        q, _ = assign(z, p, temperature)
        p = p - lr * 2 * (q.sum(0)[:, None] * p - q.T @ z) / len(z)
    return np.array(rows)


def recorded(rng):
    """The energies of five runs, in an order of columns and under letters that belong to the key."""
    while True:
        z = np.array([[rng.gauss(3 * (n % 3 - 1), 0.7), rng.gauss(1.5 * (n % 2), 0.7)] for n in range(18)])
        z, start = z - z.mean(0), z[rng.sample(range(18), 4)]
        variance, unit = float((z**2).sum(1).mean()), 2 * largest(z.T @ z / len(z))
        flat, cooling, heating = np.ones(8), np.geomspace(0.8, 0.1, 8), np.geomspace(0.06, 0.42, 8)
        heats = {"hot": 1.6 * flat, "cold": 0.12 * flat, "cooling": cooling, "heating": heating, "broken": 0.12 * flat}
        rates = {"hot": 0.8, "cold": 0.5, "cooling": 0.4, "heating": 0.4, "broken": rng.uniform(2.6, 4.0)}
        runs = {kind: descend(z, start + 0.3 * (kind != "hot"), unit * heats[kind], rates[kind]) for kind in KINDS}
        if _telling(runs, variance):
            break
    columns, letters = rng.sample(range(3), 3), rng.sample(KINDS, 5)
    return {
        "prototypes": 4,
        "variance": round(variance, 3),
        "records": {
            letter: [tuple(round(float(row[c]), 4) for c in columns) for row in runs[kind]]
            for letter, kind in zip("ABCDE", letters)
        },
    }


def _telling(runs, variance):
    """Whether the records show what they should, by a margin."""
    up = {kind: (np.diff(rows, axis=0) > 0.005 * variance).sum(0) for kind, rows in runs.items()}
    end = {kind: rows[-1] / variance for kind, rows in runs.items()}
    apart = min(min(rows[:, 2] - rows[:, 0]) for rows in runs.values())
    return (
        apart > 0.003 * variance
        and up["hot"][0] >= 2
        and up["cooling"][1] >= 2
        and up["heating"][2] >= 1
        and up["broken"][1] >= 2
        and end["cold"][2] < 0.9
        and end["cooling"][2] < 0.9
        and end["hot"][2] > 1.001
        and end["broken"][2] < 0.9
        and end["heating"][2] < 0.9
    )


def column_of(instance):
    """{"L_q": index, ...}: F <= L_q <= W."""
    rows = np.array([row for rows in instance["records"].values() for row in rows]).mean(0)
    low, middle, high = (int(i) for i in rows.argsort())
    return {"L_q": middle, "F": low, "W": high}


def kind_of(instance):
    """{letter: kind}, by the temperatures (W - F) / log K."""
    where, found = column_of(instance), {}
    for letter, rows in instance["records"].items():
        rows = np.array(rows)
        free, top = rows[:, where["F"]], rows[:, where["W"]]
        heat = (top - free) / math.log(instance["prototypes"])
        if heat[-1] / heat[0] > 1.5 or heat[0] / heat[-1] > 1.5:
            found[letter] = "heating" if heat[-1] > heat[0] else "cooling"
        elif np.diff(free).max() > 1e-3:
            found[letter] = "broken"
        else:
            found[letter] = "hot" if top[-1] > instance["variance"] else "cold"
    return found


def words(instance, swap=()):
    name = {"hot": "constant", "cold": "constant"}
    other = dict([swap, swap[::-1]]) if swap else {}
    kinds = {letter: other.get(kind, kind) for letter, kind in kind_of(instance).items()}
    return {letter: name.get(kind, kind) for letter, kind in kinds.items()}


def certified(instance, kinds=("cold", "cooling")):
    return sorted(letter for letter, kind in kind_of(instance).items() if kind in kinds)


def columns_swapped(one, other):
    def gives(instance):
        right = column_of(instance)
        return right | {one: right[other], other: right[one]}

    return gives


COLUMNS = [
    Mistake(
        "F and L_q",
        "F and L_q are exchanged. F is L_q less T times an entropy, and an entropy is not negative.",
        columns_swapped("F", "L_q"),
    ),
    Mistake(
        "L_q and W",
        "L_q and W are exchanged. W is L_q plus T times a divergence, and a divergence is not negative.",
        columns_swapped("L_q", "W"),
    ),
    Mistake(
        "F and W",
        "F and W are exchanged. They differ by T log K: with which sign?",
        columns_swapped("F", "W"),
    ),
]
RUNS = [
    Mistake(
        "F trusted under cooling",
        "A rise of F does not prove a fault where the temperature falls. Get the temperature from two of the columns.",
        lambda instance: words(instance, ("cooling", "broken")),
    ),
    Mistake(
        "heating for cooling",
        "Heating and cooling are exchanged. How does the difference of F and W depend on T?",
        lambda instance: words(instance, ("cooling", "heating")),
    ),
    Mistake(
        "L_q trusted",
        "A rise of L_q does not prove a fault with q held fixed, not even at constant temperature.",
        lambda instance: words(instance, ("hot", "broken")),
    ),
    Mistake(
        "W trusted under heating",
        "A rise of W does not prove a fault where the temperature rises.",
        lambda instance: words(instance, ("heating", "broken")),
    ),
    Mistake(
        "fault overlooked",
        "In the run with the step that is too large F rises at a constant temperature, which it may not.",
        lambda instance: words(instance, ("cold", "broken")),
    ),
]
CERTIFIED = [
    Mistake(
        "heating counted",
        "Under heating W may rise again, so a low value certifies nothing there.",
        lambda instance: certified(instance, ("cold", "cooling", "heating")),
    ),
    Mistake(
        "broken counted",
        "With steps that are too large W may rise again, so a low value certifies nothing there.",
        lambda instance: certified(instance, ("cold", "cooling", "broken")),
    ),
    Mistake(
        "any low value",
        "A low value of W certifies something only if W cannot rise later. Look at the temperature and at the steps.",
        lambda instance: certified(instance, ("cold", "cooling", "heating", "broken")),
    ),
    Mistake(
        "F for W",
        "F is low for a bank that has collapsed, too. Which energy is never below the cost of the nearest prototypes?",
        lambda instance: certified(instance, ("cold", "cooling", "hot")),
    ),
    Mistake(
        "all of them",
        "F is low for a bank that has collapsed, too, and there are runs in which no energy is sure to fall.",
        lambda instance: certified(instance, KINDS),
    ),
    Mistake(
        "cooling left out",
        "The certificate holds under any cooling: W does not rise then.",
        lambda instance: certified(instance, ("cold",)),
    ),
]

# ---------------------------------------------------------------- 6. the race


def racers(instance):
    draw = torch.Generator().manual_seed(instance["seed"] + 2)
    x = 0.08 * torch.randn(20, generator=draw, dtype=torch.float64)
    x[:10] += 1
    x[10:] -= 1
    x = (instance["gain"] * (x - x.mean())).numpy()
    return x, instance["cold"] * 4 * float(x.var())


def left(instance, eps, start, steps):
    """Share of the variance left after joint steps of 0.1, two prototypes, q attached."""
    x, temperature = racers(instance)
    eps = np.asarray(eps)[:, None]
    gain, bank = np.ones_like(eps), start * np.repeat([[1.0, -1.0]], len(eps), 0)
    for _ in range(steps):
        r = (gain * x)[..., None] - bank[:, None]
        d = r**2
        q = 1 / (1 + np.exp(np.clip((d - d[..., ::-1]) / temperature, -60, 60)))
        pull = q * (1 - (d - (q * d).sum(-1, keepdims=True)) / temperature) * r
        gain = gain - 0.2 * eps * (pull.sum(-1) * x).mean(1, keepdims=True)
        bank = bank + 0.2 * pull.mean(1)
    return gain[:, 0] ** 2


@once
def threshold(instance, small=1.0, steps=400):
    """The largest eps below 2 that leaves more than 1% of the variance, by two scans."""
    low, high = 0.002, 4.0
    for _ in range(2):
        grid = np.geomspace(low, high, 40)
        dead = int(np.argmax(left(instance, grid, small * instance["begin"], steps) < 0.01))
        low, high = grid[dead - 1], grid[dead]
    return float(low)


def estimate(instance, small=1.0):
    x, temperature = racers(instance)
    r = 1 / instance["cold"]
    reach = math.log(math.sqrt(temperature / 4) / (small * instance["begin"]))
    return (r - 1 - math.log(r)) / (4 * float(x.var()) * reach)


THRESHOLD = [
    Mistake(
        "the estimate",
        "This is the chapter's estimate. It asks the bank to open before the tokens are small, "
        "not before 1% is left: measure.",
        estimate,
    ),
    Mistake(
        "inverted",
        "This is the prototypes' rate over the encoder's. The ratio is the other way round.",
        lambda instance: 1 / threshold(instance),
    ),
    Mistake(
        "too early",
        "After so few steps a run that will die is still alive. Use the number of steps that is asked for.",
        lambda instance: threshold(instance, steps=40),
    ),
    Mistake(
        "the other start",
        "This is for the smaller start.",
        lambda instance: threshold(instance, 0.1),
    ),
]
SMALLER = [
    Mistake(
        "universal",
        "This is the threshold of the first start. Does a bank that begins closer together need more time, or less?",
        threshold,
    ),
    Mistake(
        "in proportion",
        "This is a tenth of the first threshold. Offsets grow exponentially: what does a tenth of the start cost?",
        lambda instance: threshold(instance) / 10,
    ),
    Mistake(
        "the estimate",
        "This is the chapter's estimate. It asks the bank to open before the tokens are small, "
        "not before 1% is left: measure.",
        lambda instance: estimate(instance, 0.1),
    ),
    Mistake(
        "inverted",
        "This is the prototypes' rate over the encoder's. The ratio is the other way round.",
        lambda instance: 1 / threshold(instance, 0.1),
    ),
]
LIBRARY = ("critical_temperature", "critical_temperature_by", "splitting_temperatures")
CHECKS = {
    "critical-fixed": Check(critical, some_cloud(False), criticals(False), LIBRARY),
    "critical-attached": Check(critical, some_cloud(True), criticals(True), LIBRARY),
    "critical-padding": Check(as_tensor, some_cloud(True, float("nan")), NOT_A_NUMBER, LIBRARY),
    "growth-step": Check(
        lambda ratio, count, lr: 1 + 2 * lr / count * (1 / ratio - 1), some_rates, STEP, ("fit",), trials=4
    ),
    "growth-em": Check(lambda ratio, count, lr: 1 / ratio, some_rates, EM, ("em_step",), trials=4),
    "half-life": Check(
        lambda share, lr: math.log(2) / -math.log(1 - 2 * lr * share), some_share, HALF, ("fit",), trials=4
    ),
    "leaves": Check(leaves, mistakes=LEAVES, tolerance=0.05),
    "returns": Check(returns, mistakes=RETURNS, tolerance=0.05),
    "next-split": Check(next_split, some_groups, NEXT, LIBRARY),
    "first-split": Check(first_split, mistakes=FIRST, tolerance=0.05),
    "energies": Check(column_of, mistakes=COLUMNS),
    "runs": Check(words, mistakes=RUNS),
    "certified": Check(certified, mistakes=CERTIFIED),
    "threshold": Check(threshold, mistakes=THRESHOLD, tolerance=0.02),
    "smaller": Check(lambda instance: threshold(instance, 0.1), mistakes=SMALLER, tolerance=0.02),
}
