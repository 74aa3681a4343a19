"""The flow as written, n x n and all: the reference for the fast forms, and for second derivatives."""

import torch
from torch import Tensor

from ..attention import full_precision
from .kernels import Kernel
from .sphere import check_labels, check_tokens, tangent


def energy(kernel: Kernel, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
    """E = 1/(2 n^2) sum_ij h_ij of each cloud (..., n, D)."""
    kernel.check_energy()
    labels = check_labels(labels, check_tokens(tokens))
    with full_precision(tokens):
        return kernel.pairs(tokens, labels).mean((-2, -1)) / 2


def drift(kernel: Kernel, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
    """n times the gradient of E on the sphere, by automatic differentiation; the sum as written where there is no E."""
    labels = check_labels(labels, check_tokens(tokens))
    with full_precision(tokens), torch.enable_grad():
        if kernel.no_energy:
            return tangent(tokens, kernel.weights(tokens, labels) @ tokens)
        x = tokens if tokens.requires_grad else tokens.detach().requires_grad_()
        total = energy(kernel, x, labels).sum() * x.shape[-2]
        (gradient,) = torch.autograd.grad(total, x, create_graph=tokens.requires_grad)
        return tangent(tokens, gradient)


def rates(kernel: Kernel, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
    """Growth rates of small displacements from an equilibrium (n, D): real parts, largest first, n (D - 1) of them.

    The eigenvalues of the drift's derivative on the tangent spaces; where there is an energy, n times those of its
    second variation. Rotating all tokens costs nothing: up to D (D - 1)/2 of them are 0. Stable modulo rotation: all
    others are negative. n = 500 is large for this. Source: ours; chapters 13 and 16.
    """
    if tokens.dim() != 2:
        raise ValueError(f"tokens: expected one cloud (n, D), got shape {tuple(tokens.shape)}")
    n, dim = tokens.shape
    jacobian = torch.autograd.functional.jacobian(lambda x: drift(kernel, x, labels), tokens)  # (n, D, n, D)
    basis = torch.linalg.qr(torch.cat([tokens[..., None], torch.eye(dim).to(tokens).expand(n, -1, -1)], -1))[0][..., 1:]
    on_tangents = torch.einsum("iak,iajb,jbl->ikjl", basis, jacobian, basis).reshape(n * (dim - 1), -1)
    return torch.linalg.eigvals(on_tangents).real.sort(descending=True).values
