"""Autoencoders of colour patches with a codebook in the middle: soft codes, hard codes, one budget for all.

`python -m ddcl_lite.experiments.codebooks` runs the full scale and stores its results.
"""

import copy
import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..measures import min_separation, perplexity, usage
from ..prototypes.assignment import assign
from ..prototypes.codebook import HardCodebook, SoftCodebook
from .codebook_images import full_scale_images, split
from .codebook_images import quick_images as quick_images  # for whoever imports this module
from .comparison import Comparison

NUM_CODES, DIM = 64, 16
STARTS = ("normal", "data")
WARM_UP_RATE = 1e-2
CODES_RATE = 3  # the codes' learning rate over the autoencoder's
REVIVE_EVERY, REVIVE_UNTIL = 5, 0.8  # steps, and share of the steps
ERROR = "error, % of variance"  # of the pixels, with every token replaced by its nearest code
COMPARISON = Comparison("method", ERROR, "VQ", higher_is_better=False)
FULL_SCALE = {"seeds": range(5), "starts": STARTS, "learning_rates": (1e-3, 3e-3)}
FULL_SCALE |= {"hidden": 24, "batch": 32, "warm_up_epochs": 6, "epochs": 6}


class Method(NamedTuple):
    """A codebook and how it is trained.

    codebook: (dim, num_codes) -> module. weight: of its loss per feature, beside the reconstruction error in units of
    the pixels' variance. ratios: of a soft codebook, T/T_c of each batch at the start and when cooling ends.
    finish: share of the steps, at the end, in which the nearest code stands in and T stays. revive: dead codes move.
    """

    codebook: Callable[[int, int], nn.Module]
    weight: float = 1.0
    ratios: tuple[float, float] | None = None
    finish: float = 0.0
    revive: bool = False


_ema = partial(HardCodebook, decay=0.9)
METHODS = {
    "VQ": Method(HardCodebook),
    "VQ, EMA": Method(_ema),
    "VQ, EMA, revival": Method(_ema, revive=True),
    "soft, fixed T": Method(SoftCodebook, ratios=(0.01, 0.01)),
    "soft, cooled": Method(SoftCodebook, ratios=(0.03, 0.003)),
    "soft, cooled, hard finish": Method(SoftCodebook, ratios=(0.03, 0.003), finish=1 / 3),
    "soft, from 0.9 T_c, hard finish": Method(SoftCodebook, ratios=(0.9, 0.003), finish=1 / 3),
}


class Autoencoder(nn.Module):
    """Colour patches (B, 3, S, S) to tokens (B, N, D), one for every 4 x 4 pixels, and back.

    Each token is normalised to mean 0 and variance 1 over its features, with nothing learned: the scale is fixed.
    """

    def __init__(self, dim: int = DIM, hidden: int = 16):
        super().__init__()
        self.down, self.encoder = nn.Conv2d(3, hidden, 4, 4), nn.Conv2d(hidden, hidden, 3, padding=1)
        self.to_tokens, self.from_tokens = nn.Conv2d(hidden, dim, 1), nn.Conv2d(dim, hidden, 1)
        self.decoder, self.up = nn.Conv2d(hidden, hidden, 3, padding=1), nn.ConvTranspose2d(hidden, 3, 4, 4)

    def encode(self, pixels: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, N, D)."""
        hidden = self.down(pixels - 0.5)
        hidden = hidden + self.encoder(F.relu(hidden))
        tokens = self.to_tokens(F.relu(hidden)).flatten(2).mT
        return F.layer_norm(tokens, tokens.shape[-1:])

    def decode(self, tokens: Tensor) -> Tensor:
        """(B, N, D) -> (B, 3, S, S)."""
        side = math.isqrt(tokens.shape[1])
        hidden = self.from_tokens(tokens.mT.unflatten(2, (side, side)))
        hidden = F.relu(hidden + self.decoder(F.relu(hidden)))
        kernel = self.up.weight.flatten(1).T[:, :, None, None]  # self.up(hidden), and faster: its blocks do not overlap
        return F.pixel_shuffle(F.conv2d(hidden, kernel), 4) + self.up.bias.view(3, 1, 1) + 0.5


class CodedAutoencoder(nn.Module):
    """An autoencoder with a codebook between encoder and decoder."""

    def __init__(self, autoencoder: Autoencoder, codebook: nn.Module):
        super().__init__()
        self.autoencoder, self.codebook = autoencoder, codebook

    def reconstruct(self, pixels: Tensor, hard: bool = True) -> Tensor:
        """Every token by its nearest code, or with hard=False by what `forward` of an unhardened codebook gives."""
        book, weights = self.codebook, self.weights(self.autoencoder.encode(pixels))
        return self.autoencoder.decode(book.decode(weights.argmax(-1) if hard else weights))

    def weights(self, tokens: Tensor) -> Tensor:
        """q of tokens (..., N, D): the soft weights, whether hard or not, or 1 at the nearest code: (..., N, K)."""
        book = self.codebook
        if isinstance(book, SoftCodebook):
            return assign(tokens, book.codes, book.temperature)
        return F.one_hot(book.encode(tokens), len(book.codes)).to(tokens.dtype)


def _batches(pixels: Tensor, size: int, epochs: int, generator: torch.Generator):
    """(epoch, batch) for every full batch of every epoch, in an order drawn on the CPU."""
    for epoch in range(epochs):
        rows = torch.randperm(len(pixels), generator=generator).to(pixels.device)
        for batch in rows.split(size):
            if len(batch) == min(size, len(pixels)):
                yield epoch, pixels[batch]


def warm_up(pixels: Tensor, seed: int = 0, hidden: int = 16, epochs: int = 15, batch: int = 64) -> Autoencoder:
    """An autoencoder trained without a codebook on pixels (n, 3, S, S): where every method starts."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Autoencoder(hidden=hidden).to(pixels.device)
    descent, unit = torch.optim.Adam(model.parameters(), WARM_UP_RATE, fused=True), pixels.var()
    for _, x in _batches(pixels, batch, epochs, generator):
        descent.zero_grad()
        (F.mse_loss(model.decode(model.encode(x)), x) / unit).backward()
        descent.step()
    return model


@torch.no_grad()
def measure(model: CodedAutoencoder, pixels: Tensor) -> dict[str, float]:
    """All measures on pixels (n, 3, S, S): use in three senses, the smallest distance, and both errors."""
    tokens, book = model.autoencoder.encode(pixels), model.codebook
    weights, unit = model.weights(tokens), pixels.var()
    decodings = [weights.argmax(-1)] + [weights] * isinstance(book, SoftCodebook)
    errors = [F.mse_loss(model.autoencoder.decode(book.decode(codes)), pixels) / unit for codes in decodings]
    hard, soft = 100 * errors[0].item(), 100 * errors[-1].item()
    return {
        "usage by q > 0": usage(weights, hard=False),
        "usage by argmax": usage(weights),
        "perplexity / K": perplexity(weights) / len(book.codes),
        "separation, token sd": min_separation(book.codes, tokens),
        ERROR: hard,
        "soft-decoded error": soft,
        "soft-to-hard gap": hard - soft,
    }


def fit(
    method: str | Method,
    autoencoder: Autoencoder,
    pixels: Tensor,
    start: str = "data",
    seed: int = 0,
    rate: float = 3e-3,
    epochs: int = 6,
    batch: int = 64,
    test: Tensor | None = None,
    path: bool = True,
) -> tuple[CodedAutoencoder, pd.DataFrame]:
    """Train a copy of the autoencoder with a codebook: reconstruction error / pixel variance + weight * loss / D.

    start: "normal", codes with independent normal entries and norms near 1, or "data", on encoded tokens. Adam; a soft
    codebook takes its temperature from every batch. `measure` is called on `test` after the last step and, with `path`,
    before the first and after epochs 1, 3, 6, 9, ...: one row each. Raises ValueError for an unknown method or start.
    """
    if isinstance(method, str) and method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if start not in STARTS:
        raise ValueError(f"start: expected one of {', '.join(STARTS)}, got {start!r}")
    method = METHODS[method] if isinstance(method, str) else method
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        book = method.codebook(DIM, NUM_CODES)
    model = CodedAutoencoder(copy.deepcopy(autoencoder), book).to(pixels.device)
    encode, decode, unit = model.autoencoder.encode, model.autoencoder.decode, pixels.var()
    with torch.no_grad():
        sample = encode(pixels[torch.randperm(len(pixels), generator=generator)[:512].to(pixels.device)])
    if start == "data":
        book.start(sample, generator=generator)
    if method.ratios:
        book.anneal(sample, method.ratios[0])
    groups = [{"params": model.autoencoder.parameters(), "lr": rate}]
    learned = [p for p in book.parameters() if p.requires_grad]
    descent = torch.optim.Adam(groups + [{"params": learned, "lr": CODES_RATE * rate}] * bool(learned), fused=True)
    steps, rows, last = epochs * max(1, len(pixels) // batch), [], -1
    for step, (epoch, x) in enumerate(_batches(pixels, batch, epochs, generator)):
        if path and test is not None and epoch != last and (epoch == 1 or epoch % 3 == 0):
            rows.append({"epoch": epoch, **measure(model, test)})
        last, tokens = epoch, encode(x)
        if method.ratios:
            book.hard = step >= (1 - method.finish) * steps
            hot, cold = method.ratios
            cooled = min(1.0, step / max(1, (1 - method.finish) * steps - 1))
            book.anneal(tokens.detach(), hot * (cold / hot) ** cooled)
        coded = book(tokens)
        loss = F.mse_loss(decode(coded.tokens), x) / unit + method.weight * coded.loss / DIM
        descent.zero_grad()
        loss.backward()
        descent.step()
        if isinstance(book, HardCodebook) and book.decay:
            book.update(tokens.detach())
        if method.revive and step % REVIVE_EVERY == REVIVE_EVERY - 1 and step < REVIVE_UNTIL * steps:
            book.revive(tokens.detach(), generator=generator)
    if test is not None:
        rows.append({"epoch": epochs, **measure(model, test)})
    return model, pd.DataFrame(rows)


def compare_codebooks(
    pixels: Tensor,
    test: Tensor,
    seeds: Sequence[int] = range(3),
    starts: Sequence[str] = ("data",),
    methods: Sequence[str] = tuple(METHODS),
    hidden: int = 16,
    batch: int = 64,
    warm_up_epochs: int = 15,
    epochs: int = 6,
    learning_rates: Sequence[float] = (3e-3,),
    warmed: dict[int, Autoencoder] | None = None,
    paths: Sequence[int] | None = None,
    models: dict[tuple, CodedAutoencoder] | None = None,
    progress: Callable = iter,
) -> pd.DataFrame:
    """Every method from every start with every seed: one row a run and recorded epoch, measured on `test`.

    One rule for all: the same warmed-up autoencoder for all methods of a seed, the same batches and number of steps.
    Of several learning rates, the one with the lowest error on validation patches, a seventh of the training patches
    held out, is kept for a method and a start; the first seed decides. Test patches decide nothing.
    `warmed` are autoencoders by seed, to save their warm-up: `warm_up(pixels, seed, hidden, warm_up_epochs, batch)`.
    Seeds outside `paths` record the last epoch only. `models`, a dict, receives the trained by (method, start, seed).
    The methods are those of this module; the comparison is ours; chapter 8.
    """
    inner, held_out = split(pixels) if len(learning_rates) > 1 else (pixels, None)
    warm, chosen, tables = dict(warmed or {}), {}, []
    for seed, start, name in progress(list(itertools.product(seeds, starts, methods))):
        if seed not in warm:
            warm[seed] = warm_up(inner, seed, hidden, warm_up_epochs, batch)
        runs = {}
        for rate in chosen.get((name, start), learning_rates):
            begin, path = time.perf_counter(), paths is None or seed in paths
            model, table = fit(name, warm[seed], inner, start, seed, rate, epochs, batch, test, path)
            columns = {"method": name, "start": start, "seed": seed, "learning rate": rate}
            table = table.assign(**columns, seconds=time.perf_counter() - begin)
            runs[0.0 if held_out is None else measure(model, held_out)[ERROR]] = (rate, table, model)
        rate, table, model = runs[min(runs)]
        chosen[name, start] = [rate]
        if models is not None:
            models[name, start, seed] = model
        tables.append(table)
    table = pd.concat(tables, ignore_index=True)
    return table[["method", "start", "seed", *table.columns.drop(["method", "start", "seed"])]]


def final(table: pd.DataFrame, start: str) -> pd.DataFrame:
    """The rows of the last epoch from one start: what `COMPARISON` reads."""
    return table[(table["start"] == start) & (table["epoch"] == table["epoch"].max())].reset_index(drop=True)


def overview(table: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds at the last epoch, one row for each start and method, in the table's order."""
    last = table[table["epoch"] == table["epoch"].max()].drop(columns=["seed", "epoch", "learning rate"])
    return last.groupby(["start", "method"], sort=False).mean()


def goal(models: dict[tuple, CodedAutoencoder], images: dict[str, Tensor]) -> pd.DataFrame:
    """The goal of chapter 8, for models by (method, start, seed) and images by name: means over the seeds. Usage by
    argmax of 0.95, a perplexity of 0.6 K, and an error at most 1.1 times that of the best hard codebook among models
    with the same start and seed: "seeds" counts those at which all three parts are met.
    """
    keys, tables = ["method", "start", "seed"], []
    for name, pixels in images.items():
        table = pd.DataFrame([dict(zip(keys, key)) | measure(model, pixels) for key, model in models.items()])
        hard = table[[isinstance(model.codebook, HardCodebook) for model in models.values()]]
        best = hard.groupby(["start", "seed"])[ERROR].min().rename("best")
        table["error / best hard"] = table[ERROR] / table.join(best, on=["start", "seed"])["best"]
        met = (
            (table["usage by argmax"] >= 0.95) & (table["perplexity / K"] >= 0.6) & (table["error / best hard"] <= 1.1)
        )
        tables.append(table.assign(images=name, seeds=met.astype(int)))
    kinds = {"usage by argmax": "mean", "perplexity / K": "mean", "error / best hard": "mean", "seeds": "sum"}
    return pd.concat(tables).groupby(["images", "start", "method"], sort=False).agg(kinds)


if __name__ == "__main__":
    from ..notebook import progress, setup
    from .results import store

    device = setup(0, "full")
    pixels, test, images = full_scale_images()
    table = compare_codebooks(pixels.to(device), test.to(device), progress=progress("training"), **FULL_SCALE)
    settings = {"images": images, "training": len(pixels), "test": len(test), **FULL_SCALE, "seeds": 5}
    print(store("codebooks", table, settings, device, f"python -m {__spec__.name}"))
