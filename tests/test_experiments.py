"""The comparisons at reduced size: same rules, small numbers."""

import json

import pandas as pd
import pytest
import torch

from ddcl_lite import critical_temperature, spread
from ddcl_lite.experiments import cost, readouts, results, transition
from ddcl_lite.experiments.comparison import Comparison


@pytest.fixture(scope="module")
def sequences():
    """Sequences whose class is the sign of one feature of a single token: findable, but not by position."""
    generator = torch.Generator().manual_seed(0)
    tokens = 0.3 * torch.randn(240, 6, 8, generator=generator)
    labels = torch.arange(240) % 2
    place = torch.randint(6, (240,), generator=generator)
    tokens[torch.arange(240), place, 0] += 6.0 * (2 * labels - 1)
    mask = torch.ones(240, 6, dtype=torch.bool)
    return tokens.half(), mask, labels, torch.arange(240) // 6


def test_every_readout_learns_what_it_can_see(sequences):
    table = readouts.compare_readouts(*sequences, seeds=[0, 1], patience=5)
    assert list(table["readout"]) == list(readouts.READOUTS) * 2
    scores = table.groupby("readout")["accuracy"].mean()
    assert scores["[CLS]"] < 0.75  # the first token knows one time in six
    assert scores.drop("[CLS]").min() > 0.8


def test_no_film_is_on_two_sides(sequences, monkeypatch):
    tokens, mask, labels, films = sequences
    seen = {}
    split = readouts.split_by_film

    def watch(films, share, seed):
        seen[share] = split(films, share, seed)
        return seen[share]

    monkeypatch.setattr(readouts, "split_by_film", watch)
    readouts.fit("mean", tokens, mask, labels, films, 0, [1e-2], 1)
    train, test = seen[0.3]
    inner, validation = (train[rows] for rows in seen[1 / 7])
    sides = [set(films[rows].tolist()) for rows in (inner, validation, test)]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 40


def test_a_run_repeats(sequences):
    first, second = (readouts.fit("prototypes", *sequences, 1, [1e-3, 1e-2], 1)[1] for _ in range(2))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_summarise_pairs_by_seed():
    rows = [
        {"seed": seed, "readout": name, "accuracy": 0.5 + 0.1 * seed + (0.2 if name == "prototypes" else 0.0)}
        for seed in range(3)
        for name in readouts.READOUTS
    ]
    summary = readouts.COMPARISON.summarise(pd.DataFrame(rows))
    assert summary.loc["prototypes", "gain over mean"] == pytest.approx(0.2)
    assert summary.loc["prototypes", "+- (gain)"] == pytest.approx(0, abs=1e-12)
    factor = 4.302653 * (1 / 3 + 3 / 7) ** 0.5  # t(0.975, 2), corrected for films shared between splits
    assert summary.loc["mean", "+-"] == pytest.approx(factor * 0.1)


def test_verdicts_are_cautious():
    noise = torch.Generator().manual_seed(0)
    rows = [
        {"seed": seed, "readout": name, "accuracy": 0.7 + gain + 0.002 * torch.randn(1, generator=noise).item()}
        for seed in range(5)
        for name, gain in zip(readouts.READOUTS, (0, -0.1, 0.1, 0.001, 0, 0))
    ]
    lines = readouts.COMPARISON.verdicts(pd.DataFrame(rows))
    assert lines["[CLS]"].startswith("worse than the mean: -")
    assert lines["attention pooling"].startswith("better than the mean: +")
    assert all(lines[name].startswith("not told apart") for name in list(readouts.READOUTS)[3:])


def test_a_comparison_knows_which_way_is_better():
    rows = [
        {"seed": seed, "method": name, "error": error + 0.01 * seed}
        for seed in range(3)
        for name, error in (("a", 30.0), ("b", 20.0), ("c", 40.0))
    ]
    lines = Comparison("method", "error", "a", higher_is_better=False).verdicts(pd.DataFrame(rows))
    assert lines["b"].startswith("better than the a: -10") and lines["c"].startswith("worse than the a: +10")
    summary = Comparison("method", "error", "a").summarise(pd.DataFrame(rows))
    assert list(summary.index) == ["a", "b", "c"]
    assert summary.loc["a", "+-"] == pytest.approx(4.302653 * 0.01 / 3**0.5)


def test_a_comparison_with_gaps_is_refused():
    rows = [{"seed": seed, "method": name, "error": 1.0} for seed in range(2) for name in "ab"]
    with pytest.raises(ValueError, match="two seeds or more, each for every method"):
        Comparison("method", "error", "a").summarise(pd.DataFrame(rows[:3]))
    with pytest.raises(ValueError, match="baseline 'mean' among its methods"):
        Comparison("method", "error", "mean").summarise(pd.DataFrame(rows))


def test_batches_hold_every_row_once_and_similar_lengths():
    mask = torch.arange(40) < torch.randint(1, 41, (1000, 1))
    for shuffle in (False, True):
        rows = readouts.batches(mask, 64, shuffle)
        assert torch.equal(torch.cat(rows).sort().values, torch.arange(1000))
        padded = sum(int(mask[batch].sum(1).max()) * len(batch) for batch in rows)
        assert padded < 1.2 * mask.sum()


def test_ablating_the_bank(sequences):
    tokens, mask, labels, films = sequences
    model, _ = readouts.fit("prototypes", tokens, mask, labels, films, 0)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    table = readouts.ablate_bank(model, tokens, mask, labels)
    assert table.loc["intact", "agrees with intact"] == 1
    assert table.loc["intact", "accuracy"] == pytest.approx(readouts.accuracy(model, tokens, mask, labels))
    model.readout.layer.output.weight.data.zero_()
    by_hand = readouts.accuracy(model, tokens, mask, labels)
    assert table.loc["bank cut off", "accuracy"] == pytest.approx(by_hand)
    assert table["by chance"].between(0, 1).all() and table.loc["bank cut off", "agrees with intact"] < 1
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items() if "output" not in name)
    assert not model.readout.layer.output._forward_hooks


def test_principal_components_keep_the_largest_variance_and_zero_padding():
    tokens = torch.randn(5, 7, 4) * torch.tensor([1.0, 9.0, 2.0, 5.0]) + 3
    mask = torch.rand(5, 7) > 0.3
    kept = readouts.principal_components(tokens * mask[..., None], mask, 2)
    total = tokens[mask].var(0).sum()
    assert kept.shape == (5, 7, 2) and (kept[~mask] == 0).all()
    assert kept[mask].var(0).sum() > 0.85 * total
    torch.testing.assert_close(kept[mask].mean(0), torch.zeros(2), atol=1e-4, rtol=0)


def test_nearest_tokens_names_each_word_once_and_sorts_by_use():
    bank = torch.tensor([[0.0], [10.0]])
    tokens = torch.tensor([[0.1], [9.0], [9.5], [9.9]])
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    table = readouts.nearest_tokens(bank, tokens, ["low", "far", "near", "near"], weights, count=3)
    assert table.index.tolist() == [1, 0]
    assert table["share of tokens"].tolist() == ["75%", "25%"]
    assert table["nearest real tokens"].tolist() == ["near, far", "low, far, near"]


def test_the_stored_full_scale_run_is_complete():
    record = results.stored("readouts")
    table = record["table"]
    assert set(table["readout"]) == set(readouts.READOUTS) and set(table["seed"]) == set(range(5))
    assert len(table) == 5 * len(readouts.READOUTS)
    assert record["settings"]["snippets"] == 12808
    assert record["command"] == "python -m ddcl_lite.experiments.readouts" and record["device"] and record["date"]


def test_what_chapter_2_says_of_the_stored_run():
    lines = readouts.COMPARISON.verdicts(results.stored("readouts")["table"])
    told_apart = [name for name, line in lines.items() if not line.startswith("not told apart")]
    assert told_apart == ["[CLS]"] and lines["[CLS]"].startswith("worse")


def test_an_unknown_result_lists_what_there_is():
    with pytest.raises(ValueError, match="name: expected one of .*readouts.*, got 'nothing'"):
        results.stored("nothing")


def test_store_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    path = results.store("probe", pd.DataFrame({"a": [1, 2]}), {"size": 3}, "cpu", "python -m x")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["command"] == "python -m x" and record["table"] == {"a": [1, 2]} and record["settings"] == {"size": 3}
    monkeypatch.setattr(results, "FOLDER", tmp_path / "none")
    with pytest.raises(RuntimeError, match="from a checkout"):
        results.store("probe", pd.DataFrame(), {}, "cpu", "x")


def test_cost_counts_operations_exactly():
    costs = cost.cost_of_length([256, 512], dim=8, num_prototypes=2, repeats=1)
    bank, output = 2 * 2 * 256 * 2 * 8, 2 * 256 * 8 * 8  # two products with the bank, one with W_O
    assert costs["prototypes"].operations == [bank + output, 2 * (bank + output)]
    heads = 4 * 2 * 256 * 8 * 8  # query, key, value, output
    assert costs["self-attention"].operations[0] == heads + 2 * 2 * 256 * 256 * 8


def test_slope_is_the_exponent():
    lengths = [1, 2, 4, 8, 16]
    measured = cost.Cost(lengths, [3.0 * n**1.5 for n in lengths], [])
    assert measured.slope(measured.operations) == pytest.approx(1.5)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("detach", [False, True])
def test_a_bank_next_to_collapse_leaves_it_below_the_critical_temperature_only(seed, detach):
    tokens = transition.four_blobs(seed=seed)
    banks = transition.descend(tokens, [0.8, 1.2], steps=600, detach_assignment=detach, seed=seed)
    left, back = (spread(bank, tokens) for bank in banks)
    assert left > 0.1 and back < 1e-4
    assert critical_temperature(tokens) == 2 * critical_temperature(tokens, detach_assignment=True)
