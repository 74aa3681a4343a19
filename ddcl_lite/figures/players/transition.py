"""The transition player: a recorded descent from next to collapse, at many temperatures, replayed in the browser."""

import numpy as np

from ..style import COLOURS, subplots
from .player import Player, array, between


class Transition(Player):
    """How the bifurcation diagram opens: where prototypes are, at each temperature, as gradient descent goes on.

    What `ddcl_lite.experiments.transition.recording` returns, then a caption. steps (S,), increasing, how many steps
    had been taken; ratios (R,), increasing, temperatures > 0 in one unit, T_c with q attached; banks: a name for each
    recording -> (S, R, K, D), K <= 6; tokens (N, D); critical: for each of these names its T_c in that unit. Drawn is
    the coordinate along the tokens' leading direction, from their mean, in token standard deviations; the spread read
    out is the one of `ddcl_lite.spread`. Raises ValueError naming the argument. Chapters 1 and 5.
    """

    name = "transition"

    def __init__(self, steps, ratios, banks: dict, tokens, critical: dict, caption: str):
        super().__init__(caption)
        self.steps, self.ratios = increasing("steps", steps, 0), increasing("ratios", ratios, 1e-6)
        tokens = array("tokens", tokens, None, None)
        centred = tokens - tokens.mean(0)
        self.unit = np.sqrt((centred**2).sum(1).mean())
        if self.unit == 0:
            raise ValueError("tokens: expected tokens that differ, got equal ones")
        lead = np.linalg.eigh(centred.T @ centred)[1][:, -1]
        lead *= np.sign(lead[np.abs(lead).argmax()])  # an eigenvector's sign is the solver's choice
        if (
            not isinstance(banks, dict)
            or not banks
            or not all(isinstance(name, str) and name.strip() for name in banks)
        ):
            raise ValueError(f"banks: expected a dict from names to recordings, got {banks!r:.60}")
        if not isinstance(critical, dict) or set(critical) != set(banks):
            raise ValueError(f"critical: expected one T_c for each of {', '.join(banks)}, got {critical!r:.60}")
        self.critical = {name: between("critical", critical[name], 1e-6, 1e6) for name in banks}
        self.heights, self.spreads = {}, {}
        count = None  # of prototypes: whatever the first recording has
        for name, bank in banks.items():
            bank = array(f"banks[{name!r}]", bank, len(self.steps), len(self.ratios), count, tokens.shape[1])
            count = bank.shape[2]
            if count > len(COLOURS):
                raise ValueError(f"banks[{name!r}]: expected at most {len(COLOURS)} prototypes, got {count}")
            around = bank - bank.mean(2, keepdims=True)
            self.heights[name] = (bank - tokens.mean(0)) @ lead / self.unit  # (S, R, K)
            self.spreads[name] = np.sqrt((around**2).sum(-1).mean(-1)) / self.unit  # (S, R)

    def data(self) -> dict:
        return {
            "steps": self.steps.astype(int).tolist(),
            "ratios": self.ratios.tolist(),
            "runs": [
                {
                    "name": name,
                    "critical": self.critical[name],
                    "heights": whole(self.heights[name]),
                    "spreads": whole(self.spreads[name]),
                }
                for name in self.heights
            ],
            "colours": list(COLOURS),
        }

    def picture(self):
        fig, axes = subplots(1, len(self.heights), figsize=(7.6, 3.4), sharey=True, squeeze=False)
        words = []
        for ax, (name, heights) in zip(axes[0], self.heights.items()):
            for k, each in enumerate(heights[-1].T):
                ax.plot(self.ratios, each, ".-", color=COLOURS[k], lw=0.6)
            ax.axvline(self.critical[name], color=COLOURS[4], linestyle="--", label="its $T_c$")
            ax.set(title=name, xlabel="T / T_c (q attached)")
            ax.legend(loc="lower right")
            open_at = self.ratios[self.spreads[name][-1] > 0.02]
            words.append(
                f"{name}: T_c at {self.critical[name]:.2f}, spread of the bank {self.spreads[name][-1, 0]:.2f} "
                f"token sd at T = {self.ratios[0]:g}, open up to {open_at.max() if len(open_at) else 0:.2f}"
            )
        axes[0, 0].set_ylabel("leading direction (token sd)")
        alt = f"Prototypes against temperature after {self.steps[-1]:.0f} steps. {'; '.join(words)}."
        return fig, alt


def increasing(name: str, values, least: float) -> np.ndarray:
    """Return the values as an array (any,). Raises ValueError unless they increase from `least` or more."""
    values = array(name, values, None)
    if values[0] < least or (np.diff(values) <= 0).any():
        raise ValueError(
            f"{name}: expected increasing numbers of at least {least:g}, got {np.round(values, 4).tolist()}"
        )
    return values


def whole(values) -> list[int]:
    """The values in units of 1e-7, flat: short, and exact to half of that."""
    return np.round(values * 1e7).astype(int).ravel().tolist()
