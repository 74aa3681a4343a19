"""Measures on matrices whose value is known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from ddcl_lite import (
    assign,
    between_label_variance,
    checkup,
    circle_wasserstein,
    cluster_count,
    covariance_spectrum,
    effective_rank,
    mean_cosine,
    min_separation,
    perplexity,
    resultant_length,
    token_variance,
    usage,
    within_label_variance,
)

MEASURES = [resultant_length, mean_cosine, effective_rank]


def rotation(dim):
    return torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64)).Q


def test_known_values():
    cross = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    assert resultant_length(cross) == pytest.approx(0, abs=1e-7)
    assert mean_cosine(cross) == pytest.approx(-1 / 3)
    assert effective_rank(cross) == pytest.approx(2)
    right_angle = torch.eye(2) * torch.tensor([[3.0], [5.0]])
    assert resultant_length(right_angle) == pytest.approx(math.sqrt(0.5))
    assert mean_cosine(right_angle) == pytest.approx(0, abs=1e-6)
    line = torch.arange(5.0)[:, None] * torch.tensor([[1.0, 2.0, 3.0]])
    assert effective_rank(line) == pytest.approx(1, abs=1e-3)


def test_mean_cosine_is_the_mean_over_pairs():
    tokens = torch.randn(6, 4, dtype=torch.float64)
    unit = tokens / tokens.norm(dim=-1, keepdim=True)
    pairs = [(unit[i] @ unit[j]).item() for i in range(6) for j in range(6) if i != j]
    assert mean_cosine(tokens) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.parametrize("measure", MEASURES)
def test_invariance_to_rotation_order_and_scale(measure):
    tokens = torch.randn(20, 4, dtype=torch.float64) + 0.5
    value = measure(tokens)
    assert measure(tokens @ rotation(4)) == pytest.approx(value)
    assert measure(tokens[torch.randperm(20)]) == pytest.approx(value)
    assert measure(7 * tokens) == pytest.approx(value)


@pytest.mark.parametrize("measure", MEASURES)
def test_masked_tokens_do_not_count(measure):
    tokens, mask = torch.randn(3, 5, 4, dtype=torch.float64), torch.rand(3, 5) > 0.4
    dirty = torch.where(mask[..., None], tokens, torch.nan)
    assert measure(dirty, mask) == pytest.approx(measure(tokens[mask]))


def test_degenerate_tokens():
    one, equal = torch.randn(1, 4), torch.randn(4).expand(6, 4)
    assert resultant_length(one) == pytest.approx(1) and mean_cosine(one) == 1 and effective_rank(one) == 0
    assert resultant_length(equal) == pytest.approx(1) and mean_cosine(equal) == pytest.approx(1)
    assert effective_rank(equal) == 0


def test_min_separation():
    bank = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    assert min_separation(bank) == pytest.approx(1)
    tokens = torch.tensor([[2.0, 0.0], [-2.0, 0.0]])  # standard deviation 2
    assert min_separation(bank, tokens) == pytest.approx(0.5)
    assert min_separation(10 * bank, 10 * tokens) == pytest.approx(0.5)
    assert min_separation(bank[:1]) == math.inf
    assert min_separation(bank[:1].expand(4, 2)) == 0
    with pytest.raises(ValueError, match=r"prototypes: expected one bank \(K, D\), got shape \(2, 3, 4\)"):
        min_separation(torch.randn(2, 3, 4))
    with pytest.raises(ValueError, match="tokens: expected tokens that differ"):
        min_separation(bank, torch.ones(3, 2))


def readings(tokens, bank, temperature, mask=None):
    return checkup(tokens, bank, assign(tokens, bank, temperature, mask), mask)


@pytest.fixture
def scene():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(3, 20, 4, generator=generator, dtype=torch.float64) + 0.5
    return tokens, torch.randn(6, 4, generator=generator, dtype=torch.float64)


def test_the_checkup_is_invariant_to_rotation_order_and_a_common_scale(scene):
    tokens, bank = scene
    report, turn = readings(tokens, bank, 1.0), rotation(4)
    assert readings(tokens @ turn, bank @ turn, 1.0) == pytest.approx(report)
    assert readings(tokens[:, torch.randperm(20)], bank, 1.0) == pytest.approx(report)
    assert readings(tokens, bank[torch.randperm(6)], 1.0) == pytest.approx(report)
    assert readings(7 * tokens, 7 * bank, 49.0) == pytest.approx(report)


def test_the_checkup_names_every_measure(scene):
    tokens, bank = scene
    weights = assign(tokens, bank, 0.3)
    assert checkup(tokens, bank, weights) == {
        "usage by q > 0": usage(weights, hard=False),
        "perplexity of mean q": perplexity(weights, hard=False),
        "usage by argmax": usage(weights),
        "perplexity of argmax": perplexity(weights),
        "separation, token sd": min_separation(bank, tokens),
        "effective rank, bank": effective_rank(bank),
        "effective rank, tokens": effective_rank(tokens),
        "mean cosine, all tokens": mean_cosine(tokens),
        "mean cosine, within a sequence": pytest.approx(sum(map(mean_cosine, tokens)) / 3),
    }


def test_masked_tokens_do_not_count_in_a_checkup(scene):
    tokens, bank = scene
    mask = torch.arange(20) < torch.tensor([[20], [7], [0]])  # the last sequence has no token at all
    dirty = torch.where(mask[..., None], tokens, torch.nan)
    report, clean = readings(dirty, bank, 1.0, mask), readings(tokens[mask], bank, 1.0)
    within = report.pop("mean cosine, within a sequence")
    assert within == pytest.approx((mean_cosine(tokens[0]) + mean_cosine(tokens[1, :7])) / 2)
    clean.pop("mean cosine, within a sequence")
    assert report == pytest.approx(clean)


def test_masked_tokens_do_not_count_for_the_unit_of_separation(scene):
    tokens, bank = scene
    mask = torch.rand(3, 20, generator=torch.Generator().manual_seed(1)) > 0.5
    dirty = torch.where(mask[..., None], tokens, torch.inf)
    assert min_separation(bank, dirty, mask) == pytest.approx(min_separation(bank, tokens[mask]))


@pytest.mark.parametrize("shape", [(1, 4), (2, 5, 4)])
def test_a_checkup_of_agreement_of_one_token_and_of_a_bank_of_one(shape):
    tokens = torch.arange(1.0, 5).expand(shape)
    assert resultant_length(tokens) == pytest.approx(1) and mean_cosine(tokens) == pytest.approx(1)
    with pytest.raises(ValueError, match="tokens: expected tokens that differ"):
        readings(tokens, torch.randn(3, 4), 1.0)  # no unit of distance is left
    report = readings(torch.randn(2, 5, 4), torch.randn(1, 4), 1.0)
    assert report["separation, token sd"] == math.inf and report["effective rank, bank"] == 0
    assert report["usage by argmax"] == report["perplexity of argmax"] == report["perplexity of mean q"] == 1


def test_usage_and_perplexity():
    weights = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.2, 0.7, 0.1]])
    assert usage(weights) == pytest.approx(2 / 3)
    assert perplexity(weights) == pytest.approx(2)
    assert perplexity(weights, hard=False) > 2
    mask = torch.tensor([True, True, False, False])
    assert usage(weights, mask) == pytest.approx(1 / 3) and perplexity(weights, mask) == pytest.approx(1)


def test_a_collapsed_bank_scores_full_soft_perplexity_and_one_kth_of_usage():
    weights = torch.full((50, 8), 1 / 8)
    assert perplexity(weights, hard=False) == pytest.approx(8)
    assert usage(weights, hard=False) == 1
    assert usage(weights) == pytest.approx(1 / 8) and perplexity(weights) == pytest.approx(1)


def test_usage_by_q_counts_a_prototype_that_one_real_token_touches():
    weights = torch.tensor([[0.9, 0.1, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert usage(weights, hard=False) == 1
    assert usage(weights, torch.tensor([True, True, False]), hard=False) == pytest.approx(2 / 3)


@pytest.mark.parametrize("measure", [*MEASURES, usage, perplexity, covariance_spectrum])
def test_bad_input(measure):
    with pytest.raises(ValueError, match="expected finite numbers"):
        measure(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(ValueError, match="^mask: expected at least one row"):
        measure(torch.ones(3, 2), torch.zeros(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="^mask: expected bool of shape"):
        measure(torch.ones(3, 2), torch.ones(3))


@pytest.mark.parametrize("measure", [resultant_length, mean_cosine, cluster_count])
def test_a_zero_vector_has_no_direction(measure):
    with pytest.raises(ValueError, match="zero vector"):
        measure(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


def test_a_checkup_wants_weights_that_belong_to_the_tokens_and_the_bank(scene):
    tokens, bank = scene
    with pytest.raises(ValueError, match=r"^weights: expected shape \(3, 20, 6\)"):
        checkup(tokens, bank, torch.ones(3, 20, 5) / 5)
    with pytest.raises(ValueError, match="^tokens: expected a floating-point tensor .* got list"):
        mean_cosine([[1.0, 2.0]])


@pytest.mark.parametrize("n, dim", [(20, 4), (3, 5), (1, 3)])
def test_covariance_spectrum_is_that_of_the_matrix(n, dim):
    tokens = torch.randn(n, dim, dtype=torch.float64) + 3
    covariance = torch.from_numpy(np.atleast_2d(np.cov(tokens.numpy().T, bias=True)))
    values = covariance_spectrum(tokens)
    assert len(values) == dim and values == sorted(values, reverse=True) and min(values) >= 0
    assert values == pytest.approx(torch.linalg.eigvalsh(covariance).flip(0).tolist(), abs=1e-13)
    assert sum(values) == pytest.approx(token_variance(tokens), abs=1e-13)


def test_covariance_spectrum_is_invariant_to_rotation_order_and_place_and_counts_real_tokens_alone():
    tokens, mask = torch.randn(3, 7, 4, dtype=torch.float64), torch.rand(3, 7) > 0.4
    values = covariance_spectrum(tokens, mask)
    assert covariance_spectrum(torch.where(mask[..., None], tokens, torch.nan), mask) == values
    assert covariance_spectrum(tokens[mask][torch.randperm(mask.sum())] @ rotation(4) - 5) == pytest.approx(values)
    assert covariance_spectrum(3 * tokens, mask) == pytest.approx([9 * value for value in values])
    assert covariance_spectrum(torch.ones(5, 3)) == [0, 0, 0]


def on_circle(*angles):
    angles = torch.tensor(angles, dtype=torch.float64)
    return torch.stack([angles.cos(), angles.sin()], -1)


def test_cluster_count_of_known_clouds():
    assert cluster_count(on_circle(0, 0.05, 2, 2.05, 4)) == 3
    assert cluster_count(on_circle(0, 0.09, 0.18, 0.27, 0.36)) == 1  # a chain
    assert cluster_count(on_circle(0, 0.101)) == 2 and cluster_count(on_circle(0, 0.099)) == 1
    assert cluster_count(on_circle(6.25, 0.05), 0.1) == 1  # round the corner
    assert cluster_count(on_circle(0, math.pi - 1e-3), math.pi) == 1
    assert cluster_count(on_circle(0, 1e-7), 2e-7) == 1 and cluster_count(on_circle(0, 1e-7), 5e-8) == 2
    assert cluster_count(torch.ones(1, 3)) == cluster_count(torch.ones(9, 3)) == 1
    assert cluster_count(torch.cat([torch.eye(4), -torch.eye(4)])) == 8


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 25), dim=st.integers(2, 5), angle=st.floats(0.01, math.pi), seed=st.integers(0, 10_000))
def test_cluster_count_is_that_of_growing_each_cluster_from_one_token(n, dim, angle, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    unit = tokens / tokens.norm(dim=-1, keepdim=True)
    near = torch.acos((unit @ unit.mT).clamp(-1, 1)) < angle
    left, count = set(range(n)), 0
    while left:
        count, grown = count + 1, [left.pop()]
        while grown:
            one = grown.pop()
            joined = {other for other in left if near[one, other]}
            left -= joined
            grown += joined
    assert cluster_count(tokens, angle) == count
    turned = tokens[torch.randperm(n, generator=generator)] @ rotation(dim)
    assert cluster_count(turned * torch.rand(n, 1, generator=generator).double().clamp_min(0.1), angle) == count


@pytest.mark.parametrize("angle", [0, -0.1, 3.2, math.nan, math.inf])
def test_cluster_count_wants_an_angle(angle):
    with pytest.raises(ValueError, match=r"^angle: expected radians in \(0, pi\], got"):
        cluster_count(torch.ones(3, 2), angle)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 30), values=st.integers(1, 5), pairs=st.booleans(), seed=st.integers(0, 10_000))
def test_label_variances_are_sums_over_labels_and_invariant(n, values, pairs, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(values, (n, 2) if pairs else (n,), generator=generator) * 0.1
    groups = {}
    for token, label in zip(tokens.numpy(), labels.tolist()):
        groups.setdefault(str(label), []).append(token)
    middle = tokens.numpy().mean(0)
    within = sum(((np.array(group) - np.mean(group, 0)) ** 2).sum() for group in groups.values()) / n
    between = sum(len(group) * ((np.mean(group, 0) - middle) ** 2).sum() for group in groups.values()) / n
    order, turn = torch.randperm(n, generator=generator), rotation(3)
    for measure, expected in ((within_label_variance, within), (between_label_variance, between)):
        assert measure(tokens, labels) == pytest.approx(expected, abs=1e-13)
        assert measure(tokens[order] @ turn + 2, -labels[order]) == pytest.approx(expected, abs=1e-13)
    total = within_label_variance(tokens, labels) + between_label_variance(tokens, labels)
    assert total == pytest.approx(token_variance(tokens), abs=1e-13)


def test_label_variances_at_the_ends():
    tokens = torch.randn(6, 3)
    assert within_label_variance(tokens, torch.arange(6)) == pytest.approx(0, abs=1e-12)
    assert between_label_variance(tokens, torch.zeros(6)) == pytest.approx(0, abs=1e-12)
    assert within_label_variance(tokens[[0, 0, 1, 1]], torch.tensor([5, 5, -2, -2])) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("measure", [within_label_variance, between_label_variance])
def test_label_variances_want_one_label_a_token(measure):
    for labels in (torch.ones(4), torch.tensor(1.0), torch.ones(5, 1, 1)):
        with pytest.raises(ValueError, match="^labels: expected a tensor with one for each of the 5 tokens"):
            measure(torch.ones(5, 3), labels)
    with pytest.raises(ValueError, match="^labels: expected a tensor with one for each"):
        measure(torch.ones(2, 5, 3), torch.ones(10))
    with pytest.raises(ValueError, match="^tokens: expected finite numbers"):
        measure(torch.full((5, 3), torch.nan), torch.ones(5))


def by_assignment(first, second):
    """The best matching of two samples whose points are repeated until there are equally many."""
    size = math.lcm(len(first), len(second))
    one, other = (sample.repeat_interleave(size // len(sample)).numpy() for sample in (first, second))
    gap = np.abs(one[:, None] - other[None]) % (2 * math.pi)
    cost = np.minimum(gap, 2 * math.pi - gap)
    return cost[linear_sum_assignment(cost)].mean()


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 9), m=st.integers(1, 9), wide=st.sampled_from([0.1, 3.0, 100.0]), seed=st.integers(0, 10_000))
def test_circle_wasserstein_is_the_best_matching(n, m, wide, seed):
    generator = torch.Generator().manual_seed(seed)
    one, other = (wide * torch.randn(size, generator=generator, dtype=torch.float64) for size in (n, m))
    distance = circle_wasserstein(one, other)
    assert distance == pytest.approx(by_assignment(one, other), abs=1e-12)
    turn = torch.randn((), generator=generator)
    assert circle_wasserstein(other + turn, one.flip(0) + turn + 4 * math.pi) == pytest.approx(distance, abs=1e-11)
    assert circle_wasserstein(-one, -other) == pytest.approx(distance, abs=1e-12)
    assert circle_wasserstein(one, one[torch.randperm(n, generator=generator)]) == pytest.approx(0, abs=1e-12)


def test_circle_wasserstein_of_known_samples():
    zero = torch.zeros(3)
    assert circle_wasserstein(zero, torch.tensor([math.pi])) == pytest.approx(math.pi, rel=1e-6)
    assert circle_wasserstein(torch.tensor([0.1]), torch.tensor([2 * math.pi - 0.1])) == pytest.approx(0.2, rel=1e-5)
    grid = torch.arange(1000).double() * (2 * math.pi / 1000)
    assert circle_wasserstein(grid, zero) == pytest.approx(math.pi / 2, rel=1e-5)
    assert circle_wasserstein(grid, grid + math.pi / 1000) == pytest.approx(math.pi / 1000)
    assert circle_wasserstein(torch.tensor([0, 3]), torch.tensor([3, 0])) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("bad", [torch.ones(0), torch.ones(2, 2), torch.tensor(1.0), torch.tensor([1.0, torch.nan])])
def test_circle_wasserstein_names_the_bad_sample(bad):
    for name, samples in (("angles", (bad, torch.ones(2))), ("others", (torch.ones(2), bad))):
        with pytest.raises(ValueError, match=rf"^{name}: expected a tensor of at least one finite angle \(n,\), got"):
            circle_wasserstein(*samples)
