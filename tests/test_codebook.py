"""SoftCodebook and HardCodebook: what stands in, who gets which gradient, moving averages, and codes that died."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddcl_lite import HardCodebook, SoftCodebook, critical_temperature
from ddcl_lite.prototypes import dense

KINDS = {
    "soft": lambda dim=5, count=4: SoftCodebook(dim, count, temperature=0.7),
    "soft, hard": lambda dim=5, count=4: SoftCodebook(dim, count, temperature=0.7, hard=True),
    "gradient": lambda dim=5, count=4: HardCodebook(dim, count),
    "averages": lambda dim=5, count=4: HardCodebook(dim, count, decay=0.8),
}
HARD = ["soft, hard", "gradient", "averages"]
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def batch():
    """Tokens (2, 9, 5), and a mask (2, 9) with real and masked tokens."""
    return torch.randn(2, 9, 5), torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1, 1], [1] * 4 + [0] * 5], dtype=torch.bool)


def nearest(tokens, codes):
    """The nearest codes, written out in float64."""
    return (tokens.double()[..., None, :] - codes.detach().double()).square().sum(-1).argmin(-1)


def codes_at(values, **arguments):
    """A hard codebook whose codes are these, one feature each."""
    codebook = HardCodebook(1, len(values), **arguments)
    codebook.codes.data.copy_(torch.tensor(values)[:, None])
    return codebook


# what stands in


@every_kind
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (0,)])
def test_leading_dimensions_are_free(kind, lead):
    codebook, tokens = KINDS[kind](), torch.randn(*lead, 7, 5)
    coded = codebook(tokens)
    assert coded.tokens.shape == tokens.shape and coded.loss.shape == ()
    assert coded.codes.shape == ((*lead, 7, 4) if kind == "soft" else (*lead, 7))
    assert coded.codes.is_floating_point() == (kind == "soft")
    flat = codebook(tokens.reshape(-1, 7, 5)) if tokens.numel() else coded
    torch.testing.assert_close(coded.tokens, flat.tokens.reshape(tokens.shape))
    torch.testing.assert_close(coded.loss, flat.loss)
    assert codebook.encode(tokens).equal(coded.codes)


@pytest.mark.parametrize("detach", [False, True])
def test_a_soft_codebook_is_the_formula(batch, detach):
    tokens, mask = batch[0].double(), batch[1]
    codebook = SoftCodebook(5, 4, 0.7, detach_assignment=detach).double()
    coded, parts = codebook(tokens, mask), dense.decompose(tokens, codebook.codes, codebook.temperature, mask, detach)
    torch.testing.assert_close(coded.tokens, parts.centroids)
    torch.testing.assert_close(coded.codes, dense.assign(tokens, codebook.codes, codebook.temperature, mask))
    torch.testing.assert_close(coded.loss, parts.total)
    ours, theirs = (torch.autograd.grad(loss, codebook.codes)[0] for loss in (coded.loss, parts.total))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", HARD)
def test_a_hard_code_is_the_nearest(batch, kind):
    tokens, mask = batch
    codebook = KINDS[kind]()
    coded, index = codebook(tokens, mask), nearest(tokens, codebook.codes)
    assert coded.codes.equal(torch.where(mask, index, -1))
    assert coded.tokens.equal(codebook.codes[index] * mask[..., None])


def test_the_loss_of_hard_codes_is_the_formula(batch):
    tokens, mask = batch
    for decay, factor in ((None, 1.4), (0.9, 0.4)):
        codebook = HardCodebook(5, 4, commitment=0.4, decay=decay)
        error = (tokens - codebook.codes[nearest(tokens, codebook.codes)]).square().sum(-1)[mask].mean()
        torch.testing.assert_close(codebook(tokens, mask).loss, factor * error)


@every_kind
@pytest.mark.parametrize("scale", [1, 1e4])
def test_decode_agrees_with_forward(batch, kind, scale):
    tokens, mask = scale * batch[0], batch[1]
    codebook = KINDS[kind]()
    for m in (None, mask):
        there, back = codebook(tokens, m).tokens, codebook.decode(codebook.encode(tokens, m))
        if kind == "soft":
            torch.testing.assert_close(there, back)
        else:
            assert there.equal(back)  # to the last digit, however far the tokens are
        assert m is None or (back[~m] == 0).all()


def test_hard_may_be_switched_and_soft_codes_decoded_hard(batch):
    codebook = KINDS["soft"]()
    weights = codebook.encode(batch[0])
    codebook.hard = True
    assert codebook.encode(batch[0]).equal(weights.argmax(-1))
    assert codebook(batch[0]).tokens.equal(codebook.decode(weights.argmax(-1)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_decode_takes_integers_of_every_size(dtype):
    codebook = KINDS["gradient"]()
    assert codebook.decode(torch.tensor([[3, 0, 3]], dtype=dtype)).equal(codebook.codes[None, [3, 0, 3]])
    assert codebook.decode(torch.empty(2, 0, dtype=dtype)).shape == (2, 0, 5)


@every_kind
def test_no_call_but_the_named_ones_changes_state(batch, kind):
    tokens, mask = batch
    codebook, before = KINDS[kind](), tokens.clone()
    state, random = copy.deepcopy(codebook.state_dict()), torch.get_rng_state()
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            training, evaluating = codebook.train()(tokens, mask), codebook.eval()(tokens, mask)
            codebook.decode(codebook.encode(tokens, mask))
        assert all(one.equal(other) for one, other in zip(training, evaluating))
    assert all(state[name].equal(value) for name, value in codebook.state_dict().items())
    assert tokens.equal(before) and torch.get_rng_state().equal(random)


@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("offset", [0, 1000])
def test_the_nearest_is_found_far_from_the_origin(kind, offset):
    tokens = offset + torch.randn(300, 8)
    codebook = KINDS[kind](8, 40).start(tokens)
    assert codebook.encode(tokens).equal(nearest(tokens, codebook.codes))


@pytest.mark.parametrize("kind", HARD)
def test_the_first_of_equal_codes_is_taken(kind):
    """Also where a matrix product rounds equal columns differently, and where a token is between two codes."""
    for count, dim in ((11, 64), (6, 2), (10, 5), (50, 16)):
        codebook, tokens = KINDS[kind](dim, count), 3 + torch.randn(160, dim)
        codebook.codes.data.add_(3)
        codebook.codes.data[-1] = codebook.codes.data[1]
        assert (codebook.encode(tokens) < count - 1).all()
        codebook.codes.data.copy_(codebook.codes.data[0].clone())
        assert (codebook.encode(tokens) == 0).all()
    for _ in range(30):
        codebook, whole = KINDS[kind](3, 6), torch.randint(-8, 9, (6, 3)).float()
        codebook.codes.data.copy_(whole)
        between = (whole[2] + whole[5]) / 2  # exact, and so are the distances
        assert (codebook.encode(between.expand(40, 3)) == nearest(between, whole)).all()


@every_kind
def test_one_code_one_token_and_equal_tokens(kind):
    codebook, tokens = KINDS[kind](5, 1), torch.randn(1, 5)
    coded = codebook(tokens)
    torch.testing.assert_close(coded.tokens, codebook.codes.detach())
    factor = 1 if kind.startswith("soft") else 1.25 if kind == "gradient" else 0.25
    torch.testing.assert_close(coded.loss, factor * (tokens - codebook.codes).square().sum())
    equal = KINDS[kind]().start(tokens.expand(6, 5))
    torch.testing.assert_close(equal(tokens.expand(6, 5)).tokens, tokens.expand(6, 5))


# masks


@every_kind
@pytest.mark.parametrize("garbage", [1e6, float("nan"), float("inf")])
def test_garbage_under_the_mask_changes_nothing(batch, kind, garbage):
    tokens, mask = batch
    results = []
    for fill in (0.0, garbage):
        torch.manual_seed(1)
        z, codebook = torch.where(mask[..., None], tokens, fill).requires_grad_(), KINDS[kind]()
        coded = codebook(z, mask)
        (coded.loss + coded.tokens.square().sum()).backward()
        grads = [p.grad.clone() for p in codebook.parameters() if p.requires_grad]
        after = copy.deepcopy(codebook).start(z, mask)
        if isinstance(codebook, SoftCodebook):
            after.anneal(z, 0.5, mask)
        else:
            after.revive(z, mask, below=0.5)
        if kind == "averages":
            after.update(z, mask)
        results.append([*coded, z.grad, *grads, *after.state_dict().values()])
    assert all(clean.equal(dirty) for clean, dirty in zip(*results))
    assert (results[1][3][~mask] == 0).all()


@every_kind
def test_masked_tokens_are_as_good_as_absent(batch, kind):
    tokens, mask = batch
    codebook = KINDS[kind]()
    whole, rest = codebook(tokens, mask), codebook(tokens[mask])
    torch.testing.assert_close(whole.tokens[mask], rest.tokens)
    torch.testing.assert_close(whole.codes[mask], rest.codes)
    torch.testing.assert_close(whole.loss, rest.loss)


@every_kind
def test_all_masked(batch, kind):
    tokens, nothing = batch[0].requires_grad_(), torch.zeros(2, 9, dtype=torch.bool)
    codebook = KINDS[kind]()
    coded = codebook(tokens, nothing)
    (coded.loss + coded.tokens.square().sum()).backward()
    assert coded.loss == 0 and (coded.tokens == 0).all()
    assert (coded.codes == (0 if kind == "soft" else -1)).all()
    assert all((p.grad == 0).all() for p in (tokens, codebook.codes) if p.requires_grad and p.grad is not None)
    state = copy.deepcopy(codebook.state_dict())
    if kind == "averages":
        codebook.update(tokens, nothing)
    if isinstance(codebook, HardCodebook):
        assert codebook.revive(tokens, nothing, below=5) == 0
    with pytest.raises(ValueError, match="^count: expected an integer from 1 to 0, the number of real tokens, got 4"):
        codebook.start(tokens, nothing)
    assert all(state[name].equal(value) for name, value in codebook.state_dict().items())


# which loss moves what


@pytest.mark.parametrize("kind", ["gradient", "averages"])
def test_straight_through(batch, kind):
    tokens, mask = batch[0].requires_grad_(), batch[1]
    codebook, upstream = KINDS[kind](), torch.randn(2, 9, 5)
    (codebook(tokens, mask).tokens * upstream).sum().backward()
    assert tokens.grad.equal(upstream * mask[..., None])
    assert codebook.codes.grad is None
    assert codebook.codes.requires_grad == (kind == "gradient")


def test_the_nearest_code_has_the_gradient_of_the_mixture(batch):
    tokens, mask = batch
    codebook, upstream, found = KINDS["soft"](), torch.randn(2, 9, 5), []
    for codebook.hard in (False, True):
        z = tokens.clone().requires_grad_()
        out = codebook(z, mask).tokens
        found.append(torch.autograd.grad((out * upstream).sum(), (z, codebook.codes)))
    assert all(soft.equal(hard) for soft, hard in zip(*found))
    mixture = dense.soft_centroids(z, codebook.codes, codebook.temperature, mask)
    for ours, theirs in zip(found[1], torch.autograd.grad((mixture * upstream).sum(), (z, codebook.codes))):
        torch.testing.assert_close(ours, theirs)
        assert ours.abs().max() > 1e-3


@pytest.mark.parametrize("decay", [None, 0.9])
def test_gradients_of_the_hard_loss(batch, decay):
    tokens, mask = batch[0].requires_grad_(), batch[1]
    codebook = HardCodebook(5, 4, commitment=0.4, decay=decay)
    codebook(tokens, mask).loss.backward()
    index = nearest(tokens, codebook.codes)
    gap = (tokens - codebook.codes[index]).detach() * mask[..., None]
    torch.testing.assert_close(tokens.grad, 0.8 * gap / mask.sum())
    if decay:
        assert codebook.codes.grad is None
    else:
        expected = torch.zeros(4, 5).index_add(0, index.flatten(), -2 * gap.flatten(0, 1) / mask.sum())
        torch.testing.assert_close(codebook.codes.grad, expected)


def test_gradients_of_the_soft_loss_with_q_frozen(batch):
    tokens = batch[0].double().requires_grad_()
    codebook = KINDS["soft"]().double()
    coded = codebook(tokens)
    coded.loss.backward()
    q, mixed = coded.codes.detach(), coded.tokens.detach()
    torch.testing.assert_close(tokens.grad, 2 * (tokens - mixed).detach() / 18)
    expected = 2 * (q.sum((0, 1))[:, None] * codebook.codes - torch.einsum("bnk,bnd->kd", q, tokens)) / 18
    torch.testing.assert_close(codebook.codes.grad, expected.detach())
    attached = SoftCodebook(5, 4, 0.7, detach_assignment=False).double()
    attached.load_state_dict(codebook.state_dict())
    attached(tokens).loss.backward()
    assert (attached.codes.grad - codebook.codes.grad).norm() > 1e-3


def test_a_training_loop(batch):
    """In the usual order: forward, backward, step, update, revive."""
    encoder = torch.nn.Linear(5, 5)
    for kind in KINDS:
        codebook = KINDS[kind]()
        moving = [p for p in (*encoder.parameters(), *codebook.parameters()) if p.requires_grad]
        optimiser = torch.optim.Adam(moving, lr=0.01)
        losses = []
        for _ in range(30):
            tokens = encoder(batch[0]).clone()
            coded = codebook(tokens, batch[1])
            optimiser.zero_grad()
            loss = coded.loss + (coded.tokens - batch[0]).square().mean()
            loss.backward()
            optimiser.step()
            if kind == "averages":
                codebook.update(tokens, batch[1])
            if kind in ("gradient", "averages"):
                codebook.revive(tokens, batch[1])
            losses.append(loss.item())
        assert losses[-1] < losses[0]


# start, anneal, update, revive


@every_kind
def test_start_puts_codes_on_different_real_tokens(batch, kind):
    tokens, mask = batch
    codebooks = [KINDS[kind]() for _ in range(3)]
    state = torch.get_rng_state()
    first, again, other = (
        codebook.start(tokens, mask, torch.Generator().manual_seed(seed)).codes
        for codebook, seed in zip(codebooks, (1, 1, 2))
    )
    assert torch.get_rng_state().equal(state)
    assert first.equal(again) and not first.equal(other) and first.requires_grad == (kind != "averages")
    hits = (first[:, None] == tokens[mask]).all(-1)
    assert (hits.sum(1) == 1).all() and hits.any(0).sum() == 4
    if kind == "averages":  # a start forgets what was chosen before
        assert (codebooks[0].update(torch.randn(1, 5)).share != 0.25).any()
        assert (codebooks[0].start(tokens, mask).share == 0.25).all()
    with pytest.raises(ValueError, match="^count: expected an integer from 1 to 11, .* got 12"):
        KINDS[kind](5, 12).start(tokens, mask)


@pytest.mark.parametrize("detach", [False, True])
def test_anneal_sets_the_temperature_in_units_of_the_critical_one(batch, detach):
    tokens, mask = batch
    codebook = SoftCodebook(5, 4, detach_assignment=detach)
    assert codebook.anneal(tokens, 0.3, mask) is codebook
    torch.testing.assert_close(codebook.temperature, 0.3 * critical_temperature(tokens, mask, detach))
    before = codebook.temperature.clone()
    for bad in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"^ratio: expected a finite number > 0, got {bad}"):
            codebook.anneal(tokens, bad, mask)
    with pytest.raises(ValueError, match="^tokens: expected tokens that differ, got equal ones"):
        codebook.anneal(torch.full((2, 9, 5), 0.1), 0.3)
    with pytest.raises(ValueError, match="^tokens: expected tokens that differ, got equal ones"):
        codebook.anneal(tokens, 0.3, torch.arange(18).reshape(2, 9) == 4)  # one real token
    assert codebook.temperature.equal(before)
    with pytest.raises(ValueError, match="^temperature: expected a finite number > 0, got inf"):
        codebook.half().anneal(300 * torch.randn(50, 5).half(), 0.5)
    assert codebook.temperature.isfinite()


def test_a_colder_soft_codebook_becomes_the_hard_one(batch):
    codebook = KINDS["soft"]()
    codebook.temperature.fill_(1e-4)
    torch.testing.assert_close(codebook(batch[0]).tokens, codebook.codes[nearest(batch[0], codebook.codes)])


@pytest.mark.parametrize("masked", [False, True])
def test_moving_averages_step_by_step(masked):
    """Against VQ-VAE's recursion in numpy."""
    codebook, decay = HardCodebook(3, 6, decay=0.7).double(), 0.7
    tokens = torch.randn(2, 20, 3).double()
    codebook.start(tokens)
    codebook.codes.data[5] = 50.0  # nobody's
    codes = codebook.codes.detach().numpy().copy()
    share, moment = np.full(6, 1 / 6), codes / 6
    for step in range(8):
        tokens = torch.randn(2, 20, 3).double() + 0.1 * step
        mask = torch.rand(2, 20) < 0.7 if masked else None
        assert codebook.update(tokens, mask) is codebook
        rows = tokens[mask].numpy() if masked else tokens.reshape(-1, 3).numpy()
        chosen = ((rows[:, None] - codes) ** 2).sum(-1).argmin(1)
        for k in range(6):
            mine = rows[chosen == k]
            share[k] = decay * share[k] + (1 - decay) * len(mine) / len(rows)
            moment[k] = decay * moment[k] + (1 - decay) * mine.sum(0) / len(rows)
            codes[k] = moment[k] / share[k]
        np.testing.assert_allclose(codebook.codes.detach().numpy(), codes, atol=1e-12, rtol=1e-12)
        np.testing.assert_allclose(codebook.share.numpy(), share, atol=1e-14)
    np.testing.assert_allclose(codes[5], 50)


def test_a_code_without_share_keeps_its_place():
    codebook = codes_at([0.0, 9.0], decay=0.5)
    for _ in range(300):  # 2^-300 is 0 in float32
        codebook.update(torch.tensor([[1.0]]))
    assert codebook.share.tolist() == [1, 0] and codebook.codes[1] == 9
    torch.testing.assert_close(codebook.codes[0], torch.tensor([1.0]))
    codebook.update(torch.tensor([[8.0]]))  # and it follows the first token that chooses it
    torch.testing.assert_close(codebook.codes[1], torch.tensor([8.0]))


def test_moving_averages_find_the_means():
    codebook = HardCodebook(2, 2, decay=0.5)
    centres = torch.tensor([[-3.0, 0.0], [3.0, 1.0]])
    tokens = (centres[:, None] + 0.1 * torch.randn(2, 50, 2)).flatten(0, 1)
    codebook.codes.data.copy_(centres + 0.5)  # codes may be set by hand
    for _ in range(40):
        codebook.update(tokens)
    torch.testing.assert_close(codebook.codes, tokens.unflatten(0, (2, 50)).mean(1))


def test_a_revived_code_survives_the_next_update():
    codebook, tokens = codes_at([0.0, 90.0], decay=0.5), torch.tensor([[-1.0], [-1.0], [4.0], [4.0]])
    assert codebook.update(tokens).revive(tokens) == 0  # its running share is not small yet
    for _ in range(5):
        codebook.update(tokens)
    assert codebook.codes[1].allclose(torch.tensor([90.0]))
    codebook.codes.data[0] = -0.9  # so that the drawn token matters
    assert codebook.revive(tokens, torch.tensor([False, False, True, True])) == 1
    assert codebook.codes[1] == 4 and codebook.share[1] == 0.5
    codebook.update(tokens)
    torch.testing.assert_close(codebook.codes[1], torch.tensor([4.0]))
    assert codebook.revive(tokens) == 0


def test_a_revived_code_survives_training_by_gradients():
    tokens = torch.tensor([[-1.0], [-1.0], [4.0], [4.0]])
    codebook = codes_at([-0.5, 90.0])
    optimiser = torch.optim.Adam(codebook.parameters(), lr=0.05)
    revived = []
    for _ in range(100):
        optimiser.zero_grad()
        codebook(tokens).loss.backward()
        optimiser.step()
        revived.append(codebook.revive(tokens))
        assert not revived[-1] or (codebook.codes[1] == tokens).any()
    assert revived[0] == 1
    torch.testing.assert_close(codebook.codes.sort(0).values, torch.tensor([[-1.0], [4.0]]), atol=0.05, rtol=0)


@pytest.mark.parametrize("decay", [None, 0.5])
def test_more_dead_codes_than_tokens(decay):
    codebook, tokens = HardCodebook(3, 10, decay=decay), torch.randn(4, 3)
    codebook.codes.data.add_(100)
    codebook.codes.data[7] = 0
    if decay:
        for _ in range(10):
            codebook.update(tokens)
    before = codebook.codes.detach().clone()
    assert codebook.revive(tokens) == 4
    moved = (codebook.codes != before).any(1)
    assert moved.nonzero().flatten().tolist() == [0, 1, 2, 3]
    assert codebook.codes[moved].sort(0).values.equal(tokens.sort(0).values)  # each token once


def test_revive_counts_shares_in_units_of_their_mean():
    codebook, tokens = codes_at([0.0, 1.0, 2.0, 3.0]), torch.tensor([[0.0]] * 10 + [[1.0]] * 5 + [[2.0]] * 5)
    assert codebook.revive(tokens, below=1e-6) == 1 and codebook.codes[:3, 0].tolist() == [0, 1, 2]
    assert codes_at([0.0, 1.0, 2.0, 3.0]).revive(tokens, below=0.99) == 1
    assert codes_at([0.0, 1.0, 2.0, 3.0]).revive(tokens, below=1.01) == 3  # 1/4 of the tokens is 1 in this unit


def test_revive_draws_from_its_generator():
    tokens, (first, again, other) = torch.randn(50, 1), (codes_at([0.0] * 4) for _ in range(3))
    state = torch.get_rng_state()
    for codebook, seed in ((first, 1), (again, 1), (other, 2)):
        assert codebook.revive(tokens, generator=torch.Generator().manual_seed(seed)) == 3
    assert first.codes.equal(again.codes) and not first.codes.equal(other.codes)
    assert torch.get_rng_state().equal(state)


@every_kind
def test_state_can_be_saved_and_loaded(batch, kind):
    one, other = KINDS[kind](), KINDS[kind]()
    one.start(batch[0])
    if kind == "averages":
        one.update(batch[0])
    other.load_state_dict(one.state_dict())
    for call in (lambda c: c(batch[0]), lambda c: [c.update(batch[0]).codes] if kind == "averages" else []):
        assert all(a.equal(b) for a, b in zip(call(one), call(other)))


# precision, layout, compilers


@every_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(batch, kind, dtype):
    tokens, mask = batch
    codebook, twin = (KINDS[kind]() for _ in range(2))
    twin.load_state_dict(codebook.state_dict())
    exact = codebook(tokens, mask)
    with torch.autocast("cpu", dtype):
        mixed = codebook(tokens, mask)
        (mixed.loss + mixed.tokens.sum()).backward() if codebook.codes.requires_grad else None
        for one, other in zip(mixed, exact):
            torch.testing.assert_close(one, other)
        torch.testing.assert_close(codebook.decode(mixed.codes), exact.tokens)
        for module in (codebook, twin):
            with torch.autocast("cpu", dtype, enabled=module is codebook):
                module.start(tokens, mask, torch.Generator().manual_seed(0))
                if isinstance(module, SoftCodebook):
                    module.anneal(tokens, 0.5, mask)
                else:
                    module.revive(tokens, mask, generator=torch.Generator().manual_seed(0))
                if kind == "averages":
                    module.update(tokens, mask)
    assert all(a.equal(b) for a, b in zip(codebook.state_dict().values(), twin.state_dict().values()))


@every_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(kind, dtype):
    """Squares of 300 overflow float16; what is summed is summed in float32."""
    tokens, codebook = 300 * torch.randn(2000, 5), KINDS[kind]()
    codebook.start(tokens)
    if isinstance(codebook, SoftCodebook):
        codebook.temperature.fill_(60000)
    exact, halved = codebook(tokens), codebook.to(dtype)(tokens.to(dtype))
    assert halved.loss.dtype == torch.float32 and halved.tokens.dtype == dtype
    assert (halved.loss / exact.loss - 1).abs() < 0.02
    codebook(tokens.to(dtype)).loss.backward() if codebook.codes.requires_grad else None
    assert codebook.codes.grad is None or codebook.codes.grad.isfinite().all()
    if kind == "averages":
        codebook.update(tokens.to(dtype))
    if isinstance(codebook, HardCodebook):
        codebook.revive(tokens.to(dtype), below=5)
    assert codebook.codes.dtype == dtype and codebook.codes.isfinite().all()


@every_kind
def test_types_are_promoted(batch, kind):
    half, single, double = batch[0].half(), batch[0], batch[0].double()
    assert KINDS[kind]()(half).tokens.dtype == torch.float32
    assert KINDS[kind]()(double).tokens.dtype == torch.float64
    assert KINDS[kind]().double()(single).tokens.dtype == torch.float64
    codebook = KINDS[kind]().double()
    coded = codebook(double)
    assert coded.tokens.dtype == coded.loss.dtype == codebook.decode(coded.codes).dtype == torch.float64
    if kind == "averages":
        assert KINDS[kind]().update(double).update(half).codes.dtype == torch.float32


@every_kind
def test_memory_layout_does_not_matter(batch, kind):
    codebook, tokens = KINDS[kind](), torch.randn(5, 9, 4).transpose(0, 2)[::2]
    assert not tokens.is_contiguous()
    for one, other in zip(codebook(tokens), codebook(tokens.contiguous())):
        torch.testing.assert_close(one, other)


@every_kind
def test_a_step_compiles_once(batch, kind):
    """As one graph; and a temperature or codes that changed since need no other."""
    tokens, mask = batch
    codebook = KINDS[kind]()

    def there_and_back(tokens, mask):
        coded = codebook(tokens, mask)
        return (*coded, codebook.decode(codebook.encode(tokens, mask)))

    compiled = torch.compile(there_and_back, fullgraph=True, backend="eager")
    compiled(tokens, mask)
    codebook.start(tokens)
    if isinstance(codebook, SoftCodebook):
        codebook.anneal(tokens, 0.2)
    if kind == "averages":
        codebook.update(tokens)
    with torch.compiler.set_stance("fail_on_recompile"):
        again = compiled(tokens, mask)
    for one, other in zip(again, there_and_back(tokens, mask)):
        torch.testing.assert_close(one, other)


# properties


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    count=st.sampled_from([1, 2, 30, 90]),
    bank=st.sampled_from([1, 2, 7, 40]),
    dim=st.sampled_from([1, 3, 16]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    offset=st.sampled_from([0.0, 1.0, 100.0]),
    seed=st.integers(0, 10_000),
)
def test_stand_ins_lie_among_the_codes_and_know_no_order(kind, count, bank, dim, scale, offset, seed):
    torch.manual_seed(seed)
    codebook, tokens = KINDS[kind](dim, bank), scale * (offset + torch.randn(count, dim))
    codebook.codes.data.copy_(scale * (offset + torch.randn(bank, dim)))
    if isinstance(codebook, SoftCodebook):
        codebook.temperature.fill_(0.7 * scale**2)
    coded, codes = codebook(tokens), codebook.codes.detach()
    slack = 1e-5 * codes.abs().max()
    assert ((coded.tokens >= codes.amin(0) - slack) & (coded.tokens <= codes.amax(0) + slack)).all()
    if kind == "soft":
        torch.testing.assert_close(coded.codes.sum(-1), torch.ones(count))
    else:  # no code is nearer
        distances = (tokens.double()[:, None] - codes.double()).square().sum(-1)
        chosen = distances.gather(1, coded.codes[:, None]).squeeze(1)
        assert (chosen <= distances.amin(1) + 2e-5 * (codes - codes.mean(0)).square().sum(-1).amax() + 1e-12).all()
    order = torch.randperm(count)
    permuted = codebook(tokens[order])
    torch.testing.assert_close(permuted.tokens, coded.tokens[order], atol=1e-4 * scale, rtol=1e-4)
    torch.testing.assert_close(permuted.loss, coded.loss, atol=0, rtol=1e-3)


# bad input


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: SoftCodebook(0, 4), "^dim: expected an integer >= 1, got 0"),
        (lambda: SoftCodebook(5, 2.0), "^num_codes: expected an integer >= 1, got 2.0"),
        (lambda: HardCodebook(True, 4), "^dim: expected an integer >= 1, got True"),
        (lambda: HardCodebook(5, -1), "^num_codes: expected an integer >= 1, got -1"),
        (lambda: SoftCodebook(5, 4, 0.0), "^temperature: expected a finite number > 0, got 0"),
        (lambda: SoftCodebook(5, 4, float("nan")), "^temperature: expected a finite number > 0, got nan"),
        (lambda: SoftCodebook(5, 4, None), "^temperature: expected a number or a tensor, got None"),
        (lambda: SoftCodebook(5, 4, torch.ones(4)), "^temperature: expected a number, or a shape .*, got .4,."),
        (lambda: HardCodebook(5, 4, -0.1), "^commitment: expected a finite number >= 0, got -0.1"),
        (lambda: HardCodebook(5, 4, float("inf")), "^commitment: expected a finite number >= 0, got inf"),
        (lambda: HardCodebook(5, 4, float("nan")), "^commitment: expected a finite number >= 0, got nan"),
        (lambda: HardCodebook(5, 4, decay=0), "^decay: expected None or a number strictly between 0 and 1, got 0"),
        (lambda: HardCodebook(5, 4, decay=1.0), "^decay: expected None or a number .*, got 1.0"),
        (lambda: HardCodebook(5, 4).update(torch.randn(9, 5)), "^decay: expected a codebook with one"),
        (lambda: HardCodebook(5, 4).revive(torch.randn(9, 5), below=0), "^below: expected a finite number > 0, got 0"),
    ],
)
def test_bad_construction_and_calls_name_the_argument(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@every_kind
def test_bad_input_names_the_argument(batch, kind):
    tokens, mask = batch
    codebook = KINDS[kind]()
    calls = [codebook, codebook.encode, codebook.start]
    if isinstance(codebook, SoftCodebook):
        calls.append(lambda z, m=None: codebook.anneal(z, 0.5, m))
    else:
        calls.append(codebook.revive)
    if kind == "averages":
        calls.append(codebook.update)
    for call in calls:
        with pytest.raises(ValueError, match=r"^tokens: expected D = 5 as in codes, got \(2, 9, 4\)"):
            call(tokens[..., :4])
        with pytest.raises(ValueError, match="^tokens: expected a floating-point tensor .* got torch.int64"):
            call(tokens.long())
        with pytest.raises(ValueError, match="^tokens: expected at least one token"):
            call(tokens[:, :0])
        with pytest.raises(ValueError, match=r"^mask: expected a bool tensor of shape \(2, 9\).* got .*\(2, 5\)"):
            call(tokens, mask[:, :5])
        with pytest.raises(ValueError, match="^mask: expected a bool tensor .* got torch.float32"):
            call(tokens, mask.float())


@pytest.mark.parametrize(
    "codes, got",
    [
        (torch.tensor([0, 4]), "got indices from 0 to 4"),
        (torch.tensor([-2, 3]), "got indices from -2 to 3"),
        (torch.tensor([200], dtype=torch.uint8), "got indices from 200 to 200"),
        (torch.tensor([True]), "got torch.bool"),
        (torch.ones(2, 3), r"got weights of shape \(2, 3\)"),
        (torch.ones(4), r"got weights of shape \(4,\)"),
        (torch.ones(2, 4, dtype=torch.complex64), "got torch.complex64"),
        ([0, 1], "got list"),
    ],
)
def test_decode_refuses(codes, got):
    with pytest.raises(ValueError, match=rf"^codes: expected indices from -1 to 3, or weights \(..., N, 4\), {got}"):
        KINDS["gradient"]().decode(codes)


def test_what_is_printed():
    assert "dim=5, num_codes=4" in repr(KINDS["averages"]())


@pytest.mark.gpu
@every_kind
def test_a_gpu_agrees_with_the_cpu(kind):
    tokens, mask = torch.randn(3, 700, 24), torch.rand(3, 700) < 0.8
    here = KINDS[kind](24, 20)
    there = copy.deepcopy(here).cuda()
    results = []
    for codebook, z, m in ((here, tokens, mask), (there, tokens.cuda(), mask.cuda())):
        codebook.start(z, m, torch.Generator().manual_seed(0))
        if isinstance(codebook, SoftCodebook):
            codebook.anneal(z, 0.3, m)
        else:
            codebook.revive(z, m, below=0.9, generator=torch.Generator().manual_seed(1))
        if kind == "averages":
            codebook.update(z, m)
        z = z.requires_grad_()
        coded = codebook(z, m)
        (coded.loss + coded.tokens.square().mean()).backward()
        grads = [p.grad for p in (z, codebook.codes) if p.requires_grad]
        decoded = codebook.decode(codebook.encode(z, m))
        results.append([*coded, decoded, *grads, *codebook.state_dict().values()])
    for cpu, gpu in zip(*results):
        torch.testing.assert_close(gpu.cpu(), cpu, atol=1e-4, rtol=1e-3)
