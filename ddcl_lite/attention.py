"""PyTorch's fused attention, for any leading dimensions: what both halves of the library reduce their sums to."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 8  # the CPU kernel's backward pass runs in parallel over rows (batch x heads) only: give it this many,
MIN_ROW = 128  # but none shorter than this
ENTRIES = 2**26  # no CUDA kernel is fused in float64: queries go in blocks of so many weights


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(query key^T + bias) value without the matrix of weights; leading dimensions broadcast.

    query (..., N, W), key (..., K, W), value (..., K, W'), bias (..., 1, K) -> (..., N, W'). Fused
    kernels want W = W' and have no gradient for the bias; the first derivative is fused too, there is no second.
    """
    length, rows = query.shape[-2], _block(query, key)
    if rows < length:
        return torch.cat([attend(block, key, value, bias) for block in query.split(rows, -2)], -2)
    pieces = _pieces(query)
    if pieces > 1:  # a few long rows become more, shorter ones
        query = F.pad(query, (0, 0, 0, -length % pieces)).unflatten(-2, (pieces, -1))
        key, value = key.unsqueeze(-3), value.unsqueeze(-3)
        bias = None if bias is None else bias.unsqueeze(-3)
    lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    rows = lead if len(lead) == 2 and pieces == 1 else (math.prod(lead), 1)

    def fold(tensor):
        return tensor.expand(*lead, -1, -1).reshape(*rows, *tensor.shape[-2:])

    mask = None if bias is None else fold(bias)
    out = F.scaled_dot_product_attention(fold(query), fold(key), fold(value), attn_mask=mask, scale=1.0)
    out = out.reshape(*lead, query.shape[-2], value.shape[-1])
    return out.flatten(-3, -2)[..., :length, :] if pieces > 1 else out


def widen(features: Tensor, width: int = 0) -> Tensor:
    """Append zeros up to `width`, or to a multiple of 8: else CUDA falls back to a dense kernel, and CPUs slow down."""
    return F.pad(features, (0, width - features.shape[-1] if width else -features.shape[-1] % 8))


def full_precision(tokens: Tensor) -> torch.autocast:
    """A context in which autocast leaves chosen dtypes alone."""
    return torch.autocast(tokens.device.type, enabled=False)


def _pieces(query: Tensor) -> int:
    if query.device.type != "cpu":
        return 1
    return max(1, min(ROWS // max(1, math.prod(query.shape[:-2])), query.shape[-2] // MIN_ROW))


def _block(query: Tensor, key: Tensor) -> int:
    if query.device.type != "cuda" or query.dtype != torch.float64:
        return query.shape[-2]
    lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    return max(1, ENTRIES // max(1, key.shape[-2] * math.prod(lead)))
