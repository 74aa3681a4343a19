"""Orbits of rotary kernels, laws put on them, and the states of rotated queries and keys, against other formulas."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import iv
from scipy.stats import vonmises

from ddcl_lite import Exponential, Rotary, RotaryQueriesKeys, circle_wasserstein
from ddcl_lite.experiments import orbits
from ddcl_lite.meanfield import dense, sphere
from ddcl_lite.meanfield.maximizers import orbit

POINT = torch.tensor([0.48, 0.64, 0.6], dtype=torch.float64)


@pytest.mark.parametrize("n", [2, 7, 48])
def test_a_full_turn_leaves_the_axis_and_only_that(n):
    labels = sphere.ring(n)
    tokens = orbit(Rotary(2.0, [1.0]), labels, POINT)
    assert orbits.resultants(tokens).item() == pytest.approx(0.6)
    assert orbits.resultants(orbit(Rotary(2.0, [n]), labels, POINT)).item() == pytest.approx(1.0)  # n turns: equal


def test_settling_reaches_an_orbit_and_repeats():
    labels, kernel = sphere.ring(10), Rotary(1.0, [1.0])
    ends = orbits.settle(kernel, labels, runs=3, dim=3, time=60, seed=1)
    assert ends.shape == (3, 10, 3)
    assert torch.equal(ends, orbits.settle(kernel, labels, 3, 3, 60, seed=1))
    assert not torch.equal(ends, orbits.settle(kernel, labels, 3, 3, 60, seed=2))
    for end, u in zip(ends, orbits.point_reached(kernel, ends, labels)):
        torch.testing.assert_close(end, orbit(kernel, labels, u), atol=1e-4, rtol=0)


def test_starts_on_one_side_of_a_pole():
    pole = torch.tensor([0.0, 0.0, 1.0])
    ends = orbits.settle(Exponential(1.0), sphere.ring(30), 5, 3, time=1e-6, seed=0, pole=pole)
    assert (ends[..., 2] > 0).all()
    assert not (orbits.settle(Exponential(1.0), sphere.ring(30), 5, 3, time=1e-6, seed=0)[..., 2] > 0).all()


def test_places_on_the_orbit_do_not_depend_on_the_point_reached():
    angles = torch.tensor([0.1, 3.0, 6.2], dtype=torch.float64)
    for u in sphere.uniform(4, 3, seed=3):
        kernel = Rotary(1.0, lambda labels: labels[:, None])
        found = orbits.orbit_angles(kernel, orbit(kernel, angles, u), angles)
        torch.testing.assert_close(found, angles)


@pytest.mark.parametrize("target", orbits.TARGETS)
def test_a_target_by_its_labels_or_by_its_phases_is_the_same_orbit(target):
    levels = orbits.midpoints(50)
    tokens = [orbit(*orbits.realise(target, levels, how), POINT) for how in ("labels", "phases")]
    torch.testing.assert_close(*tokens)
    kernel, labels = orbits.realise(target, levels)
    assert orbits.distance_to(target, kernel, tokens[0], labels) < 1.05 * math.pi / 50


def test_a_law_that_misses_its_target_is_seen_to():
    kernel, labels = orbits.realise("two arcs", orbits.midpoints(400), "neither")
    missed = orbits.distance_to("two arcs", kernel, orbit(kernel, labels, POINT), labels)
    assert missed == pytest.approx(circle_wasserstein(labels, orbits.reference("two arcs")), abs=1e-6)
    assert missed > 0.5
    shares = (orbits.reference("two arcs") < math.pi).double().mean()
    assert shares.item() == pytest.approx(2 / 3, abs=1e-3)  # arcs of length 1.5 and 0.75


def test_convergence_keeps_its_bounds_and_repeats():
    table = orbits.convergence((16, 128), draws=8, seed=2)
    assert len(table) == 6
    assert (table["grid"] * table["n"] <= math.pi * 1.02).all()
    assert (table["sampled"] * table["n"] ** 0.5 <= math.pi).all() and (table["sampled"] > table["grid"]).all()
    change = table.groupby("target")["neither"].agg(lambda values: values.iloc[1] / values.iloc[0])
    assert ((change - 1).abs() < 0.05).all()
    assert table.equals(orbits.convergence((16, 128), draws=8, seed=2))
    assert not table.equals(orbits.convergence((16, 128), draws=8, seed=3))


def test_a_target_has_its_analytic_distribution_function():
    levels = orbits.midpoints(500)
    for how in ("labels", "phases"):
        kernel, labels = orbits.realise("one bump", levels, how)
        angles = orbits.orbit_angles(kernel, orbit(kernel, labels, POINT), labels)
        below = vonmises.cdf(angles, 2) - vonmises.cdf(0, 2)
        np.testing.assert_allclose(below, levels, atol=1e-6)
    below = vonmises.cdf(orbits.reference("one bump"), 2) - vonmises.cdf(0, 2)
    np.testing.assert_allclose(below, orbits.midpoints(orbits.REFERENCE), atol=1e-6)


def test_what_is_no_map():
    levels = orbits.midpoints(4)
    with pytest.raises(ValueError, match=r"levels: expected numbers in \[0, 1\]"):
        orbits.realise("one bump", 2 * levels)
    undefined = Rotary(1.0, lambda labels: (labels - 0.5).sqrt()[:, None])
    with pytest.raises(ValueError, match="phases: .* got NaN or infinity"):
        undefined.drift(sphere.uniform(4, 3), levels)
    with pytest.raises(ValueError, match="how: expected labels, phases or neither"):
        orbits.realise("one bump", levels, "prompts")
    with pytest.raises(KeyError):
        orbits.realise("no such law", levels)


@pytest.mark.parametrize("n, beta", [(3, 1.0), (9, 0.3), (9, 4.0), (25, 2.0)])
def test_the_twisted_state_rests_and_has_its_rates(n, beta):
    kernel, tokens, labels = RotaryQueriesKeys(beta, [1.0]), orbits.twisted(n), sphere.ring(n)
    assert kernel.drift(tokens, labels).norm(dim=-1).max() < 1e-14
    rates = orbits.twisted_rates(beta, n)
    torch.testing.assert_close(dense.rates(kernel, tokens, labels), rates.sort(descending=True).values)
    assert rates[0] == 0
    assert orbits.top_rates(kernel, tokens[None], labels) == pytest.approx([rates[1:].max().item()])


def test_the_top_rate_leaves_out_turning_wherever_the_tokens_are():
    tokens, labels = sphere.uniform(2, 12, 2, seed=5), sphere.ring(12)
    for kernel in (Exponential(3.0), RotaryQueriesKeys(3.0, [1.0])):
        angles = torch.atan2(tokens[..., 1], tokens[..., 0])
        for top, at in zip(orbits.top_rates(kernel, tokens, labels), angles):
            slopes = torch.autograd.functional.jacobian(partial(circle_drift, kernel, labels), at)
            assert slopes.sum(-1).abs().max() < 1e-12  # turning
            aside = torch.linalg.qr(torch.eye(12, dtype=torch.float64)[:, :11] - 1 / 12)[0]
            assert top == pytest.approx(torch.linalg.eigvals(aside.T @ slopes @ aside).real.max().item())


def circle_drift(kernel, labels, angles):
    """The drift in angles, as written in the chapter."""
    turned = angles + labels if isinstance(kernel, RotaryQueriesKeys) else angles
    weights = torch.exp(kernel.beta * ((turned[:, None] - turned).cos() - 1))
    return (weights * (angles - angles[:, None]).sin()).mean(-1)


def test_the_rates_in_the_limit_are_bessel_functions():
    beta, k = 1.7, np.arange(1, 8)
    limit = -np.exp(-beta) * (2 * iv(1, beta) - iv(k + 1, beta) - iv(k - 1, beta) + k**2 * iv(k, beta) / beta)
    np.testing.assert_allclose(orbits.twisted_rates(beta, 101)[1:8], limit, atol=1e-14)
    threshold = orbits.twist_threshold()
    assert (
        orbits.twisted_rates(threshold - 0.01, 101)[1:].max()
        > 0
        > orbits.twisted_rates(threshold + 0.01, 101)[1:].max()
    )


@pytest.mark.parametrize("n", [1, 8])
def test_an_even_number_has_no_twisted_state(n):
    with pytest.raises(ValueError, match="n: expected an odd number >= 3"):
        orbits.twisted(n)


def test_consensus_rests_where_values_are_not_rotated_and_where_symmetry_holds_it():
    labels = sphere.ring(12)
    points = {"axis": [0.0, 0.0, 1.0], "between": [0.6, 0.0, 0.8], "equator": [1.0, 0.0, 0.0]}
    speeds = {}
    for name, point in points.items():
        tokens = torch.tensor(point, dtype=torch.float64).expand(12, 3)
        speeds[name] = Rotary(2.0, [1.0]).drift(tokens, labels).norm(dim=-1).max().item()
        assert RotaryQueriesKeys(2.0, [1.0]).drift(tokens, labels).norm(dim=-1).max() < 1e-14
    assert speeds["axis"] < 1e-14 and speeds["equator"] < 1e-14 and speeds["between"] > 0.01
    assert Rotary(2.0, [1.0]).energy(tokens, labels) < 0.2  # at the equator: not the maximum, 1/4,
    assert dense.rates(Rotary(2.0, [1.0]), tokens.contiguous(), labels)[0] > 0.01  # and unstable
