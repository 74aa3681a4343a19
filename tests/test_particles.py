"""Exact solutions against finite differences and other solvers, orders, certificates, growth rates, collapse times."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

import ddcl_lite as dl
from ddcl_lite.experiments import particles
from ddcl_lite.meanfield import dense
from ddcl_lite.meanfield.sphere import uniform


def derivative(curve, time, h=1e-3):
    """Of a cosine at `time`, from four states."""
    a, b, c, d = curve([0.0, time - 2 * h, time - h, time + h, time + 2 * h])[1:].tolist()
    return (a - 8 * b + 8 * c - d) / (12 * h)


@pytest.mark.parametrize("beta, start", [(1.0, 0.0), (3.0, 0.5), (0.5, -0.9)])
def test_two_tokens_solve_the_equation_of_the_drift(beta, start):
    def curve(times):
        return particles.two_token_cosine(beta, start, times)

    first, c = curve([0.0, 0.7]).tolist()
    assert first == start
    pair = torch.tensor([[1.0, 0.0, 0.0], [c, math.sqrt(1 - c * c), 0.0]], dtype=torch.float64)
    v = dense.drift(dl.SelfAttention(beta), pair)
    assert derivative(curve, 0.7) == pytest.approx((v[0] @ pair[1] + v[1] @ pair[0]).item(), abs=1e-9)


@pytest.mark.parametrize("n, dim, beta, start", [(2, 2, 1.0, 0.0), (5, 9, 3.0, 0.4), (4, 4, 2.0, -0.3)])
def test_equal_angles_solve_the_equation_of_the_drift(n, dim, beta, start):
    def curve(times):
        return particles.equiangular_cosine(n, beta, start, times)

    rho = curve([0.0, 0.7])[1].item()
    tokens = particles.equiangular(n, dim, rho, seed=3)
    gram = tokens @ tokens.mT
    torch.testing.assert_close(gram, (1 - rho) * torch.eye(n, dtype=torch.float64) + rho)
    rates = dense.drift(dl.Exponential(beta), tokens) @ tokens.mT
    rates = (rates + rates.mT)[~torch.eye(n, dtype=torch.bool)]
    assert rates.max() - rates.min() < 1e-14
    assert derivative(curve, 0.7) == pytest.approx(rates[0].item(), abs=1e-9)


def test_two_tokens_at_equal_angles_meet_at_the_time_that_an_integral_gives():
    def duration(c):
        return 1 / (math.exp(2 * (c - 1)) * (1 - c * c))  # n = 2, beta = 2

    end = quad(duration, 0, 0.9)[0]
    assert particles.equiangular_cosine(2, 2.0, 0.0, [end])[0].item() == pytest.approx(0.9, abs=1e-10)


@pytest.mark.parametrize("arguments, name", [((4, 3, 0.1), "dim"), ((4, 4, -0.4), "cosine"), ((4, 4, 1.0), "cosine")])
def test_impossible_equal_angles(arguments, name):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        particles.equiangular(*arguments)


def test_the_rotation_of_equal_angles_depends_on_the_seed_only():
    first, again, other = (particles.equiangular(3, 5, 0.2, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.allclose(first, other)


def test_a_layer_is_the_exponential_map_of_the_drift_by_the_stated_angle():
    x, eta = uniform(10, 4, seed=1), 0.3
    pull = torch.softmax(2 * x @ x.mT, -1) @ x
    v = dl.SelfAttention(2.0).drift(x)
    speed, along = v.norm(dim=-1), (x * pull).sum(-1)
    angle = torch.arctan(eta * speed / (1 + eta * along))
    expected = angle.cos()[:, None] * x + angle.sin()[:, None] * v / speed[:, None]
    torch.testing.assert_close(particles.loop_layer(x, 2.0, eta, 1), expected)
    twice = particles.loop_layer(expected, 2.0, eta, 1)
    torch.testing.assert_close(particles.loop_layer(x, 2.0, eta, 2), twice)


def test_errors_fall_with_the_order_and_the_layer_has_order_one():
    x = uniform(8, 3, seed=2)
    errors = particles.errors_by_step(dl.SelfAttention(1.0), x, (0.1, 0.05), time=1.0)
    for name, (coarse, fine) in errors.items():
        assert math.log2(coarse / fine) == pytest.approx(1 if name == "layer" else name, abs=0.2)
    assert set(particles.errors_by_step(dl.Exponential(1.0), x, (0.2, 0.1), time=0.4)) == {1, 2, 4}


@pytest.mark.parametrize("kernel, normed", [(dl.Exponential(3.0), False), (dl.SelfAttention(3.0), True)])
def test_the_equation_as_written_keeps_norms_and_agrees_with_the_flow(kernel, normed):
    x, times = uniform(7, 4, seed=5), [0.5, 4.0]
    path = particles.ambient_path(3.0, x, times, normed)
    assert (path.norm(dim=-1) - 1).abs().max() < 1e-8
    expected = dl.integrate(kernel, x, time=times, step=0.02).tokens[1:]
    torch.testing.assert_close(path, expected, rtol=0, atol=1e-7)
    longer = particles.ambient_path(3.0, 1.001 * x, [0.5], normed)  # nothing is normalised on the way
    assert (longer.norm(dim=-1) - 1).abs().min() > 1e-5


def test_certain_means_an_open_hemisphere_around_the_mean():
    cap = torch.nn.functional.normalize(uniform(20, 3, seed=0) + torch.tensor([0.0, 0.0, 1.5]), dim=-1)
    stray = torch.cat([cap[:-1], torch.tensor([[0.0, 0.0, -1.0]])])
    assert particles.is_certain(torch.stack([cap, stray])).tolist() == [True, False]
    ring = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]], dtype=torch.float64)
    assert not particles.is_certain(ring)


def test_what_is_certain_collapses_and_a_path_has_its_raw_times():
    path = particles.collapse_path(2.0, 32, 3, [1.0, 40.0], seed=1)
    assert path.shape == (3, 3, 32, 3)
    torch.testing.assert_close(path[0], uniform(3, 32, 3, seed=1))
    exact = dl.integrate(dl.Exponential(2.0), path[0], time=[math.exp(2)]).tokens[-1]
    assert (path[1] - exact).abs().max() < 0.1
    assert (path[-1].mean(-2).norm(dim=-1)[particles.is_certain(path[1])] > 0.999).all()


def test_a_planted_degree_grows_at_its_rate():
    count, small = 4000, 1e-3
    levels = (np.arange(count) + 0.5) / count
    heights = 2 * levels - 1
    heights = heights + small * (1 - heights**2)  # moved along the gradient of degree 1
    angles = np.pi * (1 + 5**0.5) * np.arange(count)
    radius = np.sqrt(1 - heights**2)
    x = torch.from_numpy(np.stack([radius * np.cos(angles), radius * np.sin(angles), heights], -1))
    path = dl.integrate(dl.Harmonic(1.0), x, time=[2.0, 4.0], step=0.5)
    z = path.tokens[..., 2].mean(-1)
    assert math.log(z[2] / z[1]) / 2 == pytest.approx(2 * math.exp(-2), rel=0.01)  # l = 1, beta = 1


def test_collapse_times_are_those_of_a_finer_integration():
    table = particles.collapse_times([64, 256], tokens=256, seed=1)
    assert table["n"].tolist() == [64] * 4 + [256]
    x = uniform(4, 64, 3, seed=1000)
    path = dl.integrate(dl.Exponential(1.0), x, time=10.0, states=401)
    lengths = path.tokens.mean(-2).norm(dim=-1)
    first = path.times[(lengths < 0.5).sum(0)] - 0.0125
    np.testing.assert_allclose(table["start"][:4], lengths[0], rtol=1e-4)
    np.testing.assert_allclose(table["time"][:4], first, rtol=0, atol=0.04)
    assert particles.collapse_times([64], tokens=10**6, most=3)["time"].size == 3
