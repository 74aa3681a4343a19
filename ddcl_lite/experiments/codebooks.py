"""Autoencoders of colour patches with a codebook in the middle: soft codes, hard codes, one budget for all.

`python -m ddcl_lite.experiments.codebooks` runs the full scale and stores its results.
"""

import copy
import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import patches
from ..measures import min_separation, perplexity, usage
from ..prototypes.assignment import assign
from ..prototypes.codebook import HardCodebook, SoftCodebook
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
        return self.up(F.relu(hidden + self.decoder(F.relu(hidden)))) + 0.5


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
    descent, unit = torch.optim.Adam(model.parameters(), WARM_UP_RATE), pixels.var()
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
) -> tuple[CodedAutoencoder, pd.DataFrame]:
    """Train a copy of the autoencoder with a codebook: reconstruction error / pixel variance + weight * loss / D.

    start: "normal", codes with independent normal entries and norms near 1, or "data", on encoded tokens. Adam; a soft
    codebook takes its temperature from every batch. With `test`, `measure` is called on it before the first step and
    after epochs 1, 3, 6, 9, ... and the last one: the table has one row for each. Raises ValueError for an unknown
    method or start.
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
    descent = torch.optim.Adam(groups + [{"params": learned, "lr": CODES_RATE * rate}] * bool(learned))
    steps, rows, last = epochs * max(1, len(pixels) // batch), [], -1
    for step, (epoch, x) in enumerate(_batches(pixels, batch, epochs, generator)):
        if test is not None and epoch != last and (epoch == 1 or epoch % 3 == 0):
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
    progress: Callable = iter,
) -> pd.DataFrame:
    """Every method from every start with every seed: one row a run and recorded epoch, measured on `test`.

    One rule for all: the same warmed-up autoencoder for all methods of a seed, the same batches and number of steps.
    Of several learning rates, the one with the lowest error on validation patches, a seventh of the training patches
    held out, is kept for a method and a start; the first seed decides. Test patches decide nothing.
    `warmed` are autoencoders by seed, to save their warm-up: `warm_up(pixels, seed, hidden, warm_up_epochs, batch)`.
    The methods are those of this module; the comparison is ours; chapter 8.
    """
    inner, held_out = pixels, None
    if len(learning_rates) > 1:
        rows = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0)).to(pixels.device)
        held_out, inner = (pixels[part] for part in rows.split([len(rows) // 7, len(rows) - len(rows) // 7]))
    warm, chosen, tables = dict(warmed or {}), {}, []
    for seed, start, name in progress(list(itertools.product(seeds, starts, methods))):
        if seed not in warm:
            warm[seed] = warm_up(inner, seed, hidden, warm_up_epochs, batch)
        runs = {}
        for rate in chosen.get((name, start), learning_rates):
            begin = time.perf_counter()
            model, table = fit(name, warm[seed], inner, start, seed, rate, epochs, batch, test)
            columns = {"method": name, "start": start, "seed": seed, "learning rate": rate}
            table = table.assign(**columns, seconds=time.perf_counter() - begin)
            runs[0.0 if held_out is None else measure(model, held_out)[ERROR]] = (rate, table)
        rate, table = runs[min(runs)]
        chosen[name, start] = [rate]
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


def quick_images() -> tuple[Tensor, Tensor]:
    """Pixels to train on and to test on: 1,024 each of the photographs' 16 x 16 patches, drawn once for all seeds."""
    draw = torch.Generator().manual_seed(0)
    parts = (patches(16, split=split).pixels for split in ("train", "test"))
    return tuple(pixels[torch.randperm(len(pixels), generator=draw)[:1024]] for pixels in parts)


def full_scale_images(folder: str = "~/.cache/ddcl_lite/cifar10", count: int = 10_000) -> tuple[Tensor, Tensor, str]:
    """Pixels to train on and to test on, and their name: CIFAR-10 where torchvision is installed and the images can be
    had, of which `count` and a fifth as many are drawn; else every 32 x 32 patch of the photographs."""
    try:
        from torchvision.datasets import CIFAR10  # only here: no dependency of this library

        sets = [CIFAR10(Path(folder).expanduser(), train, download=True).data for train in (True, False)]
    except (ImportError, OSError, RuntimeError):  # not installed; no network; a broken file
        return patches(32).pixels, patches(32, split="test").pixels, "photographs, 32 x 32"
    generator, parts = torch.Generator().manual_seed(0), []
    for data, number in zip(sets, (count, count // 5)):
        rows = torch.randperm(len(data), generator=generator)[:number]
        parts.append(torch.from_numpy(data)[rows].permute(0, 3, 1, 2).float() / 255)
    return *parts, f"CIFAR-10, {count} of the training images"


if __name__ == "__main__":
    from ..notebook import progress, setup
    from .results import store

    device = setup(0, "full")
    pixels, test, images = full_scale_images()
    table = compare_codebooks(pixels.to(device), test.to(device), progress=progress("training"), **FULL_SCALE)
    settings = {"images": images, "training": len(pixels), "test": len(test), **FULL_SCALE, "seeds": 5}
    print(store("codebooks", table, settings, device, f"python -m {__spec__.name}"))
