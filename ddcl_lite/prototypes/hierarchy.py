"""Stacked readouts: N tokens to K1 vectors, those to K2, and so on. O(N K1 D + K1 K2 D + ...), linear in N."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..attention import full_precision
from .assignment import _keys
from .dense import Decomposition
from .inputs import check_temperature, check_tokens, keep, prepare, working_dtype
from .loss import critical_temperature_by, decompose_by
from .training import check_positive, draw_prototypes


class Level(NamedTuple):
    """What one level makes of its input.

    vectors (..., K, D): each prototype's share of the input, averaged; 0 where it has none.
    mass (..., K): how much of the sequence each stands for; sums to 1, or to 0 for a sequence without tokens.
    parts: the decomposition of this level's input; of its fields only centroids, (..., N, D), is not a scalar.
    """

    vectors: Tensor
    mass: Tensor
    parts: Decomposition


class HierarchicalReadout(nn.Module):
    """A stack of banks. Each averages what the level below hands it, prototype by prototype, by weight and by mass.

    w_k = sum_n q_nk w_n,    x_k = sum_n q_nk w_n z_n / w_k,    at first w_n = 1/N

    Masses sum to 1 and sum_k w_k x_k is the mean of the tokens, at every level: the stack keeps whatever mean pooling
    keeps. readout(tokens (..., N, dim), mask) -> (..., sizes[-1], dim), one row a prototype of the last bank.

    `banks` are the prototypes, (K_l, dim) each; `temperature` is a buffer (levels,). Losses of `decompose` stop between
    levels: each moves its own bank alone, because L_q of a level falls when the level below makes its vectors equal. A
    task loss on forward() moves all of them. detach_assignment concerns the losses alone. Stores N x K_1 weights.
    Raises ValueError naming the argument. Source: DDCL-Attention (2604.03850) stacks its layer; from a summary, the
    masses are ours; chapter 9.
    """

    def __init__(self, dim: int, sizes: Sequence[int], temperature: float = 1.0, detach_assignment: bool = False):
        super().__init__()
        if not isinstance(sizes, Iterable) or not (sizes := list(sizes)) or not all(map(_is_count, sizes)):
            raise ValueError(f"sizes: expected a sequence of one or more integers >= 1, got {sizes}")
        if not _is_count(dim):
            raise ValueError(f"dim: expected an integer >= 1, got {dim!r}")
        self.dim, self.detach_assignment = dim, detach_assignment
        self.banks = nn.ParameterList(torch.randn(size, dim) * dim**-0.5 for size in sizes)  # norms near 1
        self.register_buffer("temperature", torch.full((len(sizes),), float(check_temperature(temperature))))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """The last level's vectors (..., sizes[-1], dim); all 0 for a sequence without tokens."""
        tokens, mass = self._begin(tokens, mask)
        dtype = torch.promote_types(tokens.dtype, self.banks[0].dtype)
        for bank, temperature in zip(self.banks, self.temperature):
            tokens, mass = read(tokens, mass, bank, temperature)
        return tokens.to(dtype)

    def levels(self, tokens: Tensor, mask: Tensor | None = None) -> list[Level]:
        """Vectors, masses and decomposition of every level, from the first to the last.

        The scalars are means over tokens by mass, and over sequences that have a token.
        """
        tokens, mass = self._begin(tokens, mask)
        seen, found = tokens, []  # what the loss sees: from the second level on, cut off from the level below
        for bank, temperature in zip(self.banks, self.temperature):
            share = mass.detach() / (mass.sum(-1) > 0).sum().clamp_min(1)
            parts = decompose_by(
                lambda values, share=share: (share * values).sum(),
                seen,
                bank,
                temperature,
                mass > 0,
                self.detach_assignment,
            )
            tokens, mass = read(tokens, mass, bank, temperature)
            found.append(Level(tokens, mass, parts))
            seen = tokens.detach()
        return found

    def decompose(self, tokens: Tensor, mask: Tensor | None = None) -> list[Decomposition]:
        """L_q = L_OLS + V of every level, from the first to the last."""
        return [level.parts for level in self.levels(tokens, mask)]

    @torch.no_grad()
    def start(
        self,
        tokens: Tensor,
        ratio: float,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> "HierarchicalReadout":
        """Level by level: put the bank on drawn vectors of its input and T at `ratio` times that input's T_c.

        Raises ValueError where an input has fewer vectors than the bank, or only equal ones.
        """
        check_positive("ratio", ratio)  # before anything changes
        tokens, mass = self._begin(tokens, mask)
        for level, bank in enumerate(self.banks):
            bank.copy_(draw_prototypes(tokens, len(bank), mass > 0, generator))
            self._set_temperature(level, tokens, mass, ratio)
            tokens, mass = read(tokens, mass, bank, self.temperature[level])
        return self

    @torch.no_grad()
    def calibrate(self, tokens: Tensor, ratio: float, mask: Tensor | None = None) -> "HierarchicalReadout":
        """Set each level's temperature to `ratio` times the critical one of its input, by mass; returns the readout.

        Raises ValueError unless ratio is a finite number > 0, and where an input is all equal (T_c = 0).
        """
        tokens, mass = self._begin(tokens, mask)
        for level, bank in enumerate(self.banks):
            self._set_temperature(level, tokens, mass, ratio)
            tokens, mass = read(tokens, mass, bank, self.temperature[level])
        return self

    def _set_temperature(self, level: int, tokens: Tensor, mass: Tensor, ratio: float) -> None:
        check_positive("ratio", ratio)
        critical = critical_temperature_by(mass, tokens, self.detach_assignment)
        if not critical > 0:
            raise ValueError(f"tokens: expected an input of level {level} that differs, got T_c = {critical}")
        temperature = (ratio * critical).to(self.temperature.dtype)
        self.temperature[level] = check_temperature(temperature, ())  # half precision may have rounded it to 0 or inf

    def _begin(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Checked tokens and their masses (..., N), which sum to 1 over real tokens."""
        tokens = check_tokens(tokens, mask)
        if tokens.shape[-1] != self.dim:
            raise ValueError(f"tokens: expected dim = {self.dim} features, got shape {tuple(tokens.shape)}")
        dtype = working_dtype(tokens)
        real = torch.ones(tokens.shape[:-1], dtype=dtype, device=tokens.device) if mask is None else mask.to(dtype)
        return tokens, real / real.sum(-1, keepdim=True).clamp_min(1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, sizes={[len(bank) for bank in self.banks]}, detach_assignment={self.detach_assignment}"


def read(tokens: Tensor, mass: Tensor, bank: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (..., K, D) and masses (..., K) that a bank makes of tokens (..., N, D) with masses (..., N).

    The weights are those of `assign` up to rounding, from one product: six times faster at N = 39,563, K = 64, D = 48.
    A prototype with less than 1e-19 of the mass (1e-154 in float64) has none: its gradient would overflow.
    """
    tokens, bank, temperature, _ = prepare(tokens, bank, temperature, None)
    with full_precision(tokens):
        centre, weight, bias = _keys(bank, temperature)
        shares = torch.softmax((tokens - centre) @ weight.mT + bias.mT, -1) * mass[..., None]  # (..., N, K)
        sums, least = shares.sum(-2), torch.finfo(shares.dtype).tiny ** 0.5
        vectors = shares.mT @ tokens / sums[..., None].clamp_min(least)
        some = sums >= least
        return keep(vectors, some), torch.where(some, sums, 0)


def _is_count(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
