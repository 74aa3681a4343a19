"""DDCLAttention and PrototypeReadout."""

import copy

import pytest
import torch

from ddcl_lite import DDCLAttention, PrototypeReadout, critical_temperature, soft_centroids
from ddcl_lite.prototypes import dense


@pytest.fixture
def batch():
    return torch.randn(2, 9, 8), torch.tensor([[1] * 9, [1] * 4 + [0] * 5], dtype=torch.bool)


def test_forward_is_the_formula(batch):
    tokens, mask = batch
    layer = DDCLAttention(8, 5, num_heads=2, temperature=0.6)
    halves = [dense.soft_centroids(tokens[..., 4 * h : 4 * h + 4], layer.prototypes[h], 0.6) for h in range(2)]
    expected = layer.norm(tokens + torch.cat(halves, -1) @ layer.output.weight.T)
    torch.testing.assert_close(layer(tokens), expected)
    torch.testing.assert_close(layer(tokens, mask), expected * mask[..., None])


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_leading_dimensions_are_free(lead):
    tokens, layer = torch.randn(*lead, 7, 8), DDCLAttention(8, 5, num_heads=4)
    assert layer(tokens).shape == tokens.shape
    assert layer.assign(tokens).shape == (*lead, 4, 7, 5)
    flat = layer(tokens.reshape(-1, 7, 8)).reshape(tokens.shape)
    torch.testing.assert_close(layer(tokens), flat)


def test_decompose_sums_over_heads_and_keeps_the_identity(batch):
    tokens, mask = batch
    layer = DDCLAttention(8, 5, num_heads=2, temperature=0.6)
    parts = layer.decompose(tokens, mask)
    per_head = [dense.decompose(tokens[..., 4 * h : 4 * h + 4], layer.prototypes[h], 0.6, mask) for h in range(2)]
    for term in range(3):
        torch.testing.assert_close(parts[term], per_head[0][term] + per_head[1][term])
    error = (tokens - parts.centroids).square().sum(-1)[mask].mean()
    torch.testing.assert_close(parts.reconstruction, error)
    torch.testing.assert_close(parts.total, parts.reconstruction + parts.variance)


def test_forward_changes_no_state_and_no_input(batch):
    tokens, mask = batch
    layer = DDCLAttention(8, 5)
    state, before = copy.deepcopy(layer.state_dict()), tokens.clone()
    first = layer.train()(tokens, mask)
    second = layer.eval()(tokens, mask)
    assert torch.equal(first, second)
    assert all(torch.equal(state[name], value) for name, value in layer.state_dict().items())
    assert torch.equal(tokens, before)


@pytest.mark.parametrize("garbage", [1e6, float("nan"), float("inf")])
def test_garbage_under_the_mask_changes_nothing(batch, garbage):
    tokens, mask = batch
    layer, results = PrototypeReadout(8, 5, num_heads=2), []
    for fill in (0.0, garbage):
        z = torch.where(mask[..., None], tokens, fill).requires_grad_()
        layer.zero_grad()
        out = layer(z, mask)
        out.square().sum().backward()
        results.append([out, z.grad, *(p.grad.clone() for p in layer.parameters())])
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*results))
    assert (results[1][1][~mask] == 0).all()


def test_masked_tokens_are_as_good_as_absent(batch):
    tokens, mask = batch
    readout = PrototypeReadout(8, 5)
    torch.testing.assert_close(readout(tokens, mask)[1], readout(tokens[1, :4]))


def test_an_all_masked_sequence(batch):
    tokens, mask = batch
    mask = mask & torch.tensor([[True], [False]])
    readout = PrototypeReadout(8, 5)
    out = readout(tokens.requires_grad_(), mask)
    (out.square().sum() + readout.layer.decompose(tokens, mask).total).backward()
    assert (out[1] == 0).all()
    assert all(torch.isfinite(p.grad).all() for p in readout.parameters())


def gradients(layer, loss):
    """Names of the parameters that the loss moves."""
    layer.zero_grad()
    loss.backward()
    return {name for name, p in layer.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}


def test_which_loss_moves_which_parameter(batch):
    """The table in the layer's docstring."""
    tokens, _ = batch
    for detach in (False, True):
        layer = DDCLAttention(8, 5, num_heads=2, detach_assignment=detach)
        everything = {name for name, _ in layer.named_parameters()}
        assert gradients(layer, (layer(tokens) * torch.randn(2, 9, 8)).sum()) == everything
        assert gradients(layer, layer.decompose(tokens).total) == {"prototypes"}


def test_forward_never_detaches_the_assignment(batch):
    tokens, target = batch[0], torch.randn(2, 9, 8)
    layer = DDCLAttention(8, 5)
    frozen = DDCLAttention(8, 5, detach_assignment=True)
    frozen.load_state_dict(layer.state_dict())
    for module in (layer, frozen):
        (module(tokens) * target).sum().backward()
    torch.testing.assert_close(layer.prototypes.grad, frozen.prototypes.grad)
    layer.zero_grad()
    frozen.zero_grad()
    layer.decompose(tokens).total.backward()
    frozen.decompose(tokens).total.backward()
    assert (layer.prototypes.grad - frozen.prototypes.grad).norm() > 1e-3


@pytest.mark.parametrize("detach", [False, True])
def test_calibrate_is_per_head_and_ignores_masked_tokens(batch, detach):
    tokens, mask = batch
    tokens = tokens * torch.tensor([1.0] * 4 + [5.0] * 4)
    layer = DDCLAttention(8, 5, num_heads=2, detach_assignment=detach).calibrate(tokens, 0.5, mask)
    for head in range(2):
        critical = critical_temperature(tokens[..., 4 * head : 4 * head + 4], mask, detach)
        torch.testing.assert_close(layer.temperature[head], 0.5 * critical)
    assert layer.temperature[1] > 5 * layer.temperature[0]


def test_a_changed_temperature_needs_no_recompiling(batch):
    tokens, mask = batch
    layer = DDCLAttention(8, 5, num_heads=2)
    compiled = torch.compile(layer, fullgraph=True)
    compiled(tokens, mask)
    layer.temperature.mul_(0.1)
    with torch.compiler.set_stance("fail_on_recompile"):
        again = compiled(tokens, mask)
    torch.testing.assert_close(again, layer(tokens, mask))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(batch, dtype):
    tokens, mask = batch
    layer = DDCLAttention(8, 5, num_heads=2)
    exact = layer(tokens, mask)
    with torch.autocast("cpu", dtype):
        mixed = layer(tokens, mask)
        mixed.sum().backward()
    assert (mixed - exact).abs().max() < 0.1
    assert torch.isfinite(layer.prototypes.grad).all()
    assert (layer.to(dtype)(tokens.to(dtype), mask) - exact).abs().max() < 0.1


def test_double_precision_gradcheck(batch):
    layer = DDCLAttention(8, 3, num_heads=2).double()
    tokens = batch[0][:, :4].double().requires_grad_()
    assert torch.autograd.gradcheck(layer, (tokens, batch[1][:, :4]))


def test_masks_and_heads_agree_with_soft_centroids(batch):
    tokens, mask = batch
    layer = DDCLAttention(8, 5, temperature=0.3)
    expected = soft_centroids(tokens, layer.prototypes[0], 0.3, mask)
    torch.testing.assert_close(layer.decompose(tokens, mask).centroids, expected)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("dim", (0, 5)),
        ("num_prototypes", (8, 0)),
        ("num_heads", (8, 5, 3)),
        ("num_heads", (8, 5, 0)),
        ("temperature", (8, 5, 1, 0.0)),
        ("temperature", (8, 5, 1, float("nan"))),
    ],
)
def test_bad_construction_names_the_argument(name, arguments):
    with pytest.raises(ValueError, match=f"^{name}: expected .*got "):
        DDCLAttention(*arguments)


def test_bad_input_names_the_argument(batch):
    tokens, mask = batch
    layer = DDCLAttention(8, 5)
    with pytest.raises(ValueError, match="dim = 8 features as in prototypes, got"):
        layer(torch.randn(2, 9, 7))
    with pytest.raises(ValueError, match="^mask: expected"):
        layer(tokens, mask[:, :5])
    with pytest.raises(ValueError, match="^ratio: expected .* got -1"):
        layer.calibrate(tokens, -1)
    with pytest.raises(ValueError, match="^tokens: expected tokens that differ"):
        layer.calibrate(torch.full((2, 9, 8), 0.1), 0.5)
    with pytest.raises(ValueError, match="^temperature: expected a finite number > 0, got .*inf"):
        DDCLAttention(8, 5).half().calibrate(300 * torch.randn(2, 50, 8).half(), 0.5)
