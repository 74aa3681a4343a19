"""Which way each term of the loss pushes a bank: minus its gradient, with the assignment q held fixed or attached."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..prototypes import dense

TERMS = {"V": "variance", "L_OLS": "reconstruction", "L_q": "total"}  # as written, and as a Decomposition names it


def forces(
    tokens: Tensor, bank: Tensor, temperature: float | Tensor, detach_assignment: bool = False
) -> dict[str, Tensor]:
    """Minus the gradient of V, L_OLS and L_q at each prototype, by automatic differentiation of the dense form.

    force_k = -d term / d p_k, term a mean over tokens; with q detached, q = q(P) is evaluated but not differentiated

    tokens (..., N, D), bank (..., K, D): leading dimensions are separate problems, with one temperature for all or one
    for each. Returns {"V", "L_OLS", "L_q"}, each shaped like bank, in units of distance. Claims D4, D5, D8; chapter 4.
    """
    return {term: force(tokens, bank, temperature, term, detach_assignment) for term in TERMS}


def force(
    tokens: Tensor, bank: Tensor, temperature: float | Tensor, term: str, detach_assignment: bool = False
) -> Tensor:
    """One of the `forces`, shaped like bank."""
    with torch.enable_grad():
        leaf = bank.detach().clone().requires_grad_()
        weights = dense.assign(tokens, leaf, temperature)
        parts = dense.split(tokens, leaf, weights.detach() if detach_assignment else weights)
        return -torch.autograd.grad(getattr(parts, TERMS[term]).mean(-1).sum(), leaf)[0]


def expansion(force: Tensor, bank: Tensor) -> Tensor:
    """The rate at which a force lets the bank's spread grow: > 0 apart, < 0 together; (..., K, D) -> (...).

    d log(spread) / dt = <force, P - 1 m^T> / |P - 1 m^T|^2, m the prototypes' mean

    A bank of spread 0 has no rate: NaN. Chapter 4.
    """
    centred = bank - bank.mean(-2, keepdim=True)
    return (force * centred).sum((-2, -1)) / centred.square().sum((-2, -1))


def follow(
    tokens: Tensor,
    bank: Tensor,
    temperature: float | Tensor,
    term: str = "L_q",
    detach_assignment: bool = False,
    rate: float = 0.5,
    steps: int = 200,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Tensor:
    """Let one term alone move the bank: P <- P + rate * force. Returns the path, (steps + 1, ..., K, D).

    The assignment is computed anew from the bank at every step, also where it is detached from the gradient. Arguments
    as in `forces`, rate > 0 in units of time. Raises ValueError for a term that is not V, L_OLS or L_q. Chapter 4.
    """
    if term not in TERMS:
        raise ValueError(f"term: expected one of {', '.join(TERMS)}, got {term!r}")
    path = [bank.detach()]
    for _ in progress(range(steps)):
        path.append(path[-1] + rate * force(tokens, path[-1], temperature, term, detach_assignment))
    return torch.stack(path)


def pulls(tokens: Tensor, bank: Tensor, temperature: float | Tensor) -> Tensor:
    """The weight with which each token pulls each prototype, q attached: (..., N, K); negative pushes it away.

    q_nj [1 - (d_nj - L_n)/T], d_nj = |z_n - p_j|^2, L_n = sum_k q_nk d_nk; the sum over j is 1, and
    -d L_q / d p_j = 2 mean_n pulls_nj (z_n - p_j)

    Arguments as in `forces`. Source: ours (claim D8); chapter 4.
    """
    weights = dense.assign(tokens, bank, temperature)
    distances = dense.squared_distances(tokens, bank)
    excess = distances - (weights * distances).sum(-1, keepdim=True)
    heat = torch.as_tensor(temperature, dtype=weights.dtype, device=weights.device)[..., None, None]
    return weights * (1 - excess / heat)


def curvatures(
    tokens: Tensor,
    offsets: Tensor,
    temperature: float,
    detach_assignment: bool = False,
    centre: Tensor | None = None,
    step: float | None = None,
) -> dict[str, Tensor]:
    """How each term's gradient answers when a collapsed bank opens: K/2 d grad(1 c^T + s offsets) / ds at s = 0.

    At the tokens' mean, for offsets of mean zero: V offsets, L_OLS -(2/T) offsets C with q detached, -(4/T) offsets C
    with q attached, L_q their sum. A negative product with the offsets: the term drives the prototypes apart.

    tokens (N, D), offsets (K, D), centre c (D,), by default the tokens' mean. The derivative of the field is taken
    automatically or, with a `step`, by central differences. Returns {"V", "L_OLS", "L_q"}, each (K, D).
    Source: ours (claim D5); chapter 4.
    """
    centre = tokens.mean(-2) if centre is None else centre
    start = centre.expand_as(offsets).clone()
    if step is not None:
        ahead, behind = (forces(tokens, start + s * offsets, temperature, detach_assignment) for s in (step, -step))
        return {name: len(offsets) / 2 * (behind[name] - ahead[name]) / (2 * step) for name in TERMS}

    def field(bank: Tensor, name: str) -> Tensor:
        """The gradient as a function of the bank. Where it is taken with q frozen, that q is still q(bank)."""
        frozen = dense.assign(tokens, bank, temperature)

        def term(leaf: Tensor) -> Tensor:
            weights = frozen if detach_assignment else dense.assign(tokens, leaf, temperature)
            return getattr(dense.split(tokens, leaf, weights), TERMS[name]).mean()

        return torch.func.grad(term)(bank)

    slopes = {name: torch.func.jvp(lambda bank, name=name: field(bank, name), (start,), (offsets,)) for name in TERMS}
    return {name: len(offsets) / 2 * slope for name, (_, slope) in slopes.items()}
