"""`integrate`: its order, exact solutions, energy, accuracy, what it records, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

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
    integrate,
    library_time,
)
from ddcl_lite.meanfield import flow
from ddcl_lite.meanfield.sphere import exponential, pull_back, ring, shaken, tangent, uniform


def swap(labels):
    """Orthogonal matrices (n, 3, 3): turns about the first axis, with a reflection of the last coordinate."""
    cos, sin, one, zero = labels.cos(), labels.sin(), torch.ones_like(labels), torch.zeros_like(labels)
    return torch.stack([one, zero, zero, zero, cos, sin, zero, sin, -cos], -1).unflatten(-1, (3, 3))


KERNELS = {
    "exponential": Exponential,
    "self-attention": SelfAttention,
    "harmonic": Harmonic,
    "harmonic, degree 3": lambda beta: Harmonic(beta, 3),
    "rotary": lambda beta: Rotary(beta, [1.0]),
    "rotary, generalised": lambda beta: Rotary(beta, lambda labels: labels.sin()[:, None]),
    "rotary queries and keys": lambda beta: RotaryQueriesKeys(beta, [1.0]),
    "gauge": lambda beta: Gauge(beta, swap),
    "coupled": lambda beta: Coupled(beta, lambda a, b: a + b - 5),
    "toeplitz": lambda beta: Toeplitz(beta, torch.cos),
    "repulsive": Repulsive,
}
NO_ENERGY = ("self-attention", "rotary queries and keys")


def scene(n=8, seed=1, dtype=torch.float64):
    labels = 6 * torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return uniform(n, 3, seed=seed, dtype=dtype), labels.to(dtype)


def farthest(one, other):
    return (one - other).norm(dim=-1).max().item()


@pytest.mark.parametrize("name", KERNELS)
def test_halving_the_step_divides_the_error_by_two_to_the_order(name):
    kernel, (x, labels) = KERNELS[name](2.0), scene()

    def end(count, order):
        return integrate(kernel, x, labels, 2.0, step=2 / count, order=order, states=2).tokens[-1]

    exact = end(96, 4)
    for order, steps in ((1, 64), (2, 24), (4, 16)):
        errors = [farthest(end(count, order), exact) for count in (steps, 2 * steps)]
        assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.1), order


@pytest.mark.parametrize("dim", [2, 3, 16])
@pytest.mark.parametrize("beta", [0.5, 2.0, 8.0])
def test_two_tokens_of_self_attention_follow_their_equation(beta, dim):
    """c' = 2 e^(beta c)/(e^beta + e^(beta c)) (1 - c^2) for the cosine c of two tokens, in any dimension."""
    x = torch.zeros(2, dim, dtype=torch.float64)
    x[0, 0], x[1, 0], x[1, 1] = 1, math.cos(2.0), math.sin(2.0)
    times = np.array([0.5, 1.0, 3.0, 8.0])
    exact = solve_ivp(
        lambda t, c: 2 / (1 + np.exp(beta * (1 - c))) * (1 - c**2), (0, 8), [math.cos(2.0)], "DOP853", times,
        rtol=1e-12, atol=1e-14,
    ).y[0]  # fmt: skip
    path = integrate(SelfAttention(beta), x, time=times, tolerance=1e-9).tokens
    np.testing.assert_allclose((path[1:, 0] * path[1:, 1]).sum(-1), exact, atol=1e-8)


@pytest.mark.parametrize("n, dim, beta", [(2, 2, 1.0), (5, 5, 3.0), (6, 9, 0.5)])
def test_an_equiangular_start_follows_its_equation(n, dim, beta):
    """Claim U16: rho' = (2/n) e^(beta rho) (1 - rho) ((n - 1) rho + 1) in the papers' time, for orthogonal starts."""
    x = torch.linalg.qr(torch.randn(dim, n, dtype=torch.float64)).Q.mT
    times = np.array([0.1, 0.3, 1.0])  # the papers'
    exact = solve_ivp(
        lambda t, r: 2 / n * np.exp(beta * r) * (1 - r) * ((n - 1) * r + 1), (0, 1), [0.0], "DOP853", times,
        rtol=1e-12, atol=1e-14,
    ).y[0]  # fmt: skip
    path = integrate(Exponential(beta), x, time=[library_time(t, beta) for t in times], tolerance=1e-9).tokens
    for cosines, rho in zip(path[1:] @ path[1:].mT, exact):
        off = cosines[~torch.eye(n).bool()]
        assert (off - rho).abs().max() < 1e-8


def test_one_step_of_order_1_is_the_exponential_map():
    x, _ = scene()
    v = Exponential(2.0).drift(x)
    speed = v.norm(dim=-1, keepdim=True)
    expected = (0.3 * speed).cos() * x + (0.3 * speed).sin() * v / speed
    path = integrate(Exponential(2.0), x, time=0.3, step=0.3, order=1, states=2).tokens
    torch.testing.assert_close(path[1], expected, rtol=0, atol=1e-15)


@settings(max_examples=20, deadline=None)
@given(dim=st.integers(2, 6), size=st.floats(1e-12, 3), seed=st.integers(0, 10_000))
def test_pull_back_undoes_the_differential_of_the_exponential_map(dim, size, seed):
    torch.manual_seed(seed)
    x, (w, v) = uniform(7, dim, seed=seed + 1), torch.randn(2, 7, dim, dtype=torch.float64)
    w, v = tangent(x, w), tangent(x, v)
    w = size * w / w.norm(dim=-1, keepdim=True)
    there, velocity = torch.autograd.functional.jvp(lambda u: exponential(x, u), w, v)
    torch.testing.assert_close(pull_back(x, w, velocity), v, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close((x * there).sum(-1), torch.full((7,), math.cos(size), dtype=torch.float64))
    assert (there.norm(dim=-1) - 1).abs().max() < 1e-15


def test_pull_back_at_the_start_changes_nothing():
    x, v = uniform(7, 3), torch.randn(7, 3, dtype=torch.float64)
    torch.testing.assert_close(pull_back(x, torch.zeros_like(v), tangent(x, v)), tangent(x, v), rtol=0, atol=1e-15)


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("name", KERNELS)
def test_norms_stay_1_energy_never_falls_and_accuracy_is_that_of_the_tolerance(name, order):
    kernel, (x, labels) = KERNELS[name](3.0), scene(12)
    tolerance = 1e-6 if order == 4 else 1e-4
    path = integrate(kernel, x, labels, 6.0, order=order, tolerance=tolerance, states=25)
    assert (path.tokens.norm(dim=-1) - 1).abs().max() < 4e-16
    assert path.tokens.shape == (25, 12, 3) and path.tokens.dtype == torch.float64
    assert (path.energy is None) == (name in NO_ENERGY)
    energy = Exponential(3.0).energy(path.tokens) if name == "self-attention" else path.energy
    if energy is not None:
        assert (energy.diff() >= -1e-9 * energy.abs().max()).all() and energy[-1] > energy[0]
    if path.energy is not None:
        torch.testing.assert_close(path.energy, kernel.energy(path.tokens, labels))
    if order == 4:
        exact = integrate(kernel, x, labels, 6.0, tolerance=1e-10, states=25).tokens
        assert farthest(path.tokens, exact) < 100 * tolerance


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-9])
def test_a_smaller_tolerance_is_a_smaller_error(tolerance):
    x, _ = scene(20)
    exact = integrate(Exponential(2.0), x, time=6.0, tolerance=1e-12, states=2).tokens[-1]
    error = farthest(integrate(Exponential(2.0), x, time=6.0, tolerance=tolerance, states=2).tokens[-1], exact)
    assert tolerance / 1000 < error < 20 * tolerance


def test_energy_rises_at_the_mean_squared_speed():
    x, labels = scene(12)
    for name in ("exponential", "gauge", "toeplitz"):
        kernel = KERNELS[name](2.0)
        path = integrate(kernel, x, labels, [0.999, 1.0, 1.001], tolerance=1e-9)
        rate = (path.energy[3] - path.energy[1]) / 0.002
        assert rate.item() == pytest.approx(
            kernel.drift(path.tokens[2], labels).square().sum(-1).mean().item(), rel=1e-5
        )


def test_recorded_times_are_those_asked_for_and_do_not_change_the_flow():
    x, labels = scene()
    path = integrate(Rotary(2.0, [1.0]), x, labels, 3.0, states=4)
    assert path.times.tolist() == [0, 1, 2, 3] and path.times.dtype == torch.float64
    assert torch.equal(path.tokens[0], torch.nn.functional.normalize(x, dim=-1)) and path.labels is labels
    few = integrate(Rotary(2.0, [1.0]), x, labels, torch.tensor([0.1, 2.0, 3.0]))
    assert few.times.tolist() == pytest.approx([0, 0.1, 2, 3]) and few.tokens.shape == (4, 8, 3)
    assert farthest(few.tokens[2:], path.tokens[2:]) < 1e-5
    assert integrate(Exponential(2.0), x, states=5).times.tolist() == [0, 5, 10, 15, 20]
    assert integrate(Exponential(2.0), x).tokens.shape == (65, 8, 3)


def test_a_fixed_step_is_at_most_what_was_asked_and_even(monkeypatch):
    steps, advance = [], flow._advance
    monkeypatch.setattr(flow, "_advance", lambda *rest: steps.append(rest[3]) or advance(*rest))
    integrate(Exponential(1.0), scene()[0], time=[0.5, 1.2], step=0.2)
    assert steps == pytest.approx([0.5 / 3] * 3 + [0.7 / 4] * 4)
    steps.clear()
    integrate(Exponential(1.0), scene()[0], time=1.0, step=0.1, states=2)
    assert steps == pytest.approx([0.1] * 10)  # 1.0/0.1 needs no eleventh step
    steps.clear()
    integrate(Exponential(1.0), scene()[0], time=1e3, states=2)
    assert len(steps) > 300 and max(steps) < 6  # adaptive steps stay near 2.8, where consensus is stable


@pytest.mark.parametrize("beta", [0.1, 1.0, 10.0, 50.0, 200.0])
@pytest.mark.parametrize("name", KERNELS)
def test_every_beta_integrates_or_says_why_not(name, beta, monkeypatch):
    monkeypatch.setattr(flow, "MAX_STEPS", 400)
    x, labels = scene()
    try:
        path = integrate(KERNELS[name](beta), x, labels, 5.0, states=3)
    except RuntimeError as error:
        assert f"beta = {beta:g}: " in str(error) and "step" in str(error)
        assert name == "coupled"  # whose coupling of up to 7 makes it stiff: all others take a few hundred steps
    else:
        assert torch.isfinite(path.tokens).all() and (path.tokens.norm(dim=-1) - 1).abs().max() < 4e-16


@pytest.mark.parametrize("beta", [0.1, 2.0, 20.0])
def test_a_time_that_would_take_too_many_steps_is_refused(beta, monkeypatch):
    monkeypatch.setattr(flow, "MAX_STEPS", 50)
    message = rf"^beta = {beta:g}: time 1e\+04 would take over 50 steps, .* hold the step at [\d.e-]+ or less; ask for"
    with pytest.raises(RuntimeError, match=message):
        integrate(Exponential(beta), scene()[0], time=1e4, states=2)
    monkeypatch.setattr(flow, "EARLY", 20)  # and it does not take them all to find out
    count, advance = [], flow._advance
    monkeypatch.setattr(flow, "_advance", lambda *rest: count.append(1) or advance(*rest))
    with pytest.raises(RuntimeError, match=message):
        integrate(Exponential(beta), scene()[0], time=1e4, states=2)
    assert len(count) == 21


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("beta", [1.0, 4.0])
def test_a_fixed_step_that_is_too_long_is_refused(beta, order):
    for step in (5.0, 50.0):
        with pytest.raises(RuntimeError, match=rf"^beta = {beta:g}: a step of {step:g} is too long here .* step=None"):
            integrate(Exponential(beta), scene(12)[0], time=1000.0, step=step, order=order, states=2)
    short = {1: 1.9, 2: 1.2, 4: 2.0}[order]
    cap = scene(12)[0] + 3 * uniform(1, 3, seed=5)  # in a hemisphere: no waiting
    cap = torch.nn.functional.normalize(cap, dim=-1)
    path = integrate(Exponential(beta), cap, time=1000.0, step=short, order=order, states=2)
    assert path.energy[-1].item() == pytest.approx(1 / (2 * beta), rel=1e-12)


def test_euler_steps_beyond_stability_are_refused():
    for seed in range(3):
        with pytest.raises(RuntimeError, match="^beta = 1: a step of 2.99"):
            integrate(Exponential(1.0), uniform(12, 3, seed=seed), time=1000.0, step=3.0, order=1, states=2)


@pytest.mark.parametrize("step", [None, 0.5])
@pytest.mark.parametrize("order", [1, 2, 4])
def test_equilibria_stay_where_they_are(order, step):
    point = uniform(1, 3, seed=3)
    for kernel in (Exponential(2.0), SelfAttention(2.0), Exponential(200.0)):
        for x in (point, point.expand(6, 3), torch.cat([point, -point])):
            path = integrate(kernel, x, time=5.0, order=order, step=step, states=3)
            assert farthest(path.tokens, x) < 1e-14


def test_an_antipodal_pair_leaves_only_if_pushed():
    point = uniform(1, 3, seed=3)
    pushed = torch.nn.functional.normalize(torch.cat([point, -point + 1e-6]), dim=-1)
    path = integrate(Exponential(1.0), pushed, time=500.0, states=2).tokens[-1]
    assert (path[0] - path[1]).norm() < 1e-6


def test_orthogonal_tokens_of_a_unit_rotation_reach_their_orbit():
    x, labels = scene(12)
    path = integrate(Rotary(1.0, [1.0]), x, labels, 300.0, states=2)
    assert path.energy[-1].item() == pytest.approx(0.5, rel=1e-9)


@pytest.mark.parametrize("name", KERNELS)
def test_clouds_side_by_side_go_where_each_goes_alone(name):
    kernel, labels = KERNELS[name](2.0), scene()[1]
    x = uniform(2, 3, 8, 3, seed=5)
    together = integrate(kernel, x, labels, 4.0, states=3)
    assert together.tokens.shape == (3, 2, 3, 8, 3)
    for i in range(2):
        alone = integrate(kernel, x[i, 1], labels, 4.0, states=3)
        assert farthest(together.tokens[:, i, 1], alone.tokens) < 1e-4
        if alone.energy is not None:
            torch.testing.assert_close(together.energy[:, i, 1], alone.energy, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", KERNELS)
def test_inputs_are_not_changed_nothing_keeps_a_graph_and_runs_repeat(name):
    kernel, (x, labels) = KERNELS[name](2.0), scene(150)
    x.requires_grad_()
    copies = x.detach().clone(), labels.clone()
    path = integrate(kernel, x, labels, 1.0, states=3)
    assert torch.equal(x, copies[0]) and torch.equal(labels, copies[1])
    assert not path.tokens.requires_grad and (path.energy is None or not path.energy.requires_grad)
    strided = x.detach().mT.contiguous().mT
    again = integrate(kernel, x.detach(), labels, 1.0, states=3)
    assert torch.equal(again.tokens, path.tokens)
    assert farthest(integrate(kernel, strided, labels, 1.0, states=3).tokens, path.tokens) < 1e-9


@pytest.mark.parametrize("name", KERNELS)
def test_float32_in_float32_out_and_near_float64(name):
    x, labels = scene(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        path = integrate(KERNELS[name](2.0), x, labels, 3.0, states=3)
    assert path.tokens.dtype == torch.float32 and (path.energy is None or path.energy.dtype == torch.float32)
    assert (path.tokens.norm(dim=-1) - 1).abs().max() < 3e-7
    exact = integrate(KERNELS[name](2.0), x.double(), labels.double(), 3.0, states=3)
    assert farthest(path.tokens, exact.tokens) < 5e-4  # couplings of up to 7 pull tokens apart
    assert integrate(KERNELS[name](2.0), x, labels, 1.0, tolerance=1e-12, states=2).tokens.isfinite().all()


def test_progress_sees_every_recorded_time_after_the_start():
    seen = []

    def progress(times):
        for each in times:
            seen.append(each)
            yield each

    path = integrate(Exponential(1.0), scene()[0], time=3.0, states=7, progress=progress)
    assert seen == path.times[1:].tolist()


BAD = {
    "tokens": [torch.ones(4, 3), torch.zeros(4, 3), torch.eye(3).half(), torch.eye(3) * math.nan, [[1.0, 0.0]]],
    "labels": [torch.ones(3), torch.ones(8).bool(), torch.full((8,), math.nan), [0.0] * 8],
    "time": [0, -1.0, math.nan, math.inf, "soon", [], [1.0, 1.0], [2.0, 1.0], [0.0, 1.0], [1.0, math.inf]],
    "step": [0, -0.1, math.nan, "long", math.inf],
    "tolerance": [0, -1e-6, math.nan, None, "tight"],
    "order": [0, 3, 5, "4", None],
    "states": [1, 0, -3, 2.5, None, True],
    "kernel": [None, Exponential, lambda x: x, torch.eye(3)],
}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in BAD.items() for value in values])
def test_bad_input_names_the_argument(name, value):
    x, labels = scene()
    good = dict(kernel=Rotary(1.0, [1.0]), tokens=x, labels=labels, time=1.0)
    with pytest.raises(ValueError, match=f"^{name}: expected .*got "):
        integrate(**{**good, name: value})


@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_cuda_agrees_with_the_cpu(name):
    kernel, (x, labels) = KERNELS[name](2.0), scene(150)
    there = integrate(kernel, x.cuda(), labels.cuda(), 2.0, step=0.05, states=3)
    here = integrate(kernel, x, labels, 2.0, step=0.05, states=3)
    assert there.tokens.is_cuda and farthest(there.tokens.cpu(), here.tokens) < 1e-10


@pytest.mark.parametrize("states", [2, 65])
def test_a_hopeless_horizon_is_refused_early_however_many_states_are_recorded(states, monkeypatch):
    monkeypatch.setattr(flow, "MAX_STEPS", 2000)
    monkeypatch.setattr(flow, "EARLY", 20)
    count, advance = [], flow._advance
    monkeypatch.setattr(flow, "_advance", lambda *rest: count.append(1) or advance(*rest))
    with pytest.raises(RuntimeError, match="^beta = 1: time 1e\\+06 would take over 2,000 steps"):
        integrate(Exponential(1.0), scene()[0], time=1e6, states=states)
    assert len(count) < 100


def test_times_and_orders_of_every_type():
    x = scene()[0]
    for time in (3, np.float32(3.0), torch.tensor(3.0), torch.tensor(3)):
        assert integrate(Exponential(1.0), x, time=time, states=2).times.tolist() == [0, 3]
    for bad in (None, "soon", True, float("nan"), -1.0, [], [1.0, 1.0], [2.0, 1.0]):
        with pytest.raises(ValueError, match="^time: "):
            integrate(Exponential(1.0), x, time=bad)
    for bad in (True, [4], 3, 4.0):
        with pytest.raises(ValueError, match="^order: expected 1, 2 or 4"):
            integrate(Exponential(1.0), x, time=1.0, order=bad)
    with pytest.raises(ValueError, match="^tokens: expected at least one cloud"):
        integrate(Exponential(1.0), x.expand(0, -1, -1), time=1.0)


def test_shaking_is_tangent_and_not_the_noise_of_the_tokens_seed():
    x = uniform(2000, 3, seed=5)
    moved = shaken(x, 0.01, seed=5)
    move = moved - x
    assert (moved.norm(dim=-1) - 1).abs().max() < 1e-15
    assert move.square().mean().sqrt().item() == pytest.approx(0.01 * (2 / 3) ** 0.5, rel=0.05)
    torch.manual_seed(5)
    assert (x * torch.randn_like(x)).sum(-1).mean().abs() < 0.1  # a seed used twice draws other numbers
    assert ring(4).tolist() == pytest.approx([0, math.pi / 2, math.pi, 3 * math.pi / 2])
