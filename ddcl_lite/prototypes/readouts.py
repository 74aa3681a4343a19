"""What one would use instead of prototypes. One interface: readout(tokens (..., N, D), mask) -> (..., D).

Each sets masked positions aside, whatever they hold, and answers a sequence without tokens with zeros. They serve
chapters 2 and 7.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .inputs import check_tokens, keep, pool


class MeanReadout(nn.Module):
    """The mean of the tokens, (1/N) sum_n z_n. No parameters; O(N D)."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return pool(check_tokens(tokens, mask), mask)


class FirstTokenReadout(nn.Module):
    """The first position alone, where BERT-like encoders put [CLS]. No parameters; O(D)."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return check_tokens(tokens, mask)[..., 0, :]


class AttentionPooling(nn.Module):
    """One learned query s attends to the tokens: sum_n softmax_n(s.W_K z_n / sqrt(d)) W_V z_n, per head. O(N D^2)."""

    def __init__(self, dim: int, num_heads: int = 1):
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, dim) * dim**-0.5)
        self.attention = nn.MultiheadAttention(dim, num_heads, batch_first=True)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return attend_to_tokens(self.attention, self.query, tokens, mask)[..., 0, :]


class PerceiverReadout(nn.Module):
    """Learned latents read the tokens once, then each other; the mean of the latents is the summary. O(N L D + N D^2).

    Source: Perceiver (2103.03206): one cross-attention and one self-attention block, in PyTorch's own layers.
    """

    def __init__(self, dim: int, num_latents: int = 8, num_heads: int = 1):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim) * dim**-0.5)
        self.read = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.think = nn.TransformerEncoderLayer(dim, num_heads, 2 * dim, 0.0, F.gelu, batch_first=True, norm_first=True)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        read = attend_to_tokens(self.read, self.latents, tokens, mask)  # (..., L, D)
        latents = self.think(self.norm(self.latents + read).reshape(-1, *read.shape[-2:])).reshape(read.shape)
        return latents.mean(-2) if mask is None else latents.mean(-2) * mask.any(-1, keepdim=True)


class SlotAttentionReadout(nn.Module):
    """Slots compete for tokens (softmax over slots, then a mean over tokens) and update by a GRU, a few rounds over.

    a = softmax_slots(q.k / sqrt(D)), update = sum_n (a_n / sum_m a_m) v_n, slot <- GRU(update, slot)

    The mean of the slots is the summary. Source: Slot Attention (2006.15055), with learned initial slots in place of
    random ones, and without its MLP. O(N S D + N D^2) a round.
    """

    def __init__(self, dim: int, num_slots: int = 4, rounds: int = 3):
        super().__init__()
        self.rounds = rounds
        self.slots = nn.Parameter(torch.randn(num_slots, dim))
        self.norm_tokens, self.norm_slots = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.key, self.value, self.query = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.update = nn.GRUCell(dim, dim)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        tokens = self.norm_tokens(check_tokens(tokens, mask))
        key, value = self.key(tokens), self.value(tokens)
        slots = self.slots.expand(*tokens.shape[:-2], -1, -1)  # (..., S, D)
        for _ in range(self.rounds):
            logits = self.query(self.norm_slots(slots)) @ key.mT * tokens.shape[-1] ** -0.5  # (..., S, N)
            share = logits.float().softmax(-2) + 1e-8  # over slots: a token divides itself among them
            share = share if mask is None else share * mask[..., None, :]
            update = (share / share.sum(-1, keepdim=True).clamp_min(1e-8)).to(value.dtype) @ value
            slots = self.update(update.reshape(-1, update.shape[-1]), slots.reshape(-1, slots.shape[-1]))
            slots = slots.reshape(update.shape)
        return slots.mean(-2) if mask is None else slots.mean(-2) * mask.any(-1, keepdim=True)


def attend_to_tokens(attention: nn.MultiheadAttention, queries: Tensor, tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Learned queries (L, D) attend to tokens (..., N, D): (..., L, D); 0 where a sequence has no token."""
    tokens = check_tokens(tokens, mask)
    *lead, length, dim = tokens.shape
    tokens = tokens.reshape(-1, length, dim)
    queries = queries.expand(len(tokens), -1, -1)
    if mask is None:
        return attention(queries, tokens, tokens, need_weights=False)[0].reshape(*lead, -1, dim)
    mask = mask.reshape(-1, length)
    empty = ~mask.any(-1)
    ignore = ~(mask | empty[:, None])  # an empty sequence attends to its zeros: a softmax over nothing would be NaN
    out, _ = attention(queries, tokens, tokens, key_padding_mask=ignore, need_weights=False)
    return keep(out, (~empty)[:, None].expand(out.shape[:-1])).reshape(*lead, -1, dim)
