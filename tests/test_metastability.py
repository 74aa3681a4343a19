"""How long clusters last, how many form, and the staircase: formulas against independent computation."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.special import exp1, expi, iv, spherical_in

from ddcl_lite import Exponential, integrate
from ddcl_lite.claims import find, metastability
from ddcl_lite.experiments import metastability as meta
from ddcl_lite.meanfield import dense, sphere

WIDE = 2 * math.pi / 3


@pytest.mark.parametrize("beta, expected", [(2, 12.861), (4, 117.48), (6, 1582.2), (8, 24273)])
def test_the_four_lifetimes(beta, expected):
    assert meta.merge_time(beta) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("beta, start, end", [(0.3, 3.1, 0.2), (4, WIDE, 0.1), (20, 1.0, 0.01), (12, 3.14, 3.0)])
def test_the_quadrature_against_exponential_integrals(beta, start, end):
    s, r = 1 - math.cos(start), 1 - math.cos(end)  # 1/(s(2-s)) in partial fractions
    expected = expi(beta * s) - expi(beta * r) + math.exp(2 * beta) * (exp1(beta * (2 - s)) - exp1(beta * (2 - r)))
    assert meta.merge_time(beta, start, end) == pytest.approx(expected / 2, rel=1e-8)


def test_the_quadrature_against_the_differential_equation():
    def speed(t, phi):
        return -np.exp(3 * (np.cos(phi) - 1)) * np.sin(phi)

    end = solve_ivp(speed, (0, meta.merge_time(3, 2.5, 0.4)), [2.5], rtol=1e-10, atol=1e-12).y[0, -1]
    assert end == pytest.approx(0.4, abs=1e-6)


def test_laplace_is_the_limit_with_a_correction_of_order_one_over_beta():
    for angle in (1.0, WIDE):
        gaps = [meta.merge_time(beta, angle) / meta.laplace_time(beta, angle) - 1 for beta in (50, 100, 200)]
        c, s = math.cos(angle), math.sin(angle)
        assert gaps[-1] * 200 == pytest.approx(2 * c / s**2, rel=0.05)  # the next term of the expansion
        assert abs(gaps[0]) > abs(gaps[1]) > abs(gaps[2])


@pytest.mark.parametrize("start, end", [(0.1, 0.1), (math.pi, 0.1), (1.0, 0.0), (0.5, 1.0)])
def test_bad_angles_are_named(start, end):
    with pytest.raises(ValueError, match="start, end: expected"):
        meta.merge_time(2, start, end)


def test_a_horizon_is_an_angle():
    for time in (3.0, 500.0):
        assert meta.merge_time(4, meta.threshold_angle(4, time)) == pytest.approx(time, rel=1e-6)
    assert meta.threshold_angle(1, 1e6) == math.pi
    with pytest.raises(ValueError, match="time"):
        meta.threshold_angle(1, 0)


def test_two_clusters_are_where_they_should_be():
    tokens = meta.two_clusters(2.0, (3, 5), dim=4, spread=0.01, seed=1)
    assert tokens.shape == (8, 4) and torch.allclose(tokens.norm(dim=-1), torch.ones(8, dtype=torch.float64))
    assert meta.separation(tokens, 3).item() == pytest.approx(2.0, abs=1e-3)
    assert 0.003 < meta.cluster_radius(tokens[3:]).item() < 0.03
    assert torch.equal(tokens, meta.two_clusters(2.0, (3, 5), 4, 0.01, 1))
    assert meta.separation(meta.two_clusters(1e-7)).item() == pytest.approx(1e-7)  # no cosine that loses digits
    for bad in ({"angle": 0.0}, {"angle": 1.0, "sizes": (0, 1)}, {"angle": 1.0, "dim": 1}):
        with pytest.raises(ValueError, match="expected"):
            meta.two_clusters(**bad)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 4), (3, 2)])
def test_masses_set_the_shares_of_the_way_and_not_the_time(sizes):
    tokens = meta.two_clusters(WIDE, sizes, dim=2)
    time, end = meta.first_time(Exponential(3), tokens, lambda x: bool(meta.separation(x, sizes[0]) <= 0.1))
    assert time == pytest.approx(meta.merge_time(3), rel=1e-4)
    moved = meta.separation(torch.stack([tokens[0], end[0]])).item()
    assert moved / (WIDE - 0.1) == pytest.approx(sizes[1] / sum(sizes), rel=1e-3)


def test_eight_tokens_last_as_long_as_two():
    tokens = meta.two_clusters(WIDE, (4, 4), spread=0.05)
    time, end = meta.first_time(Exponential(7), tokens, lambda x: bool(meta.separation(x, 4) <= 0.1))
    assert time == pytest.approx(meta.merge_time(7), rel=1e-3)
    assert meta.cluster_radius(end[:4]) < 1e-9


def test_first_time_is_zero_at_once_and_gives_up():
    tokens = meta.two_clusters(1.0)
    assert meta.first_time(Exponential(1), tokens, lambda x: True)[0] == 0
    with pytest.raises(RuntimeError, match="not reached within time 5"):
        meta.first_time(Exponential(1), tokens, lambda x: False, horizon=5)


def test_a_cluster_tightens_along_and_across_the_arc_at_the_stated_rates():
    beta, phi, small, m = 5.0, 1.2, 1e-5, 2 / 9
    w = math.exp(beta * (math.cos(phi) - 1))
    rates = (-m + (1 - m) * w * (beta * math.sin(phi) ** 2 - math.cos(phi)), -m - (1 - m) * w * math.cos(phi))
    for direction, rate in zip(([0.0, 1.0, 0.0], [0.0, 0.0, 1.0]), rates):
        tokens = meta.two_clusters(phi, (2, 7))
        shift = small * torch.tensor(direction, dtype=torch.float64)
        tokens[:2] = sphere.exponential(tokens[:2], torch.stack([shift, -shift]))
        drift, gap = Exponential(beta).drift(tokens), tokens[0] - tokens[1]
        assert ((drift[0] - drift[1]) @ gap / gap.square().sum()).item() == pytest.approx(rate, abs=1e-6)


@pytest.mark.parametrize("beta", [0.5, 4.0])
def test_growth_on_the_circle_is_the_spectrum_of_a_regular_polygon(beta):
    turn = torch.arange(40, dtype=torch.float64) * 2 * math.pi / 40
    measured = dense.rates(Exponential(beta), torch.stack([turn.cos(), turn.sin()], -1))
    degrees = np.arange(6)
    theory = degrees**2 * np.exp(-beta) * iv(degrees, beta) / beta
    np.testing.assert_allclose(meta.growth_rates(beta, 2)[:6], theory, rtol=1e-10)
    top = np.sort(theory)[::-1][:3]
    np.testing.assert_allclose(measured[:6], np.repeat(top, 2), rtol=1e-8)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_growth_on_the_sphere_is_that_of_a_displacement_along_a_gradient(degree):
    beta, count = 3.0, 4000
    z = 1 - (2 * torch.arange(count, dtype=torch.float64) + 1) / count  # a spiral of nearly uniform tokens
    turn = torch.arange(count, dtype=torch.float64) * math.pi * (3 - math.sqrt(5))
    x = torch.stack([(1 - z**2).sqrt() * turn.cos(), (1 - z**2).sqrt() * turn.sin(), z], -1)
    slope = {1: torch.ones_like(z), 2: 3 * z, 3: (15 * z**2 - 3) / 2}[degree]  # of the Legendre polynomial
    gradient = sphere.tangent(x, slope[:, None] * torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    kernel, small = meta.Harmonic(beta), 1e-3
    change = kernel.drift(sphere.exponential(x, small * gradient)) - kernel.drift(
        sphere.exponential(x, -small * gradient)
    )
    rate = ((change * gradient).sum() / gradient.square().sum() / (2 * small)).item()
    theory = degree * (degree + 1) * math.exp(-beta) * spherical_in(degree, beta) / beta
    assert meta.growth_rates(beta)[degree] == pytest.approx(theory, rel=1e-10)
    assert rate == pytest.approx(theory, rel=5e-3)


@pytest.mark.parametrize("beta", [1.0, 5.0, 40.0])
def test_the_fastest_rate_on_the_sphere_is_within_its_bounds(beta):
    assert (1 - 1 / beta) / beta**2 <= meta.growth_rates(beta).max() <= 3
    assert meta.growth_rates(400).argmax() == pytest.approx(math.sqrt(800), rel=0.05)


def test_clusters_after_formation_are_as_many_as_the_crests_of_a_wave():
    turn = torch.arange(48, dtype=torch.float64) * 2 * math.pi / 48
    turn = turn + 0.05 * (4 * turn + math.pi / 12).sin()  # no token on a trough, where it would stay
    degree, time, counts = meta.formation(8.0, torch.stack([turn.cos(), turn.sin()], -1)[None])
    assert (degree, counts) == (4, [4]) and time == pytest.approx(8 / meta.growth_rates(8, 2)[4])


def test_the_staircase_is_the_flow_and_its_last_step_is_predicted():
    starts, times = sphere.uniform(3, 24, 3, seed=4), np.geomspace(3, 4000, 30).tolist()
    stairs = meta.staircase(4, starts, times)
    assert stairs.counts.shape == stairs.energy.shape == (30, 3) and stairs.tokens.shape == (30, 3, 24, 3)
    again = integrate(Exponential(4), starts, time=times[:9])
    torch.testing.assert_close(stairs.tokens[8], again.tokens[-1], atol=1e-3, rtol=0)
    assert (stairs.energy[1:] >= stairs.energy[:-1] - 1e-9).all()
    merges = meta.last_merges(4, stairs)
    assert merges
    for each in merges:
        assert abs(each.error) < 1e-3
        assert each.error == pytest.approx((each.predicted - each.seen) / (each.simulated - each.seen) - 1)
        assert each.seen <= each.after <= each.simulated < 1.001 * each.before
        assert sum(each.masses) == pytest.approx(1)
        assert stairs.counts[times.index(each.after), each.run] > 1


def test_a_merge_beyond_the_last_record_has_no_end_and_is_simulated():
    stairs = meta.staircase(4, meta.two_clusters(2.5, (2, 4))[None], [1, 10, 20])
    (merge,) = meta.last_merges(4, stairs)
    assert (merge.seen, merge.after, merge.before) == (1, 20, math.inf)
    assert merge.masses == pytest.approx((1 / 3, 2 / 3)) and 2.49 < merge.angle < 2.5
    assert merge.predicted == pytest.approx(1 + meta.merge_time(4, merge.angle))
    assert merge.simulated == pytest.approx(meta.merge_time(4, 2.5), rel=1e-3)
    with pytest.raises(ValueError, match="times: expected increasing"):
        meta.staircase(8, meta.two_clusters(2.5)[None], [3, 2])


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_the_claim_can_miss(monkeypatch, factor):
    def simulated(beta, tokens, first=None):
        return factor * meta.merge_time(beta), tokens[:1].expand_as(tokens)

    monkeypatch.setattr("ddcl_lite.claims.metastability.simulated", simulated)
    monkeypatch.setattr("ddcl_lite.claims.metastability.last_steps", lambda seed, device: [])
    assert find("U13").measure(0).supported == (factor == 1)


def test_neighbours_on_the_circle_last_a_bounded_time():
    limit = (expi(math.pi**2) - expi(512 * 0.1**2 / 2)) / 2  # s = phi^2/2: e^(beta s)/(2 s) from 0.1 to pi sqrt(2/beta)
    angle = 2 * math.pi / meta.growth_rates(512, 2).argmax()
    assert meta.merge_time(512, angle) == pytest.approx(limit, rel=0.05)
    early, late = (each.value for each in metastability.neighbours())
    assert late < early < 100


@pytest.mark.parametrize("error", [0.99, 1.01])
def test_the_claim_notices_a_wrong_prediction(monkeypatch, error):
    def merges(beta, stairs):
        return [meta.LastMerge(0, 1.0, 2.0, (0.5, 0.5), 100 * error, 100.0, 99.0, 101.0)]

    monkeypatch.setattr("ddcl_lite.claims.metastability.staircase", lambda *args: None)
    monkeypatch.setattr("ddcl_lite.claims.metastability.last_merges", merges)
    assert not all(each.supports for each in metastability.last_steps(0, "cpu"))
