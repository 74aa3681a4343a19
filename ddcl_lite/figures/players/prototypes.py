"""The prototypes player: tokens and a bank in the plane, the forces of the loss and of its two parts."""

import numpy as np

from ..style import COLOURS, INK, subplots
from .player import Player, array, between

TERMS = {"V": "V", "L_OLS": r"L_{\mathrm{OLS}}", "L_q": "L_q"}  # in the order of the book's colours
MOST_TOKENS, MOST_PROTOTYPES = 400, 12


class Prototypes(Player):
    """Tokens and prototypes in the plane that one can drag; one term of the loss moves the bank, in steps of 0.5.

    d_nk = |z_n - p_k|^2, q_nk = softmax_k(-d_nk / T), mu_n = sum_k q_nk p_k
    L_q = mean_n sum_k q_nk d_nk = L_OLS + V = mean_n |z_n - mu_n|^2 + mean_n sum_k q_nk |p_k - mu_n|^2

    tokens (n, 2), n <= 400, not all equal; prototypes (K, 2), K <= 12. ratio = T/T_c in [0.05, 3], kept when tokens are
    moved: T_c = critical * lambda_max(C), critical 4 or 2. term, the one that is descended: "L_q", "L_OLS" or "V",
    with q held fixed in its gradient if detach_assignment. What is computed is what `dense.decompose`,
    `experiments.forces` and `critical_temperature` compute. Raises ValueError naming the argument. Chapters 4 and 5.
    """

    name = "prototypes"

    def __init__(
        self,
        tokens,
        prototypes,
        ratio: float,
        caption: str,
        detach_assignment: bool = False,
        term: str = "L_q",
        critical: int = 4,
    ):
        super().__init__(caption)
        self.tokens = array("tokens", tokens, None, 2)
        self.prototypes = array("prototypes", prototypes, None, 2)
        for name, points, most in (
            ("tokens", self.tokens, MOST_TOKENS),
            ("prototypes", self.prototypes, MOST_PROTOTYPES),
        ):
            if len(points) > most:
                raise ValueError(f"{name}: expected at most {most} for a browser, got {len(points)}")
        if not np.ptp(self.tokens, axis=0).any():
            raise ValueError("tokens: expected tokens that differ, got equal ones, which leave no unit of temperature")
        self.ratio = between("ratio", ratio, 0.05, 3)
        if not isinstance(detach_assignment, bool):
            raise ValueError(f"detach_assignment: expected True or False, got {detach_assignment!r}")
        if term not in TERMS:
            raise ValueError(f"term: expected one of {', '.join(TERMS)}, got {term!r}")
        if critical not in (2, 4):
            raise ValueError(f"critical: expected 4 or 2, T_c in units of lambda_max, got {critical!r}")
        self.detach_assignment, self.term, self.critical = detach_assignment, term, int(critical)

    def data(self) -> dict:
        return {
            "tokens": digits(self.tokens),
            "prototypes": digits(self.prototypes),
            "ratio": self.ratio,
            "held": self.detach_assignment,
            "term": self.term,
            "critical": self.critical,
            "colours": list(COLOURS),
        }

    def measured(self) -> dict:
        """T_c, the loss and its parts in token variances, the forces (K, 2), their rates of opening, and the spread."""
        covariance = np.cov(self.tokens.T, bias=True)
        unit = self.critical * np.linalg.eigvalsh(covariance)[-1]
        loss, force = split(self.tokens, self.prototypes, self.ratio * unit, self.detach_assignment)
        centred = self.prototypes - self.prototypes.mean(0)
        size = (centred**2).sum()
        spread, variance = np.sqrt(size / len(centred)), np.trace(covariance)
        # A bank on one point has a size all the same, by rounding, and a rate would divide by it.
        point = spread <= 1e-12 * max(np.sqrt(variance), np.abs(self.prototypes).max())
        return {
            "T_c": unit,
            "loss": {term: value / variance for term, value in loss.items()},
            "force": force,
            "rate": {term: np.nan if point else (f * centred).sum() / size for term, f in force.items()},
            "spread": spread / np.sqrt(variance),
        }

    def picture(self):
        found = self.measured()
        fig, (ax, low) = subplots(2, 1, figsize=(6.4, 5), height_ratios=[9, 1])
        ax.plot(*self.tokens.T, ".", color=COLOURS[4], ms=3, label="tokens")
        ax.plot(*self.prototypes.T, "o", color=INK, ms=5, label="prototypes", zorder=4)
        for (term, symbol), colour in zip(TERMS.items(), COLOURS):
            arrows = {"angles": "xy", "scale_units": "xy", "scale": 0.5, "width": 0.008, "zorder": 3}
            ax.quiver(*self.prototypes.T, *found["force"][term].T, color=colour, label=rf"$-\nabla {symbol}$", **arrows)
        ax.set(aspect="equal", xlabel="feature 1", ylabel="feature 2")
        ax.autoscale_view()
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        left = 0
        for term, colour in (("L_OLS", COLOURS[1]), ("V", COLOURS[0])):
            value = found["loss"][term]
            low.barh(0, value, left=left, color=colour, label=f"${TERMS[term]}$ = {value:.3f}")
            left += value
        low.axvline(1, color=INK, linestyle=":")
        low.set(yticks=[], xlim=(0, max(1.1, 1.05 * left)), xlabel="loss / token variance (dotted: the mean alone)")
        low.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        parts = " + ".join(f"{term} {found['loss'][term]:.3f}" for term in ("L_OLS", "V"))
        rates = ", ".join(f"{term} {rate:.3f}" for term, rate in found["rate"].items())
        opening = (
            "All coincide" if np.isnan(found["rate"]["V"]) else f"Rate at which each force opens the bank: {rates}"
        )
        alt = (
            f"{len(self.tokens)} tokens and {len(self.prototypes)} prototypes in the plane, q "
            f"{'held fixed' if self.detach_assignment else 'attached'}, T = {self.ratio:.2f} T_c, "
            f"T_c = {self.critical} lambda_max = {found['T_c']:.3f}. Loss in token variances: "
            f"{parts} = {found['loss']['L_q']:.3f}. Spread of the bank: {found['spread']:.3f} token sd. {opening}."
        )
        return fig, alt


def split(tokens, bank, temperature: float, detach_assignment: bool):
    """L_q = L_OLS + V and minus their gradients, as dicts of numbers and of arrays (K, 2), the keys those of TERMS.

    -d term / d p_k = -(2/N) sum_n q_nk [a_nk + c_nk (p_k - z_n)], where c = 0 if q is held fixed; `prototypes.js` has
    a and c for each term, and the reason.
    """
    away = bank - tokens[:, None]  # (n, K, 2)
    distances = (away**2).sum(-1)
    weights = np.exp((distances.min(1, keepdims=True) - distances) / temperature)
    weights /= weights.sum(1, keepdims=True)
    centroids = weights @ bank
    off, rest = bank - centroids[:, None], tokens - centroids
    blurs = (off**2).sum(-1)
    each = {"V": (weights * blurs).sum(1), "L_OLS": (rest**2).sum(1), "L_q": (weights * distances).sum(1)}
    direct = {"V": off, "L_OLS": -rest[:, None], "L_q": away}
    answer = {
        "V": each["V"][:, None] - blurs,
        "L_OLS": 2 * (rest[:, None] * off).sum(-1),
        "L_q": each["L_q"][:, None] - distances,
    }
    force = {}
    for term in TERMS:
        through = 0 if detach_assignment else answer[term][..., None] / temperature * away
        force[term] = -2 * (weights[..., None] * (direct[term] + through)).mean(0)
    return {term: float(values.mean()) for term, values in each.items()}, force


def digits(points) -> list:
    """Pairs with 12 significant digits."""
    return [[float(f"{value:.12g}") for value in point] for point in points]
