"""Figures that one can touch: each computes in the browser what the library computes."""

from .sphere import Sphere

__all__ = ["Sphere"]
