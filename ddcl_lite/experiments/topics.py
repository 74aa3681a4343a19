"""Topics without labels: prototypes on document vectors and on tokens beside K-means and its relatives.

`python -m ddcl_lite.experiments.topics` runs the full scale and stores its results.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.mixture import GaussianMixture
from torch import Tensor

from ..data import encode
from ..data import topics as newsgroups
from ..data.sampling import generator
from ..prototypes.assignment import assign, squared_distances
from ..prototypes.inputs import pool
from ..prototypes.loss import critical_temperature
from ..prototypes.training import draw_prototypes
from .annealing import anneal
from .comparison import Comparison
from .partitions import cost, descend, improvable, k_means, scores, single_moves, spherical_k_means
from .readouts import nearest_tokens, principal_components
from .text import histograms, soft_bank

CLUSTERS, CODES, FEATURES = 20, 128, 64  # groups of the data; prototypes of a token bank; components of a token
SAMPLE = 8000  # tokens that a token bank is fitted to
BASELINE = "K-means, mean"
COMPARISON = Comparison("method", "accuracy", BASELINE)  # samples are disjoint: independent seeds
CHOICES = {  # what validation posts decide between
    "Gaussian mixture, mean": ("spherical", "diag", "tied"),
    "descent on L_q, mean": (0.05, 0.1, 0.25, 0.5),
    "token bank": (0.05, 0.1, 0.25, 0.5),
}
METHODS = (
    "K-means, [CLS]",
    "K-means, mean",
    "the same, 10x restarts",
    "K-means and single moves",
    "spherical K-means, mean",
    "Gaussian mixture, mean",
    "annealed prototypes, mean",
    "descent on L_q, mean",
    "K-means token codebook",
    "token bank",
)
MANY = "K-means, mean, 100x restarts"  # at the smallest size only: there it gets more time than any other method
RESTARTS = {"K-means, mean": 1, "the same, 10x restarts": 10, MANY: 100}  # times `restarts`
STARTS = ("K-means, mean", "K-means and single moves", "annealed prototypes, mean", "descent on L_q, mean")
FULL_SCALE = {"sizes": (250, 1500), "samples": 5, "max_tokens": 64, "restarts": 10}
ENDINGS = {"edu", "com", "gov", "org", "net", "mil", "uk", "ca", "de", "uucp", "fidonet"}


class Posts(NamedTuple):
    """Posts with their groups and token states: texts, labels (n,), names, tokens (n, N, 384), mask (n, N), pieces."""

    texts: list
    labels: Tensor
    names: list
    tokens: Tensor
    mask: Tensor
    pieces: list

    def take(self, rows: list) -> "Posts":
        """Some of the posts."""
        texts, pieces = ([values[i] for i in rows] for values in (self.texts, self.pieces))
        return Posts(texts, self.labels[rows], self.names, self.tokens[rows], self.mask[rows], pieces)

    @property
    def vectors(self) -> Tensor:
        """The mean of the real tokens at length 1, as this encoder is meant to be read: (n, 384) float32."""
        return F.normalize(pool(self.tokens, self.mask).float(), dim=-1)

    @property
    def first(self) -> Tensor:
        """The state of [CLS] at length 1: (n, 384) float32."""
        return F.normalize(self.tokens[:, 0].float(), dim=-1)


def load_posts(split: str, size: int, max_tokens: int = 64, device="cpu", progress: Callable = iter) -> Posts:
    """`size` posts drawn from the "train" or "test" half of 20 Newsgroups, in random order, the same ones always."""
    data = newsgroups(split, size, seed=0)
    tokens, mask, pieces = encode(data.texts, max_tokens, device=device, progress=progress)
    posts = Posts(data.texts, data.labels.to(device), data.names, tokens, mask, pieces)
    return posts.take(torch.randperm(size, generator=torch.Generator().manual_seed(0)).tolist())


def samples(posts: Posts, count: int) -> list[Posts]:
    """`count` disjoint samples of equal size."""
    size = len(posts.texts) // count
    return [posts.take(list(range(i * size, (i + 1) * size))) for i in range(count)]


def cluster(method: str, posts: Posts, restarts: int, seed: int, choice=None):
    """The clusters (n,) that one of METHODS, or MANY, finds in these posts, CLUSTERS of them, without labels.

    choice: of CHOICES. Raises ValueError for an unknown method. Chapter 7.
    """
    if method == "K-means, [CLS]":
        return k_means(posts.first, CLUSTERS, restarts, seed).labels_
    if method in RESTARTS:
        return k_means(posts.vectors, CLUSTERS, RESTARTS[method] * restarts, seed).labels_
    if method == "K-means and single moves":
        runs = [k_means(posts.vectors, CLUSTERS, 1, 1000 * seed + i).labels_ for i in range(restarts)]
        moved = [single_moves(posts.vectors, torch.from_numpy(run), CLUSTERS) for run in runs]
        return min(moved, key=lambda clusters: cost(posts.vectors, clusters))
    if method == "spherical K-means, mean":
        return spherical_k_means(posts.vectors, CLUSTERS, restarts, seed)
    if method == "Gaussian mixture, mean":
        settings = {"covariance_type": choice, "n_init": restarts, "random_state": seed, "reg_covar": 1e-5}
        return GaussianMixture(CLUSTERS, **settings).fit_predict(posts.vectors.double().cpu().numpy())
    if method == "annealed prototypes, mean":
        return squared_distances(posts.vectors, anneal(posts.vectors, CLUSTERS)).argmin(-1)
    if method == "descent on L_q, mean":
        return descend(posts.vectors, CLUSTERS, choice, restarts, seed)
    if method == "K-means token codebook":
        tokens = principal_components(posts.tokens, posts.mask, FEATURES)
        drawn = draw_prototypes(tokens, min(SAMPLE, int(posts.mask.sum())), posts.mask, generator(seed))
        codes = torch.from_numpy(k_means(drawn, CODES, 1, seed).cluster_centers_).to(tokens)
        counts = histograms(tokens, posts.mask, codes, 1e-9)
        return k_means(counts.sqrt(), CLUSTERS, restarts, seed).labels_
    if method == "token bank":
        tokens = principal_components(posts.tokens, posts.mask, FEATURES)
        counts = histograms(tokens, posts.mask, *soft_bank(tokens[posts.mask], CODES, choice, seed, sample=SAMPLE))
        return k_means(counts.sqrt(), CLUSTERS, restarts, seed).labels_
    raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")


def choose(posts: Posts, restarts: int, seed: int = 0, progress: Callable = iter) -> dict:
    """For each method of CHOICES, the choice with the largest NMI on these validation posts, mean of three starts."""
    found = {}
    for method, options in progress(CHOICES.items()):
        runs = {o: [cluster(method, posts, restarts, 3 * seed + i, o) for i in range(3)] for o in options}
        quality = {o: sum(scores(posts.labels, run)["NMI"] for run in starts) for o, starts in runs.items()}
        found[method] = max(quality, key=quality.get)
    return found


def compare_clusterings(
    parts: Sequence[Posts],
    choices: dict,
    restarts: int,
    seed: int = 0,
    methods: Sequence[str] = METHODS,
    progress: Callable = iter,
) -> pd.DataFrame:
    """Every method on every sample of posts: the same posts, CLUSTERS clusters, `restarts` starts each.

    A seed is a sample of its own, disjoint from the others, and its starts. Annealing forgets its start, so it runs
    once. Labels serve to score. Columns method, seed, posts, accuracy, NMI, ARI, cost and improvable (both on the mean
    vectors, whatever the method saw), seconds of the processor (all threads together). Raises ValueError for an unknown
    method. Chapter 7.
    """
    rows = []
    for index, method in progress([(i, method) for i in range(len(parts)) for method in methods]):
        posts, start = parts[index], time.process_time()
        clusters = cluster(method, posts, restarts, seed + index, choices.get(method))
        seconds = time.process_time() - start
        row = {"method": method, "seed": seed + index, "posts": len(posts.texts), **scores(posts.labels, clusters)}
        row |= {"cost": cost(posts.vectors, clusters), "improvable": improvable(posts.vectors, clusters, CLUSTERS)}
        rows.append({**row, "seconds": seconds})
    return pd.DataFrame(rows)


def start_spread(
    posts: Posts,
    choices: dict,
    starts: int,
    seed: int = 0,
    progress: Callable = iter,
    methods: Sequence[str] = STARTS,
) -> pd.DataFrame:
    """One sample, one start at a time: columns method, start, accuracy, NMI, cost. Annealing starts from random posts.

    Chapter 7.
    """
    vectors, rows = posts.vectors, []
    draw = torch.Generator().manual_seed(seed)
    banks = torch.stack([draw_prototypes(vectors, CLUSTERS, generator=draw) for _ in range(starts)])
    for method in progress(methods):
        if method == "annealed prototypes, mean":
            runs = [squared_distances(vectors, bank).argmin(-1) for bank in anneal(vectors, CLUSTERS, banks)]
        else:
            choice = choices.get(method)
            runs = [cluster(method, posts, 1, starts * seed + i, choice) for i in range(starts)]
        for i, run in enumerate(runs):
            rows.append({"method": method, "start": i, **scores(posts.labels, run), "cost": cost(vectors, run)})
    return pd.DataFrame(rows)


def what_the_mean_explains(posts: Posts, ratios: Sequence[float], count: int = CODES, seed: int = 0) -> pd.DataFrame:
    """One token bank, read at several temperatures: how much of a histogram is the mean vector again.

    The bank is fitted at the lowest ratio T/T_c (q detached). Per ratio: the mean largest weight of a token; the share
    of the histograms' variance over posts that a linear map of the mean vector gives (least squares, FEATURES
    components, posts many times more than features or it says nothing); and the relative error of the first-order
    formula of chapter 7, h_k = 1/K + (s_k - mean_j s_j)/K with s_k = (2 mean(z).p_k - |p_k|^2)/T.
    """
    tokens = principal_components(posts.tokens, posts.mask, FEATURES)
    real, mean = tokens[posts.mask], pool(tokens, posts.mask).double()
    bank, _ = soft_bank(real, count, min(ratios), seed, sample=SAMPLE)
    unit = critical_temperature(real, detach_assignment=True).item()
    design = torch.cat([mean, torch.ones_like(mean[:, :1])], -1)
    rows = []
    for ratio in ratios:
        counts = histograms(tokens, posts.mask, bank, ratio * unit).double()
        scatter = (counts - counts.mean(0)).square().sum()
        fitted = design @ torch.linalg.lstsq(design, counts, driver="gelsd").solution
        exponents = (2 * mean @ bank.double().mT - bank.double().square().sum(-1)) / (ratio * unit)
        first_order = (1 + exponents - exponents.mean(-1, keepdim=True)) / count
        sharp = assign(real[:SAMPLE], bank, ratio * unit).max(-1).values.mean().item()
        row = {"T / T_c": ratio, "largest weight": sharp}
        row["explained by the mean"] = 1 - ((counts - fitted).square().sum() / scatter).item()
        row["error of first order"] = ((counts - first_order).square().sum() / scatter).sqrt().item()
        rows.append(row)
    return pd.DataFrame(rows)


def opening(text: str, words: int = 6) -> str:
    """The first words of a post, cut before what looks like an article's number or a mail address."""
    parts = text.split()
    quoted = text.find("in article")
    limit = len(text[:quoted].split()) if quoted >= 0 else len(parts)
    address = next((i for i, word in enumerate(parts) if word in ENDINGS), len(parts) + 4)
    return " ".join(parts[: max(1, min(words, limit, address - 4))])


def explain(posts: Posts, tokens: Tensor, bank: Tensor, temperature: float, count: int = 2) -> pd.DataFrame:
    """Each prototype by the real tokens nearest to it and by the posts with the largest share of it, most used first.

    tokens (n, N, F): the states in which the bank lives. Index prototype; columns share of tokens, nearest real tokens,
    group (of the `count` posts' groups, those named), typical posts (first words). Chapter 7.
    """
    counts = histograms(tokens, posts.mask, bank, temperature)
    words = [piece for pieces in posts.pieces for piece in pieces]
    real = tokens[posts.mask].float()
    table = nearest_tokens(bank, real, words, assign(real, bank, temperature))
    top = {k: counts[:, k].topk(count).indices.tolist() for k in table.index}
    table["groups"] = [", ".join(dict.fromkeys(posts.names[int(posts.labels[i])] for i in top[k])) for k in table.index]
    table["typical posts"] = [" | ".join(opening(posts.texts[i]) for i in top[k]) for k in table.index]
    return table


if __name__ == "__main__":
    from ..notebook import progress, setup
    from .results import store

    device, full = setup(0, "full"), FULL_SCALE
    most = max(full["sizes"])
    posts = load_posts("test", full["samples"] * most, full["max_tokens"], device, progress("encoding"))
    held = load_posts("train", most, full["max_tokens"], device, progress("encoding"))
    start = time.perf_counter()
    choices = choose(held, 3, progress=progress("choosing"))
    tables, parts = [], samples(posts, full["samples"])
    for size in full["sizes"]:
        some = [part.take(list(range(size))) for part in parts]
        methods = (*METHODS, MANY) if size == min(full["sizes"]) else METHODS
        steps = progress(f"{size} posts")
        tables.append(compare_clusterings(some, choices, full["restarts"], methods=methods, progress=steps))
    settings = {"choices": choices, "clusters": CLUSTERS, "codes": CODES, "features": FEATURES, **full}
    settings["seconds"] = time.perf_counter() - start
    command = f"python -m {__spec__.name}"
    print(store("topics", pd.concat(tables), settings, device, command))
    spread = start_spread(parts[0], choices, full["restarts"], progress=progress("starts"))
    print(store("topics_starts", spread, {**settings, "posts": most}, device, command))
