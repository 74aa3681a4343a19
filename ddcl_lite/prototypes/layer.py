"""DDCL-Attention as a layer, and as a readout: the layer and a mean over the sequence."""

import torch
from torch import Tensor, nn

from .assignment import assign, soft_centroids
from .dense import Decomposition
from .inputs import check_temperature, check_tokens, keep, pool
from .loss import critical_temperature, decompose


class DDCLAttention(nn.Module):
    """A bank of prototypes that reads tokens: each token meets its soft centroid.

    LayerNorm(z + W_O mu), mu = the heads' soft centroids side by side

    dim is split into num_heads slices; each head has its own num_prototypes prototypes (`prototypes`, (H, K, dim/H))
    and its own temperature (`temperature`, a buffer (H,), so that it can change without recompiling). Gradients always
    pass through q in `forward`; `detach_assignment` concerns `decompose` alone.

    loss                          prototypes          output (W_O), norm
    a task loss on forward()      through q and p     yes
    decompose().total             through q and p     no
    the same, q detached          through p alone     no

    First derivatives only. Raises ValueError naming the argument. Source: DDCL-Attention (2604.03850), from a summary;
    chapter 2.
    """

    def __init__(
        self,
        dim: int,
        num_prototypes: int,
        num_heads: int = 1,
        temperature: float = 1.0,
        detach_assignment: bool = False,
    ):
        super().__init__()
        for name, value in (("dim", dim), ("num_prototypes", num_prototypes), ("num_heads", num_heads)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if dim % num_heads:
            raise ValueError(f"num_heads: expected a divisor of dim = {dim}, got {num_heads}")
        check_temperature(temperature)
        self.dim, self.detach_assignment = dim, detach_assignment
        width = dim // num_heads
        self.prototypes = nn.Parameter(torch.randn(num_heads, num_prototypes, width) * width**-0.5)  # norms near 1
        self.register_buffer("temperature", torch.full((num_heads,), float(temperature)))
        self.output = nn.Linear(dim, dim, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """tokens (..., N, dim), mask (..., N) bool -> (..., N, dim), 0 at masked tokens."""
        tokens = self._check(tokens, mask)
        centroids = soft_centroids(*self._per_head(tokens, mask))
        update = self.output(centroids.transpose(-2, -3).flatten(-2))
        return keep(self.norm(tokens + update), mask)

    def assign(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """The weights q behind mu: (..., N, dim) -> (..., H, N, K)."""
        return assign(*self._per_head(self._check(tokens, mask), mask))

    def decompose(self, tokens: Tensor, mask: Tensor | None = None) -> Decomposition:
        """L_q, L_OLS and V summed over heads (so that L_OLS = |z - mu|^2 in all of dim), and mu (..., N, dim)."""
        heads = self.prototypes.shape[0]
        parts = decompose(*self._per_head(self._check(tokens, mask), mask), self.detach_assignment)
        total, reconstruction, variance = (heads * part for part in parts[:3])  # parts are means over heads
        return Decomposition(total, reconstruction, variance, parts.centroids.transpose(-2, -3).flatten(-2))

    @torch.no_grad()
    def calibrate(self, tokens: Tensor, ratio: float, mask: Tensor | None = None) -> "DDCLAttention":
        """Set each head's temperature to ratio * critical_temperature of what that head sees; returns the layer.

        Raises ValueError if ratio is not a finite number > 0, or if a head's tokens are all equal (T_c = 0).
        """
        if not 0 < ratio < float("inf"):
            raise ValueError(f"ratio: expected a finite number > 0, got {ratio}")
        heads = self._split(self._check(tokens, mask)).unbind(-3)
        critical = torch.stack([critical_temperature(head, mask, self.detach_assignment) for head in heads])
        if not bool((critical > 0).all()):
            raise ValueError(f"tokens: expected tokens that differ in every head, got critical temperatures {critical}")
        self.temperature.copy_(ratio * critical)
        check_temperature(self.temperature, self.temperature.shape)  # half precision may have rounded it to 0 or inf
        return self

    def _check(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        tokens = check_tokens(tokens, mask)
        if tokens.shape[-1] != self.dim:
            raise ValueError(
                f"tokens: expected dim = {self.dim} features as in prototypes, got shape {tuple(tokens.shape)}"
            )
        return tokens

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (self.prototypes.shape[0], -1)).transpose(-2, -3)  # (..., H, N, dim/H)

    def _per_head(self, tokens: Tensor, mask: Tensor | None):
        tokens = self._split(tokens)
        mask = None if mask is None else mask[..., None, :].expand(tokens.shape[:-1])
        return tokens, self.prototypes, self.temperature, mask

    def extra_repr(self) -> str:
        heads, count, width = self.prototypes.shape
        return f"dim={self.dim}, num_prototypes={count}, num_heads={heads}, detach_assignment={self.detach_assignment}"


class PrototypeReadout(nn.Module):
    """One vector for a sequence: the mean of `DDCLAttention`'s output over its real tokens.

    dim, num_prototypes, num_heads, temperature as in `DDCLAttention`, which is `.layer`.
    readout(tokens (..., N, dim), mask) -> (..., dim); all masked: 0. Chapter 2.
    """

    def __init__(self, dim: int, num_prototypes: int, num_heads: int = 1, temperature: float = 1.0):
        super().__init__()
        self.layer = DDCLAttention(dim, num_prototypes, num_heads, temperature)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return pool(self.layer(tokens, mask), mask)
