"""Deterministic annealing from many starts, beside K-means from as many."""

from collections.abc import Callable

import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from torch import Tensor

from ..measures import token_variance
from ..prototypes.assignment import squared_distances
from ..prototypes.loss import critical_temperature
from ..prototypes.training import draw_prototypes, schedule
from .transition import film_tokens, four_blobs

NUDGE = 1e-3  # how far coinciding prototypes are pushed apart, in standard deviations of the tokens
TOGETHER = 3e-3  # prototypes closer than this coincide: a pair just nudged is one of them until it grows
COLD = 1e-6  # T/T_c of the polish: every token takes its nearest prototype


def anneal(
    tokens: Tensor,
    num_prototypes: int,
    banks: Tensor | None = None,
    start: float | None = None,
    end: float = 0.02,
    steps: int = 60,
    rounds: int = 10,
) -> Tensor:
    """Cool from `start` to `end` times the critical temperature (q detached), then polish by K-means' own iteration.

    By default T starts at 2 r^2, r the largest distance of a token from the mean, which is at least diam^2/2: up there
    collapse is the only critical point of F (claim D6), so every start is forgotten, unless it is so far out that its
    weights underflow. Just above the critical temperature it need not be: a bank split around a rare cluster persists.
    At each of `steps` temperatures, prototypes that coincide are put in one place and nudged apart, half of them each
    way along the leading eigenvector of their share of the tokens; at most `rounds` EM steps follow. Below the
    temperature at which such a group splits the nudge grows, above it dies out. Nothing is drawn at random.

    tokens (N, D), banks (B, K, D): where they start -> (B, K, D); without banks, from the tokens' mean: (K, D).
    Raises ValueError for banks of another shape. Source: Rose (1998), but with an equal share for every prototype, as
    in `assign`; chapter 5.
    """
    origin, unit = tokens.mean(0), token_variance(tokens) ** 0.5
    if banks is None:
        return anneal(tokens, num_prototypes, origin.repeat(1, num_prototypes, 1), start, end, steps, rounds)[0]
    if banks.dim() != 3 or banks.shape[1:] != (num_prototypes, tokens.shape[-1]):
        raise ValueError(f"banks: expected (B, {num_prototypes}, {tokens.shape[-1]}), got {tuple(banks.shape)}")
    critical = critical_temperature(tokens, detach_assignment=True).item()
    if critical == 0:  # all tokens are equal
        return origin.expand_as(banks).clone()
    centred, banks = tokens - origin, banks - origin
    if start is None:
        start = 2 * centred.square().sum(-1).max().item() / critical
    for temperature in (critical * schedule(steps, start, end)).tolist():
        banks = _settle(centred, nudge(centred, banks, temperature, unit), temperature, rounds, 1e-5 * unit)
    return _settle(centred, banks, COLD * critical, 200, 1e-9 * unit) + origin


def _settle(tokens: Tensor, banks: Tensor, temperature: float, rounds: int, tolerance: float) -> Tensor:
    """EM steps, `rounds` of them or until no coordinate moves by more than `tolerance`."""
    for _ in range(rounds):
        before, banks = banks, em_step_of_each(tokens, banks, temperature)[0]
        if (banks - before).abs().max() <= tolerance:
            break
    return banks


def em_step_of_each(tokens: Tensor, banks: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """`ddcl_lite.em_step` for many banks (B, K, D) of the same tokens (N, D), and the weights (B, K, N) it used.

    |z|^2 cancels in the weights, so one product serves all banks; it is exact where the tokens' mean is near 0.
    """
    scores = (banks.flatten(0, 1) @ tokens.mT).unflatten(0, banks.shape[:2])  # (B, K, N)
    weights = torch.softmax((2 * scores - banks.square().sum(-1, keepdim=True)) / temperature, 1)
    mass = weights.sum(-1, keepdim=True)
    means = weights @ tokens / mass.clamp_min(torch.finfo(mass.dtype).tiny)
    return torch.where(mass >= torch.finfo(mass.dtype).tiny, means, banks), weights


def nudge(tokens: Tensor, banks: Tensor, temperature: float, unit: float) -> Tensor:
    """Put prototypes that coincide in one place, then push half of them each way along their leading eigenvector.

    Exactly coinciding prototypes never separate (claim D7). The eigenvector is that of sum_n q_nk y y^T, y = z - p_k,
    by eight rounds of power iteration from the leading one of all tokens.
    """
    together = squared_distances(banks, banks) < (TOGETHER * unit) ** 2  # (B, K, K)
    size = together.sum(-1, keepdim=True)
    if not bool((size > 1).any()):
        return banks
    banks = together.to(banks.dtype) @ banks / size
    weights = em_step_of_each(tokens, banks, temperature)[1]
    direction = torch.linalg.eigh(tokens.mT @ tokens).eigenvectors[:, -1].expand_as(banks)
    for _ in range(8):
        along = direction @ tokens.mT - (direction * banks).sum(-1, keepdim=True)  # (B, K, N)
        share = weights * along
        direction = share @ tokens - share.sum(-1, keepdim=True) * banks
        direction = F.normalize(direction, dim=-1)
    earlier = (together & torch.ones_like(together).tril(-1)).sum(-1, keepdim=True)  # of the same place
    side = torch.where(size > 1, 1 - 2 * (earlier % 2), 0)
    return banks + NUDGE * unit * side * direction


def clouds(seed: int = 0, device="cpu") -> dict[str, Tensor]:
    """Three clouds (N, D) in float64: a toy, real token states, real images. The seed draws the first two.

    four blobs (200, 2); 2,000 token states of MiniLM on film reviews, their 16 leading principal components;
    scikit-learn's 1,797 digits of 8 x 8 pixels.
    """
    digits = torch.from_numpy(load_digits().data).double()
    real = film_tokens(seed, count=2000)
    return {
        "four blobs": four_blobs(seed=seed).to(device),
        "MiniLM tokens": real.to(device),
        "digits": digits.to(device),
    }


def hard_cost(tokens: Tensor, banks: Tensor) -> Tensor:
    """mean_n min_k |z_n - p_k|^2 in units of the token variance: (N, D), (B, K, D) -> (B,)."""
    return squared_distances(tokens, banks).amin(-1).mean(-1) / token_variance(tokens)


def compare_annealing(
    clouds: dict[str, Tensor],
    num_prototypes: int = 8,
    inits: int = 10,
    seed: int = 0,
    progress: Callable = iter,
) -> pd.DataFrame:
    """Annealing and K-means on each cloud from `inits` starts each: mean and spread (max - min) of the hard cost.

    Annealing starts from random tokens, K-means from k-means++ with one initialisation a run; "ratio" is the first
    spread over the second. A small one means that the start does not matter, not that the cost is low: the result of
    annealing still depends on how fast it cools. Columns cloud, annealed mean, annealed spread, K-means mean, K-means
    spread, K-means best, ratio. Chapter 5.
    """
    rows, generator = [], torch.Generator().manual_seed(seed)
    for name, tokens in progress(clouds.items()):
        banks = torch.stack([draw_prototypes(tokens, num_prototypes, generator=generator) for _ in range(inits)])
        annealed = hard_cost(tokens, anneal(tokens, num_prototypes, banks))
        array = tokens.cpu().numpy()
        runs = [KMeans(num_prototypes, n_init=1, random_state=inits * seed + i).fit(array) for i in range(inits)]
        plain = hard_cost(tokens, torch.stack([torch.from_numpy(run.cluster_centers_) for run in runs]).to(tokens))
        row = {"cloud": name}
        for method, cost in (("annealed", annealed), ("K-means", plain)):
            row |= {f"{method} mean": cost.mean().item(), f"{method} spread": (cost.max() - cost.min()).item()}
        rows.append(row | {"K-means best": plain.min().item()})
    table = pd.DataFrame(rows)
    return table.assign(ratio=table["annealed spread"] / table["K-means spread"])
