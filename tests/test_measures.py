"""Measures on matrices whose value is known."""

import math

import pytest
import torch

from ddcl_lite import (
    assign,
    checkup,
    effective_rank,
    mean_cosine,
    min_separation,
    perplexity,
    resultant_length,
    usage,
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


@pytest.mark.parametrize("measure", [*MEASURES, usage, perplexity])
def test_bad_input(measure):
    with pytest.raises(ValueError, match="expected finite numbers"):
        measure(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(ValueError, match="^mask: expected at least one row"):
        measure(torch.ones(3, 2), torch.zeros(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="^mask: expected bool of shape"):
        measure(torch.ones(3, 2), torch.ones(3))


@pytest.mark.parametrize("measure", [resultant_length, mean_cosine])
def test_a_zero_vector_has_no_direction(measure):
    with pytest.raises(ValueError, match="zero vector"):
        measure(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


def test_a_checkup_wants_weights_that_belong_to_the_tokens_and_the_bank(scene):
    tokens, bank = scene
    with pytest.raises(ValueError, match=r"^weights: expected shape \(3, 20, 6\)"):
        checkup(tokens, bank, torch.ones(3, 20, 5) / 5)
    with pytest.raises(ValueError, match="^tokens: expected a floating-point tensor .* got list"):
        mean_cosine([[1.0, 2.0]])
