"""The codebooks of chapter 8 beside three of vector-quantize-pytorch, in the same autoencoder with the same budget.

VectorQuantize (moving averages, K-means start, dead codes replaced), SimVQ and FSQ (64 levels, no codebook to learn).
Each starts from the same warmed-up autoencoder and trains for the same steps; errors, in % of the pixels' variance,
and use are those of the test patches, every token replaced by its code; seconds are for training. The outside codebooks
keep their own defaults and projections, and FSQ's 64 codes live in three dimensions, so their distances do not compare.
"""

import argparse
import copy
import itertools
import time

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from vector_quantize_pytorch import FSQ, SimVQ, VectorQuantize

import ddcl_lite as dl
from ddcl_lite.experiments import codebooks

OURS = ("VQ", "VQ, EMA, revival", "soft, cooled")
OUTSIDE = {
    "VectorQuantize": lambda: VectorQuantize(
        codebooks.DIM, codebooks.NUM_CODES, decay=0.9, kmeans_init=True, threshold_ema_dead_code=2
    ),
    "SimVQ": lambda: SimVQ(codebooks.DIM, codebooks.NUM_CODES),
    "FSQ": lambda: FSQ([4, 4, 4], dim=codebooks.DIM),
}


def forward(layer: nn.Module, tokens: torch.Tensor) -> tuple:
    """Stand-ins, indices and loss, whichever of them the layer returns."""
    stand_ins, indices, *loss = layer(tokens)
    return stand_ins, indices, loss[0] if loss else tokens.new_zeros(())


def fit(name, warm, pixels, seed, rate, epochs, batch):
    """Train a copy of the autoencoder with an outside codebook, as `codebooks.fit` does with ours."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, layer = copy.deepcopy(warm), OUTSIDE[name]().to(pixels.device)
        groups = [{"params": model.parameters(), "lr": rate}]
        learned = list(layer.parameters())
        descent = torch.optim.Adam(groups + [{"params": learned, "lr": codebooks.CODES_RATE * rate}] * bool(learned))
        for _ in range(epochs):
            order = torch.randperm(len(pixels), generator=generator).to(pixels.device)
            for rows in order.split(batch):
                if len(rows) == batch:
                    x = pixels[rows]
                    stand_ins, _, loss = forward(layer, model.encode(x))
                    descent.zero_grad()
                    (F.mse_loss(model.decode(stand_ins), x) / pixels.var() + loss.sum()).backward()
                    descent.step()
    return model, layer.eval()


@torch.no_grad()
def measure(model, layer, pixels):
    stand_ins, indices, _ = forward(layer, model.encode(pixels))
    chosen = F.one_hot(indices.long(), codebooks.NUM_CODES).float()
    return {
        "usage by argmax": dl.usage(chosen),
        "perplexity / K": dl.perplexity(chosen) / codebooks.NUM_CODES,
        codebooks.ERROR: 100 * (F.mse_loss(model.decode(stand_ins), pixels) / pixels.var()).item(),
    }


def compare(pixels, test, seeds, warm_up_epochs, epochs, batch, rate=3e-3):
    """One row per codebook and seed."""
    rows = []
    for seed in seeds:
        warm = codebooks.warm_up(pixels, seed, epochs=warm_up_epochs, batch=batch)
        for name in itertools.chain(OURS, OUTSIDE):
            begin = time.perf_counter()
            if name in OURS:
                model, _ = codebooks.fit(name, warm, pixels, "data", seed, rate, epochs, batch)
                measured = codebooks.measure
                arguments = (model, test)
            else:
                measured, arguments = measure, (*fit(name, warm, pixels, seed, rate, epochs, batch), test)
            seconds = time.perf_counter() - begin
            values = measured(*arguments)
            kept = ("usage by argmax", "perplexity / K", codebooks.ERROR)
            rows.append({"codebook": name, "seed": seed, **{key: values[key] for key in kept}, "seconds": seconds})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few patches and steps, to see that it runs")
    parser.add_argument("--repeats", type=int, default=3, help="number of seeds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    pixels, test = (part.to(arguments.device) for part in codebooks.quick_images()[:2])
    budget = {"warm_up_epochs": 15, "epochs": 6, "batch": 64}
    if arguments.small:
        pixels, test, budget = pixels[:128], test[:64], {"warm_up_epochs": 1, "epochs": 1, "batch": 64}
    table = compare(pixels, test, range(arguments.repeats), **budget)
    print(f"{len(pixels)} patches, {len(test)} to test on, {arguments.repeats} seeds, {budget}, {arguments.device}")
    print("mean over the seeds, and standard deviation")
    groups = table.drop(columns="seed").groupby("codebook", sort=False)
    print(groups.mean().round(3).to_string())
    print(groups.std().round(3).to_string())
