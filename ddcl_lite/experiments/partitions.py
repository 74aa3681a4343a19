"""Partitions of vectors into clusters: ways to find one, its cost, and its scores against known groups."""

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor

from ..measures import token_variance, within_label_variance
from ..prototypes.assignment import squared_distances
from ..prototypes.loss import critical_temperature, decompose


def scores(labels: Tensor, clusters) -> dict[str, float]:
    """Accuracy after the best one-to-one matching of clusters to groups (Hungarian), NMI and ARI: three in [.., 1].

    Accuracy = max over matchings sigma of mean_i [sigma(cluster_i) = label_i]; a group beyond the number of clusters is
    all wrong. Raises ValueError where the two differ in length.
    """
    labels, clusters = labels.cpu().numpy(), torch.as_tensor(clusters).cpu().numpy()
    if labels.shape != clusters.shape:
        raise ValueError(f"clusters: expected one for each of {labels.shape} labels, got shape {clusters.shape}")
    table = contingency_matrix(labels, clusters)
    matched = table[linear_sum_assignment(table, maximize=True)].sum() / len(labels)
    nmi, ari = normalized_mutual_info_score(labels, clusters), adjusted_rand_score(labels, clusters)
    return {"accuracy": float(matched), "NMI": float(nmi), "ARI": float(ari)}


def k_means(vectors: Tensor, count: int, restarts: int, seed: int) -> KMeans:
    """K-means from k-means++, the best of `restarts` by its own cost."""
    return KMeans(count, n_init=restarts, random_state=seed).fit(vectors.cpu().numpy())


def plus_plus(vectors: Tensor, count: int, restarts: int, seed: int) -> Tensor:
    """Starts by k-means++: (restarts, count, D)."""
    array = vectors.cpu().numpy()
    starts = [kmeans_plusplus(array, count, random_state=1000 * seed + i)[0] for i in range(restarts)]
    return torch.stack([torch.from_numpy(start) for start in starts]).to(vectors)


def spherical_k_means(vectors: Tensor, count: int, restarts: int, seed: int, rounds: int = 100) -> Tensor:
    """Clusters of unit vectors by the largest cosine with a unit centre, the mean at length 1: (n, D) -> (n,).

    From k-means++, the best of `restarts` by the mean cosine. An empty cluster takes the worst-served vector.
    Source: Dhillon and Modha (2001); chapter 7.
    """
    best, kept = -float("inf"), None
    for centres in plus_plus(vectors, count, restarts, seed):
        before = None
        for _ in range(rounds):
            cosine, clusters = (vectors @ centres.mT).max(-1)
            if before is not None and torch.equal(clusters, before):
                break
            before = clusters
            sums = torch.zeros_like(centres).index_add_(0, clusters, vectors)
            empty = torch.bincount(clusters, minlength=count) == 0
            sums[empty] = vectors[cosine.argsort()[: int(empty.sum())]]
            centres = F.normalize(sums, dim=-1)
        if cosine.mean() > best:
            best, kept = cosine.mean(), clusters
    return kept


def cost(vectors: Tensor, clusters) -> float:
    """What K-means descends: the mean squared distance from the mean of the own cluster, in units of the variance."""
    clusters = torch.as_tensor(clusters).long().to(vectors.device)
    return within_label_variance(vectors, clusters) / token_variance(vectors)


def move_gains(vectors: Tensor, sums: Tensor, sizes: Tensor, clusters: Tensor) -> Tensor:
    """By how much the total squared distance falls when vector i alone moves to cluster k: (n, D) -> (n, K).

    a/(a-1) |z - m_a|^2 - b/(b+1) |z - m_b|^2, a and b the sizes, m the means; 0 for the own cluster, and for a vector
    that is alone. Source: Hartigan (1975); chapter 7.
    """
    distances = squared_distances(vectors, sums / sizes.clamp_min(1)[:, None])
    own = sizes[clusters][:, None]
    stay = own / (own - 1).clamp_min(1) * distances.gather(1, clusters[:, None])
    gains = stay - sizes / (sizes + 1) * distances
    return gains.scatter(1, clusters[:, None], 0) * (own > 1)


def cluster_sums(vectors: Tensor, clusters: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Sum of the vectors and size of each cluster: (count, D), (count,)."""
    sums = vectors.new_zeros(count, vectors.shape[1]).index_add_(0, clusters, vectors)
    return sums, torch.bincount(clusters, minlength=count).to(vectors)


def single_moves(vectors: Tensor, clusters: Tensor, count: int) -> Tensor:
    """Move one vector at a time, each to where the cost falls most, until no single move lowers it: (n,) -> (n,).

    Works on the CPU, one small step after the other. Source: Hartigan (1975); chapter 7.
    """
    vectors, clusters = vectors.double().cpu(), clusters.long().cpu().clone()
    sums, sizes = cluster_sums(vectors, clusters, count)
    while True:
        best = move_gains(vectors, sums, sizes, clusters).max(-1).values
        waiting = (best > 1e-9).nonzero().flatten().tolist()
        if not waiting:
            return clusters
        for i in waiting:
            gain, to = move_gains(vectors[i : i + 1], sums, sizes, clusters[i : i + 1])[0].max(-1)
            if gain > 1e-9:
                for k, sign in ((clusters[i], -1), (to, 1)):
                    sums[k] += sign * vectors[i]
                    sizes[k] += sign
                clusters[i] = to


def improvable(vectors: Tensor, clusters, count: int) -> float:
    """Share of the vectors whose move to another cluster, alone, would lower the cost of K-means. Chapter 7."""
    clusters = torch.as_tensor(clusters).long().to(vectors.device)
    vectors = vectors.double()
    gains = move_gains(vectors, *cluster_sums(vectors, clusters, count), clusters)
    return (gains.max(-1).values > 1e-9).double().mean().item()


def descend(vectors: Tensor, count: int, ratio: float, restarts: int, seed: int, steps: int = 150) -> Tensor:
    """Nearest prototypes after `steps` of Adam on L_q, q attached, at `ratio` critical temperatures: (n, D) -> (n,).

    From k-means++; of the `restarts` banks, trained side by side, the one with the least L_q is kept.
    """
    temperature = ratio * critical_temperature(vectors).item()
    start = plus_plus(vectors, count, restarts, seed)
    banks, many = start.requires_grad_(), vectors.expand(restarts, *vectors.shape)
    optimiser = torch.optim.Adam([banks], lr=0.2 * (start - start.mean(1, keepdim=True)).std().item())
    for _ in range(steps):
        optimiser.zero_grad()
        (restarts * decompose(many, banks, temperature).total).backward()
        optimiser.step()
    banks = banks.detach()
    best = min(banks, key=lambda bank: decompose(vectors, bank, temperature).total.item())
    return squared_distances(vectors, best).argmin(-1)
