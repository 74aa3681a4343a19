"""Set 5: answers that must be refused, and the misconception that each stands for."""

from exercises.bank import WrongAnswer

VELOCITY = """
def velocity(tokens, beta, normalised=False):
    n = len(tokens)
    {weights}
    pull = weights @ tokens
    return {result}
"""
WEIGHTS = "weights = torch.exp(beta * (tokens @ tokens.mT - 1))"
ROWS = "weights = weights / (weights.sum(-1, keepdim=True) if normalised else n)"
RESULT = "pull - (tokens * pull).sum(-1, keepdim=True) * tokens"


def velocity(name, misconception, mistake, weights=WEIGHTS, rows=ROWS, result=RESULT):
    return WrongAnswer(
        name, misconception, "velocity", VELOCITY.format(weights=f"{weights}; {rows}", result=result), mistake
    )


ENERGY = """
def energy(tokens, beta):
    n = len(tokens)
    kernel = torch.exp(beta * (tokens @ tokens.mT - 1)) / beta
    return float({result})
"""


def energy(name, misconception, result, mistake):
    return WrongAnswer(name, misconception, "energy", ENERGY.format(result=result), mistake)


CLIMB = """
def climb(tokens, beta):
    own = torch.exp(beta * (tokens @ tokens.mT - 1)).mean(-1)
    sa, usa = (k(beta).drift(tokens) for k in (dl.SelfAttention, dl.Exponential))
    return float({result})
"""


def climb(name, misconception, result, mistake):
    return WrongAnswer(name, misconception, "climb", CLIMB.format(result=result), mistake)


CLUSTERS = """
def clusters(tokens, angle):
    apart = torch.cdist(tokens, tokens)
    linked = apart < 2 * math.sin(angle / 2)
    {body}
"""


def clusters(name, misconception, body, mistake):
    return WrongAnswer(name, misconception, "clusters", CLUSTERS.format(body=body), mistake)


SPREAD = """name = torch.arange(len(tokens))
    for _ in range(len(tokens)):
        name = torch.where(linked, name, len(tokens)).amin(-1)
    return len(name.unique())"""
LIFETIMES = """
def waits(beta, angle, power=1.0):
    places = torch.linspace(0.1, angle, 20001, dtype=torch.float64)
    return float(torch.trapezoid(torch.exp(beta * (1 - places.cos())) / places.sin() ** power, places))


def search(function, low, high):
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return low


beta, tau = instance["beta"], instance["raw_stop"]
late = math.radians(instance["late_degrees"])
small, large = (size / sum(instance["sizes"]) for size in instance["sizes"])
lifetime = {lifetime}
outlives = {outlives}
"""
WAITS = "waits(beta, turn)"
SEARCH = "search(lambda b: waits(b, late) - tau * math.exp(b), 4, 14)"


def lifetimes(name, misconception, mistake, lifetime=WAITS, outlives=SEARCH):
    source = LIFETIMES.replace("{lifetime}", lifetime).replace("{outlives}", outlives)
    return WrongAnswer(name, misconception, "lifetimes", source, mistake)


LOGS = """
words, factors = {}, {}
for name, log in instance["runs"].items():
    when, level, speed2 = (torch.tensor(log[key]) for key in ("time", "energy", "speed2"))
    ratio = level.diff() / (when.diff() * (speed2[1:] + speed2[:-1]) / 2)
    factors[name] = float((level[-1] - level[0]) / torch.trapezoid(speed2, when))
    if max(log["length"]) > 1.01:
        words[name] = "projection"
    elif bool((level.diff() < 0).any()):
        words[name] = "step"
    elif bool(((ratio - 1).abs() < 0.05).all()):
        words[name] = "healthy"
    else:
        words[name] = "unit" if ratio.max() < 1.07 * ratio.min() else "rows"
clock = next(name for name in words if words[name] == "unit")
diagnosis, found = words, math.log(factors[clock])
"""


def swapped(name, misconception, one, other, mistake):
    line = f'diagnosis = {{n: {{"{one}": "{other}", "{other}": "{one}"}}.get(w, w) for n, w in words.items()}}\n'
    return WrongAnswer(name, misconception, "logs", LOGS + line, mistake)


def beta(name, misconception, formula, mistake):
    return WrongAnswer(name, misconception, "logs", LOGS + f"found = {formula}\n", mistake)


WRONG = [
    velocity("no projection", "tangent part forgotten", "projection forgotten", result="pull"),
    velocity(
        "projection added",
        "sign of the projection",
        "projection added",
        result="pull + (tokens * pull).sum(-1, keepdim=True) * tokens",
    ),
    velocity("papers' unit", "no -1", "raw unit", weights="weights = torch.exp(beta * (tokens @ tokens.mT))"),
    velocity(
        "always softmax",
        "SA for USA",
        "rows normalised",
        weights="weights = torch.softmax(beta * tokens @ tokens.mT, -1)",
        rows="pass",
    ),
    velocity(
        "summed",
        "sum for mean",
        "sum for mean",
        rows="weights = weights / (weights.sum(-1, keepdim=True) if normalised else 1)",
    ),
    velocity(
        "n - 1",
        "others counted",
        "others counted",
        rows="weights = weights / (weights.sum(-1, keepdim=True) if normalised else n - 1)",
    ),
    velocity("gradient without beta", "1/beta kept", "1/beta kept", result=f"({RESULT}) / beta"),
    velocity("downhill", "sign", "sign", result=f"-({RESULT})"),
    velocity(
        "columns",
        "wrong axis of the softmax",
        "columns normalised",
        rows="weights = weights / (weights.sum(-2, keepdim=True) if normalised else n)",
    ),
    velocity("never softmax", "USA for SA", "not normalised", rows="weights = weights / n"),
    velocity(
        "without itself",
        "diagonal out of the softmax",
        "itself left out",
        weights="weights = torch.exp(beta * (tokens @ tokens.mT - 1)) * (1 - torch.eye(n, dtype=tokens.dtype))",
    ),
    velocity(
        "softmax and 1/n",
        "divided twice",
        "divided twice",
        rows="weights = weights / n / (weights.sum(-1, keepdim=True) if normalised else 1)",
    ),
    velocity(
        "e^beta apart",
        "overflow",
        "overflow",
        weights="weights = torch.exp(beta * tokens @ tokens.mT) * math.exp(-beta)",
    ),
    velocity(
        "softmax by hand",
        "overflow under SA alone",
        "",
        weights="weights = torch.exp(beta * (tokens @ tokens.mT - (0 if normalised else 1)))",
    ),
    velocity("nothing moves", "a constant", "", result="torch.zeros_like(tokens)"),
    WrongAnswer(
        "the example typed in",
        "visible case only",
        "velocity",
        "def velocity(tokens, beta, normalised=False):\n    return torch.tensor([[0.0, 0.1116, 0.0], [0.1116, "
        "0.0, 0.0]])\n",
        "",
    ),
    WrongAnswer(
        "the library's own",
        "calls what it should write",
        "velocity",
        "def velocity(tokens, beta, normalised=False):\n"
        "    return (dl.SelfAttention if normalised else dl.Exponential)(beta).drift(tokens)\n",
        "called",
    ),
    energy(
        "different tokens",
        "pairs i = j left out",
        "(kernel.sum() - kernel.trace()) / (2 * n * (n - 1))",
        "pairs i = j left out",
    ),
    energy("upper triangle", "itself left out", "kernel.triu(1).sum() / n**2", "itself left out"),
    energy("half the sum", "pairs i < j", "kernel.triu(1).sum() / (2 * n**2)", "half the pairs"),
    energy("double", "no half", "kernel.mean()", "no half"),
    energy("weights averaged", "no 1/beta", "beta * kernel.mean() / 2", "no 1/beta"),
    energy("papers' unit", "no -1", "math.exp(beta) * kernel.mean() / 2", "raw unit"),
    energy("one division", "one n", "kernel.sum() / (2 * n)", "one n"),
    energy("potential", "minus", "-kernel.mean() / 2", "sign"),
    energy("its maximum", "a value for all", "1 / (2 * beta)", ""),
    WrongAnswer("typed in", "a constant", "energy", "def energy(tokens, beta):\n    return float(tokens[1, 0])\n", ""),
    WrongAnswer(
        "the library's energy",
        "calls what it should write",
        "energy",
        "def energy(tokens, beta):\n    return float(dl.Exponential(beta).energy(tokens))\n",
        "called",
    ),
    climb("mean squared speed", "gradient flow taken for granted", "sa.square().sum(-1).mean()", "the law of USA"),
    climb("the other flow", "along USA", "usa.square().sum(-1).mean()", "along USA"),
    climb("not averaged", "sum for mean", "(own * sa.square().sum(-1)).sum()", "factor n"),
    climb("divided", "Z on the wrong side", "(sa.square().sum(-1) / own).mean()", "Z below"),
    climb("two means", "means multiplied", "own.mean() * sa.square().sum(-1).mean()", "means multiplied"),
    climb("raw weights", "no -1 in Z", "math.exp(beta) * (own * sa.square().sum(-1)).mean()", "raw unit"),
    climb("nothing", "the visible value", "0.0", "constant"),
    clusters(
        "leaders",
        "no chains",
        "found = []\n    for i in range(len(tokens)):\n        if not any(linked[i, j] for j in found):\n"
        "            found.append(i)\n    return len(found)",
        "first come",
    ),
    clusters(
        "looking back",
        "earlier tokens only",
        "return int((linked.tril(-1).sum(-1) == 0).sum())",
        "earlier tokens only",
    ),
    clusters("distance", "chord for angle", f"linked = apart < angle\n    {SPREAD}", "distance for angle"),
    clusters("lonely", "groups not counted", "return int((linked.sum(-1) == 1).sum())", "alone"),
    clusters("sets of neighbours", "neighbourhoods", "return len(linked.unique(dim=0))", "neighbourhoods"),
    clusters(
        "degrees",
        "radians taken for degrees",
        f"linked = apart < 2 * math.sin(math.radians(angle) / 2)\n    {SPREAD}",
        "degrees",
    ),
    clusters("two", "the visible value", "return 2", "constant"),
    clusters("three", "a guess from the number of tokens", "return 3 if len(tokens) > 3 else 2", "constant"),
    clusters("the library's", "calls what it should write", "return dl.cluster_count(tokens, angle)", "called"),
    lifetimes("raw lifetime", "papers' unit", "raw unit", "waits(beta, turn) * math.exp(-beta)"),
    lifetimes("converted", "twice", "converted twice", "dl.library_time(waits(beta, turn), beta)"),
    lifetimes("light one still", "one cluster moves", "the light one stands", "waits(beta, turn) / small"),
    lifetimes("heavy one still", "one cluster moves", "the heavy one stands", "waits(beta, turn) / large"),
    lifetimes(
        "softmax",
        "SA for USA",
        "rows normalised",
        "next(t for t, x in ((float(t), x) for t, x in zip(*dl.integrate(dl.SelfAttention(beta), pair[[0, "
        "-1]].repeat_interleave("
        'torch.tensor(instance["sizes"]), 0), time=waits(beta, turn), states=3001)[:2])) if x[0] @ x[-1] > '
        "math.cos(0.1))",
    ),
    lifetimes(
        "limit formula",
        "large beta",
        "large beta assumed",
        "math.exp(beta * (1 - math.cos(turn))) / (beta * math.sin(turn) ** 2)",
    ),
    lifetimes("no sine", "projection", "projection forgotten", "waits(beta, turn, 0.0)"),
    lifetimes("two full pulls", "shares of the way", "twice as fast", "waits(beta, turn) / 2"),
    lifetimes(
        "units mixed", "library against raw", "units mixed", outlives="search(lambda b: waits(b, late) - tau, 0.01, 14)"
    ),
    lifetimes("pure exponential", "factor", "exponent only", outlives="math.log(tau) / -math.cos(late)"),
    lifetimes(
        "limit for beta",
        "large beta",
        "large beta assumed",
        outlives="search(lambda b: math.exp(-b * math.cos(late)) / (b * math.sin(late) ** 2) - tau, 4, 14)",
    ),
    lifetimes("end of the interval", "a guess", "", outlives="14.0"),
    swapped("rows healthy", "any rise will do", "healthy", "rows", "a rise is enough"),
    swapped("projection healthy", "only rates looked at", "healthy", "projection", "lengths not looked at"),
    swapped("unit healthy", "clock", "healthy", "unit", "clock not looked at"),
    swapped("unit and rows", "a factor that moves", "unit", "rows", "unit and rows"),
    swapped("step and projection", "two instabilities", "step", "projection", "step and projection"),
    swapped("step healthy", "falls overlooked", "healthy", "step", "a falling energy"),
    swapped("step and rows", "two misfits", "step", "rows", "step and rows"),
    WrongAnswer("all healthy", "a guess", "logs", LOGS + 'diagnosis = dict.fromkeys("ABCDE", "healthy")\n', ""),
    beta("the factor", "not its logarithm", "factors[clock]", "the factor itself"),
    beta("base 10", "two logarithms", "math.log10(factors[clock])", "logarithm to base 10"),
    beta("upside down", "inverted ratio", "-math.log(factors[clock])", "upside down"),
    beta("last energy", "consensus assumed", '1 / (2 * instance["runs"][clock]["energy"][-1])', "consensus assumed"),
]
