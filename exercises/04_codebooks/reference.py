"""Set 4: what its checks compare with. Written with loops and numpy, apart from the library."""

import copy
import functools
import math
import random

import numpy as np
import torch

from exercises.checks import Check, Mistake

WORDS = ["healthy", "dead", "collapsed", "warm", "undone"]
COLUMNS = ["usage", "separation", "variance", "nearest", "mixture"]
EPOCHS = 12  # of the log of exercise 4


def instance(rng) -> dict:
    """The numbers of a course."""
    return copy.deepcopy(drawn(rng.getrandbits(64)))


@functools.lru_cache(256)
def drawn(seed):
    """The instance of this seed: drawn until every mistake can be told from the truth."""
    rng = random.Random(seed)
    while True:
        one = {
            "seed": rng.randrange(10**6),
            "count": rng.randint(200, 260),
            "codes": rng.randint(12, 15),
            "scale": round(rng.choice([rng.uniform(0.2, 0.4), rng.uniform(2.5, 4)]), 2),
            "ratio": round(rng.uniform(0.06, 0.12), 3),
            "allowed": round(rng.uniform(1.0, 2.0), 2),
        }
        one["apart"] = bar(one, rng)
        if one["apart"] and clear(one):
            break
    one["launches"] = rng.randint(36, 44)
    while not told(one, siblings, SIBLINGS, 1e-4):
        one["launches"] += 1
    kinds = rng.choice(["hard", "soft"]), "soft"
    kinds = dict(zip(WORDS, (*kinds, "soft", "soft", "hard")))
    one["runs"] = {}
    for name, word in zip("ABCDE", rng.sample(WORDS, 5)):
        log = None
        while log is None:
            log = written(word, kinds[word], rng.randrange(10**6))
        rows = zip(*(log[column] for column in COLUMNS))
        one["runs"][name] = [" ".join(f"{value:7.4g}" for value in row) for row in rows]
    return one


def told(one, truth, mistakes, tolerance):
    """Whether every mistake is three tolerances away from the truth."""
    right = truth(one)
    for mistake in mistakes:
        wrong = mistake.gives(one)
        pairs = zip(right.values(), wrong.values()) if isinstance(right, dict) else [(right, wrong)]
        if all(abs(w - r) <= 3 * tolerance * abs(r) for r, w in pairs):
            return False
    return True


# ---------------------------------------------------------------- 1. straight through


def some_codes(generator, instance):
    sizes = torch.randperm(4, generator=generator).tolist()
    dim, bank, out = 3 + sizes[0], 7 + sizes[1], 2
    count = 12 + sizes[2]
    draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
    return {
        "tokens": 1 + draw(count, dim),
        "codes": 1 + 0.8 * draw(bank, dim),
        "matrix": 0.5 * draw(dim, out),
        "target": draw(count, out),
    }


def some_losses(generator, instance):
    inputs = some_codes(generator, instance)
    commitment = 0.2 + 0.5 * float(torch.rand(1, generator=generator))
    return {"tokens": inputs["tokens"], "codes": inputs["codes"], "commitment": commitment}


def some_mixtures(generator, instance):
    return some_codes(generator, instance) | {"temperature": 1.5 + float(torch.rand(1, generator=generator))}


def nearest(z, p, how="nearest"):
    found = []
    for row in z:
        distances = [math.dist(row, code) for code in p]
        score = {"nearest": [-d for d in distances], "farthest": distances, "product": (p @ row).tolist()}[how]
        found.append(int(np.argmax(score)))
    return found


def numbers(*tensors):
    return [tensor.double().numpy() for tensor in tensors]


def picked(tokens, codes, how="nearest", **_):
    z, p = numbers(tokens, codes)
    index = nearest(z, p, how)
    return {"tokens": torch.from_numpy(p[index]), "index": torch.tensor(index)}


def blended(tokens, codes, matrix, target):
    found = picked(tokens, codes)
    return {"tokens": 2 * tokens - found["tokens"], "index": found["index"]}


def slope(y, matrix, target):
    """The gradient of sum (y A - b)^2."""
    return 2 * (y @ matrix - target) @ matrix.T


def through(tokens, codes, matrix, target, at="code", tokens_get=1.0, codes_get=0.0):
    """The decoder's gradient for the tokens, and below it for the codes."""
    z, p, a, b = numbers(tokens, codes, matrix, target)
    index = nearest(z, p)
    g = slope(p[index] if at == "code" else z, a, b)
    into = np.zeros_like(p)
    for n, k in enumerate(index):
        into[k] += codes_get * g[n]
    return torch.from_numpy(np.concatenate([tokens_get * g, into]))


def loss(tokens, codes, commitment, pull=1.0, keep=None, over="tokens", pull_value=1.0, keep_value=None):
    """The value of the loss, and its gradients. pull: of the codes; keep: of the tokens, `commitment` if None."""
    z, p = numbers(tokens, codes)
    keep = commitment if keep is None else keep
    keep_value = commitment if keep_value is None else keep_value
    share = {"tokens": 1 / len(z), "sum": 1.0, "features": 1 / z.size}[over]
    value, to_z, to_p = 0.0, np.zeros_like(z), np.zeros_like(p)
    for n, k in enumerate(nearest(z, p)):
        offset = z[n] - p[k]
        value += share * (pull_value + keep_value) * float(offset @ offset)
        to_z[n] += 2 * share * keep * offset
        to_p[k] -= 2 * share * pull * offset
    return torch.from_numpy(np.concatenate([[value], to_z.ravel(), to_p.ravel()]))


def mixed(tokens, codes, matrix, target, temperature, value="code", tokens_by="mixture", codes_by="mixture"):
    """The stand-ins, and the gradients of tokens and codes that a decoder behind them gives."""
    z, p, a, b = numbers(tokens, codes, matrix, target)
    index = nearest(z, p)
    to_z, to_p, out = np.zeros_like(z), np.zeros_like(p), np.zeros_like(z)
    for n, row in enumerate(z):
        weights = np.array([math.exp(-(math.dist(row, code) ** 2) / temperature) for code in p])
        weights /= weights.sum()
        mu = sum(w * code for w, code in zip(weights, p))
        out[n] = p[index[n]] if value == "code" else mu
        g = slope(out[n], a, b[n])
        if tokens_by == "itself":
            to_z[n] = g
        for k, (w, code) in enumerate(zip(weights, p)):
            along = float((code - mu) @ g)
            if tokens_by == "mixture":
                to_z[n] += 2 / temperature * w * along * (code - mu)
            if codes_by in ("mixture", "values"):
                to_p[k] += w * g
            if codes_by in ("mixture", "weights"):
                to_p[k] += 2 / temperature * w * along * (row - code)
        if codes_by == "nearest":
            to_p[index[n]] += g
    return {"tokens": torch.from_numpy(out), "gradients": torch.from_numpy(np.concatenate([to_z, to_p]))}


VALUES = [
    Mistake(
        "farthest code",
        "The code that is farthest is chosen. Nearest is the smallest distance.",
        lambda **inputs: picked(**inputs, how="farthest"),
    ),
    Mistake(
        "largest product",
        "The code with the largest dot product is chosen. It is the nearest one only if all codes have one length.",
        lambda **inputs: picked(**inputs, how="product"),
    ),
    Mistake(
        "token kept",
        "The stand-ins are the tokens themselves. A token comes in, and a code goes out.",
        lambda **inputs: picked(**inputs) | {"tokens": inputs["tokens"]},
    ),
    Mistake(
        "difference reversed",
        "The stand-in lies on the other side of the token: the difference that is added has the wrong sign.",
        blended,
    ),
]
GRADIENT = [
    Mistake(
        "no gradient",
        "No gradient comes through. What has been cut off on both sides teaches nobody.",
        lambda **inputs: through(**inputs, tokens_get=0.0),
    ),
    Mistake(
        "gradient to the code",
        "The decoder's gradient reaches the codes and not the tokens: it is stopped on the wrong side. The encoder "
        "learns nothing from it.",
        lambda **inputs: through(**inputs, tokens_get=0.0, codes_get=1.0),
    ),
    Mistake(
        "gradient to both",
        "The decoder's gradient reaches the tokens, and the codes as well. Codes learn from the loss alone: what part "
        "of the stand-in should be a constant?",
        lambda **inputs: through(**inputs, codes_get=1.0),
    ),
    Mistake(
        "taken at the token",
        "This is the decoder's slope at the token. What the decoder sees is the code: it is differentiated there.",
        lambda **inputs: through(**inputs, at="token"),
    ),
]
LOSS = [
    Mistake(
        "no gradient",
        "The value is right, and no gradient comes from it: return a tensor that can be differentiated.",
        lambda tokens, codes, commitment: loss(tokens, codes, commitment, pull=0.0, keep=0.0, keep_value=commitment),
    ),
    Mistake(
        "terms exchanged",
        "The value is right and the two gradients are exchanged: `commitment` weighs what pulls tokens to codes, and "
        "not what pulls codes to tokens.",
        lambda tokens, codes, commitment: loss(tokens, codes, commitment, commitment, 1.0),
    ),
    Mistake(
        "counted twice",
        "Nothing is stopped, so each term moves both codes and tokens: everything is counted twice.",
        lambda tokens, codes, commitment: loss(tokens, codes, commitment, 1 + commitment, 1 + commitment),
    ),
    Mistake(
        "commitment left out",
        "Nothing holds the tokens near their codes: the commitment term is missing.",
        lambda tokens, codes, commitment: loss(tokens, codes, commitment, keep=0.0, keep_value=0.0),
    ),
    Mistake(
        "codes left out",
        "The codes get no gradient. Without moving averages the codebook term is all that moves them.",
        lambda tokens, codes, commitment: loss(tokens, codes, commitment, pull=0.0, pull_value=0.0),
    ),
    Mistake(
        "weight left out",
        "Both terms have the weight 1. `commitment` weighs the second.",
        lambda tokens, codes, commitment: loss(tokens, codes, commitment, keep=1.0, keep_value=1.0),
    ),
    Mistake(
        "mean over features",
        "This is a mean over tokens and features. A squared distance is a sum over the features.",
        lambda **inputs: loss(**inputs, over="features"),
    ),
    Mistake(
        "sum over tokens",
        "This is a sum over the tokens. It should be their mean.",
        lambda **inputs: loss(**inputs, over="sum"),
    ),
]
MIXED = [
    Mistake(
        "no gradient",
        "No gradient comes through, neither for the tokens nor for the codes.",
        lambda **inputs: mixed(**inputs, tokens_by="", codes_by=""),
    ),
    Mistake(
        "token's gradient",
        "This is straight-through as in VQ: the decoder's gradient is handed to the token as it is. Here it should go "
        "the way of the mixture, to tokens and codes.",
        lambda **inputs: mixed(**inputs, tokens_by="itself", codes_by=""),
    ),
    Mistake(
        "mixture's value",
        "The stand-ins are the mixtures. The gradient is that of the mixture; the value is that of the nearest code.",
        lambda **inputs: mixed(**inputs, value="mixture"),
    ),
    Mistake(
        "weights cut off",
        "No gradient passes through the weights, so that the tokens get none. Only in the loss is q held fixed.",
        lambda **inputs: mixed(**inputs, tokens_by="", codes_by="values"),
    ),
    Mistake(
        "codes cut off",
        "The tokens get their gradient, and the codes none. A mixture moves with its codes, too.",
        lambda **inputs: mixed(**inputs, codes_by=""),
    ),
    Mistake(
        "codes in the weights only",
        "The codes get a gradient through the weights, and none as what is mixed.",
        lambda **inputs: mixed(**inputs, codes_by="weights"),
    ),
    Mistake(
        "codes as values only",
        "The codes get a gradient as what is mixed, and none through the weights, which depend on them as well.",
        lambda **inputs: mixed(**inputs, codes_by="values"),
    ),
    Mistake(
        "a plain look-up",
        "The nearest code alone gets a gradient, and no token does: that is what a look-up gives by itself.",
        lambda **inputs: mixed(**inputs, tokens_by="", codes_by="nearest"),
    ),
]

# ---------------------------------------------------------------- 2. running means


def some_batch(generator, instance):
    inputs = some_codes(generator, instance)
    tokens, codes = inputs["tokens"], inputs["codes"]
    codes[-1] += 30  # the nearest of no token
    share = 0.3 + torch.rand(len(codes), generator=generator, dtype=torch.float64)
    decay = 0.6 + 0.3 * float(torch.rand(1, generator=generator))
    return {"tokens": tokens, "codes": codes, "share": share / share.sum(), "decay": decay}


def counted(tokens, codes):
    z, p = numbers(tokens, codes)
    now, sums = np.zeros(len(p)), np.zeros_like(p)
    for n, k in enumerate(nearest(z, p)):
        now[k] += 1 / len(z)
        sums[k] += z[n] / len(z)
    return p, now, sums


def new_share(tokens, codes, share, decay, unit=1.0):
    _, now, _ = counted(tokens, codes)
    return torch.from_numpy(decay * share.double().numpy() + (1 - decay) * unit * now)


def new_codes(tokens, codes, share, decay, how="right"):
    p, now, sums = counted(tokens, codes)
    old, out = share.tolist(), p.copy()
    for k in range(len(p)):
        later = decay * old[k] + (1 - decay) * now[k]
        mean = sums[k] / now[k] if now[k] else p[k]
        if how == "right":
            out[k] = (decay * old[k] * p[k] + (1 - decay) * sums[k]) / later
        elif how == "one pace":
            out[k] = decay * p[k] + (1 - decay) * mean
        elif how == "means":
            out[k] = mean
        elif how == "old share":
            out[k] = p[k] + (1 - decay) * now[k] / old[k] * (mean - p[k])
        elif how == "to zero":
            out[k] = decay * p[k] + (1 - decay) * (mean if now[k] else 0 * mean)
        elif how == "nan":
            out[k] = (decay * old[k] * p[k] + (1 - decay) * sums[k]) / later if now[k] else math.nan
    return torch.from_numpy(out)


def some_patience(generator, instance):
    while True:
        a, b, c = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
        decay, below = 0.8 + 0.19 * a, 0.05 + 0.3 * b
        keeps = 0.3 * below + 0.5 * c * below
        updates = math.log((below - keeps) / (1 - keeps)) / math.log(decay)
        if 0.05 < updates % 1 < 0.45 and updates > 3:
            return {"decay": decay, "below": below, "keeps": keeps}


def patience(decay, below, keeps):
    share, updates = 1.0, 0
    while share >= below:
        share, updates = decay * share + (1 - decay) * keeps, updates + 1
    return updates


SHARE = [
    Mistake(
        "decay exchanged",
        "The weights are exchanged: a decay near 1 should keep most of what was there.",
        lambda tokens, codes, share, decay: new_share(tokens, codes, share, 1 - decay),
    ),
    Mistake(
        "share not updated",
        "The running shares are as they were. They move with every batch.",
        lambda tokens, codes, share, decay: share,
    ),
    Mistake(
        "counts for shares",
        "Counts are averaged with shares. Divide by the number of tokens: the shares of all codes sum to 1.",
        lambda tokens, codes, share, decay: new_share(tokens, codes, share, decay, len(tokens)),
    ),
    Mistake(
        "this batch alone",
        "These are the shares of this batch. What was before should count, too.",
        lambda tokens, codes, share, decay: new_share(tokens, codes, share, 0.0),
    ),
]
MEANS = [
    Mistake(
        "decay exchanged",
        "The weights are exchanged: a decay near 1 should move the codes a little.",
        lambda tokens, codes, share, decay: new_codes(tokens, codes, share, 1 - decay),
    ),
    Mistake(
        "one pace for all",
        "Every chosen code goes the same part of its way, whatever its share. The running mean weighs each batch by "
        "how many tokens chose the code: average the sums and the shares, and divide.",
        lambda **inputs: new_codes(**inputs, how="one pace"),
    ),
    Mistake(
        "divided by the old share",
        "The sums are new and the shares that divide them are old.",
        lambda **inputs: new_codes(**inputs, how="old share"),
    ),
    Mistake(
        "pulled to zero",
        "A code that no token chose has moved towards 0. The mean of no tokens is not 0: it keeps its place.",
        lambda **inputs: new_codes(**inputs, how="to zero"),
    ),
    Mistake(
        "zero by zero",
        "A code that no token chose has become 0/0. It keeps its place.",
        lambda **inputs: new_codes(**inputs, how="nan"),
    ),
    Mistake(
        "this batch alone",
        "The codes jump to the means of this batch: that is a step of K-means. What was before should count, too.",
        lambda **inputs: new_codes(**inputs, how="means"),
    ),
]
PATIENCE = [
    Mistake(
        "what it keeps ignored",
        "This is for a code that no token chooses. Yours keeps a few, so that its share does not fall to 0.",
        lambda decay, below, keeps: patience(decay, below, 0.0),
    ),
    Mistake(
        "one too few",
        "After so many updates its share is still a little too large. Round up.",
        lambda decay, below, keeps: patience(decay, below, keeps) - 1,
    ),
    Mistake(
        "not a number of updates",
        "This is where a smooth curve crosses. Updates are counted: give the first after which it is below.",
        lambda decay, below, keeps: math.log((below - keeps) / (1 - keeps)) / math.log(decay),
    ),
    Mistake(
        "decay exchanged",
        "The weights are exchanged: `decay` is what is kept at each update, not what is replaced.",
        lambda decay, below, keeps: patience(1 - decay, below, keeps),
    ),
]

# ---------------------------------------------------------------- 3. one level


def some_level(generator, instance):
    sizes = torch.randint(1, 3, (3,), generator=generator).cumsum(0)
    batch, dim, bank = (sizes + torch.tensor([1, 1, 1])).tolist()
    count = bank + 2
    draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
    mass = torch.rand(batch, count, generator=generator, dtype=torch.float64) ** 2 + 0.02
    return {
        "tokens": draw(batch, count, dim),
        "mass": mass / mass.sum(-1, keepdim=True),
        "prototypes": draw(bank, dim),
        "temperature": 0.8 + float(torch.rand(1, generator=generator)),
    }


def padded_level(generator, instance):
    inputs = some_level(generator, instance)
    real = torch.rand(inputs["mass"].shape, generator=generator) < 0.6
    real[:, 0], real[0, 1], real[1, 2] = True, False, False
    mass = torch.where(real, inputs["mass"], 0)
    inputs["tokens"][~real] = 5.0
    inputs["tokens"][0, 1] = math.nan
    return inputs | {"mass": mass / mass.sum(-1, keepdim=True)}


def level(tokens, mass, prototypes, temperature, how="right"):
    """Below the vectors (B, K, D) the masses, as one more feature."""
    z, w, p = numbers(tokens, mass, prototypes)
    out = np.zeros((len(z), len(p), z.shape[-1] + 1))
    for b in range(len(z)):
        q = np.zeros((z.shape[1], len(p)))
        for n in range(len(q)):
            if w[b, n] == 0:
                continue
            q[n] = [math.exp(-(math.dist(z[b, n], code) ** 2) / temperature) for code in p]
        q = q / np.maximum(q.sum(0 if how == "over tokens" else 1, keepdims=True), 1e-300)
        here = w[b].copy()
        if how == "equal masses":
            here = (here > 0) / (here > 0).sum()
        share = q * here[:, None]
        for k in range(len(p)):
            total = float(share[:, k].sum())
            sums = sum((share[n, k] * z[b, n] for n in range(len(q)) if share[n, k]), np.zeros(z.shape[-1]))
            out[b, k, -1] = 1 / len(p) if how == "masses forgotten" else total
            out[b, k, :-1] = sums / total if total else 0.0
            if how == "not divided":
                out[b, k, :-1] = sums
            elif how == "divided by weights":
                out[b, k, :-1] = sums / q[:, k].sum()
            elif how == "prototypes":
                out[b, k, :-1] = p[k]
    return torch.from_numpy(out)


def wrong_level(name, sentence):
    return Mistake(name, sentence, lambda **inputs: level(**inputs, how=name))


LEVEL = [
    wrong_level(
        "equal masses",
        "All tokens count alike. Each counts by its mass: at the second level some stand for many tokens of the first.",
    ),
    wrong_level(
        "masses forgotten",
        "Every vector has the same mass. Hand on how much of the sequence each stands for: who reads the next level "
        "needs it to know the mean.",
    ),
    wrong_level("not divided", "These are sums. Divide each by the mass of its prototype: a mean is wanted."),
    wrong_level(
        "divided by weights",
        "The sums are weighted by mass, and what they are divided by is not.",
    ),
    wrong_level(
        "over tokens",
        "The weights sum to 1 over the tokens. It is each token that divides itself among the prototypes.",
    ),
    wrong_level(
        "prototypes",
        "These are the prototypes, the same for every sequence. A level hands on what the tokens are, not what the "
        "prototypes are.",
    ),
]
PADDED = [
    Mistake(
        "mass multiplied",
        "What stands in the padding comes through: 0 times NaN is NaN. Choose with torch.where before you multiply.",
        lambda tokens, mass, prototypes, temperature: torch.where(
            tokens.isnan().any(-1).any(-1)[:, None, None],
            math.nan,
            level(tokens, mass, prototypes, temperature),
        ),
    ),
]

# ---------------------------------------------------------------- 4. from soft to hard


def trained(instance):
    """Tokens, and the codes epoch by epoch."""
    draw = torch.Generator().manual_seed(instance["seed"])
    z = torch.randn(instance["count"], 3, generator=draw, dtype=torch.float64).numpy()
    z = instance["scale"] * (z * np.array([1.6, 1.0, 0.7]) + 2)
    noise = torch.randn(instance["codes"], 3, generator=draw, dtype=torch.float64).numpy()
    p = z.mean(0) + 1e-3 * instance["scale"] * noise
    log, unit = [p], critical(z)
    for epoch in range(1, EPOCHS + 1):
        for _ in range(12):
            q = softly(z, p, 0.9 * 0.7**epoch * unit)
            p = (q.T @ z) / q.sum(0)[:, None]
        log.append(p)
    return z, log


@functools.lru_cache(64)
def _trained(*values):
    """And how many codes are in use, and how far apart the closest two are, epoch by epoch."""
    z, log = trained(dict(zip(("seed", "count", "codes", "scale"), values)))
    used = [len({int(np.argmin([math.dist(row, code) for code in p])) for row in z}) / len(p) for p in log]
    return z, log, used, [closest(p) for p in log]


def cached(instance):
    return _trained(*(instance[name] for name in ("seed", "count", "codes", "scale")))


def critical(z, factor=2):
    return factor * float(np.linalg.eigvalsh(np.cov(z.T, bias=True))[-1])


def softly(z, p, temperature):
    exponents = -((z[:, None] - p) ** 2).sum(-1) / temperature
    q = np.exp(exponents - exponents.max(1, keepdims=True))
    return q / q.sum(1, keepdims=True)


def closest(p):
    return min(math.dist(a, b) for i, a in enumerate(p) for b in p[:i])


def deviation(z):
    return math.sqrt(np.trace(np.cov(z.T, bias=True)))


def epoch_of(instance, unit=True, count="argmax", separate=True):
    z, log, used, far = cached(instance)
    needed = instance["apart"] * (deviation(z) if unit else 1.0) if separate else 0.0
    for epoch in range(len(log)):
        if (used[epoch] >= 0.9 or count == "soft") and far[epoch] >= needed:
            return epoch
    return -1


def epochs_of(instance, **how):
    """The first epoch with enough usage, and the first that has the separation, too."""
    used = epoch_of(instance, count=how.get("count", "argmax"), separate=False)
    return [used, epoch_of(instance, **how)]


def bar(one, rng):
    """A separation in token deviations, clearly between what two epochs have; None if there is none."""
    z, _, _, far = cached(one)
    far = [distance / deviation(z) for distance in far]
    steps = [(max(far[:e]), far[e]) for e in range(4, EPOCHS + 1) if far[e] > max(0.04, 1.25 * max(far[:e]))]
    return float(f"{math.sqrt(math.prod(rng.choice(steps))):.3g}") if steps else None


def errors(z, p, temperature):
    """Mean squared errors of the mixture and of the nearest code, and L_q."""
    q = softly(z, p, temperature)
    squares = ((z[:, None] - p) ** 2).sum(-1)
    return float(((z - q @ p) ** 2).sum(-1).mean()), float(squares.min(1).mean()), float((q * squares).sum(-1).mean())


def gap_at(instance, temperature, over="variance", soft="mixture"):
    z, log, _, _ = cached(instance)
    mixture, hard, total = errors(z, log[-1], temperature)
    share = hard - (mixture if soft == "mixture" else total)
    unit = {"variance": np.trace(np.cov(z.T, bias=True)), "hard": hard, "entries": z.var()}[over]
    return 100 * share / float(unit)


def gap(instance, factor=4, **how):
    return gap_at(instance, instance["ratio"] * critical(cached(instance)[0], factor), **how)


def coldest(instance, unit=2, over="variance"):
    """The lowest T at which the gap is `allowed`, over the critical one."""
    names = ("seed", "count", "codes", "scale", "allowed")
    found = _crossing(tuple((name, instance[name]) for name in names), over)
    return found / (critical(cached(instance)[0], unit) if unit else 1.0)


@functools.lru_cache(256)
def _crossing(items, over):
    one = dict(items)
    low = high = 1e-3 * critical(cached(one)[0])
    while gap_at(one, high, over) <= one["allowed"]:
        low, high = high, 1.05 * high
        if high > 2 * critical(cached(one)[0]):
            return math.nan
    for _ in range(20):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gap_at(one, middle, over) <= one["allowed"] else (low, middle)
    return low


EPOCH = [
    Mistake(
        "usage alone",
        "At this epoch all codes may be in use, and the closest two coincide for every practical purpose. Usage is "
        "blind to that, whichever way it is counted.",
        lambda instance: [epoch_of(instance, separate=False)] * 2,
    ),
    Mistake(
        "soft usage",
        "Usage is counted as q > 0 here, which softmax gives to all. Count the nearest codes.",
        lambda instance: epochs_of(instance, count="soft"),
    ),
    Mistake(
        "no unit",
        "The separation is a plain distance. Give it in standard deviations of the tokens.",
        lambda instance: epochs_of(instance, unit=False),
    ),
]
GAP = [
    Mistake(
        "q held fixed",
        "This is the gap at a multiple of the critical temperature with q held fixed. The other one was asked for: "
        "which factor lies between the two?",
        lambda instance: gap(instance, 2),
    ),
    Mistake(
        "plain temperature",
        "The ratio is taken for a temperature. It is in units of the critical one.",
        lambda instance: gap_at(instance, instance["ratio"]),
    ),
    Mistake(
        "sign",
        "The difference is taken the other way round. The gap is what you lose by decoding an index.",
        lambda instance: -gap(instance),
    ),
    Mistake(
        "share of the error",
        "This is in percent of the error. It should be in percent of the tokens' variance.",
        lambda instance: gap(instance, over="hard"),
    ),
    Mistake(
        "L_q for the soft error",
        "This compares with L_q, which is the mixture's error plus V. Take the distance between a "
        "token and its mixture.",
        lambda instance: gap(instance, soft="total"),
    ),
    Mistake(
        "not in percent",
        "This is a share. Percent was asked for.",
        lambda instance: gap(instance) / 100,
    ),
    Mistake(
        "variance of single entries",
        "The variance is that of all numbers of the tokens together. It should be that of the cloud: the trace of its "
        "covariance.",
        lambda instance: gap(instance, over="entries"),
    ),
]
COLDEST = [
    Mistake(
        "q attached",
        "The temperature may be right. As a unit you took the critical temperature with q attached.",
        lambda instance: coldest(instance, 4),
    ),
    Mistake(
        "no unit",
        "This is a temperature. Divide it by the critical one.",
        lambda instance: coldest(instance, 0),
    ),
    Mistake(
        "share of the error",
        "Here the gap is in percent of the error, and not of the tokens' variance.",
        lambda instance: coldest(instance, over="hard"),
    ),
    Mistake(
        "square root",
        "Temperatures are squared distances: a ratio of two of them needs no root.",
        lambda instance: math.sqrt(coldest(instance)),
    ),
]


def clear(one):
    """Whether the numbers of exercise 4 tell every mistake from the truth."""
    right = epochs_of(one)
    given = [right, *(mistake.gives(one) for mistake in EPOCH)]
    if min(right) < 0 or any(given.count(epochs) > 1 for epochs in given):
        return False
    if not gap(one) > 1 or not math.isfinite(coldest(one)):
        return False
    return told(one, gap, GAP, 0.02) and told(one, coldest, COLDEST, 0.02)


# ---------------------------------------------------------------- 5. five runs


def written(word, kind, seed):
    """The log of a run that really took place; None if it does not show what it should. Torch: it is training."""
    draw = torch.Generator().manual_seed(seed)
    normal = functools.partial(torch.randn, generator=draw, dtype=torch.float64)
    x = (1.5 * normal(10, 6)).repeat(16, 1) + 0.35 * normal(160, 6)
    x = (x - x.mean(0)) / (x - x.mean(0)).square().sum(-1).mean().sqrt()
    _, _, axes = torch.linalg.svd(x, full_matrices=False)
    axes = axes * axes.sum(-1, keepdim=True).sign()  # the same on every machine
    encoder, decoder = axes[:3].T.clone(), axes[:3].clone()
    tokens, size = x @ encoder, 14
    begin = float((tokens - tokens.mean(0)).square().sum(-1).mean())
    codes = tokens[torch.randperm(160, generator=draw)[:size]].clone()
    if word == "dead" or kind == "hard":  # far away, but for a few
        few = 4 if word in ("dead", "undone") else 6
        codes[few:] = 0.2 * normal(size - few, 3) + 1.6 * torch.nn.functional.normalize(normal(1, 3), dim=-1)
    leaves = [encoder, decoder, codes]
    for leaf in leaves:
        leaf.requires_grad_()
    sums, share = codes.detach() / size, torch.full((size,), 1 / size, dtype=torch.float64)
    averages = kind == "hard" and word != "dead"
    optimiser = torch.optim.Adam(leaves[:2] if averages else leaves, 0.01 if word != "collapsed" else 0.03)
    rows = []
    for epoch in range(7):
        if averages:
            _revive(x @ encoder, codes, sums, share, draw, undone=word == "undone")
        rows.append(_look(x, encoder, decoder, codes, kind, _heat(word, epoch, x, encoder), begin))
        for _ in range(6):
            z = x @ encoder
            heat = _heat(word, epoch, x, encoder)
            squares = (z[:, None] - codes).square().sum(-1)
            index = squares.argmin(1)
            if kind == "hard":
                stand = codes[index].detach() + z - z.detach()
                extra = 0.25 * (z - codes[index].detach()).square().sum(-1).mean()
                if not averages:
                    extra = extra + (z.detach() - codes[index]).square().sum(-1).mean()
            else:
                q = torch.softmax(-squares / heat, -1)
                stand = q @ codes
                fixed = q if word == "collapsed" else q.detach()
                extra = (40.0 if word == "collapsed" else 0.1) * (fixed * squares).sum(-1).mean()
            (extra + (x - stand @ decoder).square().sum(-1).mean()).backward()
            optimiser.step()
            optimiser.zero_grad()
            if averages:
                _average((x @ encoder).detach(), codes, sums, share, undone=word == "undone")
        rows.append(_look(x, encoder, decoder, codes, kind, heat, begin))
    log = {name: [float(f"{row[i]:.4g}") for row in rows] for i, name in enumerate(COLUMNS)}
    return log if _shows(word, kind, log) else None


def _heat(word, epoch, x, encoder):
    z = (x @ encoder).detach()
    if word == "collapsed":
        return 1.5  # whatever becomes of the tokens
    ratio = {"warm": 0.25, "dead": 0.01}.get(word, 0.1 * 0.5**epoch)
    return ratio * critical(z.numpy())


@torch.no_grad()
def _average(z, codes, sums, share, undone, decay=0.8):
    if undone:  # a revived code is back in its place before any token has chosen it
        codes.copy_(sums / share[:, None])
    index = (z[:, None] - codes).square().sum(-1).argmin(1)
    chosen = torch.nn.functional.one_hot(index, len(codes)).double()
    share.mul_(decay).add_((1 - decay) * chosen.mean(0))
    sums.mul_(decay).add_((1 - decay) * chosen.T @ z / len(z))
    codes.copy_(sums / share[:, None])


@torch.no_grad()
def _revive(z, codes, sums, share, draw, undone):
    rare = (share * len(codes) < 0.3).nonzero().squeeze(-1)
    if len(rare):
        codes[rare] = z[torch.randperm(len(z), generator=draw)[: len(rare)]]
        if not undone:
            share[rare] = 1 / len(codes)
            sums[rare] = codes[rare] / len(codes)


@torch.no_grad()
def _look(x, encoder, decoder, codes, kind, heat, begin):
    z = x @ encoder
    squares = (z[:, None] - codes).square().sum(-1)
    index = squares.argmin(1)
    size = (z - z.mean(0)).square().sum(-1).mean()
    hard = 100 * (x - codes[index] @ decoder).square().sum(-1).mean()
    soft = 100 * (x - torch.softmax(-squares / heat, -1) @ codes @ decoder).square().sum(-1).mean()
    return [
        len(index.unique()) / len(codes),
        closest(codes.tolist()) / float(size.sqrt()),
        float(size) / begin,
        float(hard),
        float(hard if kind == "hard" else soft),
    ]


def _shows(word, kind, log):
    gaps = [hard - soft for hard, soft in zip(log["nearest"], log["mixture"])]
    if kind == "soft" and max(map(abs, gaps)) < 0.1:
        return False
    used, last = log["usage"], log["usage"][-1]
    if word == "collapsed":
        return log["variance"][-1] < 0.02 and log["nearest"][-1] > 90 and last >= 0.7 and log["separation"][-1] >= 0.05
    if log["variance"][-1] < 0.3 or log["nearest"][-1] > 75:
        return False
    if word == "warm":
        return gaps[-1] > 5 and last >= 0.75 and abs(sum(gaps) / len(gaps) / gaps[-1] - 1) > 0.01
    if abs(gaps[-1]) > 1:
        return False
    if word == "healthy":
        return last >= 0.85 and log["nearest"][-1] < 25
    if word == "dead":
        return last <= 0.6 and max(used) - last < 0.15
    return last <= 0.6 and min(used[6::2]) > 0.2 + max(used[7::2])


def logs(instance):
    """Columns from rows."""
    found = {}
    for name, rows in instance["runs"].items():
        table = [[float(entry) for entry in row.split()] for row in rows]
        found[name] = {column: [row[i] for row in table] for i, column in enumerate(COLUMNS)}
    return found


def diagnosis(instance):
    """From the rows, by what `written` made sure of."""
    found = {}
    for name, log in logs(instance).items():
        used = log["usage"]
        if log["variance"][-1] < 0.02:
            found[name] = "collapsed"
        elif used[-1] <= 0.6:
            found[name] = "undone" if used[-2] > 0.2 + used[-1] else "dead"
        else:
            found[name] = "warm" if log["nearest"][-1] - log["mixture"][-1] > 5 else "healthy"
    return found


def kinds(instance):
    return {name: "hard" if log["nearest"] == log["mixture"] else "soft" for name, log in logs(instance).items()}


def confused(one, other):
    swap = {one: other, other: one}
    return lambda instance: {name: swap.get(word, word) for name, word in diagnosis(instance).items()}


def lost(instance):
    return warm_log(instance)["nearest"][-1] - warm_log(instance)["mixture"][-1]


def warm_log(instance):
    return next(logs(instance)[name] for name, word in diagnosis(instance).items() if word == "warm")


DIAGNOSIS = [
    Mistake(
        "mixture trusted",
        "In the run that you call healthy the mixtures reconstruct well. Are they what is stored?",
        confused("healthy", "warm"),
    ),
    Mistake(
        "revival trusted",
        "In the run that you call healthy the codes are in use right after revival. Look at the row that follows.",
        confused("healthy", "undone"),
    ),
    Mistake(
        "undone taken for dead",
        "Two runs with few codes in use are exchanged. In one of them somebody tried to help, and it did not last.",
        confused("dead", "undone"),
    ),
    Mistake(
        "usage trusted",
        "In the run that you call healthy the tokens themselves have lost what they differed in. No count of codes "
        "shows that.",
        confused("healthy", "collapsed"),
    ),
    Mistake(
        "dead taken for collapsed",
        "Few codes in use and tokens without variance are exchanged. Which column is about tokens alone?",
        confused("dead", "collapsed"),
    ),
    Mistake(
        "dead taken for healthy",
        "The run that you call healthy uses few of its codes to the end. An error below 100% is no proof of health.",
        confused("dead", "healthy"),
    ),
    Mistake(
        "warm taken for collapsed",
        "Two runs with a large error of the nearest code are exchanged. In one the tokens have lost their variance; in "
        "the other they kept it, and its codes serve to be mixed, not to be picked.",
        confused("warm", "collapsed"),
    ),
]
KINDS = [
    Mistake(
        "exchanged",
        "Hard and soft are exchanged. For which of them is what stands in for a token always a code?",
        lambda instance: {n: {"hard": "soft", "soft": "hard"}[k] for n, k in kinds(instance).items()},
    ),
    Mistake(
        "few codes, so hard",
        "You took the runs that use few codes for the hard ones. Either kind can leave codes unused: look at the "
        "errors.",
        lambda instance: {n: "hard" if log["usage"][-1] <= 0.6 else "soft" for n, log in logs(instance).items()},
    ),
    Mistake(
        "the last row alone",
        "You looked at the last row only. A cold soft codebook looks hard there; earlier it did not.",
        lambda instance: {
            n: "hard" if abs(log["nearest"][-1] - log["mixture"][-1]) < 1 else "soft"
            for n, log in logs(instance).items()
        },
    ),
]
LOST = [
    Mistake(
        "sign",
        "The difference is taken the other way round. What is lost is positive.",
        lambda instance: -lost(instance),
    ),
    Mistake(
        "a ratio",
        "This is a ratio of the errors. Their difference was asked for, in points.",
        lambda instance: warm_log(instance)["nearest"][-1] / warm_log(instance)["mixture"][-1],
    ),
    Mistake(
        "percent of the error",
        "This is in percent of the mixture's error. The columns are in percent of one variance already: subtract.",
        lambda instance: 100 * (warm_log(instance)["nearest"][-1] / warm_log(instance)["mixture"][-1] - 1),
    ),
    Mistake(
        "mean over the rows",
        "This is a mean over the run. At the end was asked for.",
        lambda instance: float(np.mean(np.subtract(warm_log(instance)["nearest"], warm_log(instance)["mixture"]))),
    ),
    Mistake(
        "between runs",
        "This is the difference of two runs. What is lost is lost within one.",
        lambda instance: (
            max(log["nearest"][-1] for log in logs(instance).values())
            - min(log["mixture"][-1] for log in logs(instance).values())
        ),
    ),
]

# ---------------------------------------------------------------- 6. siblings


def some_sizes(generator, instance):
    sizes = torch.randint(1, 7, (int(torch.randint(7, 12, (1,), generator=generator)),), generator=generator).tolist()
    sizes += [1, 6]
    total = sum(sizes)
    return {"sizes": sizes, "tested": int(torch.randint(total // 4, total // 2, (1,), generator=generator))}


def alone(m, total, tested):
    """Of an object in the test, the probability that its m - 1 siblings are all in the test."""
    return math.comb(total - m, tested - m) / math.comb(total - 1, tested - 1) if tested >= m else 0.0


def has_sibling(sizes, tested):
    return sum(m * (1 - alone(m, sum(sizes), tested)) for m in sizes) / sum(sizes)


def catalogue(instance):
    draw = torch.Generator().manual_seed(instance["seed"] + 1)
    sizes = torch.randint(1, 7, (instance["launches"],), generator=draw).numpy()
    launch = np.repeat(np.arange(len(sizes)), sizes)
    centres = torch.randn(len(sizes), 2, generator=draw, dtype=torch.float64).numpy()
    kind = (centres[:, 0] + 0.8 * torch.randn(len(sizes), generator=draw, dtype=torch.float64).numpy()) > 0
    places = centres[launch] + 0.1 * torch.randn(len(launch), 2, generator=draw, dtype=torch.float64).numpy()
    return places, kind[launch], launch


def accuracy(instance, leave):
    places, kind, launch = catalogue(instance)
    right = 0
    for i, place in enumerate(places):
        squares = ((places - place) ** 2).sum(-1)
        squares[launch == launch[i] if leave == "launch" else i] = math.inf
        right += kind[squares.argmin()] == kind[i]
    return float(right / len(places))


def siblings(instance):
    return {"one out": accuracy(instance, "object"), "launch out": accuracy(instance, "launch")}


def by_launches(instance):
    """Every launch counted once."""
    places, kind, launch = catalogue(instance)
    found = []
    for one in set(launch.tolist()):
        here = launch == one
        hits = [
            kind[~here][((places[~here] - place) ** 2).sum(-1).argmin()] == own
            for place, own in zip(places[here], kind[here])
        ]
        found.append(np.mean(hits))
    return {"one out": accuracy(instance, "object"), "launch out": float(np.mean(found))}


HAS = [
    Mistake(
        "mean over launches",
        "This is a mean over launches. An object of a large launch has more siblings, and there are more such objects: "
        "average over objects.",
        lambda sizes, tested: sum(1 - alone(m, sum(sizes), tested) for m in sizes) / len(sizes),
    ),
    Mistake(
        "drawn with replacement",
        "This would be right if each object were tested by a coin of its own. The test has a fixed size: the siblings "
        "are drawn from what is left.",
        lambda sizes, tested: sum(m * (1 - (tested / sum(sizes)) ** (m - 1)) for m in sizes) / sum(sizes),
    ),
    Mistake(
        "all siblings tested",
        "This is the probability that no sibling is in training. One minus it was asked for.",
        lambda sizes, tested: 1 - has_sibling(sizes, tested),
    ),
    Mistake(
        "test and training exchanged",
        "This is the probability of a sibling among the tested ones. What leaks is a sibling in training.",
        lambda sizes, tested: (
            sum(m * (1 - math.comb(sum(sizes) - m, tested - 1) / math.comb(sum(sizes) - 1, tested - 1)) for m in sizes)
            / sum(sizes)
        ),
    ),
    Mistake(
        "oneself counted",
        "A launch of one gets a sibling here. That the object itself is tested is given: only its siblings are drawn.",
        lambda sizes, tested: (
            sum(m * (1 - math.prod(max(tested - j, 0) / (sum(sizes) - j) for j in range(m))) for m in sizes)
            / sum(sizes)
        ),
    ),
]
SIBLINGS = [
    Mistake(
        "exchanged",
        "The two are exchanged. Which of them may ask a sibling?",
        lambda instance: dict(zip(("one out", "launch out"), reversed(siblings(instance).values()))),
    ),
    Mistake(
        "siblings kept",
        "Both are the same. Without its launch means without every object that came with it.",
        lambda instance: dict.fromkeys(("one out", "launch out"), accuracy(instance, "object")),
    ),
    Mistake(
        "oneself asked",
        "An object may ask itself: nothing is nearer, and it is always right.",
        lambda instance: siblings(instance) | {"one out": 1.0},
    ),
    Mistake(
        "mean over launches",
        "The second counts every launch once. Count objects in both, so that they can be compared.",
        by_launches,
    ),
]
BOOKS = ("HardCodebook", "SoftCodebook")
CHECKS = {
    "hard-values": Check(picked, some_codes, VALUES, BOOKS),
    "hard-gradient": Check(through, some_codes, GRADIENT, BOOKS),
    "hard-loss": Check(loss, some_losses, LOSS, BOOKS),
    "mixed": Check(mixed, some_mixtures, MIXED, BOOKS),
    "share": Check(new_share, some_batch, SHARE, BOOKS),
    "means": Check(new_codes, some_batch, MEANS, BOOKS),
    "patience": Check(patience, some_patience, PATIENCE, trials=5),
    "level": Check(level, some_level, LEVEL, ("HierarchicalReadout", "read")),
    "level-padding": Check(level, padded_level, PADDED + LEVEL, ("HierarchicalReadout", "read")),
    "epoch": Check(epochs_of, mistakes=EPOCH),
    "gap": Check(gap, mistakes=GAP, tolerance=0.02),
    "coldest": Check(coldest, mistakes=COLDEST, tolerance=0.02),
    "kinds": Check(kinds, mistakes=KINDS),
    "diagnosis": Check(diagnosis, mistakes=DIAGNOSIS),
    "lost": Check(lost, mistakes=LOST, tolerance=1e-3),
    "has-sibling": Check(has_sibling, some_sizes, HAS, trials=5),
    "siblings": Check(siblings, mistakes=SIBLINGS),
}
