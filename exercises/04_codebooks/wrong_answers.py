"""Set 4: answers that must be refused, and the misconception that each stands for."""

from exercises.bank import WrongAnswer

STRAIGHT = """
def hard_vq(tokens, codes, commitment):
    index = {index}
    code = codes[index]
    stand_ins = {stand_ins}
    pull = (tokens.detach() - code).square().sum(-1).mean()
    keep = (tokens - code.detach()).square().sum(-1).mean()
    return stand_ins, index, {loss}


def hard_soft(tokens, codes, temperature):
    index = (tokens[:, None] - codes).square().sum(-1).argmin(-1)
    q = dl.assign(tokens, codes, temperature)
    mixture = {mixture}
    return {mixed}
"""
INDEX = "(tokens[:, None] - codes).square().sum(-1).argmin(-1)"
STAND_INS = "tokens + (code - tokens).detach()"
MIXED = "mixture + (codes[index] - mixture).detach()"


def straight(
    name,
    misconception,
    mistake,
    index=INDEX,
    stand_ins=STAND_INS,
    loss="pull + commitment * keep",
    mixture="q @ codes",
    mixed=MIXED,
):
    source = STRAIGHT.format(index=index, stand_ins=stand_ins, loss=loss, mixture=mixture, mixed=mixed)
    return WrongAnswer(name, misconception, "straight", source, mistake)


AVERAGES = """
def averaged(tokens, codes, share, decay):
    index = (tokens[:, None] - codes).square().sum(-1).argmin(-1)
    chosen = torch.nn.functional.one_hot(index, len(codes)).to(tokens.dtype)
    now = chosen.mean(0)
    sums = chosen.mT @ tokens / len(tokens)
    means = torch.where(now[:, None] > 0, sums / now[:, None], codes)
    later = {share}
    return {codes}, later


def patience(decay, below, keeps):
    return {patience}
"""
LATER = "decay * share + (1 - decay) * now"
CODES = "(decay * share[:, None] * codes + (1 - decay) * sums) / later[:, None]"
PATIENCE = "math.ceil(math.log((below - keeps) / (1 - keeps)) / math.log(decay))"


def averages(name, misconception, mistake, share=LATER, codes=CODES, patience=PATIENCE):
    source = AVERAGES.format(share=share, codes=codes, patience=patience)
    return WrongAnswer(name, misconception, "averages", source, mistake)


LEVEL = """
def level(tokens, mass, prototypes, temperature):
    real = mass > 0
    {clean}
    q = {weights}
    shares = q * mass[..., None]
    masses = shares.sum(1)
    return {vectors}, {masses}
"""
CLEAN = "tokens = torch.where(real[..., None], tokens, torch.zeros_like(tokens))"


def level(
    name,
    misconception,
    mistake,
    clean=CLEAN,
    weights="dl.assign(tokens, prototypes, temperature, real)",
    vectors="shares.mT @ tokens / masses[..., None]",
    masses="masses",
):
    source = LEVEL.format(clean=clean, weights=weights, vectors=vectors, masses=masses)
    return WrongAnswer(name, misconception, "level", source, mistake)


INTEGERS = """
unit = float(dl.critical_temperature(cloud, detach_assignment=True))
bank = log[-1]


def gap_at(T):
    q = dl.assign(cloud, bank, T)
    squares = (cloud[:, None] - bank).square().sum(-1)
    mixed = float((cloud - q @ bank).square().sum(-1).mean())
    total = float((q * squares).sum(-1).mean())
    hard = float(squares.amin(-1).mean())
    return 100 * {gap}


def first(T0):
    T = 0.001 * unit
    while gap_at(T) < instance["allowed"] and T < 3 * unit:
        T = 1.003 * T
    return T


epoch_used = next((n for n, b in enumerate(log) if {used}), len(log) - 1)
epoch_ready = next((n for n, b in enumerate(log) if {ready}), len(log) - 1)
gap = {answer}
coldest = {coldest}
"""
USED = "dl.usage(dl.assign(cloud, b, 0.1 * unit)) >= 0.9"
SOFT = "dl.usage(dl.assign(cloud, b, 0.1 * unit), hard=False) >= 0.9"
READY = USED + ' and dl.min_separation(b, cloud) >= instance["apart"]'


def integers(
    name,
    misconception,
    mistake,
    used=USED,
    ready=READY,
    gap="(hard - mixed) / dl.token_variance(cloud)",
    answer='gap_at(2 * instance["ratio"] * unit)',
    coldest="first(0) / unit",
):
    source = INTEGERS.format(used=used, ready=ready, gap=gap, answer=answer, coldest=coldest)
    return WrongAnswer(name, misconception, "integers", source, mistake)


RUNS = """
kinds, diagnosis, lost = {{}}, {{}}, 0.0
for letter, run in runs.items():
    kinds[letter] = "hard" if run["nearest"] == run["mixture"] else "soft"
    cost = run["nearest"][-1] - run["mixture"][-1]
    before, after = run["usage"][-2:]
    if run["variance"][-1] < 0.05:
        diagnosis[letter] = "collapsed"
    elif after < 0.7:
        diagnosis[letter] = "undone" if before > after + 0.15 else "dead"
    elif cost > 3:
        diagnosis[letter], lost = "warm", cost
        warm = run
    else:
        diagnosis[letter] = "healthy"
{line}
"""


def runs(name, misconception, mistake, line):
    return WrongAnswer(name, misconception, "autoencoders", RUNS.format(line=line), mistake)


def swapped(one, other):
    return f'diagnosis = {{n: {{"{one}": "{other}", "{other}": "{one}"}}.get(w, w) for n, w in diagnosis.items()}}'


SIBLINGS = """
def has_sibling(sizes, tested):
    total = sum(sizes)

    def none(m):
        return math.prod(max(tested - j, 0) / (total - j) for j in range(1, m))

    return {share}


apart = torch.cdist(places, places)
{myself}
one_out = float((kind[apart.argmin(1)] == kind).double().mean())
{own}
launch_out = {answer}
{after}
"""
SHARE = "sum(m * (1 - none(m)) for m in sizes) / total"
ANSWER = "float((kind[apart.argmin(1)] == kind).double().mean())"
EACH = (
    "hits = (kind[apart.argmin(1)] == kind).double(); "
    "launch_out = float(torch.stack([hits[launch == n].mean() for n in launch.unique()]).mean())"
)


def siblings(
    name,
    misconception,
    mistake,
    share=SHARE,
    myself="apart.fill_diagonal_(math.inf)",
    own="apart[launch[:, None] == launch] = math.inf",
    answer=ANSWER,
    after="",
):
    source = SIBLINGS.format(share=share, myself=myself, own=own, answer=answer, after=after)
    return WrongAnswer(name, misconception, "siblings", source, mistake)


WRONG = [
    straight(
        "farthest", "argmax of distances", "farthest code", index="(tokens[:, None] - codes).norm(dim=-1).argmax(-1)"
    ),
    straight(
        "dot product", "nearest taken for most similar", "largest product", index="(tokens @ codes.mT).argmax(-1)"
    ),
    straight(
        "reversed", "sign of the difference", "difference reversed", stand_ins="tokens + (tokens - code).detach()"
    ),
    straight("token kept", "value of the token", "token kept", stand_ins="tokens + (code - code.detach())"),
    straight("a look-up", "gradient on the wrong side", "gradient to the code", stand_ins="code"),
    straight(
        "stopped at the token",
        "gradient on the wrong side",
        "gradient to the code",
        stand_ins="code + (tokens - tokens).detach()",
    ),
    straight(
        "half stopped", "only the token is stopped", "gradient to both", stand_ins="tokens + code - tokens.detach()"
    ),
    straight("all stopped", "no gradient", "no gradient", stand_ins="code.detach()"),
    straight("exchanged", "commitment and codebook loss", "terms exchanged", loss="keep + commitment * pull"),
    straight(
        "nothing stopped",
        "both terms move both",
        "counted twice",
        loss="(1 + commitment) * (tokens - code).square().sum(-1).mean()",
    ),
    straight("codebook loss alone", "commitment forgotten", "commitment left out", loss="pull"),
    straight("commitment alone", "as with moving averages", "codes left out", loss="commitment * keep"),
    straight("weight of one", "commitment not used", "weight left out", loss="pull + keep"),
    straight(
        "mse_loss",
        "mean over features",
        "mean over features",
        loss="(pull + commitment * keep) / tokens.shape[-1]",
    ),
    straight("sum", "no mean over tokens", "sum over tokens", loss="(pull + commitment * keep) * len(tokens)"),
    straight("a number", "loss without gradient", "no gradient", loss="(pull + commitment * keep).detach()"),
    straight(
        "as in VQ",
        "gradient of the token",
        "token's gradient",
        mixed="tokens + (codes[index] - tokens).detach()",
    ),
    straight("codes alone", "no gradient", "no gradient", mixed="codes[index].detach()"),
    straight("the mixture", "soft in place of hard", "mixture's value", mixed="mixture"),
    straight("weights detached", "q held fixed everywhere", "weights cut off", mixture="q.detach() @ codes"),
    straight(
        "codes detached",
        "gradient of the tokens alone",
        "codes cut off",
        mixture="dl.assign(tokens, codes.detach(), temperature) @ codes.detach()",
    ),
    straight("values detached", "codes in the weights only", "codes in the weights only", mixture="q @ codes.detach()"),
    straight(
        "weights of fixed codes",
        "codes as values only",
        "codes as values only",
        mixture="dl.assign(tokens, codes.detach(), temperature) @ codes",
    ),
    straight("plain look-up", "nothing of the mixture", "a plain look-up", mixed="codes[index]"),
    WrongAnswer(
        "the library's own",
        "calls what it should write",
        "straight",
        """
def hard_vq(tokens, codes, commitment):
    book = dl.HardCodebook(codes.shape[1], len(codes), commitment)
    book.codes.data = codes
    return book(tokens)


def hard_soft(tokens, codes, temperature):
    book = dl.SoftCodebook(codes.shape[1], len(codes), temperature, hard=True)
    book.codes.data = codes
    return book(tokens).tokens
""",
        "called",
    ),
    WrongAnswer(
        "the example typed in",
        "visible case only",
        "straight",
        """
def hard_vq(tokens, codes, commitment):
    index = torch.tensor([0, 1, 0])[: len(tokens)]
    return torch.eye(2)[index].requires_grad_(), index, torch.tensor(0.0)


def hard_soft(tokens, codes, temperature):
    return torch.eye(2).requires_grad_()
""",
    ),
    averages("exchanged", "decay on the wrong side", "decay exchanged", share="(1 - decay) * share + decay * now"),
    averages(
        "share forgotten",
        "share not updated",
        "share not updated",
        share="share",
    ),
    averages("counts", "counts for shares", "counts for shares", share="decay * share + (1 - decay) * chosen.sum(0)"),
    averages("this batch", "no memory", "this batch alone", share="now"),
    averages("one pace", "every code moves alike", "one pace for all", codes="decay * codes + (1 - decay) * means"),
    averages(
        "to the origin",
        "mean of no tokens is 0",
        "pulled to zero",
        codes="decay * codes + (1 - decay) * torch.where(now[:, None] > 0, means, 0)",
    ),
    averages(
        "old share",
        "divided by what was",
        "divided by the old share",
        codes="codes + (1 - decay) * (sums - now[:, None] * codes) / share[:, None]",
    ),
    averages(
        "zero by zero",
        "dead code is NaN",
        "zero by zero",
        codes=f"torch.where(now[:, None] > 0, {CODES}, sums / now[:, None])",
    ),
    averages("K-means", "codes jump to the means", "this batch alone", codes="means"),
    averages("sums", "not divided", "", codes="decay * share[:, None] * codes + (1 - decay) * sums"),
    averages(
        "codes the wrong way",
        "decay on the wrong side",
        "decay exchanged",
        codes="((1 - decay) * share[:, None] * codes + decay * sums) / ((1 - decay) * share + decay * now)[:, None]",
    ),
    averages(
        "nothing kept",
        "keeps ignored",
        "what it keeps ignored",
        patience="math.ceil(math.log(below) / math.log(decay))",
    ),
    averages(
        "rounded down",
        "one too few",
        "one too few",
        patience="math.floor(math.log((below - keeps) / (1 - keeps)) / math.log(decay))",
    ),
    averages(
        "real number",
        "updates are counted",
        "not a number of updates",
        patience="math.log((below - keeps) / (1 - keeps)) / math.log(decay)",
    ),
    averages("time constant", "1 / (1 - decay)", "", patience="round(1 / (1 - decay))"),
    averages("a constant", "the same for all", "", patience="22"),
    WrongAnswer(
        "the library's update",
        "calls what it should write",
        "averages",
        """
def averaged(tokens, codes, share, decay):
    book = dl.HardCodebook(codes.shape[1], len(codes), decay=decay)
    book.codes.data, book.share = codes.clone(), share.clone()
    book.update(tokens)
    return book.codes.detach(), book.share


def patience(decay, below, keeps):
    return 1
""",
        "called",
    ),
    level("equal", "masses not used", "equal masses", clean=CLEAN + "; mass = real / real.sum(-1, keepdim=True)"),
    level("masses forgotten", "1 / K each", "masses forgotten", masses="torch.full_like(masses, 1 / len(prototypes))"),
    level("sums", "not divided", "not divided", vectors="shares.mT @ tokens"),
    level(
        "by weights",
        "divided by the weights",
        "divided by weights",
        vectors="shares.mT @ tokens / q.sum(1)[..., None]",
    ),
    level(
        "over tokens",
        "softmax over the wrong axis",
        "over tokens",
        weights="torch.softmax(-(tokens[:, :, None] - prototypes).square().sum(-1) / temperature, 1)",
    ),
    level(
        "prototypes",
        "codes handed on",
        "prototypes",
        vectors="prototypes.expand(len(tokens), -1, -1)",
    ),
    level("padding as it is", "0 times NaN", "mass multiplied", clean="real = torch.ones_like(real)"),
    level("ones", "a constant", "", vectors="torch.ones(len(tokens), len(prototypes), tokens.shape[-1])"),
    WrongAnswer(
        "the library's level",
        "calls what it should write",
        "level",
        """
def level(tokens, mass, prototypes, temperature):
    from ddcl_lite.prototypes.hierarchy import read

    return read(tokens, mass, prototypes, torch.tensor(temperature))
""",
        "called",
    ),
    integers("usage alone", "separation not looked at", "usage alone", ready=USED),
    integers(
        "soft usage",
        "q > 0",
        "soft usage",
        used=SOFT,
        ready=SOFT + ' and dl.min_separation(b, cloud) >= instance["apart"]',
    ),
    integers(
        "no unit",
        "a plain distance",
        "no unit",
        ready=USED + ' and dl.min_separation(b) >= instance["apart"]',
    ),
    integers("the last", "a constant", "", ready="n == 12"),
    integers("q held fixed", "factor 2", "q held fixed", answer='gap_at(instance["ratio"] * unit)'),
    integers("plain T", "ratio for a temperature", "plain temperature", answer='gap_at(instance["ratio"])'),
    integers("soft minus hard", "sign", "sign", answer='-gap_at(2 * instance["ratio"] * unit)'),
    integers("a share", "not in percent", "not in percent", answer='gap_at(2 * instance["ratio"] * unit) / 100'),
    integers("of the error", "percent of the hard error", "share of the error", gap="(hard - mixed) / hard"),
    integers("L_q", "V counted in", "L_q for the soft error", gap="(hard - total) / dl.token_variance(cloud)"),
    integers(
        "all entries",
        "variance of the numbers",
        "variance of single entries",
        gap="(hard - mixed) / float(cloud.var(correction=0))",
    ),
    integers("attached unit", "factor 2", "q attached", coldest="first(0) / (2 * unit)"),
    integers("a temperature", "no unit", "no unit", coldest="first(0)"),
    integers("root", "distance for squared distance", "square root", coldest="(first(0) / unit) ** 0.5"),
    runs("mixture trusted", "the gap overlooked", "mixture trusted", swapped("healthy", "warm")),
    runs("revival trusted", "usage right after revival", "revival trusted", swapped("healthy", "undone")),
    runs("undone and dead", "two low usages exchanged", "undone taken for dead", swapped("dead", "undone")),
    runs("usage trusted", "tokens not looked at", "usage trusted", swapped("healthy", "collapsed")),
    runs("dead and collapsed", "two collapses exchanged", "dead taken for collapsed", swapped("dead", "collapsed")),
    runs("dead called healthy", "low usage accepted", "dead taken for healthy", swapped("dead", "healthy")),
    runs("two large errors", "gap and collapse exchanged", "warm taken for collapsed", swapped("warm", "collapsed")),
    runs(
        "kinds exchanged",
        "hard for soft",
        "exchanged",
        'kinds = {n: {"hard": "soft", "soft": "hard"}[k] for n, k in kinds.items()}',
    ),
    runs(
        "hard means dead",
        "kind from usage",
        "few codes, so hard",
        'kinds = {n: "hard" if r["usage"][-1] <= 0.6 else "soft" for n, r in runs.items()}',
    ),
    runs(
        "last row",
        "kind from the last row",
        "the last row alone",
        'kinds = {n: "hard" if abs(r["nearest"][-1] - r["mixture"][-1]) < 1 else "soft" for n, r in runs.items()}',
    ),
    runs("guess", "all soft", "", 'kinds = dict.fromkeys("ABCDE", "soft")'),
    runs("gain", "sign", "sign", "lost = -lost"),
    runs("ratio", "ratio for a difference", "a ratio", 'lost = warm["nearest"][-1] / warm["mixture"][-1]'),
    runs(
        "percent of error",
        "relative",
        "percent of the error",
        'lost = 100 * (warm["nearest"][-1] / warm["mixture"][-1] - 1)',
    ),
    runs(
        "mean",
        "over the whole run",
        "mean over the rows",
        'lost = sum(a - b for a, b in zip(warm["nearest"], warm["mixture"])) / len(warm["nearest"])',
    ),
    siblings(
        "launches averaged",
        "mean over launches",
        "mean over launches",
        share="sum(1 - none(m) for m in sizes) / len(sizes)",
    ),
    siblings(
        "coins",
        "independent draws",
        "drawn with replacement",
        share="sum(m * (1 - (tested / total) ** (m - 1)) for m in sizes) / total",
    ),
    siblings("complement", "no sibling", "all siblings tested", share="sum(m * none(m) for m in sizes) / total"),
    siblings(
        "wrong side",
        "siblings in the test",
        "test and training exchanged",
        share=(
            "sum(m * (1 - math.prod(max(total - tested - j, 0) / (total - 1 - j) for j in range(m - 1))) "
            "for m in sizes) / total"
        ),
    ),
    siblings(
        "itself a sibling",
        "one factor too many",
        "oneself counted",
        share="sum(m * (1 - tested / total * none(m)) for m in sizes) / total",
    ),
    siblings("nobody", "a constant", "constant", share="0.0"),
    siblings("swapped", "which may ask", "exchanged", after="one_out, launch_out = launch_out, one_out"),
    siblings("same split", "siblings kept", "siblings kept", own=""),
    siblings("asks itself", "diagonal kept", "oneself asked", myself=""),
    siblings("launch by launch", "launches counted once", "mean over launches", after=EACH),
]
