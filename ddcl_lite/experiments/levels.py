"""What the levels of a hierarchy cost, what they keep of a document's variance, and how one can cheat the next."""

import time
from collections.abc import Callable, Sequence

import pandas as pd
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from ..data import load_encoder
from ..measures import min_separation
from ..prototypes.assignment import assign
from ..prototypes.hierarchy import HierarchicalReadout, Level, read
from ..prototypes.loss import decompose_by
from .cost import exponent, synchronise


def halves(document: Tensor, count: int = 6) -> list[int]:
    """The length of a document (n, D), and n/2, n/4, ...: `count` lengths, ascending."""
    return [len(document) >> power for power in reversed(range(count))]


def stored_bytes(length: int, sizes: Sequence[int], dim: int, item: int = 4) -> int:
    """Bytes that `HierarchicalReadout.forward` holds at most at one time for one document (N, D), its tokens included.

    The tokens, the scores N x K_1, the masses, and beside them first the centred tokens, then the weights by mass:
    item * N (D + K_1 + max(D, K_1) + 1). What does not grow with N is left out. Counted, not measured; no
    gradients.
    """
    return item * length * (dim + sizes[0] + max(dim, sizes[0]) + 1)


def shortest(call: Callable, device, repeats: int) -> float:
    """The shortest of `repeats` calls after one that warms up, in CPU seconds, or in seconds of the clock on a GPU.

    What else runs on a machine makes a call wait, and a long call almost surely; its CPU seconds hardly change.
    """
    clock = time.perf_counter if torch.device(device).type == "cuda" else time.process_time
    found = []
    for _ in range(repeats + 1):
        synchronise()
        start = clock()
        call()
        synchronise()
        found.append(clock() - start)
    return min(found[1:])


@torch.no_grad()
def time_of_length(
    readout: HierarchicalReadout, document: Tensor, lengths: Sequence[int], rounds: int = 8
) -> pd.DataFrame:
    """Seconds (`shortest`) of the hierarchy, of a mean, and of the encoder, for the first tokens of a document (n, D).

    On a CPU it takes one thread. The shortest of `rounds` over all lengths. The encoder is timed on 8 windows of 128
    positions, and its time grows with their number. Columns: tokens, hierarchy, mean, encoder, "MB held"
    (`stored_bytes`). `growth` reads the exponent.
    """
    encoder, device, threads = load_encoder(document.device), document.device, torch.get_num_threads()
    ids = torch.randint(1000, 30000, (8, 128), generator=torch.Generator().manual_seed(0)).to(device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    sizes, rows = [len(bank) for bank in readout.banks], {length: {"tokens": length} for length in lengths}
    torch.set_num_threads(1)  # several that wait for each other spend CPU seconds on it
    try:
        window = shortest(lambda: encoder(ids, mask), device, 2) / len(ids)
        for length, row in list(rows.items()) * rounds:
            calls = {"hierarchy": lambda z=document[:length]: readout(z), "mean": lambda z=document[:length]: z.mean(0)}
            for name, call in calls.items():
                row[name] = min(row.get(name, torch.inf), shortest(call, device, 1))
    finally:
        torch.set_num_threads(threads)
    for length, row in rows.items():
        row |= {"encoder": window * -(-length // 126), "MB held": stored_bytes(length, sizes, readout.dim) / 1e6}
    return pd.DataFrame(rows.values())


def growth(times: pd.DataFrame, last: int = 4) -> float:
    """The exponent of the hierarchy's time in the number of tokens, over the `last` lengths."""
    return exponent(times["tokens"].tolist()[-last:], times["hierarchy"].tolist()[-last:])


def variance(vectors: Tensor, mass: Tensor) -> Tensor:
    """sum_k w_k |x_k - mean|^2 by mass: (..., K, D), (..., K) -> (...)."""
    mean = (mass[..., None] * vectors).sum(-2, keepdim=True)
    return (mass * (vectors - mean).square().sum(-1)).sum(-1)


@torch.no_grad()
def account(readout: HierarchicalReadout, document: Tensor) -> pd.DataFrame:
    """Where the variance of one document (N, D) goes: a row a level, in units of the tokens' variance.

    Columns: "comes in", "kept" (variance of the level's vectors by mass), "lost" (within the shares that became one
    vector), L_q, and "off" = sum_k w_k |x_k - p_k|^2. Each is summed by its own definition, in float64.
    comes in = kept + lost, and L_q = lost + off: so the loss bounds what is lost. Stores N x K_1. Chapter 9.
    """
    vectors, mass, rows = document.double(), document.new_full((len(document),), 1 / len(document)).double(), []
    for bank, temperature in zip(readout.banks, readout.temperature):
        bank = bank.double()
        shares = assign(vectors, bank, float(temperature)) * mass[:, None]  # (N, K)
        coming, (found, weights) = variance(vectors, mass), read(vectors, mass, bank, float(temperature))
        row = {"comes in": coming, "kept": variance(found, weights)}
        row["lost"] = (shares * torch.cdist(vectors, found).square()).sum()
        row["L_q"] = (shares * torch.cdist(vectors, bank).square()).sum()
        row["off"] = (weights * (found - bank).square().sum(-1)).sum()
        rows.append(row)
        vectors, mass = found, weights
    unit = rows[0]["comes in"]
    return pd.DataFrame([{key: (value / unit).item() for key, value in row.items()} for row in rows])


@torch.no_grad()
def variance_kept(
    tokens: Sequence[Tensor], readouts: dict[str, HierarchicalReadout], size: int = 8, progress: Callable = iter
) -> pd.DataFrame:
    """Share of the tokens' variance that stays between the vectors of a code: one row a document and code.

    Codes: `size` chunk means, each level of each readout, and `size` K-means of the document's own tokens, which keep
    the most that K-means finds, and whose order means nothing from one document to the next. A mean keeps nothing.
    Columns: document, tokens, code, vectors (how many), kept. Chapter 9.
    """
    rows = []
    for index, document in enumerate(progress(tokens)):
        mass = document.new_full((len(document),), 1 / len(document))
        found = {f"{size} chunk means": chunks(document, size)}
        for name, readout in readouts.items():
            for level, made in enumerate(readout.levels(document), 1):
                found[f"{name}, level {level}"] = made.vectors, made.mass
        own = KMeans(size, n_init=1, random_state=0).fit(document.cpu().numpy())
        found[f"{size} K-means of its own"] = (
            torch.from_numpy(own.cluster_centers_).to(document),
            torch.bincount(torch.from_numpy(own.labels_), minlength=size).to(document) / len(document),
        )
        unit = variance(document, mass)
        for name, (vectors, weights) in found.items():
            kept = (variance(vectors, weights) / unit).item()
            rows.append({"document": index, "tokens": len(document), "code": name, "vectors": len(vectors)})
            rows[-1]["kept"] = kept
    return pd.DataFrame(rows)


def chunks(document: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The means of `size` consecutive equal parts (size, D), and their masses (size,)."""
    parts = document.tensor_split(size)
    lengths = torch.tensor([len(part) for part in parts], device=document.device)
    return torch.stack([part.mean(0) for part in parts]), lengths / len(document)


def train_together(
    readout: HierarchicalReadout, tokens: Tensor, weight: float, cut: bool, steps: int = 150, rate: float = 0.02
) -> pd.DataFrame:
    """Descend L_q of level 1 + `weight` * L_q of level 2 by gradients, with the loss cut between levels or not.

    tokens (B, N, D). Adam, its rate in units of the tokens' standard deviation per feature. The readout is copied, its
    q attached. Uncut, level 2 also moves the bank of level 1. One row a step and one for the end. Columns: step,
    "L_q, level 1", "L_q, level 2", "V, level 2", "kept, level 1", "kept, level 2", in units of the tokens' variance
    within documents, and "separation" of bank 1 in their standard deviations. Chapter 9.
    """
    sizes = [len(bank) for bank in readout.banks]
    model = HierarchicalReadout(readout.dim, sizes).to(tokens.device)
    model.load_state_dict(readout.state_dict())
    mass = tokens.new_full(tokens.shape[:2], 1 / tokens.shape[1])
    unit, rows = variance(tokens, mass).mean().item(), []
    optimiser = torch.optim.Adam(model.parameters(), rate * (unit / readout.dim) ** 0.5)
    for step in range(steps + 1):
        first, second = model.levels(tokens)
        parts = second.parts if cut else next_loss(first, model.banks[1], model.temperature[1])
        row = {
            "step": step,
            "L_q, level 1": first.parts.total,
            "L_q, level 2": parts.total,
            "V, level 2": parts.variance,
        }
        for number, level in enumerate((first, second), 1):
            row[f"kept, level {number}"] = variance(level.vectors, level.mass).mean()
        row = {name: value if name == "step" else value.item() / unit for name, value in row.items()}
        rows.append(row | {"separation": min_separation(model.banks[0]) / unit**0.5})
        optimiser.zero_grad()
        (first.parts.total + weight * parts.total).backward()
        optimiser.step()
    return pd.DataFrame(rows)


def next_loss(level: Level, bank: Tensor, temperature: Tensor):
    """The decomposition of a level's vectors by the next bank, by mass, as the library has it but not cut off."""

    def average(values):
        return (level.mass * values).sum(-1).mean()

    return decompose_by(average, level.vectors, bank, temperature, level.mass > 0, False)
