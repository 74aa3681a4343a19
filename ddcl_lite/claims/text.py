"""D20 and D22: what a bank of prototypes adds as a readout and as a way to cluster texts."""

from functools import cache

import torch

from ..data import encode, sentiment
from ..experiments import results, text, topics
from ..experiments.readouts import principal_components
from ..prototypes.inputs import pool
from .registry import Evidence, claim

FEW, MANY = 50, 5000  # labels, of the stored run


@cache
def snippets(device: torch.device):
    """1,500 snippets: 64 components of their tokens, mask, labels, films, and the mean of all features."""
    data = sentiment(1500, seed=0)
    states, mask, _ = encode(data.texts, device=device)
    tokens = principal_components(states, mask, text.FEATURES)
    return tokens, mask, data.labels.to(device), data.films, pool(states, mask).float()


@claim(
    "D20",
    "The prototype readout replaces [CLS] on a frozen encoder (a third-party results page: 86.7 on SST-2 at K = 2, "
    "91.3 on IMDB at K = 4, frozen BERT).",
    "measured",
    "With our encoder and snippets the bank is ahead of [CLS] once labels suffice. From logistic regression on the "
    "mean vector five splits tell it apart at no budget; that is not equality, at 50 labels the interval is tens of "
    "points wide. Different data and budget: the page's numbers are not comparable.",
    7,
)
def readout_of_text(seed, device):
    methods = ("[CLS]", "prototypes", "regression on the mean")
    table = text.compare_budgets(*snippets(device), budgets=(400,), seeds=[seed], methods=methods, candidates=1)
    here = table.set_index("method")["accuracy"]
    ahead, gap = (here["prototypes"] - here[other] for other in ("[CLS]", "regression on the mean"))
    stored = text.gains(results.stored("text")["table"])
    gain, width = stored["gain over regression on the mean"], stored["+- (gain)"]
    ratio = (gain / width).xs("prototypes", level="method")
    first = gain[MANY, "[CLS]"]
    return [
        Evidence("400 labels, this split: prototypes minus [CLS], accuracy", ahead, at_least=0.02),
        Evidence("prototypes minus regression on the mean", gap, at_least=-0.06, at_most=0.06),
        Evidence("stored, 50 labels: prototypes minus regression on the mean", gain[FEW, "prototypes"]),
        Evidence("half width of its 95% interval", width[FEW, "prototypes"]),
        Evidence("stored, 5,000 labels: the same gain", gain[MANY, "prototypes"]),
        Evidence("half width of its 95% interval, 5,000 labels", width[MANY, "prototypes"]),
        Evidence(
            "stored, five budgets: largest |gain| / half width of its 95% interval", ratio.abs().max(), at_most=1.0
        ),
        Evidence("stored, 5,000 labels: [CLS] minus regression on the mean", first, at_most=-width[MANY, "[CLS]"]),
    ]


@cache
def samples(device: torch.device):
    """The five samples of 250 posts of chapter 7."""
    return topics.samples(topics.load_posts("test", 1250, device=device), 5)


@claim(
    "D22",
    "20 Newsgroups: prototypes cluster better than K-means on [CLS] (a third-party results page: accuracy 17.5 "
    "percent).",
    "measured",
    "With our encoder K-means on [CLS] is far above 17.5 percent already: the encoder does most of it. On 250 posts "
    "the annealed prototypes are ahead of K-means on [CLS], and reach a lower cost of K-means than K-means does. "
    "K-means followed by moves of single posts ends as low within one percent, or lower.",
    7,
)
def clusters_of_posts(seed, device):
    methods = ("K-means, [CLS]", "K-means, mean", "K-means and single moves", "annealed prototypes, mean")
    part = [samples(device)[seed % 5]]
    table = topics.compare_clusterings(part, {}, 3, seed, methods).set_index("method")
    first, mean, moved, annealed = (table.loc[method] for method in methods)
    return [
        Evidence("accuracy of K-means on [CLS]", first["accuracy"], at_least=0.175),
        Evidence("of K-means on the mean vector", mean["accuracy"], at_least=0.175),
        Evidence("of annealed prototypes on the mean vector", annealed["accuracy"]),
        Evidence("NMI: annealed prototypes minus K-means on [CLS]", annealed["NMI"] - first["NMI"], at_least=0.02),
        Evidence("annealed prototypes minus K-means, both on the mean", annealed["NMI"] - mean["NMI"]),
        Evidence("annealed prototypes minus K-means with single moves", annealed["NMI"] - moved["NMI"]),
        Evidence("cost of K-means: annealed prototypes / K-means", annealed["cost"] / mean["cost"], at_most=0.99),
        Evidence("K-means with single moves / annealed prototypes", moved["cost"] / annealed["cost"], at_most=1.01),
    ]
