"""Figures that compute in the browser: without a kernel, on the published page, in Jupyter and in Colab alike."""

import functools
import hashlib
import html
import json
from abc import ABC, abstractmethod
from importlib.resources import files

import matplotlib.pyplot as plt
import numpy as np

from ..explore import own_ids
from ..show import figure_html


class Player(ABC):
    """A static figure, and a script that puts a live one in its place where scripts run.

    A player defines `name` (of its script and of the function in it), `data()` (what the script is given, as JSON) and
    `picture()` -> (fig, alt), the figure for readers without scripts and for print, alt being a sentence with the
    measured values. As the last expression of a cell it shows itself. The script is self-contained, asks nobody for
    anything, and works in a sandboxed frame; where it fails, the static figure stays and the console has the error.
    """

    name: str

    def __init__(self, caption: str):
        if not isinstance(caption, str) or not caption.strip():
            raise ValueError(f"caption: expected a sentence, got {caption!r}")
        self.caption = caption

    @abstractmethod
    def data(self) -> dict:
        """What the script is given."""

    @abstractmethod
    def picture(self):
        """(fig, alt)."""

    def _repr_html_(self) -> str:
        fig, alt = self.picture()
        still = figure_html(fig, self.caption, alt)
        plt.close(fig)
        data = json.dumps(self.data(), allow_nan=False).replace("<", "\\u003c")
        mark = hashlib.sha256((self.name + data + self.caption).encode()).hexdigest()[:12]
        still = own_ids(still, f"p{mark}-")
        call = CALL.replace("MARK", mark).replace("NAME", self.name).replace("DATA", data)
        return (
            f'<div class="ddcl-player" data-player="{mark}">{still}<p>{html.escape(alt)}</p></div>'
            f"<script>(() => {{\n{script(self.name)}\n{call}\n}})()</script>"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.caption!r})"


CALL = """for (const host of document.querySelectorAll('[data-player="MARK"]')) if (!host.player) try {
  host.player = NAME(host, DATA);
} catch (error) {
  host.shadowRoot?.replaceChildren(document.createElement("slot"));
  console.error(error);
}"""


@functools.cache
def script(name: str) -> str:
    """The player's own script after the stage that all share."""
    here = files(__package__)
    return "\n".join((here / f"{each}.js").read_text(encoding="utf-8") for each in ("stage", name))


def array(name: str, values, *shape) -> np.ndarray:
    """Return the values as float64 of this shape, in which None is any size >= 1. Raises ValueError, also for NaN."""
    values = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    try:
        result = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected numbers, got {type(values).__name__}") from None
    fits = len(result.shape) == len(shape) and all(
        size >= 1 if wanted is None else size == wanted for size, wanted in zip(result.shape, shape)
    )
    if not fits:
        expected = ", ".join("any" if wanted is None else str(wanted) for wanted in shape)
        raise ValueError(f"{name}: expected shape ({expected}), got {result.shape}")
    if not np.isfinite(result).all():
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    return result


def between(name: str, value, low: float, high: float) -> float:
    """Return the value as a float. Raises ValueError unless low <= value <= high."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected a number, got {value!r}") from None
    if not low <= number <= high:
        raise ValueError(f"{name}: expected a number from {low:g} to {high:g}, got {value!r}")
    return number
