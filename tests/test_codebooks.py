"""The comparison of codebooks at reduced size, its rules, and what chapter 8 says of the stored run."""

import sys
import types

import pandas as pd
import pytest
import torch

import ddcl_lite as dl
from ddcl_lite.data import patches as dl_patches
from ddcl_lite.experiments import codebooks, results

TINY = {"warm_up_epochs": 1, "epochs": 2, "batch": 32}


@pytest.fixture(scope="module")
def images():
    pixels, test, _ = codebooks.quick_images()
    return pixels[:96], test[:64]


@pytest.fixture(scope="module")
def warm(images):
    return codebooks.warm_up(images[0], 0, epochs=4, batch=32)


def test_the_images_are_photographs_and_the_same_for_every_seed():
    (pixels, test, held_out), again = codebooks.quick_images(), codebooks.quick_images()
    assert pixels.shape == test.shape == held_out.shape == (1024, 3, 16, 16)
    assert 0 <= pixels.min() < 0.05 and 0.95 < pixels.max() <= 1
    assert all(torch.equal(a, b) for a, b in zip((pixels, test, held_out), again))


def test_held_out_patches_are_of_the_training_regions_and_not_trained_on():
    pixels, _, held_out = (part.flatten(1) for part in codebooks.quick_images())
    region = dl_patches(16, split="train").pixels.flatten(1)
    assert len(torch.cat([pixels, held_out]).unique(dim=0)) == 2048
    assert len(torch.cat([region, held_out]).unique(dim=0)) == len(region.unique(dim=0))


def test_a_seventh_is_held_out_the_same_each_time():
    inner, held_out = codebooks.split(torch.arange(70.0))
    assert len(held_out) == 10 and torch.equal(torch.cat([inner, held_out]).sort()[0], torch.arange(70.0))
    assert torch.equal(held_out, codebooks.split(torch.arange(70.0))[1])


def test_tokens_are_normalised_and_one_for_every_4_by_4_pixels(images, warm):
    tokens = warm.encode(images[0])
    assert tokens.shape == (96, 16, 16) and warm.decode(tokens).shape == images[0].shape
    torch.testing.assert_close(tokens.mean(-1), torch.zeros(96, 16), atol=1e-5, rtol=0)
    assert tokens.square().mean(-1).median().item() == pytest.approx(1, abs=1e-2)


def test_decoding_by_blocks_is_the_transposed_convolution(warm):
    tokens = torch.randn(5, 16, 16, generator=torch.Generator().manual_seed(0))
    hidden = warm.from_tokens(tokens.mT.unflatten(2, (4, 4)))
    pixels = warm.up((hidden + warm.decoder(hidden.relu())).relu()) + 0.5
    torch.testing.assert_close(warm.decode(tokens), pixels)


def test_a_warm_up_learns_and_repeats(images, warm):
    pixels = images[0]
    fresh = codebooks.warm_up(pixels, 0, epochs=0, batch=32)
    error = [(m.decode(m.encode(pixels)) - pixels).square().mean().item() for m in (warm, fresh)]
    assert error[0] < 0.7 * error[1]
    again = codebooks.warm_up(pixels, 0, epochs=4, batch=32)
    assert all(torch.equal(a, b) for a, b in zip(warm.parameters(), again.parameters()))


@pytest.mark.parametrize("name", codebooks.METHODS)
def test_every_method_trains_a_copy(images, warm, name):
    before = [p.clone() for p in warm.parameters()]
    model, table = codebooks.fit(name, warm, images[0], epochs=4, batch=32, test=images[1])
    assert all(torch.equal(a, b) for a, b in zip(before, warm.parameters()))
    assert table["epoch"].tolist() == [0, 1, 3, 4]
    assert table[codebooks.ERROR].iloc[-1] < table[codebooks.ERROR].iloc[0]
    assert (table["usage by argmax"] <= table["usage by q > 0"]).all()
    assert not torch.equal(model.codebook.codes, codebooks.METHODS[name].codebook(16, 64).codes)


def test_a_method_cools_and_ends_hard_as_it_says(images, warm):
    name = "soft, cooled, hard finish"
    seen = []
    forward = dl.SoftCodebook.forward

    def watch(book, tokens, mask=None):
        unit = dl.critical_temperature(tokens.detach(), detach_assignment=True)
        seen.append((book.hard, float(book.temperature / unit)))
        return forward(book, tokens, mask)

    dl.SoftCodebook.forward = watch
    try:
        codebooks.fit(name, warm, images[0], epochs=4, batch=32)
    finally:
        dl.SoftCodebook.forward = forward
    hot, cold = codebooks.METHODS[name].ratios
    ratios = [ratio for _, ratio in seen]
    assert [hard for hard, _ in seen] == [False] * 8 + [True] * 4
    assert ratios[0] == pytest.approx(hot, rel=1e-3) and ratios[7:] == pytest.approx([cold] * 5, rel=1e-3)
    assert ratios == sorted(ratios, reverse=True)


def test_measures_agree_with_formulas(images, warm):
    model, _ = codebooks.fit("soft, cooled", warm, images[0], epochs=1, batch=32)
    measured, pixels = codebooks.measure(model, images[1]), images[1]
    tokens, codes = model.autoencoder.encode(pixels), model.codebook.codes
    nearest = torch.cdist(tokens.flatten(0, 1), codes).argmin(-1)
    assert measured["usage by argmax"] == pytest.approx(len(set(nearest.tolist())) / 64, abs=1 / 64)
    shares = torch.bincount(nearest, minlength=64) / len(nearest)
    entropy = -(shares[shares > 0] * shares[shares > 0].log()).sum()
    assert measured["perplexity / K"] == pytest.approx(entropy.exp().item() / 64, rel=1e-2)
    decoded = model.autoencoder.decode(codes[nearest].view_as(tokens))
    error = 100 * ((decoded - pixels).square().mean() / pixels.var()).item()
    assert measured[codebooks.ERROR] == pytest.approx(error, rel=1e-2)  # nearly equal codes may be ranked otherwise
    hard = 100 * ((model.reconstruct(pixels) - pixels).square().mean() / pixels.var()).item()
    assert measured[codebooks.ERROR] == pytest.approx(hard, rel=1e-4)
    soft = model.reconstruct(pixels, hard=False)
    error = 100 * ((soft - pixels).square().mean() / pixels.var()).item()
    assert measured["soft-decoded error"] == pytest.approx(error, rel=1e-4)
    assert measured["soft-to-hard gap"] == pytest.approx(measured[codebooks.ERROR] - error, abs=1e-3)


def test_a_comparison_shares_the_warm_up_and_keeps_the_rate_that_validation_chose(images, monkeypatch):
    tables, started, fit = [], [], codebooks.fit

    def watch(name, autoencoder, pixels, start, seed, rate, *rest):
        started.append((name, start, seed, rate, id(autoencoder), len(pixels)))
        return fit(name, autoencoder, pixels, start, seed, rate, *rest)

    monkeypatch.setattr(codebooks, "fit", watch)
    some = ["VQ", "soft, cooled"]
    table = codebooks.compare_codebooks(*images, [0, 1], ["data"], some, learning_rates=(1e-9, 3e-3), **TINY)
    tables.append(table)
    assert set(table["learning rate"]) == {3e-3}  # nothing is learned at 1e-9
    assert [(name, seed, rate) for name, _, seed, rate, *_ in started] == [
        *(("VQ", 0, 1e-9), ("VQ", 0, 3e-3), ("soft, cooled", 0, 1e-9), ("soft, cooled", 0, 3e-3)),
        *(("VQ", 1, 3e-3), ("soft, cooled", 1, 3e-3)),
    ]
    assert len({model for *_, model, _ in started}) == 2
    assert {count for *_, count in started} == {96 - 96 // 7}
    assert table.groupby(["method", "seed"])["epoch"].apply(list).tolist() == [[0, 1, 2]] * 4


def test_a_comparison_hands_out_its_models_and_records_the_paths_of_some_seeds(images):
    models, some = {}, ["VQ", "soft, cooled"]
    table = codebooks.compare_codebooks(*images, [0, 1], ["data"], some, models=models, paths=[1], **TINY)
    assert table.groupby("seed")["epoch"].apply(list).tolist() == [[2, 2], [0, 1, 2, 0, 1, 2]]
    assert set(models) == {(name, "data", seed) for name in some for seed in (0, 1)}
    last = codebooks.final(table, "data").set_index(["method", "seed"])
    for (name, _, seed), model in models.items():
        assert codebooks.measure(model, images[1])[codebooks.ERROR] == last.loc[(name, seed), codebooks.ERROR]


def test_the_goal_has_three_parts_and_compares_with_the_best_hard_codebook_of_the_seed(monkeypatch):
    hard, soft = (types.SimpleNamespace(codebook=book(4, 3)) for book in (dl.HardCodebook, dl.SoftCodebook))
    errors = {"VQ": (10.0, 4.0), "VQ, EMA": (8.0, 5.0), "soft": (8.8, 4.5), "sparse": (1.0, 1.0), "uneven": (1.0, 1.0)}
    models = {
        (name, "data", seed): types.SimpleNamespace(codebook=(hard if "VQ" in name else soft).codebook, error=error)
        for name, pair in errors.items()
        for seed, error in enumerate(pair)
    }
    names = {id(model): key[0] for key, model in models.items()}

    def measure(model, pixels):
        name = names[id(model)]
        use, even = 0.9 if name == "sparse" else 0.96, 0.5 if name == "uneven" else 0.7
        return {"usage by argmax": use, "perplexity / K": even, codebooks.ERROR: model.error * pixels}

    monkeypatch.setattr(codebooks, "measure", measure)
    table = codebooks.goal(models, {"held out": 1.0, "test": 2.0})
    assert table.index[0] == ("held out", "data", "VQ") and len(table) == 10
    for images in ("held out", "test"):
        assert table.loc[(images, "data"), "seeds"].tolist() == [1, 1, 1, 0, 0]
        assert table.loc[(images, "data", "soft"), "error / best hard"] == pytest.approx((1.1 + 1.125) / 2, rel=1e-6)


def test_a_run_repeats_and_leaves_the_random_state_alone(images, warm):
    torch.manual_seed(7)
    first = codebooks.fit("VQ, EMA, revival", warm, images[0], epochs=2, batch=32, test=images[1])[1]
    after = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(after, torch.rand(1))
    second = codebooks.fit("VQ, EMA, revival", warm, images[0], epochs=2, batch=32, test=images[1])[1]
    pd.testing.assert_frame_equal(first, second)


def test_final_and_overview_read_the_last_epoch_only():
    rows = [
        {"method": m, "start": s, "seed": seed, "epoch": e, "learning rate": 1, codebooks.ERROR: 10 * e + seed}
        for m in ("VQ", "b")
        for s in codebooks.STARTS
        for seed in (0, 1)
        for e in (0, 6)
    ]
    table = pd.DataFrame(rows)
    assert codebooks.final(table, "data")[codebooks.ERROR].tolist() == [60, 61, 60, 61]
    summary = codebooks.overview(table)
    assert set(summary.index) == {(s, m) for s in codebooks.STARTS for m in ("VQ", "b")}
    assert (summary[codebooks.ERROR] == 60.5).all()


def test_unknown_methods_and_starts_are_refused(images, warm):
    with pytest.raises(ValueError, match="method: expected one of VQ, .*got 'k-means'"):
        codebooks.fit("k-means", warm, images[0])
    with pytest.raises(ValueError, match="start: expected one of normal, data, got 'zero'"):
        codebooks.fit("VQ", warm, images[0], "zero")


def test_cifar_is_used_where_torchvision_can_give_it_and_the_photographs_elsewhere(monkeypatch):
    class CIFAR10:
        def __init__(self, root, train, download):
            self.data = torch.arange(40 * 32 * 32 * 3).remainder(256).byte().view(40, 32, 32, 3).numpy()

    package, module = types.ModuleType("torchvision"), types.ModuleType("torchvision.datasets")
    module.CIFAR10 = CIFAR10
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)
    pixels, test, name = codebooks.full_scale_images(count=10)
    assert pixels.shape == (10, 3, 32, 32) and test.shape == (2, 3, 32, 32) and name.startswith("CIFAR-10")
    assert pixels.max() <= 1

    def offline(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(module, "CIFAR10", offline)
    with pytest.warns(UserWarning, match="no network"):
        pixels, test, name = codebooks.full_scale_images()
    assert (len(pixels), len(test)) == (1743, 606) and name.startswith("photographs")
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)  # as if not installed
    with pytest.warns(UserWarning, match="torchvision is not installed"):
        assert codebooks.full_scale_images()[2] == name


def test_a_code_that_no_token_chooses_gets_no_gradient_if_hard_and_a_bounded_one_if_soft():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    codes = torch.cat([z[:4], torch.full((1, 3), 3.0, dtype=torch.float64)])
    distances = torch.cdist(z, codes).square()
    gap = (distances[:, 4] - distances.amin(-1)).min()
    assert gap > 0
    hard = dl.HardCodebook(3, 5).double()
    hard.codes.data.copy_(codes)
    coded = hard(z)
    (coded.loss + coded.tokens.square().sum()).backward()
    assert (hard.codes.grad[4] == 0).all()
    for temperature in (2.0, 0.5, 0.1):
        soft = dl.SoftCodebook(3, 5, temperature).double()
        soft.codes.data.copy_(codes)
        soft(z).loss.backward()
        q = dl.assign(z, codes, temperature)[:, 4]
        mean = (q[:, None] * z).sum(0) / q.sum()
        torch.testing.assert_close(soft.codes.grad[4], 2 * q.mean() * (codes[4] - mean))
        bound = torch.exp(-gap / temperature)
        assert bound / (5 * 50) <= q.mean() <= bound


def test_the_stored_run_is_complete():
    record = results.stored("codebooks")
    table, settings = record["table"], record["settings"]
    runs = table.groupby(["method", "start"], sort=False)["seed"].unique().map(sorted)
    assert set(runs.index) == {(m, s) for m in codebooks.METHODS for s in codebooks.STARTS}
    assert all(seeds == list(range(5)) for seeds in runs)
    assert (settings["training"], settings["test"]) == (1743, 606) and settings["images"].startswith("photographs")
    assert record["command"] == "python -m ddcl_lite.experiments.codebooks" and record["device"] and record["date"]
    for name in ("hidden", "batch", "warm_up_epochs", "epochs"):
        assert settings[name] == codebooks.FULL_SCALE[name]


def test_what_chapter_8_says_of_the_stored_run():
    table = results.stored("codebooks")["table"]
    verdicts = {s: codebooks.COMPARISON.verdicts(codebooks.final(table, s)) for s in codebooks.STARTS}
    assert all(line.startswith("not told apart") for line in verdicts["data"].values())
    for score in ("usage by argmax", "perplexity / K"):
        rule = codebooks.COMPARISON._replace(score=score, higher_is_better=True)
        lines = {s: rule.verdicts(codebooks.final(table, s)) for s in codebooks.STARTS}
        assert all(line.startswith("not told apart") for line in lines["data"].values())
        assert [n for n, line in lines["normal"].items() if line.startswith("better")] == ["VQ, EMA, revival"]
    summary = codebooks.COMPARISON.summarise(codebooks.final(table, "data"), 1 - 0.05 / 6)
    gain, width = summary.loc["soft, cooled"].iloc[2:] / summary.loc["VQ", codebooks.ERROR]
    assert gain - width < -1 / 6 and gain < 0
    rates = table[table["epoch"] == 6].drop_duplicates(["method", "start"])["learning rate"]
    assert (rates == max(codebooks.FULL_SCALE["learning_rates"])).mean() > 0.5
    better = [name for name, line in verdicts["normal"].items() if line.startswith("better")]
    assert better == ["VQ, EMA, revival", "soft, from 0.9 T_c, hard finish"]
    data, normal = (codebooks.overview(table).loc[s] for s in ("data", "normal"))
    usage = data["usage by argmax"]
    assert (
        usage.idxmin() == "soft, from 0.9 T_c, hard finish"
        and usage.min() > 0.9
        and usage.drop(usage.idxmin()).min() > 0.95
    )
    assert data["perplexity / K"].idxmax() == "VQ, EMA, revival" and 0.45 < data["perplexity / K"].max() < 0.6
    assert data["soft-to-hard gap"].idxmax() == data["separation, token sd"].idxmin() == "soft, fixed T"
    assert normal["usage by argmax"].drop("VQ, EMA, revival").max() < 0.2 < normal["usage by argmax"].max()
    soft = [name for name in codebooks.METHODS if name.startswith("soft")]
    assert data["seconds"][soft].min() > data["seconds"].drop(soft).max()
    assert (data["soft-to-hard gap"][soft] > 0).all()
    first = table[(table["start"] == "data") & (table["epoch"] <= 1)].groupby(["method", "epoch"])["usage by argmax"]
    assert (first.mean().unstack()[1] < first.mean().unstack()[0]).all()
