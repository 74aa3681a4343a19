"""The laws that the theorems name: orbits, prescribed laws, gauges for a target, circles, and who is maximal."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from ddcl_lite import (
    Exponential,
    Gauge,
    Rotary,
    RotaryQueriesKeys,
    SelfAttention,
    Toeplitz,
    circle_wasserstein,
    integrate,
)
from ddcl_lite.meanfield import dense
from ddcl_lite.meanfield.maximizers import (
    fourier_means,
    householder,
    latitude_balance,
    latitude_circle,
    latitude_energy,
    orbit,
    quantiles,
    signed_laplacian,
)
from ddcl_lite.meanfield.sphere import ring, uniform


def reflections(labels):
    return householder(torch.stack([labels.cos(), labels.sin(), 0 * labels], -1), torch.eye(3).double()[2])


KERNELS = {
    "exponential": (Exponential, 3),
    "rotary": (lambda beta: Rotary(beta, [1.0]), 3),
    "rotary, two planes": (lambda beta: Rotary(beta, [1.0, 3.0]), 4),
    "rotary, generalised": (lambda beta: Rotary(beta, lambda labels: labels.sin()[:, None]), 3),
    "gauge": (lambda beta: Gauge(beta, reflections), 3),
}


@pytest.mark.parametrize("beta", [0.5, 4.0, 50.0])
@pytest.mark.parametrize("name", KERNELS)
def test_orbits_are_maximisers_where_nothing_moves(name, beta):
    kernel, dim = KERNELS[name]
    kernel, labels = kernel(beta), ring(40)
    for seed in range(3):
        point = uniform(1, dim, seed=seed)[0]
        tokens = orbit(kernel, labels, point)
        assert tokens.shape == (40, dim) and (tokens.norm(dim=-1) - 1).abs().max() < 1e-15
        for energy in (kernel.energy(tokens, labels), dense.energy(kernel, tokens, labels)):
            assert energy.item() == pytest.approx(1 / (2 * beta), rel=1e-12)
        assert kernel.drift(tokens, labels).abs().max() < 1e-14
        nudged = torch.nn.functional.normalize(tokens + 0.1 * torch.randn(40, dim).double(), dim=-1)
        assert kernel.energy(nudged, labels) < 1 / (2 * beta) - 1e-4 / (1 + beta)


def test_a_rotary_orbit_is_a_latitude_circle_whose_height_is_that_of_the_point_on_the_axis():
    point, labels = uniform(1, 3, seed=4)[0], ring(40)
    tokens = orbit(Rotary(2.0, [1.0]), labels, point)
    torch.testing.assert_close(tokens[:, 2], point[2].expand(40))
    assert tokens.mean(0).norm().item() == pytest.approx(abs(point[2].item()))  # claim U5, a full turn
    # x = R(xi)^T u turns backwards
    angles = torch.atan2(tokens[:, 1], tokens[:, 0]) - torch.atan2(point[1], point[0])
    assert circle_wasserstein(angles, -labels) < 1e-12
    assert (torch.remainder(angles + labels + math.pi, 2 * math.pi) - math.pi).abs().max() < 1e-12
    axis = torch.eye(3).double()[2]
    assert torch.equal(orbit(Rotary(2.0, [1.0]), labels, axis), axis.expand(40, 3))  # which is collapse


def test_bad_points_of_an_orbit():
    with pytest.raises(ValueError, match="^tokens: expected unit vectors"):
        orbit(Rotary(1.0, [1.0]), ring(4), torch.ones(3))
    with pytest.raises(ValueError, match="^phases: 1 planes do not fit|^tokens"):
        orbit(Rotary(1.0, [1.0]), ring(4), torch.ones(1))


LAWS = {
    "uniform": (stats.uniform(0, 2 * math.pi), 1e-12),
    "von Mises": (stats.vonmises(4.0, loc=math.pi), 1e-5),
    "beta": (stats.beta(2, 5, scale=2 * math.pi), 1e-5),
    "triangle": (stats.triang(0.3, scale=2 * math.pi), 1e-5),
}


@pytest.mark.parametrize("name", LAWS)
def test_quantiles_are_those_of_scipy(name):
    law, allowed = LAWS[name]
    levels = torch.linspace(0.001, 0.999, 77, dtype=torch.float64)
    for factor in (1.0, 250.0):
        angles = quantiles(lambda a, factor=factor: factor * law.pdf(a), levels)
        np.testing.assert_allclose(angles, law.ppf(levels), rtol=0, atol=allowed)
    assert angles.dtype == torch.float64
    assert quantiles(law.pdf, levels.float()).dtype == torch.float32


@settings(max_examples=30, deadline=None)
@given(heights=st.lists(st.floats(0.01, 10), min_size=8, max_size=8), seed=st.integers(0, 10_000))
def test_quantiles_invert_the_distribution_function_of_any_steps(heights, seed):
    """A density that is constant on eighths of the circle: the answer is exact, and order is kept."""
    heights = np.array(heights)
    levels = torch.rand(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).sort().values
    angles = quantiles(lambda a: heights[(a * 4 / math.pi).astype(int)], levels).numpy()
    assert (np.diff(angles) >= 0).all() and (angles >= 0).all() and (angles < 2 * math.pi).all()
    cumulative = np.concatenate([[0], heights.cumsum() / heights.sum()])
    np.testing.assert_allclose(np.interp(angles, np.arange(9) * math.pi / 4, cumulative), levels, atol=1e-12)


def test_quantiles_stay_below_a_full_turn():
    angles = quantiles(np.ones_like, torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    assert angles[0] == 0 and angles[1] == pytest.approx(math.pi) and 6.28 < angles[2] < 2 * math.pi


def test_quantiles_leave_gaps_of_the_density_empty():
    levels = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    angles = quantiles(lambda a: ((a > 1) & (a < 2)) | ((a > 4) & (a < 5)), levels).numpy()
    assert ((angles > 0.99) & (angles < 2.01) | (angles > 3.99) & (angles < 5.01)).all()


@pytest.mark.parametrize(
    "density",
    [
        lambda a: np.cos(a),
        lambda a: 0 * a,
        lambda a: np.nan * a,
        lambda a: np.where(a > 3, np.inf, 1),
        lambda a: 1.0,
        lambda a: np.ones(7),
    ],
)
def test_bad_densities(density):
    with pytest.raises(ValueError, match="^density: expected finite numbers >= 0"):
        quantiles(density, torch.tensor([0.5]))


@pytest.mark.parametrize("level", [-0.1, 1.1, math.nan])
def test_bad_levels(level):
    with pytest.raises(ValueError, match=r"^levels: expected numbers in \[0, 1\]"):
        quantiles(np.ones_like, torch.tensor([0.5, level]))


@pytest.mark.parametrize("dim", [2, 3, 7])
def test_householder_sends_every_target_to_the_point(dim):
    point = uniform(1, dim, seed=3)[0]
    targets = torch.cat([uniform(20, dim, seed=1), point[None], -point[None]])
    gauge = householder(targets, point)
    assert gauge.shape == (22, dim, dim)
    torch.testing.assert_close(gauge @ gauge.mT, torch.eye(dim).double().expand(22, dim, dim), rtol=0, atol=1e-14)
    torch.testing.assert_close((gauge @ targets[..., None])[..., 0], point.expand(22, dim), rtol=0, atol=1e-14)
    torch.testing.assert_close(gauge, gauge.mT)
    assert torch.equal(gauge[20], torch.eye(dim).double())
    determinants = torch.linalg.det(gauge)
    torch.testing.assert_close(determinants[:20], -torch.ones(20).double())  # reflections all
    small = householder(targets.float(), point.float())
    assert small.dtype == torch.float32 and torch.isfinite(small).all()


def test_householder_sends_a_target_next_to_the_point_there_too():
    point = uniform(1, 3, seed=3)[0]
    beside = torch.nn.functional.normalize(point + 1e-9 * torch.randn(5, 3).double(), dim=-1)
    targets = torch.cat([beside, (1 + 1e-15) * point[None], (1 - 1e-8) * point[None]])
    reached = (householder(targets, point) @ targets[..., None])[..., 0]
    assert (reached - point).norm(dim=-1).max() < 1e-7


def test_a_gauge_encodes_any_map_as_a_maximiser():
    """Claim U7: tokens at the targets do not move, and have the largest energy there is."""
    targets, point, labels = uniform(50, 3, seed=1), uniform(1, 3, seed=2)[0], torch.arange(50)
    kernel = Gauge(1.0, lambda labels: householder(targets, point)[labels])
    assert kernel.energy(targets, labels).item() == pytest.approx(1 / 2, rel=1e-12)
    assert kernel.drift(targets, labels).abs().max() < 1e-14
    torch.testing.assert_close(orbit(kernel, labels, point), targets)
    path = integrate(kernel, uniform(50, 3, seed=5), labels, 200.0, states=2)
    misses = (path.tokens[-1] - targets).norm(dim=-1)
    assert misses.std() < 1e-6 < misses.mean()  # from a random start every token misses by the same


def test_householder_refuses_vectors_off_the_sphere():
    for targets, point in ((torch.ones(4, 3), uniform(1, 3)[0]), (uniform(4, 3), torch.ones(3))):
        with pytest.raises(ValueError, match="^tokens: expected unit vectors"):
            householder(targets, point)


@pytest.mark.parametrize("beta", [0.3, 1.0, 1.7, 5.0, 60.0])
@pytest.mark.parametrize("mean", [0.0, 0.3, -0.4, 1.0])
def test_latitude_energy_is_the_energy_of_many_tokens_on_the_circle(mean, beta):
    labels = ring(360)
    kernel = Toeplitz(beta, lambda difference: mean + difference.cos())
    for height in (0.0, 0.5, -0.8, 1.0):
        tokens = latitude_circle(labels, height)
        expected = kernel.energy(tokens, labels).item()
        assert latitude_energy(beta, height, mean) == pytest.approx(expected, rel=1e-9, abs=1e-14)
        # along the circle nothing moves, up or down it only at the rate dE/dz
        drift = kernel.drift(tokens, labels)
        up = torch.tensor([0, 0, 1.0]).double() - tokens[:, 2:] * tokens
        assert (drift.norm(dim=-1) - (drift * up).sum(-1).abs() / up.norm(dim=-1).clamp_min(1e-9)).abs().max() < 1e-9


def test_latitude_circle_stands_where_it_says():
    tokens = latitude_circle(ring(12), -0.6)
    torch.testing.assert_close(tokens[:, 2], torch.full((12,), -0.6).double())
    torch.testing.assert_close(torch.atan2(tokens[:, 1], tokens[:, 0]).remainder(2 * math.pi), ring(12))
    torch.testing.assert_close(tokens.norm(dim=-1), torch.ones(12).double())
    assert latitude_circle(torch.arange(5), 0.1).dtype == torch.float64
    assert latitude_circle(torch.arange(5.0), 0.1).dtype == torch.float32
    for height in (1.1, -2, math.nan):
        with pytest.raises(ValueError, match=r"^height: expected a number in \[-1, 1\], got"):
            latitude_circle(ring(4), height)


@pytest.mark.parametrize("mean, expected", [(0.0, 1.5451), (0.3, 0.68725), (0.45, 0.19092)])
def test_latitude_balance_of_the_book(mean, expected):
    assert latitude_balance(mean) == pytest.approx(expected, rel=3e-5)


@settings(max_examples=40, deadline=None)
@given(mean=st.floats(-0.9, 0.49), beta=st.floats(0.1, 100))
def test_at_the_balance_no_latitude_circle_is_better(mean, beta):
    t = latitude_balance(mean)
    best = math.sqrt(1 - t / beta) if beta > t else 0.0
    others = [latitude_energy(beta, z, mean) for z in np.linspace(-1, 1, 201)]
    assert latitude_energy(beta, best, mean) >= max(others) - 1e-14


@pytest.mark.parametrize("beta, height", [(3.0, math.sqrt(1 - 1.5451276 / 3)), (1.2, 0.0)])
def test_the_best_latitude_circle_is_an_equilibrium(beta, height):
    labels = ring(60)
    drift = Toeplitz(beta, torch.cos).drift(latitude_circle(labels, height), labels)
    assert drift.abs().max() < 1e-6
    assert Toeplitz(beta, torch.cos).drift(latitude_circle(labels, height + 0.1), labels).abs().max() > 1e-3


@pytest.mark.parametrize("mean", [0.5, 0.7, -1.0, -2.0, math.nan])
def test_bad_means(mean):
    with pytest.raises(ValueError, match="^mean: expected -1 < c < 1/2"):
        latitude_balance(mean)


@pytest.mark.parametrize("mean", [-0.99, -0.9999, 0.4999999])
def test_extreme_means_have_a_balance_too(mean):
    t = latitude_balance(mean)
    assert t == pytest.approx(1.5 / (1 + mean) if mean < 0 else 4 * (0.5 - mean), rel=0.02)


def test_bad_beta_of_a_latitude_circle():
    with pytest.raises(ValueError, match="^beta: expected a finite number > 0, got 0"):
        latitude_energy(0)


def test_fourier_means_of_known_profiles():
    means = fourier_means(lambda a: 0.25 + a.cos() - 3 * (5 * a).cos() + 7 * (2 * a).sin(), 6)
    torch.testing.assert_close(means, torch.tensor([0.25, 0.5, 0, 0, 0, -1.5, 0]).double(), rtol=0, atol=1e-13)
    bessel = torch.from_numpy(special.iv([0, 1, 2], 2.0))
    torch.testing.assert_close(fourier_means(lambda a: (2 * a.cos()).exp(), 2), bessel, rtol=1e-12, atol=0)
    assert fourier_means(torch.cos).shape == (33,)
    with pytest.raises(ValueError, match="^profile: expected finite numbers, got NaN or infinity"):
        fourier_means(lambda a: 1 / a)


@pytest.mark.parametrize("mean", [0.3, 0.499, 0.501, 0.8])
def test_the_signed_laplacian_of_a_ring_has_the_gaps_of_the_fourier_means(mean):
    labels = ring(24)
    coupling = mean + (labels[:, None] - labels).cos()
    eigenvalues = torch.linalg.eigvalsh(signed_laplacian(coupling / 24))
    means = fourier_means(lambda a: mean + a.cos(), 12)
    assert eigenvalues.min().item() == pytest.approx((means[0] - means).min().item(), abs=1e-12)
    assert (eigenvalues.min() > -1e-12) == (mean >= 0.5)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 8), dim=st.integers(2, 4), beta=st.floats(0.2, 8), seed=st.integers(0, 10_000))
def test_consensus_is_maximal_if_and_only_if_the_signed_laplacian_is_psd(n, dim, beta, seed):
    """Claim U11, one token a label: no configuration beats consensus, or one next to it does already."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, n, generator=generator, dtype=torch.float64)
    a = a + a.mT + torch.randn((), generator=generator)
    values, vectors = torch.linalg.eigh(signed_laplacian(a))
    kernel, labels = Toeplitz(beta, torch.cos), torch.arange(n)
    kernel.coupling = lambda one, other: a[one, other]
    consensus = torch.eye(dim).double()[0].expand(n, dim)
    best = kernel.energy(consensus, labels)
    if values[0] > -1e-9:
        others = kernel.energy(uniform(50, n, dim, seed=seed), labels)
        assert (others <= best + 1e-12).all()
    elif values[0] < -1e-3:
        angles = 1e-3 * vectors[:, 0]
        near = torch.stack([angles.cos(), angles.sin(), *[0 * angles] * (dim - 2)], -1)
        assert kernel.energy(near, labels) > best


def test_the_signed_laplacian_of_a_small_matrix():
    coupling = torch.tensor([[2.0, -1.0], [-1.0, 0.5]])
    assert torch.equal(signed_laplacian(coupling), torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))


@pytest.mark.parametrize("coupling", [torch.ones(3), torch.ones(2, 3), torch.eye(2) * math.nan])
def test_bad_couplings(coupling):
    with pytest.raises(ValueError, match="^coupling: expected finite square matrices, got shape"):
        signed_laplacian(coupling)
    with pytest.raises(ValueError, match="^coupling: expected symmetric matrices"):
        signed_laplacian(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", [1, -1])
def test_householder_near_its_point_and_near_its_antipode(side, dtype):
    point, noise = uniform(1, 3, seed=3, dtype=dtype)[0], uniform(9, 3, seed=4, dtype=dtype)
    gaps = 10.0 ** -torch.arange(9, dtype=dtype)[:, None]
    targets = torch.nn.functional.normalize(side * point + gaps * noise, dim=-1)
    reached = (householder(targets, point) @ targets[..., None])[..., 0]
    assert (reached - point).norm(dim=-1).max() < 20 * torch.finfo(dtype).eps


def test_what_has_no_maximisers_or_no_energy_says_so():
    labels, point = torch.arange(5), uniform(1, 3)[0]
    with pytest.raises(ValueError, match="^energy: RotaryQueriesKeys has none"):
        orbit(RotaryQueriesKeys(1.0, [1.0]), labels, point)
    with pytest.raises(ValueError, match="^kernel: expected Rotary or Gauge"):
        orbit(SelfAttention(1.0), labels, point)
    for kernel in (RotaryQueriesKeys(1.0, [1.0]), SelfAttention(1.0)):
        with pytest.raises(ValueError, match="^energy: .* has none"):
            dense.energy(kernel, uniform(5, 3), labels)


def test_the_dense_form_checks_its_input_and_ignores_autocast():
    x, labels = uniform(5, 3, dtype=torch.float32), torch.arange(5)
    kernel = Rotary(1.0, [1.0])
    for bad, message in ((2 * x, "^tokens: expected unit vectors"), (x[:4], "^labels: expected one label for each")):
        for function in (dense.energy, dense.drift):
            with pytest.raises(ValueError, match=message):
                function(kernel, bad, labels)
    with pytest.raises(ValueError, match="^tokens: expected one cloud"):
        dense.rates(kernel, x[None], labels)
    plain = dense.drift(kernel, x, labels)
    assert not plain.requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(dense.drift(kernel, x, labels), plain)


def test_signed_laplacians_in_a_batch_and_heights_off_the_sphere():
    couplings = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    couplings = couplings + couplings.mT
    assert torch.equal(signed_laplacian(couplings)[1, 2], signed_laplacian(couplings[1, 2]))
    for call in (lambda: latitude_energy(1.0, 2.0), lambda: latitude_circle(torch.arange(3), -1.1)):
        with pytest.raises(ValueError, match=r"^height: expected a number in \[-1, 1\]"):
            call()


def test_quantiles_of_whole_numbers_and_of_single_precision():
    flat = lambda angles: np.ones_like(angles)  # noqa: E731
    assert quantiles(flat, torch.tensor([0, 1])).tolist() == pytest.approx([0, 2 * math.pi])
    assert quantiles(flat, torch.ones(1)).item() < 2 * math.pi
    assert latitude_balance(0.5 - 1e-16) == 0
