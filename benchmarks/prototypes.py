"""The prototype layer against what one would write or install instead, side by side in one run: `make bench`.

Soft assignment: the fused form of this library, the formulas as written, `torch.cdist`, and two plain products. Around
it: `nn.MultiheadAttention` (every token against every other) and the nearest-code lookup of vector-quantize-pytorch.
Contestants take turns and every number is a median. Ratios are to the fused form: above 1, the fused form is faster or
smaller. Errors are the largest against float64, relative to the root mean square norm of the tokens. On a GPU: CUDA
events, bfloat16 too, and the share of the machine's matrix rate and copy bandwidth that the fused form reaches.
"""

import argparse
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.nn.functional as F
from timing import machine_rates, peak_bytes, seconds
from torch import nn
from vector_quantize_pytorch import VectorQuantize

import ddcl_lite as dl
from ddcl_lite.experiments.cost import exponent
from ddcl_lite.figures import COLOURS, MARKERS, subplots
from ddcl_lite.prototypes import dense

TOO_LARGE = 2**28  # entries of N x K x D that the formulas as written may store
PLOT = Path(__file__).parents[1] / "_build" / "prototypes.svg"


def with_cdist(tokens, prototypes, temperature):
    """The obvious form: distances, softmax, product."""
    return torch.softmax(-torch.cdist(tokens, prototypes).square() / temperature, -1) @ prototypes


def with_products(tokens, prototypes, temperature):
    """The careful form: |z|^2 dropped, a matrix product, softmax, product."""
    logits = tokens @ (2 / temperature * prototypes).mT - prototypes.square().sum(-1) / temperature
    return torch.softmax(logits, -1) @ prototypes


def in_bfloat16(tokens, prototypes, temperature):
    """The fused call of the library, its inputs rounded once the bank's mean is the origin: fast on a GPU, wrong when
    cold."""
    centre = prototypes.mean(-2, keepdim=True)
    tokens, prototypes = tokens - centre, prototypes - centre
    square = prototypes.square().sum(-1, keepdim=True)
    query = torch.cat([tokens, torch.ones_like(tokens[..., :1])], -1)
    key = torch.cat([2 * prototypes / temperature, -square / temperature], -1)
    width = -(-query.shape[-1] // 8) * 8
    query, key, value = (
        F.pad(each, (0, width - each.shape[-1])).bfloat16().expand(len(tokens), -1, -1)[:, None]
        for each in (query, key, prototypes)
    )
    out = F.scaled_dot_product_attention(query, key, value, scale=1.0)
    return out[:, 0, :, : tokens.shape[-1]] + centre


ASSIGNMENTS = {"fused": dl.soft_centroids, "as written": dense.soft_centroids}
ASSIGNMENTS |= {"cdist": with_cdist, "two products": with_products}


def forward(function, *inputs):
    with torch.no_grad():
        return function(*inputs)


def forward_backward(function, tokens, prototypes, temperature):
    tokens, prototypes = tokens.detach().requires_grad_(), prototypes.detach().requires_grad_()
    function(tokens, prototypes, temperature).sum().backward()


def scene(batch, count, dim, bank, device):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(batch, count, dim, generator=generator).to(device)
    prototypes = torch.randn(bank, dim, generator=generator).to(device)
    return tokens, prototypes, 0.5 * float(dl.critical_temperature(tokens))


def compare(size, device, repeats) -> list[dict]:
    """One row per contestant at (B, N, D, K)."""
    inputs = scene(*size, device)
    tokens, prototypes, temperature = inputs
    contestants = dict(ASSIGNMENTS)
    if tokens[..., 0].numel() * prototypes.numel() > TOO_LARGE:
        del contestants["as written"]
    if torch.device(device).type == "cuda":
        contestants["fused, bfloat16"] = in_bfloat16
    exact = dense.soft_centroids(tokens[:1, :256].double(), prototypes.double(), temperature)
    rows = [dict(zip("BNDK", size), contestant=name) for name in contestants]
    for column, run in (("forward", forward), ("both", forward_backward)):
        calls = [partial(run, function, *inputs) for function in contestants.values()]
        for row, time, call in zip(rows, seconds(calls, repeats, device), calls):
            row[f"{column} ms"], row[f"{column} MiB"] = 1e3 * time, peak_bytes(call, device) / 2**20
    for row, function in zip(rows, contestants.values()):
        for column in ("forward", "both"):
            row[f"{column} x"] = row[f"{column} ms"] / rows[0][f"{column} ms"]
            row[f"{column} MiB x"] = row[f"{column} MiB"] / rows[0][f"{column} MiB"]
        error = (function(*inputs)[:1, :256] - exact).abs().max()
        row["error"] = float(error / tokens.square().sum(-1).mean().sqrt())
    return rows


def compare_layers(device, repeats, lengths, dim=64, bank=64) -> pd.DataFrame:
    """Whole modules over the length of one sequence, forward: milliseconds."""
    layers = {
        "DDCLAttention": dl.DDCLAttention(dim, bank),
        "MultiheadAttention": nn.MultiheadAttention(dim, 1, batch_first=True),
        "VectorQuantize": VectorQuantize(dim=dim, codebook_size=bank).eval(),
    }
    ours, attention, lookup = (layer.to(device) for layer in layers.values())
    table = {}
    for count in lengths:
        tokens = torch.randn(1, count, dim, device=device)
        reads = [ours, lambda z: attention(z, z, z, need_weights=False), lookup]
        table[count] = [1e3 * t for t in seconds([partial(forward, read, tokens) for read in reads], repeats, device)]
    return pd.DataFrame(table, index=list(layers)).T


def reached(size, device, repeats) -> None:
    """What share of the machine's own rates the fused forward pass reaches."""
    batch, count, dim, bank = size
    for name, function, dtype in (
        ("float32", dl.soft_centroids, torch.float32),
        ("bfloat16", in_bfloat16, torch.bfloat16),
    ):
        rate, bandwidth = machine_rates(device, dtype)
        time = seconds([partial(forward, function, *scene(*size, device))], repeats, device)[0]
        work = 4 * batch * count * bank * dim  # two products, two operations each
        moved = batch * count * dim * (4 + 4)  # float32 tokens in, float32 centroids out
        print(
            f"{name} at B, N, D, K = {size}: {1e3 * time:.2f} ms, {work / time / rate:.0%} of the matrix rate "
            f"({rate / 1e12:.1f} TFLOP/s), {moved / time / bandwidth:.0%} of the copy bandwidth "
            f"({bandwidth / 1e9:.0f} GB/s)"
        )


def plot(table: pd.DataFrame, layers: pd.DataFrame) -> None:
    fig, axes = subplots(1, 2, figsize=(8, 3.6))
    for index, (name, rows) in enumerate(table[table["N"] == table["N"].mode()[0]].groupby("contestant", sort=False)):
        axes[0].loglog(rows["K"], rows["forward ms"], MARKERS[index] + "-", color=COLOURS[index], label=name)
    for index, name in enumerate(layers):
        axes[1].loglog(layers.index, layers[name], MARKERS[index] + "-", color=COLOURS[index], label=name)
    for ax, label in zip(axes, ("prototypes K", "tokens N")):
        ax.set(xlabel=label, ylabel="milliseconds, forward")
        ax.legend()
    PLOT.parent.mkdir(exist_ok=True)
    fig.savefig(PLOT)
    plt.close(fig)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--small", action="store_true", help="a minute at most: fewer and smaller sizes")
    options = parser.parse_args()
    device, repeats, gpu = options.device, options.repeats, torch.device(options.device).type == "cuda"
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, float32, T = 0.5 T_c")

    batch, count = (16, 16384) if gpu and not options.small else (4, 512 if options.small else 4096)
    banks = (16, 64, 256, 1024) + ((4096,) if gpu else ())
    rows = [
        row
        for bank in banks[: 2 if options.small else None]
        for row in compare((batch, count, 64, bank), device, repeats)
    ]
    if not options.small:
        for size in ((4, 4096, 128, 512), (8, 1024, 64, 16)):
            rows += compare(size, device, repeats)
    table = pd.DataFrame(rows)
    with pd.option_context("display.width", 200, "display.max_columns", None, "display.float_format", "{:.3g}".format):
        print(table.to_string(index=False))

    lengths = [512, 1024, 2048] if options.small else [1024, 2048, 4096, 8192, 16384]
    layers = compare_layers(device, repeats, lengths)
    print("\nWhole layers, one sequence of N tokens, D = 64, K = 64, forward, milliseconds:")
    print(layers.to_string(float_format="{:.2f}".format))
    for name in layers:
        print(f"  {name}: time grows like N^{exponent(list(layers.index), list(layers[name])):.2f}, ", end="")
        print(f"{layers[name].iloc[-1] / layers['DDCLAttention'].iloc[-1]:.2f}x DDCLAttention at N = {lengths[-1]}")
    if gpu:
        for bank in (64, 4096):
            reached((16, 16384, 64, bank), device, repeats)
    plot(table, layers)
    print(f"\nThe plot is {PLOT}")


if __name__ == "__main__":
    main()
