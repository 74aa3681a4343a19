"""Figures that one can touch: each computes in the browser what the library computes."""

from .prototypes import Prototypes
from .sphere import Sphere, half_turns
from .transition import Transition

__all__ = ["Prototypes", "Sphere", "Transition", "half_turns"]
