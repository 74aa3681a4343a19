"""Criticality found by simulation, a bank followed through temperatures, and what its splits are compared with."""

import math

import pytest
import torch

from ddcl_lite import critical_temperature, em_step, spread, token_variance
from ddcl_lite.experiments import transition

CROSS = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64) + 100  # C = diag(4.5, .5)


@pytest.mark.parametrize("detach, expected", [(True, 9.0), (False, 18.0)])
@pytest.mark.parametrize("count", [2, 3])
def test_the_measured_critical_temperature_of_a_known_covariance(detach, expected, count):
    measured = transition.measured_critical(CROSS, detach, num_prototypes=count)
    assert measured == pytest.approx(expected, rel=0.03)
    assert critical_temperature(CROSS, None, detach).item() == pytest.approx(expected)


def test_a_cloud_far_from_round_is_within_the_first_bracket():
    line = torch.zeros(50, 12, dtype=torch.float64)
    line[:, 5] = torch.linspace(-1, 1, 50, dtype=torch.float64)
    expected = 2 * token_variance(line)  # one direction has it all
    assert transition.measured_critical(line, True) == pytest.approx(expected, rel=0.03)
    ball = torch.cat([torch.eye(12, dtype=torch.float64), -torch.eye(12, dtype=torch.float64)])
    assert transition.measured_critical(ball, True) == pytest.approx(2 * token_variance(ball) / 12, rel=0.03)


def test_measuring_scales_repeats_and_leaves_the_random_state_alone():
    torch.manual_seed(0)
    first = transition.measured_critical(CROSS, True)
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))
    assert transition.measured_critical(CROSS, True) == first
    assert transition.measured_critical(10 * CROSS, True) == pytest.approx(100 * first)


def test_equal_tokens_have_no_critical_temperature():
    with pytest.raises(ValueError, match="tokens: expected tokens that differ"):
        transition.measured_critical(torch.full((4, 2), 0.1))


def test_the_three_clouds_differ_in_dimension_and_with_the_seed():
    clouds, again, other = (transition.three_clouds(seed) for seed in (0, 0, 1))
    assert [cloud.shape for cloud in clouds.values()] == [(250, 2), (250, 5), (250, 16)]
    assert all(cloud.dtype == torch.float64 for cloud in clouds.values())
    for name, cloud in clouds.items():
        assert torch.equal(cloud, again[name]) and not torch.equal(cloud, other[name])


def test_the_rare_cluster_is_rare_and_far():
    tokens = transition.rare_cluster(1000, share=0.03, distance=50)
    assert (tokens[:, 0] > 25).tolist() == [True] * 30 + [False] * 970


def test_following_ends_at_rest_at_every_temperature():
    tokens = transition.four_blobs()
    critical = critical_temperature(tokens, None, True).item()
    temperatures = [1.2 * critical, 0.5 * critical, 0.2 * critical]
    banks = transition.quasistatic(tokens, tokens.mean(0).repeat(4, 1), temperatures)
    assert banks.shape == (3, 4, 2)
    for bank, temperature in zip(banks, temperatures):
        torch.testing.assert_close(em_step(tokens, bank, temperature), bank, atol=1e-4, rtol=0)
    sizes = [spread(bank, tokens) for bank in banks]
    assert sizes[0] < 1e-3 < 0.1 < sizes[1] < sizes[2]


def test_only_the_shaking_parts_what_coincides():
    tokens = transition.four_blobs()
    together, cold = tokens.mean(0).repeat(4, 1), [0.5 * critical_temperature(tokens, None, True).item()]
    (still,) = transition.quasistatic(tokens, together, cold, noise=0.0, steps=100)
    (shaken,), (same,), (other,) = (transition.quasistatic(tokens, together, cold, seed=seed) for seed in (1, 1, 2))
    assert spread(still) < 1e-9 and spread(shaken) > 0.1
    assert torch.equal(shaken, same) and not torch.equal(shaken, other)


def test_a_rare_cluster_has_hysteresis():
    tokens = transition.rare_cluster()
    critical = critical_temperature(tokens, None, True).item()
    cold = transition.quasistatic(tokens, tokens.mean(0).repeat(4, 1), [1.5 * critical, 0.3 * critical])
    (hot,) = transition.quasistatic(tokens, cold[1], [1.5 * critical])
    assert spread(cold[0], tokens) < 1e-2 and spread(hot, tokens) > 1


def test_groups_are_chains_of_steps_in_units_of_the_tokens():
    tokens = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)  # standard deviation 1
    bank = torch.tensor([[0.0], [5.0], [0.015], [0.03], [5.025]], dtype=torch.float64)
    for scale in (1, 1e6):
        labels = transition.groups(scale * tokens, scale * bank).tolist()
        assert labels[0] == labels[2] == labels[3] and len(set(labels)) == 3
    assert set(transition.groups(tokens, bank, apart=0.03).tolist()) == {0, 1}


def test_cascade_names_the_next_split_and_only_of_prototypes_to_spare():
    pairs = torch.tensor([[-10.0], [-9.0], [9.0], [10.0]], dtype=torch.float64)
    critical = critical_temperature(pairs, None, True).item()
    middle, sides = torch.zeros(4, 1, dtype=torch.float64), torch.tensor([[-9.5], [9.5]], dtype=torch.float64)
    banks = torch.stack([middle, sides[[0, 0, 1, 1]], pairs])
    log = transition.cascade(pairs, banks, [1.5 * critical, 3.0, 0.1])
    assert log["distinct"].tolist() == [1, 2, 4]
    assert log["next split"].tolist() == pytest.approx([critical, 0.5, 0.0])  # a pair at distance 1: 2 * (1/2)^2
    assert math.isclose(log["temperature"][0], 1.5 * critical)
    lonely = transition.cascade(pairs, torch.cat([sides, pairs[:1]])[None], [3.0])
    assert lonely["distinct"].tolist() == [3] and lonely["next split"].tolist() == [0.0]


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_the_measured_temperature_does_not_mind_float32_or_an_offset(offset):
    tokens = (transition.four_blobs() + offset).float()
    measured = transition.measured_critical(tokens, detach_assignment=True)
    assert measured == pytest.approx(critical_temperature(tokens.double(), None, True).item(), rel=0.03)


def test_a_single_prototype_is_one_group():
    tokens = transition.four_blobs()
    assert transition.groups(tokens, tokens[:1]).tolist() == [0]


@pytest.mark.parametrize("detach", [False, True])
def test_a_recorded_descent_is_the_descent(detach):
    tokens, ratios = transition.four_blobs(40), [0.5, 1.2]
    states = transition.descend(tokens, ratios, 3, detach_assignment=detach, record=[0, 1, 20, 50])
    assert states.shape == (4, 2, 3, 2)
    for steps, banks in zip((0, 1, 20, 50), states):
        assert torch.equal(banks, transition.descend(tokens, ratios, 3, steps, detach))
    assert not torch.equal(states[2], states[3])


@pytest.mark.parametrize("record", [[], [3, 3], [5, 2], [-1, 2]])
def test_a_record_that_does_not_increase_is_refused(record):
    with pytest.raises(ValueError, match="record: expected increasing numbers of steps"):
        transition.descend(transition.four_blobs(8), [0.5], record=record)


def test_a_recording_has_both_descents_on_one_axis():
    tokens = transition.four_blobs(60)
    steps, ratios, banks, same, critical = transition.recording(tokens, steps=300, moments=10)
    assert same is tokens and steps[0] == 0 and steps[-1] == 300 and len(steps) <= 11
    assert steps == sorted(set(steps)) and list(critical.values()) == pytest.approx([1, 0.5])
    for name, each in banks.items():
        assert each.shape == (len(steps), len(ratios), 4, 2)
        opened = {ratio for ratio, bank in zip(ratios, each[-1]) if spread(bank, tokens) > 0.05}
        assert max(opened) == pytest.approx(0.9 * critical[name], abs=0.06)
