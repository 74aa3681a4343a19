"""Training a bank: fit and its parts, the energies behind it, the temperatures and the certificate."""

import inspect
import itertools
import math

import pytest
import torch
from torch import nn

from ddcl_lite import (
    DDCLAttention,
    annealing_potential,
    assign,
    certified_usage,
    critical_temperature,
    decompose,
    draw_prototypes,
    em_step,
    fit,
    free_energy,
    min_separation,
    schedule,
    splitting_temperatures,
    spread,
    token_variance,
    tracking_distance,
    two_timescale_groups,
    usage,
)
from ddcl_lite.experiments.transition import four_blobs
from ddcl_lite.prototypes import dense

OPTIMISERS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop]
DTYPES = [torch.float32, torch.float64]


@pytest.fixture
def blobs():
    tokens = four_blobs(80, seed=2)
    return tokens, draw_prototypes(tokens, 4, generator=torch.Generator().manual_seed(0))


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


# two_timescale_groups


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_any_optimiser_takes_the_groups_and_keeps_their_rates(optimiser):
    encoder, bank = nn.Linear(3, 3), nn.Parameter(torch.randn(4, 3))
    groups = two_timescale_groups(encoder.parameters(), (p for p in [bank]), 0.5, 0.01)  # iterators, not lists
    descent = optimiser(groups)
    assert [group["lr"] for group in descent.param_groups] == [0.005, 0.5]
    before = [p.detach().clone() for p in (*encoder.parameters(), bank)]
    (encoder(bank).square().sum()).backward()
    descent.step()
    after = [*encoder.parameters(), bank]
    assert all(not torch.equal(old, new) for old, new in zip(before, after))
    if optimiser is torch.optim.SGD:
        for old, new, rate in zip(before, after, [0.005, 0.005, 0.5]):
            torch.testing.assert_close(new, old - rate * new.grad)


def test_the_ratio_is_a_tenth_unless_said_otherwise():
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    slow, fast = two_timescale_groups([first], [second], 2.0)
    assert (slow["lr"], fast["lr"]) == (0.2, 2.0)
    assert slow["params"][0] is first and fast["params"][0] is second


@pytest.mark.parametrize(
    "message, encoder, bank, lr, ratio",
    [
        ("encoder_params: expected at least one parameter, got none", "", "b", 1.0, 0.1),
        ("prototype_params: expected at least one parameter, got none", "a", "", 1.0, 0.1),
        ("encoder_params: expected each parameter once, got one that repeats", "aa", "b", 1.0, 0.1),
        ("prototype_params: expected each parameter once, got one that repeats", "a", "bb", 1.0, 0.1),
        ("prototype_params: expected none of encoder_params, got 1 of them", "ab", "b", 1.0, 0.1),
        ("lr: expected a finite number > 0, got 0", "a", "b", 0, 0.1),
        ("lr: expected a finite number > 0, got -1", "a", "b", -1, 0.1),
        ("lr: expected a finite number > 0, got nan", "a", "b", math.nan, 0.1),
        ("ratio: expected a finite number > 0, got 0.0", "a", "b", 1.0, 0.0),
        ("ratio: expected a finite number > 0, got inf", "a", "b", 1.0, math.inf),
    ],
)
def test_groups_that_would_train_something_else_are_refused(message, encoder, bank, lr, ratio):
    known = {name: nn.Parameter(torch.ones(1)) for name in "ab"}
    with pytest.raises(ValueError) as error:
        two_timescale_groups([known[name] for name in encoder], [known[name] for name in bank], lr, ratio)
    assert str(error.value) == message


# schedule


def test_schedules():
    assert schedule(3, 0.7, shape="constant").tolist() == [0.7] * 3
    torch.testing.assert_close(schedule(3, 1.0, 0.2, "linear"), torch.tensor([1.0, 0.6, 0.2]).double())
    torch.testing.assert_close(schedule(4, 8.0, 1.0), torch.tensor([8.0, 4.0, 2.0, 1.0]).double())
    assert schedule(1, 2.0, 0.1).tolist() == [2.0]
    assert schedule(5, 0.5, 2.0).diff().min() > 0  # heating
    assert schedule(5, 1, 2).dtype == schedule(5, 1, shape="constant").dtype == torch.float64


@pytest.mark.parametrize(
    "message, arguments",
    [
        ("steps: expected an integer >= 1, got 0", (0, 1.0, 0.1)),
        ("steps: expected an integer >= 1, got 2.0", (2.0, 1.0, 0.1)),
        ("steps: expected an integer >= 1, got True", (True, 1.0, 0.1)),
        ("shape: expected one of constant, linear, geometric, got 'cosine'", (5, 1.0, 0.1, "cosine")),
        ("end: expected none with 'constant', got 0.1", (5, 1.0, 0.1, "constant")),
        ("end: expected a ratio with 'geometric', got None", (5, 1.0)),
        ("end: expected a ratio with 'linear', got None", (5, 1.0, None, "linear")),
        ("start: expected a finite ratio > 0, got 0.0", (5, 0.0, 0.1)),
        ("start: expected a finite ratio > 0, got inf", (5, math.inf, 0.1)),
        ("end: expected a finite ratio > 0, got -0.1", (5, 1.0, -0.1, "linear")),
        ("end: expected a finite ratio > 0, got nan", (5, 1.0, math.nan)),
    ],
)
def test_schedules_that_make_no_sense_are_refused(message, arguments):
    with pytest.raises(ValueError) as error:
        schedule(*arguments)
    assert str(error.value) == message


def test_a_cooling_step_compiles_once_for_all_temperatures(blobs):
    """Every temperature of a schedule is a 0-dim tensor: new values, no new graph."""

    def step(tokens, bank, temperature):
        parts = decompose(tokens, bank, temperature, None, True)
        return parts.total, free_energy(tokens, bank, temperature), annealing_potential(tokens, bank, temperature)

    tokens, bank = blobs
    temperatures = schedule(4, 1.5, 0.1) * critical_temperature(tokens)
    compiled = torch.compile(step, fullgraph=True)
    first = leaf(bank)
    compiled(tokens, first, temperatures[0])[0].backward()
    with torch.compiler.set_stance("fail_on_recompile"):
        for temperature in temperatures[1:]:
            ours, theirs = leaf(bank), leaf(bank)
            values, expected = compiled(tokens, ours, temperature), step(tokens, theirs, temperature)
            torch.testing.assert_close(values, expected)
            values[0].backward(), expected[0].backward()
            torch.testing.assert_close(ours.grad, theirs.grad)


# draw_prototypes


def test_prototypes_are_drawn_from_different_real_tokens(cloud):
    tokens, _, mask = cloud
    dirty = torch.where(mask[..., None], tokens, torch.nan)
    bank = draw_prototypes(dirty, 12, mask)  # all of the real ones, in some order
    assert torch.equal(bank[bank[:, 0].argsort()], tokens[mask][tokens[mask][:, 0].argsort()])
    again, other = (draw_prototypes(tokens, 4, mask, torch.Generator().manual_seed(s)) for s in (1, 2))
    assert torch.equal(again, draw_prototypes(tokens, 4, mask, torch.Generator().manual_seed(1)))
    assert not torch.equal(again, other)
    before = tokens.clone()
    again.zero_()
    assert torch.equal(tokens, before)  # a copy


def test_drawing_with_a_generator_leaves_the_global_state_alone(cloud):
    state = torch.get_rng_state()
    draw_prototypes(cloud[0], 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("count", [0, -1, 13])
def test_only_as_many_as_there_are_real_tokens(cloud, count):
    tokens, _, mask = cloud
    with pytest.raises(
        ValueError, match=f"^count: expected an integer from 1 to 12, the number of real tokens, got {count}$"
    ):
        draw_prototypes(tokens, count, mask)


# em_step


def test_em_moves_each_prototype_to_its_weighted_mean(cloud):
    tokens, bank, mask = cloud
    real = tokens[mask]
    weights = dense.assign(real, bank, 0.7)
    expected = torch.stack([(q[:, None] * real).sum(0) / q.sum() for q in weights.T])
    dirty = torch.where(mask[..., None], tokens, torch.nan)
    before = bank.clone()
    torch.testing.assert_close(em_step(dirty, bank, 0.7, mask), expected)
    assert torch.equal(bank, before)


def test_em_is_descent_with_q_frozen_at_half_over_the_mean_weight(blobs):
    tokens, bank = blobs
    bank = leaf(bank)
    (gradient,) = torch.autograd.grad(decompose(tokens, bank, 3.0, None, True).total, bank)
    share = assign(tokens, bank, 3.0).mean(0)[:, None]
    torch.testing.assert_close(em_step(tokens, bank, 3.0), bank.detach() - gradient.detach() / (2 * share.detach()))


@pytest.mark.parametrize("temperature", [0.1, 2.0, 50.0])
def test_em_lowers_the_free_energy(blobs, temperature):
    tokens, bank = blobs
    for _ in range(20):
        moved = em_step(tokens, bank, temperature)
        assert free_energy(tokens, moved, temperature) <= free_energy(tokens, bank, temperature) + 1e-12
        bank = moved


def test_a_prototype_without_weight_stays(blobs):
    tokens, bank = blobs
    bank[1] = 1e6
    moved = em_step(tokens, bank, 0.5)
    assert torch.equal(moved[1], bank[1]) and not torch.equal(moved[0], bank[0])
    assert torch.isfinite(moved).all()
    nothing = torch.zeros(len(tokens), dtype=torch.bool)
    assert torch.equal(em_step(tokens, bank, 0.5, nothing), bank)


@pytest.mark.parametrize(
    "dtype, error", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float32, 2e-5), (torch.float64, 1e-12)]
)
def test_em_sums_in_full_precision(dtype, error):
    """100,000 weights of 1/2 overflow float16; under autocast the product would be rounded to 8 bits."""
    tokens = torch.randn(100_000, 2, dtype=torch.float64) + 1
    bank = torch.zeros(2, 2, dtype=torch.float64)
    moved = em_step(tokens.to(dtype), bank.to(dtype), 5.0)
    assert moved.dtype == dtype
    torch.testing.assert_close(moved.double(), tokens.mean(0).expand(2, 2), atol=0, rtol=error)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(em_step(tokens.to(dtype), bank.to(dtype), 5.0), moved)


def test_em_and_splitting_temperatures_want_one_bank(blobs):
    tokens, bank = blobs
    for function in (em_step, splitting_temperatures):
        with pytest.raises(ValueError, match=r"^prototypes: expected one bank \(K, D\), got shape \(2, 4, 2\)"):
            function(tokens.expand(2, -1, -1), bank.expand(2, 4, 2), 1.0)
        with pytest.raises(ValueError, match="^prototypes: expected D = 2 features"):
            function(tokens, torch.randn(4, 3), 1.0)
        with pytest.raises(ValueError, match="^temperature: expected a finite number > 0"):
            function(tokens, bank, 0.0)
        with pytest.raises(ValueError, match="^mask: expected a bool tensor"):
            function(tokens, bank, 1.0, torch.ones(3, dtype=torch.bool))


# fit


@pytest.mark.parametrize("detach", [False, True])
def test_fit_is_plain_descent_at_one_temperature_after_the_other(blobs, detach):
    tokens, bank = blobs
    temperatures = schedule(20, 1.2, 0.3) * critical_temperature(tokens, None, detach)
    run = fit(tokens, bank, temperatures, 0.3, detach_assignment=detach)
    by_hand = bank
    for temperature in temperatures:
        by_hand = leaf(by_hand)
        (gradient,) = torch.autograd.grad(dense.decompose(tokens, by_hand, temperature, None, detach).total, by_hand)
        by_hand = by_hand - 0.3 * gradient
    torch.testing.assert_close(run.prototypes, by_hand.detach())
    assert run.encoder is None and not run.prototypes.requires_grad


def test_with_q_detached_the_free_energy_falls_and_the_potential_too_while_cooling(blobs):
    tokens, bank = blobs
    critical = critical_temperature(tokens, None, True)
    constant = fit(tokens, bank, schedule(60, 0.4, shape="constant") * critical, 1.0, detach_assignment=True)
    assert constant.history["free_energy"].diff().max() < 1e-12
    cooling = fit(tokens, bank, schedule(60, 1.2, 0.05) * critical, 1.0, detach_assignment=True)
    assert cooling.history["potential"].diff().max() < 1e-12
    assert cooling.history["free_energy"].diff().max() > 0


@pytest.mark.parametrize("every, steps", [(1, [0, 1, 2, 3, 4, 5, 6, 7]), (3, [0, 3, 6, 7]), (7, [0, 7]), (50, [0, 7])])
def test_the_history_looks_before_every_nth_step_and_after_the_last(blobs, every, steps):
    tokens, bank = blobs
    temperatures = schedule(7, 2.0, 0.2)
    run = fit(tokens, bank, temperatures, 0.1, every=every)
    assert list(run.history) == [
        *("step", "temperature", "total", "reconstruction", "variance", "free_energy", "potential"),
        *("token_variance", "spread", "separation", "usage"),
    ]
    assert run.history["step"].tolist() == steps
    expected = [temperatures[min(step, 6)].item() for step in steps]
    assert run.history["temperature"].tolist() == expected
    assert all(column.dtype == torch.float64 and column.shape == (len(steps),) for column in run.history.values())


def test_the_history_is_that_of_the_bank_before_and_after(blobs):
    tokens, bank = blobs
    run = fit(tokens, bank, torch.tensor([2.0, 0.5]), 0.1)
    for row, (prototypes, temperature) in {0: (bank, 2.0), -1: (run.prototypes, 0.5)}.items():
        parts = dense.decompose(tokens, prototypes, temperature)
        expected = {
            "total": parts.total,
            "reconstruction": parts.reconstruction,
            "variance": parts.variance,
            "free_energy": dense.free_energy(tokens, prototypes, temperature),
            "potential": dense.free_energy(tokens, prototypes, temperature) + temperature * math.log(4),
            "token_variance": token_variance(tokens),
            "spread": spread(prototypes),
            "separation": min_separation(prototypes),
            "usage": usage(dense.assign(tokens, prototypes, temperature)),
        }
        for name, value in expected.items():
            assert run.history[name][row].item() == pytest.approx(float(value), abs=1e-12), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_fit_changes_neither_its_inputs_nor_the_encoder(blobs, dtype):
    tokens, bank = (each.to(dtype) for each in blobs)
    encoder, temperatures = nn.Linear(2, 2, dtype=dtype), torch.tensor([2.0, 1.0, 0.5])
    before = [each.clone() for each in (tokens, bank, temperatures, *encoder.parameters())]
    run = fit(tokens, bank, temperatures, 0.1, encoder=encoder)
    after = (tokens, bank, temperatures, *encoder.parameters())
    assert all(torch.equal(old, new) for old, new in zip(before, after))
    assert all(p.grad is None for p in encoder.parameters()) and not bank.requires_grad
    assert run.encoder is not encoder and not torch.equal(run.encoder.weight, encoder.weight)
    assert run.prototypes.dtype == run.encoder.weight.dtype == dtype


def test_the_encoder_learns_at_ratio_times_the_rate_of_the_bank(blobs):
    tokens, bank = blobs
    encoder = nn.Linear(2, 2, dtype=torch.float64)
    run = fit(tokens, bank, torch.tensor([2.0]), 0.1, encoder=encoder, ratio=0.02)
    first = leaf(bank)
    decompose(encoder(tokens), first, 2.0).total.backward()
    torch.testing.assert_close(run.prototypes, bank - 0.1 * first.grad)
    torch.testing.assert_close(run.encoder.weight, encoder.weight - 0.002 * encoder.weight.grad)
    encoded = run.encoder(tokens).detach()
    assert run.history["token_variance"][-1].item() == pytest.approx(token_variance(encoded))


def test_a_loss_of_ones_own(blobs):
    tokens, bank = blobs
    alone = fit(tokens, bank, torch.full((50,), 40.0), 0.3, loss=lambda parts, z: parts.variance)
    assert alone.history["variance"].diff().max() < 0 and alone.history["spread"][-1] < alone.history["spread"][0]
    encoder, target = nn.Linear(2, 2, dtype=torch.float64), tokens.flip(-1)
    taught = fit(
        tokens,
        bank,
        torch.full((200,), 2.0),
        0.1,
        loss=lambda parts, encoded: (encoded - target).square().mean() + 0 * parts.total,
        encoder=encoder,
        ratio=1.0,
    )
    assert (taught.encoder(tokens) - target).square().mean() < 0.1 * (encoder(tokens) - target).square().mean()
    assert torch.equal(taught.prototypes, bank)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_fit_with_other_optimisers_and_a_progress_bar(blobs, optimiser):
    tokens, bank = blobs
    seen = []

    def progress(temperatures):
        for temperature in temperatures:
            seen.append(float(temperature))
            yield temperature

    run = fit(tokens, bank, schedule(5, 2.0, 1.0), 0.01, optimiser=optimiser, progress=progress)
    assert seen == schedule(5, 2.0, 1.0).tolist()
    assert not torch.equal(run.prototypes, bank)


@pytest.mark.parametrize("lr", [4.0, 1e3, 1e30])
@pytest.mark.parametrize("every", [1, 1000])
def test_divergence_is_an_error_that_says_what_to_do(blobs, lr, every):
    tokens, bank = (each.float() for each in blobs)
    with pytest.raises(FloatingPointError, match=r"^the loss is (inf|nan) at step \d+: try a smaller lr than "):
        fit(tokens, bank[:1], torch.full((400,), 1.0), lr, every=every)


def test_divergence_in_the_last_step_is_an_error_too(blobs):
    tokens, bank = (each.float() for each in blobs)
    with pytest.raises(FloatingPointError, match=r"^the loss is (inf|nan) at step 1: try a smaller lr than 1e\+30$"):
        fit(tokens, bank, torch.ones(1), 1e30)


def test_a_loss_that_is_no_number_is_an_error(blobs):
    with pytest.raises(FloatingPointError, match="^the loss is nan at step 0"):
        fit(*blobs, torch.ones(3), loss=lambda parts, z: (parts.total - 1e9).sqrt())


def test_fit_refuses_what_its_parts_refuse(blobs):
    tokens, bank = blobs
    with pytest.raises(ValueError, match="^ratio: expected a finite number > 0, got 0"):
        fit(tokens, bank, torch.ones(3), encoder=nn.Linear(2, 2).double(), ratio=0)
    with pytest.raises(ValueError, match="^prototypes: expected D = 2 features"):
        fit(tokens, torch.randn(4, 3), torch.ones(3))
    with pytest.raises(ValueError, match="^temperature: expected a finite number > 0"):
        fit(tokens, bank, torch.tensor([1.0, 0.0]))
    for encoder in (None, nn.Linear(2, 2).double()):
        for lr in (-1.0, 0.0, math.nan):
            with pytest.raises(ValueError, match=f"^lr: expected a finite number > 0, got {lr}"):
                fit(tokens, bank, torch.ones(3), lr, encoder=encoder)


def test_the_defaults():
    defaults = {name: p.default for name, p in inspect.signature(fit).parameters.items()}
    assert (defaults["lr"], defaults["ratio"], defaults["every"]) == (1.0, 0.1, 1)
    assert defaults["detach_assignment"] is False and defaults["optimiser"] is torch.optim.SGD


# dense.free_energy and annealing_potential


@pytest.mark.parametrize("masked", [False, True])
def test_dense_free_energy_has_two_derivatives(cloud, masked):
    tokens, bank, mask = cloud
    inputs = (leaf(tokens[:, :4]), leaf(bank), torch.tensor(0.7, dtype=torch.float64, requires_grad=True))
    mask = mask[:, :4] if masked else None

    def energy(z, p, t):
        return dense.free_energy(z, p, t, mask)

    assert torch.autograd.gradcheck(energy, inputs)
    assert torch.autograd.gradgradcheck(energy, inputs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_free_energy_is_the_fused_one(cloud, dtype):
    tokens, bank, mask = cloud[0].to(dtype), cloud[1].to(dtype), cloud[2]
    dirty = torch.where(mask[..., None], tokens, torch.nan)
    for temperature in (1e-3, 0.7, torch.tensor([0.5, 2.0])):
        ours = dense.free_energy(dirty, bank, temperature, mask)
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, free_energy(tokens, bank, temperature, mask))
    assert dense.free_energy(tokens, bank, 1.0, torch.zeros_like(mask)) == 0


def test_its_derivative_in_the_temperature_is_minus_the_entropy(cloud):
    tokens, bank, _ = cloud
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(dense.free_energy(tokens, bank, temperature), temperature)
    entropy = torch.special.entr(dense.assign(tokens, bank, 0.7)).sum(-1).mean()
    torch.testing.assert_close(slope, -entropy)


def divergence(tokens, bank, temperature):
    """mean KL(q, uniform)."""
    return math.log(bank.shape[-2]) - torch.special.entr(dense.assign(tokens, bank, temperature)).sum(-1).mean()


@pytest.mark.parametrize("temperature", [0.05, 0.7, 30.0])
def test_the_potential_is_the_loss_plus_a_divergence(cloud, temperature):
    tokens, bank, _ = cloud
    expected = dense.decompose(tokens, bank, temperature).total + temperature * divergence(tokens, bank, temperature)
    ours = annealing_potential(tokens, bank, temperature)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(ours, annealing_potential(tokens, bank, torch.tensor(temperature)).to(ours))
    assert annealing_potential(tokens, bank, 0.9 * temperature) < ours


def test_the_potential_is_a_mean_over_real_tokens(cloud):
    """With a temperature for each leading index, T log K has to be weighted like F: by the number of tokens."""
    tokens, bank, mask = cloud
    dirty = torch.where(mask[..., None], tokens, torch.nan)
    temperatures = torch.tensor([0.5, 20.0], dtype=torch.float64)
    each = [annealing_potential(z[m], bank, float(t)) * m.sum() for z, m, t in zip(tokens, mask, temperatures)]
    torch.testing.assert_close(annealing_potential(dirty, bank, temperatures, mask), sum(each) / mask.sum())
    assert annealing_potential(dirty, bank, 0.7, torch.zeros_like(mask)) == 0
    heads = annealing_potential(tokens[0], torch.stack([bank, 2 * bank]), temperatures)
    by_head = [annealing_potential(tokens[0], b, float(t)) for b, t in zip((bank, 2 * bank), temperatures)]
    torch.testing.assert_close(heads, sum(by_head) / 2)


@pytest.mark.parametrize("function", [free_energy, annealing_potential])
def test_energies_refuse_bad_input(cloud, function):
    tokens, bank, _ = cloud
    for name, arguments in {
        "tokens": (tokens[0, 0], bank, 1.0),
        "prototypes": (tokens, bank[:, :3], 1.0),
        "temperature": (tokens, bank, -1.0),
        "mask": (tokens, bank, 1.0, torch.ones(2, 9)),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            function(*arguments)


# splitting_temperatures


@pytest.mark.parametrize("detach", [False, True])
def test_a_collapsed_bank_splits_at_the_critical_temperature(cloud, detach):
    tokens, _, mask = cloud
    dirty = torch.where(mask[..., None], tokens, torch.nan)
    bank = tokens[mask].mean(0).expand(3, 5)
    critical = critical_temperature(tokens, mask, detach)
    ours = splitting_temperatures(dirty, bank, 0.3 * critical.item(), mask, detach)
    torch.testing.assert_close(ours, critical.expand(3))  # attached: r_n = 1 for every token there
    assert ours.dtype == torch.float64 and not ours.requires_grad


def smallest_curvature(tokens, bank, temperature, detach):
    """The smallest eigenvalue of the second derivative when the first and the last prototype move opposite ways."""

    def value(apart):
        moved = bank + torch.stack([apart, *torch.zeros(len(bank) - 2, len(apart), dtype=apart.dtype), -apart])
        if detach:
            return dense.free_energy(tokens, moved, temperature)
        return dense.decompose(tokens, moved, temperature).total

    hessian = torch.autograd.functional.hessian(value, torch.zeros(bank.shape[-1], dtype=bank.dtype))
    return torch.linalg.eigvalsh(hessian)[0].item()


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_a_doubled_prototype_splits_below_its_temperature_only(detach, dim):
    """The sign of T - value is that of the curvature, also of a bank so far out that sum a r <= 0."""
    signs, far = set(), set()
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        scale = 1 + 3 * torch.rand(2, 1, 1, generator=generator, dtype=torch.float64)
        tokens = scale[0] * torch.randn(8, dim, generator=generator, dtype=torch.float64)
        bank = scale[1] * torch.randn(3, dim, generator=generator, dtype=torch.float64)
        bank = torch.cat([bank, bank[:1]])
        temperature = 10 ** (3 * torch.rand(1, generator=generator).item() - 1)
        value = splitting_temperatures(tokens, bank, temperature, None, detach)
        assert value[0] == value[-1]
        curvature = smallest_curvature(tokens, bank, temperature, detach)
        assert (temperature > value[0].item()) == (curvature > 0), seed
        signs.add(curvature > 0)
        weights = assign(tokens, bank, temperature)
        squares = dense.squared_distances(tokens, bank)
        relative = 1 - (squares - (weights * squares).sum(-1, keepdim=True)) / temperature
        if not detach and (weights * relative).sum(0)[0] <= 0:
            far.add(curvature > 0)
            assert value[0] == (0 if curvature > 0 else math.inf)
    assert signs == {True, False}
    assert detach or far == {1: {True}, 2: {True, False}, 3: {False}}[dim]


def test_a_prototype_without_weight_or_tokens_does_not_split(blobs):
    tokens, bank = blobs
    bank[1] = 1e6
    for detach in (False, True):
        values = splitting_temperatures(tokens, bank, 0.5, None, detach)
        assert values[1] == 0 and (values[[0, 2, 3]] > 0).all()
        nothing = torch.zeros(len(tokens), dtype=torch.bool)
        assert (splitting_temperatures(tokens, bank, 0.5, nothing, detach) == 0).all()
        assert (splitting_temperatures(tokens[:1], tokens[:1].expand(3, 2), 0.5, None, detach) == 0).all()


def test_one_token_has_no_critical_temperature():
    assert critical_temperature(torch.randn(1, 3)) == critical_temperature(torch.randn(1, 3), None, True) == 0


@pytest.mark.parametrize("detach", [False, True])
def test_splitting_temperatures_scale_and_ignore_leading_dimensions(cloud, detach):
    tokens, bank, mask = cloud
    before = tokens.clone(), bank.clone()
    values = splitting_temperatures(tokens, bank, 0.7, mask, detach)
    torch.testing.assert_close(splitting_temperatures(tokens[mask], bank, 0.7, None, detach), values)
    torch.testing.assert_close(splitting_temperatures(3 * tokens, 3 * bank, 6.3, mask, detach), 9 * values)
    torch.testing.assert_close(splitting_temperatures(tokens + 9, bank + 9, 0.7, mask, detach), values)
    torch.testing.assert_close(splitting_temperatures(tokens, bank, torch.tensor(0.7), mask, detach), values)
    assert torch.equal(tokens, before[0]) and torch.equal(bank, before[1])
    half = splitting_temperatures(tokens.half(), bank.half(), 0.7, mask, detach)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.double(), values, rtol=0.02, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        single = splitting_temperatures(tokens.float(), bank.float(), 0.7, mask, detach)
    torch.testing.assert_close(single.double(), values, rtol=1e-4, atol=0)


# certified_usage


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_collapsed_bank_is_certified_for_one_prototype_only(detach, dtype):
    """There the value equals tr C: a tie, which rounding must not turn into a certificate."""
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randn(50, 3, generator=generator, dtype=dtype) * torch.tensor([3.0, 1.0, 0.2]) + seed
        bank = tokens.mean(0).expand(4, 3)
        assert certified_usage(tokens.to(dtype), bank.to(dtype), 0.5, None, detach) == 1


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("dim, count", [(1, 2), (2, 3), (4, 5)])
def test_tight_clusters_far_apart_with_their_centres_are_certified_in_full(detach, dim, count):
    corners = torch.cat([torch.zeros(1, dim), 10 * torch.eye(dim)]).double()[:count]
    tokens = corners.repeat(20, 1) + 0.01 * torch.randn(20 * count, dim, dtype=torch.float64)
    assert certified_usage(tokens, corners, 0.1, None, detach) == count
    mask = torch.rand(20 * count) > 0.2
    dirty = torch.where(mask[:, None], tokens, torch.nan)
    assert certified_usage(dirty, corners, 0.1, mask, detach) == count
    assert certified_usage(tokens.reshape(4, -1, dim), corners, 0.1, None, detach) == count
    assert certified_usage(tokens, corners, 1e4, None, True) == 1  # so hot that nothing is promised


def best_means_cost(tokens, count):
    """The lowest mean squared distance of tokens from at most `count` points, by trying every partition."""
    best = math.inf
    for labels in itertools.product(range(count), repeat=len(tokens)):
        cost = 0.0
        for label in set(labels):
            rows = tokens[[i for i, other in enumerate(labels) if other == label]]
            cost += (rows - rows.mean(0)).square().sum().item()
        best = min(best, cost / len(tokens))
    return best


@pytest.mark.parametrize("seed", range(6))
def test_the_certificate_never_promises_more_than_the_best_means_allow(seed):
    """The eigenvalues from the m-th on, which the certificate adds up, stay below the true cost of m means."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(7, 3, generator=generator, dtype=torch.float64) * torch.tensor([3.0, 2.0, 1.0])
    costs = [best_means_cost(tokens, m) for m in (1, 2, 3)]
    values = torch.linalg.eigvalsh(torch.cov(tokens.T, correction=0))
    bounds = [values.sum().item(), values[:2].sum().item(), values[0].item()]
    assert costs[0] == pytest.approx(bounds[0])
    assert all(cost >= bound - 1e-12 for cost, bound in zip(costs, bounds))
    for detach in (False, True):
        for temperature in (1e-3, 0.1, 0.5, 1.0):
            bank = draw_prototypes(tokens, 5, generator=generator)
            value = annealing_potential(tokens, bank, temperature)
            value = value if detach else dense.decompose(tokens, bank, temperature).total
            ours = certified_usage(tokens, bank, temperature, None, detach)
            assert ours == 1 + sum(value.item() < bound for bound in bounds)
            assert ours <= 1 + sum(value.item() < cost for cost in costs)


def test_a_schedule_counts_at_its_first_temperature_and_must_never_rise(blobs):
    tokens, bank = blobs
    bank = fit(tokens, bank, torch.full((50,), 0.3), 0.5).prototypes
    cold, hot = (certified_usage(tokens, bank, t, None, True) for t in (0.1, 20.0))
    assert cold > hot == 1
    assert certified_usage(tokens, bank, torch.tensor([0.1, 0.1, 0.05]), None, True) == cold
    assert certified_usage(tokens, bank, torch.tensor([20.0, 0.1]), None, True) == hot
    assert certified_usage(tokens, bank, torch.tensor(0.1), None, True) == cold
    rising = "^temperature: expected a schedule that never rises: under heating W is no Lyapunov function$"
    for temperatures in (torch.tensor([0.1, 0.2]), torch.tensor([1.0, 0.1, 0.2])):
        for detach in (False, True):
            with pytest.raises(ValueError, match=rising):
                certified_usage(tokens, bank, temperatures, None, detach)
    with pytest.raises(ValueError, match="^prototypes: expected D = 2 features"):
        certified_usage(tokens, torch.randn(4, 3), 1.0)
    with pytest.raises(ValueError, match="^temperature: expected a finite number > 0"):
        certified_usage(tokens, bank, -1.0)


# measures of a run


def test_spread():
    bank = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])
    assert spread(bank) == pytest.approx(2**0.5)
    assert spread(bank + 100) == pytest.approx(2**0.5) and spread(bank[:1]) == 0
    tokens = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [9.0, 9.0]])
    mask = torch.tensor([True, True, False])
    assert spread(bank, tokens[:2]) == pytest.approx(2**0.5 / 2) == spread(bank, tokens, mask)
    assert spread(5 * bank, 5 * tokens[:2]) == pytest.approx(2**0.5 / 2)
    with pytest.raises(ValueError, match=r"^prototypes: expected one bank \(K, D\), got shape \(1, 4, 2\)"):
        spread(bank[None])
    with pytest.raises(ValueError, match="^prototypes: expected finite numbers"):
        spread(bank / 0)
    with pytest.raises(ValueError, match="^tokens: expected tokens that differ"):
        spread(bank, tokens[:1])


def test_token_variance():
    tokens = torch.tensor([[[3.0, 0.0], [-3.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]]])
    assert token_variance(tokens) == pytest.approx((2 * 9 + 2 * 1) / 4)
    assert token_variance(tokens + 1e4) == pytest.approx(5, rel=1e-3)
    mask = torch.tensor([[True, True], [False, False]])
    dirty = torch.where(mask[..., None], tokens, torch.nan)
    assert token_variance(dirty, mask) == pytest.approx(9)
    assert token_variance(torch.full((7, 3), 0.1)) == 0 == token_variance(torch.randn(1, 3))
    for name, arguments in {"tokens": (dirty,), "mask": (tokens, ~mask.all(-1))}.items():
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            token_variance(*arguments)


def test_tracking_distance_is_over_the_best_matching():
    targets = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    moved = targets + torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    assert tracking_distance(moved, targets) == pytest.approx((5 / 3) ** 0.5)
    assert tracking_distance(moved[[2, 0, 1]], targets) == pytest.approx((5 / 3) ** 0.5)
    assert tracking_distance(targets, targets) == 0
    near = torch.tensor([[0.0], [1.0], [2.0]])  # the nearest of each would use one target three times
    far = torch.tensor([[0.0], [-4.0], [-8.0]])
    squares = [sum((near[i] - far[j]).item() ** 2 for i, j in enumerate(p)) for p in itertools.permutations(range(3))]
    assert tracking_distance(near, far) == pytest.approx((min(squares) / 3) ** 0.5)
    with pytest.raises(ValueError, match=r"^targets: expected shape \(3, 2\), got \(2, 2\)"):
        tracking_distance(targets, targets[:2])
    with pytest.raises(ValueError, match=r"^targets: expected one bank \(K, D\), got shape \(2,\)"):
        tracking_distance(targets, targets[0])
    with pytest.raises(ValueError, match="^targets: expected finite numbers"):
        tracking_distance(targets, targets / 0)


# the table in DDCLAttention's docstring: which loss moves which parameter


def moved_by(loss, layer):
    """The gradient of every parameter by name; None where autograd reports that the loss does not depend on it."""
    gradients = torch.autograd.grad(loss, list(layer.parameters()), allow_unused=True)
    return dict(zip((name for name, _ in layer.named_parameters()), gradients))


def layer_and_tokens(detach):
    layer = DDCLAttention(6, 4, num_heads=2, temperature=0.8, detach_assignment=detach).double()
    return layer, torch.randn(3, 7, 6, dtype=torch.float64)


def frozen_loss(layer, tokens):
    """L_q with the numbers q put in by hand, summed over heads."""
    heads = zip(tokens.split(3, -1), layer.prototypes)
    return sum(dense.split(z, p, dense.assign(z, p, 0.8).detach()).total.mean() for z, p in heads)


@pytest.mark.parametrize("detach", [False, True])
def test_a_task_loss_moves_every_parameter_through_q_and_p(detach):
    layer, tokens = layer_and_tokens(detach)
    target = torch.randn(3, 7, 6, dtype=torch.float64)
    gradients = moved_by((layer(tokens) * target).sum(), layer)
    assert set(gradients) == {"prototypes", "output.weight", "norm.weight", "norm.bias"}
    assert all(gradient is not None and gradient.abs().max() > 1e-6 for gradient in gradients.values())
    weights = layer.assign(tokens).detach()  # (B, H, N, K): the same forward with q put in by hand
    centroids = (weights @ layer.prototypes).transpose(1, 2).flatten(-2)
    frozen = moved_by((layer.norm(tokens + layer.output(centroids)) * target).sum(), layer)
    for name, gradient in gradients.items():
        if name == "prototypes":
            assert (gradient - frozen[name]).norm() > 0.01 * gradient.norm()
        else:
            torch.testing.assert_close(gradient, frozen[name])


@pytest.mark.parametrize("detach", [False, True])
def test_the_layers_own_loss_moves_the_prototypes_alone(detach):
    layer, tokens = layer_and_tokens(detach)
    gradients = moved_by(layer.decompose(tokens).total, layer)
    assert {name: gradient is None for name, gradient in gradients.items()} == {
        "prototypes": False,
        "output.weight": True,
        "norm.weight": True,
        "norm.bias": True,
    }
    frozen = moved_by(frozen_loss(layer, tokens), layer)["prototypes"]
    if detach:
        torch.testing.assert_close(gradients["prototypes"], frozen)
    else:
        assert (gradients["prototypes"] - frozen).norm() > 0.01 * frozen.norm()
        attached = sum(dense.decompose(z, p, 0.8).total for z, p in zip(tokens.split(3, -1), layer.prototypes))
        torch.testing.assert_close(gradients["prototypes"], moved_by(attached, layer)["prototypes"])


@pytest.mark.parametrize("detach", [False, True])
def test_which_loss_moves_the_tokens(detach):
    """Behind an encoder the loss moves the tokens through z - mu, and through q unless q is detached."""
    layer, tokens = layer_and_tokens(detach)
    z = leaf(tokens)
    (ours,) = torch.autograd.grad(layer.decompose(z).total, z)
    again = leaf(tokens)
    (frozen,) = torch.autograd.grad(frozen_loss(layer, again), again)
    assert torch.allclose(ours, frozen) == detach


def test_em_never_moves_a_prototype_of_hardly_any_weight_out_of_the_tokens_hull():
    tokens, bank = torch.tensor([[10.0], [10.001]]), torch.tensor([[10.0], [10 + 95**0.5]])
    moved = em_step(tokens, bank, 1.0)[1].item()
    assert 9.999 <= moved <= 10.002 or moved == bank[1].item()


def test_fit_leaves_no_gradient_behind_and_needs_none_around(blobs):
    tokens, temperatures = leaf(blobs[0]), torch.ones(3).requires_grad_()
    with torch.no_grad():
        fit(2 * tokens, tokens[:3], temperatures)
    assert tokens.grad is None and temperatures.grad is None


@pytest.mark.parametrize(
    "options, message", [({"every": 0}, "every"), ({"temperatures": torch.ones(0)}, "temperatures")]
)
def test_fit_names_what_it_cannot_use(blobs, options, message):
    with pytest.raises(ValueError, match=f"^{message}: expected"):
        fit(*blobs, **{"temperatures": torch.ones(2), **options})


def test_fit_on_numbers_that_are_none_blames_the_tokens(blobs):
    with pytest.raises(FloatingPointError, match="step 0: before any step: check tokens"):
        fit(blobs[0] * torch.nan, blobs[1], torch.ones(2))


def test_one_tensor_is_no_list_of_parameters():
    layer = DDCLAttention(4, 3)
    with pytest.raises(ValueError, match=r"^prototype_params: expected an iterable.*write \[parameter\]"):
        two_timescale_groups(layer.norm.parameters(), layer.prototypes, 0.1)


def test_splitting_temperatures_want_one_temperature(blobs):
    with pytest.raises(ValueError, match="^temperature: expected a number"):
        splitting_temperatures(*blobs, torch.ones(4))


def test_the_certificate_of_nothing_is_refused(blobs):
    with pytest.raises(ValueError, match="^mask: expected at least one real token"):
        certified_usage(*blobs, 1.0, torch.zeros(len(blobs[0]), dtype=torch.bool))
    with pytest.raises(ValueError, match="^temperature: expected a schedule of at least one"):
        certified_usage(*blobs, torch.ones(0))
    with pytest.raises(ValueError, match="never rises"):
        certified_usage(*blobs, torch.tensor([1.0, torch.nan]))


@pytest.mark.gpu
def test_annealing_by_hand_runs_on_a_gpu(blobs):
    tokens = blobs[0].cuda()
    temperatures = float(critical_temperature(tokens)) * schedule(5, 1.2, 0.5)
    run = fit(tokens, draw_prototypes(tokens, 3), temperatures, detach_assignment=True)
    assert run.prototypes.device.type == "cuda" and len(run.history["total"]) == 6
