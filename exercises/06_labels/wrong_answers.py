"""Set 6: answers that must be refused, and the misconception that each stands for."""

from exercises.bank import WrongAnswer

VARIANCES = """
def variances(tokens, labels):
    n, kinds = len(tokens), labels.unique()
    same = (labels[:, None] == labels).to(tokens.dtype)
    centres = same @ tokens / same.sum(-1, keepdim=True)
    each = torch.stack([tokens[labels == kind].mean(0) for kind in kinds])
    squares = (tokens - centres).square().sum(-1)
    whole = (tokens - tokens.mean(0)).square().sum(-1).mean()
    inside = {inside}
    outside = {outside}
    return float(inside), float(outside)
"""


def variances(name, misconception, mistake, inside="squares.mean()", outside="whole - squares.mean()"):
    return WrongAnswer(name, misconception, "variances", VARIANCES.format(inside=inside, outside=outside), mistake)


def expected(name, misconception, formula, mistake):
    return WrongAnswer(
        name, misconception, "expected", f"def expected_within(tokens, kinds):\n    return {formula}\n", mistake
    )


ROTARY = """
def rotary(tokens, labels, beta, frequencies, values=True):
    angles, n, last = labels[:, None] * frequencies, len(tokens), 2 * len(frequencies)

    def turn(x, angles):
        a, b = {pairs}
        turned = [a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()]
        return torch.cat([{joined}, x[:, last:]], -1)

    u = turn(tokens, angles)
    weights = {weights}
    pull = {rotated} if values else {plain}
    return {result}
"""
PARTS = {
    "pairs": "x[:, 0:last:2], x[:, 1:last:2]",
    "joined": "torch.stack(turned, -1).flatten(-2)",
    "weights": "torch.exp(beta * (u @ u.mT - 1)) / n",
    "rotated": "turn(weights @ u, -angles)",
    "plain": "weights @ tokens",
    "result": "pull - (tokens * pull).sum(-1, keepdim=True) * tokens",
}


def rotary(name, misconception, mistake, **changed):
    return WrongAnswer(name, misconception, "rotary", ROTARY.format(**(PARTS | changed)), mistake)


PROMPTS = """
ends = dl.integrate(kernel, start, prompts, time=60.0).tokens[-1]
G, e = matrices[prompts], torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)


def point(vectors):
    return vectors.mean(0) / vectors.mean(0).norm()


u = (G @ ends[..., None])[..., 0]
common = {common}
missed = {missed}
turned = {turned}
"""
RIGHT = {
    "common": "point(u)",
    "missed": "float((ends - G.mT @ e).norm(dim=-1).mean())",
    "turned": "G[0].mT @ Q @ point(u)",
}


def prompts(name, misconception, mistake, **changed):
    return WrongAnswer(name, misconception, "prompts", PROMPTS.format(**(RIGHT | changed)), mistake)


def orbit(name, misconception, formula, mistake):
    source = (
        "def resultant_of(height, phases):\n"
        "    left = (phases.cos().mean() ** 2 + phases.sin().mean() ** 2).sqrt()\n"
        f"    return float({formula})\n"
    )
    return WrongAnswer(name, misconception, "orbit", source, mistake)


CIRCLES = """
theta = torch.arange(512, dtype=torch.float64) * 2 * math.pi / 512
c, beta = instance["ring"]["mean"], instance["ring"]["beta"]


def balance(c):
    fall, low, high = 1 - theta.cos(), 1e-6, 40.0
    for _ in range(60):
        t = (low + high) / 2
        rising = (fall * (c + theta.cos()) * torch.exp(-t * fall)).mean() < 0
        low, high = (t, high) if rising else (low, t)
    return t


threshold = {threshold}
height = {height}
"""


def circles(name, misconception, mistake, threshold="balance(c)", height="math.sqrt(1 - balance(c) / beta)"):
    return WrongAnswer(name, misconception, "circles", CIRCLES.format(threshold=threshold, height=height), mistake)


SIGNS = """
def shape(c):
    theta = torch.arange(720, dtype=torch.float64) * 2 * math.pi / 720
    return sum(one * (k * theta).cos() for k, one in enumerate(c))


def fits(a):
    return bool(torch.linalg.eigvalsh(torch.diag(a.sum(-1)) - a)[0] > -1e-9)


def sums(a):
    return bool(a.sum(-1).min() >= 0)


def bare(a):
    return a - torch.diag(a.diagonal())


cs = instance["profiles"]
matrices = {n: torch.tensor(a, dtype=torch.float64) for n, a in instance["couplings"].items()}
verdict = {n: "consensus" if RULE else "spread" for n, c in cs.items()}
kinds = {n: KIND for n, a in matrices.items()}
"""
RULE = "c[0] >= max(c[1:]) / 2 and c[0] >= 0"
KIND = '("any" if sums(a) else "single") if fits(a) else "never"'


def signs(name, misconception, mistake, rule=RULE, kind=KIND):
    return WrongAnswer(name, misconception, "signs", SIGNS.replace("RULE", rule).replace("KIND", kind), mistake)


WRONG = [
    variances(
        "mean over labels",
        "labels weighted equally",
        "labels weighted equally",
        inside="torch.stack([squares[labels == kind].mean() for kind in kinds]).mean()",
    ),
    variances("all tokens", "labels ignored", "labels ignored", inside="whole"),
    variances(
        "torch.var",
        "n - 1",
        "n - 1",
        inside="sum(tokens[labels == k].var(0).sum() * (labels == k).sum() for k in kinds) / n",
    ),
    variances("mean over features", "per feature", "per feature", inside="(tokens - centres).square().mean()"),
    variances("total", "summed", "summed", inside="squares.sum()"),
    variances(
        "sum over labels",
        "summed",
        "summed over labels",
        inside="torch.stack([squares[labels == kind].mean() for kind in kinds]).sum()",
    ),
    variances("the other one", "exchanged", "exchanged", inside="whole - squares.mean()", outside="squares.mean()"),
    variances(
        "means counted once",
        "labels weighted equally",
        "labels weighted equally",
        outside="each.var(0, correction=0).sum()",
    ),
    variances("whole variance", "labels ignored", "labels ignored", outside="whole"),
    variances("estimator", "K - 1", "K - 1", outside="each.var(0).sum()"),
    variances("nothing", "a constant", "", inside="0.0", outside="0.0"),
    WrongAnswer(
        "the library's",
        "calls what it should write",
        "variances",
        "def variances(tokens, labels):\n"
        "    return dl.within_label_variance(tokens, labels), dl.between_label_variance(tokens, labels)\n",
        "called",
    ),
    expected("one", "the mean taken for the centre", "1.0", "one"),
    expected("of all tokens", "labels ignored", "1 - 1 / tokens", "all tokens"),
    expected("of all labels", "K for n/K", "1 - 1 / kinds", "one over K"),
    expected("what is lost", "the complement", "kinds / tokens", "what is lost"),
    expected("between", "the other variance", "(kinds - 1) / tokens", "between"),
    expected("estimator", "n - 1", "(tokens - kinds) / (tokens - 1)", "n - 1"),
    rotary("language models", "values not rotated", "values not rotated", rotated="weights @ tokens"),
    rotary("left in the frame", "not turned back", "not turned back", rotated="weights @ u"),
    rotary("turned on", "turned twice", "turned twice", rotated="turn(weights @ u, angles)"),
    rotary(
        "half a turn of the value",
        "value turned on one side",
        "value turned on one side",
        rotated="turn(weights @ tokens, -angles)",
    ),
    rotary("keys alone", "one side only", "one side only", weights="torch.exp(beta * (tokens @ u.mT - 1)) / n"),
    rotary("queries alone", "one side only", "one side only", weights="torch.exp(beta * (u @ tokens.mT - 1)) / n"),
    rotary(
        "sum of labels",
        "rotations one way only",
        "rotations one way only",
        weights="torch.exp(beta * (u @ turn(tokens, -angles).mT - 1)) / n",
    ),
    rotary("off the sphere", "projection forgotten", "projection forgotten", result="pull"),
    rotary("papers' unit", "no -1", "raw unit", weights="torch.exp(beta * u @ u.mT) / n"),
    rotary("softmax", "rows normalised", "rows normalised", weights="torch.softmax(beta * u @ u.mT, -1)"),
    rotary(
        "half and half",
        "other pairs of coordinates",
        "halves",
        pairs="x[:, : last // 2], x[:, last // 2 : last]",
        joined="torch.cat(turned, -1)",
    ),
    rotary("energy's own", "values rotated", "values rotated", plain="turn(weights @ u, -angles)"),
    rotary(
        "no labels",
        "labels without effect",
        "no labels",
        weights="torch.exp(beta * (tokens @ tokens.mT - 1)) / n",
        rotated="weights @ tokens",
    ),
    rotary("nothing moves", "a constant", "", result="torch.zeros_like(tokens)"),
    WrongAnswer(
        "the library's kernels",
        "calls what it should write",
        "rotary",
        "def rotary(tokens, labels, beta, frequencies, values=True):\n"
        "    return (dl.Rotary if values else dl.RotaryQueriesKeys)(beta, frequencies).drift(tokens, labels)\n",
        "called",
    ),
    prompts(
        "transposed",
        "gauge on the wrong side",
        "gauge on the wrong side",
        common="point((G.mT @ ends[..., None])[..., 0])",
    ),
    prompts("contents", "content for frame", "content taken for the frame", common="point(ends)"),
    prompts("at the start", "start for end", "the mean of the start", common="point((G @ start[..., None])[..., 0])"),
    prompts("token 0", "one content", "one content", common="ends[0]"),
    prompts("an angle", "angle for distance", "angle", missed="float(torch.acos(point(u)[2]))"),
    prompts("squared", "no root", "squared", missed="float((ends - G.mT @ e).square().sum(-1).mean())"),
    prompts(
        "targets turned by G",
        "gauge on the wrong side",
        "targets on the wrong side",
        missed="float((ends - G @ e).norm(dim=-1).mean())",
    ),
    prompts(
        "two means",
        "distance of the means",
        "distance of the means",
        missed="float((ends.mean(0) - (G.mT @ e).mean(0)).norm())",
    ),
    prompts(
        "to the pole", "one target for all", "contents at the pole", missed="float((ends - e).norm(dim=-1).mean())"
    ),
    prompts("Q last", "turned in the content", "turned in the content", turned="Q @ G[0].mT @ point(u)"),
    prompts("as before", "not turned", "not turned", turned="ends[0]"),
    prompts("not turned back", "still in the frame", "still in the frame", turned="Q @ point(u)"),
    prompts("Q transposed", "Q the other way", "Q the other way", turned="G[0].mT @ Q.mT @ point(u)"),
    prompts("G for its transpose", "wrong way back", "gauge on the wrong side", turned="G[0] @ Q @ point(u)"),
    orbit("height", "a full turn assumed", "abs(height)", "full turn assumed"),
    orbit("height, signed", "a full turn assumed", "height", "full turn assumed"),
    orbit("plane", "axis forgotten", "left * math.sqrt(1 - height**2)", "plane only"),
    orbit("no radius", "radius forgotten", "math.hypot(left, height)", "radius forgotten"),
    orbit("lengths added", "squares forgotten", "left * math.sqrt(1 - height**2) + abs(height)", "added, not squared"),
    orbit("height added", "squares forgotten", "left * math.sqrt(1 - height**2) + height", "added, not squared"),
    orbit(
        "cosines",
        "sines forgotten",
        "math.hypot(phases.cos().mean() * math.sqrt(1 - height**2), height)",
        "cosines only",
    ),
    orbit("no root", "square of it", "left**2 * (1 - height**2) + height**2", "square of it"),
    orbit("one", "the visible value", "1.0", "constant"),
    circles("minus c", "sign of c", "sign of c", threshold="balance(-c)"),
    circles("plain cosine", "c ignored", "c ignored", threshold="balance(0.0)"),
    circles("one half", "another threshold", "where consensus ends", threshold="0.5 - c"),
    circles("distance", "squared distance for 1 - <x, y>", "squared distance", threshold="balance(c) / 2"),
    circles("no root", "squared", "squared", height="1 - balance(c) / beta"),
    circles("r for z", "radius", "radius", height="math.sqrt(balance(c) / beta)"),
    circles("latitude", "an angle", "an angle", height="math.asin(math.sqrt(1 - balance(c) / beta))"),
    circles("equator", "a guess", "", height="0.0"),
    signs("any minus", "sign of the profile", "any minus spreads", rule="shape(c).min() >= 0"),
    signs("positive mean", "mean is enough", "mean is enough", rule="c[0] > 0"),
    signs("coefficients", "half forgotten", "half forgotten", rule="c[0] >= max(c[1:])"),
    signs(
        "sizes of coefficients", "absolute values", "absolute values", rule="c[0] >= max(abs(one) for one in c[1:]) / 2"
    ),
    signs("first harmonic", "first mode only", "first mode only", rule="c[0] >= c[1] / 2"),
    signs("the other word", "exchanged", "exchanged", rule=f"not ({RULE})"),
    signs("all consensus", "a guess", "", rule="True"),
    signs("row sums", "no Laplacian", "row sums only", kind='"any" if sums(a) else "never"'),
    signs("Laplacian", "one label's tokens", "tokens of one label forgotten", kind='"any" if fits(a) else "never"'),
    signs(
        "entries",
        "a minus decides",
        "signs of the entries",
        kind='"never" if bare(a).min() < 0 else ("any" if sums(a) else "single")',
    ),
    signs(
        "eigenvalues of a",
        "coupling for its Laplacian",
        "coupling for its Laplacian",
        kind='("any" if sums(a) else "single") if torch.linalg.eigvalsh(a)[0] > 0 else "never"',
    ),
    signs(
        "half a diagonal",
        "diagonal kept",
        "diagonal kept",
        kind=(
            '("any" if sums(a) else "single") if torch.linalg.eigvalsh(torch.diag(bare(a).sum(-1)) - a)[0] > 0 else '
            '"never"'
        ),
    ),
]
