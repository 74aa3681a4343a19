"""Set 1: answers that must be refused, and the misconception that each stands for."""

from exercises.bank import WrongAnswer

ASSIGN = """
def assign(tokens, prototypes, temperature, mask=None):
    squares = (tokens[..., :, None, :] - prototypes).square().sum(-1)
    {body}
    return weights if mask is None else torch.where(mask[..., None], weights, torch.zeros_like(weights))
"""


def weights(name, misconception, body, mistake):
    return WrongAnswer(name, misconception, "assign", ASSIGN.format(body=body), mistake)


IN_USE = """
def in_use(weights, mask):
    count = weights.shape[-1]
    {chosen}
    shares = torch.bincount(chosen, minlength=count).double() / len(chosen)
    positive = shares[shares > 0]
    entropy = -(positive * positive.log()).sum()
    {result}
"""
RESULT = "return len(positive) / count, float(entropy.exp())"


def in_use(name, misconception, mistake, chosen="chosen = weights[mask].argmax(-1)", result=RESULT):
    return WrongAnswer(name, misconception, "in-use", IN_USE.format(chosen=chosen, result=result), mistake)


def cosine(name, misconception, formula, mistake):
    return WrongAnswer(
        name, misconception, "cosine", f"def cosine_across(r, a, b, n, m):\n    return {formula}\n", mistake
    )


RIGHT = {
    "separation": "dl.min_separation(bank, tokens, mask)",
    "rank": "dl.effective_rank(tokens, mask)",
    "perplexity": 'dl.perplexity(dl.assign(tokens, bank, instance["temperature"], mask), mask)',
}


def measured(name, misconception, mistake, **changed):
    source = "".join(f"{key} = {value}\n" for key, value in (RIGHT | changed).items())
    return WrongAnswer(name, misconception, "measured", source, mistake)


REPORTS = """
reports = {}
for name, (z, p) in models.items():
    reports[name] = dl.checkup(z, p, dl.assign(z, p, instance["temperature"]))
words = {}
for name, r in reports.items():
    if r["separation, token sd"] < 1e-3:
        words[name] = "prototypes"
    elif r["mean cosine, within a sequence"] > 0.9:
        words[name] = "tokens"
    else:
        words[name] = "dead" if r["usage by argmax"] < 0.5 else "healthy"
sees = {
    "prototypes": "separation, token sd",
    "dead": "usage by argmax",
    "tokens": "mean cosine, within a sequence",
}
witness = {name: sees[word] for name, word in words.items() if word != "healthy"}
"""


def diagnosis(name, misconception, line, mistake):
    return WrongAnswer(name, misconception, "diagnosis", REPORTS + line + "\n", mistake)


def swapped(one, other):
    return f'diagnosis = {{n: {{"{one}": "{other}", "{other}": "{one}"}}.get(w, w) for n, w in words.items()}}'


WRONG = [
    weights(
        "softmax over tokens", "wrong axis", "weights = torch.softmax(-squares / temperature, dim=-2)", "wrong axis"
    ),
    weights(
        "temperature multiplied",
        "T and 1/T swapped",
        "weights = torch.softmax(-squares * temperature, -1)",
        "T and 1/T swapped",
    ),
    weights(
        "plain distance",
        "square forgotten",
        "weights = torch.softmax(-squares.sqrt() / temperature, -1)",
        "distance not squared",
    ),
    weights(
        "Gaussian convention", "a factor of 2", "weights = torch.softmax(-squares / (2 * temperature), -1)", "factor 2"
    ),
    weights("no minus", "sign flipped", "weights = torch.softmax(squares / temperature, -1)", "sign"),
    weights(
        "dot products",
        "attention without the bias",
        "weights = torch.softmax(2 * tokens @ prototypes.mT / temperature, -1)",
        "dot products",
    ),
    weights(
        "hard assignment",
        "argmax in place of softmax",
        "weights = torch.nn.functional.one_hot(squares.argmin(-1), len(prototypes)).double()",
        "hard",
    ),
    weights(
        "exponentials first",
        "underflow",
        "e = torch.exp(-squares / temperature); weights = e / e.sum(-1, keepdim=True)",
        "underflow",
    ),
    weights("the example typed in", "visible case only", "weights = torch.tensor([[0.5, 0.5], [0.8808, 0.1192]])", ""),
    WrongAnswer(
        "mask ignored",
        "padding counts",
        "assign",
        ASSIGN.format(body="weights = torch.softmax(-squares / temperature, -1)").replace("if mask is None", "if True"),
        "mask ignored",
    ),
    WrongAnswer(
        "mask multiplied",
        "0 times NaN",
        "assign",
        ASSIGN.format(body="weights = torch.softmax(-squares / temperature, -1)").replace(
            "torch.where(mask[..., None], weights, torch.zeros_like(weights))", "weights * mask[..., None]"
        ),
        "mask multiplied",
    ),
    WrongAnswer(
        "mask inverted",
        "True taken for padding",
        "assign",
        ASSIGN.format(body="weights = torch.softmax(-squares / temperature, -1)").replace(
            "mask[..., None], w", "~mask[..., None], w"
        ),
        "mask inverted",
    ),
    WrongAnswer(
        "the library's own",
        "calls what it should write",
        "assign",
        "def assign(tokens, prototypes, temperature, mask=None):\n    return "
        "dl.assign(tokens, prototypes, temperature, mask)\n",
        "called",
    ),
    WrongAnswer(
        "the library's own under another name",
        "calls what it should write",
        "assign",
        "from ddcl_lite.prototypes.assignment import assign as theirs\n\n"
        "def assign(tokens, prototypes, temperature, mask=None):\n    return "
        "theirs(tokens, prototypes, temperature, mask)\n",
        "called",
    ),
    WrongAnswer(
        "an object equal to everything",
        "cheats a comparison",
        "assign",
        "class Any(torch.Tensor):\n    def __eq__(self, other):\n        return True\n\n"
        "def assign(tokens, prototypes, temperature, mask=None):\n"
        "    return torch.full((*tokens.shape[:-1], len(prototypes)), 0.5).as_subclass(Any)\n",
    ),
    in_use(
        "weights above zero",
        "soft usage",
        "soft usage",
        result="return float((weights[mask] > 0).any(0).double().mean()), 1.0",
    ),
    in_use("padding votes", "mask ignored", "mask ignored", chosen="chosen = weights.flatten(0, 1).argmax(-1)"),
    in_use(
        "how many", "count for share", "count, not share", result="return float(len(positive)), float(entropy.exp())"
    ),
    in_use(
        "sequence by sequence",
        "mean of usages",
        "per sequence",
        chosen=(
            "chosen = weights[mask].argmax(-1); each = [len(w[m].argmax(-1).unique()) "
            "/ count for w, m in zip(weights, mask) if m.any()]"
        ),
        result="return sum(each) / len(each), float(entropy.exp())",
    ),
    in_use(
        "mean weights",
        "soft perplexity",
        "soft perplexity",
        result=(
            "m = weights[mask].double().mean(0); return len(positive) / count, float(torch.exp(-(m * m.log()).sum()))"
        ),
    ),
    in_use("entropy itself", "not exponentiated", "entropy", result="return len(positive) / count, float(entropy)"),
    in_use(
        "bits and nats",
        "two bases",
        "two logarithms",
        result="return len(positive) / count, float((entropy / math.log(2)).exp())",
    ),
    in_use("always full", "a constant", "soft usage", result="return 1.0, 1.0"),
    in_use(
        "zero times its logarithm",
        "0 log 0",
        "",
        result="return len(positive) / count, float(torch.exp(-(shares * shares.log()).sum()))",
    ),
    WrongAnswer(
        "the library's usage",
        "calls what it should write",
        "in-use",
        "def in_use(weights, mask):\n    return dl.usage(weights, mask), dl.perplexity(weights, mask)\n",
        "called",
    ),
    cosine(
        "each pair once",
        "the square has each pair twice",
        "(((n + m) * r) ** 2 - (n * a) ** 2 - (m * b) ** 2) / (n * m)",
        "each pair twice",
    ),
    cosine("pooled square", "pairs within and i = j kept", "r**2", "all pairs"),
    cosine("lengths for their squares", "not squared", "((n + m) * r - n * a - m * b) / (2 * n * m)", "not squared"),
    cosine(
        "squares of the counts alone",
        "not squared",
        "((n + m) ** 2 * r - n**2 * a - m**2 * b) / (2 * n * m)",
        "not squared",
    ),
    cosine(
        "the chapter's formula",
        "pairs within a sequence kept",
        "((n + m) * r**2 - 1) / (n + m - 1)",
        "all pairs i != j",
    ),
    cosine(
        "all pairs in the count",
        "pairs within out of the sum only",
        "(((n + m) * r) ** 2 - (n * a) ** 2 - (m * b) ** 2) / ((n + m) * (n + m - 1))",
        "count kept",
    ),
    cosine("product of the resultants", "both point the same way", "a * b", "one direction"),
    cosine("means in place of sums", "n = m assumed", "2 * r**2 - (a**2 + b**2) / 2", "means for sums"),
    cosine("one", "the visible value", "1.0", "constant"),
    measured("plain distance", "no unit", "no unit", separation="dl.min_separation(bank)"),
    measured("padded deviation", "mask ignored", "mask ignored", separation="dl.min_separation(bank, tokens)"),
    measured(
        "one feature",
        "a single feature's deviation",
        "one feature's deviation",
        separation="dl.min_separation(bank) / tokens[mask].std(correction=0)",
    ),
    measured(
        "bank's own unit",
        "a unit that shrinks along",
        "the bank's deviation",
        separation="dl.min_separation(bank, bank)",
    ),
    measured(
        "a sample's deviation",
        "N - 1 in place of N",
        "1/(N - 1)",
        separation="dl.min_separation(bank) / tokens[mask].var(0).sum().sqrt()",
    ),
    measured("padded rank", "mask ignored", "mask ignored", rank="dl.effective_rank(tokens)"),
    measured(
        "uncentred rank",
        "mean kept",
        "not centred",
        rank="float(torch.distributions.Categorical(torch.linalg.svdvals(tokens[mask])).entropy().exp())",
    ),
    measured(
        "padding votes",
        "mask ignored",
        "mask ignored",
        perplexity='dl.perplexity(dl.assign(tokens, bank, instance["temperature"]))',
    ),
    measured(
        "soft perplexity",
        "mean weights",
        "soft perplexity",
        perplexity='dl.perplexity(dl.assign(tokens, bank, instance["temperature"], mask), mask, hard=False)',
    ),
    measured("not a number", "nan", "", rank='float("nan")'),
    diagnosis("usage trusted", "collapsed bank called healthy", swapped("healthy", "prototypes"), "usage trusted"),
    diagnosis("dead and collapsed", "two deaths exchanged", swapped("dead", "prototypes"), "dead taken for collapsed"),
    diagnosis("pooled cosine", "sequences not looked at", swapped("healthy", "tokens"), "pooled cosine trusted"),
    diagnosis("dead called healthy", "few codes overlooked", swapped("healthy", "dead"), "dead taken for healthy"),
    diagnosis("guess", "all healthy", 'diagnosis = dict.fromkeys("ABCD", "healthy")', ""),
    *(
        diagnosis(
            f"{name} for all",
            "one measure for three collapses",
            f'diagnosis = words; witness = dict.fromkeys(witness, "{name}")',
            "one for all",
        )
        for name in ("usage by argmax", "separation, token sd", "mean cosine, within a sequence")
    ),
    diagnosis(
        "use taken for distance",
        "usage and separation exchanged",
        "diagnosis = words; usage, distance = sees['dead'], sees['prototypes']; "
        "witness = {n: {usage: distance, distance: usage}.get(w, w) for n, w in witness.items()}",
        "use for distance",
    ),
]
