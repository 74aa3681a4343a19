"""Six readouts of the same frozen tokens, trained and tested alike.

`python -m ddcl_lite.experiments.readouts` runs the full scale and stores its results.
"""

import math
import time
from collections.abc import Callable, Sequence

import pandas as pd
import torch
import torch.nn.functional as F
from scipy import stats
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
FULL_SCALE = {"epochs": 4, "learning_rates": [3e-4, 1e-3, 3e-3]}


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
        """Cross-entropy; with prototypes, plus LOSS_WEIGHT * L_q / D, which keeps them among the tokens."""
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


@torch.no_grad()
def accuracy(model: Classifier, tokens: Tensor, mask: Tensor, labels: Tensor, batch: int = 256) -> float:
    """Share of sequences on the right side of logit 0."""
    pieces = zip(tokens.split(batch), mask.split(batch), labels.split(batch))
    return sum(((model(z, m) > 0) == (y > 0)).sum().item() for z, m, y in pieces) / len(labels)


def train_epoch(model: Classifier, optimiser, tokens, mask, labels, batch: int = 64) -> None:
    """One pass in random order."""
    for rows in torch.randperm(len(labels)).to(tokens.device).split(batch):
        optimiser.zero_grad()
        model.loss(tokens[rows], mask[rows], labels[rows]).backward()
        optimiser.step()


def fit(name, tokens, mask, labels, films, seed, epochs, learning_rates):
    """Train one readout; keep the learning rate and the epoch that are best on validation films.

    Films are split 70 / 30 into training and test, and a seventh of the training films is held back for validation;
    test sequences serve once, for the model kept. Returns (model, row): row has readout, seed, accuracy,
    learning_rate, epoch, seconds.
    """
    train, test = split_by_film(films, 0.3, seed)
    inner, validation = split_by_film(films[train], 1 / 7, seed)
    inner, validation = train[inner], train[validation]
    parts = {
        key: (tokens[i], mask[i], labels[i]) for key, i in (("train", inner), ("valid", validation), ("test", test))
    }
    start, best, kept, row = time.perf_counter(), -1.0, None, {}
    for rate in learning_rates:
        model = make_classifier(name, tokens[inner], mask[inner], seed)
        optimiser = torch.optim.AdamW(model.parameters(), rate)
        for epoch in range(1, epochs + 1):
            train_epoch(model, optimiser, *parts["train"])
            score = accuracy(model, *parts["valid"])
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
    epochs: int = 4,
    learning_rates: Sequence[float] = (3e-3,),
    progress: Callable = iter,
) -> pd.DataFrame:
    """Train and test every readout with every seed; a seed is another split by film and another initialisation.

    One budget: the same passes over the data, batches of 64, AdamW, the same learning rates to choose from. Returns one
    row per run, as `fit` gives them. Sources: see `ddcl_lite.prototypes.readouts`; the comparison is ours; chapter 2.
    """
    runs = [(name, seed) for seed in seeds for name in READOUTS]
    rows = [fit(name, tokens, mask, labels, films, seed, epochs, learning_rates)[1] for name, seed in progress(runs)]
    return pd.DataFrame(rows)


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


def summarise(table: pd.DataFrame, baseline: str = "mean") -> pd.DataFrame:
    """Per readout: mean accuracy over seeds, and its mean advantage over the baseline on the same split.

    Each comes with the half width of a 95% t-interval over seeds. Test films of different seeds overlap, so the first
    interval is somewhat too narrow; the paired one shares this fault.
    """
    scores = table.pivot(index="seed", columns="readout", values="accuracy")[list(READOUTS)]
    gains = scores.sub(scores[baseline], axis=0)
    factor = stats.t.ppf(0.975, len(scores) - 1) / math.sqrt(len(scores))
    return pd.DataFrame(
        {
            "accuracy": scores.mean(),
            "+-": factor * scores.std(),
            f"gain over {baseline}": gains.mean(),
            "+- (gain)": factor * gains.std(),
        }
    )


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
    print(store("readouts", table, settings, device))
