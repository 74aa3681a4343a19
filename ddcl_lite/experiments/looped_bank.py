"""Looped layers near consensus: what theory predicts there, labels that are injected again, and a bank that reads.

`python -m ddcl_lite.experiments.looped_bank` runs the full scale.
"""

import copy
from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from ..data import load_encoder
from ..measures import cluster_count, perplexity, spread, usage, within_label_variance
from ..prototypes.assignment import assign
from ..prototypes.loss import critical_temperature
from ..prototypes.training import draw_prototypes, em_step
from .looped import MOVING, Sentences, after_attention, keeper, length, loop, path, relative_spread, sentences, summary

KINDS = ("positions", "input", "random", "threes")
ALPHAS = (0.1, 0.5)
SHRINKS = (0.01, 0.1, 0.3, 1.0)


class Consensus(NamedTuple):
    """Tokens looped alone: points (S, D) at the end, their motion (S,), and the growth a loop of differences (S,)."""

    points: Tensor
    motion: Tensor
    growth: Tensor


@torch.no_grad()
def consensus(layer, starts: Tensor, loops: int = 300, window: int = 100, apart: float = 0.0) -> Consensus:
    """Loop S tokens (S, D), each alone; measure how much tokens that nearly agree there differ after one loop more.

    A sentence of equal tokens c is one token, and to first order the differences of tokens near c are multiplied by
    J(c) = D norm2 (I + D mlp) D norm1, where no query and no key enters; values only through where it is taken. The
    growth is the geometric mean of |J v|/|v| along the orbit over the last `window` loops, v carried along. Below 1:
    small differences die out along this orbit, in the end. If `apart` is not 0, no J: three tokens that far apart, over
    their length, go through the whole layer, and their differences are brought back to that size after each loop.
    Source: ours; chapter 17.
    """
    x, total = starts[:, None], 0.0
    v = torch.randn(len(x), 3 if apart else 1, x.shape[-1], generator=torch.Generator().manual_seed(0)).to(x)
    for index in range(loops):
        if apart:
            unit = apart * x.norm(dim=-1, keepdim=True)
            tokens = layer(x + unit * (v - v.mean(1, keepdim=True)))
            after = tokens.mean(1, keepdim=True)
            v = (tokens - after) / unit
        else:
            after, v = times_jacobian(layer, x, v)
        size = v.norm(dim=(1, 2), keepdim=True)
        v = v / size
        if index >= loops - window:
            total = total + size.log()
        motion = (after - x).norm(dim=-1) / x.norm(dim=-1)
        x = after
    return Consensus(x[:, 0], motion[:, 0], (total / window).exp()[:, 0, 0])


def times_jacobian(layer, point: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The layer at tokens that each are alone (S, 1, D), and J(c) v there: what it makes of differences v (S, m, D)."""
    attended = layer.attention(point)
    return torch.func.jvp(lambda x: after_attention(layer, x, attended), (point.expand_as(v).clone(),), (v,))


@torch.no_grad()
def jacobian(layer, point: Tensor, shared: bool = False) -> Tensor:
    """J(c) (D, D) at a consensus point c (D,), see `consensus`; if shared, DL(c), of the layer on one token."""
    eye = torch.eye(len(point), dtype=point.dtype, device=point.device)
    J = times_jacobian(layer, point[None, None], eye[None])[1][0].T
    alone = eye[:, None]  # on one token attention is affine, x -> W x + b
    return J + J @ (layer.attention(alone) - layer.attention(0 * alone))[:, 0].T if shared else J


def growth_check(model, chosen: Sentences, starts: int = 6, loops: int = 200, layers=range(6)) -> pd.DataFrame:
    """Growth in float64, from `starts` word pieces: predicted by J, and measured on three tokens 1e-9 apart.

    Columns: layer, start, measured, predicted (see `consensus`).
    """
    rows = []
    for index in layers:
        layer, x = copy.deepcopy(model.layers[index]).double(), chosen.first(starts).states[index][:, 1].double()
        each = [consensus(layer, x, loops, loops // 2, apart).growth.tolist() for apart in (1e-9, 0.0)]
        rows += [{"layer": index, "start": i, "measured": m, "predicted": p} for i, (m, p) in enumerate(zip(*each))]
    return pd.DataFrame(rows)


@torch.no_grad()
def response(layer, point: Tensor, labels: Tensor) -> Tensor:
    """What labels (n, D) of mean 0, added before each pass, make of consensus at a point at rest (D,): (n, D).

    delta = J (delta + labels), so delta = (I - J)^-1 J labels: to first order the content is a linear function of the
    label, the same for all sentences at this consensus. Source: ours; chapter 17.
    """
    J = jacobian(layer, point)
    return torch.linalg.solve(torch.eye(len(J), dtype=J.dtype, device=J.device) - J, J @ labels.mT).mT


def random_labels(count: int, dim: int, seed: int = 0) -> Tensor:
    """Labels (count, D) of mean 0 and rms length 1, drawn on the CPU."""
    values = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))
    values = values - values.mean(0)
    return values / values.square().sum(-1).mean().sqrt()


def near_consensus(model, chosen: Sentences, starts=32, loops=300, alpha=0.01, seed=0, layers=range(6), progress=iter):
    """Theory beside measurement at consensus, a row a layer, from one word piece of each of `starts` sentences.

    points: different ones reached (`cluster_count`); moving: starts whose point still moves; growth: least and largest;
    response: size of the content over that of the labels, predicted, for twelve labels of size alpha at the first point
    at rest; error: by how much the looped layer misses the prediction, over its size; radius: of DL there.
    """
    rows = []
    for index in progress(layers):
        layer = model.layers[index]
        found = consensus(layer, chosen.first(starts).states[index][:, 1], loops, loops // 3)
        row = {"layer": index, "points": cluster_count(found.points), "starts": starts}
        row |= {"moving": int((found.motion > MOVING).sum())}
        row |= {"least growth": found.growth.min().item(), "largest growth": found.growth.max().item()}
        row |= dict.fromkeys(("radius", "response", "error"), float("nan"))  # of no point at rest
        still = (found.motion < 1e-5).nonzero()
        if len(still):
            point = found.points[still[0, 0]]
            labels = alpha * point.norm() * random_labels(12, len(point), seed).to(point)
            predicted = response(layer, point, labels)
            mask = torch.ones(1, 12, dtype=torch.bool, device=point.device)
            *_, end = loop(layer, point.expand(1, 12, -1), mask, loops, labels=labels[None])
            content = end[0] - end[0].mean(0)
            row["radius"] = torch.linalg.eigvals(jacobian(layer, point, shared=True)).abs().max().item()
            row["response"] = (predicted.norm() / labels.norm()).item()
            row["error"] = ((content - predicted).norm() / content.norm()).item()
        rows.append(row)
    return pd.DataFrame(rows)


@torch.no_grad()
def shrinking(model, chosen: Sentences, layers=(0, 4, 5), loops: int = 100) -> pd.DataFrame:
    """Real sentences on their way to a point: by which factor a loop their spread falls, and what theory says.

    Columns: layer, sentence, measured (geometric mean between relative spreads of 1e-3 and 1e-5), predicted (growth at
    the sentence's own last state). Only sentences that get there.
    """
    rows = []
    for index in layers:
        spreads = []
        for state in loop(model.layers[index], chosen.states[index], chosen.mask, loops):
            spreads.append(relative_spread(state, chosen.mask))
        spreads = torch.stack(spreads)  # (loops + 1, B)
        growth = consensus(model.layers[index], state[:, 0], 60, 40).growth
        for sentence, values in enumerate(spreads.T):
            late = values[(values < 1e-3) & (values > 1e-5)]
            if values[-1] < 1e-5 and len(late) > 2:
                measured = (late[-1] / late[0]).item() ** (1 / (len(late) - 1))
                row = {"layer": index, "sentence": sentence, "measured": measured}
                rows.append(row | {"predicted": growth[sentence].item()})
    return pd.DataFrame(rows)


@torch.no_grad()
def basin(model, chosen: Sentences, shrinks=SHRINKS, loops: int = 60, layers=range(6), progress=iter) -> pd.DataFrame:
    """How near consensus must a sentence start? Columns layer, shrink, point: sentences that reach a point.

    The differences of a sentence's tokens from their mean are multiplied by `shrink` first; 1 is the sentence itself.
    Reached: a relative spread below .01 after the last loop.
    """
    rows = []
    for index in progress(layers):
        x, mask = chosen.states[index], chosen.mask
        mean = (x * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
        for shrink in shrinks:
            *_, end = loop(model.layers[index], mean + shrink * (x - mean), mask, loops)
            point = int((relative_spread(end, mask) < 0.01).sum())
            rows.append({"layer": index, "shrink": shrink, "point": point, "sentences": len(x)})
    return pd.DataFrame(rows)


def make_labels(model, chosen: Sentences, kind: str, seed: int = 0) -> Tensor:
    """Labels (B, N, D), in each sentence of mean 0 and rms length 1 (0 if it has one label only).

    positions: the encoder's own, added at each pass as in a Universal Transformer; input: the embeddings; random: one
    vector a place, drawn once; threes: one for each three neighbours. Raises ValueError for another kind.
    """
    count, dim = chosen.mask.shape[1], chosen.states[0].shape[-1]
    drawn = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)).to(chosen.states[0])
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    values = {
        "positions": model.positions.weight[:count],
        "input": chosen.states[0],
        "random": drawn,
        "threes": drawn[torch.arange(count, device=drawn.device) // 3],
    }[kind].expand_as(chosen.states[0])
    real = chosen.mask[..., None]
    values = (values - (values * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)) * real
    return values / length(values, chosen.mask).clamp_min(1e-12)[:, None, None]


def inject(model, chosen: Sentences, kinds=KINDS, alphas=ALPHAS, loops=30, layers=range(6), seed=0, progress=iter):
    """x <- layer(x + alpha |x_0| label), `loops` times, |x_0| the rms length at the start: a row a sentence.

    Columns: layer, kind, alpha, those of `path`, and within: the share of the tokens' variance that is left among
    tokens with the same label (only for threes; small: tokens are a function of the label; alpha = 0: the baseline).
    """
    frames, threes = [], torch.arange(chosen.mask.shape[1], device=chosen.mask.device) // 3
    for index in progress(layers):
        x, mask = chosen.states[index], chosen.mask
        for kind in kinds:
            labels = make_labels(model, chosen, kind, seed) * length(x, mask)[:, None, None]
            for alpha in alphas:
                table, end = path(model.layers[index], x, mask, [loops], labels=alpha * labels)
                if kind == "threes":
                    tokens = [z[real] for z, real in zip(end, mask)]
                    table["within"] = [within_label_variance(z, threes[: len(z)]) / spread(z) ** 2 for z in tokens]
                frames.append(table.assign(layer=index, kind=kind, alpha=alpha))
    return pd.concat(frames, ignore_index=True)


def read_loops(layer, x: Tensor, mask: Tensor, loops: Iterable[int], labels=0.0, ratio: float = 0.2, seed: int = 0):
    """Prototypes beside tokens that are looped: a row for each of `loops`; temperatures are fixed at the first.

    One bank of 16 for all sentences, settled at T = ratio T_c of all tokens at the start, and then held; beside it one
    drawn and settled anew at each of the loops, same T. And a bank of 4 for each sentence alone, T = ratio T_c of that
    sentence at the start, settled anew, too. (T_c = 2 lambda_max: EM has q detached.) Columns: loop; all: T_c (over
    that of the start), usage, perplexity by argmax, held and settled; one: T_c, share above (of sentences whose T
    exceeds their T_c), spread (of the bank, over the tokens' standard deviation at the start), usage by argmax: medians
    over the sentences.
    """
    rows, loops = [], sorted(loops)
    cooled, frozen = ratio * _critical(x[mask]), None
    for index, state in enumerate(loop(layer, x, mask, loops[-1], labels=labels)):
        if index not in loops:
            continue
        tokens, each = state[mask], [z[real] for z, real in zip(state, mask)]
        if frozen is None:
            frozen = _settle(tokens, 16, cooled, seed)
            alone = [ratio * _critical(z) for z in each]
            units = [spread(z) for z in each]
        row = {"loop": index, "all: T_c": ratio * _critical(tokens) / cooled}
        for name, bank in (("", frozen), ("settled ", _settle(tokens, 16, cooled, seed))):
            weights = assign(tokens, bank, cooled)
            row |= {f"all: {name}usage": usage(weights), f"all: {name}perplexity": perplexity(weights)}
        banks = [_settle(z, 4, T, seed) for z, T in zip(each, alone)]
        single = {
            "T_c": [ratio * _critical(z) / T for z, T in zip(each, alone)],
            "spread": [spread(bank) / unit for bank, unit in zip(banks, units)],
            "usage": [usage(assign(z, bank, T)) for z, bank, T in zip(each, banks, alone)],
        }
        row |= {f"one: {name}": float(torch.tensor(values).median()) for name, values in single.items()}
        above = [value < ratio for value in single["T_c"]]
        rows.append(row | {"one: share above": sum(above) / len(above)})
    return pd.DataFrame(rows)


def _critical(tokens: Tensor) -> float:
    return float(critical_temperature(tokens, detach_assignment=True))


def _settle(tokens: Tensor, codes: int, temperature: float, seed: int, rounds: int = 60) -> Tensor:
    """A bank drawn from the tokens and settled by EM."""
    bank = draw_prototypes(tokens, codes, generator=torch.Generator().manual_seed(seed))
    for _ in range(rounds):
        bank = em_step(tokens, bank, temperature)
    return bank


def read_layers(model, chosen, loops, alphas=(0.0, 0.5), kind="random", layers=range(6), seed=0, progress=iter):
    """`read_loops` for each layer, without and with labels: the same columns, and layer, alpha."""
    frames = []
    for index in progress(layers):
        x = chosen.states[index]
        labels = make_labels(model, chosen, kind, seed) * length(x, chosen.mask)[:, None, None]
        for alpha in alphas:
            added = alpha * labels if alpha else 0.0
            table = read_loops(model.layers[index], x, chosen.mask, loops, added, seed=seed)
            frames.append(table.assign(layer=index, alpha=alpha))
    return pd.concat(frames, ignore_index=True)


def main():
    model = load_encoder("cuda" if torch.cuda.is_available() else "cpu")
    chosen = sentences(model)
    keep = keeper(chosen, "python -m ddcl_lite.experiments.looped_bank")
    keep("looped_consensus", near_consensus(model, chosen, starts=96), starts="96 word pieces")
    few = chosen.first(24)
    keep("looped_read", read_layers(model, few, (0, 1, 3, 10, 30, 100), progress=tqdm), used=24, ratio=0.2)
    keep("looped_shrinking", shrinking(model, few), used=24)
    keep("looped_basin", basin(model, few, progress=tqdm), loops=60, used=24)
    keep("looped_growth", growth_check(model, chosen), starts="6 word pieces", precision="float64")
    runs = [inject(model, chosen, progress=tqdm), inject(model, chosen, ["threes"], [0.0], progress=tqdm)]
    columns = ["spread", "cosine", "clusters", "motion", "within"]
    keep("looped_labels", summary(pd.concat(runs), ["layer", "kind", "alpha"], columns), loops=30)


if __name__ == "__main__":
    main()
