"""The decomposition, the free energy and the critical temperature."""

import math

import pytest
import torch

from ddcl_lite import assign, critical_temperature, decompose, free_energy, soft_centroids
from ddcl_lite.prototypes import dense


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_fused_equals_dense_values_and_gradients(cloud, detach, masked):
    tokens, prototypes, mask = cloud
    mask = mask if masked else None
    for term in ("total", "reconstruction", "variance"):
        results = []
        for function in (decompose, dense.decompose):
            z, p = tokens.clone().requires_grad_(), prototypes.clone().requires_grad_()
            value = getattr(function(z, p, 0.7, mask, detach), term)
            value.backward()
            results.append((value, z.grad, p.grad))
        for ours, theirs in zip(*results):
            torch.testing.assert_close(ours, theirs)


def test_frozen_assignment_gives_another_gradient(cloud):
    tokens, prototypes, _ = cloud
    prototypes.requires_grad_()
    attached, detached = (
        torch.autograd.grad(decompose(tokens, prototypes, 0.7, None, detach).total, prototypes)[0]
        for detach in (False, True)
    )
    assert (attached - detached).norm() > 0.1 * detached.norm()


def test_the_scalars_are_means_over_real_tokens(cloud):
    tokens, prototypes, mask = cloud
    parts = decompose(tokens, prototypes, 0.7, mask)
    real = dense.split(tokens[mask], prototypes, dense.assign(tokens[mask], prototypes, 0.7))
    for ours, each in zip(parts[:3], real[:3]):
        torch.testing.assert_close(ours, each.mean())
    torch.testing.assert_close(parts.centroids, soft_centroids(tokens, prototypes, 0.7, mask))


def test_all_masked_is_zero_with_zero_gradients(cloud):
    tokens, prototypes, mask = cloud
    z, p = tokens.clone().requires_grad_(), prototypes.clone().requires_grad_()
    nothing = torch.zeros_like(mask)
    loss = decompose(z, p, 0.7, nothing).total + free_energy(z, p, 0.7, nothing)
    loss.backward()
    assert loss == 0 and (z.grad == 0).all() and (p.grad == 0).all()


@pytest.mark.parametrize("garbage", [1e6, float("nan"), float("inf")])
def test_garbage_under_the_mask_changes_nothing(cloud, garbage):
    tokens, prototypes, mask = cloud
    results = []
    for fill in (0.0, garbage):
        z = torch.where(mask[..., None], tokens, fill).requires_grad_()
        p = prototypes.clone().requires_grad_()
        parts = decompose(z, p, 0.7, mask)
        (parts.total + parts.variance + free_energy(z, p, 0.7, mask)).backward()
        results.append((*parts, z.grad, p.grad, critical_temperature(z, mask)))
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*results))


def test_gradcheck(cloud):
    tokens, prototypes, mask = (cloud[0].requires_grad_(), cloud[1].requires_grad_(), cloud[2])
    for term in range(4):
        assert torch.autograd.gradcheck(lambda z, p, t=term: decompose(z, p, 0.7, mask)[t], (tokens, prototypes))
    assert torch.autograd.gradcheck(lambda z, p: free_energy(z, p, 0.7, mask), (tokens, prototypes))


def test_free_energy_is_loss_minus_temperature_times_entropy(cloud):
    tokens, prototypes, mask = cloud
    weights = assign(tokens, prototypes, 0.7, mask)[mask]
    entropy = torch.special.entr(weights).sum(-1).mean()
    expected = decompose(tokens, prototypes, 0.7, mask).total - 0.7 * entropy
    torch.testing.assert_close(free_energy(tokens, prototypes, 0.7, mask), expected)


def test_its_gradient_is_that_of_the_loss_with_q_frozen(cloud):
    tokens, prototypes, mask = cloud[0], cloud[1].requires_grad_(), cloud[2]
    energy = torch.autograd.grad(free_energy(tokens, prototypes, 0.7, mask), prototypes)[0]
    frozen = torch.autograd.grad(decompose(tokens, prototypes, 0.7, mask, True).total, prototypes)[0]
    torch.testing.assert_close(energy, frozen)


def test_variance_near_collapse_keeps_its_digits():
    """At spread 1e-6 around (1000, ...), V is 1e-12: centring is what makes it visible in float32."""
    bank = 1e-6 * torch.randn(8, 16, dtype=torch.float64)
    tokens = torch.randn(100, 16)
    exact = dense.decompose(tokens.double(), bank, 1.0).variance
    assert abs(decompose(tokens, bank.float(), 1.0).variance / exact - 1) < 1e-3


def test_variance_is_never_shown_negative():
    groups = torch.tensor([[-1000.0], [1000.0]]) + 1e-3 * torch.randn(2, 50).mT.reshape(-1, 1, 1)
    bank = groups.reshape(-1, 1).expand(-1, 8)
    assert decompose(bank + 1e-3, bank, 1.0).variance >= 0


@pytest.mark.parametrize("detach, factor", [(False, 4), (True, 2)])
def test_critical_temperature_of_a_known_covariance(detach, factor):
    tokens = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]) + 100
    assert critical_temperature(tokens, detach_assignment=detach).item() == pytest.approx(factor * 9 * 2 / 4)
    assert critical_temperature(tokens.reshape(2, 2, 2)).item() == pytest.approx(18)


def test_critical_temperature_of_no_spread_is_zero():
    assert critical_temperature(torch.randn(1, 4)) == 0
    assert critical_temperature(torch.randn(3, 4), torch.zeros(3, dtype=torch.bool)) == 0
    assert critical_temperature(torch.full((5, 9, 4), 0.1)) == 0  # a number whose sums are rounded
    mask = torch.tensor([False, True, True])
    assert critical_temperature(torch.tensor([[7.0], [0.1], [0.1]]), mask) == 0


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("ratio, grows", [(0.9, True), (1.1, False)])
def test_collapse_is_left_below_the_critical_temperature_only(detach, ratio, grows):
    """Descent from a bank of spread 1e-3 at the mean: a test of the factor 2 against 4, by simulation."""
    tokens = torch.randn(200, 3, dtype=torch.float64) * torch.tensor([2.0, 1.0, 0.5])
    temperature = ratio * float(critical_temperature(tokens, detach_assignment=detach))
    bank = tokens.mean(0) + 1e-3 * torch.randn(2, 3, dtype=torch.float64)
    start = (bank[0] - bank[1]).norm()
    for _ in range(200):
        bank = bank.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(decompose(tokens, bank, temperature, None, detach).total, bank)
        bank = bank - 0.5 * gradient
    assert ((bank[0] - bank[1]).norm() > start) == grows


def test_scaling_law(cloud):
    """L_q(sZ, sP, s^2 T) = s^2 L_q(Z, P, T), down to the smallest scales float64 can square."""
    tokens, prototypes, _ = cloud
    expected = decompose(tokens, prototypes, 0.7).total
    for scale in (1e-30, 1e10):
        scaled = decompose(scale * tokens, scale * prototypes, scale**2 * 0.7).total
        assert math.isclose(scaled / scale**2, expected, rel_tol=1e-12)


def test_dtypes(cloud):
    tokens, prototypes, _ = cloud
    assert decompose(tokens.float(), prototypes.float(), 1.0).total.dtype == torch.float32
    assert free_energy(tokens.float(), prototypes.float(), 1.0).dtype == torch.float32
    half = decompose(tokens.half(), prototypes.half(), 1.0)
    assert half.total.dtype == torch.float32 and half.centroids.dtype == torch.float16
    with torch.autocast("cpu", torch.bfloat16):  # losses keep full precision
        torch.testing.assert_close(
            decompose(tokens.float(), prototypes.float(), 1.0).total,
            decompose(tokens, prototypes, 1.0).total.float(),
        )


def test_critical_temperature_and_free_energy_refuse_bad_input():
    with pytest.raises(ValueError, match="tokens: expected"):
        critical_temperature(torch.randn(3))
    with pytest.raises(ValueError, match="mask: expected"):
        critical_temperature(torch.randn(3, 2), torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="temperature: expected"):
        free_energy(torch.randn(3, 2), torch.randn(2, 2), 0.0)
