"""`Harmonic` against the sums it stands for: values, degrees, gradients, poles, blocks."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddcl_lite import Exponential, Harmonic
from ddcl_lite.meanfield import dense, harmonic
from ddcl_lite.meanfield.harmonic import features
from ddcl_lite.meanfield.sphere import uniform


def project(x, pull):
    return pull - (x * pull).sum(-1, keepdim=True) * x


def sums(x, beta):
    """sum_j exp(beta (<x_i, x_j> - 1)) x_j / n and the mean weight of each token, n x n."""
    weights = torch.exp(beta * (x @ x.mT - 1)) / x.shape[-2]
    return weights @ x, weights.sum(-1)


def clouds(dim):
    """Uniform tokens; two caps, one around a pole; and poles, antipodes, axes and points a rounding error from them."""
    axes = torch.cat([torch.eye(dim), -torch.eye(dim)]).double()
    near = torch.nn.functional.normalize(axes + 1e-9 * torch.randn(2 * dim, dim).double(), dim=-1)
    caps = torch.nn.functional.normalize(
        axes[[dim - 1, dim - 2]].repeat(30, 1) + 0.05 * torch.randn(60, dim).double(), dim=-1
    )
    return {"uniform": uniform(160, dim), "caps": caps, "poles": torch.cat([axes, near, axes[-1:].expand(5, dim)])}


@pytest.mark.parametrize("dtype, allowed", [(torch.float32, 1e-6), (torch.float64, 1e-8)])
@pytest.mark.parametrize("beta", [0.1, 1.0, 4.0, 10.0, 20.0, 50.0, 200.0])
@pytest.mark.parametrize("dim", [2, 3])
def test_drift_is_that_of_the_exponential_kernel(dim, beta, dtype, allowed):
    """In float32 errors are those of the default degree or of rounding; in float64 the degree decides."""
    degree = None if dtype == torch.float32 else 2 * len(Harmonic(beta).expansion(dim))
    for name, cloud in clouds(dim).items():
        x = cloud.to(dtype)
        pull, total = sums(x.double(), beta)
        drift = Harmonic(beta, degree).drift(x)
        error = (drift.double() - project(x.double(), pull)).norm(dim=-1)
        assert drift.dtype == dtype
        if dtype == torch.float32 and beta > 4:  # rounding in the recurrences: up to 4e-6 at beta = 200
            allowed = 5e-6
        assert (error / total).max() < allowed, name


@pytest.mark.parametrize("beta", [0.1, 1.0, 4.0, 10.0, 20.0, 50.0, 200.0])
@pytest.mark.parametrize("dim", [2, 3])
def test_the_default_degree_keeps_every_kernel_value_within_the_tail(dim, beta):
    weights = Harmonic(beta).expansion(dim)
    t = np.linspace(-1, 1, 4001)
    legendre, chebyshev = np.polynomial.legendre.legval, np.polynomial.chebyshev.chebval
    value = legendre(t, weights * (2 * np.arange(len(weights)) + 1)) if dim == 3 else chebyshev(t, weights)
    error = np.abs(value - np.exp(beta * (t - 1))).max()
    assert error < harmonic.TAIL
    shorter = weights[:-1]
    value = legendre(t, shorter * (2 * np.arange(len(shorter)) + 1)) if dim == 3 else chebyshev(t, shorter)
    assert np.abs(value - np.exp(beta * (t - 1))).max() > harmonic.TAIL  # and is the smallest that does


@pytest.mark.parametrize("beta, sphere, circle", [(1, 7, 7), (4, 12, 11), (10, 17, 17), (20, 24, 23), (50, 37, 35)])
def test_degrees_are_those_of_the_book(beta, sphere, circle):
    assert len(Harmonic(beta).expansion(3)) == sphere + 1
    assert len(Harmonic(beta).expansion(2)) == circle + 1
    assert len(Harmonic(beta, 5).expansion(3)) == 6


@pytest.mark.parametrize("degree", [0, 1, 2, 6, None])
@pytest.mark.parametrize("dim", [2, 3])
def test_drift_is_exactly_n_times_the_gradient_of_its_energy(dim, degree):
    """However short the expansion: the drift is the gradient of the energy that is returned, not of another one."""
    kernel, x = Harmonic(3.0, degree), uniform(40, dim, seed=9).requires_grad_()
    (gradient,) = torch.autograd.grad(kernel.energy(x), x)
    drift = kernel.drift(x).detach()
    torch.testing.assert_close(project(x.detach(), 40 * gradient), drift, rtol=1e-11, atol=1e-14)
    assert drift.abs().max() > 1e-3 or degree == 0
    x = x.detach()
    v = project(x, torch.randn_like(x))
    unit, speed = v / v.norm(dim=-1, keepdim=True), v.norm(dim=-1, keepdim=True)
    there, back = (kernel.energy((t * speed).cos() * x + (t * speed).sin() * unit) for t in (1e-5, -1e-5))
    assert ((there - back) / 2e-5).item() == pytest.approx((drift * v).sum(-1).mean().item(), rel=1e-5, abs=1e-10)


@pytest.mark.parametrize("beta", [0.1, 4.0, 50.0])
@pytest.mark.parametrize("dim", [2, 3])
def test_energy_is_that_of_the_exponential_kernel(dim, beta):
    for cloud in clouds(dim).values():
        expected = dense.energy(Exponential(beta), cloud).item()
        assert Harmonic(beta).energy(cloud).item() == pytest.approx(expected, abs=2e-6 / beta)
        assert Harmonic(beta, 70).energy(cloud).item() == pytest.approx(expected, rel=1e-10)


@settings(max_examples=25, deadline=None)
@given(dim=st.sampled_from([2, 3]), degree=st.integers(0, 40), seed=st.integers(0, 10_000))
def test_addition_theorem(dim, degree, seed):
    """Y_l(x).Y_l(y) = (2l + 1) P_l(<x, y>), or cos(l (theta - phi))."""
    x = torch.cat([uniform(6, dim, seed=seed), torch.eye(dim).double(), -torch.eye(dim).double()])
    looks, t = features(x, degree), (x @ x.mT).clamp(-1, 1).numpy()
    assert looks.shape == ((degree + 1) ** 2 if dim == 3 else 2 * degree + 1, len(x))
    for l in range(degree + 1):  # noqa: E741
        rows = looks[l**2 : (l + 1) ** 2] if dim == 3 else looks[[l, degree + l] if l else [0]]
        one = np.zeros(l + 1)
        one[l] = 2 * l + 1 if dim == 3 else 1
        series = np.polynomial.legendre.legval if dim == 3 else np.polynomial.chebyshev.chebval
        np.testing.assert_allclose(rows.mT @ rows, series(t, one), rtol=0, atol=1e-12 * (1 + l) ** 2)


@pytest.mark.parametrize("block", [1, 7, 31])
@pytest.mark.parametrize("dim", [2, 3])
def test_blocks_of_tokens_equal_the_whole(dim, block, monkeypatch):
    kernel, x = Harmonic(4.0), uniform(2, 31, dim)
    drift, energy = kernel.drift(x), kernel.energy(x)
    seen = []
    look = harmonic.features
    monkeypatch.setattr(harmonic, "BLOCK", block)
    monkeypatch.setattr(
        harmonic, "features", lambda tokens, degree: seen.append(tokens.shape[-2]) or look(tokens, degree)
    )
    torch.testing.assert_close(kernel.drift(x), drift, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(kernel.energy(x), energy, rtol=1e-13, atol=0)
    assert max(seen) == max(1, block // 2)  # of two clouds together


@pytest.mark.parametrize("lead", [(0,), (3,), (2, 1, 3)])
@pytest.mark.parametrize("dim", [2, 3])
def test_leading_dimensions_and_strides(dim, lead):
    kernel = Harmonic(4.0)
    x = torch.nn.functional.normalize(torch.randn(*lead, 20, dim, dtype=torch.float64), dim=-1)
    copy, together = x.clone(), kernel.drift(x)
    assert torch.equal(x, copy) and kernel.energy(x).shape == lead
    for cloud, drift in zip(x.flatten(0, -3), together.flatten(0, -3)):
        torch.testing.assert_close(drift, kernel.drift(cloud), rtol=1e-12, atol=1e-15)
    strided = x.mT.contiguous().mT
    torch.testing.assert_close(kernel.drift(strided), together, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dim", [2, 3])
def test_gradcheck_and_autocast(dim):
    kernel, x = Harmonic(2.0), uniform(4, dim)
    assert torch.autograd.gradcheck(kernel.drift, x.requires_grad_())
    assert torch.autograd.gradcheck(kernel.energy, x)
    x = uniform(30, dim, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        drift = kernel.drift(x)
    assert torch.equal(drift, kernel.drift(x))


@pytest.mark.parametrize("dim", [2, 3])
def test_consensus_and_antipodes_do_not_move(dim):
    point = uniform(1, dim, seed=3)
    for x in (point, point.expand(9, dim), torch.cat([point, -point])):
        assert Harmonic(4.0).drift(x).abs().max() < 1e-14
    assert Harmonic(4.0).energy(point).item() == pytest.approx(1 / 8, abs=1e-6)


@pytest.mark.parametrize("dim", [4, 64])
def test_other_dimensions_are_refused(dim):
    for call in (Harmonic(1.0).drift, Harmonic(1.0, 3).energy, Harmonic(1.0).bind):
        with pytest.raises(ValueError, match=f"^tokens: Harmonic needs D = 2 or 3, got D = {dim}"):
            call(uniform(6, dim))


@pytest.mark.parametrize("degree", [-1, 2.0, True, "12", math.nan])
def test_bad_degrees(degree):
    with pytest.raises(ValueError, match="^degree: expected an integer >= 0 or None, got"):
        Harmonic(1.0, degree)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [2, 3])
def test_cuda_agrees_with_the_cpu(dim, monkeypatch):
    x = uniform(2, 900, dim)
    for block in (harmonic.BLOCK, 200):
        monkeypatch.setattr(harmonic, "BLOCK", block)
        assert (Harmonic(10.0).drift(x.cuda()).cpu() - Harmonic(10.0).drift(x)).abs().max() < 1e-10
        assert (Harmonic(10.0).energy(x.cuda()).cpu() - Harmonic(10.0).energy(x)).abs().max() < 1e-10
