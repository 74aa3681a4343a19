"""Figures that one can touch: each computes in the browser what the library computes."""

from .sphere import Sphere, half_turns

__all__ = ["Sphere", "half_turns"]
