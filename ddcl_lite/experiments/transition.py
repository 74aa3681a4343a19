"""Where a bank of prototypes ends up at each temperature: next to collapse, and followed while it cools or heats."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor

from ..data import encode, sentiment
from ..measures import token_variance
from ..prototypes import dense
from ..prototypes.loss import critical_temperature, decompose, splitting_temperatures
from ..prototypes.training import em_step
from .readouts import principal_components

DETACHED = {"q follows the prototypes": False, "q held fixed": True}
APART = 0.02  # token standard deviations: closer prototypes count as one


def four_blobs(count: int = 200, seed: int = 0) -> Tensor:
    """Tokens (count, 2) around four unequal centres; float64, drawn on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor([[3.0, 1.0], [-3.0, 0.5], [0.5, -1.5], [-0.5, 2.0]], dtype=torch.float64)
    noise = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return centres[torch.arange(count) % 4] + 0.5 * noise


def descend(
    tokens: Tensor,
    ratios: Sequence[float],
    num_prototypes: int = 4,
    steps: int = 2000,
    detach_assignment: bool = False,
    seed: int = 0,
    record: Sequence[int] | None = None,
) -> Tensor:
    """Gradient descent on L_q from a bank of spread 1e-3 at the tokens' mean, once per ratio T/T_c, all at a time.

    tokens (N, D) -> banks (len(ratios), K, D) after `steps` steps; with record, increasing numbers of steps from 0 on,
    in place of steps: the banks at each of them, (len(record), len(ratios), K, D). Raises ValueError for a record that
    does not increase. Claim D6; chapter 5.
    """
    moments = [steps] if record is None else list(record)
    if not moments or moments[0] < 0 or any(late <= early for early, late in zip(moments, moments[1:])):
        raise ValueError(f"record: expected increasing numbers of steps, 0 or more, got {record}")
    generator = torch.Generator().manual_seed(seed)
    temperature = torch.tensor(ratios, dtype=tokens.dtype, device=tokens.device)
    temperature = temperature * critical_temperature(tokens, None, detach_assignment)
    offsets = torch.randn(num_prototypes, tokens.shape[-1], generator=generator, dtype=tokens.dtype)
    banks = (tokens.mean(0) + 1e-3 * offsets.to(tokens.device)).repeat(len(ratios), 1, 1).requires_grad_()
    states = []
    for begin, end in zip([0, *moments], moments):
        for _ in range(begin, end):
            total = dense.decompose(tokens, banks, temperature, None, detach_assignment).total
            (gradient,) = torch.autograd.grad(len(ratios) * total, banks)  # total is a mean over the R banks
            with torch.no_grad():
                banks -= gradient
        states.append(banks.detach().clone())
    return states[-1] if record is None else torch.stack(states)


class Recording(NamedTuple):
    """steps (S,), ratios (R,), banks: name -> (S, R, K, D), tokens (N, D), critical: name -> its T_c, as a ratio."""

    steps: list[int]
    ratios: list[float]
    banks: dict[str, Tensor]
    tokens: Tensor
    critical: dict[str, float]


def recording(tokens: Tensor, num_prototypes: int = 4, steps: int = 500, moments: int = 32, seed: int = 0) -> Recording:
    """Two descents from next to collapse, with q attached and with q held fixed, for the player `Transition`.

    Ratios are in units of T_c with q attached, 4 lambda_max(C), for both; so that the other T_c is at 1/2. Recorded are
    the start and up to `moments` further steps, in geometric progression. tokens (N, D). Chapters 1 and 5.
    """
    record = sorted({0, *(round(steps ** (moment / (moments - 1))) for moment in range(moments))})
    ratios = [round(0.05 * index, 2) for index in range(1, 25)]
    unit = critical_temperature(tokens).item()
    banks, critical = {}, {}
    for name, detach in DETACHED.items():
        critical[name] = critical_temperature(tokens, None, detach).item() / unit
        own = [ratio / critical[name] for ratio in ratios]
        banks[name] = descend(tokens, own, num_prototypes, steps, detach, seed, record)
    return Recording(record, ratios, banks, tokens, critical)


def opening() -> tuple[Tensor, list[float], dict[str, Tensor]]:
    """The book's first picture: tokens, ratios T/T_c, and the final banks with q attached and with q held fixed."""
    ratios = sorted([0.1 * step for step in range(1, 16)] + [0.95, 0.98, 1.05])
    tokens = four_blobs()
    return tokens, ratios, {name: descend(tokens, ratios, detach_assignment=fix) for name, fix in DETACHED.items()}


def rare_cluster(count: int = 500, share: float = 0.02, distance: float = 20.0, seed: int = 0) -> Tensor:
    """Tokens (count, 2), standard normal, the first `share` of them moved by `distance`; float64, drawn on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    tokens[: round(share * count), 0] += distance
    return tokens


def film_tokens(seed: int = 0, count: int = 250, dim: int = 16) -> Tensor:
    """Token states of MiniLM on film reviews, drawn at random, their `dim` leading principal components: (count, dim).

    float64; at most about 8,000. The seed draws the tokens, not the reviews.
    """
    states, mask, _ = encode(sentiment(300, seed=0).texts)
    real = principal_components(states, mask, dim)[mask].double()
    return real[torch.randperm(len(real), generator=torch.Generator().manual_seed(seed))[:count]]


def three_clouds(seed: int = 0, device: str | torch.device = "cpu", count: int = 250) -> dict[str, Tensor]:
    """Tokens (count, D) by name, float64: the toy cloud, a skewed one, and real tokens in 16 principal components."""
    generator = torch.Generator().manual_seed(seed)
    skewed = torch.empty(count, 5, dtype=torch.float64).exponential_(generator=generator)
    return {
        "four blobs, D = 2": four_blobs(count, seed).to(device),
        "exponential, D = 5": (skewed * torch.tensor([3.0, 2.0, 1.0, 1.0, 1.0], dtype=torch.float64)).to(device),
        "film reviews, D = 16": film_tokens(seed, count).to(device),
    }


def measured_critical(
    tokens: Tensor,
    detach_assignment: bool = False,
    num_prototypes: int = 2,
    steps: int = 60,
    rounds: int = 2,
    seed: int = 0,
) -> float:
    """The temperature at which a tiny bank at the tokens' mean turns from growing to shrinking, by simulation.

    Bisection, 16 temperatures at a time: gradient descent on L_q (lr 1) from a spread of 1e-6 token standard
    deviations, and the spread grows if it ends larger than it was halfway, or has left the neighbourhood of collapse.
    The search begins between tr C / D and 8 tr C, so it knows nothing of eigenvalues; each round divides the
    logarithm of the bracket by 17. tokens (N, D). Raises ValueError for tokens that are all equal. Claim D6; chapter 5.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = tokens.double() - tokens.double().mean(0)  # a bank of this size is below the resolution of float32
    variance, dim = token_variance(tokens), tokens.shape[-1]
    if variance == 0:
        raise ValueError("tokens: expected tokens that differ, got equal ones, which no bank can split")
    start = torch.randn(num_prototypes, dim, generator=generator, dtype=torch.float64).to(tokens)
    start = 1e-6 * math.sqrt(variance / dim) * start
    low, high = variance / dim, 8 * variance
    for _ in range(rounds):
        grid = torch.logspace(math.log10(low), math.log10(high), 18, dtype=torch.float64)
        temperatures = grid[1:-1].to(tokens)
        banks = start.repeat(16, 1, 1)
        for step in range(steps):
            if step == steps // 2:
                halfway = _spreads(banks)
            banks.requires_grad_()
            total = decompose(tokens, banks, temperatures, None, detach_assignment).total
            (gradient,) = torch.autograd.grad(16 * total, banks)  # total is a mean over the 16 banks
            banks = banks.detach() - gradient
        ends = _spreads(banks)
        grows = (ends > halfway) | (ends > 1e-3 * math.sqrt(variance))
        first = 1 + int(grows.long().cumprod(0).sum())  # of the whole grid, the first that shrinks
        low, high = grid[first - 1].item(), grid[first].item()
    return math.sqrt(low * high)


def _spreads(banks: Tensor) -> Tensor:
    """Root mean square distance from the mean, for each bank: (R, K, D) -> (R,)."""
    return (banks - banks.mean(-2, keepdim=True)).square().sum(-1).mean(-1).sqrt()


def quasistatic(
    tokens: Tensor,
    bank: Tensor,
    temperatures: Sequence[float],
    noise: float = 1e-3,
    steps: int = 3000,
    seed: int = 0,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Tensor:
    """One bank led slowly through the temperatures, q detached: at each it is shaken, then settles.

    Settling takes up to `steps` steps of `em_step`, fewer once no prototype moves by more than noise / 1000 (in token
    standard deviations). Within about 0.1% of a splitting temperature a step is smaller than that long before rest. The
    shaking is normal noise of standard deviation `noise` per feature, in the same unit: without it prototypes that
    coincide would never part (claim D7). tokens (N, D), bank (K, D) -> banks (len(temperatures), K, D).
    Source: annealing as in Rose (1998); chapter 5.
    """
    generator, result = torch.Generator().manual_seed(seed), []
    size = noise * math.sqrt(token_variance(tokens))
    for temperature in progress(temperatures):
        bank = bank + size * torch.randn(bank.shape, generator=generator, dtype=bank.dtype).to(bank.device)
        for step in range(steps):
            before, bank = bank, em_step(tokens, bank, temperature)
            if step % 10 == 9 and (bank - before).abs().max() <= 1e-3 * size:
                break
        result.append(bank)
    return torch.stack(result)


def groups(tokens: Tensor, bank: Tensor, apart: float = APART) -> Tensor:
    """For each prototype (K, D) the number of the group it coincides with: (K,), from 0 on.

    Two are in one group if a chain of steps shorter than `apart` token standard deviations joins them.
    """
    if len(bank) == 1:
        return torch.zeros(1, dtype=torch.long, device=bank.device)
    tree = linkage(bank.detach().cpu().numpy(), "single")
    labels = fcluster(tree, apart * math.sqrt(token_variance(tokens)), "distance")
    return torch.from_numpy(labels).to(bank.device).long() - 1


def cascade(tokens: Tensor, banks: Tensor, temperatures: Sequence[float]) -> pd.DataFrame:
    """What the banks (S, K, D) of a cooling run, q detached, show beside what `splitting_temperatures` predicts.

    One row per temperature: "temperature", "distinct" (groups of prototypes that coincide), and "next split", the
    largest splitting temperature of those groups that have a prototype to spare; 0 if none has. Chapter 5.
    """
    rows = []
    for bank, temperature in zip(banks, temperatures, strict=True):
        group = groups(tokens, bank)
        size = torch.bincount(group)
        limits = splitting_temperatures(tokens, bank, temperature, None, detach_assignment=True)
        spare = limits[size[group] > 1]
        next_split = spare.max().item() if len(spare) else 0.0
        rows.append({"temperature": float(temperature), "distinct": len(size), "next split": next_split})
    return pd.DataFrame(rows)
