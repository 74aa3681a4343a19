"""The alternatives, and the prototype readout, behind one interface."""

import inspect

import pytest
import torch

from ddcl_lite import (
    AttentionPooling,
    FirstTokenReadout,
    MeanReadout,
    PerceiverReadout,
    PrototypeReadout,
    SlotAttentionReadout,
)
from ddcl_lite.prototypes import readouts

MAKERS = {
    "mean": lambda: MeanReadout(),
    "first": lambda: FirstTokenReadout(),
    "attention": lambda: AttentionPooling(8, 2),
    "slots": lambda: SlotAttentionReadout(8, 3),
    "perceiver": lambda: PerceiverReadout(8, 3, 2),
    "prototypes": lambda: PrototypeReadout(8, 5, 2),
}


@pytest.fixture(params=MAKERS)
def readout(request):
    return MAKERS[request.param]()


@pytest.fixture
def batch():
    return torch.randn(3, 7, 8), torch.tensor([[1] * 7, [1] * 3 + [0] * 4, [0] * 7], dtype=torch.bool)


def test_shapes(readout):
    assert readout(torch.randn(3, 7, 8)).shape == (3, 8)
    assert readout(torch.randn(7, 8)).shape == (8,)
    assert readout(torch.randn(2, 3, 7, 8), torch.ones(2, 3, 7, dtype=torch.bool)).shape == (2, 3, 8)


def test_masked_tokens_are_as_good_as_absent(readout, batch):
    tokens, mask = batch
    out = readout(tokens, mask)
    torch.testing.assert_close(out[0], readout(tokens[0]))
    torch.testing.assert_close(out[1], readout(tokens[1, :3]))
    assert (out[2] == 0).all()


@pytest.mark.parametrize("garbage", [1e6, float("nan"), float("inf")])
def test_garbage_under_the_mask(readout, batch, garbage):
    tokens, mask = batch
    results = []
    for fill in (0.0, garbage):
        z = torch.where(mask[..., None], tokens, fill).requires_grad_()
        readout.zero_grad()
        out = readout(z, mask)
        out.square().sum().backward()
        results.append([out, z.grad, *(p.grad.clone() for p in readout.parameters())])
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*results))
    assert all(torch.isfinite(value).all() for value in results[0])
    assert (results[0][1][~mask] == 0).all()


def test_order_of_tokens_does_not_matter_except_for_the_first_token(readout, batch):
    tokens = batch[0]
    shuffled = tokens[:, torch.tensor([6, 2, 0, 1, 5, 4, 3])]
    same = torch.allclose(readout(tokens), readout(shuffled), atol=1e-5)
    assert same != isinstance(readout, FirstTokenReadout)


def test_every_parameter_is_used(readout, batch):
    tokens = batch[0].requires_grad_()
    (readout(tokens) * torch.randn(3, 8)).sum().backward()
    assert tokens.grad.abs().max() > 0
    unused = [name for name, p in readout.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
    assert unused == []


def test_train_and_eval_agree_and_nothing_changes(readout, batch):
    before = {name: value.clone() for name, value in readout.state_dict().items()}
    torch.testing.assert_close(readout.train()(*batch), readout.eval()(*batch))
    assert all(torch.equal(before[name], value) for name, value in readout.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(readout, batch, dtype):
    tokens, mask = batch
    exact = readout(tokens, mask)
    with torch.autocast("cpu", dtype):
        assert (readout(tokens, mask) - exact).abs().max() < 0.1
    tokens = tokens.to(dtype).requires_grad_()
    out = readout.to(dtype)(tokens, mask)
    out.sum().backward()
    assert (out - exact).abs().max() < 0.1 and (out[2] == 0).all()
    assert all(torch.isfinite(tensor.grad).all() for tensor in (tokens, *readout.parameters()))


def test_a_mean_of_many_halves_does_not_overflow():
    tokens, mask = torch.full((1, 1000, 4), 100.0).half(), torch.ones(1, 1000, dtype=torch.bool)
    assert torch.equal(MeanReadout()(tokens, mask), torch.full((1, 4), 100.0).half())


def test_bad_input(readout):
    with pytest.raises(ValueError, match="^tokens: expected"):
        readout(torch.randn(8))
    with pytest.raises(ValueError, match="^mask: expected"):
        readout(torch.randn(3, 7, 8), torch.ones(3, 6, dtype=torch.bool))


def test_each_is_under_40_lines():
    classes = [c for _, c in inspect.getmembers(readouts, inspect.isclass) if c.__module__ == readouts.__name__]
    assert len(classes) == 5
    assert all(len(inspect.getsourcelines(c)[0]) < 40 for c in classes)


def test_the_mean_is_the_mean(batch):
    tokens, mask = batch
    torch.testing.assert_close(MeanReadout()(tokens, mask)[1], tokens[1, :3].mean(0))
    torch.testing.assert_close(FirstTokenReadout()(tokens, mask)[:2], tokens[:2, 0])
