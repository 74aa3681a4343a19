"""How the book draws: one style, one way to show a picture. Takes arrays and figures, knows nothing else of ours."""

from .explore import explore
from .players import Prototypes, Sphere, Transition
from .plots import intervals, parallel_axis, transition
from .show import show
from .spheres import spheres
from .style import COLOURS, MARKERS, subplots

__all__ = [
    "COLOURS",
    "MARKERS",
    "Prototypes",
    "Sphere",
    "Transition",
    "explore",
    "intervals",
    "parallel_axis",
    "show",
    "spheres",
    "subplots",
    "transition",
]
