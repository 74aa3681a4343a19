"""How a bank is trained: on its own or behind an encoder, fast or slow, cold or cooling."""

import copy
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..attention import full_precision
from ..measures import min_separation, spread, token_variance, usage
from .assignment import assign
from .dense import Decomposition
from .inputs import check_one_bank, check_tokens, working_dtype
from .loss import decompose, free_energy

SHAPES = ("constant", "linear", "geometric")


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless `value` is a finite number > 0."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: expected a finite number > 0, got {value}")


def two_timescale_groups(
    encoder_params: Iterable[nn.Parameter], prototype_params: Iterable[nn.Parameter], lr: float, ratio: float = 0.1
) -> list[dict]:
    """Parameter groups for any torch optimiser: prototypes learn at `lr`, the encoder at `ratio` times it.

    eps = lr_encoder / lr_prototypes = ratio

    The ratio of learning rates is the ratio of timescales only up to curvature, and only for plain gradient descent.
    Raises ValueError: a group is empty, a parameter is in both or twice in one, lr or ratio is not a finite number
    > 0. Source: DDCL-Attention (2604.03850), from a summary; chapter 6.
    """
    groups = {"encoder_params": encoder_params, "prototype_params": prototype_params}
    for name, params in groups.items():
        if isinstance(params, Tensor):
            raise ValueError(f"{name}: expected an iterable of parameters, got one tensor: write [parameter]")
    groups = {name: list(params) for name, params in groups.items()}
    check_positive("lr", lr)
    check_positive("ratio", ratio)
    for name, params in groups.items():
        if not params:
            raise ValueError(f"{name}: expected at least one parameter, got none")
        if len({id(one) for one in params}) < len(params):
            raise ValueError(f"{name}: expected each parameter once, got one that repeats")
    shared = {id(one) for one in groups["encoder_params"]} & {id(one) for one in groups["prototype_params"]}
    if shared:
        raise ValueError(f"prototype_params: expected none of encoder_params, got {len(shared)} of them")
    slow, fast = groups.values()
    return [{"params": slow, "lr": ratio * lr}, {"params": fast, "lr": lr}]


def schedule(steps: int, start: float, end: float | None = None, shape: str = "geometric") -> Tensor:
    """Temperatures in units of the critical one, T/T_c, for each of `steps` steps: (steps,), float64.

    shape is "constant" (only start), "linear" or "geometric" (from start to end, both included). Multiply by
    `float(critical_temperature(tokens))`; one entry is a tensor, so that a compiled step takes the next one without
    recompiling.
    Raises ValueError for steps < 1, a ratio that is not a finite number > 0, an unknown shape, or an `end` that is
    missing or too much. Source: annealing as in Rose (1998); chapter 5.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps: expected an integer >= 1, got {steps!r}")
    if shape not in SHAPES:
        raise ValueError(f"shape: expected one of {', '.join(SHAPES)}, got {shape!r}")
    if (end is None) != (shape == "constant"):
        raise ValueError(f"end: expected {'none' if shape == 'constant' else 'a ratio'} with {shape!r}, got {end}")
    end = start if end is None else end
    for name, value in (("start", start), ("end", end)):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}: expected a finite ratio > 0, got {value}")
    line = torch.linspace(0, 1, steps, dtype=torch.float64)
    return start * (end / start) ** line if shape == "geometric" else start + (end - start) * line


def draw_prototypes(
    tokens: Tensor, count: int, mask: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """The states at `count` different real positions, drawn on the CPU: (..., N, D) -> (count, D), a detached copy.

    Raises ValueError for count < 1 or more than there are real tokens. Chapter 5.
    """
    tokens = check_tokens(tokens, mask)
    rows = tokens.flatten(0, -2) if mask is None else tokens[mask]
    if not isinstance(count, int) or not 1 <= count <= len(rows):
        raise ValueError(f"count: expected an integer from 1 to {len(rows)}, the number of real tokens, got {count}")
    return rows[torch.randperm(len(rows), generator=generator)[:count].to(rows.device)].detach().clone()


@torch.no_grad()
def em_step(tokens: Tensor, prototypes: Tensor, temperature: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """Each prototype moves to the mean of the tokens, weighted by their assignment to it: a new (K, D).

    p_k <- sum_n q_nk z_n / sum_n q_nk: descent with q frozen, at the step 1/(2 mean_n q_nk)

    A prototype whose weights are all 0 stays where it is. Lowers F (claim D9). Source: Rose (1998); chapter 5.
    """
    tokens = check_tokens(tokens, mask)
    check_one_bank(prototypes, tokens)
    dtype, promoted = working_dtype(tokens, prototypes), torch.promote_types(tokens.dtype, prototypes.dtype)
    tokens, prototypes = tokens.to(dtype), prototypes.to(dtype)
    with full_precision(tokens):
        weights = assign(tokens, prototypes, temperature, mask).flatten(0, -2)  # (n, K)
        mass, tiny = weights.sum(0)[:, None], torch.finfo(dtype).tiny
        means = weights.mT @ tokens.flatten(0, -2) / mass.clamp_min(tiny)
        return torch.where(mass >= tiny, means, prototypes).to(promoted)


class Run(NamedTuple):
    """What `fit` returns: the trained bank (K, D), the trained encoder (None without one), and named records (S,)."""

    prototypes: Tensor
    encoder: nn.Module | None
    history: dict[str, Tensor]


@torch.enable_grad()
def fit(
    tokens: Tensor,
    prototypes: Tensor,
    temperatures: Tensor,
    lr: float = 1.0,
    *,
    loss: Callable[[Decomposition, Tensor], Tensor] = lambda parts, tokens: parts.total,
    detach_assignment: bool = False,
    encoder: nn.Module | None = None,
    ratio: float = 0.1,
    optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    every: int = 1,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Run:
    """Full-batch training of one bank (K, D) on tokens (..., N, D) without padding, step i at temperatures[i].

    Inputs are copied, not changed; no gradient reaches them.

    loss(parts, encoded) is what descends: by default L_q; `lambda parts, z: parts.variance` is V alone, and a task
    loss on the encoded tokens may be added. With an encoder, tokens -> encoder(tokens) is trained along, its rate
    being `ratio * lr`. With q detached and plain gradient descent, lr <= 1 lowers F at every step (claim D9).

    The history holds, before each `every`-th step and after the last one (a record costs more than a step): step,
    temperature, total, reconstruction, variance, free_energy, potential (W), token_variance, spread, separation
    (distances: absolute) and usage.
    Raises ValueError as its parts do, and FloatingPointError when the loss is no longer finite. Chapters 4 to 6.
    """
    check_positive("lr", lr)
    tokens, temperatures = tokens.detach(), torch.as_tensor(temperatures).detach()
    if temperatures.dim() != 1 or len(temperatures) == 0:
        raise ValueError(f"temperatures: expected (steps,) with steps >= 1, got shape {tuple(temperatures.shape)}")
    if every < 1:
        raise ValueError(f"every: expected an integer >= 1, got {every}")
    encoder = copy.deepcopy(encoder)
    bank = prototypes.detach().clone().requires_grad_()
    groups = [{"params": [bank], "lr": lr}]
    if encoder is not None:
        groups = two_timescale_groups(encoder.parameters(), [bank], lr, ratio)
    descent, history = optimiser(groups), []

    def look(step: int, temperature: Tensor):
        encoded = tokens if encoder is None else encoder(tokens)
        parts = decompose(encoded, bank, temperature, None, detach_assignment)
        value = loss(parts, encoded)
        if not bool(torch.isfinite(value)):
            cure = f"try a smaller lr than {lr}" if step else "before any step: check tokens, prototypes and loss"
            raise FloatingPointError(f"the loss is {value.item()} at step {step}: {cure}")
        if step % every == 0 or step == len(temperatures):
            history.append({"step": step, **record(encoded.detach(), bank.detach(), temperature, parts)})
        return value

    for step, temperature in enumerate(progress(temperatures)):
        descent.zero_grad()
        look(step, temperature).backward()
        descent.step()
    with torch.no_grad():
        look(len(temperatures), temperatures[-1])
    columns = {name: torch.tensor([row[name] for row in history], dtype=torch.float64) for name in history[0]}
    return Run(bank.detach(), encoder, columns)


def record(tokens: Tensor, prototypes: Tensor, temperature: Tensor, parts: Decomposition) -> dict[str, float]:
    """One line of a history."""
    energy = free_energy(tokens, prototypes, temperature).item()
    return {
        "temperature": float(temperature),
        **{name: getattr(parts, name).item() for name in ("total", "reconstruction", "variance")},
        "free_energy": energy,
        "potential": energy + float(temperature) * math.log(len(prototypes)),
        "token_variance": token_variance(tokens),
        "spread": spread(prototypes),
        "separation": min_separation(prototypes),
        "usage": usage(assign(tokens, prototypes, temperature)),
    }
