"""Tokens that share a label: gathering them, split labels in closed form, and the kernel without a labelled winner."""

import math

import pytest
import torch
from scipy.special import iv

import ddcl_lite as dl
from ddcl_lite.experiments import labels
from ddcl_lite.meanfield import dense
from ddcl_lite.meanfield.sphere import shaken, uniform

INDEX = torch.arange(4).repeat_interleave(3)


def ring_kernel(beta=2.0):
    return dl.Toeplitz(beta, torch.cos)


def test_variances_of_each_label_and_of_a_batch():
    tokens = uniform(5, 12, 3, seed=1)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    by_label = labels.label_variances(tokens[:, order], INDEX[order])
    assert by_label.shape == (5, 4)
    for cloud, row, total in zip(tokens, by_label, labels.within(tokens, INDEX)):
        expected = [dl.token_variance(cloud[3 * k : 3 * k + 3]) for k in range(4)]
        assert row.tolist() == pytest.approx(expected)
        assert total.item() == pytest.approx(dl.within_label_variance(cloud, INDEX))
    uneven = torch.tensor([0] * 9 + [5] * 3)
    assert labels.within(tokens[0], uneven).item() == pytest.approx(dl.within_label_variance(tokens[0], uneven))
    vectors = torch.stack([INDEX, 2 * INDEX], -1)
    assert torch.equal(labels.within(tokens, vectors), labels.within(tokens, INDEX))


def test_one_token_a_label_has_no_variance_to_lose():
    assert labels.within(uniform(3, 40, 3), torch.arange(40)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("wrong", [None, torch.arange(11), [0] * 12])
def test_labels_of_the_wrong_length_are_refused(wrong):
    with pytest.raises(ValueError, match="labels: expected"):
        labels.within(uniform(12, 3), wrong)


def test_gathering_reaches_a_graph_and_its_average_is_as_predicted():
    start = uniform(12, 3, seed=2)
    for kernel in (ring_kernel(), dl.Exponential(1.0), dl.Repulsive(1.0), dl.Rotary(2.0, torch.tensor([1.0]))):
        result = labels.gather(kernel, start, INDEX)
        assert labels.within(result.tokens, INDEX) < 1e-25
        assert result.energy[0].item() == pytest.approx(kernel.energy(start, INDEX).item())
        assert result.energy[-1].item() == pytest.approx(kernel.energy(result.tokens, INDEX).item())
        torch.testing.assert_close(result.average, result.predicted, rtol=1e-9, atol=1e-15)
        sign = -1 if isinstance(kernel, dl.Repulsive) else 1
        assert (sign * result.predicted > 0).all()
        assert (result.energy.diff() >= result.average - 1e-15).all(), "the best is no worse than the average"


def test_gathering_picks_the_best_of_the_labels_own_points():
    start, kernel = uniform(6, 3, seed=3), ring_kernel()
    index = torch.tensor([0, 0, 0, 1, 2, 3])
    energies = []
    for choice in range(3):
        tokens = start.clone()
        tokens[:3] = start[choice]
        energies.append(kernel.energy(tokens, index).item())
    result = labels.gather(kernel, start, index)
    assert result.energy.tolist()[1:] == pytest.approx([max(energies)] * 4)
    assert result.average[0].item() == pytest.approx(sum(energies) / 3 - kernel.energy(start, index).item())
    assert (
        torch.equal(result.tokens[3:], start[3:]) and (result.tokens[:3] == start[energies.index(max(energies))]).all()
    )


def test_gathering_refuses_a_batch_and_a_flow_without_energy():
    with pytest.raises(ValueError, match="tokens: expected one cloud"):
        labels.gather(ring_kernel(), uniform(2, 12, 3), INDEX)
    with pytest.raises(ValueError, match="energy: SelfAttention has none"):
        labels.gather(dl.SelfAttention(1.0), uniform(12, 3), INDEX)


def test_shaking_stays_on_the_sphere_near_the_start_and_repeats():
    start = uniform(500, 3, seed=4)
    moved, again, other = (shaken(start, 0.01, seed) for seed in (0, 0, 1))
    assert torch.equal(moved, again) and not torch.equal(moved, other)
    torch.testing.assert_close(moved.norm(dim=-1), torch.ones(500, dtype=torch.float64))
    assert (moved - start).norm(dim=-1).square().mean().sqrt().item() == pytest.approx(0.01 * 2**0.5, rel=0.1)
    assert torch.equal(shaken(start, 0.0), torch.nn.functional.normalize(start, dim=-1))


@pytest.mark.parametrize("beta, repulsion", [(2.0, 0.3), (2.0, 0.1), (0.7, 0.45), (3.0, -0.2)])
def test_the_rates_of_three_split_labels(beta, repulsion):
    tokens, index = labels.three_axes()
    kernel = labels.three_labels(beta, repulsion)
    assert kernel.drift(tokens, index).abs().max() < 1e-15
    rates, formula = dense.rates(kernel, tokens, index), labels.three_axes_rates(beta, repulsion)
    assert rates.shape == formula.shape == (12,)
    torch.testing.assert_close(rates, formula, rtol=0, atol=1e-12)


def test_three_split_labels_are_stable_exactly_where_the_inequality_says():
    for beta in (0.5, 1.5, 2.0, 4.0):
        for repulsion in (0.01, 0.1, 0.2, 0.3, 0.49):
            stable = bool((labels.three_axes_rates(beta, repulsion)[3:] < 0).all())
            assert stable == (repulsion * (beta - 1) > math.exp(-beta))
    assert labels.three_axes_rates(2.0, 0.3)[3].item() == pytest.approx(-0.00743, abs=5e-6)


def test_three_axes_with_more_tokens_a_side():
    tokens, index = labels.three_axes(4)
    assert tokens.shape == (24, 3) and torch.bincount(index).tolist() == [8, 8, 8]
    assert labels.label_variances(tokens, index).tolist() == [1, 1, 1]
    top = dense.rates(labels.three_labels(2.0, 0.3), tokens, index)
    assert (top[:3].abs() < 1e-12).all() and top[3].item() == pytest.approx(-0.00743, abs=5e-6)


def test_the_repulsive_maximum_and_the_windings():
    labels_on_grid = (torch.arange(400).double() + 0.5) / 400
    for beta in (0.5, 1.0, 3.0):
        raw = math.exp(beta)
        assert raw * labels.uniform_energy(beta) == pytest.approx(-iv(0, beta) / (beta * math.e))
        assert labels.largest_repulsive_energy(beta, labels_on_grid) == pytest.approx(
            labels.uniform_energy(beta), rel=1e-4
        )
        for turns in (1, 2, 7):
            gap = labels.uniform_energy(beta) - labels.winding_energy(beta, turns)
            assert gap == pytest.approx(labels.winding_gap(beta, turns), abs=1e-13)
            angles = 2 * math.pi * turns * labels_on_grid
            tokens = torch.stack([angles.cos(), angles.sin()], -1)
            by_library = dl.Repulsive(beta).energy(tokens, labels_on_grid).item()
            assert by_library == pytest.approx(labels.winding_energy(beta, turns), rel=2e-3)


def test_the_windings_of_the_reference():
    energies = [math.e * labels.winding_energy(1.0, k) for k in (1, 4, 16, 32)]
    assert energies == pytest.approx([-0.51346, -0.46886, -0.465954, -0.465808], abs=6e-6)
    assert math.e * labels.uniform_energy(1.0) == pytest.approx(-0.465760, abs=5e-7)


def test_no_cloud_beats_the_repulsive_maximum_and_evenly_spread_labels_reach_it():
    index = torch.arange(6).repeat_interleave(12)
    where = (index + 0.5) / 6
    largest = labels.largest_repulsive_energy(1.0, where)
    assert (dl.Repulsive(1.0).energy(uniform(200, 72, 2), where) < largest).all()
    angles = torch.arange(12, dtype=torch.float64).repeat(6) * (2 * math.pi / 12)
    even = torch.stack([angles.cos(), angles.sin()], -1)
    assert dl.Repulsive(1.0).energy(even, where).item() == pytest.approx(largest, rel=1e-9)


def test_no_graph_comes_closer_to_the_repulsive_maximum_than_the_bound():
    for beta, count in ((1.0, 24), (3.0, 5), (0.5, 2)):
        where = (torch.arange(count) + 0.5) / count
        bound = labels.least_graph_gap(beta, where)
        ratio = math.exp(-1 / count)  # the symbol of the matrix is at least (1 - r)/(1 + r)
        largest = labels.largest_repulsive_energy(beta, where)
        spread = 1 - iv(0, beta) * math.exp(-beta)
        assert bound > spread * (1 - ratio) / (1 + ratio) / (2 * beta * count)
        start = uniform(50, count, 2, seed=5)
        end = dl.integrate(dl.Repulsive(beta), start, where, time=[50], tolerance=1e-3)
        gaps = largest - end.energy
        assert (gaps > bound).all() and gaps[-1].min() < 8 * bound, "and the bound is of the right size"
    alone = torch.zeros(1)
    gap = labels.largest_repulsive_energy(2.0, alone) - dl.Repulsive(2.0).energy(uniform(1, 2), alone).item()
    assert labels.least_graph_gap(2.0, alone) == pytest.approx(gap)


@pytest.mark.parametrize("wrong", [torch.zeros(2), torch.rand(3, 2), torch.zeros(0)])
def test_the_bound_wants_distinct_labels(wrong):
    with pytest.raises(ValueError, match="labels: expected distinct numbers"):
        labels.least_graph_gap(1.0, wrong)


@pytest.mark.parametrize("turns", [0, -1, 1.5, True])
def test_windings_are_whole(turns):
    with pytest.raises(ValueError, match="turns: expected an integer >= 1"):
        labels.winding_energy(1.0, turns)


@pytest.mark.parametrize("function", [labels.uniform_energy, lambda beta: labels.winding_energy(beta, 1)])
def test_beta_is_positive(function):
    with pytest.raises(ValueError, match="beta: expected a finite number > 0"):
        function(-1.0)
