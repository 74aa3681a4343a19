"""A bank behind an encoder that moves: how closely it follows, who wins the race at the start, and what guards both."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from ..measures import spread, token_variance, tracking_distance, usage
from ..prototypes import dense
from ..prototypes.training import draw_prototypes, em_step
from .transition import four_blobs

normal = partial(torch.randn, dtype=torch.float64)


def gradients(
    tokens: Tensor, prototypes: Tensor, temperature: Tensor, detach_assignment: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of L_q with respect to tokens (R, N, D) and banks (R, K, D), for R runs at a time.

    dL/dz_n = 2/N (z_n - sum_k w_nk p_k),  dL/dp_k = 2/N sum_n w_nk (p_k - z_n), with w = q where q is detached, else
    w_nk = q_nk (1 - (D_nk - L_n)/T), claim D8. temperature and detach_assignment (bool): (R,). Fastest where tokens are
    the transpose of contiguous features (R, D, N). Chapter 6.
    """
    features, count = tokens.mT, tokens.shape[-2]
    temperature, detach_assignment = temperature[:, None, None], detach_assignment[:, None, None]
    norms = prototypes.square().sum(-1, keepdim=True) + features.square().sum(-2, keepdim=True)
    distances = torch.baddbmm(norms, prototypes, features, alpha=-2)  # (R, K, N)
    weights = torch.softmax(-distances / temperature, -2)
    excess = distances - (weights * distances).sum(-2, keepdim=True)
    weights = torch.where(detach_assignment, weights, weights * (1 - excess / temperature))
    pull = torch.baddbmm(features, prototypes.mT, weights, alpha=-1)
    push = weights.sum(-1, keepdim=True) * prototypes - weights @ tokens
    return pull.mT * (2 / count), push * (2 / count)


# How closely a bank follows


def turn_and_stretch(time: Tensor) -> Tensor:
    """A path of encoders (R, 2, 2) for slow times (R,): turned by `time` radians, and stretched along one axis as much
    as compressed along the other. Clusters stay clusters: the branch of a cold bank is isolated all along."""
    cosine, sine = time.cos(), time.sin()
    turn = torch.stack([torch.stack([cosine, -sine], -1), torch.stack([sine, cosine], -1)], -2)
    return turn @ torch.diag_embed(torch.stack([1 + 0.3 * time, 1 - 0.3 * time], -1))


def shrink(time: Tensor, end: float) -> Tensor:
    """A path of encoders (R, 2, 2): a scale that falls from 1 to `end` at slow time 1."""
    return (1 + (end - 1) * time)[:, None, None] * torch.eye(2, dtype=time.dtype, device=time.device)


def track(
    tokens: Tensor,
    prototypes: Tensor,
    temperature: float,
    ratios: Sequence[float],
    path: Callable[[Tensor], Tensor] | None = None,
    span: float = 1.0,
    lr: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Encoders (R, D, D) and banks (R, K, D) at slow time `span`, one run for each ratio eps; q is detached.

    Each step moves the bank by -lr grad F and the slow time by eps lr. The encoder is path(slow time), or, without a
    path, follows -grad F too, from the identity. tokens (N, D), prototypes (K, D). Claim D11; chapter 6.
    """
    speed = lr * torch.tensor(ratios, dtype=tokens.dtype, device=tokens.device)
    slow, runs = torch.zeros_like(speed), len(speed)
    features = tokens.mT.expand(runs, -1, -1).contiguous()  # (R, D, N)
    banks = prototypes.repeat(runs, 1, 1)
    encoders = torch.eye(tokens.shape[-1], dtype=tokens.dtype, device=tokens.device).repeat(runs, 1, 1)
    heat, fixed = torch.full_like(speed, temperature), torch.ones_like(speed, dtype=torch.bool)
    for _ in range(math.ceil(span / float(speed.min()) - 1e-9)):
        if path:
            encoders = path(slow)
        step = torch.minimum(speed, (span - slow).clamp_min(0))  # the last one may be shorter
        pull, push = gradients((encoders @ features).mT, banks, heat, fixed)
        banks = banks - (lr * step / speed)[:, None, None] * push
        encoders = encoders - step[:, None, None] * (features @ pull).mT
        slow = slow + step
    return path(slow) if path else encoders, banks


def settle(tokens: Tensor, prototypes: Tensor, temperature: float, tolerance: float = 1e-12) -> Tensor:
    """P*: the fixed point that the EM iteration reaches from this bank (K, D), which is an equilibrium of F."""
    for _ in range(10_000):
        before, prototypes = prototypes, em_step(tokens, prototypes, temperature)
        if (prototypes - before).abs().max() < tolerance:
            break
    return prototypes


def lags(tokens: Tensor, encoders: Tensor, banks: Tensor, temperature: float) -> list[float]:
    """|P - P*(theta)| for every run: encoders (R, D, D), banks (R, K, D)."""
    encoded = [tokens @ encoder.mT for encoder in encoders]
    return [tracking_distance(bank, settle(z, bank, temperature)) for z, bank in zip(encoded, banks)]


def first_order_lag(tokens: Tensor, prototypes: Tensor, temperature: float, path, time: float) -> float:
    """The root mean square of H^-1 dP*/dtau, the lag per unit of eps on an isolated branch (chapter 6).

    H is the Hessian of F at P*(tau), which is looked for from `prototypes` (K, D); dP*/dtau by central differences.
    """
    step = 1e-4
    times = torch.tensor([time - step, time, time + step], dtype=tokens.dtype, device=tokens.device)
    encoded = [tokens @ encoder.mT for encoder in path(times)]
    before, here, after = (settle(z, prototypes, temperature) for z in encoded)
    hessian = torch.autograd.functional.hessian(lambda p: dense.free_energy(encoded[1], p, temperature), here)
    velocity = (after - before).flatten() / (2 * step)
    lag = torch.linalg.solve(hessian.reshape(len(velocity), -1), velocity)
    return lag.view_as(here).square().sum(-1).mean().sqrt().item()


def crossing_lag(tokens: Tensor, temperature: float, ratio: float, end: float) -> float:
    """How far two prototypes still are from the mean when `shrink` has just brought T_c down to T; leading order.

    (m eps/pi)^(1/4) / sqrt(c), m = 2 (1 - end)/end, c = 8 E(u.z)^4 / (3 T^3) with z the centred tokens at the end and u
    their leading direction; q detached. tokens (N, D), before shrinking. Derived in chapter 6 (ours).
    """
    centred = end * (tokens - tokens.mean(0))
    direction = torch.linalg.eigh(centred.mT @ centred)[1][:, -1]
    cubic = 8 * (centred @ direction).pow(4).mean().item() / (3 * temperature**3)
    return (2 * (1 - end) / end * ratio / math.pi) ** 0.25 / cubic**0.5


# Who is alive when


def layer_states(layers: list[Tensor], features: Tensor) -> list[Tensor]:
    """Inputs and outputs of every layer, features in rows: (R, D, N) -> [(R, D, N), ..., (R, D', N)]; tanh between."""
    states = [features]
    for index, layer in enumerate(layers):
        states.append(layer @ (states[-1].tanh() if index else states[-1]))
    return states


def joint_descent(
    tokens: Tensor,
    layers: list[Tensor],
    prototypes: Tensor,
    temperature: Tensor,
    ratios: Tensor,
    detach_assignment: Tensor,
    steps: int,
    lr: float = 0.1,
    adam: bool = False,
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Train R encoders and banks on L_q alone; yields (step, encoded tokens (R, N, D'), banks), `steps` + 1 times.

    tokens (R, N, D), prototypes (R, K, D'), layers: matrices (R, out, in) with tanh between them; temperature, ratios
    and detach_assignment (R,). The bank learns at `lr`, the layers at eps `lr`, by gradient descent or by Adam.
    """
    inputs, parameters = tokens.mT.contiguous(), [*layers, prototypes]
    rates = [lr * ratios[:, None, None]] * len(layers) + [lr]
    moments = [(torch.zeros_like(one), torch.zeros_like(one)) for one in parameters]
    for step in range(steps + 1):
        *layers, prototypes = parameters
        states = layer_states(layers, inputs)
        yield step, states[-1].mT, prototypes
        signal, push = gradients(states[-1].mT, prototypes, temperature, detach_assignment)
        signal, slopes = signal.mT, [push]
        for index in range(len(layers) - 1, -1, -1):  # backwards through the layers
            seen = states[index].tanh() if index else inputs
            slopes.insert(0, signal @ seen.mT)
            if index:
                signal = (layers[index].mT @ signal) * (1 - seen.square())
        if adam:
            moments = [(m.lerp(g, 0.1), v.lerp(g.square(), 0.001)) for (m, v), g in zip(moments, slopes)]
            first, second = 1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1)
            slopes = [(m / first) / ((v / second).sqrt() + 1e-8) for m, v in moments]
        parameters = [one - rate * slope for one, rate, slope in zip(parameters, rates, slopes)]


def ablation(
    seeds: Iterable[int] = range(5),
    ratios: Sequence[float] = (1.0, 0.1, 0.01),
    horizons: Sequence[int] = (30, 300, 3000),
    temperature: float = 1.0,
    inits: Sequence[str] = ("small", "data"),
    assignments: Sequence[str] = ("detached", "attached"),
    hidden: int = 0,
    adam: bool = False,
    device="cpu",
    progress: Callable[[Iterable], Iterable] = iter,
) -> pd.DataFrame:
    """Every combination of q, init, eps and seed on the four blobs, L_q the only loss, looked at after each horizon.

    init "small" is 0.1 times standard normal, "data" is a draw of encoded tokens. The encoder is linear and starts as
    the identity or, with `hidden` > 0, has one tanh layer of that width and starts at random. Columns: q, init, eps,
    seed, step, token variance (as a share of that at the start), spread (of the bank, in token standard deviations at
    the start), usage (by argmax) and loss. 100 tokens, K = 4, lr 0.1. Claims D12 and D14; chapter 6.
    """
    cases = list(itertools.product(assignments, inits, ratios, seeds))
    draws = [torch.Generator().manual_seed(seed) for *_, seed in cases]
    tokens = torch.stack([four_blobs(100, seed) for *_, seed in cases])
    layers = [torch.eye(2, dtype=torch.float64).repeat(len(cases), 1, 1)]
    if hidden:
        tokens = torch.cat([tokens, torch.ones_like(tokens[..., :1])], -1)  # for the biases
        shapes = [(hidden, 3), (2, hidden)]
        layers = [torch.stack([normal(one, generator=draw) / one[1] ** 0.5 for draw in draws]) for one in shapes]
    encoded = layer_states(layers, tokens.mT)[-1].mT
    banks = [
        draw_prototypes(z, 4, generator=draw) if init == "data" else 0.1 * normal(4, 2, generator=draw)
        for (_, init, *_), z, draw in zip(cases, encoded, draws)
    ]
    eps = torch.tensor([ratio for _, _, ratio, _ in cases], dtype=torch.float64)
    heat, fixed = torch.full_like(eps, temperature), torch.tensor([q == "detached" for q, *_ in cases])
    tokens, banks, heat, eps, fixed = (one.to(device) for one in (tokens, torch.stack(banks), heat, eps, fixed))
    units = [token_variance(z) for z in encoded]
    layers, rows = [layer.to(device) for layer in layers], []
    for step, now, prototypes in progress(
        joint_descent(tokens, layers, banks, heat, eps, fixed, max(horizons), adam=adam)
    ):
        for case, z, bank, unit in zip(cases, now, prototypes, units) if step in horizons else ():
            used, loss = usage(dense.assign(z, bank, temperature)), dense.decompose(z, bank, temperature).total.item()
            rows.append((*case, step, token_variance(z) / unit, spread(bank) / unit**0.5, used, loss))
    names = ["q", "init", "eps", "seed", "step", "token variance", "spread", "usage", "loss"]
    return pd.DataFrame(rows, columns=names)


def race(
    seed: int, temperatures: Sequence[float], ratios: Sequence[float], size: float = 0.1, steps: int = 2000
) -> tuple[Tensor, Tensor]:
    """Which jointly trained runs survive a small start, q attached: the token variance (T, eps) after `steps`, as a
    share of that at the start, and the predicted threshold in eps for each T, the latter in units of T_c.

    (r - 1 - log r) / (2 K lambda log(s/d)), with r = T_c/T, lambda the largest variance of the tokens, s = sqrt(T/4)
    the standard deviation at which growth ends, d that of the bank at the start, all along the leading direction.
    Four blobs, centred; K = 4; linear encoder. Source: ours; chapter 6.
    """
    tokens, generator = four_blobs(100, seed), torch.Generator().manual_seed(seed)
    tokens, bank = tokens - tokens.mean(0), size * normal(4, 2, generator=generator)
    values, vectors = torch.linalg.eigh(tokens.mT @ tokens / len(tokens))
    heat = 4 * values[-1] * torch.tensor(temperatures, dtype=torch.float64)
    r, d = 4 * values[-1] / heat, ((bank - bank.mean(0)) @ vectors[:, -1]).square().mean().sqrt()
    threshold = (r - 1 - r.log()) / (2 * len(bank) * values[-1] * ((heat / 4).sqrt() / d).log())
    eps, runs = torch.tensor(ratios, dtype=torch.float64).repeat(len(heat)), len(heat) * len(ratios)
    many, eye, banks = (one.repeat(runs, 1, 1) for one in (tokens, torch.eye(2, dtype=torch.float64), bank))
    attached, heats = torch.zeros(runs, dtype=torch.bool), heat.repeat_interleave(len(ratios))
    for _, encoded, _ in joint_descent(many, [eye], banks, heats, eps, attached, steps):
        last = encoded
    left = last.var(-2, correction=0).sum(-1) / tokens.var(0, correction=0).sum()
    return left.view(len(heat), len(ratios)), threshold


# What guards


def guarded(
    seed: int, weights: Sequence[float], ratios: Sequence[float], steps: int = 400, lr: float = 0.01, device="cpu"
) -> dict[str, Tensor]:
    """Encoder, bank and decoder B trained on E = R + alpha L_q, R = mean |x - B mu|^2, q attached, all linear, T = 1.

    One run for each alpha and eps, from a small bank; B learns at the encoder's rate. Returns records (S, alpha, eps):
    energy (E), task (R), variance (of the tokens), spread (of the bank), gain (the largest singular value of B), and
    best, the smallest R of tokens or of a bank in total collapse: tr cov(x). Claim D13; chapter 6.
    """
    start = 0.1 * normal(4, 2, generator=torch.Generator().manual_seed(seed)).to(device)
    tokens, eye = four_blobs(60, seed).to(device), torch.eye(2, dtype=torch.float64, device=device)
    alpha, eps = (torch.tensor(one, dtype=torch.float64, device=device)[:, None] for one in (weights, ratios))
    leaves = [one.expand(len(alpha), len(eps), -1, -1).clone().requires_grad_() for one in (eye, start, eye)]
    rates, records = (lr * eps[..., None], lr, lr * eps[..., None]), []
    for _ in range(steps + 1):
        encoder, bank, decoder = leaves
        encoded = tokens @ encoder.mT  # (alpha, eps, N, D)
        parts = dense.split(encoded, bank, dense.assign(encoded, bank, 1.0))
        task = (tokens - parts.centroids @ decoder.mT).square().sum(-1).mean(-1)
        energy = task + alpha * parts.total.mean(-1)
        slopes = torch.autograd.grad(energy.sum(), leaves)
        with torch.no_grad():
            variance, size = (one.var(-2, correction=0).sum(-1) for one in (encoded, bank))
            records.append((energy, task, variance, size.sqrt(), torch.linalg.matrix_norm(decoder, 2)))
            for leaf, rate, slope in zip(leaves, rates, slopes):
                leaf -= rate * slope
    names = ("energy", "task", "variance", "spread", "gain")
    series = {name: torch.stack(one).detach() for name, one in zip(names, zip(*records))}
    return series | {"best": tokens.var(0, correction=0).sum()}


def half_lives(tokens: Tensor, bank: Tensor, temperature: float, optimiser, steps: int = 400) -> list[int]:
    """Steps until each prototype, moved by 0.3 along the first axis, has come half the way back to `bank` (K, D)."""
    moved = (bank + 0.3 * torch.eye(bank.shape[-1], dtype=bank.dtype, device=bank.device)[0]).requires_grad_()
    descent, far = optimiser([moved]), torch.zeros(len(bank), device=bank.device)
    for _ in range(steps):
        descent.zero_grad()
        dense.decompose(tokens, moved, temperature, detach_assignment=True).total.backward()
        far += (moved.detach() - bank).norm(dim=-1) > 0.15
        descent.step()
    return far.int().tolist()
