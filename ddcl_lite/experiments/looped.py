"""One layer of a real transformer applied to a sentence again and again: where its tokens end, and what theory says.

`python -m ddcl_lite.experiments.looped` runs the full scale: 216 sentences, all six layers, 300 loops.
"""

import copy
import math
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from ..data import load_encoder, sentiment, tokenize
from ..measures import cluster_count, effective_rank, mean_cosine
from .results import store

CLASSES = (4, 10, 16, 24, 34, 46, 81)  # sentence lengths in word pieces, [CLS] and [SEP] included: six classes
LOOPS = (0, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300)
ANGLE = 0.1  # radians: closer tokens share a cluster
MOVING = 1e-3  # moved by one loop, over the tokens' length: above, a sentence is not at rest
REST, POINT = 1e-6, 1e-5  # below: the state is kept as it is; the sentence goes on as one token


class Variant(NamedTuple):
    """What is left of a layer: y = norm1([x +] attention(x)), then norm2([y +] mlp(y)); [ ] if `residual`."""

    residual: bool = True
    mlp: bool = True


VARIANTS = {
    "full": Variant(),
    "no MLP": Variant(mlp=False),
    "no residual": Variant(residual=False),
    "attention alone": Variant(False, False),
}


class Sentences(NamedTuple):
    """B sentences, shortest first. ids (B, N) int64, mask (B, N), states: what each of the 6 layers sees, and the end.

    states[l] (B, N, 384) is the input of layer l in the trained stack: states[0] are the embeddings, states[6] the
    output of the last layer.
    """

    ids: Tensor
    mask: Tensor
    states: list

    def bare(self) -> "Sentences":
        """The same without [CLS] and [SEP], the first and the last token of each."""
        keep = self.mask[:, 2:]
        return Sentences(self.ids[:, 1:-1] * keep, keep, [x[:, 1:-1] for x in self.states])

    def first(self, count: int) -> "Sentences":
        """`count` of them, of all lengths."""
        rows = torch.linspace(0, len(self.mask) - 1, count).long().to(self.mask.device)
        return Sentences(self.ids[rows], self.mask[rows], [x[rows] for x in self.states])


def sentences(model, count: int = 216, seed: int = 0, pool: int = 4000) -> Sentences:
    """Draw `count` film-review snippets, as many from each of the six length `CLASSES`, from `pool` random ones.

    Raises ValueError unless count is a positive multiple of 6 and the pool holds enough of each class.
    """
    if count < 6 or count % 6:
        raise ValueError(f"count: expected a positive multiple of 6, got {count}")
    device = model.words.weight.device
    ids, mask = tokenize(list(dict.fromkeys(sentiment(pool, seed).texts)), max_tokens=128)
    lengths, rows = mask.sum(1), []
    for low, high in zip(CLASSES, CLASSES[1:]):
        found = ((lengths >= low) & (lengths < high)).nonzero()[: count // 6, 0]  # the pool is in random order
        if len(found) < count // 6:
            raise ValueError(f"pool: {pool} snippets hold {len(found)} of {low} to {high - 1} pieces, not {count // 6}")
        rows.append(found)
    rows = torch.cat(rows)
    rows = rows[lengths[rows].argsort(stable=True)]
    ids, mask = (part[rows, : lengths[rows].max()].to(device) for part in (ids, mask))
    with torch.no_grad():
        return Sentences(ids, mask, model(ids, mask))


def step(layer, x: Tensor, mask: Tensor | None = None, variant: Variant = VARIANTS["full"]) -> Tensor:
    """One pass (..., N, D) -> (..., N, D) through what the variant leaves of the layer."""
    return after_attention(layer, x, layer.attention(x, mask), variant)


def after_attention(layer, x: Tensor, attended: Tensor, variant: Variant = VARIANTS["full"]) -> Tensor:
    """The layer from its attention on: token by token."""
    y = layer.norm1(x + attended if variant.residual else attended)
    if not variant.mlp:
        return y
    return layer.norm2(y + layer.mlp(y) if variant.residual else layer.mlp(y))


@torch.no_grad()
def loop(
    layer, x: Tensor, mask: Tensor, loops: int, variant=VARIANTS["full"], labels=0.0, exact=False
) -> Iterator[Tensor]:
    """The states (B, N, D) after 0, 1, ..., `loops` passes of x + labels; shortest sentences first, else only slower.

    To save work, a sentence at rest (no token moved by more than `REST`, relative) keeps its state, and, without
    labels, one whose tokens agree to `POINT` goes on as a single token: equal tokens stay equal. Not if `exact`.
    """
    x, still = x.clone(), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    single = still.clone()
    labelled = isinstance(labels, Tensor)
    lengths = mask.sum(1)
    yield x.clone()
    for _ in range(loops):
        after = x.clone()
        for rows in (~still & ~single).nonzero()[:, 0].split(24):
            if not len(rows):
                break
            longest = int(lengths[rows].max())
            seen = x[rows, :longest] + (labels[rows, :longest] if labelled else labels)
            after[rows, :longest] = step(layer, seen, mask[rows, :longest], variant)
        rows = (~still & single).nonzero()[:, 0]
        if len(rows):
            after[rows] = step(layer, x[rows, :1], None, variant).expand(-1, x.shape[1], -1)
        moved = ((after - x).norm(dim=-1) * mask).amax(-1) / length(x, mask)
        still |= (moved < REST) & (not exact)
        if not labelled and not exact:
            single |= relative_spread(after, mask) < POINT
        x = after
        yield x.clone()


def length(x: Tensor, mask: Tensor) -> Tensor:
    """Root mean square length of the tokens of each sentence, (B,)."""
    return ((x.square().sum(-1) * mask).sum(-1) / mask.sum(-1)).sqrt()


def relative_spread(x: Tensor, mask: Tensor) -> Tensor:
    """sqrt(tr C) over the rms length of the tokens of each sentence, (B,)."""
    mean = (x * mask[..., None]).sum(1, keepdim=True) / mask.sum(-1)[:, None, None]
    return length(x - mean, mask) / length(x, mask)


def measure(x: Tensor, mask: Tensor) -> dict[str, list]:
    """Per sentence: tokens, mean cosine, relative spread sqrt(tr C)/rms length, effective rank, clusters (`ANGLE`).

    first apart: whether the first token, [CLS], is farther than `ANGLE` from every other one.
    """
    rows = [tokens[real] for tokens, real in zip(x, mask)]
    unit = torch.nn.functional.normalize(x, dim=-1)
    nearest = (unit @ unit[:, :1].mT)[..., 0].masked_fill(~mask, -1)[:, 1:].amax(-1)  # cosine with the first token
    spread = relative_spread(x, mask).tolist()
    return {
        "tokens": mask.sum(1).tolist(),
        "cosine": [mean_cosine(z) for z in rows],
        "spread": spread,
        "rank": [effective_rank(z) if s > POINT else 0.0 for z, s in zip(rows, spread)],
        "clusters": [cluster_count(z, ANGLE) if s > POINT else 1 for z, s in zip(rows, spread)],
        "first apart": (nearest < math.cos(ANGLE)).tolist(),
    }


def fate(clusters: int, motion: float, motion2: float) -> str:
    """The words of the tables: "point", "two points" or "more", and "at rest", "two-cycle" or "moving"."""
    place = {1: "point", 2: "two points"}.get(clusters, "more")
    rest = "at rest" if motion < MOVING else "two-cycle" if motion2 < MOVING else "moving"
    return f"{place}, {rest}"


def path(
    layer, x, mask, loops, variant=VARIANTS["full"], labels=0.0, content=True, exact=False
) -> tuple[pd.DataFrame, Tensor]:
    """Loop to the last of `loops`, measuring at each: (table, last state). Columns: loop, sentence, those of `measure`.

    And how far one and two loops more move the tokens, over their length (motion, motion2); if `content`, the cosine
    and the clusters without the first and the last token, [CLS] and [SEP]; and the fate.
    """
    loops, seen, frames = sorted(loops), {}, []
    for index, state in enumerate(loop(layer, x, mask, loops[-1] + 2, variant, labels, exact)):
        seen[index] = state
        at = index - 2
        if at in loops:
            now, unit = seen[at], length(seen[at], mask)
            motion = [(length(seen[at + k] - now, mask) / unit).tolist() for k in (1, 2)]
            frame = {"loop": at, "sentence": range(len(x)), **measure(now, mask)}
            frame |= {"motion": motion[0], "motion2": motion[1]}
            inside = measure(now[:, 1:-1], mask[:, 2:]) if content else {}
            frame |= {f"content {name}": inside[name] for name in ("cosine", "clusters") if content}
            frame["fate"] = [fate(*each) for each in zip(frame["clusters"], *motion)]
            frames.append(pd.DataFrame(frame))
            last = now
        seen.pop(at, None)
    return pd.concat(frames, ignore_index=True), last


def loop_layers(
    model, chosen: Sentences, loops: Iterable[int], variant: str = "full", layers=range(6), progress=iter, exact=False
) -> tuple[pd.DataFrame, dict[int, Tensor]]:
    """`path` for each layer, from what it sees in the trained stack: (table with a column layer, last states).

    variant: one of `VARIANTS`, or "no [CLS], [SEP]": those two taken out (of states that were computed with them), or
    "from embeddings": all layers start there. exact: see `loop`. Raises ValueError for another variant.
    """
    if variant not in (known := [*VARIANTS, "no [CLS], [SEP]", "from embeddings"]):
        raise ValueError(f"variant: expected one of {', '.join(known)}, got {variant!r}")
    bare = variant == "no [CLS], [SEP]"
    chosen = chosen.bare() if bare else chosen
    frames, ends = [], {}
    for index in progress(layers):
        begin = chosen.states[0 if variant == "from embeddings" else index]
        parts = VARIANTS.get(variant, VARIANTS["full"])
        table, ends[index] = path(model.layers[index], begin, chosen.mask, loops, parts, content=not bare, exact=exact)
        frames.append(table.assign(layer=index))
    return pd.concat(frames, ignore_index=True), ends


def stack(chosen: Sentences) -> pd.DataFrame:
    """The measures after 0 to 6 layers of the trained stack, columns depth, sentence and those of `measure`."""
    frames = [pd.DataFrame({"depth": d, **measure(x, chosen.mask)}) for d, x in enumerate(chosen.states)]
    return pd.concat(frames, ignore_index=True).rename_axis("sentence").reset_index()


def count_fates(table: pd.DataFrame, by: str = "layer") -> pd.DataFrame:
    """How many sentences met each fate at the last loop: rows `by`, columns the fates."""
    last = table[table["loop"] == table["loop"].max()]
    return pd.crosstab(last[by], last["fate"])


def summary(table: pd.DataFrame, by: list[str], columns: Iterable[str]) -> pd.DataFrame:
    """Median and quartiles over the sentences: rows `by`, columns "cosine q1", "cosine median", "cosine q3", ..."""
    groups = table.groupby(by)[list(columns)]
    parts = [groups.quantile(q).add_suffix(f" {name}") for q, name in ((0.25, "q1"), (0.5, "median"), (0.75, "q3"))]
    return pd.concat(parts, axis=1).sort_index(axis=1).reset_index()


def keeper(chosen: Sentences, command: str):
    """keep(name, table, **more): store a table, four digits, with the settings that all tables here share."""
    begun, device = time.perf_counter(), chosen.mask.device
    settings = {
        "sentences": len(chosen.mask),
        "texts": f"film-review snippets, {len(chosen.mask) // 6} of each of 6 length classes",
        "length classes, word pieces": [f"{a} to {b - 1}" for a, b in zip(CLASSES, CLASSES[1:])],
        "tokens": int(chosen.mask.sum()),
        "start": "what the layer sees in the trained stack",
        "cluster angle, rad": ANGLE,
        "moving": f"one loop moves the tokens by more than {MOVING} of their length",
        "precision": "float32",
    }

    def keep(name, table, **more):
        table = table.assign(**{c: [float(f"{v:.4g}") for v in table[c]] for c in table.select_dtypes("float")})
        store(name, table, {**settings, "seconds": round(time.perf_counter() - begun), **more}, device, command)

    return keep


def main():
    model = load_encoder("cuda" if torch.cuda.is_available() else "cpu")
    chosen = sentences(model)
    keep = keeper(chosen, "python -m ddcl_lite.experiments.looped")

    table, _ = loop_layers(model, chosen, LOOPS, progress=tqdm)
    keep("looped", table[table["loop"] == LOOPS[-1]], loops=LOOPS[-1])
    columns = ["cosine", "spread", "rank", "clusters", "motion", "content cosine", "content clusters"]
    keep("looped_paths", summary(table, ["layer", "loop"], columns))
    keep("looped_stack", summary(stack(chosen), ["depth"], columns[:4]))

    frames, last = [], table[table["loop"] == LOOPS[-1]]
    for name in ("full", *list(VARIANTS)[1:], "no [CLS], [SEP]", "from embeddings"):
        ends = last if name == "full" else loop_layers(model, chosen, LOOPS[-1:], name, progress=tqdm)[0]
        counts = ends.groupby(["layer", "fate"]).agg(sentences=("fate", "size"), motion=("motion", "median"))
        frames.append(counts.reset_index().assign(variant=name))
    keep("looped_variants", pd.concat(frames), loops=LOOPS[-1])
    keep("looped_precision", precision(model, chosen.first(6), LOOPS[-1:]), used=6)


def precision(model, chosen: Sentences, loops: Iterable[int], layers=range(4), progress=iter) -> pd.DataFrame:
    """Float32 beside float64 without shortcuts: sentences that agree in clusters and in fate, by layer and loop."""
    exact = chosen._replace(states=[x.double() for x in chosen.states])
    one, _ = loop_layers(model, chosen, loops, layers=layers, progress=progress)
    double = copy.deepcopy(model).double()
    two, _ = loop_layers(double, exact, loops, layers=layers, progress=progress, exact=True)
    table = one[["layer", "loop"]].assign(clusters=one["clusters"] == two["clusters"], fate=one["fate"] == two["fate"])
    return table.groupby(["layer", "loop"]).sum().reset_index().assign(sentences=len(chosen.mask))


if __name__ == "__main__":
    main()
