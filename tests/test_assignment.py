"""`assign` and `soft_centroids` against the dense form, in their limits, under masks, and far from the origin."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddcl_lite import assign, decompose, soft_centroids
from ddcl_lite.prototypes import assignment, dense

BOTH = [soft_centroids, dense.soft_centroids]
WEIGHTS = [assign, dense.assign]


@settings(max_examples=60, deadline=None)
@given(
    lead=st.sampled_from([(), (3,), (2, 3), (2, 1, 3)]),
    count=st.sampled_from([1, 7, 300]),
    bank=st.integers(1, 9),
    dim=st.sampled_from([1, 2, 7, 8, 15]),
    temperature=st.floats(0.05, 50),
    seed=st.integers(0, 10_000),
)
def test_fused_equals_dense_for_every_shape(lead, count, bank, dim, temperature, seed):
    torch.manual_seed(seed)
    tokens, prototypes = torch.randn(*lead, count, dim).double(), torch.randn(bank, dim).double()
    torch.testing.assert_close(
        soft_centroids(tokens, prototypes, temperature), dense.soft_centroids(tokens, prototypes, temperature)
    )
    torch.testing.assert_close(assign(tokens, prototypes, temperature), dense.assign(tokens, prototypes, temperature))


@pytest.mark.parametrize("function", [soft_centroids, assign])
def test_one_bank_and_temperature_per_head(function):
    tokens, prototypes, temperature = torch.randn(2, 3, 6, 4), torch.randn(3, 5, 4), torch.tensor([0.5, 1.0, 2.0])
    together = function(tokens, prototypes, temperature)
    for head in range(3):
        alone = function(tokens[:, head], prototypes[head], float(temperature[head]))
        torch.testing.assert_close(together[:, head], alone)


@pytest.mark.parametrize("function", [soft_centroids, assign, decompose])
@pytest.mark.parametrize("bank", [2, 40])
def test_a_bank_may_have_more_leading_dimensions_than_the_tokens(function, bank):
    tokens, prototypes = torch.randn(30, 8).double(), torch.randn(3, 2, bank, 8).double()
    ours, theirs = (f(tokens, prototypes, 1.5) for f in (function, getattr(dense, function.__name__)))
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("bank", [2, 40])
def test_an_empty_batch(bank):
    tokens, prototypes = torch.randn(0, 30, 8), torch.randn(bank, 8, requires_grad=True)
    assert soft_centroids(tokens, prototypes, 1.0).shape == (0, 30, 8)
    assert assign(tokens, prototypes, 1.0).shape == (0, 30, bank)
    assert decompose(tokens, prototypes, 1.0).total == 0


def test_temperatures_of_every_type():
    tokens, prototypes = torch.randn(9, 5), torch.randn(4, 5)
    expected = soft_centroids(tokens, prototypes, 0.75)
    for temperature in (np.float64(0.75), np.array(0.75), torch.tensor(0.75), torch.tensor(0.75).double()):
        torch.testing.assert_close(soft_centroids(tokens, prototypes, temperature), expected)
    assert soft_centroids(tokens, prototypes, 1).dtype == torch.float32


def test_a_cold_assignment_of_large_tokens_is_still_hard():
    prototypes = 1e5 * torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    weights = assign(torch.tensor([[1.9e5, 3e4]]), prototypes, 1e-38)
    torch.testing.assert_close(weights, torch.tensor([[0.0, 1.0]]))
    torch.testing.assert_close(soft_centroids(torch.tensor([[1.9e5, 3e4]]), prototypes, 1e-38), prototypes[1:])


def test_weights_are_a_distribution(cloud):
    tokens, prototypes, mask = cloud
    weights = assign(tokens, prototypes, 1.0, mask)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), mask.double())  # rows of masked tokens are 0


@pytest.mark.parametrize("function", WEIGHTS)
@pytest.mark.parametrize("temperature", [1e-3, 1e-12, 1e-38, 1e-300])
def test_cold_limit_is_the_nearest_prototype_and_ties_are_shared(function, temperature):
    prototypes = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    weights = function(torch.tensor([[1.9, 0.3], [1.0, 0.0]]), prototypes, temperature)
    torch.testing.assert_close(weights, torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]))


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cold_limit_of_the_centroids(function, dtype):
    prototypes = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=dtype)
    tokens = torch.tensor([[0.3, 5.0], [0.0, 5.0]], dtype=dtype)
    for temperature in (1e-6, 1e-38):
        nearest = function(tokens, prototypes, temperature)
        torch.testing.assert_close(nearest, torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=dtype))


@pytest.mark.parametrize("function", BOTH)
def test_hot_limit_is_the_mean(function):
    tokens, prototypes = torch.randn(5, 3), torch.randn(4, 3)
    torch.testing.assert_close(function(tokens, prototypes, 1e30), prototypes.mean(0).expand(5, 3))


@pytest.mark.parametrize("offset", [-1000.0, 1000.0])
def test_a_common_offset_changes_nothing_but_the_offset(offset):
    tokens, prototypes = torch.randn(300, 16), torch.randn(8, 16)
    tokens, prototypes = tokens + offset, prototypes + offset  # as float32 holds them
    exact = dense.soft_centroids(tokens.double(), prototypes.double(), 2.0)
    fused = soft_centroids(tokens, prototypes, 2.0)
    assert (fused - exact).abs().max() < 5e-4  # float32 itself resolves 6e-5 at 1000
    parts, reference = decompose(tokens, prototypes, 2.0), dense.decompose(tokens.double(), prototypes.double(), 2.0)
    for ours, theirs in zip(parts[:3], reference[:3]):
        assert abs(ours - theirs) < 1e-3 * theirs
    assert (
        assign(tokens, prototypes, 2.0) - dense.assign(tokens.double(), prototypes.double(), 2.0)
    ).abs().max() < 1e-4


@pytest.mark.parametrize("garbage", [1e6, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("function", [*BOTH, *WEIGHTS])
def test_garbage_under_the_mask_changes_neither_values_nor_gradients(function, garbage, cloud):
    tokens, prototypes, mask = cloud
    results = []
    for fill in (0.0, garbage):
        z = torch.where(mask[..., None], tokens, fill).requires_grad_()
        p = prototypes.clone().requires_grad_()
        out = function(z, p, 1.0, mask)
        assert (out[~mask] == 0).all()
        out.square().sum().backward()
        assert (z.grad[~mask] == 0).all()
        results.append((out, z.grad, p.grad))
    for clean, dirty in zip(*results):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize("function", [*BOTH, *WEIGHTS])
def test_a_fully_masked_sequence_gives_zeros_and_finite_gradients(function, cloud):
    tokens, prototypes, mask = cloud
    mask = mask & torch.tensor([[True], [False]])
    z, p = tokens.clone().requires_grad_(), prototypes.clone().requires_grad_()
    out = function(z, p, 1.0, mask)
    out.square().sum().backward()
    assert (out[1] == 0).all() and (z.grad[1] == 0).all()
    assert torch.isfinite(z.grad).all() and torch.isfinite(p.grad).all()


@pytest.mark.parametrize("function", [soft_centroids, assign])
def test_gradcheck(function, cloud):
    tokens, prototypes, mask = cloud
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    inputs = (tokens.requires_grad_(), prototypes.requires_grad_(), temperature)
    assert torch.autograd.gradcheck(lambda z, p, t: function(z, p, t, mask), inputs)


def test_second_derivatives_on_the_dense_form(cloud):
    tokens, prototypes, mask = cloud
    inputs = (tokens[:1, :3].requires_grad_(), prototypes.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda z, p: dense.soft_centroids(z, p, 0.7, mask[:1, :3]), inputs)


@pytest.mark.parametrize("function", [soft_centroids, assign])
def test_a_token_on_a_prototype_has_finite_gradients(function):
    prototypes = torch.randn(4, 3).requires_grad_()
    tokens = prototypes.detach().clone().requires_grad_()
    function(tokens, prototypes, 0.5).square().sum().backward()
    assert torch.isfinite(tokens.grad).all() and torch.isfinite(prototypes.grad).all()


@pytest.mark.parametrize("function", [soft_centroids, assign, dense.soft_centroids, dense.assign])
def test_inputs_are_not_changed_and_need_not_be_contiguous(function, cloud):
    tokens, prototypes, mask = cloud
    copies = tokens.clone(), prototypes.clone(), mask.clone()
    expected = function(tokens, prototypes, 1.0, mask)
    assert all(torch.equal(now, before) for now, before in zip((tokens, prototypes, mask), copies))
    strided = tokens.mT.contiguous().mT, prototypes.repeat_interleave(2, -1)[:, ::2], mask.mT.contiguous().mT
    assert not any(t.is_contiguous() for t in strided)
    torch.testing.assert_close(function(strided[0], strided[1], 1.0, strided[2]), expected)


@pytest.mark.parametrize("function", [soft_centroids, assign])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_out_is_dtype_in(function, dtype):
    tokens, prototypes = torch.randn(6, 8).to(dtype), torch.randn(4, 8).to(dtype)
    out = function(tokens, prototypes, 2.0)
    assert out.dtype == dtype
    exact = getattr(dense, function.__name__)(tokens.double(), prototypes.double(), 2.0)
    assert (out - exact).abs().max() < 4 * torch.finfo(dtype).eps  # sums were at least float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature, offset", [(8.0, 0.0), (0.01, 0.0), (1.0, 50.0)])
def test_autocast_changes_nothing_inside(dtype, temperature, offset):
    tokens, prototypes = torch.randn(2, 300, 64) + offset, (torch.randn(64, 64) + offset).requires_grad_()
    exact = soft_centroids(tokens, prototypes, temperature)
    reference = dense.soft_centroids(tokens, prototypes, temperature)
    with torch.autocast("cpu", dtype):
        ours = soft_centroids(tokens, prototypes, temperature)
        weights = assign(tokens.to(dtype), prototypes, temperature)
        assert torch.equal(dense.soft_centroids(tokens, prototypes, temperature), reference)
    ours.sum().backward()
    assert ours.dtype == torch.float32 and torch.isfinite(prototypes.grad).all()
    assert torch.equal(ours, exact)
    assert (weights.sum(-1) - 1).abs().max() < 1e-3


def test_half_precision_does_not_overflow():
    tokens, prototypes = torch.full((3, 64), 100.0).half(), (200 * torch.eye(4, 64)).half()  # squared norms of 6e5
    with torch.autocast("cpu", torch.float16):
        assert torch.isfinite(soft_centroids(tokens, prototypes, 50.0)).all()
        assert torch.isfinite(decompose(tokens, prototypes, 50.0).total)


@pytest.mark.parametrize("function", [soft_centroids, assign, decompose])
def test_compiles_into_one_graph(function):
    compiled = torch.compile(function, fullgraph=True)
    for count in (9, 700):
        tokens, prototypes, mask = torch.randn(2, count, 8), torch.randn(5, 8), torch.rand(2, count) > 0.3
        for expected, got in zip(function(tokens, prototypes, 0.8, mask), compiled(tokens, prototypes, 0.8, mask)):
            torch.testing.assert_close(got, expected)


def test_gradients_of_compiled_code():
    tokens, prototypes = torch.randn(2, 300, 8), torch.randn(20, 8)
    gradients = []
    for function in (decompose, torch.compile(decompose, fullgraph=True, backend="aot_eager")):
        z, p = tokens.clone().requires_grad_(), prototypes.clone().requires_grad_()
        function(z, p, 0.8).total.backward()
        gradients.append((z.grad, p.grad))
    for expected, got in zip(*gradients):
        torch.testing.assert_close(got, expected)


BAD = {
    "temperature": [
        dict(temperature=t)
        for t in (0, -1.0, float("nan"), float("inf"), None, "hot", np.ones(2), torch.tensor(-1.0), torch.ones(3))
    ],
    "tokens": [dict(tokens=t) for t in (torch.randn(3), torch.randn(2, 0, 5), torch.ones(2, 9, 5).long(), [[1.0]])],
    "prototypes": [
        dict(prototypes=p) for p in (torch.randn(5), torch.randn(4, 6), torch.randn(0, 5), torch.randn(3, 4, 5), None)
    ],
    "mask": [dict(mask=m) for m in (torch.ones(2, 9), torch.ones(9).bool(), torch.ones(2, 8).bool(), [True])],
}


@pytest.mark.parametrize("function", [*BOTH, *WEIGHTS, decompose, dense.decompose])
@pytest.mark.parametrize("name, change", [(name, change) for name, changes in BAD.items() for change in changes])
def test_bad_input_names_the_argument(function, name, change):
    good = dict(tokens=torch.randn(2, 9, 5), prototypes=torch.randn(4, 5), temperature=1.0, mask=None)
    with pytest.raises(ValueError, match=f"^{name}: expected .*got |^{name}: leading"):
        function(**{**good, **change})


def test_a_wrong_width_names_prototypes_and_both_numbers():
    with pytest.raises(ValueError, match="prototypes: expected D = 5 features as in tokens, got D = 6"):
        assign(torch.randn(9, 5), torch.randn(4, 6), 1.0)


def big_tensors(action, count, bank):
    """Number of tensors with at least count * bank elements that `action` allocates or saves."""
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor):
                    sizes.append(tensor.untyped_storage().nbytes() // tensor.element_size())
            return out

    with Watch():
        action()
    return sum(size >= count * bank for size in sizes)


@pytest.mark.parametrize("function", [soft_centroids, lambda *inputs: decompose(*inputs).total])
def test_nothing_of_size_n_by_k_is_held(function):
    count, bank = 2048, 512
    tokens, prototypes = torch.randn(count, 8, requires_grad=True), torch.randn(bank, 8, requires_grad=True)
    assert big_tensors(lambda: function(tokens, prototypes, 1.0).sum().backward(), count, bank) == 0
    assert big_tensors(lambda: assign(tokens, prototypes, 1.0), count, bank) > 0  # the watch does see such tensors


def test_peak_memory_stays_below_one_n_by_k_matrix(tmp_path):
    """In a fresh process, so that the peak is this call's own: forward and backward against the size of N x K."""
    import subprocess
    import sys

    script = """
import resource, sys, torch
from ddcl_lite import soft_centroids
tokens, prototypes = torch.randn(32768, 16, requires_grad=True), torch.randn(4096, 16, requires_grad=True)
soft_centroids(tokens[:512], prototypes, 1.0).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
soft_centroids(tokens, prototypes, 1.0).sum().backward()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(peak * (1 if sys.platform == "darwin" else 1024))
"""
    pytest.importorskip("resource", reason="this platform does not report peak memory")
    peak = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    assert peak < 32768 * 4096 * 4 / 4, f"{peak / 2**20:.0f} MiB"


@pytest.mark.gpu
def test_cuda_runs_the_memory_efficient_kernel_and_agrees():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    tokens, prototypes = torch.randn(4, 1000, 64), torch.randn(256, 64)
    exact = dense.soft_centroids(tokens.double(), prototypes.double(), 2.0)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]):  # no dense fallback allowed
        fused = soft_centroids(tokens.cuda().requires_grad_(), prototypes.cuda().requires_grad_(), 2.0)
        fused.sum().backward()
    assert (fused.cpu() - exact).abs().max() < 1e-4
    assert assignment.squared_distances(tokens.cuda(), prototypes.cuda()).shape == (4, 1000, 256)
