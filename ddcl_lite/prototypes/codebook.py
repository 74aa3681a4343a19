"""Codebooks: K vectors that stand in for tokens. Soft codes by temperature and hard ones as in VQ-VAE, one interface.

    codebook.start(tokens)                 codes on drawn tokens
    coded = codebook(tokens, mask)         what stands in for the tokens, their codes, and the loss to add
    codebook.encode(tokens, mask)          the codes alone
    codebook.decode(codes)                 what stands in for tokens with these codes: agrees with forward

`forward` never changes state: the temperature, moving averages and the revival of dead codes are calls of their own.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import full_precision
from .assignment import assign, soft_centroids
from .inputs import check_temperature, check_tokens, keep, mean_over_tokens, working_dtype
from .loss import critical_temperature, decompose
from .training import check_positive, draw_prototypes


class Coded(NamedTuple):
    """What a codebook makes of tokens (..., N, D): their stand-ins (..., N, D), codes, and a loss, a scalar.

    codes are weights (..., N, K) if soft, indices (..., N), -1 at masked tokens, if hard.
    """

    tokens: Tensor
    codes: Tensor
    loss: Tensor


class _Codebook(nn.Module):
    """What both have: codes (K, D), a start, a look at the tokens, the nearest code."""

    def __init__(self, dim: int, num_codes: int):
        super().__init__()
        for name, value in (("dim", dim), ("num_codes", num_codes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected an integer >= 1, got {value!r}")
        self.codes = nn.Parameter(torch.randn(num_codes, dim) * dim**-0.5)  # norms near 1

    @torch.no_grad()
    def start(self, tokens: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None):
        """Put the codes on different real tokens, drawn on the CPU; returns the codebook."""
        self.codes.copy_(draw_prototypes(self._check(tokens, mask), len(self.codes), mask, generator))
        return self

    def decode(self, codes: Tensor) -> Tensor:
        """Stand-ins (..., N, D) for codes: indices (..., N), of which -1 gives 0, or weights (..., N, K).

        So soft codes may be decoded hard: `decode(codes.argmax(-1))`. Raises ValueError for anything else (compiled
        code does not look at the indices).
        """
        expected = f"codes: expected indices from -1 to {len(self.codes) - 1}, or weights (..., N, {len(self.codes)})"
        if not isinstance(codes, Tensor) or codes.dtype == torch.bool or codes.is_complex():
            raise ValueError(f"{expected}, got {codes.dtype if isinstance(codes, Tensor) else type(codes).__name__}")
        if codes.is_floating_point():
            if codes.dim() < 2 or codes.shape[-1] != len(self.codes):
                raise ValueError(f"{expected}, got weights of shape {tuple(codes.shape)}")
            with full_precision(codes):
                dtype, promoted = working_dtype(codes, self.codes), torch.promote_types(codes.dtype, self.codes.dtype)
                return (codes.to(dtype) @ self.codes.to(dtype)).to(promoted)
        index = codes.long()
        if not torch.compiler.is_compiling() and bool(((index < -1) | (index >= len(self.codes))).any()):
            raise ValueError(f"{expected}, got indices from {index.min()} to {index.max()}")
        return _look_up(index, self.codes)

    def _check(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        tokens = check_tokens(tokens, mask)
        if tokens.shape[-1] != self.codes.shape[-1]:
            raise ValueError(f"tokens: expected D = {self.codes.shape[-1]} as in codes, got {tuple(tokens.shape)}")
        return tokens

    @torch.no_grad()
    def _nearest(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """The nearest codes (..., N), the first where only rounding tells them apart; -1 at masked tokens."""
        with full_precision(tokens):
            dtype = working_dtype(tokens, self.codes)
            centre = self.codes.to(dtype).mean(0)  # as origin: an offset costs no digits
            tokens, codes = tokens.to(dtype) - centre, self.codes.to(dtype) - centre
            nearness = 2 * tokens @ codes.mT - codes.square().sum(-1)  # |z|^2 - |z - e|^2
            reach = codes.norm(dim=-1).amax()
            rounding = 8 * torch.finfo(dtype).eps * reach * (2 * tokens.norm(dim=-1, keepdim=True) + reach)
            index = (nearness >= nearness.amax(-1, keepdim=True) - rounding).byte().argmax(-1)
        return index if mask is None else torch.where(mask, index, -1)

    def extra_repr(self) -> str:
        return "dim={1}, num_codes={0}".format(*self.codes.shape)


class SoftCodebook(_Codebook):
    """Each token becomes the mixture of codes that `soft_centroids` gives at the current temperature.

    mu_n = sum_k q_nk e_k,    loss L_q = mean_n sum_k q_nk |z_n - e_k|^2

    `anneal(tokens, ratio)` sets the temperature. hard=True: the nearest code stands in, with the gradient of the
    mixture (straight-through), and codes are indices; `hard` may be switched at any time. detach_assignment holds q
    fixed in the loss; stand-ins always let gradients through q. Every code gets a gradient from every token.
    Raises ValueError naming the argument. Source: DDCL-Attention (2604.03850), from a summary; chapter 8.
    """

    def __init__(
        self,
        dim: int,
        num_codes: int,
        temperature: float = 1.0,
        hard: bool = False,
        detach_assignment: bool = True,
    ):
        super().__init__(dim, num_codes)
        self.hard, self.detach_assignment = hard, detach_assignment
        self.register_buffer("temperature", torch.tensor(float(check_temperature(temperature))))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Coded:
        """Tokens (..., N, D), mask (..., N) bool; stand-ins are 0 at masked tokens."""
        tokens = self._check(tokens, mask)
        loss = decompose(tokens, self.codes, self.temperature, mask, self.detach_assignment).total
        mixed = soft_centroids(tokens, self.codes, self.temperature, mask)
        codes = self.encode(tokens, mask)
        if not self.hard:
            return Coded(mixed, codes, loss)
        return Coded(_stand_in(mixed, _look_up(codes, self.codes)), codes, loss)

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weights (..., N, K), 0 at masked tokens; indices (..., N) of the nearest codes if hard, -1 at masked ones."""
        tokens = self._check(tokens, mask)
        return self._nearest(tokens, mask) if self.hard else assign(tokens, self.codes, self.temperature, mask)

    @torch.no_grad()
    def anneal(self, tokens: Tensor, ratio: float, mask: Tensor | None = None) -> "SoftCodebook":
        """Set T to `ratio` times `critical_temperature` of these tokens, with detach_assignment as here; returns it.

        Raises ValueError unless ratio is a finite number > 0, and for tokens that are all equal (T_c = 0).
        """
        check_positive("ratio", ratio)
        critical = critical_temperature(self._check(tokens, mask), mask, self.detach_assignment)
        if not critical > 0:
            raise ValueError("tokens: expected tokens that differ, got equal ones, whose critical temperature is 0")
        temperature = (ratio * critical).to(self.temperature.dtype)
        self.temperature.copy_(check_temperature(temperature, ()))  # half precision may have rounded it to 0 or inf
        return self


class HardCodebook(_Codebook):
    """Vector quantisation: the nearest code stands in, with the gradient of the token itself (straight-through).

    loss = mean_n |sg(z_n) - e|^2 + commitment |z_n - sg(e)|^2, e the nearest code, sg = stop gradient

    With `decay` the codes get no gradient and the first term is gone: `update(tokens)` after each step moves every code
    to the running mean of the tokens that chose it. `revive(tokens)` moves codes that hardly any token chooses: call it
    after the optimiser's step, which would otherwise move them off their tokens. Raises ValueError naming the argument.
    Source: VQ-VAE (1711.00937), moving averages as in its appendix; chapter 8.
    """

    def __init__(self, dim: int, num_codes: int, commitment: float = 0.25, decay: float | None = None):
        super().__init__(dim, num_codes)
        if not 0 <= commitment < float("inf"):
            raise ValueError(f"commitment: expected a finite number >= 0, got {commitment}")
        if decay is not None and not 0 < decay < 1:
            raise ValueError(f"decay: expected None or a number strictly between 0 and 1, got {decay}")
        self.codes.requires_grad_(decay is None)
        self.commitment, self.decay = commitment, decay
        self.register_buffer("share", torch.full((num_codes,), 1 / num_codes))  # running share of the tokens

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Coded:
        """Tokens (..., N, D), mask (..., N) bool; stand-ins are 0 at masked tokens."""
        tokens = self._check(tokens, mask)
        index = self._nearest(tokens, mask)
        code, dtype = _look_up(index, self.codes), working_dtype(tokens, self.codes)  # squares overflow in half
        loss = self.commitment * mean_over_tokens((tokens.to(dtype) - code.detach()).square().sum(-1), mask)
        if self.decay is None:
            loss = loss + mean_over_tokens((tokens.detach().to(dtype) - code).square().sum(-1), mask)
        return Coded(_stand_in(tokens, code), index, loss)

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Indices (..., N) of the nearest codes, the first of equals; -1 at masked tokens."""
        return self._nearest(self._check(tokens, mask), mask)

    def start(self, tokens: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None):
        """Put the codes on different real tokens, drawn on the CPU; returns the codebook."""
        super().start(tokens, mask, generator)
        self.share.fill_(1 / len(self.codes))
        return self

    @torch.no_grad()
    def update(self, tokens: Tensor, mask: Tensor | None = None) -> "HardCodebook":
        """One step of the running means; a code that no token chose keeps its place. Returns the codebook.

        share_k <- decay share_k + (1 - decay) (share now), the same for share_k e_k and the sum of tokens that chose k.
        Nothing changes where every token is masked. Raises ValueError for a codebook without `decay`.
        """
        if self.decay is None:
            raise ValueError("decay: expected a codebook with one; this one learns by gradients")
        rows, chosen = self._chosen(tokens, mask)
        if len(rows):
            with full_precision(rows):
                now = chosen.mean(0)
                pull = chosen.mT @ rows / len(rows) - now[:, None] * self.codes  # share times (mean - code)
                share = torch.lerp(self.share.to(now.dtype), now, 1 - self.decay)
                self.codes += torch.where(now > 0, (1 - self.decay) / share, 0)[:, None] * pull
            self.share.copy_(share)
        return self

    @torch.no_grad()
    def revive(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        below: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> int:
        """Put every code with less than `below`/K of the tokens on a drawn token; returns how many.

        The share is the running one with `decay`, else that of these tokens. A revived code begins with 1/K of the
        running share, so that the next `update` does not undo it.
        """
        check_positive("below", below)
        rows, chosen = self._chosen(tokens, mask)
        if not len(rows):
            return 0
        share = chosen.mean(0) if self.decay is None else self.share
        dead = (share * len(self.codes) < below).nonzero().squeeze(-1)[: len(rows)]
        if len(dead):
            self.codes[dead] = draw_prototypes(rows, len(dead), generator=generator).to(self.codes.dtype)
            self.share[dead] = 1 / len(self.codes)
        return len(dead)

    def _chosen(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The real tokens (n, D), and the code that each chooses, as numbers 0 and 1 (n, K)."""
        tokens = self._check(tokens, mask)
        rows = (tokens.flatten(0, -2) if mask is None else tokens[mask]).to(working_dtype(tokens, self.codes))
        return rows, F.one_hot(self._nearest(rows, None), len(self.codes)).to(rows.dtype)


def _look_up(index: Tensor, codes: Tensor) -> Tensor:
    """codes[index], and 0 where index is -1: (..., N) -> (..., N, D)."""
    return keep(codes[index.clamp_min(0)], index >= 0)


def _stand_in(tokens: Tensor, code: Tensor) -> Tensor:
    """The code, to the last digit, with the gradient of the tokens: straight-through. Both are 0 at masked tokens."""
    return code.detach() + (tokens - tokens.detach())
