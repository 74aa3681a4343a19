"""Every kernel against its definition: sums written by hand, gradients, large clouds, rounding, and bad input."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddcl_lite import (
    Coupled,
    Exponential,
    Gauge,
    Harmonic,
    Repulsive,
    Rotary,
    RotaryQueriesKeys,
    SelfAttention,
    Toeplitz,
    attention,
    library_time,
)
from ddcl_lite.attention import attend
from ddcl_lite.meanfield import coupled, dense, kernels
from ddcl_lite.meanfield.sphere import uniform


def orthogonal(labels):
    """One orthogonal matrix (4, 4) a label: rotations where the label is below 3, reflections elsewhere."""
    skew = torch.tensor([[0, 1, -0.5, 0.2], [-1, 0, 0.7, 0], [0.5, -0.7, 0, 1.1], [-0.2, 0, -1.1, 0]]).to(labels)
    flip = torch.where(labels < 3, 1.0, -1.0).to(labels)
    mirror = torch.diag_embed(torch.stack([flip, *[torch.ones_like(flip)] * 3], -1))
    return torch.matrix_exp(labels[:, None, None] * skew) @ mirror


def affinity(labels, others):
    """A symmetric coupling of any sign for labels (n, 2), which broadcast as (n, 1, 2) and (1, m, 2)."""
    return 0.3 + (labels[..., 0] - others[..., 0]).cos() - labels[..., 1] * others[..., 1] / 4


def by_planes(angles, dim):
    """Matrices that rotate coordinates (0, 1) by the first angle of a row (n, P), (2, 3) by the second, ..."""
    matrices = torch.eye(dim, dtype=angles.dtype).repeat(len(angles), 1, 1)
    for i, row in enumerate(angles.tolist()):
        for p, angle in enumerate(row):
            cos, sin = math.cos(angle), math.sin(angle)
            block = torch.tensor([[cos, -sin], [sin, cos]], dtype=angles.dtype)
            matrices[i, 2 * p : 2 * p + 2, 2 * p : 2 * p + 2] = block
    return matrices


class Case(NamedTuple):
    """A kernel for each beta, the dimension of its tokens, and what its definition is made of."""

    kernel: Callable
    dim: int
    matrices: Callable | None = None  # labels -> (n, D, D)
    coupling: Callable | None = None  # labels -> (n, n)
    label_shape: tuple = ()
    values_too: bool = True  # the rotation acts on values as well
    normalised: bool = False


BEND = {"one": lambda labels: labels.sin()[:, None], "two": lambda labels: torch.stack([labels.cos(), labels**2], -1)}
SHARE = [1.0, -0.5, 2.0]
CASES = {
    "exponential": Case(Exponential, 3),
    "self-attention": Case(SelfAttention, 3, normalised=True),
    "rotary": Case(lambda beta: Rotary(beta, torch.tensor([1.0])), 2, lambda a: by_planes(a[:, None], 2)),
    "rotary, axis": Case(lambda beta: Rotary(beta, [2.0]), 3, lambda a: by_planes(2 * a[:, None], 3)),
    "rotary, three planes and an axis": Case(
        lambda beta: Rotary(beta, torch.tensor(SHARE)), 7, lambda a: by_planes(a[:, None] * torch.tensor(SHARE), 7)
    ),
    "rotary, generalised": Case(lambda beta: Rotary(beta, BEND["one"]), 3, lambda a: by_planes(BEND["one"](a), 3)),
    "rotary, generalised, two planes": Case(
        lambda beta: Rotary(beta, BEND["two"]), 4, lambda a: by_planes(BEND["two"](a), 4)
    ),
    "rotary queries and keys": Case(
        lambda beta: RotaryQueriesKeys(beta, torch.tensor(SHARE[:2])),
        5,
        lambda a: by_planes(a[:, None] * torch.tensor(SHARE[:2]), 5),
        values_too=False,
    ),
    "rotary queries and keys, generalised": Case(
        lambda beta: RotaryQueriesKeys(beta, BEND["two"]), 4, lambda a: by_planes(BEND["two"](a), 4), values_too=False
    ),
    "gauge": Case(lambda beta: Gauge(beta, orthogonal), 4, orthogonal),
    "coupled": Case(
        lambda beta: Coupled(beta, affinity), 3, None, lambda a: affinity(a[:, None], a[None]), label_shape=(2,)
    ),
    "toeplitz": Case(
        lambda beta: Toeplitz(beta, torch.cos),
        3,
        None,
        lambda a: torch.outer(a.cos(), a.cos()) + torch.outer(a.sin(), a.sin()),
    ),
    "repulsive": Case(Repulsive, 2, None, lambda a: -torch.exp(-torch.maximum(a[:, None] - a, a - a[:, None]))),
}
WITH_ENERGY = [name for name, case in CASES.items() if case.values_too and not case.normalised]
FUSED = [name for name, case in CASES.items() if case.coupling is None]


def scene(name, n, beta, dtype=torch.float64, seed=0):
    """The case, its kernel, tokens (n, D) and labels."""
    case = CASES[name]
    labels = 6 * torch.rand(n, *case.label_shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return case, case.kernel(beta), uniform(n, case.dim, seed=seed + 1, dtype=dtype), labels


def by_hand(case, x, labels, beta):
    """The pull on each token before projection (n, D), and the energy: n x n sums of what the docstrings say."""
    n, dim = x.shape
    matrices = torch.eye(dim).to(x).expand(n, dim, dim) if case.matrices is None else case.matrices(labels)
    u = torch.einsum("iab,ib->ia", matrices, x)
    weights = torch.exp(beta * (u @ u.T - 1)) / n
    if case.coupling is not None:
        weights = weights * case.coupling(labels)
    energy = weights.sum() / (2 * beta * n)
    if case.normalised:
        weights = weights / weights.sum(1, keepdim=True)
    if case.values_too:
        return torch.einsum("iba,ib->ia", matrices, weights @ u), energy
    return weights @ x, energy


def project(x, pull):
    return pull - torch.einsum("...a,...a->...", x, pull)[..., None] * x


@pytest.mark.parametrize("n, beta", [(7, 0.1), (7, 50.0), (131, 2.0), (300, 0.1), (300, 50.0)])
@pytest.mark.parametrize("name", CASES)
def test_drift_and_energy_are_the_sums_as_written(name, n, beta):
    case, kernel, x, labels = scene(name, n, beta)
    pull, energy = by_hand(case, x, labels, beta)
    size = pull.norm(dim=-1, keepdim=True)
    for drift in (kernel.drift(x, labels), dense.drift(kernel, x, labels)):
        assert drift.shape == x.shape and drift.dtype == x.dtype
        assert ((drift - project(x, pull)) / size).abs().max() < 1e-13 * (1 + beta)
        assert (drift * x).sum(-1).abs().max() < 1e-14 * size.max()
    if kernel.no_energy is None:
        torch.testing.assert_close(kernel.energy(x, labels), energy, rtol=1e-13 * (1 + beta), atol=0)
        torch.testing.assert_close(dense.energy(kernel, x, labels), energy, rtol=1e-13 * (1 + beta), atol=0)


@pytest.mark.parametrize("n", [7, 300])
@pytest.mark.parametrize("name", WITH_ENERGY)
def test_drift_is_n_times_the_gradient_of_the_energy_on_the_sphere(name, n):
    _, kernel, x, labels = scene(name, n, 2.5)
    x.requires_grad_()
    drift = kernel.drift(x, labels).detach()
    for energy in (kernel.energy(x, labels), dense.energy(kernel, x, labels)):
        (gradient,) = torch.autograd.grad(energy, x)
        torch.testing.assert_close(project(x.detach(), n * gradient), drift, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", WITH_ENERGY)
def test_energy_rises_along_great_circles_at_the_rate_that_the_drift_says(name):
    """dE/dt = (1/n) sum <drift, v> for tokens that move with velocities v: central differences, no autograd."""
    _, kernel, x, labels = scene(name, 150, 3.0)
    v = project(x, torch.randn(150, x.shape[-1], dtype=torch.float64))
    unit, speed = v / v.norm(dim=-1, keepdim=True), v.norm(dim=-1, keepdim=True)
    there, back = (kernel.energy((t * speed).cos() * x + (t * speed).sin() * unit, labels) for t in (1e-5, -1e-5))
    expected = (kernel.drift(x, labels) * v).sum(-1).mean()
    assert (there - back) / 2e-5 == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("name", sorted(set(CASES) - set(WITH_ENERGY)))
def test_a_drift_that_is_no_gradient_has_no_energy_and_says_why(name):
    _, kernel, x, labels = scene(name, 6, 1.0)
    with pytest.raises(ValueError, match=f"^energy: {type(kernel).__name__} has none: .*each|^energy: .*queries and"):
        kernel.energy(x, labels)
    assert kernel.bind(x, labels).energy is None
    # and it is indeed none: n times the derivative of a gradient would be symmetric on the tangent spaces
    jacobian = torch.autograd.functional.jacobian(lambda y: dense.drift(kernel, y, labels), x)
    projector = torch.eye(x.shape[-1]).to(x) - x[:, :, None] * x[:, None, :]
    hessian = torch.einsum("iab,ibjc,jcd->iajd", projector, jacobian, projector).flatten(2).flatten(0, 1)
    assert (hessian - hessian.mT).abs().max() > 1e-2


@pytest.mark.parametrize("n, lead", [(5, (3,)), (5, (0,)), (260, (0,)), (260, (2, 1, 3)), (260, (9,))])
@pytest.mark.parametrize("name", CASES)
def test_leading_dimensions_are_independent_clouds_with_common_labels(name, n, lead):
    case, kernel, _, labels = scene(name, n, 2.0)
    x = torch.nn.functional.normalize(torch.randn(*lead, n, case.dim, dtype=torch.float64), dim=-1)
    together = kernel.drift(x, labels)
    assert together.shape == x.shape
    for cloud, drift in zip(x.flatten(0, -3), together.flatten(0, -3)):
        torch.testing.assert_close(drift, kernel.drift(cloud, labels), rtol=1e-12, atol=1e-15)
    if kernel.no_energy is None:
        energy = kernel.energy(x, labels)
        assert energy.shape == lead
        for cloud, value in zip(x.flatten(0, -3), energy.flatten()):
            torch.testing.assert_close(value, kernel.energy(cloud, labels))


@pytest.mark.parametrize("n", [6, 200])
@pytest.mark.parametrize("name", CASES)
def test_inputs_are_not_changed_and_need_not_be_contiguous(name, n):
    _, kernel, x, labels = scene(name, n, 2.0)
    copies = x.clone(), labels.clone()
    expected = kernel.drift(x, labels)
    assert torch.equal(x, copies[0]) and torch.equal(labels, copies[1])
    strided = x.mT.contiguous().mT, labels.repeat_interleave(2, 0)[::2]
    assert not any(t.is_contiguous() for t in strided)
    torch.testing.assert_close(kernel.drift(*strided), expected, rtol=1e-12, atol=1e-15)
    assert torch.equal(kernel.drift(*copies), expected)
    if kernel.no_energy is None:
        torch.testing.assert_close(kernel.energy(*strided), kernel.energy(x, labels))


@pytest.mark.parametrize("n, beta, allowed", [(100, 0.1, 1e-6), (400, 4.0, 1e-6), (400, 50.0, 1e-5)])
@pytest.mark.parametrize("name", CASES)
def test_float32_is_accurate_relative_to_the_sum_before_projection(name, n, beta, allowed):
    case, kernel, x, labels = scene(name, n, beta, torch.float32)
    labels = (labels / 6).float().double()
    drift = kernel.drift(x, labels)
    pull, energy = by_hand(case, x.double(), labels, beta)
    size = pull.norm(dim=-1)
    if beta < 1 or case.coupling is not None:  # terms cancel: what float32 can resolve is the sum of their sizes
        sizes = case if case.coupling is None else case._replace(coupling=lambda a: case.coupling(a).abs())
        size = 2 * beta * by_hand(sizes, x.double(), labels, beta)[1]  # the mean over tokens
    assert drift.dtype == torch.float32
    assert ((drift.double() - project(x.double(), pull)).norm(dim=-1) / size).max() < allowed
    if kernel.no_energy is None and case.coupling is None:
        assert kernel.energy(x, labels).item() == pytest.approx(energy.item(), rel=allowed)


@pytest.mark.parametrize("beta, allowed", [(4.0, 1e-6), (50.0, 1e-5)])
def test_float32_is_accurate_in_many_dimensions(beta, allowed):
    x = uniform(500, 64, dtype=torch.float32)
    x[250:] = torch.nn.functional.normalize(x[:250] + 0.02 * torch.randn(250, 64), dim=-1)  # some are near each other
    pull, _ = by_hand(CASES["exponential"], x.double(), None, beta)
    error = (Exponential(beta).drift(x).double() - project(x.double(), pull)).norm(dim=-1) / pull.norm(dim=-1)
    assert error.max() < allowed


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from([name for name in CASES if name not in ("exponential", "self-attention")]),
    n=st.integers(1, 200),
    beta=st.floats(0.1, 200),
    seed=st.integers(0, 10_000),
)
def test_the_order_of_tokens_does_not_matter_if_labels_go_with_them(name, n, beta, seed):
    _, kernel, x, labels = scene(name, n, beta, seed=seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(kernel.drift(x[order], labels[order]), kernel.drift(x, labels)[order])


@settings(max_examples=25, deadline=None)
@given(
    kernel=st.sampled_from([Exponential, SelfAttention, lambda beta: Toeplitz(beta, torch.cos)]),
    n=st.integers(1, 200),
    dim=st.integers(2, 9),
    beta=st.floats(0.1, 200),
    seed=st.integers(0, 10_000),
)
def test_rotating_all_tokens_rotates_the_drift(kernel, n, dim, beta, seed):
    kernel, x, labels = kernel(beta), uniform(n, dim, seed=seed), torch.arange(float(n)).double()
    turn = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64)).Q
    torch.testing.assert_close(kernel.drift(x @ turn, labels), kernel.drift(x, labels) @ turn)


@pytest.mark.parametrize("n", [40, 300])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.matrices and case.values_too])
def test_in_the_gauge_frame_the_tokens_obey_the_exponential_kernel(name, n):
    case, kernel, x, labels = scene(name, n, 3.0)
    turn = case.matrices(labels)
    frame = torch.einsum("iab,ib->ia", turn, x)
    moved = torch.einsum("iab,ib->ia", turn, kernel.drift(x, labels))
    torch.testing.assert_close(moved, Exponential(3.0).drift(frame), rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(kernel.energy(x, labels), Exponential(3.0).energy(frame))


@pytest.mark.parametrize("entries", [1, 40, 130])
@pytest.mark.parametrize("name", ["coupled", "toeplitz", "repulsive"])
def test_a_coupled_sum_in_blocks_equals_the_whole(name, entries, monkeypatch):
    case, kernel, _, labels = scene(name, 13, 2.0)
    x = uniform(3, 13, case.dim)
    whole = kernel.drift(x, labels), kernel.energy(x, labels)
    rows = []
    matrix = Coupled.matrix
    monkeypatch.setitem(coupled.ENTRIES, "cpu", entries)
    monkeypatch.setattr(Coupled, "matrix", lambda self, a, *rest: rows.append(len(a)) or matrix(self, a, *rest))
    for kept in (13, 12):  # the couplings of all labels held, or computed again block by block
        monkeypatch.setattr(coupled, "KEPT", kept)
        torch.testing.assert_close(kernel.drift(x, labels), whole[0], rtol=1e-13, atol=1e-16)
        torch.testing.assert_close(kernel.energy(x, labels), whole[1], rtol=1e-13, atol=0)
    assert rows[:3] == [13, 13, 12]
    assert max(count for count in rows if count < 12) == max(1, entries // (3 * 13))


@pytest.mark.parametrize("n, fast", [(4, False), (130, True)])
@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name, n, fast):
    case, kernel, x, labels = scene(name, n, 1.5)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda y: kernel.drift(y, labels), x, fast_mode=fast)
    if kernel.no_energy is None:
        assert torch.autograd.gradcheck(lambda y: kernel.energy(y, labels), x, fast_mode=fast)


@pytest.mark.parametrize("name", ["exponential", "rotary, axis", "gauge", "toeplitz"])
def test_second_derivatives_on_the_dense_form(name):
    _, kernel, x, labels = scene(name, 3, 1.5)
    x.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda y: dense.energy(kernel, y, labels), x)
    assert torch.autograd.gradcheck(lambda y: dense.drift(kernel, y, labels), x)


@pytest.mark.parametrize("n, dtype", [(20, torch.float16), (300, torch.bfloat16)])
@pytest.mark.parametrize("name", CASES)
def test_autocast_changes_nothing_inside(name, n, dtype):
    _, kernel, x, labels = scene(name, n, 4.0, torch.float32)
    labels = labels.float()
    drift = kernel.drift(x, labels)
    with torch.autocast("cpu", dtype):
        assert torch.equal(kernel.drift(x, labels), drift)
        energy = kernel.no_energy is None and kernel.energy(x, labels)
    assert drift.dtype == torch.float32
    if kernel.no_energy is None:
        assert torch.equal(kernel.energy(x, labels), energy)


@pytest.mark.parametrize("name", FUSED)
def test_no_tensor_of_size_n_by_n_is_made(name):
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor):
                    sizes.append(tensor.untyped_storage().nbytes() // tensor.element_size())
            return out

    n = 600
    case, kernel, x, labels = scene(name, n, 2.0)
    if case.matrices:
        kernel.bind(x, labels)
    with Watch():
        kernel.drift(x.requires_grad_(), labels).sum().backward()
    assert max(sizes) < n * n / 2
    with Watch():
        dense.drift(kernel, x, labels)
    assert max(sizes) >= n * n  # the watch does see such a matrix


def test_peak_memory_stays_far_below_one_n_by_n_matrix():
    """In a fresh process, so that the peak is this call's own: 8,192 tokens, whose matrix would take 256 MiB."""
    script = """
import resource, sys, torch
from ddcl_lite.meanfield.kernels import Exponential
from ddcl_lite.meanfield.sphere import uniform
x = uniform(8192, 3, dtype=torch.float32)
Exponential(4.0).drift(x[:512].requires_grad_()).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
Exponential(4.0).drift(x.requires_grad_()).sum().backward()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(peak * (1 if sys.platform == "darwin" else 1024))
"""
    pytest.importorskip("resource", reason="this platform does not report peak memory")
    peak = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    assert peak < 8192**2 * 4 / 4, f"{peak / 2**20:.0f} MiB"


@pytest.mark.parametrize("n", [1, 2, 200])
@pytest.mark.parametrize("beta", [0.1, 4.0, 200.0, 1e4])
def test_consensus_has_the_largest_energy_and_antipodal_pairs_do_not_move(n, beta):
    equal = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64).expand(n, 3)
    signs = torch.tensor([1.0, -1.0]).double().repeat(n)[:n, None]
    for kernel in (Exponential(beta), SelfAttention(beta)):
        assert max(kernel.drift(x).abs().max() for x in (equal, signs * equal)) < 1e-14
    assert Exponential(beta).energy(equal).item() == pytest.approx(1 / (2 * beta), rel=1e-12)
    if n % 2 == 0:
        expected = (1 + math.exp(-2 * beta)) / (4 * beta)  # half of the pairs are equal, half antipodal
        assert Exponential(beta).energy(signs * equal).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("beta", [0.5, 3.0])
def test_the_unit_is_that_of_the_papers_up_to_exp_beta(beta):
    """With the papers' kernel exp(beta <x, y>)/beta, speeds are e^beta times ours, so times are e^-beta of ours."""
    x = uniform(10, 3)
    papers = project(x, torch.exp(beta * x @ x.mT) @ x / 10)
    torch.testing.assert_close(papers, Exponential(beta).drift(x) * library_time(1.0, beta))
    assert library_time(20, beta) == pytest.approx(20 * math.exp(beta))
    with pytest.raises(ValueError, match="^beta: expected a finite number > 0, got -1"):
        library_time(20, -1)


@pytest.mark.parametrize("beta", [0.7, 2.0, 4.0])
def test_rates_at_consensus_are_0_and_minus_1(beta):
    """Next to consensus d_i' = mean(d) - d_i: rate 0 for the D - 1 common displacements, -1 for all others."""
    x = uniform(1, 4).expand(6, 4)
    exact = torch.tensor([0.0] * 3 + [-1.0] * 15, dtype=torch.float64)
    for kernel in (Exponential(beta), SelfAttention(beta)):
        torch.testing.assert_close(dense.rates(kernel, x), exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("beta, cost", [(2.0, 0.3), (2.0, 0.1), (3.0, 0.05), (1.5, 0.4)])
def test_rates_of_three_split_labels_change_sign_where_theory_says(beta, cost):
    """a = 1 on and -c off the diagonal, label k half at +e_k, half at -e_k: stable iff c (beta - 1) > e^-beta."""
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    x = (
        torch.eye(3, dtype=torch.float64).repeat_interleave(2, 0)
        * torch.tensor([1.0, -1.0]).double().repeat(3)[:, None]
    )
    kernel = Coupled(beta, lambda a, b: torch.where(a == b, 1.0, -cost))
    assert kernel.drift(x, labels).abs().max() < 1e-15
    rates = dense.rates(kernel, x, labels)
    rates = rates[rates.abs() > 1e-9]  # 12 less the 3 rotations
    assert len(rates) == 9 and (rates.max() < 0) == (cost * (beta - 1) > math.exp(-beta))
    if (beta, cost) == (2.0, 0.3):
        assert rates.max().item() == pytest.approx(-0.00743, abs=5e-6)


def test_self_attention_moves_each_token_at_its_own_speed_along_the_exponential_drift():
    x = uniform(200, 3)
    speeds = torch.exp(4.0 * (x @ x.mT - 1)).mean(-1, keepdim=True)
    torch.testing.assert_close(SelfAttention(4.0).drift(x) * speeds, Exponential(4.0).drift(x))


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("bias", [None, True])
def test_attention_in_blocks_of_queries_equals_the_whole(rows, bias, monkeypatch):
    """What float64 does on CUDA, where no kernel is fused, seen on the CPU."""
    query, key, value = torch.randn(2, 64, 8).double(), torch.randn(50, 8).double(), torch.randn(2, 50, 8).double()
    bias = torch.randn(2, 1, 50).double() if bias else None
    logits = query @ key.mT + (0 if bias is None else bias)
    monkeypatch.setattr(attention, "_block", lambda query, key: rows)
    torch.testing.assert_close(attend(query, key, value, bias), torch.softmax(logits, -1) @ value)


def test_on_cuda_blocks_in_float64_hold_so_many_weights(monkeypatch):
    class Fake(NamedTuple):
        device: torch.device
        dtype: torch.dtype
        shape: tuple

    cuda = torch.device("cuda")
    query, key = (Fake(cuda, torch.float64, (3, size, 16)) for size in (10_000, 20_000))
    assert attention._block(query, key) == attention.ENTRIES // (3 * 20_000)
    assert attention._block(query._replace(dtype=torch.float32), key) == 10_000
    assert attention._block(query._replace(device=torch.device("cpu")), key) == 10_000
    monkeypatch.setattr(attention, "ENTRIES", 10)
    assert attention._block(query, key) == 1


def test_uniform_points_have_length_1_and_depend_on_the_seed_alone():
    x = uniform(4, 500, 3, seed=5)
    assert x.shape == (4, 500, 3) and x.dtype == torch.float64
    assert (x.norm(dim=-1) - 1).abs().max() < 1e-15
    torch.manual_seed(99)
    assert torch.equal(uniform(4, 500, 3, seed=5), x) and not torch.equal(uniform(4, 500, 3, seed=6), x)
    assert torch.equal(uniform(4, 500, 3, seed=5, dtype=torch.float32), x.float())
    assert (x.flatten(0, 1).mT @ x.flatten(0, 1) / 2000 - torch.eye(3) / 3).abs().max() < 0.03
    for shape in ((), (3, 1), (0, 3), (2, -1)):
        with pytest.raises(ValueError, match="^shape: expected sizes >= 1"):
            uniform(*shape)


BAD_TOKENS = {
    "too long": lambda x: torch.cat([x[:5], 1.01 * x[5:]]),
    "a zero vector": lambda x: torch.cat([x[:5], 0 * x[5:]]),
    "NaN": lambda x: torch.cat([x[:5], torch.nan * x[5:]]),
    "infinite": lambda x: torch.cat([x[:5], torch.inf * x[5:]]),
    "half": lambda x: x.half(),
    "integers": lambda x: torch.eye(4).long(),
    "complex": lambda x: x.to(torch.complex128),
    "rank 1": lambda x: x[0],
    "one dimension": lambda x: torch.ones(6, 1),
    "no token": lambda x: x[:0],
    "array": lambda x: x.numpy(),
    "None": lambda x: None,
}
BAD_LABELS = {
    "too few": lambda: torch.arange(5.0),
    "too many": lambda: torch.arange(7.0),
    "bool": lambda: torch.ones(6).bool(),
    "complex": lambda: torch.ones(6) * 1j,
    "NaN": lambda: torch.tensor([0, 1, 2, 3, 4, math.nan]),
    "infinite": lambda: torch.tensor([0, 1, 2, 3, 4, math.inf]),
    "one number": lambda: torch.tensor(1.0),
    "rank 3": lambda: torch.ones(6, 1, 1),
    "list": lambda: [0.0] * 6,
}


@pytest.mark.parametrize("call", [lambda k, x, a: k.drift(x, a), lambda k, x, a: k.energy(x, a)])
@pytest.mark.parametrize("bad", BAD_TOKENS)
def test_bad_tokens(bad, call):
    for kernel in (Exponential(1.0), Toeplitz(1.0, torch.cos), Harmonic(1.0), Rotary(1.0, [1.0])):
        with pytest.raises(ValueError, match="^tokens: expected .*got "):
            call(kernel, BAD_TOKENS[bad](uniform(6, 4)), torch.arange(6.0))


def test_the_worst_token_is_named_and_almost_unit_vectors_pass():
    x = uniform(6, 4)
    with pytest.raises(ValueError, match=r"^tokens: expected unit vectors \(length 1 within 0.0001\), got .* 1.5$"):
        Exponential(1.0).drift(x * torch.tensor([1, 1.001, 1, 1, 1.5, 0.9]).double()[:, None])
    with pytest.raises(ValueError, match="^tokens: .* got one of length nan$"):
        Exponential(1.0).drift(torch.cat([x[:3] * 2, x[3:] * math.nan]))
    Exponential(1.0).drift(1.00005 * x)


@pytest.mark.parametrize("bad", BAD_LABELS)
@pytest.mark.parametrize("kernel", [Exponential(1.0), SelfAttention(1.0), Rotary(1.0, [1.0]), Toeplitz(1.0, torch.cos)])
def test_bad_labels(kernel, bad):
    with pytest.raises(ValueError, match="^labels: expected .*got "):
        kernel.drift(uniform(6, 4), BAD_LABELS[bad]())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.matrices or case.coupling])
def test_missing_labels(name):
    _, kernel, x, _ = scene(name, 6, 1.0)
    for call in (kernel.drift, kernel.bind, *([kernel.energy] if kernel.no_energy is None else [])):
        with pytest.raises(ValueError, match=f"^labels: {type(kernel).__name__} needs one label for each token, got N"):
            call(x)


@pytest.mark.parametrize("beta", [0, -1.0, math.nan, math.inf, "hot", None, np.ones(2)])
@pytest.mark.parametrize(
    "kernel",
    [
        Exponential,
        SelfAttention,
        Harmonic,
        Repulsive,
        lambda beta: Rotary(beta, [1.0]),
        lambda beta: RotaryQueriesKeys(beta, [1.0]),
        lambda beta: Gauge(beta, orthogonal),
        lambda beta: Coupled(beta, affinity),
        lambda beta: Toeplitz(beta, torch.cos),
    ],
)
def test_bad_beta(kernel, beta):
    with pytest.raises(ValueError, match="^beta: expected a .*number.*, got"):
        kernel(beta)


@pytest.mark.parametrize("kernel", [Rotary, RotaryQueriesKeys])
def test_bad_phases(kernel):
    x, labels = uniform(6, 5), torch.arange(6.0)
    for phases in ([], [[1.0]], torch.tensor(1.0), [1.0, math.nan], [math.inf]):
        with pytest.raises(ValueError, match=r"^phases: expected finite frequencies \(P,\) or a function, got"):
            kernel(1.0, phases)
    for phases in (lambda a: a, lambda a: a[:3, None], lambda a: a[:, None, None]):
        with pytest.raises(ValueError, match=r"^phases: expected angles of shape \(6, P\), got \("):
            kernel(1.0, phases).drift(x, labels)
    for phases in (lambda a: a[:, None] / 0, lambda a: [[0.0]] * 6, lambda a: None):
        with pytest.raises(ValueError, match="^phases: expected a tensor of finite numbers for these labels, got"):
            kernel(1.0, phases).drift(x, labels)
    for phases in ([1.0, 2.0, 3.0], lambda a: a[:, None].expand(6, 3)):
        with pytest.raises(ValueError, match="^phases: 3 planes do not fit into D = 5 dimensions"):
            kernel(1.0, phases).drift(x, labels)
    with pytest.raises(ValueError, match=r"^labels: frequencies need one number a token, \(n,\), got shape \(6, 2\)"):
        kernel(1.0, [1.0]).drift(x, torch.ones(6, 2))


def test_bad_rotations():
    x, labels = uniform(6, 4), torch.arange(6.0)
    with pytest.raises(ValueError, match="^rotations: expected a function labels -> .* got torch.float64 of shape"):
        Gauge(1.0, orthogonal(labels.double()))
    for rotations in (lambda a: orthogonal(a)[:5], lambda a: orthogonal(a)[:, :3, :3], lambda a: orthogonal(a)[0]):
        with pytest.raises(ValueError, match=r"^rotations: expected shape \(6, 4, 4\), got \("):
            Gauge(1.0, rotations).drift(x, labels)
    for rotations in (lambda a: 1.001 * orthogonal(a), lambda a: torch.ones(6, 4, 4)):
        with pytest.raises(ValueError, match="^rotations: expected orthogonal matrices, got .* up to"):
            Gauge(1.0, rotations).drift(x, labels)
    with pytest.raises(ValueError, match="^rotations: expected a tensor of finite numbers .* got NaN or infinity"):
        Gauge(1.0, lambda a: torch.nan * orthogonal(a)).drift(x, labels)


@pytest.mark.parametrize("name, kernel", [("coupling", Coupled), ("profile", Toeplitz)])
def test_bad_couplings(name, kernel):
    x, labels = uniform(6, 4), torch.arange(6.0)
    with pytest.raises(ValueError, match=f"^{name}: expected a function, got torch.float32 of shape"):
        kernel(1.0, torch.ones(6, 6))

    def bind(function):
        kernel(1.0, (lambda a, b: function(a - b)) if kernel is Coupled else function).drift(x, labels)

    with pytest.raises(ValueError, match=f"^{name}: expected a symmetric coupling, .* got a difference of"):
        bind(torch.sin)
    for function in (lambda d: 1 / d.square(), lambda d: 1.0, lambda d: d.numpy()):
        with pytest.raises(ValueError, match=f"^{name}: expected a tensor of finite numbers for these labels, got"):
            bind(function)
    for function in (lambda d: d[0], lambda d: torch.tensor(1.0), lambda d: d[..., None]):
        with pytest.raises(ValueError, match=rf"^{name}: expected shape \(6, 6\), one number for each two labels, got"):
            bind(function)


def test_integer_labels_and_integer_results_are_welcome():
    x, labels = uniform(6, 4, dtype=torch.float32), torch.arange(6)
    torch.testing.assert_close(Rotary(1.0, [2]).drift(x, labels), Rotary(1.0, [2.0]).drift(x, labels.float()))
    same = Coupled(1.0, lambda a, b: (a == b).long())
    torch.testing.assert_close(same.drift(x, labels), torch.zeros(6, 4), atol=1e-7, rtol=0)
    assert same.drift(x, labels).dtype == torch.float32


def test_a_kernel_shows_its_name_and_beta():
    assert repr(Exponential(2)) == "Exponential(beta=2)" and repr(Repulsive(0.5)) == "Repulsive(beta=0.5)"


@pytest.mark.gpu
@pytest.mark.parametrize("n", [60, 1500])
@pytest.mark.parametrize("name", CASES)
def test_cuda_agrees_with_the_cpu(name, n):
    _, kernel, x, labels = scene(name, n, 4.0)
    there = kernel.drift(x.cuda(), labels.cuda())
    assert there.is_cuda and (there.cpu() - kernel.drift(x, labels)).abs().max() < 1e-10
    if kernel.no_energy is None:
        assert abs(kernel.energy(x.cuda(), labels.cuda()).item() - kernel.energy(x, labels).item()) < 1e-10
    small = kernel.drift(x.cuda().float(), labels.cuda().float())
    assert (small.double().cpu() - kernel.drift(x, labels)).abs().max() < 1e-5


@pytest.mark.gpu
def test_cuda_in_float64_runs_in_blocks(monkeypatch):
    x = uniform(2, 900, 3)
    monkeypatch.setattr(attention, "ENTRIES", 2 * 900 * 70)
    assert (Exponential(4.0).drift(x.cuda()).cpu() - Exponential(4.0).drift(x)).abs().max() < 1e-10


def test_the_switch_to_fused_attention_is_seamless(monkeypatch):
    x = uniform(kernels.FEW + 1, 3)
    fused = Exponential(6.0).drift(x)
    monkeypatch.setattr(kernels, "FEW", 1000)
    torch.testing.assert_close(Exponential(6.0).drift(x), fused, rtol=1e-11, atol=1e-15)


def test_positions_are_turned_in_full_precision():
    """Generalised phases and frequencies alike: a position near 1e5 loses nothing to float32."""
    x, labels = uniform(6, 3, dtype=torch.float32), torch.arange(6) + 100_000
    standard = Rotary(2.0, [1.0]).drift(x, labels)
    general = Rotary(2.0, lambda labels: labels.double()[:, None]).drift(x, labels)
    exact = Rotary(2.0, [1.0]).drift(x.double(), labels)
    assert torch.equal(standard, general) and standard.dtype == torch.float32
    assert (standard - exact).abs().max() < 1e-6


@pytest.mark.parametrize("phases", [None, "abc", [[1.0]], []])
def test_phases_that_are_none(phases):
    with pytest.raises(ValueError, match="^phases: expected"):
        Rotary(1.0, phases)


def test_a_kernel_without_a_field_cannot_be_made():
    with pytest.raises(TypeError, match="field"):
        kernels.Kernel(1.0)
