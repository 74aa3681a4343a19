"""Six readouts of the same frozen tokens, trained and tested alike.

`python -m ddcl_lite.experiments.readouts` runs the full scale and stores its results.
"""

import time
from collections.abc import Callable, Sequence

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import split_by_film
from ..prototypes.layer import PrototypeReadout
from ..prototypes.readouts import (
    AttentionPooling,
    FirstTokenReadout,
    MeanReadout,
    PerceiverReadout,
    SlotAttentionReadout,
)
from .comparison import Comparison

READOUTS: dict[str, Callable[[int], nn.Module]] = {
    "mean": lambda dim: MeanReadout(),
    "[CLS]": lambda dim: FirstTokenReadout(),
    "attention pooling": lambda dim: AttentionPooling(dim, num_heads=4),
    "Slot Attention": lambda dim: SlotAttentionReadout(dim, num_slots=4),
    "Perceiver latents": lambda dim: PerceiverReadout(dim, num_latents=8, num_heads=4),
    "prototypes": lambda dim: PrototypeReadout(dim, num_prototypes=32),
}
TEMPERATURE_RATIO = 0.25  # of the critical temperature of the training tokens
LOSS_WEIGHT = 0.1  # of L_q per feature, beside the cross-entropy
TEST_SHARE = 0.3  # of the films
COMPARISON = Comparison("readout", "accuracy", "mean", TEST_SHARE)
FULL_SCALE = {"learning_rates": [3e-3], "patience": 3}


class Classifier(nn.Module):
    """A readout and one linear unit: tokens (B, N, D), mask (B, N) -> logits (B,).

    Tokens are divided by `scale`, one number, so that their features have unit variance on average.
    """

    def __init__(self, readout: nn.Module, dim: int, scale: float):
        super().__init__()
        self.readout, self.head, self.scale = readout, nn.Linear(dim, 1), scale

    def prepare(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Cut the padding that no sequence of the batch needs; scale; float32."""
        longest = int(mask.sum(-1).max().clamp_min(1))
        return tokens[:, :longest].float() / self.scale, mask[:, :longest]

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.readout(*self.prepare(tokens, mask))).squeeze(-1)

    def loss(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy; with prototypes, plus LOSS_WEIGHT * L_q / D, which draws them to tokens near them."""
        loss = F.binary_cross_entropy_with_logits(self(tokens, mask), labels.float())
        if isinstance(self.readout, PrototypeReadout):
            tokens, mask = self.prepare(tokens, mask)
            loss = loss + LOSS_WEIGHT * self.readout.layer.decompose(tokens, mask).total / tokens.shape[-1]
        return loss


def make_classifier(name: str, tokens: Tensor, mask: Tensor, seed: int) -> Classifier:
    """An untrained classifier for these training tokens; prototypes start on tokens drawn among them."""
    torch.manual_seed(seed)
    dim, real = tokens.shape[-1], tokens[mask].float()
    model = Classifier(READOUTS[name](dim), dim, real.std().item()).to(tokens.device)
    if isinstance(model.readout, PrototypeReadout):
        layer = model.readout.layer
        drawn = real[torch.randperm(len(real))[: layer.prototypes.shape[1]].to(real.device)] / model.scale
        layer.prototypes.data.copy_(drawn.unflatten(-1, (layer.prototypes.shape[0], -1)).transpose(0, 1))
        layer.calibrate(real[None] / model.scale, TEMPERATURE_RATIO)
    return model


def principal_components(tokens: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Project tokens (B, N, D) onto their `dim` directions of largest variance: (B, N, dim), 0 at padding.

    The quick scale's way to save time. It sees all tokens, but no label.
    """
    real = tokens[mask].float()
    mean = real.mean(0)
    directions = torch.linalg.eigh((real - mean).mT @ (real - mean)).eigenvectors[:, -dim:]
    return (tokens.float() - mean) @ directions * mask[..., None]


def batches(mask: Tensor, size: int, shuffle: bool) -> list[Tensor]:
    """Row indices in batches of sequences of similar length, so that little padding is computed."""
    count = len(mask)
    order = torch.randperm(count) if shuffle else torch.arange(count)
    lengths = mask.sum(-1).cpu()
    pools = order.split(16 * size if shuffle else count)
    rows = [batch for pool in pools for batch in pool[lengths[pool].argsort(stable=True)].split(size)]
    if shuffle:
        rows = [rows[i] for i in torch.randperm(len(rows)).tolist()]
    return [batch.to(mask.device) for batch in rows]


@torch.no_grad()
def predict(model: Classifier, tokens: Tensor, mask: Tensor) -> Tensor:
    """The answer to every sequence, True for logit > 0: (B,) bool."""
    answers = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for rows in batches(mask, 256, shuffle=False):
        answers[rows] = model(tokens[rows], mask[rows]) > 0
    return answers


def accuracy(model: Classifier, tokens: Tensor, mask: Tensor, labels: Tensor) -> float:
    """Share of right answers."""
    return (predict(model, tokens, mask) == (labels > 0)).float().mean().item()


def train(model: Classifier, rate: float, parts: dict, patience: int):
    """Epochs of AdamW until validation accuracy has not risen `patience` times; yields (epoch, accuracy) after each."""
    optimiser = torch.optim.AdamW(model.parameters(), rate)
    tokens, mask, labels = parts["train"]
    best, waited, epoch = -1.0, 0, 0
    while waited < patience:
        epoch += 1
        for rows in batches(mask, 64, shuffle=True):
            optimiser.zero_grad()
            model.loss(tokens[rows], mask[rows], labels[rows]).backward()
            optimiser.step()
        score = accuracy(model, *parts["validation"])
        waited = 0 if score > best else waited + 1
        best = max(best, score)
        yield epoch, score


def fit(name, tokens, mask, labels, films, seed, learning_rates=(1e-2,), patience=3):
    """Train one readout; keep the learning rate and the epoch that are best on validation films.

    Films are split 70 / 30 into training and test, and a seventh of the training films is held back for validation.
    Training goes on until validation accuracy has not risen for `patience` epochs. Test sequences serve once, for the
    model kept. Returns (model, row): row has readout, seed, accuracy, learning_rate, epoch, seconds.
    """
    split, test = split_by_film(films, TEST_SHARE, seed)
    inner, validation = split_by_film(films[split], 1 / 7, seed)
    rows = {"train": split[inner], "validation": split[validation], "test": test}
    parts = {key: (tokens[index], mask[index], labels[index]) for key, index in rows.items()}
    start, best, kept, row = time.perf_counter(), -1.0, None, {}
    for rate in learning_rates:
        model = make_classifier(name, *parts["train"][:2], seed)
        for epoch, score in train(model, rate, parts, patience):
            if score > best:
                best, row = score, {"learning_rate": rate, "epoch": epoch}
                kept = {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(kept)
    row = {"readout": name, "seed": seed, "accuracy": accuracy(model, *parts["test"]), **row}
    return model, {**row, "seconds": time.perf_counter() - start}


def compare_readouts(
    tokens: Tensor,
    mask: Tensor,
    labels: Tensor,
    films: Tensor,
    seeds: Sequence[int] = range(5),
    learning_rates: Sequence[float] = (1e-2,),
    patience: int = 3,
    progress: Callable = iter,
) -> pd.DataFrame:
    """Train and test every readout with every seed; a seed is another split by film and another initialisation.

    One rule for all (see `fit`): batches of 64, AdamW, the same learning rates to choose from, validation films decide
    when to stop. The readouts differ in size, from no parameters to a transformer layer. Returns one row per run.
    Sources: see `ddcl_lite.prototypes.readouts`; the comparison is ours; chapter 2.
    """
    runs = [(name, seed) for seed in seeds for name in READOUTS]
    arguments = (learning_rates, patience)
    rows = [fit(name, tokens, mask, labels, films, seed, *arguments)[1] for name, seed in progress(runs)]
    return pd.DataFrame(rows)


def ablate_bank(model: Classifier, tokens: Tensor, mask: Tensor, labels: Tensor) -> pd.DataFrame:
    """How much of the decision passes through the bank: W_O mu as it is, replaced by its mean, and by 0.

    Per variant: accuracy, agreement with the intact model, and the agreement that two independent models with these
    shares of positive answers would have by chance.
    """
    layer, sums = model.readout.layer, []
    hook = layer.output.register_forward_hook(lambda module, inputs, out: sums.append(out.flatten(0, -2).sum(0)))
    intact = predict(model, tokens, mask)
    hook.remove()
    mean = torch.stack(sums).sum(0) / mask.sum()  # W_O mu is 0 at padding
    rows = {}
    for name, update in (("intact", None), ("mixture replaced by its mean", mean), ("bank cut off", 0 * mean)):
        hook = layer.output.register_forward_hook(
            lambda module, inputs, out, update=update: out if update is None else update.expand_as(out)
        )
        answers = predict(model, tokens, mask)
        hook.remove()
        ours, theirs = answers.float().mean().item(), intact.float().mean().item()
        rows[name] = {
            "accuracy": (answers == (labels > 0)).float().mean().item(),
            "agrees with intact": (answers == intact).float().mean().item(),
            "by chance": ours * theirs + (1 - ours) * (1 - theirs),
        }
    return pd.DataFrame(rows).T


def nearest_tokens(
    bank: Tensor, tokens: Tensor, words: Sequence[str], weights: Tensor, count: int = 40
) -> pd.DataFrame:
    """Per prototype, most used first: its share of tokens by largest weight, and the words of its nearest tokens.

    bank (K, D), tokens (n, D), words: n strings, weights (n, K). Of the `count` nearest, each word is named once.
    """
    share = torch.bincount(weights.argmax(-1), minlength=len(bank)) / len(tokens)
    order = share.argsort(descending=True)
    nearest = torch.cdist(bank[order], tokens).topk(count, largest=False).indices
    named = [", ".join(list(dict.fromkeys(words[i] for i in row))[:6]) for row in nearest.tolist()]
    columns = {"share of tokens": [f"{value:.0%}" for value in share[order].tolist()], "nearest real tokens": named}
    return pd.DataFrame(columns, index=pd.Index(order.tolist(), name="prototype"))


if __name__ == "__main__":
    from ..data import encode, sentiment
    from ..notebook import progress, setup
    from .results import store

    device = setup(0, "full")
    data = sentiment()
    tokens, mask, _ = encode(data.texts, device=device, progress=progress("encoding"))
    labels = data.labels.to(device)
    table = compare_readouts(tokens, mask, labels, data.films, progress=progress("training"), **FULL_SCALE)
    settings = {"snippets": len(labels), "features": tokens.shape[-1], **FULL_SCALE}
    print(store("readouts", table, settings, device, f"python -m {__spec__.name}"))
