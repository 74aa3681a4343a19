"""The forces of chapter 4 against formulas, differences and each other."""

import math

import pytest
import torch

from ddcl_lite import critical_temperature, free_energy, spread
from ddcl_lite.experiments.forces import TERMS, curvatures, expansion, follow, forces, pulls
from ddcl_lite.experiments.transition import four_blobs
from ddcl_lite.prototypes import dense

T = 3.0


@pytest.fixture
def problem():
    """Tokens (40, 3), not centred and anisotropic, and a bank (4, 3), in float64."""
    generator = torch.Generator().manual_seed(1)
    stretch = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    tokens = torch.randn(40, 3, generator=generator, dtype=torch.float64) * stretch + 1
    return tokens, torch.randn(4, 3, generator=generator, dtype=torch.float64)


def differences(value, bank, step=1e-5):
    """Central differences of a scalar function of the bank."""
    gradient = torch.zeros_like(bank)
    for index in range(bank.numel()):
        shift = torch.zeros(bank.numel(), dtype=bank.dtype)
        shift[index] = step
        shift = shift.view_as(bank)
        gradient.view(-1)[index] = (value(bank + shift) - value(bank - shift)) / (2 * step)
    return gradient


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("name", TERMS)
def test_a_force_is_minus_a_gradient(problem, name, detach):
    tokens, bank = problem
    frozen = dense.assign(tokens, bank, T)

    def value(moved):
        weights = frozen if detach else dense.assign(tokens, moved, T)
        return getattr(dense.split(tokens, moved, weights), TERMS[name]).mean()

    found = forces(tokens, bank, T, detach)[name]
    torch.testing.assert_close(found, -differences(value, bank), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("detach", [True, False])
def test_the_force_of_the_loss_is_the_sum_of_the_other_two(problem, detach):
    found = forces(*problem, T, detach)
    torch.testing.assert_close(found["L_q"], found["V"] + found["L_OLS"])


def test_forces_leave_their_arguments_alone_and_work_without_grad(problem):
    tokens, bank = problem
    before = bank.clone()
    with torch.no_grad():
        found = forces(tokens, bank.requires_grad_(), T)["V"]
    assert bank.grad is None and torch.equal(bank, before) and not found.requires_grad


@pytest.mark.parametrize("detach", [True, False])
def test_banks_and_temperatures_in_a_batch_are_separate_problems(problem, detach):
    tokens, bank = problem
    banks, temperatures = torch.stack([bank, 2 * bank + 1]), torch.tensor([1.0, 4.0], dtype=torch.float64)
    together = forces(tokens, banks, temperatures, detach)
    for row in range(2):
        alone = forces(tokens, banks[row], float(temperatures[row]), detach)
        for name in TERMS:
            torch.testing.assert_close(together[name][row], alone[name])
    torch.testing.assert_close(pulls(tokens, banks, temperatures)[1], pulls(tokens, banks[1], 4.0))


def test_with_q_frozen_v_points_at_every_centre(problem):
    tokens, bank = problem
    force, value = forces(tokens, bank, T, True)["V"], dense.decompose(tokens, bank, T).variance
    for centre in (0.0, -5.0, bank[0], tokens.mean(0)):
        torch.testing.assert_close((force * (bank - centre)).sum(), -2 * value)
    attached = forces(tokens, bank, T, False)["V"]
    assert ((attached * bank).sum() + 2 * value).abs() > 1e-2


def test_expansion_is_the_rate_of_the_log_of_the_spread(problem):
    _, bank = problem
    assert expansion(-0.3 * (bank - 7), bank) == pytest.approx(-0.3)  # a common push does not count
    force, step = torch.randn_like(bank), 1e-6
    rate = (math.log(spread(bank + step * force)) - math.log(spread(bank - step * force))) / (2 * step)
    assert float(expansion(force, bank)) == pytest.approx(rate, rel=1e-6)
    assert expansion(torch.stack([force, 2 * force]), bank).shape == (2,)


def test_follow_starts_at_the_bank_and_takes_plain_steps(problem):
    tokens, bank = problem
    path = follow(tokens, bank, T, "L_OLS", detach_assignment=True, rate=0.3, steps=2)
    assert path.shape == (3, 4, 3) and torch.equal(path[0], bank)
    for before, after in zip(path, path[1:]):  # the second step needs q of the moved bank
        torch.testing.assert_close(after, before + 0.3 * forces(tokens, before, T, True)["L_OLS"])


def test_follow_shows_its_progress_and_refuses_an_unknown_term(problem):
    seen = []
    follow(*problem, T, steps=3, progress=lambda steps: seen.extend(steps) or range(3))
    assert seen == [0, 1, 2]
    with pytest.raises(ValueError, match="term: expected one of V, L_OLS, L_q, got 'variance'"):
        follow(*problem, T, "variance")


def test_each_flow_descends_what_it_should():
    tokens = four_blobs()
    temperature = 0.3 * float(critical_temperature(tokens))
    start = tokens[:4]
    frozen, attached = (follow(tokens, start, temperature, "L_q", detach, steps=50) for detach in (True, False))
    energies = torch.stack([free_energy(tokens, bank, temperature) for bank in frozen])
    losses = torch.stack([dense.decompose(tokens, bank, temperature).total for bank in attached])
    assert energies.diff().max() < 0 and losses.diff().max() < 0


@pytest.mark.parametrize("seed", range(5))
def test_where_single_terms_lead(seed):
    tokens = four_blobs(seed=seed)
    critical = float(critical_temperature(tokens))
    start, small = tokens[:4], tokens.mean(0) + 1e-2 * (tokens[:4] - tokens[:4].mean(0))
    closed = follow(tokens, start, 0.5 * critical, "V", True, steps=100)[-1]
    torch.testing.assert_close(closed, start.mean(0).expand(4, 2), rtol=0, atol=1e-6)  # its own mean, to a point
    assert spread(follow(tokens, small, 2 * critical, "L_OLS", True, steps=100)[-1]) > 10 * spread(small)


@pytest.mark.parametrize("u, outward", [(0.5, False), (1.199, False), (1.2, True), (3.0, True)])
def test_two_and_two(u, outward):
    a, temperature = 1.5, 0.7
    s = u * temperature / (2 * a)
    sides = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    frozen, attached = (forces(a * sides, s * sides, temperature, detach)["V"] for detach in (True, False))
    assert float(frozen[0]) == pytest.approx(-s / math.cosh(u) ** 2)
    assert float(attached[0]) == pytest.approx(-s / math.cosh(u) ** 2 * (1 - u * math.tanh(u)))
    assert (attached[0] > 0) == (attached[1] < 0) == outward


def test_pulls_sum_to_one_give_the_gradient_and_turn_at_the_stated_distance(problem):
    tokens, bank = problem
    weights = pulls(tokens, bank, 0.5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(40, dtype=torch.float64))
    gradient = 2 * (weights[..., None] * (bank - tokens[:, None])).mean(0)
    torch.testing.assert_close(forces(tokens, bank, 0.5)["L_q"], -gradient)
    distances = dense.squared_distances(tokens, bank)
    limit = (dense.assign(tokens, bank, 0.5) * distances).sum(-1, keepdim=True) + 0.5
    assert torch.equal(weights < 0, distances > limit)
    assert (weights < 0).any() and (weights > 1).any()


@pytest.mark.parametrize("step", [None, 1e-4])
@pytest.mark.parametrize("detach, factor", [(True, 2), (False, 4)])
@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_curvatures_at_collapse(problem, count, detach, factor, step):
    tokens, _ = problem
    offsets = torch.randn(count, 3, dtype=torch.float64)
    offsets = offsets - offsets.mean(0)
    opening = -factor / T * offsets @ torch.cov(tokens.T, correction=0)
    found = curvatures(tokens, offsets, T, detach, step=step)
    for name, expected in {"V": offsets, "L_OLS": opening, "L_q": offsets + opening}.items():
        assert (found[name] - expected).norm() / expected.norm() < 5e-5, name


@pytest.mark.parametrize("detach, factor", [(True, 2), (False, 4)])
def test_curvatures_off_the_mean_and_of_the_mean_mode(problem, detach, factor):
    tokens, _ = problem
    centre = torch.tensor([0.0, 3.0, 1.0], dtype=torch.float64)
    offsets = torch.tensor([[1.0, 2.0, 0.0], [-1.0, -2.0, 0.0]], dtype=torch.float64)
    y = tokens - centre
    found = curvatures(tokens, offsets, T, detach, centre=centre)
    torch.testing.assert_close(found["V"], offsets)
    torch.testing.assert_close(found["L_OLS"], -factor / T * offsets @ (y.T @ y) / len(y))
    shift = torch.ones_like(offsets)
    moved = curvatures(tokens, shift, T, detach)
    for name, expected in {"V": 0 * shift, "L_OLS": shift, "L_q": shift}.items():
        torch.testing.assert_close(moved[name], expected)
