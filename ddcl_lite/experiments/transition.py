"""Where a bank of prototypes ends up at each temperature, when it starts next to collapse."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..prototypes import dense
from ..prototypes.loss import critical_temperature


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
) -> Tensor:
    """Gradient descent on L_q from a bank of spread 1e-3 at the tokens' mean, once per ratio T/T_c, all at a time.

    tokens (N, D) -> banks (len(ratios), K, D). Claim D6; chapter 5.
    """
    generator = torch.Generator().manual_seed(seed)
    temperature = torch.tensor(ratios, dtype=tokens.dtype, device=tokens.device)
    temperature = temperature * critical_temperature(tokens, None, detach_assignment)
    offsets = torch.randn(num_prototypes, tokens.shape[-1], generator=generator, dtype=tokens.dtype)
    banks = (tokens.mean(0) + 1e-3 * offsets.to(tokens.device)).repeat(len(ratios), 1, 1).requires_grad_()
    for _ in range(steps):
        total = dense.decompose(tokens, banks, temperature, None, detach_assignment).total
        (gradient,) = torch.autograd.grad(len(ratios) * total, banks)  # total is a mean over the R banks
        with torch.no_grad():
            banks -= gradient
    return banks.detach()


def spread(banks: Tensor, tokens: Tensor) -> Tensor:
    """Root mean square distance of prototypes from their mean, in token standard deviations: (R, K, D) -> (R,)."""
    offsets = banks - banks.mean(-2, keepdim=True)
    return offsets.square().sum(-1).mean(-1).sqrt() / tokens.var(0, correction=0).sum().sqrt()


def opening() -> tuple[Tensor, list[float], dict[str, Tensor]]:
    """The book's first picture: tokens, ratios T/T_c, and the final banks with q attached and with q held fixed."""
    ratios = sorted([0.1 * step for step in range(1, 16)] + [0.95, 0.98, 1.05])
    labels = {"q follows the prototypes": False, "q held fixed": True}
    tokens = four_blobs()
    return tokens, ratios, {name: descend(tokens, ratios, detach_assignment=fix) for name, fix in labels.items()}
