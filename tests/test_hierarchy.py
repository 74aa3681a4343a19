"""HierarchicalReadout: masses and means at every level, losses that stay on their level, empty prototypes, masks."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddcl_lite import HierarchicalReadout, assign, critical_temperature, decompose
from ddcl_lite.prototypes import dense
from ddcl_lite.prototypes.hierarchy import read
from ddcl_lite.prototypes.loss import critical_temperature_by, decompose_by


@pytest.fixture
def batch():
    """Tokens (3, 9, 5) of sequences with 9, 6 and 4 real ones, with the mask (3, 9), in float64."""
    mask = torch.tensor([[1] * 9, [1, 0, 1, 1, 0, 1, 1, 0, 1], [1] * 4 + [0] * 5], dtype=torch.bool)
    return torch.randn(3, 9, 5).double(), mask


@pytest.fixture
def readout():
    """Three levels of 6, 4 and 2 prototypes, in float64, each with its own temperature."""
    made = HierarchicalReadout(5, [6, 4, 2]).double()
    made.temperature.copy_(torch.tensor([0.8, 0.5, 1.5]))
    return made


def written_out(readout, tokens, mask=None):
    """The levels of one sequence (N, D), sum by sum: lists of vectors, masses and (L_q, L_OLS, V)."""
    z = tokens if mask is None else tokens[mask]
    w, found = z.new_full((len(z),), 1 / len(z)), []
    for bank, temperature in zip(readout.banks, readout.temperature):
        q = dense.assign(z, bank, temperature)
        mu = q @ bank
        loss = (w[:, None] * q * (z[:, None] - bank).square().sum(-1)).sum()
        reconstruction = (w * (z - mu).square().sum(-1)).sum()
        variance = (w[:, None] * q * (mu[:, None] - bank).square().sum(-1)).sum()
        flow = q * w[:, None]
        w = flow.sum(0)
        z = flow.T @ z / w[:, None]
        found.append((z, w, (loss, reconstruction, variance)))
    return found


def close(one, other, **tolerance):
    torch.testing.assert_close(one, other, **{"atol": 1e-12, "rtol": 1e-12} | tolerance)


# what a level makes of its input


def test_levels_are_the_formula(batch, readout):
    tokens, mask = batch
    levels = readout.levels(tokens, mask)
    expected = [written_out(readout, z, m) for z, m in zip(tokens, mask)]
    assert len(levels) == 3 and readout(tokens, mask).equal(levels[-1].vectors)
    for depth, level in enumerate(levels):
        for i in range(3):
            close(level.vectors[i], expected[i][depth][0])
            close(level.mass[i], expected[i][depth][1])
        for term in range(3):  # a sequence counts as much as any other
            close(level.parts[term], torch.stack([expected[i][depth][2][term] for i in range(3)]).mean())
    for one, other in zip(readout.decompose(tokens, mask), levels):
        assert all(a.equal(b) for a, b in zip(one, other.parts))
    assert levels[0].parts.centroids.shape == (3, 9, 5) and levels[1].parts.centroids.shape == (3, 6, 5)


def test_gradients_are_those_of_the_formula(batch, readout):
    tokens, upstream = batch[0][0].clone().requires_grad_(), torch.randn(2, 5).double()
    inputs = [tokens, *readout.banks]
    ours = torch.autograd.grad((readout(tokens) * upstream).sum(), inputs)
    theirs = torch.autograd.grad((written_out(readout, tokens)[-1][0] * upstream).sum(), inputs)
    for one, other in zip(ours, theirs):
        close(one, other, atol=1e-10, rtol=1e-10)
        assert one.abs().max() > 1e-6


@settings(max_examples=60, deadline=None)
@given(
    lead=st.sampled_from([(), (2,), (2, 2)]),
    count=st.sampled_from([1, 2, 9, 40]),
    sizes=st.sampled_from([[1], [7], [5, 3], [2, 6, 1], [8, 4, 4, 2]]),
    dim=st.sampled_from([1, 3, 17]),
    temperature=st.floats(0.02, 20),
    offset=st.sampled_from([0.0, 10.0]),
    masked=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_what_holds_at_every_level(lead, count, sizes, dim, temperature, offset, masked, seed):
    """Masses sum to 1, the mean is kept, L_q = L_OLS + V, vectors lie among the tokens, and order means nothing."""
    torch.manual_seed(seed)
    readout = HierarchicalReadout(dim, sizes, temperature).double()
    for bank in readout.banks:
        bank.data.add_(offset)
    tokens, mask = offset + torch.randn(*lead, count, dim).double(), torch.rand(*lead, count) < 0.7
    mask[..., 0] = True
    mask = mask if masked else None
    weight = torch.ones(*lead, count).double() if mask is None else mask.double()
    weight = (weight / weight.sum(-1, keepdim=True))[..., None]
    mean, inside = (
        (weight * tokens).sum(-2),
        tokens if mask is None else torch.where(mask[..., None], tokens, torch.nan),
    )
    lower = inside.nan_to_num(math.inf).amin(-2, keepdim=True) - 1e-12 * (1 + offset)
    upper = inside.nan_to_num(-math.inf).amax(-2, keepdim=True) + 1e-12 * (1 + offset)

    seen, share = tokens, weight.squeeze(-1)
    for level, bank, heat in zip(readout.levels(tokens, mask), readout.banks, readout.temperature):
        vectors, mass, parts = level
        close(mass.sum(-1), torch.ones(lead).double())
        assert (mass >= 0).all()
        close((mass[..., None] * vectors).sum(-2), mean, atol=1e-12 * (1 + offset))
        there = mass[..., None] > 0
        assert ((vectors >= lower) & (vectors <= upper) | ~there).all() and (
            vectors[~there.expand_as(vectors)] == 0
        ).all()
        written = dense.split(seen, bank, dense.assign(seen, bank, heat))
        for ours, each in zip(parts[:3], written[:3]):
            close(ours, (share * each).sum(-1).mean(), atol=1e-12 * (1 + offset) ** 2, rtol=1e-11)
        close(parts.total, parts.reconstruction + parts.variance)
        assert parts.variance >= 0
        seen, share = vectors, mass

    order = torch.randperm(count)
    permuted = readout.levels(tokens[..., order, :], None if mask is None else mask[..., order])
    for one, other in zip(permuted, readout.levels(tokens, mask)):
        there = other.mass > 1e-9  # a vector of less mass is known to fewer digits
        close(one.vectors[there], other.vectors[there], atol=1e-9, rtol=1e-9)
        close(one.mass, other.mass)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (0,)])
def test_leading_dimensions_are_free(readout, lead):
    tokens = torch.randn(*lead, 7, 5).double()
    levels = readout.levels(tokens)
    assert readout(tokens).shape == (*lead, 2, 5)
    assert [level.vectors.shape for level in levels] == [(*lead, size, 5) for size in (6, 4, 2)]
    assert [level.mass.shape for level in levels] == [(*lead, size) for size in (6, 4, 2)]
    assert all(part.shape == () for level in levels for part in level.parts[:3])
    if tokens.numel():
        close(readout(tokens), readout(tokens.reshape(-1, 7, 5)).reshape(*lead, 2, 5))


def test_one_prototype_is_mean_pooling(batch):
    tokens, mask = batch
    for sizes in ([1], [6, 1], [1, 3]):
        out = HierarchicalReadout(5, sizes).double()(tokens, mask)
        means = (tokens * mask[..., None]).sum(1) / mask.sum(1)[:, None]
        close(out, means[:, None].expand_as(out))


def test_one_token_and_equal_tokens(batch, readout):
    token = batch[0][:1, :1]
    for tokens in (token, token.expand(1, 8, 5)):
        for level in readout.levels(tokens):
            close(level.vectors, token.expand_as(level.vectors))
            close(level.mass.sum(-1), torch.ones(1).double())


def test_read_weighs_as_assign_does():
    tokens, bank = 30 + torch.randn(2, 50, 8).double(), 30 + torch.randn(6, 8).double()
    mass = torch.rand(2, 50).double()
    vectors, masses = read(tokens, mass, bank, torch.tensor(0.4, dtype=torch.float64))
    flow = assign(tokens, bank, 0.4) * mass[..., None]
    close(masses, flow.sum(1), rtol=1e-10)
    close(vectors, flow.mT @ tokens / flow.sum(1)[..., None], rtol=1e-10)
    _, cold = read(tokens.float(), mass.float(), bank.float(), torch.tensor(1e-30))
    nearest = torch.cdist(tokens, bank).argmin(-1)
    chosen = torch.nn.functional.one_hot(nearest, 6) * mass[..., None]
    torch.testing.assert_close(cold, chosen.sum(1).float())


# masks, and prototypes without mass


@pytest.mark.parametrize("garbage", [1e6, float("nan"), float("inf")])
def test_garbage_under_the_mask_changes_nothing(batch, readout, garbage):
    tokens, mask = batch
    results = []
    for fill in (0.0, garbage):
        z = torch.where(mask[..., None], tokens, fill).requires_grad_()
        readout.zero_grad()
        levels = readout.levels(z, mask)
        (readout(z, mask).square().sum() + sum(level.parts.total for level in levels)).backward()
        grads = [bank.grad.clone() for bank in readout.banks]
        other = copy.deepcopy(readout).start(z, 0.3, mask, torch.Generator().manual_seed(0))
        again = copy.deepcopy(readout).calibrate(z, 0.3, mask)
        flat = [part for level in levels for part in (level.vectors, level.mass, *level.parts)]
        results.append([z.grad, *flat, *grads, *other.state_dict().values(), *again.state_dict().values()])
    assert all(clean.equal(dirty) for clean, dirty in zip(*results))
    assert (results[1][0][~mask] == 0).all()


def test_masked_tokens_are_as_good_as_absent(batch, readout):
    tokens, mask = batch
    for i in range(3):
        alone = readout.levels(tokens[i][mask[i]])
        for level, single in zip(readout.levels(tokens, mask), alone):
            close(level.vectors[i], single.vectors)
            close(level.mass[i], single.mass)


def test_a_sequence_without_tokens_counts_for_nothing(batch, readout):
    tokens, mask = batch[0].clone().requires_grad_(), batch[1].clone()
    mask[1] = False
    levels, rest = readout.levels(tokens, mask), readout.levels(tokens[[0, 2]], mask[[0, 2]])
    for level, other in zip(levels, rest):
        assert (level.vectors[1] == 0).all() and (level.mass[1] == 0).all()
        close(level.vectors[[0, 2]], other.vectors)
        for term in range(3):
            close(level.parts[term], other.parts[term])
    (readout(tokens, mask).square().sum() + sum(level.parts.total for level in levels)).backward()
    assert (tokens.grad[1] == 0).all() and tokens.grad.isfinite().all()
    assert all(bank.grad.isfinite().all() for bank in readout.banks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_masked(batch, readout, dtype):
    tokens, readout = batch[0].to(dtype).requires_grad_(), readout.to(dtype)
    nothing = torch.zeros(3, 9, dtype=torch.bool)
    levels = readout.levels(tokens, nothing)
    (readout(tokens, nothing).sum() + sum(level.parts.total for level in levels)).backward()
    for level in levels:
        assert (level.vectors == 0).all() and (level.mass == 0).all() and all((part == 0).all() for part in level.parts)
    assert all((leaf.grad == 0).all() for leaf in (tokens, *readout.banks))
    with pytest.raises(ValueError, match="^tokens: expected an input of level 0 that differs"):
        readout.calibrate(tokens, 0.5, nothing)


def test_a_prototype_without_mass_is_as_good_as_absent(batch):
    """Deep in the cold: 0 mass, 0 vector, and nothing of it at the next level."""
    tokens = batch[0]
    readout = HierarchicalReadout(5, [6, 3], temperature=0.01).double()
    readout.banks[0].data[[1, 4]] = 40.0
    first, second = readout.levels(tokens)
    assert (first.mass[:, [1, 4]] == 0).all() and (first.vectors[:, [1, 4]] == 0).all()
    close(first.mass.sum(-1), torch.ones(3).double())
    assert (second.parts.centroids[:, [1, 4]] == 0).all()
    small = HierarchicalReadout(5, [4, 3], temperature=0.01).double()
    small.banks[0].data.copy_(readout.banks[0].data[[0, 2, 3, 5]])
    small.banks[1].data.copy_(readout.banks[1].data)
    for ours, theirs in zip(second[:2], small.levels(tokens)[1][:2]):
        torch.testing.assert_close(ours, theirs)
    for term in range(3):
        torch.testing.assert_close(second.parts[term], small.decompose(tokens)[1][term])
    torch.testing.assert_close((second.mass[..., None] * second.vectors).sum(1), tokens.mean(1))
    readout(tokens).square().sum().backward()
    assert all(bank.grad.isfinite().all() for bank in readout.banks) and (readout.banks[0].grad[[1, 4]] == 0).all()


def test_gradients_are_finite_however_little_mass_is_left():
    """A second prototype with every mass from 1e-20 to nothing: 1/mass must not overflow on the way back."""
    for exponent in np.linspace(35, 110, 151):
        tokens = torch.tensor([[5.0, 3.0], [5.0, -3.0], [5.5, 40.0]], requires_grad=True)
        bank = torch.tensor([[0.0, 0.0], [20.0, 0.0]], requires_grad=True)
        vectors, mass = read(tokens, torch.full((3,), 1 / 3), bank, torch.tensor(200 / exponent))
        (100 * vectors.sum() + mass.sum()).backward()
        assert tokens.grad.isfinite().all() and bank.grad.isfinite().all()
        assert (vectors.abs() <= torch.tensor([5.5, 40.0]) * 1.0001).all()
        assert (vectors[1] == 0).all() if mass[1] == 0 else vectors[1, 0] > 4.999


# which loss moves what


@pytest.mark.parametrize("detach", [False, True])
def test_losses_stop_between_levels_and_a_task_loss_moves_all(batch, readout, detach):
    tokens = batch[0].clone().requires_grad_()
    readout.detach_assignment = detach
    for depth in range(3):
        readout.zero_grad()
        tokens.grad = None
        readout.decompose(tokens, batch[1])[depth].total.backward()
        moved = [bank.grad is not None and bool(bank.grad.abs().max() > 1e-6) for bank in readout.banks]
        assert moved == [i == depth for i in range(3)]
        assert (tokens.grad is not None) == (depth == 0)  # the first level's loss moves what makes the tokens
    readout.zero_grad()
    (readout(tokens, batch[1]) * torch.randn(3, 2, 5)).sum().backward()
    assert all(bank.grad.abs().max() > 1e-6 for bank in readout.banks)
    assert tokens.grad[batch[1]].abs().amin(-1).min() > 0


def test_detach_assignment_concerns_the_losses_alone(batch, readout):
    tokens, upstream, found = batch[0], torch.randn(3, 2, 5), {}
    for readout.detach_assignment in (False, True):
        task = torch.autograd.grad((readout(tokens) * upstream).sum(), list(readout.banks))
        losses = torch.autograd.grad(sum(parts.total for parts in readout.decompose(tokens)), list(readout.banks))
        found[readout.detach_assignment] = task, losses
    for level in range(3):
        assert found[False][0][level].equal(found[True][0][level])
        assert (found[False][1][level] - found[True][1][level]).norm() > 1e-3


def test_level_losses_are_those_of_single_banks(batch, readout):
    """With sequences of equal length, the first level is `decompose`, also in its gradients."""
    tokens = batch[0]
    for readout.detach_assignment in (False, True):
        ours = readout.decompose(tokens)[0]
        theirs = decompose(tokens, readout.banks[0], readout.temperature[0], None, readout.detach_assignment)
        for one, other in zip(ours, theirs):
            close(one, other)
        grads = [torch.autograd.grad(parts.total, readout.banks[0])[0] for parts in (ours, theirs)]
        close(*grads)


def test_forward_changes_no_state_and_no_input(batch, readout):
    tokens, mask = batch
    state, before, random = copy.deepcopy(readout.state_dict()), tokens.clone(), torch.get_rng_state()
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            assert readout.train()(tokens, mask).equal(readout.eval()(tokens, mask))
            readout.levels(tokens, mask)
            readout.decompose(tokens, mask)
    assert all(state[name].equal(value) for name, value in readout.state_dict().items())
    assert tokens.equal(before) and torch.get_rng_state().equal(random)


# start and calibrate


@pytest.mark.parametrize("detach", [False, True])
def test_start_and_calibrate(batch, detach):
    tokens, mask = batch
    readout = HierarchicalReadout(5, [6, 4, 2], detach_assignment=detach).double()
    twin, state = copy.deepcopy(readout), torch.get_rng_state()
    assert readout.start(tokens, 0.3, mask, torch.Generator().manual_seed(1)) is readout
    twin.start(tokens, 0.3, mask, torch.Generator().manual_seed(1))
    assert torch.get_rng_state().equal(state)
    assert all(a.equal(b) for a, b in zip(readout.state_dict().values(), twin.state_dict().values()))
    levels = readout.levels(tokens, mask)
    inputs = [(tokens[mask], (mask / mask.sum(1, keepdim=True))[mask].double())]
    inputs += [(level.vectors.flatten(0, 1), level.mass.flatten()) for level in levels[:-1]]
    for bank, temperature, (seen, mass) in zip(readout.banks, readout.temperature, inputs):
        hits = ((bank[:, None] - seen).abs() < 1e-9).all(-1)
        assert (hits.sum(1) == 1).all() and (hits.sum(0) <= 1).all()  # different vectors of its input
        covariance = np.cov(seen.detach().numpy().T, aweights=mass.detach().numpy(), ddof=0)
        expected = 0.3 * (2 if detach else 4) * np.linalg.eigvalsh(covariance)[-1]
        assert temperature.item() == pytest.approx(expected, rel=1e-9)
    before = readout.temperature.clone()
    close(readout.calibrate(tokens, 0.3, mask).temperature, before)
    assert readout.calibrate(tokens, 0.6, mask).temperature[0] == pytest.approx(2 * before[0].item())
    assert [bank.equal(other) for bank, other in zip(readout.banks, twin.banks)] == [True] * 3


def test_a_refused_start_or_calibration_says_why(batch, readout):
    tokens, mask = batch
    state = copy.deepcopy(readout.state_dict())
    for call in (readout.start, readout.calibrate):
        for bad in (0, -1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match=f"^ratio: expected a finite number > 0, got {bad}"):
                call(tokens, bad, mask)
    with pytest.raises(ValueError, match="^tokens: expected an input of level 0 that differs, got T_c = 0"):
        readout.calibrate(tokens[:1, :1].expand(3, 9, 5), 0.5)
    with pytest.raises(ValueError, match="^count: expected an integer from 1 to 4, .* got 6"):
        readout.start(tokens[2], 0.5, mask[2])
    assert all(state[name].equal(value) for name, value in readout.state_dict().items())
    with pytest.raises(ValueError, match="^tokens: expected an input of level 1 that differs"):
        HierarchicalReadout(5, [1, 2]).double().calibrate(tokens[0], 0.5)
    with pytest.raises(ValueError, match="^temperature: expected a finite number > 0, got inf"):
        HierarchicalReadout(5, [2]).half().calibrate(300 * torch.randn(50, 5).half(), 0.9)


@pytest.mark.parametrize("detach", [False, True])
def test_critical_temperature_by_weight(detach):
    tokens, counts = torch.randn(12, 5).double(), torch.tensor([1, 2, 0, 5, 1, 1, 3, 1, 0, 2, 1, 4])
    expected = critical_temperature(tokens.repeat_interleave(counts, 0), None, detach)
    for scale in (1.0, 1e-9, 1 / 21):
        close(critical_temperature_by(scale * counts.double(), tokens, detach), expected, rtol=1e-10)
        close(critical_temperature_by(scale * counts.double().view(3, 4), tokens.view(3, 4, 5), detach), expected)
    close(
        critical_temperature_by(torch.full((12,), 0.2).double(), tokens, detach),
        critical_temperature(tokens, None, detach),
    )
    assert critical_temperature_by(torch.zeros(12), tokens.float(), detach) == 0
    equal = torch.full((7, 5), 0.1)
    assert critical_temperature_by(torch.rand(7), equal, detach) == 0


def test_decompose_by_an_average_of_ones_own(cloud):
    tokens, prototypes, mask = cloud
    weights = torch.rand(2, 9).double() * mask
    for detach in (False, True):
        z, p = tokens.clone().requires_grad_(), prototypes.clone().requires_grad_()
        parts = decompose_by(lambda values: (weights * values).sum(), z, p, 0.7, mask, detach)
        q = dense.assign(z, p, 0.7)
        each = dense.split(z, p, q.detach() if detach else q)
        for term in range(3):
            expected = (weights * each[term]).sum()
            close(parts[term], expected, rtol=1e-10)
            for ours, theirs in zip(
                *(
                    torch.autograd.grad(v, (z, p), retain_graph=True, materialize_grads=True)
                    for v in (parts[term], expected)
                )
            ):
                close(ours, theirs, atol=1e-10, rtol=1e-8)


# precision, layout, compilers, length


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(batch, dtype):
    tokens, mask = batch[0].float(), batch[1]
    readout = HierarchicalReadout(5, [6, 3])
    exact = readout(tokens, mask)
    with torch.autocast("cpu", dtype):
        mixed, levels = readout(tokens, mask), readout.levels(tokens, mask)
        (mixed.sum() + levels[1].parts.total).backward()
        copy.deepcopy(readout).start(tokens, 0.3, mask).calibrate(tokens, 0.3, mask)
    torch.testing.assert_close(mixed, exact)
    torch.testing.assert_close(levels[-1].vectors, exact)
    assert all(bank.grad.isfinite().all() for bank in readout.banks)
    few = readout(tokens.to(dtype), mask)
    assert few.dtype == torch.float32 and (few - exact).abs().max() < 0.05
    halved = readout.to(dtype)
    assert halved(tokens.to(dtype), mask).dtype == dtype and (halved(tokens.to(dtype), mask) - exact).abs().max() < 0.1
    long = halved.levels(tokens[0].to(dtype).repeat(8000, 1))  # 72,000 tokens: float16 cannot count so far
    assert (long[-1].mass.sum() - 1).abs() < 1e-3 and long[0].parts.total.isfinite()


def test_types_are_promoted(batch, readout):
    tokens, single = batch[0], HierarchicalReadout(5, [6, 4, 2])
    assert readout(tokens).dtype == readout(tokens.float()).dtype == single(tokens).dtype == torch.float64
    assert {level.vectors.dtype for level in readout.levels(tokens)} == {torch.float64}
    assert single(tokens.float()).dtype == torch.float32
    close(readout(tokens.float()), readout(tokens.float().double()), rtol=1e-5, atol=1e-5)


def test_memory_layout_does_not_matter(readout):
    tokens = torch.randn(5, 9, 6).double().transpose(0, 2)[::2]
    assert not tokens.is_contiguous()
    close(readout(tokens), readout(tokens.contiguous()))


def test_it_compiles_once(batch):
    tokens, mask = batch[0].float(), batch[1]
    readout = HierarchicalReadout(5, [6, 3])

    def both(tokens, mask):
        return readout(tokens, mask), sum(level.parts.total for level in readout.levels(tokens, mask))

    compiled = torch.compile(both, fullgraph=True, backend="eager")
    compiled(tokens, mask)
    readout.start(tokens, 0.2, mask)
    with torch.compiler.set_stance("fail_on_recompile"):
        again = compiled(tokens, mask)
    for one, other in zip(again, both(tokens, mask)):
        torch.testing.assert_close(one, other)


def kept_for_backward(readout, count):
    """Bytes of all tensors that a forward pass keeps, each storage once, parameters and tokens left out."""
    tokens, sizes = torch.randn(count, readout.dim), {}
    known = {tensor.data_ptr() for tensor in (tokens, *readout.banks)}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = readout(tokens)
    out.square().sum().backward()
    assert all(bank.grad.isfinite().all() for bank in readout.banks)
    return sum(sizes.values())


def test_50_000_tokens():
    """Of 32 features, to 64 and 8 vectors: 48 MB kept for the backward pass, and twice that for twice as many."""
    readout = HierarchicalReadout(32, [64, 8])
    kept = kept_for_backward(readout, 50_000)
    assert kept < 4 * 50_000 * (3 * 64 + 2 * 32)
    assert kept == pytest.approx(2 * kept_for_backward(readout, 25_000), rel=0.02)


# bad input


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((0, [4]), "^dim: expected an integer >= 1, got 0"),
        ((2.5, [4]), "^dim: expected an integer >= 1, got 2.5"),
        ((True, [4]), "^dim: expected an integer >= 1, got True"),
        ((5, []), r"^sizes: expected a sequence of one or more integers >= 1, got \[\]"),
        ((5, [4, 0]), r"^sizes: expected a sequence of one or more integers >= 1, got \[4, 0\]"),
        ((5, [4, 2.0]), r"^sizes: expected a sequence of one or more integers >= 1, got \[4, 2.0\]"),
        ((5, [True]), r"^sizes: expected a sequence of one or more integers >= 1, got \[True\]"),
        ((5, 4), "^sizes: expected a sequence of one or more integers >= 1, got 4"),
        ((5, [4], 0.0), "^temperature: expected a finite number > 0, got 0.0"),
        ((5, [4], float("nan")), "^temperature: expected a finite number > 0, got nan"),
        ((5, [4], "cold"), "^temperature: expected a number or a tensor, got 'cold'"),
    ],
)
def test_bad_construction_names_the_argument(arguments, text):
    with pytest.raises(ValueError, match=text):
        HierarchicalReadout(*arguments)


def test_bad_input_names_the_argument(batch, readout):
    tokens, mask = batch
    calls = [readout, readout.levels, readout.decompose]
    calls += [lambda z, m=None, f=f: f(z, 0.5, m) for f in (readout.start, readout.calibrate)]
    for call in calls:
        with pytest.raises(ValueError, match=r"^tokens: expected dim = 5 features, got shape \(3, 9, 4\)"):
            call(tokens[..., :4])
        with pytest.raises(ValueError, match="^tokens: expected a floating-point tensor .* got torch.int64"):
            call(tokens.long())
        with pytest.raises(ValueError, match=r"^mask: expected a bool tensor of shape \(3, 9\).* got .*\(3, 5\)"):
            call(tokens, mask[:, :5])


def test_what_is_printed(readout):
    assert "dim=5, sizes=[6, 4, 2], detach_assignment=False" in repr(readout)


@pytest.mark.gpu
def test_a_gpu_agrees_with_the_cpu():
    tokens, mask = torch.randn(3, 700, 24), torch.rand(3, 700) < 0.8
    here = HierarchicalReadout(24, [40, 10, 3])
    there = copy.deepcopy(here).cuda()
    results = []
    for readout, z, m in ((here, tokens, mask), (there, tokens.cuda(), mask.cuda())):
        readout.start(z, 0.4, m, torch.Generator().manual_seed(0))
        z = z.requires_grad_()
        levels = readout.levels(z, m)
        (readout(z, m).square().mean() + sum(level.parts.total for level in levels)).backward()
        flat = [part for level in levels for part in (level.vectors, level.mass, *level.parts)]
        results.append([*flat, z.grad, *(bank.grad for bank in readout.banks), readout.temperature])
    for cpu, gpu in zip(*results):
        assert gpu.is_cuda
        torch.testing.assert_close(gpu.cpu(), cpu, atol=1e-4, rtol=1e-3)


@pytest.mark.gpu
def test_a_million_tokens_on_a_gpu():
    readout = HierarchicalReadout(64, [64, 8]).cuda()
    out = readout(torch.randn(1_000_000, 64, device="cuda"))
    out.square().sum().backward()
    assert out.isfinite().all() and all(bank.grad.isfinite().all() for bank in readout.banks)
