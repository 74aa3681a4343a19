"""U15: the scope of the second paper's theory, and one layer of a real transformer, looped."""

import numpy as np
import torch

from ..data import load_encoder
from ..experiments.looped import loop, relative_spread, sentences
from ..experiments.looped_bank import consensus, random_labels, response
from ..experiments.results import stored
from .registry import Evidence, claim

LOOPED = "216 sentences, 300 loops"


@claim(
    "U15",
    "A summary states the scope: the theory is about looped, weight-shared transformers, as surrogates that are "
    "continuous in depth; not about a stack of different layers.",
    "measured",
    "One layer of MiniLM, looped on real sentences: whether they collapse to a point depends on the layer, and in the "
    "first layer on the length. What holds in all six layers is local: consensus attracts, at a rate that no query and "
    "no key enters, and labels injected again come back as a linear function of themselves. What does not hold "
    "is that sentences get there: in three layers most stop at two points or keep moving. The trained stack of six "
    "different layers does not collapse. Evidence of the stored run is the same at every seed; the seed draws six "
    "sentences for the rest.",
    17,
)
def real_layers(seed, device):
    return [*fates(), *theory(), *live(seed, device)]


def fates():
    """What the stored run over all sentences says: shares of sentences at a point, layer by layer."""
    table = stored("looped")["table"]
    point = (table["clusters"] == 1).groupby(table["layer"]).mean()
    bounds = {0: (0.6, 0.95), 1: (None, 0.4), 2: (None, 0.1), 3: (None, 0.1), 4: (0.98, None), 5: (0.98, None)}
    evidence = [Evidence("stored run: sentences", float(table["sentence"].nunique()), at_least=200)]
    for layer, (low, high) in bounds.items():
        evidence.append(Evidence(f"layer {layer}, {LOOPED}: share at one point", point[layer], low, high))
    two = (table["clusters"] == 2).groupby(table["layer"]).mean()
    moving = (table["motion"] > 1e-3).groupby(table["layer"]).mean()
    first = table[table["layer"] == 0].sort_values("tokens")
    ends = [float((part["clusters"] == 1).mean()) for part in (first.head(36), first.tail(108))]
    middle = stored("looped_paths")["table"]
    middle = middle[middle["loop"] == 300].set_index("layer")
    for layer in (1, 2, 3):
        name = f"layer {layer}: mean cosine in a sentence, "
        evidence += [Evidence(name + q, middle[f"cosine {q}"][layer]) for q in ("q1", "median", "q3")]
    stack = stored("looped_stack")["table"].set_index("depth")
    return [
        *evidence,
        Evidence("layers 1 and 2: share at two points, the smaller", float(two[[1, 2]].min()), at_least=0.6),
        Evidence("layer 3: share that still moves", moving[3], at_least=0.5),
        Evidence("layer 0: share at one point, the 36 shortest sentences", ends[0], at_most=0.5),
        Evidence("layer 0: share at one point, the 108 longest", ends[1], at_least=0.9),
        Evidence("trained stack, six layers once: median of the mean cosine", stack["cosine median"][6], at_most=0.6),
    ]


def theory():
    """What the stored run says of consensus: growth of differences, response to labels."""
    table = stored("looped_consensus")["table"].set_index("layer")
    exact = stored("looped_growth")["table"]
    gap = (exact["measured"] / exact["predicted"] - 1).abs()
    rates = stored("looped_shrinking")["table"]
    ratio = np.log(rates["measured"]) / np.log(rates["predicted"])
    median = ratio.groupby(rates["layer"]).median()
    return [
        Evidence(
            "six layers, 96 starts each: largest growth of differences a loop", table["largest growth"].max(), 0, 1
        ),
        Evidence(
            "six layers, three tokens 1e-9 apart: error of the predicted growth, largest", gap.max(), at_most=0.03
        ),
        Evidence("65 sentences near a point, layers 0, 4, 5: log measured over log predicted rate, least", ratio.min()),
        Evidence("the same, largest", ratio.max()),
        Evidence("the same, least median of a layer", median.min(), at_least=0.9),
        Evidence("the same, largest median of a layer", median.max(), at_most=1.1),
        Evidence("labels of size .01: error of the linear prediction, largest", table["error"].max(), at_most=0.02),
    ]


@torch.no_grad()
def live(seed, device):
    """Six sentences drawn by the seed: layer 4 collapses them, layer 2 does not, but shrinks small differences."""
    model = load_encoder(device)
    chosen, evidence = sentences(model, 6, seed, pool=400), []
    x, mask = chosen.states[4], chosen.mask
    *_, end = loop(model.layers[4], x, mask, 50)
    spread = relative_spread(end, mask)
    evidence.append(Evidence("6 sentences, layer 4, 50 loops: largest relative spread", spread.max().item(), 0, 1e-2))
    *_, end = loop(model.layers[2], chosen.states[2], mask, 20)
    least = relative_spread(end, mask).min().item()
    evidence.append(Evidence("layer 2, 20 loops: least relative spread", least, at_least=0.1))

    x = chosen.states[2][:, 1]
    found = consensus(model.layers[2], x, 30, 20)
    growth = found.growth.max().item()
    evidence.append(Evidence("layer 2: growth of differences at consensus, largest of 6", growth, at_most=0.9))
    shaken = 0.01 * found.points.norm(dim=-1).mean() * random_labels(12, x.shape[-1], seed).to(x)
    mask = torch.ones(6, 12, dtype=torch.bool, device=x.device)
    *_, end = loop(model.layers[2], found.points[:, None] + shaken, mask, 20)
    spread = relative_spread(end, mask).max().item()
    evidence.append(Evidence("layer 2, 12 tokens that differ by .01: spread after 20 loops", spread, at_most=1e-4))

    layer = model.layers[4]
    point = consensus(layer, chosen.states[4][:1, 1], 150, 20).points[0]
    labels = 0.01 * point.norm() * random_labels(12, len(point), seed).to(point)
    predicted, mask = response(layer, point, labels), torch.ones(1, 12, dtype=torch.bool, device=point.device)
    *_, end = loop(layer, point.expand(1, 12, -1), mask, 60, labels=labels[None])
    content = end[0] - end[0].mean(0)
    error = ((content - predicted).norm() / content.norm()).item()
    return [*evidence, Evidence("layer 4, labels of size .01: error of the linear prediction", error, at_most=0.05)]
