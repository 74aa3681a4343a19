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
@pytest.mark.parametrize("function", [gauges.two_numbers, *gauges.TARGETS.values()])
def test_labels_of_targets_are_between_0_and_1(function, bad):
    with pytest.raises(ValueError, match="labels: expected numbers in"):
        function(torch.tensor([0.5, bad]))
    with pytest.raises(ValueError, match="labels: expected numbers in"):
        function(0.5)


@pytest.mark.parametrize("bad", [torch.tensor([0, 8]), torch.tensor([-1, 0]), torch.tensor([0.0, 1.0])])
def test_prompts_are_eight(bad):
    assert gauges.corners(torch.arange(8)).unique(dim=0).shape == (8, 3)
    with pytest.raises(ValueError, match="labels: expected whole numbers from 0 to 7"):
        gauges.corners(bad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_last_label_below_1_is_in_the_last_spot(dtype):
    last = torch.nextafter(torch.tensor([1.0], dtype=dtype), torch.tensor([0.0], dtype=dtype))
    first, last = gauges.spots(torch.cat([0 * last, last]))
    assert first.argmax() == 2 and last.argmax() == 1  # the pole, rolled by 0 and by 2 places


def test_a_point_has_its_height_and_angle():
    height, angle = torch.tensor([[-1.0, 0.3], [0.0, 1.0]]).double(), torch.tensor([[0.0, 2.0], [4.0, 1.0]]).double()
    points = gauges.point(height, angle)
    torch.testing.assert_close(points[..., 2], height)
    torch.testing.assert_close(points.norm(dim=-1), torch.ones(2, 2).double())
    torch.testing.assert_close(
        torch.atan2(points[..., 1], points[..., 0])[[0, 1], [1, 0]], torch.tensor([2.0, 4 - 2 * math.pi]).double()
    )


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


@pytest.mark.parametrize("count", [16, 64])
def test_the_lengths_of_the_mean_against_the_mean_turn(count):
    points, kernels = uniform(200, 3, seed=9), gauges.geometries(1.0, count)
    for name, length in gauges.resultant_lengths(points[:, 2]).items():
        expected = (points @ gauges.turn_mean(*kernels[name]).T).norm(dim=-1)
        torch.testing.assert_close(length, expected, atol=1e-12, rtol=0, msg=name)


def test_the_laws_of_the_resultant_are_those_of_its_lengths():
    height = torch.linspace(0.001, 0.999, 99, dtype=torch.float64)  # P(|t| <= height) = height
    for name, length in gauges.resultant_lengths(height).items():
        share = torch.from_numpy(gauges.resultant_laws()[name](length.numpy()))
        torch.testing.assert_close(share, 1 - height if name == "eight prompts" else height, atol=1e-9, rtol=0)
    with pytest.raises(ValueError, match="height: expected numbers in"):
        gauges.resultant_lengths(torch.tensor([0.0, 1.1]))


def test_the_leaving_speed_against_quadrature():
    beta, height = 3.0, 0.6
    square = 1 - height**2

    def pull(angle):  # towards the axis, from one token on the circle to another
        weight = math.exp(beta * square * (math.cos(angle) - 1))
        return weight * height * square**0.5 * (1 - math.cos(angle)) / (2 * math.pi)

    expected = quad(pull, 0, 2 * math.pi)[0]
    assert gauges.leaving_speed(beta, height) == pytest.approx(expected, rel=1e-9)
    assert gauges.leaving_speed(beta, 0.0) == gauges.leaving_speed(beta, 1.0) == 0


@pytest.mark.parametrize("height", [2.0, -1.5, math.nan])
def test_the_leaving_speed_needs_a_height_and_a_beta(height):
    with pytest.raises(ValueError, match="height: expected a number"):
        gauges.leaving_speed(1.0, height)
    with pytest.raises(ValueError, match="beta: expected a finite number > 0"):
        gauges.leaving_speed(-1.0, 0.5)


def test_the_share_of_the_start():
    start = uniform(200, 8, 3, seed=7)
    direction = gauges.common(start)[:, None]
    best = gauges.start_share(start, direction.expand(200, 8, 3))  # if w were the direction of the mean
    assert 0.7 / 8 < best < 1 / 8
    assert gauges.start_share(start, uniform(200, 1, 3, seed=8).expand(200, 8, 3)) < 0.1 / 8
    assert gauges.start_share(start, start) == pytest.approx(1)  # nothing moved, nothing lost
    assert gauges.start_share(start, start.roll(1, -2)) < 0.1 / 8  # each token's own end, not the cloud's
    early, late = integrate(Exponential(1.0), start, time=[0.5, 60], tolerance=1e-4).tokens[-2:]
    assert gauges.start_share(start, early) > math.cos(0.2684) ** 2
    assert 0.5 / 8 < gauges.start_share(start, late) < 1 / 8
    with pytest.raises(ValueError, match="end: expected the shape"):
        gauges.start_share(start, direction)


def test_the_share_does_not_depend_on_the_frame():
    start = uniform(50, 16, 3, seed=10)
    kernel, prompts = gauges.geometries(1.0, 16)["eight prompts"]
    turn, _ = kernel.frame(start, prompts)
    end = integrate(kernel, start, prompts, time=2, tolerance=1e-4, states=2).tokens[-1]
    assert gauges.start_share(start, end) == pytest.approx(gauges.start_share(turn(start), turn(end)), rel=1e-12)
