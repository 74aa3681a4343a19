"""Kernels whose strength, and sign, depend on the two labels: a(xi, zeta) exp(beta (<x, y> - 1))/beta."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .kernels import Field, Kernel, _finite, _needed
from .sphere import describe, tangent

ENTRIES = {"cpu": 2**18, "cuda": 2**26}  # pairs of tokens looked at together: on a CPU they fit a cache
KEPT = 2048  # up to so many labels, the matrix of couplings is computed once


class Coupled(Kernel):
    """h = a(xi, zeta) exp(beta (<x, y> - 1))/beta with a symmetric coupling a of any sign.

    coupling maps two tensors of labels that broadcast, (n, 1) and (1, m) (or (n, 1, L) and (1, m, L)), to (n, m), or
    to (..., n, m), one coupling for each cloud: for matrices A, `lambda i, j: A[..., i, j]` and labels arange(n). The
    sum runs in blocks of rows, O(n^2 D) time. Raises ValueError for missing labels, a coupling that is not finite, not
    (n, m), or not symmetric (looked at on the first 2,048 labels). Chapter 16.
    """

    name = "coupling"

    def __init__(self, beta: float, coupling: Callable[[Tensor, Tensor], Tensor]):
        super().__init__(beta)
        if not callable(coupling):
            raise ValueError(f"{self.name}: expected a function, got {describe(coupling)}")
        self.coupling = coupling

    def field(self, tokens: Tensor, labels: Tensor | None) -> Field:
        labels, n = _needed(self, labels), tokens.shape[-2]
        first = self.matrix(labels[:KEPT], labels[:KEPT], tokens)
        _check_symmetry(self.name, first)
        rows = max(1, ENTRIES[tokens.device.type] // max(1, tokens[..., 0].numel()))

        def weights(x: Tensor) -> Iterator[Tensor]:
            """Rows of a_ij exp(beta (<x_i, x_j> - 1)), block by block."""
            for block in (slice(start, start + rows) for start in range(0, n, rows)):
                coupling = first[..., block, :] if n <= KEPT else self.matrix(labels[block], labels, x)
                yield coupling * torch.exp(self.beta * (x[..., block, :] @ x.mT - 1))

        def drift(x):
            return tangent(x, torch.cat([block @ x for block in weights(x)], -2) / n)

        def energy(x):
            return sum(block.sum((-2, -1)) for block in weights(x)) / (2 * self.beta * n**2)

        return Field(drift, energy)

    def matrix(self, labels: Tensor, others: Tensor, like: Tensor) -> Tensor:
        """a(xi, zeta) for two sets of labels: (n, m), in the dtype and on the device of `like`."""
        values = _finite(self.name, self.coupling(labels[:, None], others[None]), like).to(like)
        if values.shape[-2:] != (len(labels), len(others)):
            raise ValueError(
                f"{self.name}: expected shape {(len(labels), len(others))}, one number for each two labels, "
                f"got {tuple(values.shape)}"
            )
        return values

    def pairs(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """h of every two tokens as written, (..., n, n): for `dense`, differentiable as often as one likes."""
        coupling = self.matrix(labels, labels, tokens)
        return coupling * torch.exp(self.beta * (tokens @ tokens.mT - 1)) / self.beta


class Toeplitz(Coupled):
    """h = a(xi - zeta) exp(beta (<x, y> - 1))/beta with an even profile a; a distance bias if it is >= 0.

    profile maps label differences to numbers, elementwise: `torch.cos`, say. Errors as in `Coupled`, naming `profile`.
    Form assumed. Source: USA-AV (2605.30229), summary; ALiBi (2108.12409) for the distance bias; chapter 16.
    """

    name = "profile"

    def __init__(self, beta: float, profile: Callable[[Tensor], Tensor]):
        super().__init__(beta, profile)
        self.coupling = lambda labels, others: profile(labels - others)


class Repulsive(Toeplitz):
    """h = -exp(-|xi - zeta|) exp(beta (<x, y> - 1))/beta: strictly concave in the law, so no labelled point wins.

    Claim U4's counterexample. Source: ours; chapter 13.
    """

    def __init__(self, beta: float):
        super().__init__(beta, lambda difference: -torch.exp(-difference.abs()))


def _check_symmetry(name: str, matrix: Tensor) -> None:
    off = (matrix - matrix.mT).abs().max().item()
    if off > 1e-5 * matrix.abs().max().item():
        raise ValueError(
            f"{name}: expected a symmetric coupling, a(xi, zeta) = a(zeta, xi), got a difference of {off:.3g}"
        )
