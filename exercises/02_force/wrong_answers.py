"""Set 2: answers that must be refused, and the misconception that each stands for."""

from exercises.bank import WrongAnswer

TERMS = {
    "rows": "z, q = tokens[mask], weights[mask]",
    "mu": "q @ prototypes",
    "total": "(q * (z[:, None] - prototypes).square().sum(-1)).sum(-1).mean()",
    "fit": "(z - mu).square().sum(-1).mean()",
    "blur": "(q * (mu[:, None] - prototypes).square().sum(-1)).sum(-1).mean()",
}


def terms(name, misconception, mistake, **changed):
    parts = TERMS | changed
    source = f"""
def three_terms(tokens, prototypes, weights, mask):
    {parts["rows"]}
    mu = {parts["mu"]}
    total = {parts["total"]}
    fit = {parts["fit"]}
    blur = {parts["blur"]}
    return float(total), float(fit), float(blur)
"""
    return WrongAnswer(name, misconception, "terms", source, mistake)


def gradients(name, misconception, mistake, fixed="gradient(q.detach())", attached="gradient(q)", value="", rest=""):
    value = value or "(q * (leaf - (q @ leaf)[:, None]).square().sum(-1)).sum(-1).mean()"
    source = f"""
def variance_gradients(tokens, prototypes, temperature):
    leaf = prototypes.clone().requires_grad_()
    q = dl.assign(tokens, leaf, temperature)

    def gradient(q):
        value = {value}
        return torch.autograd.grad(value, leaf, retain_graph=True)[0]

    fixed, attached = {fixed}, {attached}
    {rest}
    return fixed, attached
"""
    return WrongAnswer(name, misconception, "gradients", source, mistake)


def opening(name, misconception, mistake, formula):
    source = f"""
def opening(tokens, centroids, centre, variance):
    work = ((tokens - centroids) * (centroids - centre)).sum(-1)
    return float({formula})
"""
    return WrongAnswer(name, misconception, "opening", source, mistake)


PAIR = """
sizes = (gap * torch.linspace(0.01, 1.2, 1200, dtype=torch.float64)).requires_grad_()
y = (cloud - cloud.mean(0)) @ axis


def sign_change(term, detach):
    s = sizes[:, None]
    m = torch.tanh(2 * s * y / temperature)  # the difference of the two weights
    m = m.detach() if detach else m
    blur, fit = s**2 * (1 - m**2), (y - s * m) ** 2
    value = {"V": blur, "L_OLS": fit, "L_q": blur + fit}[term]
    (rates,) = torch.autograd.grad(-value.mean(-1).sum(), sizes)
    return float(sizes.detach()[(rates[:-1] * rates[1:] < 0).nonzero()[0, 0]])


deviation = float(y.square().mean().sqrt())
turning = sign_change("V", False)
rest_fixed = sign_change("L_q", True)
rest_attached = sign_change("L_q", False)
"""


def pair(name, misconception, mistake, lines):
    return WrongAnswer(name, misconception, "pair", PAIR + lines + "\n", mistake)


STEPS = """
from ddcl_lite.prototypes import dense

leaf = step_bank.clone().requires_grad_()
held = dense.decompose(step_tokens, leaf, instance["step_temperature"], detach_assignment=True)
free = dense.decompose(step_tokens, leaf, instance["step_temperature"])


def slope(value):
    return torch.autograd.grad(value, leaf, retain_graph=True)[0]


right = slope(held.total)
candidates = {
    "right": right,
    "factor 2": right / 2,
    "sum": right * len(step_tokens),
    "attached": slope(free.total),
    "sign of V": slope(held.reconstruction - held.variance),
}
diagnosis = {}
for letter, bank in step_after.items():
    taken = (step_bank - bank) / instance["step_rate"]
    diagnosis[letter] = min(candidates, key=lambda word: (candidates[word] - taken).norm())
letter_of = {word: letter for letter, word in diagnosis.items()}
right_run = letter_of["right"]
"""


def steps(name, misconception, mistake, line):
    return WrongAnswer(name, misconception, "diagnosis", STEPS + line + "\n", mistake)


def swapped(one, other):
    swap = f'{{"{one}": "{other}", "{other}": "{one}"}}'
    return f"diagnosis = {{letter: {swap}.get(word, word) for letter, word in diagnosis.items()}}"


EVEN = "((z[:, None] - prototypes).square().sum(-1)).mean(-1).mean()"
PADDED = "z, q = tokens.flatten(0, 1), weights.flatten(0, 1)"
ZEROS = "z, q = tokens[mask], weights[mask]; every = mask.numel()"
MULTIPLIED = "z, q, m = tokens.flatten(0, 1), weights.flatten(0, 1), mask.flatten().double()"
WRONG = [
    terms("all the same weight", "weights not used", "weights not used", total=EVEN),
    terms("first mix, then measure", "L_OLS for L_q", "L_OLS for L_q", total=TERMS["fit"]),
    terms("first measure, then mix", "L_q for L_OLS", "L_q for L_OLS", fit=TERMS["total"]),
    terms(
        "the nearest prototype",
        "argmax in place of the mixture",
        "hard assignment",
        fit="(z - prototypes[q.argmax(-1)]).square().sum(-1).mean()",
    ),
    terms(
        "spread of the bank",
        "V about the mean of all prototypes",
        "about the bank's mean",
        blur="(q * (prototypes.mean(0) - prototypes).square().sum(-1)).sum(-1).mean()",
    ),
    terms(
        "V without weights",
        "weights not used",
        "weights not used",
        blur="(mu[:, None] - prototypes).square().sum(-1).mean(-1).mean()",
    ),
    terms("padding counts", "mask ignored", "mask ignored", rows=PADDED),
    terms("a sum", "straight sum for mean", "sum", total=TERMS["total"].replace(".mean()", ".sum()")),
    terms("a sum of misfits", "straight sum for mean", "sum", fit=TERMS["fit"].replace(".mean()", ".sum()")),
    terms(
        "divided by B N",
        "padding counted in the divisor",
        "divided by all positions",
        rows=ZEROS,
        blur=TERMS["blur"].replace(".mean()", ".sum() / every"),
    ),
    terms(
        "mean over everything",
        "features averaged",
        "mean over features",
        fit="(z - mu).square().mean()",
    ),
    terms(
        "sequence by sequence",
        "mean of means",
        "mean of means",
        fit="torch.stack([(t[m] - w[m] @ prototypes).square().sum(-1).mean()"
        " for t, w, m in zip(tokens, weights, mask)]).mean()",
    ),
    terms(
        "distance for its square",
        "not squared",
        "not squared",
        fit="(z - mu).norm(dim=-1).mean()",
    ),
    terms(
        "mask multiplied",
        "0 times NaN",
        "mask multiplied",
        rows=MULTIPLIED,
        total="(m * (q * (z[:, None] - prototypes).square().sum(-1)).sum(-1)).sum() / m.sum()",
        fit="(m * (z - mu).square().sum(-1)).sum() / m.sum()",
        blur="(m * (q * (mu[:, None] - prototypes).square().sum(-1)).sum(-1)).sum() / m.sum()",
    ),
    WrongAnswer(
        "the example typed in",
        "visible case only",
        "terms",
        "def three_terms(tokens, prototypes, weights, mask):\n    return 10.0, 0.0, 0.0\n",
        "constant",
    ),
    WrongAnswer(
        "the library's own",
        "calls what it should write",
        "terms",
        "from ddcl_lite.prototypes import dense\n\n"
        "def three_terms(tokens, prototypes, weights, mask):\n"
        "    parts = dense.split(tokens[mask], prototypes, weights[mask])\n"
        "    return tuple(float(part.mean()) for part in parts[:3])\n",
        "called",
    ),
    gradients("never detached", "q frozen against attached", "q attached", fixed="gradient(q)"),
    gradients("always detached", "q frozen against attached", "q held fixed", attached="gradient(q.detach())"),
    gradients(
        "the other way round",
        "the two exchanged",
        "q attached",
        fixed="gradient(q)",
        attached="gradient(q.detach())",
    ),
    gradients("half", "missing factor 2", "missing factor 2", rest="fixed, attached = fixed / 2, attached / 2"),
    gradients(
        "Sigma_q P alone",
        "missing factor 2",
        "missing factor 2",
        fixed="((torch.diag_embed(q) - q[..., None] * q[:, None]) @ leaf).mean(0)",
    ),
    gradients("a force", "sign", "sign", rest="fixed, attached = -fixed, -attached"),
    gradients(
        "summed",
        "straight sum for mean",
        "sum",
        value="(q * (leaf - (q @ leaf)[:, None]).square().sum(-1)).sum()",
    ),
    gradients(
        "whole loss",
        "L_q for V",
        "of L_q",
        value="(q * (tokens[:, None] - leaf).square().sum(-1)).sum(-1).mean()",
    ),
    gradients("misfit", "L_OLS for V", "of L_OLS", value="(tokens - q @ leaf).square().sum(-1).mean()"),
    gradients(
        "one Sigma for all",
        "weights averaged before Sigma_q",
        "weights averaged first",
        fixed="2 * (torch.diag(q.mean(0)) - torch.outer(q.mean(0), q.mean(0))) @ leaf",
    ),
    gradients(
        "only through q",
        "direct part forgotten",
        "direct part forgotten",
        rest="attached = attached - fixed",
    ),
    WrongAnswer(
        "zeros",
        "a constant",
        "gradients",
        "def variance_gradients(tokens, prototypes, temperature):\n    return torch.zeros(2, 2), torch.ones(2, 2)\n",
    ),
    WrongAnswer(
        "the library's decompose",
        "calls what it should write",
        "gradients",
        "def variance_gradients(tokens, prototypes, temperature):\n"
        "    found = []\n"
        "    for detach in (True, False):\n"
        "        leaf = prototypes.clone().requires_grad_()\n"
        "        parts = dl.decompose(tokens, leaf, temperature, detach_assignment=detach)\n"
        "        found.append(torch.autograd.grad(parts.variance, leaf)[0])\n"
        "    return tuple(found)\n",
        "called",
    ),
    WrongAnswer(
        "the library's forces",
        "calls what it should write, by another door",
        "gradients",
        "from ddcl_lite.experiments.forces import forces\n\n"
        "def variance_gradients(tokens, prototypes, temperature):\n"
        "    both = (True, False)\n"
        '    return tuple(-forces(tokens, prototypes, temperature, d)["V"] for d in both)\n',
        "called",
    ),
    opening("2 for 4", "missing factor 2", "factor 2", "2 * work.mean() - 2 * variance"),
    opening("no factors", "missing factors", "both factors", "work.mean() - variance"),
    opening("one part", "V forgotten", "V forgotten", "4 * work.mean()"),
    opening("V pushes", "sign of V flipped", "V taken for a push", "4 * work.mean() + 4 * variance"),
    opening("uphill", "sign", "sign", "4 * variance - 4 * work.mean()"),
    opening(
        "-2 V",
        "the chapter's pairing taken for the derivative of S",
        "one factor on V",
        "4 * work.mean() - 2 * variance",
    ),
    opening(
        "no centre",
        "about the origin",
        "about the origin",
        "4 * ((tokens - centroids) * centroids).sum(-1).mean() - 4 * variance",
    ),
    opening("summed", "straight sum for mean", "sum", "4 * work.sum() - 4 * variance"),
    opening("zero", "the visible value", "constant", "0.0"),
    pair(
        "the chapter's number",
        "two tokens taken for a cloud",
        "two tokens",
        "turning = 1.19968 * temperature / (2 * deviation)",
    ),
    pair("from one to the other", "distance between the two", "the whole distance", "turning = 2 * turning"),
    pair("turning in deviations", "a unit that was not asked for", "in deviations", "turning = turning / deviation"),
    pair(
        "attached at rest",
        "q attached for q held fixed",
        "q attached",
        "rest_fixed = rest_attached",
    ),
    pair(
        "held fixed at rest",
        "q held fixed for q attached",
        "q held fixed",
        "rest_attached = rest_fixed",
    ),
    pair("both in deviations", "a unit that was not asked for", "in deviations", "rest_fixed = rest_fixed / deviation"),
    pair("as far apart", "distance between the two", "the whole distance", "rest_attached = 2 * rest_attached"),
    pair("one", "a constant", "", "turning = rest_fixed = rest_attached = 1.0"),
    steps(
        "what backward gives",
        "q attached taken for held fixed",
        "attached taken for right",
        'right_run = letter_of["attached"]',
    ),
    steps("half the step", "missing factor 2", "factor 2 missed", 'right_run = letter_of["factor 2"]'),
    steps("the sum", "straight sum for mean", "sum missed", 'right_run = letter_of["sum"]'),
    steps("V pushes", "sign of V flipped", "V taken for a push", 'right_run = letter_of["sign of V"]'),
    steps(
        "attached for right",
        "q frozen against attached",
        "attached taken for right",
        swapped("right", "attached"),
    ),
    steps("lengths not compared", "missing factor 2", "factor 2 taken for right", swapped("right", "factor 2")),
    steps("longer and shorter", "factor above or below 1", "factor 2 and sum", swapped("sum", "factor 2")),
    steps("pushing V for right", "sign of V flipped", "V taken for a push", swapped("right", "sign of V")),
    steps(
        "two directions",
        "attached and flipped exchanged",
        "attached and sign of V",
        swapped("attached", "sign of V"),
    ),
    steps("all right", "a constant", "", 'diagnosis = dict.fromkeys("ABCDE", "right")'),
]
