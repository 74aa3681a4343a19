"""Which kernels collapse: random couplings, the ring with a = c + cos, and where its starts end (chapter 16)."""

import math
from collections.abc import Callable, Iterable, Sequence

import pandas as pd
import torch
from scipy.optimize import brentq
from torch import Tensor

from ..meanfield import dense
from ..meanfield.coupled import Coupled, Toeplitz
from ..meanfield.flow import integrate
from ..meanfield.maximizers import latitude_balance, latitude_circle, latitude_energy, signed_laplacian
from ..meanfield.sphere import exponential, ring, shaken, uniform

KINDS = ["consensus", "latitude circle", "great circle", "other"]


def cosine(beta: float, mean: float | Tensor = 0.0) -> Toeplitz:
    """The kernel with a = c + cos(xi - zeta), `mean` = c: it changes sign for -1 < c < 1.

    A tensor (..., 1, 1) of means gives each cloud its own.
    """
    return Toeplitz(beta, lambda difference: mean + difference.cos())


def local_bias(beta: float, rate: float = 5.0) -> Toeplitz:
    """The distance bias a = exp(-rate times the distance of the labels on the circle), in radians: never negative."""
    return Toeplitz(beta, lambda difference: torch.exp(-rate * difference.cos().clamp(-1, 1).acos()))


def coupled(beta: float, couplings: Tensor) -> Coupled:
    """The kernel with the matrices couplings (..., n, n), one for each cloud of tokens; labels are arange(n)."""
    return Coupled(beta, lambda labels, others: couplings[..., labels, others])


def random_couplings(count: int, size: int, least: Tensor, seed: int = 0) -> Tensor:
    """Symmetric normal couplings (count, n, n), shifted so that the signed Laplacian's lowest eigenvalue is `least`.

    The lowest on vectors of sum 0: constants always have 0. Adding s to every entry adds s n to it. least (count,) is
    negative, too, if asked for; float64, drawn on the CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
    drawn = (drawn + drawn.mT) / 2
    return drawn + ((least - lowest(drawn)[0]) / size)[:, None, None]


def lowest(couplings: Tensor) -> tuple[Tensor, Tensor]:
    """The signed Laplacian's least eigenvalue off the constants (...,), and its unit eigenvector (..., n)."""
    basis = off_constants(couplings.shape[-1]).to(couplings)
    values, vectors = torch.linalg.eigh(basis.mT @ signed_laplacian(couplings) @ basis)
    return values[..., 0], vectors[..., 0] @ basis.mT


def off_constants(size: int) -> Tensor:
    """An orthonormal basis of the vectors of sum 0, as columns (n, n - 1)."""
    square = torch.cat([torch.ones(size, 1, dtype=torch.float64), torch.eye(size, dtype=torch.float64)[:, 1:]], 1)
    return torch.linalg.qr(square)[0][:, 1:]


def ring_state(tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Rbar, and the share of a state that latitude circles have: its Fourier modes 0 and 1, |x_0|^2 + 2 |x_1|^2.

    tokens (..., n, D), labels uniform on the ring. A share of 1 means x = A + B cos xi + C sin xi, and unit vectors of
    this form are a latitude circle or a point.
    """
    waves = torch.stack([labels.cos(), labels.sin()]).to(tokens)
    first = (waves @ tokens / len(labels)).square().sum((-2, -1))
    rbar = tokens.mean(-2).norm(dim=-1)
    return rbar, rbar.square() + 2 * first


def kinds(tokens: Tensor, labels: Tensor, near: float = 0.01) -> list[str]:
    """What each final state of a batch (S, n, D) is: one of KINDS, by `ring_state`."""
    names = []
    for rbar, share in zip(*(each.tolist() for each in ring_state(tokens, labels))):
        circle = "great circle" if rbar < 0.05 else "latitude circle"
        names.append("other" if share < 1 - near else "consensus" if rbar > 1 - near else circle)
    return names


def contest(couplings: Tensor, beta: float, dim: int, starts: int = 4, time: float = 20.0, seed: int = 0) -> Tensor:
    """E of consensus, the best E of random states, and the best E after they have ascended for `time`: (R, 3).

    One row per coupling (R, n, n); `starts` uniform states of n tokens in `dim` dimensions each. Claim U11.
    """
    runs, size, _ = couplings.shape
    kernel = coupled(beta, couplings[:, None])
    tokens = uniform(runs, starts, size, dim, seed=seed, device=couplings.device)
    labels = torch.arange(size, device=couplings.device)
    energy = integrate(kernel, tokens, labels, time, tolerance=1e-2, states=2).energy  # (2, R, starts)
    consensus = couplings.mean((-2, -1)) / (2 * beta)
    return torch.stack([consensus, *energy.amax(-1)], -1)


def displaced(couplings: Tensor, beta: float, dim: int, size: float = 1e-2) -> Tensor:
    """What E gains when consensus is displaced along the signed Laplacian's lowest eigenvector, and its prediction.

    The tokens move by `size` times the unit eigenvector, all in one direction; the second variation predicts a gain of
    -size^2 lambda / (2 n^2). couplings (R, n, n) -> (R, 2). Claim U11.
    """
    count, n = couplings.shape[:2]
    values, vectors = lowest(couplings)
    tokens = torch.zeros(count, n, dim, dtype=couplings.dtype, device=couplings.device)
    tokens[..., 0] = 1
    push = torch.zeros_like(tokens)
    push[..., 1] = size * vectors
    energy = coupled(beta, couplings).energy(exponential(tokens, push), torch.arange(n, device=couplings.device))
    gain = energy - couplings.mean((-2, -1)) / (2 * beta)
    return torch.stack([gain, -(size**2) * values / (2 * n**2)], -1)


def first_unstable(dim: int, modes: int = 1, mean: float = 0.0, count: int = 16, bracket=(1.3, 1.9)) -> float:
    """The beta at which a great circle of labelled tokens gets its first `modes` unstable displacements.

    A root of `dense.rates`, the second variation as written, for a = c + cos and `count` labels: from 16 on the sums
    over the ring are integrals to 7 digits. dim = 2 leaves only displacements within the plane. It
    counts displacements, and does not ask which they are.
    Raises ValueError for another dim than 2 or 3, and where the bracket holds no root.
    """
    if dim not in (2, 3):
        raise ValueError(f"dim: expected 2 or 3, got {dim}")
    labels = ring(count)
    circle = latitude_circle(labels)[:, :dim].contiguous()

    def unstable(beta):
        return dense.rates(cosine(beta, mean), circle, labels)[modes - 1].item() - 1e-8

    low, high = map(unstable, bracket)
    if not low < 0 < high:
        raise ValueError(f"bracket: expected a threshold inside, got rates {low:.2g} and {high:.2g} at {bracket}")
    return brentq(unstable, *bracket, xtol=1e-6)


def consensus_threshold(
    beta: float, dim: int = 3, count: int = 16, time: float = 100.0, seed: int = 0, device="cpu"
) -> tuple[float, float]:
    """The c below which a + cos leaves consensus, by simulation: (low, high), 0.0023 apart.

    Tokens next to consensus (1e-4) flow for `time`; they leave if their variance grows over the second half, or is no
    longer small. 22 values of c at a time, two rounds; the search begins between 0 and 1 and knows no eigenvalue.
    Raises ValueError if all leave or all return.
    """
    labels, low, high = ring(count, device), 0.0, 1.0
    together = torch.eye(dim, dtype=torch.float64, device=device)[0].expand(count, -1)
    start = shaken(together, 1e-4, seed)
    for _ in range(2):
        means = torch.linspace(low, high, 22, dtype=torch.float64, device=device)
        flow = integrate(cosine(beta, means[:, None, None]), start.expand(22, -1, -1), labels, [time / 2, time])
        _, half, end = (x - x.mean(-2, keepdim=True) for x in flow.tokens)
        half, end = (each.square().sum(-1).mean(-1) for each in (half, end))
        leaves = (end > half) | (end > 1e-4)
        first = int(leaves.long().cumprod(0).sum())  # the first c that returns
        if not 0 < first < 22:
            raise ValueError(
                f"time: no border within {low:g} <= c <= {high:g}, since all {'leave' if first else 'return'}"
            )
        low, high = means[first - 1].item(), means[first].item()
    return low, high


def settled_balance(
    means: Sequence[float], beta: float, count: int = 16, time: float = 2000.0, seed: int = 0, device="cpu"
) -> tuple[list[float], list[float]]:
    """Where tokens come to rest that start next to a latitude circle at height 0.5: (beta (1 - Rbar^2), share) per c.

    share: see `ring_state`. `maximizers.latitude_balance(c)` predicts the first where it is below beta. Each token is
    first shaken by about 0.03 radians.
    """
    labels = ring(count, device)
    start = shaken(latitude_circle(labels, 0.5).expand(len(means), -1, -1), 0.02, seed)
    kernel = cosine(beta, torch.tensor(means, dtype=torch.float64, device=device)[:, None, None])
    end = integrate(kernel, start, labels, [time], tolerance=1e-3).tokens[-1]
    rbar, share = ring_state(end, labels)
    return (beta * (1 - rbar.square())).tolist(), share.tolist()


def outcomes(
    kernel: Coupled, labels: Tensor, runs: int = 24, time: float = 1500.0, dim: int = 3, seed: int = 0
) -> pd.DataFrame:
    """The different final states of `runs` uniform starts: how many end in each, and what it is. Highest energy first.

    Two final states count as one if their energies agree to 1e-5 of the highest. One of each then flows on for 2,000
    more, a thousand times as accurately, to come to rest. Columns: starts, state (see `kinds`), E (library unit), Rbar,
    "top rate", the largest growth rate of a small displacement with those of rotations set aside (negative: a strict
    local maximum up to rotation), "off plane", the root-mean-square distance from the best plane through the centre,
    speed (the largest of a token: 0 at rest), and tokens (n, D), turned to their principal axes.
    """
    start = uniform(runs, len(labels), dim, seed=seed, device=labels.device)
    flow = integrate(kernel, start, labels, [time], tolerance=1e-3)
    first, starts = different(flow.energy[-1])
    ends = integrate(kernel, flow.tokens[-1][first], labels, [2000.0], tolerance=1e-6).tokens[-1]
    energy, speed = kernel.energy(ends, labels), kernel.drift(ends, labels).norm(dim=-1).amax(-1)
    names, rows = kinds(ends, labels), []
    for each, count in zip(*different(energy, starts)):
        end = ends[each]
        axes = torch.linalg.eigh(torch.cov(end.T, correction=0))[1]
        row = {"starts": int(count), "state": names[each], "E": energy[each].item(), "Rbar": end.mean(0).norm().item()}
        row["top rate"] = top_rate(kernel, end, labels)
        row["off plane"] = torch.linalg.svdvals(end)[2:].norm().item() / math.sqrt(len(labels))
        rows.append(row | {"speed": speed[each].item(), "tokens": (end @ axes.flip(1)).cpu()})
    return pd.DataFrame(rows)


def different(energy: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Where in energy (S,) its different values first occur, the highest first, and how many `starts` (S,) share each.

    Neighbours that differ by up to 1e-5 of the highest count as equal. starts: one each unless given.
    """
    order = energy.argsort(descending=True)
    ordered, starts = energy[order], torch.ones_like(order) if starts is None else starts[order]
    new = ordered.diff(prepend=ordered.new_tensor([math.inf])) < -1e-5 * ordered[0].abs()
    return order[new], starts.new_zeros(int(new.sum())).index_add(0, new.cumsum(0) - 1, starts)


def returning(
    kernel: Coupled, state: Tensor, labels: Tensor, sizes: Sequence[float], runs: int = 8, seed: int = 0
) -> list[float]:
    """The share of `runs` shaken copies of a state (n, D) that flow back to it, for each size of the shaking.

    Each token moves along the sphere by normal noise of `sizes` radians per direction; back means the same energy to
    1e-6 of it after a library time of 1000.
    """
    start = torch.stack([shaken(state.expand(runs, -1, -1), size, seed) for size in sizes])  # (sizes, runs, n, D)
    energy = integrate(kernel, start, labels, [1000.0], tolerance=1e-2).energy[-1]
    aim = kernel.energy(state, labels)
    return ((energy - aim).abs() < 1e-6 * aim.abs()).double().mean(-1).tolist()


def top_rate(kernel: Coupled, tokens: Tensor, labels: Tensor) -> float:
    """The largest growth rate at an equilibrium (n, D) when the zeros that rotations cause are set aside.

    Rotations of all tokens are D (D - 1)/2 displacements, fewer where they move no token; that many of the rates that
    are nearest to 0 are left out.
    """
    rates = dense.rates(kernel, tokens, labels)
    dim = tokens.shape[-1]
    fixed = dim - int(torch.linalg.matrix_rank(tokens, rtol=1e-6))  # directions without tokens
    moved = (dim * (dim - 1) - fixed * (fixed - 1)) // 2
    return rates[rates.abs().argsort()[moved:]].max().item()


def predicted(beta: float, mean: float) -> float:
    """E of the best circle for a = c + cos: consensus from c = 1/2 on, else a latitude circle or the great one."""
    if mean >= 0.5:
        return mean / (2 * beta)
    return latitude_energy(beta, math.sqrt(max(0.0, 1 - latitude_balance(mean) / beta)), mean)


def diagram(
    means: Sequence[float],
    betas: Sequence[float],
    starts: int = 8,
    count: int = 24,
    time: float = 400.0,
    seed: int = 0,
    device="cpu",
    progress: Callable[[Iterable], Iterable] = iter,
) -> pd.DataFrame:
    """Where uniform starts on S^2 end for a = c + cos on a ring: one row per beta and c, one flow per beta.

    Columns: beta, c, best (the kind of the final state with the highest energy), agree (the share of starts that end in
    that kind), Rbar and energy (of the best), lead (of its energy over `predicted`).
    """
    labels, rows = ring(count, device), []
    each = torch.tensor(means, dtype=torch.float64, device=device)[:, None, None, None]
    tokens = uniform(len(means), starts, count, 3, seed=seed, device=device)
    for beta in progress(betas):
        flow = integrate(cosine(beta, each), tokens, labels, [time], tolerance=3e-3)
        for mean, ends, energy in zip(means, flow.tokens[-1], flow.energy[-1]):
            names, best = kinds(ends, labels), int(energy.argmax())
            agree = names.count(names[best]) / starts
            row = {"beta": beta, "c": mean, "best": names[best], "agree": agree, "energy": energy[best].item()}
            rows.append(row | {"Rbar": ends[best].mean(0).norm().item(), "lead": row["energy"] - predicted(beta, mean)})
    return pd.DataFrame(rows)
