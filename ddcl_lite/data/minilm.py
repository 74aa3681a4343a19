"""The transformer of the frozen encoder, written out: BERT, with every part callable alone."""

import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Multi-head self-attention without its residual: (..., N, D) -> (..., N, D)."""

    def __init__(self, dim=384, heads=12):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        q, k, v = self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(x))
        if mask is not None:
            mask = mask[..., None, None, :]  # (..., 1, 1, N): no token attends to padding
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (..., H, N, D/H)
        return self.out(heads.transpose(-3, -2).flatten(-2))  # (..., N, D)

    def _split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # (..., N, D) -> (..., H, N, D/H)


class Layer(nn.Module):
    """One transformer layer, normalised after each residual: x <- LN(x + attention(x)), x <- LN(x + mlp(x)).

    The parts `attention`, `norm1`, `mlp`, `norm2` can be called alone.
    x: (..., N, D); mask: (..., N) bool, True at real tokens, or None.
    """

    def __init__(self, dim=384, hidden=1536, heads=12):
        super().__init__()
        self.attention = Attention(dim, heads)
        self.norm1 = nn.LayerNorm(dim, eps=1e-12)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.norm2 = nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x, mask=None):
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.mlp(x))


class MiniLM(nn.Module):
    """BERT with 6 layers, D = 384 and 12 heads; `load_encoder` fills in the trained weights.

    embed(ids): (B, N) int64 -> (B, N, 384), the states before the first layer.
    layers[i](x, mask): (B, N, 384) -> (B, N, 384), each callable alone.
    forward(ids, mask): list of 7 states (B, N, 384): the embeddings, then the output of each layer.
    mask: (B, N) bool, True at real tokens. States at padding are not meaningful; they reach no other token.

    Source: Devlin et al. 2019 (BERT); Wang et al. 2020 (MiniLM).
    """

    def __init__(self, vocabulary=30522, max_tokens=512, dim=384, depth=6):
        super().__init__()
        self.words = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(max_tokens, dim)
        self.types = nn.Embedding(2, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))

    def embed(self, ids):
        x = self.words(ids) + self.positions.weight[: ids.shape[-1]] + self.types.weight[0]
        return self.norm(x)  # (B, N, D)

    def forward(self, ids, mask=None):
        states = [self.embed(ids)]
        for layer in self.layers:
            states.append(layer(states[-1], mask))
        return states
