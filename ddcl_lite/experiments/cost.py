"""What reading a sequence costs as it grows: prototypes against self-attention."""

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ..prototypes.layer import DDCLAttention

CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # which PyTorch's own table leaves out


class Cost(NamedTuple):
    """Per sequence length: floating-point operations, and seconds, of one forward pass."""

    lengths: list[int]
    operations: list[float]
    seconds: list[float]

    def slope(self, values: list[float]) -> float:
        """Least-squares slope of log values against log length over the longer half: the exponent of growth."""
        half = len(self.lengths) // 2
        return exponent(self.lengths[half:], values[half:])


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of log y against log x: the power with which y grows."""
    x, y = (torch.tensor(values, dtype=torch.float64).log() for values in (x, y))
    return ((x - x.mean()) @ (y - y.mean()) / (x - x.mean()).square().sum()).item()


def cost_of_length(lengths, device="cpu", dim=64, num_prototypes=16, repeats=5) -> dict[str, Cost]:
    """Cost of `DDCLAttention` and `nn.MultiheadAttention` on one random sequence of each length; no gradient."""
    layer = DDCLAttention(dim, num_prototypes).to(device)
    attention = nn.MultiheadAttention(dim, 1, batch_first=True).to(device).requires_grad_(False)
    contestants = {
        "prototypes": layer,
        "self-attention": lambda z: attention(z, z, z, need_weights=False)[0],
    }
    costs = {name: Cost(list(lengths), [], []) for name in contestants}
    with torch.no_grad():
        for length in lengths:
            tokens = torch.randn(1, length, dim).to(device)
            for name, read in contestants.items():
                costs[name].operations.append(count_operations(partial(read, tokens)))
                costs[name].seconds.append(shortest_seconds(partial(read, tokens), repeats))
    return costs


def count_operations(call) -> float:
    """Multiplications and additions in matrix products, as PyTorch counts them; the same on every machine."""

    def attention(query, key, value, *rest, out_shape=None, **options):
        return sdpa_flop_count(query, key, value)

    with FlopCounterMode(display=False, custom_mapping={CPU_ATTENTION: attention}) as counter:
        call()
    return float(counter.get_total_flops())


def shortest_seconds(call, repeats: int) -> float:
    """The shortest of `repeats` calls after one that warms up: what else runs on the machine only adds to it."""
    times = []
    for _ in range(repeats + 1):
        synchronise()
        start = time.perf_counter()
        call()
        synchronise()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
