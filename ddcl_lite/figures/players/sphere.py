"""The sphere player: tokens on S^2 that flow in the browser."""

import numpy as np

from ..spheres import spheres
from ..style import COLOURS
from .player import Player, array, between

KERNELS = ("usa", "rotary", "rotary-qk", "toeplitz", "prompts")
MOST, FULL_TURN = 256, 2 * np.pi
HALF_TURNS = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])  # diagonals of four rotations


class Sphere(Player):
    """Tokens on S^2 under one of five kernels, live: the library's drift, and its Runge-Kutta step of order 4.

    path is what `integrate` returned for this kernel: its first state is where the player starts, its last stands in
    the static figure. times (S,), tokens (S, n, 3) of unit vectors, n <= 256, labels (n,) in [0, 2 pi), or None for a
    ring, which plain attention does not show. With xi for a label, kernel is "usa": `Exponential(beta)`; "rotary":
    `Rotary(beta, [1.0])`, angle xi; "rotary-qk": `RotaryQueriesKeys(beta, [1.0])`; "toeplitz":
    `Toeplitz(beta, lambda d: offset + torch.cos(d))`; "prompts": `Gauge(beta, half_turns)`. beta in [0.5, 8], offset in
    [-0.5, 1].
    Raises ValueError naming the argument. Chapters 11 and 13 to 16.
    """

    name = "sphere"

    def __init__(self, path, kernel: str, beta: float, caption: str, offset: float = 0.0):
        super().__init__(caption)
        if kernel not in KERNELS:
            raise ValueError(f"kernel: expected one of {', '.join(KERNELS)}, got {kernel!r}")
        self.kernel = kernel
        self.beta, self.offset = between("beta", beta, 0.5, 8), between("offset", offset, -0.5, 1)
        self.tokens = array("tokens", path.tokens, None, None, 3)
        steps, count, _ = self.tokens.shape
        self.times = array("times", path.times, steps)
        lengths = np.linalg.norm(self.tokens, axis=-1)
        if np.abs(lengths - 1).max() > 1e-4:
            raise ValueError(
                f"tokens: expected unit vectors, got one of length {lengths.flat[np.abs(lengths - 1).argmax()]:.4g}"
            )
        if count > MOST:
            raise ValueError(f"tokens: expected at most {MOST} for a browser, got {count}")
        ring = np.arange(count) * FULL_TURN / count
        self.labelled = kernel != "usa" or path.labels is not None
        self.labels = ring if path.labels is None else array("labels", path.labels, count)
        if self.labels.min() < 0 or self.labels.max() >= FULL_TURN:
            raise ValueError(
                f"labels: expected angles in [0, 2 pi), got {self.labels.min():.4g} to {self.labels.max():.4g}"
            )

    def data(self) -> dict:
        return {
            "kernel": self.kernel,
            "beta": self.beta,
            "offset": self.offset,
            "tokens": np.round(self.tokens[0], 15).ravel().tolist(),
            "labels": np.round(self.labels, 12).tolist(),
            "labelled": self.labelled,
            "halfTurns": HALF_TURNS.tolist(),
            "colours": list(COLOURS),
        }

    def picture(self):
        values = prompt(self.labels) if self.kernel == "prompts" else self.labels / FULL_TURN if self.labelled else None
        first, last, time = self.tokens[0], self.tokens[-1], self.times[-1]
        states = {"start": first, f"time {time:.3g}" if time < 100 else f"time {time:.0f}": last}
        if self.kernel in ("rotary", "rotary-qk", "prompts"):
            states["there, in the gauge frame"] = self.turned(last)
        lengths = "; ".join(f"{name}, {np.linalg.norm(x.mean(0)):.3f}" for name, x in states.items())
        alt = (
            f"{len(first)} tokens on a sphere, kernel {self.kernel}, beta = {self.beta:g}. Resultant length: {lengths}."
        )
        return spheres({name: (x, values) for name, x in states.items()}), alt

    def turned(self, x):
        """G x, the tokens in the gauge frame."""
        if self.kernel == "prompts":
            return HALF_TURNS[prompt(self.labels)] * x
        cos, sin = np.cos(self.labels), np.sin(self.labels)
        return np.stack([cos * x[:, 0] - sin * x[:, 1], sin * x[:, 0] + cos * x[:, 1], x[:, 2]], -1)


def prompt(labels) -> np.ndarray:
    """The number of the quarter of the ring in which a label lies: 0 to 3."""
    return np.floor(np.asarray(labels) / (FULL_TURN / 4) + 1e-9).astype(int) % 4


def half_turns(labels):
    """The four prompts: labels (n,) in [0, 2 pi) -> matrices (n, 3, 3), for `Gauge`.

    A quarter of the ring each has the identity and the half-turns about the three axes. Chapter 15.
    """
    return labels.new_tensor(HALF_TURNS[prompt(labels.cpu())]).diag_embed()
