"""Set 1: what its checks compare with. Written with loops and numpy, apart from the library."""

import base64
import math

import numpy as np
import torch

from exercises.checks import Check, Mistake

WORDS = ["healthy", "prototypes", "dead", "tokens"]
MODELS = {  # own noise, what a sequence shares, size of the bank, how far most prototypes are pushed out
    "healthy": (1.0, 0.3, 1.0, 0.0),
    "prototypes": (1.0, 0.3, 1e-6, 0.0),
    "dead": (1.0, 0.3, 1.0, 12.0),
    "tokens": (0.02, 1.0, 1.0, 0.0),
}
SHAPE, BANK = (24, 5, 6), (12, 6)


def instance(rng) -> dict:
    """The numbers of a course."""
    scale = round(rng.uniform(0.5, 3.0), 2)
    order = rng.sample(WORDS, 4)
    jitter = [round(rng.uniform(0.9, 1.1), 3) for _ in order]
    while True:
        made = {
            "seed": rng.randrange(10**6),
            "sequences": rng.randint(9, 14),
            "length": rng.randint(16, 24),
            "features": rng.randint(5, 8),
            "prototypes": rng.randint(10, 13),
            "scale": scale,
            "temperature": round(rng.uniform(0.2, 0.6), 3),
        }
        if abs(measured_perplexity(made, soft=True) / measured_perplexity(made) - 1) > 0.01:
            break
    models = {name: left_behind(rng, *(f * v for v in MODELS[w])) for name, w, f in zip("ABCD", order, jitter)}
    return made | {"models": models}


def left_behind(rng, own, shared, size, away) -> str:
    """Tokens and a bank in float32, packed."""

    def normal(*shape):
        return np.array([rng.gauss(0, 1) for _ in range(math.prod(shape))]).reshape(shape)

    z = own * normal(*SHAPE) + shared * normal(SHAPE[0], 1, SHAPE[2])
    p = size * normal(*BANK)
    p[3:] += away * p[3:] / np.linalg.norm(p[3:], axis=1, keepdims=True)
    return base64.b64encode(np.concatenate([z.ravel(), p.ravel()]).astype("<f4").tobytes()).decode()


# ---------------------------------------------------------------- 1. the weights


def assign(tokens, prototypes, temperature, mask=None, square=True, sign=-1.0, axis=-1):
    z, p = tokens.double().numpy(), prototypes.double().numpy()
    out = np.zeros((*z.shape[:-1], len(p)))
    for place in np.ndindex(*z.shape[:-1]):
        for k in range(len(p)):
            distance = math.dist(z[place], p[k])
            out[place + (k,)] = sign * (distance**2 if square else distance) / temperature
    out = np.exp(out - out.max(axis, keepdims=True))
    out = out / out.sum(axis, keepdims=True)
    if mask is not None:
        out[~mask.numpy()] = 0.0
    return torch.from_numpy(out)


def some_tokens(generator, instance, mask=False, temperature=0.7):
    sizes = torch.randint(2, 5, (3,), generator=generator).cumsum(0)  # all different
    batch, count, dim = sizes.tolist()
    bank = int(sizes[-1]) + 2
    inputs = {
        "tokens": torch.randn(batch, count, dim, generator=generator),
        "prototypes": torch.randn(bank, dim, generator=generator),
        "temperature": temperature,
    }
    if mask:
        inputs["mask"] = torch.rand(batch, count, generator=generator) < 0.6
        inputs["mask"][0, :3] = torch.tensor([True, False, False])
    return inputs


def masked_tokens(generator, instance):
    inputs = some_tokens(generator, instance, mask=True)
    inputs["tokens"][~inputs["mask"]] = 7.0
    inputs["tokens"][0, 1] = float("nan")
    return inputs


def clean(tokens, mask):
    return torch.where(mask[..., None], tokens, 0)


def far_tokens(generator, instance):
    inputs = some_tokens(generator, instance, temperature=1e-4)
    return inputs | {"tokens": 30 * inputs["tokens"]}


def naive(tokens, prototypes, temperature):
    weights = torch.exp(-(tokens[..., None, :] - prototypes).square().sum(-1) / temperature)
    return weights / weights.sum(-1, keepdim=True)


def one_hot(tokens, prototypes, temperature):
    nearest = torch.cdist(tokens, prototypes.expand(len(tokens), -1, -1)).argmin(-1)
    return torch.nn.functional.one_hot(nearest, len(prototypes)).double()


ASSIGN = [
    Mistake(
        "wrong axis",
        "The weights sum to 1 over the tokens. It is each token that divides itself among the prototypes: "
        "the last axis.",
        lambda tokens, prototypes, temperature: assign(tokens, prototypes, temperature, axis=-2),
    ),
    Mistake(
        "T and 1/T swapped",
        "A higher temperature makes these weights sharper. It divides the squared distance; it does not multiply it.",
        lambda tokens, prototypes, temperature: assign(tokens, prototypes, 1 / temperature),
    ),
    Mistake(
        "distance not squared",
        "These are the weights for the distance. The exponent has its square.",
        lambda tokens, prototypes, temperature: assign(tokens, prototypes, temperature, square=False),
    ),
    Mistake(
        "factor 2",
        "These are the weights at twice the temperature: the Gaussian habit of a 2 below the square. "
        "This layer has none.",
        lambda tokens, prototypes, temperature: assign(tokens, prototypes, 2 * temperature),
    ),
    Mistake(
        "sign",
        "The farthest prototype has the largest weight: there is a minus in the exponent.",
        lambda tokens, prototypes, temperature: assign(tokens, prototypes, temperature, sign=1.0),
    ),
    Mistake(
        "dot products",
        "These are plain dot products, as in attention. "
        "Without the bias -|p|^2/T they are right only for prototypes on a sphere.",
        lambda tokens, prototypes, temperature: torch.softmax(
            2 * tokens.double() @ prototypes.double().T / temperature, -1
        ),
    ),
    Mistake(
        "hard", "Each token takes its nearest prototype alone: that is the limit T to 0, not the weights at T.", one_hot
    ),
]
MASK = [
    Mistake(
        "mask ignored",
        "Masked tokens have weights. Their rows are 0.",
        lambda tokens, prototypes, temperature, mask: assign(tokens, prototypes, temperature),
    ),
    Mistake(
        "mask multiplied",
        "What stands in the padding comes through: 0 times NaN is NaN. Choose with torch.where, do not multiply.",
        lambda tokens, prototypes, temperature, mask: assign(tokens, prototypes, temperature) * mask[..., None],
    ),
    Mistake(
        "mask inverted",
        "The real tokens have weight 0 and the padding has weights: True stands for a real token.",
        lambda tokens, prototypes, temperature, mask: assign(tokens, prototypes, temperature, ~mask),
    ),
]
COLD = [
    Mistake(
        "underflow",
        "Cold tokens give 0/0. Every exponential underflows: "
        "subtract the largest exponent of a row first, or use torch.softmax.",
        naive,
    ),
    *ASSIGN[:-1],
]

# ---------------------------------------------------------------- 2. use


def some_weights(generator, instance):
    sizes = (torch.randint(2, 4, (3,), generator=generator).cumsum(0) + torch.tensor([1, 3, 4])).tolist()
    logits = 2 * torch.randn(*sizes, generator=generator) + 2 * torch.randn(sizes[-1], generator=generator)
    mask = torch.rand(sizes[:2], generator=generator) < 0.6
    mask[0, :2] = torch.tensor([True, False])
    weights = torch.softmax(logits, -1)
    hidden = torch.nn.functional.one_hot(torch.arange(mask.numel()) % sizes[-1], sizes[-1]).reshape(*sizes).float()
    weights = torch.where(mask[..., None], weights, hidden)  # padding chooses every prototype
    return {"weights": weights, "mask": mask}


def histogram(weights, mask):
    counts = [0] * weights.shape[-1]
    for row in weights[mask].tolist():
        counts[row.index(max(row))] += 1
    return counts


def usage(weights, mask):
    counts = histogram(weights, mask)
    return sum(count > 0 for count in counts) / len(counts)


def entropy(counts, log=math.log):
    return -sum(c / sum(counts) * log(c / sum(counts)) for c in counts if c)


def perplexity(weights, mask):
    return math.exp(entropy(histogram(weights, mask)))


def every(mask):
    return torch.ones_like(mask)


USAGE = [
    Mistake(
        "soft usage",
        "This counts weights above 0. A softmax gives all of them: the number is 1 for a dead codebook, too. "
        "Count largest weights.",
        lambda weights, mask: 1.0,
    ),
    Mistake(
        "mask ignored",
        "The padding votes. Count the real tokens only.",
        lambda weights, mask: usage(weights, every(mask)),
    ),
    Mistake(
        "count, not share",
        "This is how many prototypes are used. Usage is their share: divide by K.",
        lambda weights, mask: usage(weights, mask) * weights.shape[-1],
    ),
    Mistake(
        "per sequence",
        "This is the mean of the usage of each sequence. Pool the tokens of all sequences first: "
        "a code may serve one of them.",
        lambda weights, mask: float(np.mean([usage(w[None], m[None]) for w, m in zip(weights, mask) if m.any()])),
    ),
]
PERPLEXITY = [
    Mistake(
        "soft perplexity",
        "This is the perplexity of the mean weights. A bank in full collapse scores K by it. "
        "Take the histogram of the largest weights.",
        lambda weights, mask: math.exp(entropy(weights[mask].double().mean(0).tolist())),
    ),
    Mistake(
        "entropy",
        "This is the entropy. Perplexity is its exponential: a number of prototypes.",
        lambda weights, mask: entropy(histogram(weights, mask)),
    ),
    Mistake(
        "two logarithms",
        "The entropy is in bits and the exponential in nats. Use one base for both.",
        lambda weights, mask: math.exp(entropy(histogram(weights, mask), math.log2)),
    ),
    Mistake(
        "mask ignored",
        "The padding votes. Count the real tokens only.",
        lambda weights, mask: perplexity(weights, every(mask)),
    ),
]

# ---------------------------------------------------------------- 3. mean cosine


def two_sequences(generator, instance):
    n, more, dim = torch.randint(2, 6, (3,), generator=generator).tolist()
    m, unit = n + more, torch.nn.functional.normalize
    u, v = (
        unit(torch.randn(size, dim, generator=generator) + torch.randn(dim, generator=generator), dim=-1).double()
        for size in (n, m)
    )
    r, a, b = (float(each.mean(0).norm()) for each in (torch.cat([u, v]), u, v))
    return {"r": r, "a": a, "b": b, "n": n, "m": m}


def cosine_across(r, a, b, n, m):
    return (((n + m) * r) ** 2 - (n * a) ** 2 - (m * b) ** 2) / (2 * n * m)


UNSQUARED = "A resultant is a length. Sums of cosines are squares of lengths."
COSINE = [
    Mistake(
        "each pair twice",
        "In the square of the sum each pair across is there twice.",
        lambda r, a, b, n, m: 2 * cosine_across(r, a, b, n, m),
    ),
    Mistake(
        "all pairs",
        "This averages over all pairs, those within a sequence and each token with itself included.",
        lambda r, a, b, n, m: r**2,
    ),
    Mistake("not squared", UNSQUARED, lambda r, a, b, n, m: ((n + m) * r - n * a - m * b) / (2 * n * m)),
    Mistake("not squared", UNSQUARED, lambda r, a, b, n, m: ((n + m) ** 2 * r - n**2 * a - m**2 * b) / (2 * n * m)),
    Mistake(
        "all pairs i != j",
        "These are all pairs i != j: take out those within a sequence.",
        lambda r, a, b, n, m: ((n + m) * r**2 - 1) / (n + m - 1),
    ),
    Mistake(
        "count kept",
        "The pairs within a sequence are out of the sum, but not out of the count.",
        lambda r, a, b, n, m: cosine_across(r, a, b, n, m) * 2 * n * m / ((n + m) * (n + m - 1)),
    ),
    Mistake(
        "one direction",
        "This takes it that both sums point the same way. How they lie to each other is what r tells.",
        lambda r, a, b, n, m: a * b,
    ),
    Mistake(
        "means for sums",
        "A resultant belongs to a mean. Make it a sum before you expand squares: n and m differ.",
        lambda r, a, b, n, m: (4 * r**2 - a**2 - b**2) / 2,
    ),
]

# ---------------------------------------------------------------- 4. measure it


def cloud(instance):
    draw = torch.Generator().manual_seed(instance["seed"])
    shape = instance["sequences"], instance["length"], instance["features"]
    tokens = instance["scale"] * torch.randn(*shape, generator=draw, dtype=torch.float64)
    tokens[..., 0] *= 3
    bank = 0.3 * instance["scale"] * torch.randn(instance["prototypes"], shape[2], generator=draw, dtype=torch.float64)
    lengths = torch.randint(3, shape[1] + 1, shape[:1], generator=draw)
    mask = torch.arange(shape[1]) < lengths[:, None]
    tokens, bank = tokens + 2 * instance["scale"], bank + 2 * instance["scale"]
    tokens[~mask] = 50.0
    return tokens, bank, mask


def deviation(rows):
    return float(np.sqrt(np.trace(np.cov(rows.numpy().T, bias=True))))


def smallest(bank):
    return min(math.dist(a, b) for i, a in enumerate(bank.tolist()) for b in bank.tolist()[:i])


def separation(instance, padded=False, unit=deviation):
    tokens, bank, mask = cloud(instance)
    return smallest(bank) / unit(tokens.flatten(0, 1) if padded else tokens[mask])


def rank(instance, padded=False, centred=True):
    tokens, _, mask = cloud(instance)
    rows = (tokens.flatten(0, 1) if padded else tokens[mask]).numpy()
    values = np.linalg.svd(rows - rows.mean(0) if centred else rows, compute_uv=False)
    return math.exp(entropy(values.tolist()))


def measured_perplexity(instance, padded=False, soft=False):
    tokens, bank, mask = cloud(instance)
    weights = assign(tokens, bank, instance["temperature"])
    mask = every(mask) if padded else mask
    counts = weights[mask].mean(0).tolist() if soft else histogram(weights, mask)
    return math.exp(entropy(counts))


def one_less(rows):
    return deviation(rows) * math.sqrt(len(rows) / (len(rows) - 1))


SEPARATION = [
    Mistake(
        "no unit",
        "This is a plain distance. Give it in standard deviations of the tokens.",
        lambda instance: separation(instance, unit=lambda rows: 1.0),
    ),
    Mistake(
        "mask ignored",
        "The padding is in the standard deviation. Pass the mask.",
        lambda instance: separation(instance, padded=True),
    ),
    Mistake(
        "one feature's deviation",
        "This is in standard deviations of a single feature. The unit is that of the whole cloud: "
        "the square root of the trace.",
        lambda instance: separation(instance, unit=lambda rows: float(rows.std(correction=0))),
    ),
    Mistake(
        "the bank's deviation",
        "This is in standard deviations of the bank. "
        "A bank that shrinks takes that unit along and never looks collapsed.",
        lambda instance: smallest(cloud(instance)[1]) / deviation(cloud(instance)[1]),
    ),
    Mistake(
        "1/(N - 1)",
        "The covariance is a mean: divide by N, not by N - 1.",
        lambda instance: separation(instance, unit=one_less),
    ),
]
RANK = [
    Mistake(
        "mask ignored", "The padding is in the spectrum. Pass the mask.", lambda instance: rank(instance, padded=True)
    ),
    Mistake(
        "not centred",
        "These are the singular values of the tokens as they are. Take their mean off first.",
        lambda instance: rank(instance, centred=False),
    ),
]
MEASURED = [
    Mistake(
        "mask ignored",
        "The padding votes. Pass the mask to the measure, too.",
        lambda instance: measured_perplexity(instance, padded=True),
    ),
    Mistake(
        "soft perplexity",
        "This is the perplexity of the mean weights, by which a bank that has run together scores K.",
        lambda instance: measured_perplexity(instance, soft=True),
    ),
]

# ---------------------------------------------------------------- 5. diagnosis


def word(text):
    """What is the matter with a model, from what it left behind."""
    rows = np.frombuffer(base64.b64decode(text), "<f4").astype(float)
    z, p = rows[: math.prod(SHAPE)].reshape(SHAPE), rows[math.prod(SHAPE) :].reshape(BANK)
    flat = z.reshape(-1, SHAPE[2])
    unit = math.sqrt(flat.var(0).sum())
    if min(math.dist(a, b) for i, a in enumerate(p) for b in p[:i]) < 1e-3 * unit:
        return "prototypes"
    if math.sqrt(z.var(1).sum(-1).mean()) < 0.1 * unit:
        return "tokens"
    used = {int(((p - row) ** 2).sum(1).argmin()) for row in flat}
    return "dead" if len(used) < len(p) / 2 else "healthy"


def diagnosis(instance):
    return {name: word(text) for name, text in instance["models"].items()}


SEES = {
    "prototypes": "separation, token sd",
    "dead": "usage by argmax",
    "tokens": "mean cosine, within a sequence",
}


def witness(instance, sees=SEES):
    return {name: sees[w] for name, w in diagnosis(instance).items() if w != "healthy"}


def confused(one, other):
    swap = {one: other, other: one}
    return lambda instance: {name: swap.get(word, word) for name, word in diagnosis(instance).items()}


DIAGNOSIS = [
    Mistake(
        "usage trusted",
        "The model that you call healthy has prototypes that coincide for every practical purpose. "
        "Look at a measure with a unit.",
        confused("healthy", "prototypes"),
    ),
    Mistake(
        "dead taken for collapsed",
        "Dead prototypes and prototypes that have run together are exchanged. "
        "How far apart are the closest two in each?",
        confused("dead", "prototypes"),
    ),
    Mistake(
        "pooled cosine trusted",
        "Look within the sequences: in the model that you call healthy the tokens "
        "of each agree, though those of different ones do not.",
        confused("healthy", "tokens"),
    ),
    Mistake(
        "dead taken for healthy",
        "The model that you call healthy serves nearly all tokens with a few prototypes. "
        "Count them by their largest weights.",
        confused("healthy", "dead"),
    ),
]
WITNESS = [
    *(
        Mistake(
            "one for all",
            "One measure is named for all. Each of the three sees one collapse and misses the other two.",
            lambda instance, name=name: witness(instance, dict.fromkeys(SEES, name)),
        )
        for name in SEES.values()
    ),
    Mistake(
        "use for distance",
        "Usage and separation are exchanged. The one counts prototypes, the other is a distance between two.",
        lambda instance: witness(instance, SEES | {"prototypes": SEES["dead"], "dead": SEES["prototypes"]}),
    ),
]
CHECKS = {
    "assign": Check(assign, some_tokens, ASSIGN, ("assign",)),
    "assign-mask": Check(
        lambda tokens, mask, **rest: assign(clean(tokens, mask), mask=mask, **rest), masked_tokens, MASK, ("assign",)
    ),
    "assign-cold": Check(assign, far_tokens, COLD, ("assign",)),
    "usage": Check(usage, some_weights, USAGE, ("usage", "perplexity", "checkup")),
    "perplexity": Check(perplexity, some_weights, PERPLEXITY, ("usage", "perplexity", "checkup")),
    "cosine": Check(cosine_across, two_sequences, COSINE, trials=4),
    "separation": Check(separation, mistakes=SEPARATION),
    "rank": Check(rank, mistakes=RANK),
    "measured-perplexity": Check(measured_perplexity, mistakes=MEASURED),
    "diagnosis": Check(diagnosis, mistakes=DIAGNOSIS),
    "witness": Check(witness, mistakes=WITNESS),
}
