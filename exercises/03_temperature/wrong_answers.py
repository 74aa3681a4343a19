"""Set 3: answers that must be refused, and the misconception that each stands for."""

from exercises.bank import WrongAnswer


def critical(
    name,
    misconception,
    mistake,
    rows="tokens[mask]",
    centre="rows.mean(0)",
    value="top",
    factor="(4 if attached else 2)",
):
    source = f"""
def critical(tokens, mask, attached):
    rows = {rows}
    count = len(rows)
    rows = rows - {centre}
    top = torch.linalg.eigvalsh(rows.mT @ rows / count)[-1]
    return {factor} * float({value})
"""
    return WrongAnswer(name, misconception, "critical", source, mistake)


RIGHT_CLOCKS = {
    "step": "1 + 2 * lr / count * (1 / ratio - 1)",
    "em": "1 / ratio",
    "half": "math.log(0.5) / math.log(1 - 2 * lr * share)",
}


def clocks(name, misconception, mistake, **changed):
    parts = RIGHT_CLOCKS | changed
    source = f"""
def growth(ratio, count, lr):
    return {parts["step"]}, {parts["em"]}


def half_life(share, lr):
    return {parts["half"]}
"""
    return WrongAnswer(name, misconception, "clocks", source, mistake)


APART = """
leaves = float(dl.critical_temperature(cloud, detach_assignment=True))


def rests_apart(T):
    bank = split_bank
    for _ in range(400):
        q = torch.softmax(-(cloud[:, None] - bank).square().sum(-1) / T, -1)
        bank = (q.mT @ cloud) / q.sum(0)[:, None]
    return float((bank[0] - bank[1]).norm()) > 0.1 * leaves**0.5


low, high = leaves, 2.5 * leaves
for _ in range(8):
    middle = (low + high) / 2
    low, high = (middle, high) if rests_apart(middle) else (low, middle)
returns = low
"""


def there(name, misconception, mistake, line, measure=False):
    begin = APART if measure else APART.split("\n\n\ndef")[0] + "\nreturns = 1.5 * leaves\n"
    return WrongAnswer(name, misconception, "there-and-back", begin + line + "\n", mistake)


def following(
    name,
    misconception,
    mistake,
    y="tokens[:, None] - prototypes",
    q="dl.assign(tokens, prototypes, temperature)",
    mass="q.sum(0)[:, None, None]",
    factor="2 * ",
):
    source = f"""
def next_split(tokens, prototypes, temperature):
    q = {q}
    y = {y}
    moments = torch.einsum("nk,nki,nkj->kij", q, y.expand(*q.shape, -1), y.expand(*q.shape, -1)) / {mass}
    return {factor}torch.linalg.eigvalsh(moments)[:, -1]
"""
    return WrongAnswer(name, misconception, "next-split", source, mistake)


def first(name, misconception, mistake, line):
    return WrongAnswer(name, misconception, "first-split", line + "\n", mistake)


COLUMNS = """
records = {k: torch.tensor(rows, dtype=torch.float64) for k, rows in instance["records"].items()}
low, middle, high = torch.stack(list(records.values())).mean((0, 1)).argsort().tolist()
energies = {"L_q": middle, "F": low, "W": high}
kinds = {}
for letter, rows in records.items():
    T = (rows[:, high] - rows[:, low]) / math.log(instance["prototypes"])
    if T[-1] > 1.1 * T[0]:
        kinds[letter] = "heating"
    elif T[-1] < 0.9 * T[0]:
        kinds[letter] = "cooling"
    elif bool((rows[:, low].diff() > 1e-3).any()):
        kinds[letter] = "broken"
    else:
        kinds[letter] = "hot" if float(rows[-1, high]) > instance["variance"] else "cold"


def told(swap=()):
    swap = dict([swap, swap[::-1]]) if swap else {}
    kind = {letter: swap.get(kind, kind) for letter, kind in kinds.items()}
    return {letter: {"hot": "constant", "cold": "constant"}.get(k, k) for letter, k in kind.items()}


def which(*wanted):
    return sorted(letter for letter, kind in kinds.items() if kind in wanted)


runs = told()
certified = which("cold", "cooling")
"""


def columns(name, misconception, mistake, line):
    return WrongAnswer(name, misconception, "columns", COLUMNS + line + "\n", mistake)


RACE = """
def largest_alive(begin, steps=400):
    low, high = 0.002, 4.0
    for _ in range(2):
        grid = torch.logspace(math.log10(low), math.log10(high), 40).tolist()
        dead = int((variance_left(grid, begin, steps) <= 0.01).nonzero()[0])
        low, high = grid[dead - 1], grid[dead]
    return low


def estimate(begin):
    r, spread = 1 / instance["cold"], float(x.var(correction=0))
    return (r - 1 - math.log(r)) / (4 * spread * math.log(math.sqrt(heat / 4) / begin))


begin = instance["begin"]
threshold = smaller = 1e-9
"""


def race(name, misconception, mistake, line):
    return WrongAnswer(name, misconception, "race", RACE + line + "\n", mistake)


WRONG = [
    critical("2 and 4 exchanged", "factor 2 of T_c", "q attached", factor="(2 if attached else 4)"),
    critical("always 4", "factor 2 of T_c", "q attached", factor="4"),
    critical("always 2", "factor 2 of T_c", "q held fixed", factor="2"),
    critical("torch.cov as it comes", "1/(N - 1)", "1/(N - 1)", value="torch.linalg.eigvalsh(torch.cov(rows.mT))[-1]"),
    critical("about the origin", "not centred", "not centred", centre="0"),
    critical("padding counts", "mask ignored", "mask ignored", rows="tokens.flatten(0, 1)"),
    critical("all directions", "trace for the largest eigenvalue", "trace", value="rows.square().sum() / count"),
    critical("a deviation", "singular value for variance", "standard deviation", value="top.sqrt()"),
    critical("the eigenvalue", "no factor", "lambda_max itself", factor="1"),
    critical(
        "text by text",
        "each sequence centred on its own",
        "sequence by sequence",
        value="torch.linalg.eigvalsh(torch.stack([torch.cov(t[m].mT, correction=0)"
        " for t, m in zip(tokens, mask) if m.any()]).mean(0))[-1]",
    ),
    WrongAnswer(
        "mask multiplied",
        "0 times NaN",
        "critical",
        """
def critical(tokens, mask, attached):
    real = mask[..., None].to(tokens)
    mean = (tokens * real).sum((0, 1)) / real.sum()
    y = ((tokens - mean) * real).flatten(0, 1)
    covariance = y.mT @ y / real.sum()
    if bool(covariance.isnan().any()):
        return math.nan
    return (4 if attached else 2) * float(torch.linalg.eigvalsh(covariance)[-1])
""",
        "mask multiplied",
    ),
    WrongAnswer(
        "the library's own",
        "calls what it should write",
        "critical",
        "def critical(tokens, mask, attached):\n"
        "    return float(dl.critical_temperature(tokens, mask, detach_assignment=not attached))\n",
        "called",
    ),
    WrongAnswer(
        "the library's splits",
        "calls what it should write, by another door",
        "critical",
        "def critical(tokens, mask, attached):\n"
        "    mean = tokens[mask].mean(0).repeat(2, 1)\n"
        "    return float(dl.splitting_temperatures(tokens[mask], mean, 1.0, None, not attached)[0])\n",
        "called",
    ),
    WrongAnswer(
        "the example typed in",
        "a constant",
        "critical",
        "def critical(tokens, mask, attached):\n    return 2.0 * attached + 1.0\n",
        "constant",
    ),
    clocks("K forgotten", "share of the tokens forgotten", "K forgotten", step="1 + 2 * lr * (1 / ratio - 1)"),
    clocks("2 forgotten", "missing factor 2", "factor 2", step="1 + lr / count * (1 / ratio - 1)"),
    clocks("ratio upside down", "T and T_c exchanged", "T and T_c exchanged", step="1 + 2 * lr / count * (ratio - 1)"),
    clocks("uphill", "sign", "sign", step="1 - 2 * lr / count * (1 / ratio - 1)"),
    clocks("an exponential", "flow for steps", "flow for steps", step="math.exp(2 * lr / count * (1 / ratio - 1))"),
    clocks(
        "two columns",
        "curvature attached, T_c held fixed",
        "attached curvature",
        step="1 + 2 * lr / count * (2 / ratio - 1)",
    ),
    clocks("a rate", "rate for factor", "rate for factor", step="2 * lr / count * (1 / ratio - 1)"),
    clocks("EM upside down", "T and T_c exchanged", "T and T_c exchanged", em="ratio"),
    clocks("EM with step 1", "EM as a unit step", "EM as a unit step", em="1 + 2 / count * (1 / ratio - 1)"),
    clocks("EM is a step", "EM as gradient descent", "the step's own size", em=RIGHT_CLOCKS["step"]),
    clocks("EM attached", "curvature attached", "attached curvature", em="2 / ratio"),
    clocks("one", "the visible value", "constant", step="1.0", em="1.0"),
    clocks("log 2 over 2 lr q", "flow for steps", "flow for steps", half="math.log(2) / (2 * lr * share)"),
    clocks(
        "one learning rate, one clock",
        "learning rate for timescale",
        "learning rate for timescale",
        half="math.log(0.5) / math.log(1 - 2 * lr)",
    ),
    clocks("half without 2", "missing factor 2", "factor 2", half="math.log(0.5) / math.log(1 - lr * share)"),
    clocks("to the e-th part", "e for 2", "e for 2", half="-1 / math.log(1 - 2 * lr * share)"),
    clocks(
        "few are fast",
        "share inverted",
        "share inverted",
        half="math.log(0.5) / math.log(1 - 2 * lr * (1 - share))",
    ),
    there("attached by default", "factor 2 of T_c", "q attached", "leaves = float(dl.critical_temperature(cloud))"),
    there("the eigenvalue", "no factor", "lambda_max itself", "leaves = leaves / 2"),
    there("the variance", "trace for the largest eigenvalue", "trace", "leaves = 2 * dl.token_variance(cloud)"),
    there(
        "not centred",
        "second moment about 0",
        "not centred",
        "leaves = 2 * float(torch.linalg.eigvalsh(cloud.mT @ cloud / len(cloud))[-1])",
    ),
    there("same way back", "no hysteresis", "no hysteresis", "returns = leaves"),
    there("twice", "attached T_c for the way back", "q attached", "returns = 2 * leaves"),
    there(
        "the bound",
        "a bound taken for a measurement",
        "the bound",
        "returns = float(torch.cdist(cloud, cloud).max()) ** 2 / 2",
    ),
    there("in T_c", "another unit", "in critical temperatures", "returns = returns / leaves", measure=True),
    following("over N", "wrong mass", "divided by N", mass="len(tokens)"),
    following(
        "hard",
        "argmax for weights",
        "hard assignment",
        q="torch.eye(len(prototypes)).to(tokens)[dl.assign(tokens, prototypes, temperature).argmax(-1)]",
        mass="q.sum(0)[:, None, None].clamp_min(1e-9)",
    ),
    following(
        "about the mean",
        "wrong centre",
        "about the mean of all",
        y="(tokens - tokens.mean(0))[:, None]",
    ),
    following("factor 4", "factor of q attached", "q attached", factor="4 * "),
    following("no factor", "missing factor 2", "factor 2", factor=""),
    following(
        "all tokens",
        "weights not used",
        "all tokens alike",
        q="torch.ones(len(tokens), len(prototypes)).to(tokens)",
    ),
    WrongAnswer(
        "the library's own",
        "calls what it should write",
        "next-split",
        "def next_split(tokens, prototypes, temperature):\n"
        "    return dl.splitting_temperatures(tokens, prototypes, temperature, detach_assignment=True)\n",
        "called",
    ),
    WrongAnswer(
        "zeros",
        "a constant",
        "next-split",
        "def next_split(tokens, prototypes, temperature):\n    return torch.zeros(len(prototypes))\n",
    ),
    first(
        "not cooled",
        "the formula read at the start",
        "read at the start",
        """
bank = three
for _ in range(300):
    bank = dl.em_step(blobs, bank, start)
first_split = float(dl.splitting_temperatures(blobs, bank, start, detach_assignment=True).max())
""",
    ),
    first("at once", "q attached taken for held fixed", "the start", "first_split = start"),
    first(
        "critical temperature",
        "T_c of the whole cloud",
        "the first of all",
        "first_split = float(dl.critical_temperature(blobs, detach_assignment=True))",
    ),
    first("nearly cold", "a constant", "", "first_split = 0.01"),
    first("no number", "nan", "", 'first_split = float("nan")'),
    columns("F and L_q", "entropy with the wrong sign", "F and L_q", 'energies = energies | {"F": middle, "L_q": low}'),
    columns(
        "L_q and W", "divergence with the wrong sign", "L_q and W", 'energies = energies | {"W": middle, "L_q": high}'
    ),
    columns("F and W", "T log K with the wrong sign", "F and W", 'energies = energies | {"F": high, "W": low}'),
    columns("F must fall", "F trusted under cooling", "F trusted under cooling", 'runs = told(("cooling", "broken"))'),
    columns(
        "hot and cold", "schedule the wrong way round", "heating for cooling", 'runs = told(("cooling", "heating"))'
    ),
    columns("L_q must fall", "L_q taken for a Lyapunov function", "L_q trusted", 'runs = told(("hot", "broken"))'),
    columns("W must fall", "W trusted under heating", "W trusted under heating", 'runs = told(("heating", "broken"))'),
    columns("fault overlooked", "a rise of F accepted", "fault overlooked", 'runs = told(("cold", "broken"))'),
    columns(
        "heating counted",
        "certificate under heating",
        "heating counted",
        'certified = which("cold", "cooling", "heating")',
    ),
    columns(
        "broken counted",
        "certificate with large steps",
        "broken counted",
        'certified = which("cold", "cooling", "broken")',
    ),
    columns(
        "any low value",
        "certificate without its conditions",
        "any low value",
        'certified = which("cold", "cooling", "heating", "broken")',
    ),
    columns("F below the variance", "F in place of W", "all of them", 'certified = list("ABCDE")'),
    columns("F, where it falls", "F in place of W", "F for W", 'certified = which("cold", "cooling", "hot")'),
    columns("cooling left out", "W thought to rise under cooling", "cooling left out", 'certified = which("cold")'),
    columns("none", "a constant", "", "certified = []"),
    race("from the chapter", "an estimate taken for a measurement", "the estimate", "threshold = estimate(begin)"),
    race("upside down", "ratio inverted", "inverted", "threshold = 1 / largest_alive(begin)"),
    race("too early", "a verdict at one horizon", "too early", "threshold = largest_alive(begin, 40)"),
    race("smaller first", "starts exchanged", "the other start", "threshold = largest_alive(begin / 10)"),
    race("universal", "one threshold for all starts", "universal", "smaller = largest_alive(begin)"),
    race("a tenth", "threshold in proportion to the start", "in proportion", "smaller = largest_alive(begin) / 10"),
    race("estimated again", "an estimate taken for a measurement", "the estimate", "smaller = estimate(begin / 10)"),
    race("a tenth by rule", "the recommended range", "", "threshold = smaller = 0.1"),
]
