"""Which kernels collapse: couplings drawn on either side of the condition, thresholds, circles and torn states."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import iv

from ddcl_lite.experiments import signs
from ddcl_lite.meanfield import coupled, dense
from ddcl_lite.meanfield.coupled import Coupled, Toeplitz
from ddcl_lite.meanfield.flow import integrate
from ddcl_lite.meanfield.maximizers import latitude_balance, latitude_circle, latitude_energy, signed_laplacian
from ddcl_lite.meanfield.sphere import ring, uniform

RING = ring(24)
POINT = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_drawn_couplings_have_the_lowest_eigenvalue_asked_for(size):
    least = torch.tensor([-1.5, 0.0, 0.25], dtype=torch.float64)
    drawn = signs.random_couplings(3, size, least, seed=4)
    for a, value in zip(drawn, least):
        eigenvalues = torch.linalg.eigvalsh(signed_laplacian(a))
        assert torch.equal(a, a.mT)
        assert min(eigenvalues.tolist(), key=lambda v: abs(v - value)) == pytest.approx(value.item(), abs=1e-12)
        assert eigenvalues[0].item() == pytest.approx(min(0.0, value.item()), abs=1e-12)  # constants have 0
        lowest, vector = signs.lowest(a)
        torch.testing.assert_close(signed_laplacian(a) @ vector, lowest * vector, atol=1e-12, rtol=0)
        assert vector.sum().abs() < 1e-12 and vector.norm().item() == pytest.approx(1)


@pytest.mark.parametrize("entries", [2**18, 40])
def test_couplings_in_a_batch_are_themselves_one_by_one(entries, monkeypatch):
    monkeypatch.setitem(coupled.ENTRIES, "cpu", entries)
    a = signs.random_couplings(4, 5, torch.zeros(4, dtype=torch.float64))
    x, index = uniform(4, 2, 5, 3, seed=1), torch.arange(5)
    together = signs.coupled(1.3, a[:, None])
    for r in range(4):
        alone = Coupled(1.3, lambda i, j, r=r: a[r][i, j])
        torch.testing.assert_close(together.drift(x, index)[r], alone.drift(x[r], index))
        torch.testing.assert_close(together.energy(x, index)[r], alone.energy(x[r], index))
        torch.testing.assert_close(dense.drift(together, x, index)[r], dense.drift(alone, x[r], index))


def test_what_is_not_symmetric_or_not_finite_is_refused():
    x, index = uniform(24, 3), torch.arange(24)
    with pytest.raises(ValueError, match="profile: expected a symmetric coupling"):
        Toeplitz(1.0, torch.sin).energy(x, RING)
    with pytest.raises(ValueError, match="profile: expected a symmetric coupling"):
        integrate(Toeplitz(1.0, lambda t: 1 + 0.01 * t.sin()), x, RING)
    with pytest.raises(ValueError, match="coupling: expected a symmetric coupling"):
        signs.coupled(1.0, torch.randn(2, 24, 24)).drift(uniform(2, 24, 3), index)
    with pytest.raises(ValueError, match="coupling: expected a tensor of finite numbers"):
        signs.coupled(1.0, torch.full((2, 24, 24), math.nan)).drift(uniform(2, 24, 3), index)
    with pytest.raises(ValueError, match="coupling: expected symmetric matrices"):
        signed_laplacian(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
    with pytest.raises(ValueError, match="dim"):
        signs.first_unstable(4)


def test_rates_at_consensus_are_those_of_the_laplacian():
    (a,) = signs.random_couplings(1, 6, torch.tensor([-0.7], dtype=torch.float64))
    found = dense.rates(Coupled(2.0, lambda i, j: a[i, j]), POINT.expand(6, -1).contiguous(), torch.arange(6))
    expected = (-torch.linalg.eigvalsh(signed_laplacian(a)) / 6).repeat(2).sort(descending=True).values
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("beta, dim", [(0.5, 2), (3.0, 4)])
def test_consensus_wins_if_the_laplacian_allows_and_loses_if_not(beta, dim):
    above = signs.random_couplings(30, 5, torch.linspace(0, 1, 30, dtype=torch.float64))
    consensus, drawn, ascended = signs.contest(above, beta, dim).unbind(-1)
    torch.testing.assert_close(consensus, above.mean((-2, -1)) / (2 * beta))
    assert (drawn <= ascended + 1e-12).all() and (ascended <= consensus + 1e-12).all()
    assert (above < 0).any(-1).any(-1).double().mean() > 0.5
    below = signs.random_couplings(30, 5, -torch.linspace(0.1, 1, 30, dtype=torch.float64))
    gain, predicted = signs.displaced(below, beta, dim).unbind(-1)
    assert (gain > 0).all()
    torch.testing.assert_close(gain, predicted, rtol=1e-2, atol=0)
    assert (signs.displaced(above[1:], beta, dim)[:, 0] < 0).all()


def test_the_average_second_variation_towards_a_random_point():
    """The identity in the proof that no other equilibrium is stable for a >= 0 and d >= 3, where it is positive."""
    n, beta, generator = 6, 1.7, torch.Generator().manual_seed(0)
    a = torch.rand(n, n, generator=generator, dtype=torch.float64)
    a = a + a.mT
    kernel, index = Coupled(beta, lambda i, j: a[i, j]), torch.arange(n)
    for dim in (2, 3, 5):
        x = uniform(n, dim, seed=dim)
        frame = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]
        pairs = torch.combinations(torch.arange(dim))  # a design: the average of a form of degree 4 or less is exact
        points = [s * u for u in frame for s in (1, -1)]
        weights = [(4 - dim) / (2 * dim * (dim + 2))] * len(points)
        for i, j in pairs:
            points += [(s * frame[i] + r * frame[j]) / math.sqrt(2) for s in (1, -1) for r in (1, -1)]
            weights += [1 / (dim * (dim + 2))] * 4
        average = 0.0
        for v, weight in zip(points, weights):
            sides = torch.stack([torch.nn.functional.normalize(x + s * v, dim=-1) for s in (-1e-4, 0, 1e-4)])
            left, middle, right = kernel.energy(sides, index).tolist()
            average += weight * (left - 2 * middle + right) / 1e-8
        t = x @ x.mT
        bracket = dim - 2 - t + beta * (1 - t.square())
        formula = (a * torch.exp(beta * (t - 1)) * (1 - t) * bracket).sum().item() / (n**2 * dim)
        assert sum(weights) == pytest.approx(1)
        assert average == pytest.approx(formula, rel=1e-4)
        assert dim == 2 or formula > 0


def test_thresholds_agree_with_integrals():
    def out_of_plane(beta):
        return quad(lambda u: math.cos(u) * (1 - math.cos(u)) * math.exp(beta * math.cos(u)), 0, math.pi)[0]

    def in_plane(beta, k):
        def integrand(u):
            pull = (beta * math.sin(u) ** 2 - math.cos(u)) * math.exp(beta * (math.cos(u) - 1))
            return math.cos(u) * pull * (1 - math.cos(k * u))

        return quad(integrand, 0, math.pi)[0]

    assert signs.first_unstable(3) == pytest.approx(brentq(out_of_plane, 1, 2), abs=2e-5)
    assert signs.first_unstable(2) == pytest.approx(brentq(in_plane, 1, 3, args=(2,)), abs=2e-5)
    assert signs.first_unstable(2, 3) == pytest.approx(brentq(in_plane, 1, 3, args=(3,)), abs=2e-5)
    assert signs.first_unstable(3, 1, 0.3, bracket=(0.3, 1.2)) == pytest.approx(latitude_balance(0.3), abs=3e-5)
    assert latitude_balance(0.0) == pytest.approx(1.545127, abs=5e-7)


@pytest.mark.parametrize("beta", [0.7, 1.6, 1.9])
def test_the_displacements_of_a_great_circle_are_its_fourier_modes(beta):
    """So the thresholds belong to mode 0 out of the plane, and to modes 2 and 3 within it (sine and cosine each)."""
    theta, mean = ring(16), 0.1
    weight = (mean + theta.cos()) * (beta * (theta.cos() - 1)).exp()
    across = [(weight * ((k * theta).cos() - theta.cos())).mean().item() for k in range(16)]
    bend = beta * theta.sin() ** 2 - theta.cos()
    along = [(weight * bend * (1 - (k * theta).cos())).mean().item() for k in range(16)]
    for dim, modes in ((2, along), (3, across + along)):
        found = dense.rates(signs.cosine(beta, mean), latitude_circle(theta)[:, :dim].contiguous(), theta)
        assert found.tolist() == pytest.approx(sorted(modes, reverse=True), abs=1e-10)
    assert max(across) == pytest.approx(max(0, across[0]), abs=1e-15)


def test_a_bracket_without_a_threshold_is_refused():
    with pytest.raises(ValueError, match="bracket: expected a threshold inside"):
        signs.first_unstable(3, bracket=(1.6, 1.9))  # unstable at both ends
    with pytest.raises(ValueError, match="bracket: expected a threshold inside"):
        signs.first_unstable(3, bracket=(1.0, 1.5))  # at neither


@pytest.mark.parametrize("mean", [-0.9, 0.0, 0.3, 0.49])
def test_one_latitude_circle_is_best(mean):
    t = np.linspace(0.001, 12, 4000)
    values = np.exp(-t) * (mean * iv(0, t) + iv(1, t))
    turns = np.flatnonzero(np.diff(np.sign(np.diff(values))))
    assert len(turns) == (latitude_balance(mean) < 12)
    if len(turns):
        assert t[turns[0] + 1] == pytest.approx(latitude_balance(mean), abs=0.01)


def test_tokens_settle_on_the_predicted_circle():
    balance, share = signs.settled_balance([0.0, 0.45], 1.7, seed=3)
    assert balance == pytest.approx([latitude_balance(0.0), latitude_balance(0.45)], rel=0.01)
    assert min(share) > 0.999


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_the_border_of_consensus_found_by_simulation(beta):
    low, high = signs.consensus_threshold(beta, seed=5)
    assert 0.49 < low < 0.5 < high < 0.51 and high - low < 0.003


@pytest.mark.parametrize("shift, word", [(-2.0, "leave"), (2.0, "return")])
def test_a_border_outside_the_search_is_no_border(shift, word, monkeypatch):
    monkeypatch.setattr(signs, "cosine", lambda beta, mean: Toeplitz(beta, lambda t: shift + mean + t.cos()))
    with pytest.raises(ValueError, match=f"no border within 0 <= c <= 1, since all {word}"):
        signs.consensus_threshold(1.0, time=20.0)


def test_kinds_of_states():
    ordered = torch.stack([latitude_circle(RING, 0.6), latitude_circle(RING), POINT.expand(24, -1), uniform(24, 3)])
    turned = ordered @ torch.linalg.qr(uniform(3, 3, seed=1))[0]
    assert signs.kinds(turned, RING) == ["latitude circle", "great circle", "consensus", "other"]
    scrambled = latitude_circle(RING, 0.6)[torch.randperm(24, generator=torch.Generator().manual_seed(0))]
    assert signs.kinds(scrambled[None], RING) == ["other"]
    rbar, share = signs.ring_state(turned, RING)
    assert rbar[:3].tolist() == pytest.approx([0.6, 0, 1], abs=1e-12)
    assert share[:3].tolist() == pytest.approx([1, 1, 1])


def test_not_every_start_reaches_the_latitude_circle():
    kernel = signs.cosine(1.0, 0.3)
    table = signs.outcomes(kernel, RING, runs=16, time=800.0, seed=0)
    assert table["starts"].sum() == 16 and set(table["state"]) == {"latitude circle", "other"}
    assert table["E"].is_monotonic_decreasing and (table["top rate"] < -1e-3).all()
    assert table["E"][0] == pytest.approx(signs.predicted(1.0, 0.3), rel=1e-9)
    for row in table.to_dict("records"):
        tokens = row["tokens"]
        assert kernel.energy(tokens, RING).item() == pytest.approx(row["E"])
        assert row["speed"] < 1e-5 and kernel.drift(tokens, RING).norm(dim=-1).max() < 1e-5
        across = torch.linalg.eigvalsh(tokens.T @ tokens / 24)[0].item()
        assert row["off plane"] ** 2 == pytest.approx(across, abs=1e-9)
        assert row["off plane"] < 1e-3 if row["state"] == "other" else row["off plane"] > 0.1
    circle = latitude_circle(RING, math.sqrt(1 - latitude_balance(0.3)))
    near, far = signs.returning(kernel, circle, RING, [0.1, 3.0])
    assert near == 1 > far
    assert signs.top_rate(kernel, circle, RING) == pytest.approx(table["top rate"][0], rel=1e-3)
    assert signs.top_rate(kernel, POINT.expand(24, -1).contiguous(), RING) == pytest.approx(0.2)  # 1/2 - c


def test_final_states_count_as_one_if_their_energies_agree():
    energy = torch.tensor([1.0, 3.0, 2.0, 3.0 - 1e-6, 2.0 + 1e-6, 0.0], dtype=torch.float64)
    first, starts = signs.different(energy)
    assert first.tolist() == [1, 4, 0, 5] and starts.tolist() == [2, 2, 1, 1]
    first, starts = signs.different(energy[[1, 3, 5]], torch.tensor([4, 2, 1]))
    assert first.tolist() == [0, 2] and starts.tolist() == [6, 1]


def test_a_distance_bias_is_positive_and_goes_around_the_ring():
    kernel = signs.local_bias(1.0, rate=2.0)
    labels = torch.tensor([0.1, 6.2, 3.0], dtype=torch.float64)
    a = kernel.matrix(labels, labels, labels)
    assert a[0, 1].item() == pytest.approx(math.exp(-2 * (2 * math.pi - 6.1))) and (a > 0).all()


def test_the_diagram_knows_its_three_corners():
    plane = signs.diagram([0.0, 0.4, 0.7], [1.0], starts=3, time=200.0)
    assert plane["best"].tolist() == ["great circle", "latitude circle", "consensus"]
    assert plane["lead"].abs().max() < 1e-5 and (plane["agree"] > 0).all()
    assert plane["Rbar"][1] == pytest.approx(math.sqrt(1 - latitude_balance(0.4)), abs=1e-3)
    assert signs.predicted(0.4, 0.0) == latitude_energy(0.4)
    assert signs.predicted(2.0, 0.6) == pytest.approx(0.15)
