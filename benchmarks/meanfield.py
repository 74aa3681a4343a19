"""The drift of n tokens on the sphere against what one would write or install instead, side by side: `make bench`.

Exponential kernel: the fused form of this library, the n x n matrix as one writes it, KeOps, and on S^2 `Harmonic`.
Each contestant is a kernel, so the same calls time one drift, the drift with its gradient, and one unit of flow.
Contestants take turns and every number is a median (slow ones: one drift, once). Ratios are to the fused form: above 1,
the fused form is faster or smaller. Errors are against float64, relative to the norm of the sum before it is projected.
CUDA events on a GPU.
"""

import argparse
import math
import shutil
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from timing import peak_bytes, seconds

import ddcl_lite as dl
from ddcl_lite.experiments.cost import exponent
from ddcl_lite.figures import COLOURS, MARKERS, subplots
from ddcl_lite.meanfield import sphere
from ddcl_lite.meanfield.kernels import Field, Kernel

BETA = 4.0
SLOW = 0.5  # seconds for one drift
PLOT = Path(__file__).parents[1] / "_build" / "meanfield.svg"


class Matrix(Kernel):
    """The n x n matrix of weights, as one writes it."""

    def field(self, tokens, labels):
        def drift(x):
            return sphere.tangent(x, torch.exp(self.beta * (x @ x.mT - 1)) @ x / len(x))

        return Field(drift, None)


class KeOps(Kernel):
    """The same sum through a compiled reduction."""

    def field(self, tokens, labels):
        import pykeops
        from pykeops.torch import LazyTensor

        pykeops.set_verbose(False)

        def drift(x):
            weights = (self.beta * ((LazyTensor(x[:, None]) | LazyTensor(x[None])) - 1)).exp()
            return sphere.tangent(x, (weights * LazyTensor(x[None])).sum(1) / len(x))

        return Field(drift, None)


def contestants(dim: int) -> dict[str, Kernel]:
    """By name; KeOps only where it and a compiler for it are."""
    kernels = {"fused": dl.Exponential(BETA), "n x n": Matrix(BETA)}
    if find_spec("pykeops") and (shutil.which("c++") or shutil.which("g++")):
        kernels["KeOps"] = KeOps(BETA)
    return kernels | ({"Harmonic": dl.Harmonic(BETA)} if dim == 3 else {})


def forward(kernel, tokens):
    with torch.no_grad():
        return kernel.drift(tokens)


def forward_backward(kernel, tokens):
    tokens = tokens.detach().requires_grad_()
    kernel.drift(tokens).square().sum().backward()
    return tokens.grad


def one_unit(kernel, tokens):
    return dl.integrate(kernel, tokens, time=1.0, step=0.25, states=2)


RUNS = {"forward": forward, "both": forward_backward, "flow": one_unit}


def exact_sum(tokens, rows=256):
    """The sum before projection at the first tokens, in float64."""
    tokens = tokens.double()
    return torch.exp(BETA * (tokens[:rows] @ tokens.mT - 1)) @ tokens / len(tokens)


def compare(count, dim, device, repeats) -> list[dict]:
    """One row per contestant at n tokens in D dimensions. Over SLOW seconds a drift, that is timed, once."""
    tokens = sphere.uniform(count, dim, seed=0, dtype=torch.float32, device=device)
    kernels = contestants(dim)
    rows = {name: dict(n=count, D=dim, contestant=name) for name in kernels}
    exact = exact_sum(tokens)
    projected = sphere.tangent(tokens[:256].double(), exact)
    for name, kernel in list(kernels.items()):  # the first call compiles what there is to compile
        try:
            error = (forward(kernel, tokens)[:256] - projected).norm() / exact.norm()
            forward_backward(kernel, tokens[: min(count, 1024)])
        except torch.cuda.OutOfMemoryError:
            del kernels[name]
            continue
        rows[name]["error"] = float(error)
    once = {name: seconds([partial(forward, kernel, tokens)], 0, device)[0] for name, kernel in kernels.items()}
    quick = [name for name in kernels if once[name] <= SLOW]
    for name in kernels.keys() - quick:
        rows[name]["forward ms"] = 1e3 * once[name]
    for column, run in RUNS.items():
        if column == "both" and count > 32768:  # the n x n form would need three matrices
            quick = [name for name in quick if name != "n x n"]
        calls = [partial(run, kernels[name], tokens) for name in quick]
        for name, time, call in zip(quick, seconds(calls, repeats, device), calls):
            rows[name][f"{column} ms"] = 1e3 * time
            if column != "flow":
                rows[name][f"{column} MiB"] = peak_bytes(call, device) / 2**20
    for row in rows.values():
        row |= {f"{column} x": row.get(f"{column} ms", math.nan) / rows["fused"][f"{column} ms"] for column in RUNS}
    return list(rows.values())


def large(device, repeats) -> None:
    """Sizes at which only O(n) is quick: the fused form once, at the smaller."""
    for count in (2**17, 10**6):
        tokens = sphere.uniform(count, 3, seed=0, dtype=torch.float32, device=device)
        call = partial(forward, dl.Harmonic(BETA), tokens)
        (time,) = seconds([call], repeats, device)
        line = f"  Harmonic, {count:,} tokens on S^2: {time:.3f} s, {peak_bytes(call, device) / 2**20:.0f} MiB"
        if count == 2**17:
            (fused,) = seconds([partial(forward, dl.Exponential(BETA), tokens)], 0, device)
            line += f"; the fused form {fused:.2f} s, {fused / time:.0f}x"
        print(line)


def plot(table: pd.DataFrame) -> None:
    fig, axes = subplots(1, 2, figsize=(8, 3.6))
    for ax, (dim, part) in zip(axes, table.groupby("D")):
        for index, (name, rows) in enumerate(part.groupby("contestant", sort=False)):
            ax.loglog(rows["n"], rows["forward ms"], MARKERS[index] + "-", color=COLOURS[index], label=name)
        ax.set(xlabel=f"tokens n, D = {dim}", ylabel="milliseconds, one drift")
        ax.legend()
    PLOT.parent.mkdir(exist_ok=True)
    fig.savefig(PLOT)
    plt.close(fig)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a minute at most: fewer and smaller sizes")
    options = parser.parse_args()
    device, repeats = options.device, options.repeats
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, float32, beta = {BETA:g}")

    sizes = [256, 1024] if options.small else [1024, 4096, 16384]
    if torch.device(device).type == "cuda" and not options.small:
        sizes += [65536, 131072]
    table = pd.DataFrame([row for dim in (3, 64) for n in sizes for row in compare(n, dim, device, repeats)])
    with pd.option_context("display.width", 220, "display.max_columns", None, "display.float_format", "{:.3g}".format):
        print(table.to_string(index=False))
    print("\nOne drift grows like")
    for (dim, name), rows in table.groupby(["D", "contestant"], sort=False):
        if len(rows) > 1:
            print(f"  D = {dim}, {name}: n^{exponent(list(rows['n'])[-2:], list(rows['forward ms'])[-2:]):.2f}")
    if not options.small:
        large(device, repeats)
    plot(table)
    print(f"\nThe plot is {PLOT}")


if __name__ == "__main__":
    main()
