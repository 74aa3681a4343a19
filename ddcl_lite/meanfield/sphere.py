"""The unit sphere S^(D-1): where tokens live, how they may move, and what every function of this half accepts."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

OFF = 1e-4  # how far |x| may be from 1
SALT = 2026  # so that noise drawn after torch.manual_seed(seed) is not parallel to the tokens of the same seed


def uniform(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, device="cpu") -> Tensor:
    """Independent uniform points of the sphere: uniform(n, D) are n of them, uniform(runs, n, D) are so many clouds.

    Normal vectors, normalised. Drawn on the CPU and then moved, so that a seed means the same points on every device.
    float64 unless told otherwise: over a long flow, what P_x leaves of a uniform cloud's pull is small.
    Raises ValueError for D < 2 or an empty shape. Chapter 11.
    """
    if len(shape) == 0 or shape[-1] < 2 or min(shape) < 1:
        raise ValueError(f"shape: expected sizes >= 1 that end with a dimension D >= 2, got {shape}")
    generator = torch.Generator().manual_seed(seed + SALT)
    points = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return F.normalize(points, dim=-1).to(device, dtype)


def shaken(tokens: Tensor, size: float, seed: int = 0) -> Tensor:
    """Each token (..., n, D) moved along the sphere by a normal displacement of standard deviation `size` an axis.

    Drawn on the CPU, so that a seed means the same displacements on every device.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(tokens.shape, generator=generator, dtype=torch.float64).to(tokens)
    return exponential(tokens, tangent(tokens, size * noise))


def ring(count: int, device="cpu") -> Tensor:
    """`count` labels equally spaced over a full turn, 0 <= xi < 2 pi, (count,) in float64."""
    return torch.arange(count, dtype=torch.float64, device=device) * (2 * math.pi / count)


def tangent(tokens: Tensor, vectors: Tensor) -> Tensor:
    """P_x v = v - <x, v> x, the part of v (..., D) along which a token x (..., D) on the sphere can move."""
    return vectors - (tokens * vectors).sum(-1, keepdim=True) * tokens


def exponential(tokens: Tensor, vectors: Tensor) -> Tensor:
    """exp_x(w) = cos|w| x + sin|w| w/|w|: from x along the great circle in direction w, by |w| radians.

    tokens and tangent vectors (..., D); the result is normalised, so that rounding does not add up.
    """
    angle = vectors.norm(dim=-1, keepdim=True)
    return F.normalize(angle.cos() * tokens + torch.sinc(angle / math.pi) * vectors, dim=-1)


def pull_back(tokens: Tensor, vectors: Tensor, velocities: Tensor) -> Tensor:
    """The tangent vector at x that the differential of exp_x at w (`vectors`) carries to a velocity v at exp_x(w).

    Along the great circle lengths stay; across it they shrink by sin|w|/|w|. Undefined at |w| = pi.
    """
    angle = vectors.norm(dim=-1, keepdim=True)
    ahead = vectors / angle.clamp_min(torch.finfo(angle.dtype).tiny)  # the unit vector of w, at x
    arrived = angle.cos() * ahead - angle.sin() * tokens  # and at exp_x(w)
    along = (velocities * arrived).sum(-1, keepdim=True)
    return tangent(tokens, along * ahead + (velocities - along * arrived) / torch.sinc(angle / math.pi))


def check_tokens(tokens: Tensor) -> Tensor:
    """Return tokens (..., n, D) with rows of length 1.

    Raises ValueError unless `tokens` is a float32 or float64 tensor with n >= 1 and D >= 2 whose rows have length 1
    within 1e-4.
    """
    if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.float32, torch.float64) or tokens.dim() < 2:
        raise ValueError(f"tokens: expected a float32 or float64 tensor of shape (..., n, D), got {describe(tokens)}")
    if tokens.shape[-2] < 1 or tokens.shape[-1] < 2:
        raise ValueError(f"tokens: expected n >= 1 tokens of dimension D >= 2, got shape {tuple(tokens.shape)}")
    lengths = tokens.detach().norm(dim=-1)
    off = (lengths - 1).abs()
    if not (off <= OFF).all():  # NaN included
        worst = lengths.flatten()[off.nan_to_num(nan=math.inf).argmax()].item()
        raise ValueError(f"tokens: expected unit vectors (length 1 within {OFF:g}), got one of length {worst:.6g}")
    return tokens


def check_labels(labels: Tensor | None, tokens: Tensor) -> Tensor | None:
    """Return labels on the tokens' device. Raises ValueError unless they are None or one finite label a token.

    A label is a number or a vector of numbers, so `labels` is (n,) or (n, L), an integer or floating-point tensor.
    """
    if labels is None:
        return None
    if not isinstance(labels, Tensor) or labels.dtype == torch.bool or labels.is_complex():
        raise ValueError(f"labels: expected an integer or floating-point tensor (n,), got {describe(labels)}")
    if labels.dim() not in (1, 2) or len(labels) != tokens.shape[-2]:
        expected = f"one label for each of the {tokens.shape[-2]} tokens, shape (n,) or (n, L)"
        raise ValueError(f"labels: expected {expected}, got {describe(labels)}")
    if not torch.isfinite(labels).all():
        raise ValueError("labels: expected finite numbers, got NaN or infinity")
    return labels.to(tokens.device)


def positive(name: str, value) -> float:
    """Return the value as a float. Raises ValueError unless it is a finite number > 0."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name}: expected a number, got {value!r}") from None
    if not 0 < number < math.inf:
        raise ValueError(f"{name}: expected a finite number > 0, got {value}")
    return number


def describe(value) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
