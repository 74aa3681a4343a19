"""Deterministic annealing: its steps, what it forgets, and the comparison with K-means."""

import inspect

import pandas as pd
import pytest
import torch
from sklearn.cluster import KMeans

from ddcl_lite import (
    assign,
    critical_temperature,
    draw_prototypes,
    em_step,
    min_separation,
    spread,
    token_variance,
    tracking_distance,
)
from ddcl_lite.experiments import annealing
from ddcl_lite.experiments.annealing import anneal, compare_annealing, hard_cost
from ddcl_lite.experiments.transition import four_blobs


@pytest.fixture
def tokens():
    return four_blobs(120, seed=1) + 5


@pytest.fixture
def rare():
    """Three tokens of 100 lie far away: the case in which a bank stays split above the critical temperature."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(100, 2, generator=generator, dtype=torch.float64)
    tokens[:3] += torch.tensor([12.0, 0.0], dtype=torch.float64)
    return tokens


def starts(tokens, count, inits=6):
    generator = torch.Generator().manual_seed(0)
    return torch.stack([draw_prototypes(tokens, count, generator=generator) for _ in range(inits)])


def far_apart(banks):
    """The largest distance of a bank from the first one, prototypes matched."""
    return max(tracking_distance(bank, banks[0]) for bank in banks)


@pytest.mark.parametrize("temperature", [0.05, 1.0, 50.0])
def test_the_step_of_many_banks_is_em_step_of_each(tokens, temperature):
    tokens = tokens - tokens.mean(0)
    banks = starts(tokens, 5)
    stepped, weights = annealing.em_step_of_each(tokens, banks, temperature)
    for bank, after, weight in zip(banks, stepped, weights):
        torch.testing.assert_close(after, em_step(tokens, bank, temperature))
        torch.testing.assert_close(weight.mT, assign(tokens, bank, temperature))


def test_a_prototype_without_weight_stays_where_it_is(tokens):
    banks = torch.tensor([[[0.0, 0.0], [1e4, 0.0]]], dtype=torch.float64)
    stepped, weights = annealing.em_step_of_each(tokens, banks, 1.0)
    assert (weights[0, 1] == 0).all() and torch.equal(stepped[0, 1], banks[0, 1])


@pytest.mark.parametrize("members, pushed", [(2, [1, -1]), (3, [1, -1, 1]), (4, [1, -1, 1, -1])])
def test_a_nudge_pushes_half_of_a_group_each_way_along_its_leading_eigenvector(members, pushed):
    tokens = torch.randn(4000, 3, dtype=torch.float64) * torch.tensor([1.0, 3.0, 0.5])
    alone = torch.tensor([[9.0, 9.0, 9.0]], dtype=torch.float64)
    bank = torch.cat([torch.zeros(members, 3, dtype=torch.float64), alone])
    moved = annealing.nudge(tokens, bank[None], 1e4, 1.0)[0] - bank
    covariance = tokens.mT @ tokens
    direction = torch.linalg.eigh(covariance).eigenvectors[:, -1]
    along = moved @ direction / annealing.NUDGE
    assert torch.allclose(along[:-1] * along[0], torch.tensor(pushed, dtype=torch.float64), atol=1e-3)
    assert (moved[-1] == 0).all()


def test_the_eigenvector_is_that_of_the_groups_own_share_of_the_tokens():
    """Two clouds side by side, long across the line that joins them: each group splits across it."""
    cloud = torch.randn(3000, 2, dtype=torch.float64) * torch.tensor([0.3, 2.0])
    tokens = torch.cat([cloud - torch.tensor([6.0, 0.0]), cloud + torch.tensor([6.0, 0.0])])
    bank = torch.tensor([[-6.0, 0.0], [-6.0, 0.0], [6.0, 0.0], [6.0, 0.0]], dtype=torch.float64)
    moved = annealing.nudge(tokens, bank[None], 2.0, 1.0)[0] - bank
    assert (moved[:, 1].abs() > 0.95 * annealing.NUDGE).all()


def test_a_nudge_first_puts_what_coincides_in_one_place_and_leaves_the_rest_alone(tokens):
    apart = starts(tokens, 4)
    assert torch.equal(annealing.nudge(tokens, apart, 1.0, 1e-6), apart)
    close = torch.zeros(1, 2, 2, dtype=torch.float64) + torch.tensor([[0.0], [1e-3]])
    nudged = annealing.nudge(tokens, close, 1.0, 1.0)[0]
    torch.testing.assert_close(nudged.mean(0), close[0].mean(0))
    assert min_separation(nudged) == pytest.approx(2 * annealing.NUDGE)


def test_every_start_is_forgotten(tokens):
    banks = starts(tokens, 4)
    banks[0] = tokens.mean(0)
    banks[1] = tokens[:1]  # all at one token
    banks[2] = tokens.mean(0) + 30 * torch.randn(4, 2, dtype=torch.float64)
    annealed = anneal(tokens, 4, banks)
    assert far_apart(annealed) < 1e-6
    assert tracking_distance(anneal(tokens, 4), annealed[0]) < 1e-6
    centres = torch.stack([tokens[blob::4].mean(0) for blob in range(4)])
    assert tracking_distance(annealed[0], centres) < 0.1


def test_a_start_just_above_the_critical_temperature_need_not_be_forgotten(rare):
    """The reason for the default start: where a cluster is rare, a split bank persists at twice T_c."""
    mean = rare.mean(0).expand(3, 2)
    split = torch.stack([rare[0], *mean[:2]])
    banks = torch.stack([mean, split])
    warm = critical_temperature(rare, detach_assignment=True).item() * 2
    held = split
    for _ in range(500):
        held = em_step(rare, held, warm)
    assert spread(held) > 1  # split at twice T_c, for good
    assert far_apart(anneal(rare, 3, banks)) < 1e-6


def test_starts_below_the_critical_temperature_are_remembered(tokens):
    """The comparison can fail: annealing that starts cold is K-means."""
    banks = starts(tokens, 8, inits=10)
    cost = hard_cost(tokens, anneal(tokens, 8, banks, start=0.02))
    assert cost.max() - cost.min() > 1e-3
    cost = hard_cost(tokens, anneal(tokens, 8, banks))
    assert cost.max() - cost.min() < 1e-9


def test_without_a_nudge_a_bank_never_leaves_the_mean(tokens, monkeypatch):
    monkeypatch.setattr(annealing, "NUDGE", 0.0)
    annealed = anneal(tokens, 4)
    assert spread(annealed) < 1e-9
    torch.testing.assert_close(annealed[0], tokens.mean(0))


def test_it_ends_where_k_means_stops(tokens):
    annealed = anneal(tokens, 6)
    nearest = torch.cdist(tokens, annealed).argmin(-1)
    means = torch.stack([tokens[nearest == k].mean(0) for k in range(6)])
    torch.testing.assert_close(annealed, means)
    again = KMeans(6, init=annealed.numpy(), n_init=1).fit(tokens.numpy())
    assert again.inertia_ / len(tokens) / token_variance(tokens) == pytest.approx(hard_cost(tokens, annealed[None]))


def test_a_common_shift_scale_and_rotation_change_nothing(tokens):
    turn = torch.linalg.qr(torch.randn(2, 2, dtype=torch.float64)).Q
    expected = 7 * anneal(tokens, 6) @ turn - 30
    assert tracking_distance(anneal(7 * tokens @ turn - 30, 6), expected) < 1e-6


def test_inputs_and_random_state_are_left_alone(tokens):
    banks = starts(tokens, 4)
    before, state = (tokens.clone(), banks.clone()), torch.get_rng_state()
    first, second = anneal(tokens, 4, banks), anneal(tokens, 4, banks)
    assert torch.equal(first, second) and first.dtype == torch.float64
    assert torch.equal(tokens, before[0]) and torch.equal(banks, before[1])
    assert torch.equal(torch.get_rng_state(), state)


def test_single_precision(tokens):
    annealed = anneal(tokens.float(), 4)
    assert annealed.dtype == torch.float32
    assert tracking_distance(annealed.double(), anneal(tokens, 4)) < 1e-3


@pytest.mark.parametrize("shape", [(4, 2), (3, 5, 2), (3, 4, 3)])
def test_banks_of_another_shape_are_refused(tokens, shape):
    with pytest.raises(ValueError, match=r"^banks: expected \(B, 4, 2\), got "):
        anneal(tokens, 4, torch.zeros(shape, dtype=torch.float64))


def test_hard_cost():
    tokens = torch.tensor([[0.0], [2.0], [10.0], [12.0]])  # variance 26
    banks = torch.tensor([[[1.0], [11.0]], [[6.0], [6.0]]])
    torch.testing.assert_close(hard_cost(tokens, banks), torch.tensor([1 / 26, 1.0]))


def test_the_clouds_are_two_real_ones_and_a_toy():
    first, other = annealing.clouds(), annealing.clouds(1)
    assert {name: tuple(cloud.shape) for name, cloud in first.items()} == {
        "four blobs": (200, 2),
        "MiniLM tokens": (2000, 16),
        "digits": (1797, 64),
    }
    assert all(cloud.dtype == torch.float64 for cloud in first.values())
    same = {name: torch.equal(first[name], other[name]) for name in first}
    assert same == {"four blobs": False, "MiniLM tokens": False, "digits": True}


def test_annealing_agrees_with_itself_where_k_means_does_not():
    """The default comparison: at most a tenth of K-means' spread on every cloud; on the digits a lower cost too."""
    table = compare_annealing(annealing.clouds()).set_index("cloud")
    assert list(table.columns) == [
        "annealed mean",
        "annealed spread",
        "K-means mean",
        "K-means spread",
        "K-means best",
        "ratio",
    ]
    assert (table["ratio"] <= 0.1).all() and (table["K-means spread"] > 1e-3).all()
    assert table["annealed mean"].between(0, 1).all() and table["K-means mean"].between(0, 1).all()
    assert table.loc["digits", "annealed mean"] < table.loc["digits", "K-means mean"]


def test_the_comparison_repeats_and_changes_with_the_seed(tokens):
    first, again, other = (compare_annealing({"blobs": tokens}, 8, 4, seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert first["K-means mean"][0] != other["K-means mean"][0]
    assert first["annealed mean"][0] == pytest.approx(other["annealed mean"][0])  # whatever the starts
    assert first["ratio"][0] == first["annealed spread"][0] / first["K-means spread"][0]


def test_the_comparison_shows_its_progress(tokens):
    seen = []
    table = compare_annealing({"a": tokens, "b": tokens}, 1, 2, progress=lambda clouds: seen.extend(clouds) or clouds)
    assert [name for name, _ in seen] == list(table["cloud"]) == ["a", "b"]
    assert not (table["ratio"] > 0).any()  # one prototype: no spread on either side, and no error
    assert inspect.signature(compare_annealing).parameters["num_prototypes"].default == 8


def test_equal_tokens_leave_every_prototype_on_them():
    tokens = torch.full((5, 2), 3.0, dtype=torch.float64)
    assert torch.equal(annealing.anneal(tokens, 3), tokens[:3])


def test_many_prototypes_in_float32_with_far_starts_stay_numbers():
    tokens = torch.randn(200, 32, generator=torch.Generator().manual_seed(0))
    banks = torch.cat([tokens[:1].repeat(20, 1), 1e3 * tokens[:20]])[None]
    assert torch.isfinite(annealing.anneal(tokens, 40, banks)).all()
