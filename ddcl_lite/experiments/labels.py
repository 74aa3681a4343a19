"""Several tokens with one label: whether they meet, what it is worth to gather them, and a kernel that will not."""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.integrate import quad
from scipy.special import ive
from torch import Tensor

from ..meanfield.coupled import Coupled
from ..meanfield.kernels import Kernel
from ..meanfield.sphere import check_labels, check_tokens, positive


class Gathered(NamedTuple):
    """Labels gathered one after the other, K of them: tokens (n, D) at the end, E before and after each step (K + 1,).

    `average` (K,) is how much E would change on average, were the point drawn at random from the label's own tokens,
    and `predicted` (K,) what the formula says it is.
    """

    tokens: Tensor
    energy: Tensor
    average: Tensor
    predicted: Tensor


def gather(kernel: Kernel, tokens: Tensor, labels: Tensor) -> Gathered:
    """Each label in turn: put all of its tokens at that one of them which gives the largest energy.

    A point drawn from the label's m of the n tokens changes E on average by (m/n)^2/4 mean_ij(h_ii + h_jj - 2 h_ij),
    i and j over the label's tokens. tokens (n, D), labels (n,), needs an energy. Raises ValueError as the kernel does.
    Source: ours; chapter 13, claim U3.
    """
    if check_tokens(tokens).dim() != 2:
        raise ValueError(f"tokens: expected one cloud (n, D), got shape {tuple(tokens.shape)}")
    energies, average, predicted = [kernel.energy(tokens, labels)], [], []
    for label in labels.unique(dim=0):
        chosen = (labels == label).to(tokens.device)
        own = tokens[chosen]
        pairs = kernel.pairs(own, labels[chosen.to(labels.device)])
        difference = 2 * pairs.diagonal().mean() - 2 * pairs.mean()
        clouds = torch.where(chosen[:, None], own[:, None], tokens)  # one for each candidate
        choices = kernel.energy(clouds, labels)
        average.append(choices.mean() - energies[-1])
        predicted.append((len(own) / len(tokens)) ** 2 / 4 * difference)
        tokens = clouds[choices.argmax()]
        energies.append(choices.max())
    return Gathered(tokens, torch.stack(energies), torch.stack(average), torch.stack(predicted))


def label_variances(tokens: Tensor, labels: Tensor) -> Tensor:
    """For each cloud (..., n, D) and each label, in increasing order: the variance of its tokens, (..., K).

    Near 0: they have met. Raises ValueError unless there is one label a token. Chapter 13.
    """
    squares, index = _from_means(tokens, labels)
    count = index.bincount()
    return squares.new_zeros(*squares.shape[:-1], len(count)).index_add(-1, index, squares) / count


def within(tokens: Tensor, labels: Tensor) -> Tensor:
    """`within_label_variance` of each cloud (..., n, D) with common labels (n,): (...,)."""
    return _from_means(tokens, labels)[0].mean(-1)


def _from_means(tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Square distances from the mean of those with the same label (..., n), and the labels numbered from 0 (n,)."""
    labels = check_labels(labels, tokens)
    if labels is None:
        raise ValueError("labels: expected one label for each token, got None")
    index = labels.unique(dim=0, return_inverse=True)[1]
    count = index.bincount()[:, None]
    means = tokens.new_zeros(*tokens.shape[:-2], len(count), tokens.shape[-1]).index_add(-2, index, tokens) / count
    return (tokens - means.index_select(-2, index)).square().sum(-1), index


def three_labels(beta: float, repulsion: float) -> Coupled:
    """`Coupled` for the labels 0, 1, 2 with a = 1 for equal labels and -c, c = `repulsion`, for different ones.

    Positive definite for -1 <= c <= 1/2 (semi-definite at both ends). Source: ours; chapter 13.
    """

    def coupling(labels, others):
        return (labels == others).double() * (1 + repulsion) - repulsion

    return Coupled(beta, coupling)


def three_axes(each: int = 1, device: str | torch.device = "cpu") -> tuple[Tensor, Tensor]:
    """Label k split in two halves of `each` tokens, at +e_k and at -e_k of S^2: tokens (6 each, 3), labels (6 each,).

    An equilibrium of `three_labels`, and far from a graph: its within-label variance is 1. Claim U3; chapter 13.
    """
    axes = torch.eye(3, dtype=torch.float64, device=device)
    labels = torch.arange(3, device=device).repeat(2)
    return torch.cat([axes, -axes]).repeat_interleave(each, 0), labels.repeat_interleave(each)


def three_axes_rates(beta: float, repulsion: float) -> Tensor:
    """Growth rates at `three_axes` with one token a side, largest first, (12,), in closed form.

    With s = exp(-beta), four triples: 0 (rotations), s (s - c (beta - 1))/3, s (s - c (beta + 1))/3 and
    -2 c s beta/3. So for c > 0 it is stable modulo rotation if and only if c (beta - 1) > s. Source: ours; chapter 13.
    """
    s, c = math.exp(-positive("beta", beta)), repulsion
    values = [0.0, s * (s - c * (beta - 1)) / 3, s * (s - c * (beta + 1)) / 3, -2 * c * s * beta / 3]
    return torch.tensor(values, dtype=torch.float64).repeat(3).sort(descending=True).values


def largest_repulsive_energy(beta: float, labels: Tensor) -> float:
    """The largest E of `Repulsive` on S^1 with this label law: that of the uniform circle times the labels (n,).

    -e^-beta I_0(beta) mean_ij exp(-|xi_i - xi_j|)/(2 beta), library unit. Source: ours, claim U4; chapter 13.
    """
    labels = labels.double()
    return -float(ive(0, positive("beta", beta)) * (labels[:, None] - labels).abs().neg().exp().mean()) / (2 * beta)


def least_graph_gap(beta: float, labels: Tensor) -> float:
    """A graph on these K labels (K,), one token each, misses `largest_repulsive_energy` by at least so much.

    lambda_min (1 - e^-beta I_0(beta))/(2 beta K), lambda_min the least eigenvalue of exp(-|xi_i - xi_j|): the gap is
    sum_{m != 0} e^-beta I_m(beta) v_m^* exp(-|xi_i - xi_j|) v_m/(2 beta K^2), and v_m = (e^(i m theta_j))_j has length
    sqrt(K). Library unit. Raises ValueError unless the labels are distinct numbers. Source: ours, claim U4; chapter 13.
    """
    labels = labels.double().cpu()
    if labels.dim() != 1 or len(labels) == 0 or len(labels.unique()) < len(labels):
        raise ValueError(f"labels: expected distinct numbers (K,), got shape {tuple(labels.shape)}")
    least = torch.linalg.eigvalsh((labels[:, None] - labels).abs().neg().exp())[0].item()
    return least * (1 - float(ive(0, positive("beta", beta)))) / (2 * beta * len(labels))


def uniform_energy(beta: float) -> float:
    """The same for labels uniform on [0, 1]: -e^-beta I_0(beta)/(e beta). The papers' unit has e^beta times as much."""
    return -float(ive(0, positive("beta", beta))) / (math.e * beta)


def winding_energy(beta: float, turns: int) -> float:
    """E of `Repulsive` for the graph x(xi) at angle 2 pi k xi, k = `turns`, labels uniform on [0, 1], by quadrature.

    -(1/beta) int_0^1 (1 - u) e^-u exp(beta (cos 2 pi k u - 1)) du, library unit, period by period. Chapter 13.
    """
    beta = positive("beta", beta)
    if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
        raise ValueError(f"turns: expected an integer >= 1, got {turns!r}")

    def integrand(u):
        return (1 - u) * math.exp(-u) * math.exp(beta * (math.cos(2 * math.pi * turns * u) - 1))

    return -sum(quad(integrand, k / turns, (k + 1) / turns, epsabs=1e-14)[0] for k in range(turns)) / beta


def winding_gap(beta: float, turns: int, terms: int = 200) -> float:
    """`uniform_energy` less `winding_energy` as a sum of positive terms, which falls as 1/k^2.

    (2/beta) sum_{m >= 1} e^-beta I_m(beta) (1/e + (2 - 1/e) w^2)/(1 + w^2)^2 with w = 2 pi k m, library unit.
    Source: ours; chapter 13.
    """
    m = np.arange(1, terms + 1)
    square = (2 * np.pi * turns * m) ** 2
    shares = (1 / math.e + (2 - 1 / math.e) * square) / (1 + square) ** 2
    return float(2 / positive("beta", beta) * (ive(m, beta) * shares).sum())
