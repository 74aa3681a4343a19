"""Digits that make one label two, target laws, caps, and the closed forms, each against a computation of its own."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad, solve_ivp
from scipy.stats import kstest

from ddcl_lite import Exponential, Gauge, integrate
from ddcl_lite.experiments import gauges
from ddcl_lite.meanfield.maximizers import householder, orbit
from ddcl_lite.meanfield.sphere import uniform


def labels(count=20000, seed=0):
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_two_numbers_reads_every_other_digit():
    label = torch.tensor([0.5, 0.25, 0.125, 0.5 + 0.25, 0.0, 1 - 2**-52], dtype=torch.float64)
    first, second = gauges.two_numbers(label)
    assert first.tolist() == [0.5, 0, 0.25, 0.5, 0, 1 - 2**-26]
    assert second.tolist() == [0, 0.5, 0, 0.5, 0, 1 - 2**-26]


def test_the_two_numbers_of_a_uniform_label_are_uniform_and_independent():
    first, second = gauges.two_numbers(labels())
    for numbers in (first, second, (first + second) % 1):  # the sum of independent ones is uniform modulo 1
        assert kstest(numbers.numpy(), "uniform").pvalue > 1e-4
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.03


@pytest.mark.parametrize("bad", [-0.1, 1.0, math.nan])
def test_two_numbers_needs_labels_between_0_and_1(bad):
    with pytest.raises(ValueError, match="labels: expected numbers in"):
        gauges.two_numbers(torch.tensor([0.5, bad]))


def test_the_target_laws_are_what_their_names_say():
    points = {name: target(labels()) for name, target in gauges.TARGETS.items()}
    for rows in points.values():
        torch.testing.assert_close(rows.norm(dim=-1), torch.ones(len(rows), dtype=torch.float64))
    direction = uniform(1, 3, seed=3)[0]  # Archimedes, along any axis
    assert kstest((points["uniform"] @ direction).numpy(), "uniform", args=(-1, 2)).pvalue > 1e-4
    assert (points["three spots"].amax(-1) >= math.cos(0.3) - 1e-12).all()
    counts = torch.bincount(points["three spots"].argmax(-1)) / 20000
    torch.testing.assert_close(counts, torch.full((3,), 1 / 3), atol=0.02, rtol=0)
    inside = points["three spots"].amax(-1).numpy()
    assert kstest(inside, "uniform", args=(math.cos(0.3), 1 - math.cos(0.3))).pvalue > 1e-4
    height = points["half a point"][:, 2]
    assert set(height.tolist()) == {0.0, 1.0} and abs(height.mean() - 0.5) < 0.02
    angle = torch.atan2(points["a wave"][:, 1], points["a wave"][:, 0])
    torch.testing.assert_close(points["a wave"][:, 2], 0.5 * (5 * angle).sin())


@pytest.mark.parametrize("name", gauges.TARGETS)
def test_the_gauge_turns_every_target_into_a_maximiser(name):
    few, goal = labels(50), uniform(1, 3, seed=1)[0]
    targets = gauges.TARGETS[name](few)
    kernel = Gauge(2.0, gauges.encoding(gauges.TARGETS[name], goal))
    torch.testing.assert_close(orbit(kernel, few, goal), targets)
    assert kernel.energy(targets, few).item() == pytest.approx(1 / 4, abs=1e-14)
    assert kernel.energy(targets.roll(1, 0), few).item() < 1 / 4 - 1e-3  # the right law at the wrong labels is none


def test_the_gauge_flow_against_an_integrator_that_knows_no_frames():
    few, beta = labels(6), 1.5
    matrices = householder(gauges.wave(few), gauges.POLE).numpy()
    start = uniform(6, 3, seed=2)

    def velocity(_, flat):
        x, pull = flat.reshape(6, 3), np.zeros((6, 3))
        for i in range(6):
            for j in range(6):
                both = matrices[i].T @ matrices[j] @ x[j]
                pull[i] += math.exp(beta * (x[i] @ both - 1)) * both / 6
            pull[i] -= (pull[i] @ x[i]) * x[i]
        return pull.ravel()

    expected = solve_ivp(velocity, (0, 5), start.flatten().numpy(), rtol=1e-10, atol=1e-12).y[:, -1].reshape(6, 3)
    flow = integrate(Gauge(beta, gauges.encoding(gauges.wave)), start, few, 5, tolerance=1e-9, states=2)
    torch.testing.assert_close(flow.tokens[-1], torch.from_numpy(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("angle", [0.3, 2.0, math.pi])
def test_a_cap_is_uniform_around_its_goal(angle):
    goal = uniform(1, 3, seed=4)[0]
    points = gauges.around(goal, angle, 100, 50, seed=1)
    heights = (points @ goal).flatten().numpy()
    assert kstest(heights, "uniform", args=(math.cos(angle), 1 - math.cos(angle))).pvalue > 1e-4
    assert torch.equal(points, gauges.around(goal, angle, 100, 50, seed=1))
    aside = points.flatten(0, 1) - (points.flatten(0, 1) @ goal)[:, None] * goal
    assert aside.mean(0).norm() < 0.03  # no side is preferred


def test_a_cap_needs_an_angle_and_a_goal_on_the_sphere():
    with pytest.raises(ValueError, match="angle: expected radians"):
        gauges.around(gauges.POLE, 4.0, 3)
    with pytest.raises(ValueError, match="goal: expected a point"):
        gauges.around(torch.tensor([1.0, 0.0]), 1.0, 3)


def test_the_mean_turn_is_that_of_the_orbits():
    w = uniform(1, 3, seed=5)[0]
    for name, (kernel, own) in gauges.geometries(1.0, 64).items():
        mean = gauges.turn_mean(kernel, own)
        torch.testing.assert_close(mean @ w, orbit(kernel, own, w).mean(0), msg=name)


def test_geometries_need_whole_groups_of_prompts():
    with pytest.raises(ValueError, match="count: expected a multiple of 8"):
        gauges.geometries(1.0, 60)


def test_the_laws_of_the_resultant_against_a_uniform_point():
    points = uniform(4000, 3, seed=6)
    kernels = gauges.geometries(1.0, 64)
    for name, law in gauges.resultant_laws().items():
        resultant = (points @ gauges.turn_mean(*kernels[name]).T).norm(dim=-1).numpy()
        assert kstest(resultant, law).pvalue > 1e-4, name
        assert kstest(0.97 * resultant, law).pvalue < 1e-3, name  # and it can tell


def test_the_leaving_speed_against_quadrature():
    beta, height = 3.0, 0.6
    square = 1 - height**2

    def pull(angle):  # towards the axis, from one token on the circle to another
        weight = math.exp(beta * square * (math.cos(angle) - 1))
        return weight * height * square**0.5 * (1 - math.cos(angle)) / (2 * math.pi)

    expected = quad(pull, 0, 2 * math.pi)[0]
    assert gauges.leaving_speed(beta, height) == pytest.approx(expected, rel=1e-9)
    assert gauges.leaving_speed(beta, 0.0) == gauges.leaving_speed(beta, 1.0) == 0


def test_the_share_of_the_start():
    start = uniform(200, 8, 3, seed=7)
    direction = gauges.common(start)[:, None]
    best = gauges.start_share(start, direction.expand(200, 8, 3))  # if w were the direction of the mean
    assert 0.7 / 8 < best < 1 / 8
    assert gauges.start_share(start, uniform(200, 1, 3, seed=8)) < 0.1 / 8
    assert gauges.start_share(start[:, :1], start[:, :1]) == pytest.approx(1)
    end = integrate(Exponential(1.0), start, time=60, tolerance=1e-4, states=2).tokens[-1]
    assert 0.5 / 8 < gauges.start_share(start, end) < 1 / 8
