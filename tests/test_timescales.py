"""Joint training in closed form against autograd, the laws of tracking, and what chapter 6 says of its runs."""

import math
from functools import partial

import pytest
import torch

from ddcl_lite import critical_temperature, tracking_distance
from ddcl_lite.experiments import timescales as ts
from ddcl_lite.experiments.cost import exponent
from ddcl_lite.experiments.transition import four_blobs
from ddcl_lite.prototypes import dense


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def losses(tokens, banks, temperature, detached):
    """L_q of every run, by the dense form."""
    return [
        dense.decompose(z, bank, float(heat), detach_assignment=bool(fix)).total
        for z, bank, heat, fix in zip(tokens, banks, temperature, detached)
    ]


RUNS = dict(temperature=torch.tensor([0.5, 2.0, 0.5, 2.0]).double(), detached=torch.tensor([True, True, False, False]))


def test_the_closed_gradients_are_those_of_autograd():
    tokens, banks = draw(4, 9, 3).requires_grad_(), draw(4, 5, 3, seed=1).requires_grad_()
    expected = torch.autograd.grad(sum(losses(tokens, banks, **RUNS)), (tokens, banks))
    found = ts.gradients(tokens.detach(), banks.detach(), RUNS["temperature"], RUNS["detached"])
    for one, two in zip(found, expected):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("shapes", [[(2, 3)], [(4, 3), (2, 4)], [(4, 3), (5, 4), (2, 5)]])
def test_joint_training_is_that_of_torch(shapes, adam):
    tokens, banks = draw(4, 9, 3), draw(4, 5, 2, seed=1)
    layers = [draw(4, *shape, seed=2 + index) for index, shape in enumerate(shapes)]
    ratios = torch.tensor([1.0, 0.1, 0.3, 0.01], dtype=torch.float64)
    run = ts.joint_descent(tokens, layers, banks, RUNS["temperature"], ratios, RUNS["detached"], 20, lr=0.05, adam=adam)
    steps = list(run)
    assert [step for step, *_ in steps] == list(range(21))
    _, encoded, final = steps[-1]
    for index in range(4):
        weights = [layer[index].clone().requires_grad_() for layer in layers]
        bank = banks[index].clone().requires_grad_()
        groups = [{"params": weights, "lr": 0.05 * float(ratios[index])}, {"params": [bank], "lr": 0.05}]
        optimiser = (torch.optim.Adam if adam else torch.optim.SGD)(groups)

        def encode(weights=weights, index=index):
            z = tokens[index]
            for depth, weight in enumerate(weights):
                z = (z.tanh() if depth else z) @ weight.mT
            return z

        for _ in range(20):
            optimiser.zero_grad()
            one = slice(index, index + 1)
            losses([encode()], [bank], RUNS["temperature"][one], RUNS["detached"][one])[0].backward()
            optimiser.step()
        torch.testing.assert_close(encoded[index], encode().detach(), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(final[index], bank.detach(), rtol=1e-6, atol=1e-9)


def stretch(time):
    return (1 + time)[:, None, None] * torch.eye(2, dtype=time.dtype)


def test_one_prototype_lags_by_eps_times_half_the_speed_of_the_mean():
    """The linear case exactly: H = 2, and the mean of the tokens moves at its own start value."""
    tokens = four_blobs(50, 3)
    speed = tokens.mean(0).norm().item()
    ratios = [0.3, 0.01]
    encoders, banks = ts.track(tokens, tokens[:1], 1.0, ratios, stretch, span=0.9, lr=0.4)
    torch.testing.assert_close(encoders, stretch(torch.tensor([0.9, 0.9], dtype=torch.float64)))
    found = ts.lags(tokens, encoders, banks, 1.0)
    assert found[1] == pytest.approx(0.01 * speed / 2, rel=1e-6)
    assert found[0] == pytest.approx(0.3 * speed / 2, rel=0.3)  # its last step is a fraction of one
    assert ts.first_order_lag(tokens, tokens[:1], 1.0, stretch, 0.5) == pytest.approx(speed / 2, rel=1e-6)


def test_without_a_path_the_encoder_descends_the_free_energy():
    tokens, bank = four_blobs(50, 1), four_blobs(50, 1)[:4]
    encoders, banks = ts.track(tokens, bank, 1.0, [0.2], span=0.02, lr=0.1)  # one step
    leaves = [torch.eye(2, dtype=torch.float64).requires_grad_(), bank.clone().requires_grad_()]
    slopes = torch.autograd.grad(dense.free_energy(tokens @ leaves[0].mT, leaves[1], 1.0), leaves)
    torch.testing.assert_close(encoders[0], leaves[0].detach() - 0.02 * slopes[0])
    torch.testing.assert_close(banks[0], bank - 0.1 * slopes[1])


def test_settle_ends_at_an_equilibrium():
    tokens = four_blobs(100, 2)
    bank = ts.settle(tokens, tokens[:4], 1.0).requires_grad_()
    (slope,) = torch.autograd.grad(dense.free_energy(tokens, bank, 1.0), bank)
    assert slope.abs().max() < 1e-11


def test_the_paths_are_what_they_say():
    time = torch.tensor([0.0, 1.0], dtype=torch.float64)
    start, end = ts.turn_and_stretch(time)
    torch.testing.assert_close(start, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(torch.linalg.svdvals(end), torch.tensor([1.3, 0.7], dtype=torch.float64))
    assert (end[0, 0] / 1.3).item() == pytest.approx(math.cos(1)) and end[0, 1] < 0 < end[1, 0]
    torch.testing.assert_close(ts.shrink(time, 0.6)[1], 0.6 * torch.eye(2, dtype=torch.float64))


def test_exponent_is_the_power():
    ratios = [0.1, 0.02, 0.003]
    assert exponent(ratios, [7 * ratio**0.25 for ratio in ratios]) == pytest.approx(0.25)


def test_the_quarter_power_at_the_crossing_against_a_run():
    centred = four_blobs(100, 7) - four_blobs(100, 7).mean(0)
    half, end = 0.5 * critical_temperature(centred, detach_assignment=True).item(), 0.5**0.5
    lead = torch.linalg.eigh(centred.mT @ centred)[1][:, -1]
    pair = ts.settle(centred, torch.stack([lead, -lead]), half)
    _, banks = ts.track(centred, pair, half, [1e-3], partial(ts.shrink, end=end))
    predicted = ts.crossing_lag(centred + 5, half, 1e-3, end)  # an offset changes nothing
    assert tracking_distance(banks[0], torch.zeros_like(banks[0])) == pytest.approx(predicted, rel=0.02)
    assert ts.crossing_lag(centred, half, 16e-3, end) == pytest.approx(2 * predicted)


def test_an_ablation_has_a_row_for_every_case_and_repeats():
    options = dict(seeds=[3, 4], ratios=[1.0, 0.1], horizons=[0, 5])
    frame = ts.ablation(**options)
    assert len(frame) == 2 * 2 * 2 * 2 * 2 and frame.equals(ts.ablation(**options))
    start = frame[frame["step"] == 0]
    assert (start["token variance"] == 1).all() and (start[start["init"] == "small"]["spread"] < 0.1).all()
    assert not frame.equals(ts.ablation(**options, adam=True))
    assert (frame[frame["step"] == 5]["token variance"] < 1).all()
    deep = ts.ablation(**options, hidden=6)
    first = deep[deep["step"] == 0]
    assert (first["token variance"] == 1).all() and (first.groupby("seed")["loss"].nunique() == 2).all()  # 2 inits
    assert (first[first["init"] == "data"]["usage"] > 0.5).all()  # drawn from what the encoder says


def test_the_threshold_of_the_race_falls_with_temperature_and_with_the_size_of_the_start():
    left, threshold = ts.race(0, [0.05, 0.2], [1.0, 0.01], steps=1500)
    _, smaller = ts.race(0, [0.05, 0.2], [1.0], size=0.001, steps=1)
    assert threshold[0] > threshold[1] and (smaller < threshold).all()
    assert left[0, 1] > 0.01 > left[0, 0] and left.shape == (2, 2)
    tokens = four_blobs(100, 0)
    largest = torch.linalg.eigvalsh(torch.cov(tokens.mT, correction=0))[-1].item()
    bank = draw(4, 2) - draw(4, 2).mean(0)
    vectors = torch.linalg.eigh(torch.cov(tokens.mT, correction=0))[1]
    size = 0.1 * (bank @ vectors[:, -1]).square().mean().sqrt().item()
    growth = (20 - 1 - math.log(20)) / (8 * largest)
    assert threshold[0].item() == pytest.approx(growth / math.log(math.sqrt(0.05 * largest) / size))


def test_the_guarded_energy_is_what_the_docstring_says_and_falls():
    record = ts.guarded(2, [0.1, 1.0], [1.0, 0.1], steps=50)
    tokens = four_blobs(60, 2)
    parts = dense.decompose(tokens, 0.1 * draw(4, 2, seed=2), 1.0)
    task = (tokens - parts.centroids).square().sum(-1).mean()  # the decoder starts as the identity
    torch.testing.assert_close(record["task"][0], task.expand(2, 2))
    torch.testing.assert_close(record["energy"][0, 1], (task + parts.total).expand(2))
    assert (record["energy"].diff(dim=0) < 0).all() and (record["task"] <= record["energy"]).all()
    assert record["best"].item() == pytest.approx(tokens.var(0, correction=0).sum().item())
    assert record["variance"].shape == record["spread"].shape == record["gain"].shape == (51, 2, 2)
    assert record["variance"][-1, 0, 0] < record["variance"][-1, 0, 1]  # the encoder learns at eps times the rate


def test_half_lives_are_inverse_to_mass_under_descent_and_equal_under_adam():
    centres = 5 * torch.eye(3, dtype=torch.float64)
    tokens = centres.repeat_interleave(torch.tensor([6, 3, 1]), 0)
    found = ts.half_lives(tokens, centres, 0.1, partial(torch.optim.SGD, lr=0.05))
    assert found == [math.ceil(math.log(0.5) / math.log(1 - 0.1 * mass)) for mass in (0.6, 0.3, 0.1)]
    assert len(set(ts.half_lives(tokens, centres, 0.1, partial(torch.optim.Adam, lr=0.01)))) == 1


def test_what_chapter_6_says_of_small_starts_with_q_detached():
    frame = ts.ablation(range(25), inits=["small"], assignments=["detached"])
    alive = (frame["token variance"] > 0.01).groupby([frame["step"], frame["eps"]]).mean()
    expected = {30: {1.0: 0, 0.1: 1, 0.01: 1}, 300: {1.0: 0, 0.1: 0, 0.01: 1}, 3000: {1.0: 0, 0.1: 0, 0.01: 0}}
    assert {step: alive[step].to_dict() for step in expected} == expected


def test_what_chapter_6_says_of_adam_and_of_the_mlp():
    last = dict(seeds=range(5), horizons=[3000])
    adam = ts.ablation(**last, adam=True)
    adam["alive"] = adam["token variance"] > 0.01
    assert not adam[adam["q"] == "detached"]["alive"].any()
    small = adam.query("q == 'attached' and init == 'small' and eps == 1")
    assert small["alive"].sum() == 3
    deep = ts.ablation(**last, hidden=16, ratios=[0.1], inits=["small"])
    assert (deep["token variance"] < 0.01).all()
