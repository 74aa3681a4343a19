"""How tokens pull each other: energies, and their gradients on the sphere, without an n x n matrix.

Tokens x_i on S^(D-1) keep labels xi_i. With a symmetric kernel h the energy of n tokens is

    E = 1/(2 n^2) sum_ij h((x_i, xi_i), (x_j, xi_j)),    x_i' = P_{x_i} (1/n) sum_j grad_x h((x_i, xi_i), (x_j, xi_j)),

gradient ascent, so that dE/dt = (1/n) sum_i |x_i'|^2. Kernels are normalised as exp(beta (<x, y> - 1))/beta: nothing
overflows, E is at most 1/(2 beta), and next to consensus tokens attract at rate 1. A time tau of the papers, whose
kernel is exp(beta <x, y>)/beta, is `library_time(tau, beta)` of ours. Leading dimensions of tokens (..., n, D) are
independent clouds with common labels. First derivatives only; `dense` has the second.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..attention import attend, full_precision, widen
from .sphere import check_labels, check_tokens, describe, positive, tangent

FEW = 128  # up to so many tokens a matrix of weights is faster than fused attention
WIDTH = 16  # fewer features make the CPU kernel slower, not faster


class Field(NamedTuple):
    """A kernel with labels in place: tokens (..., n, D) -> drift (..., n, D), and -> energy (...,). Checks nothing."""

    drift: Callable[[Tensor], Tensor]
    energy: Callable[[Tensor], Tensor] | None


class Kernel(ABC):
    """What all kernels share. A new one defines `field(tokens, labels)`, which gives its `Field`."""

    no_energy: str | None = None  # where there is no energy, the reason

    def __init__(self, beta: float):
        self.beta = positive("beta", beta)

    @abstractmethod
    def field(self, tokens: Tensor, labels: Tensor | None) -> Field:
        """The drift and the energy for these labels; tokens, checked already, give shape, dtype and device."""

    def bind(self, tokens: Tensor, labels: Tensor | None = None) -> Field:
        """Check tokens and labels once, for many evaluations at tokens of this shape, dtype and device."""
        tokens = check_tokens(tokens)
        with full_precision(tokens):
            return self.field(tokens, check_labels(labels, tokens))

    def drift(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        """The velocities x_i' (..., n, D), tangent to the sphere."""
        field = self.bind(tokens, labels)
        with full_precision(tokens):
            return field.drift(tokens)

    def energy(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        """E of each cloud, (...,). Raises ValueError where the drift is no gradient, and says why."""
        self.check_energy()
        field = self.bind(tokens, labels)
        with full_precision(tokens):
            return field.energy(tokens)

    def check_energy(self) -> None:
        """Raise ValueError where there is no energy."""
        if self.no_energy:
            raise ValueError(f"energy: {type(self).__name__} has none: {self.no_energy}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(beta={self.beta:g})"


class Exponential(Kernel):
    """Unnormalised self-attention (USA): h = exp(beta (<x, y> - 1))/beta, labels without effect.

    drift P_x (1/n) sum_j exp(beta (<x, x_j> - 1)) x_j, in O(n D) memory. beta > 0, else ValueError.
    Source: Geshkovski et al. (2312.10794), equation of the USA model; chapter 11.
    """

    def frame(self, tokens: Tensor, labels: Tensor | None) -> tuple[Callable, Callable]:
        """(x -> u, u -> x): the frame in which the kernel is plain USA."""
        return _identity, _identity

    def field(self, tokens: Tensor, labels: Tensor | None) -> Field:
        turn, back = self.frame(tokens, labels)

        def drift(x):
            u = turn(x)
            return tangent(x, back(sums(u, u, u, self.beta)[0]))

        def energy(x):
            u = turn(x)
            return sums(u, u, u, self.beta)[1].mean(-1) / (2 * self.beta)

        return Field(drift, energy)

    def pairs(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        """h of every two tokens as written, (..., n, n): for `dense`, differentiable as often as one likes."""
        u = self.frame(tokens, labels)[0](tokens)
        return torch.exp(self.beta * (u @ u.mT - 1)) / self.beta


class SelfAttention(Kernel):
    """Normalised self-attention (SA): x_i' = P_x sum_j softmax_j(beta <x_i, x_j>) x_j, labels without effect.

    The USA drift with each token's speed divided by its Z_i = (1/n) sum_j exp(beta (<x_i, x_j> - 1)), so the energy of
    `Exponential` grows along it too, but not as a gradient of the plain metric.
    Source: Geshkovski et al. (2312.10794); chapter 11.
    """

    no_energy = (
        "each token's pull is divided by its own Z_i, which makes the attention matrix unsymmetric. The energy of "
        "Exponential(beta) grows along this flow all the same"
    )

    def field(self, tokens: Tensor, labels: Tensor | None) -> Field:
        def drift(x):
            mean, total = sums(x, x, x, self.beta)
            return tangent(x, mean / total[..., None])

        return Field(drift, None)

    def weights(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        """The weights as written, (..., n, n): x_i' = P_x sum_j w_ij x_j."""
        return torch.softmax(self.beta * tokens @ tokens.mT, -1)


class Rotary(Exponential):
    """Rotary positions: h = exp(beta (<R(xi) x, R(zeta) y> - 1))/beta, R turning coordinates (0, 1), (2, 3), ... .

    phases is either frequencies (P,), and the angle of plane p is label * frequency (standard), or a function from
    labels to angles (n, P) (generalised). 2P <= D; the other D - 2P coordinates are a fixed axis. Raises ValueError for
    more planes than fit, missing labels, or angles that are not finite or not (n, P). Form assumed.
    Source: USA-AV (2605.30229), summary; chapter 14.
    """

    def __init__(self, beta: float, phases: Tensor | Callable[[Tensor], Tensor]):
        super().__init__(beta)
        if not callable(phases):
            try:
                phases = torch.as_tensor(phases)
            except (TypeError, ValueError, RuntimeError):
                raise ValueError(f"phases: expected frequencies (P,) or a function, got {phases!r}") from None
            if phases.dim() != 1 or len(phases) == 0 or not torch.isfinite(phases).all():
                raise ValueError(f"phases: expected finite frequencies (P,) or a function, got {describe(phases)}")
        self.phases = phases

    def angles(self, tokens: Tensor, labels: Tensor | None) -> Tensor:
        """The angle of every token in every plane, (n, P)."""
        labels = _needed(self, labels)
        if callable(self.phases):
            angles = _finite("phases", self.phases(labels), tokens).double()
        elif labels.dim() == 1:
            angles = labels.double()[:, None] * self.phases.double().to(labels.device)
        else:
            raise ValueError(f"labels: frequencies need one number a token, (n,), got shape {tuple(labels.shape)}")
        if angles.dim() != 2 or len(angles) != len(labels):
            raise ValueError(f"phases: expected angles of shape ({len(labels)}, P), got {tuple(angles.shape)}")
        if 2 * angles.shape[1] > tokens.shape[-1]:
            raise ValueError(f"phases: {angles.shape[1]} planes do not fit into D = {tokens.shape[-1]} dimensions")
        return angles

    def frame(self, tokens: Tensor, labels: Tensor | None) -> tuple[Callable, Callable]:
        angles = self.angles(tokens, labels)  # in float64: positions may be large
        cos, sin = angles.cos().to(tokens), angles.sin().to(tokens)
        return lambda x: _rotate(x, cos, sin), lambda u: _rotate(u, cos, -sin)


class RotaryQueriesKeys(Rotary):
    """The rotary pattern of language models: queries and keys are rotated, values are not.

    drift P_x (1/n) sum_j exp(beta (<R(xi_i) x_i, R(xi_j) x_j> - 1)) x_j, not a gradient: no energy. phases and errors
    as in `Rotary`. Source: rotary embeddings (2104.09864), unnormalised as in USA; chapter 14.
    """

    no_energy = (
        "queries and keys are rotated but values are not, so token i pulls j along x_i where the gradient would pull "
        "along R(xi_j)^T R(xi_i) x_i"
    )

    def field(self, tokens: Tensor, labels: Tensor | None) -> Field:
        turn, _ = self.frame(tokens, labels)

        def drift(x):
            u = turn(x)
            return tangent(x, sums(u, u, x, self.beta)[0])

        return Field(drift, None)

    def weights(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        """The weights as written, (..., n, n): x_i' = P_x sum_j w_ij x_j."""
        return self.beta * self.pairs(tokens, labels) / tokens.shape[-2]


class Gauge(Exponential):
    """Prompts: h = exp(beta (<G(xi) x, G(zeta) y> - 1))/beta, with an orthogonal matrix G for every label.

    rotations is a function from labels to (n, D, D). Raises ValueError for missing labels, another shape, or matrices
    that are not orthogonal within 1e-4 (reflections are). Form assumed.
    Source: USA-AV (2605.30229), summary; chapter 15.
    """

    def __init__(self, beta: float, rotations: Callable[[Tensor], Tensor]):
        super().__init__(beta)
        if not callable(rotations):
            raise ValueError(f"rotations: expected a function labels -> (n, D, D), got {describe(rotations)}")
        self.rotations = rotations

    def frame(self, tokens: Tensor, labels: Tensor | None) -> tuple[Callable, Callable]:
        labels, (n, dim) = _needed(self, labels), tokens.shape[-2:]
        matrices = _finite("rotations", self.rotations(labels), tokens).to(tokens)
        if matrices.shape != (n, dim, dim):
            raise ValueError(f"rotations: expected shape {(n, dim, dim)}, got {tuple(matrices.shape)}")
        off = (matrices @ matrices.mT - torch.eye(dim).to(tokens)).abs().max().item()
        if off > 1e-4:
            raise ValueError(f"rotations: expected orthogonal matrices, got |G G^T - 1| up to {off:.3g}")
        return (
            lambda x: (matrices @ x[..., None])[..., 0],
            lambda u: (matrices.mT @ u[..., None])[..., 0],
        )


def library_time(tau: float, beta: float) -> float:
    """The papers' time tau, for the kernel exp(beta <x, y>)/beta, in the library's unit: tau exp(beta)."""
    return tau * math.exp(positive("beta", beta))


def sums(query: Tensor, key: Tensor, value: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """(1/n) sum_j w_ij v_j and (1/n) sum_j w_ij with w_ij = exp(beta (<q_i, k_j> - 1)): (..., n, D) and (..., n).

    Softmax attention knows the sums only up to the factor 1/Z_i. So one more key, the sink, gets the logit beta, which
    is weight 1 here, and a marker as its value: the marker comes out as 1/(1 + Z_i), and dividing by it undoes the
    normalisation. All vectors have length 1.
    """
    n, dim = value.shape[-2:]
    if n <= FEW:
        weights = torch.exp(beta * (query @ key.mT - 1)) / n
        return weights @ value, weights.sum(-1)
    one, width = query.new_ones(1), max(WIDTH, dim + 2 + -(dim + 2) % 8)
    query = widen(torch.cat([query, one.expand(*query.shape[:-1], 1)], -1), width)
    value = widen(torch.cat([value, one.expand(*value.shape[:-1], 1)], -1), width)
    sink = query.new_zeros(2, 1, width)
    sink[0, 0, dim], sink[1, 0, dim + 1] = beta, 1  # its key, and its value
    key, value = (
        torch.cat([each, extra.expand(*each.shape[:-2], 1, width)], -2)
        for each, extra in ((widen(beta * key, width), sink[0]), (value, sink[1]))
    )
    out = attend(query, key, value)
    out = out[..., : dim + 1] / (n * out[..., dim + 1 : dim + 2])
    return out[..., :dim], out[..., dim]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first planes of x (..., n, D) by angles (n, P)."""
    end = 2 * cos.shape[-1]
    a, b = x[..., 0:end:2], x[..., 1:end:2]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([turned, x[..., end:]], -1)


def _identity(x: Tensor) -> Tensor:
    return x


def _needed(kernel: Kernel, labels: Tensor | None) -> Tensor:
    if labels is None:
        raise ValueError(f"labels: {type(kernel).__name__} needs one label for each token, got None")
    return labels


def _finite(name: str, values, tokens: Tensor) -> Tensor:
    """What a function of the labels returned, on the tokens' device."""
    if not isinstance(values, Tensor) or not torch.isfinite(values).all():
        got = "NaN or infinity" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"{name}: expected a tensor of finite numbers for these labels, got {got}")
    return values.to(tokens.device)
