"""Prototype readout against what one would write instead, side by side in one run: `make bench`.

Every row alternates the contestants, takes the median of the repeats and prints ratios (above 1: ours is faster), so
that a busy machine slows all of them. Errors are against the dense form in float64, relative to the root mean
square norm of the tokens.
"""

import argparse
import statistics
import time
from functools import partial

import torch
from torch import nn

import ddcl_lite as dl
from ddcl_lite.experiments.cost import synchronise
from ddcl_lite.prototypes import dense

SIZES = [(4, 4096, 128, 512), (8, 4096, 64, 64), (8, 1024, 64, 16)]


def with_cdist(tokens, prototypes, temperature):
    """The obvious form: distances, softmax, product."""
    return torch.softmax(-torch.cdist(tokens, prototypes).square() / temperature, -1) @ prototypes


def with_matmul(tokens, prototypes, temperature):
    """The careful form: |z|^2 dropped, a matrix product, softmax, product."""
    logits = (2 * tokens @ prototypes.mT - prototypes.square().sum(-1)) / temperature
    return torch.softmax(logits, -1) @ prototypes


def seconds(calls, repeats):
    """Median seconds of each call, taken in turns; the first turn warms up and does not count."""
    times = [[] for _ in calls]
    for turn in range(repeats + 1):
        for call, kept in zip(calls, times):
            synchronise()
            start = time.perf_counter()
            call()
            synchronise()
            if turn:
                kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in times]


def forward(function, *inputs):
    with torch.no_grad():
        return function(*inputs)


def forward_backward(function, tokens, prototypes, temperature):
    tokens, prototypes = tokens.detach().requires_grad_(), prototypes.detach().requires_grad_()
    function(tokens, prototypes, temperature).sum().backward()


def compare(size, device, repeats):
    batch, count, dim, bank = size
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(batch, count, dim, generator=generator).to(device)
    prototypes = torch.randn(bank, dim, generator=generator).to(device)
    temperature = 0.5 * float(dl.critical_temperature(tokens))
    contestants = (dl.soft_centroids, with_cdist, with_matmul)
    print(f"\nB, N, D, K = {size}, T = 0.5 T_c = {temperature:.2f}")
    for name, run in (("forward", forward), ("forward+backward", forward_backward)):
        inputs = (tokens, prototypes, temperature)
        ours, cdist, matmul = seconds([partial(run, f, *inputs) for f in contestants], repeats)
        print(
            f"  {name:18} fused {ours * 1e3:8.2f} ms   cdist {cdist * 1e3:8.2f} ms ({cdist / ours:5.2f}x)"
            f"   matmul {matmul * 1e3:8.2f} ms ({matmul / ours:5.2f}x)"
        )
    exact = dense.soft_centroids(tokens[:1].double(), prototypes.double(), temperature)
    scale = tokens.square().sum(-1).mean().sqrt()
    error = (dl.soft_centroids(tokens[:1], prototypes, temperature) - exact).abs().max() / scale
    print(f"  largest error of the fused form, relative to the root mean square token norm: {error:.1e}")


def compare_layers(device, repeats, count=4096, dim=64, bank=16):
    tokens = torch.randn(2, count, dim).to(device)
    ours = dl.DDCLAttention(dim, bank).to(device)
    theirs = nn.MultiheadAttention(dim, 1, batch_first=True).to(device)
    calls = [lambda: forward(ours, tokens), lambda: forward(lambda z: theirs(z, z, z, need_weights=False), tokens)]
    a, b = seconds(calls, repeats)
    print(
        f"\nDDCLAttention, K = {bank}, against nn.MultiheadAttention at B = 2, N = {count}, D = {dim}, forward: "
        f"{a * 1e3:.2f} ms and {b * 1e3:.2f} ms ({b / a:.1f}x)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads, float32")
    torch.manual_seed(0)
    for size in SIZES:
        compare(size, options.device, options.repeats)
    compare_layers(options.device, options.repeats)
