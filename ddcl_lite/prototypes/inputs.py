"""What every function of this half accepts, checked in one place, and how a mask is read."""

import math

import torch
from torch import Tensor


def check_tokens(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Return the tokens (..., N, D) with masked positions set to 0, so that whatever stood there is gone.

    Raises ValueError: `tokens` is no floating-point tensor of at least two dimensions, or has N = 0 or D = 0;
    `mask` is not boolean or not of shape (..., N).
    """
    if not isinstance(tokens, Tensor) or not tokens.is_floating_point() or tokens.dim() < 2:
        raise ValueError(f"tokens: expected a floating-point tensor of shape (..., N, D), got {_describe(tokens)}")
    if tokens.shape[-2] == 0 or tokens.shape[-1] == 0:
        raise ValueError(f"tokens: expected at least one token and one feature, got shape {tuple(tokens.shape)}")
    if mask is None:
        return tokens
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != tokens.shape[:-1]:
        expected = f"a bool tensor of shape {tuple(tokens.shape[:-1])}"
        raise ValueError(f"mask: expected {expected} (True = a real token), got {_describe(mask)}")
    return torch.where(mask[..., None], tokens, 0)


def check_bank(prototypes: Tensor, tokens: Tensor) -> None:
    """Raise ValueError unless `prototypes` is (..., K, D) with K > 0, the D of tokens, and leading dims that fit."""
    if not isinstance(prototypes, Tensor) or not prototypes.is_floating_point() or prototypes.dim() < 2:
        raise ValueError(
            f"prototypes: expected a floating-point tensor of shape (..., K, D), got {_describe(prototypes)}"
        )
    if prototypes.shape[-2] == 0:
        raise ValueError(f"prototypes: expected K > 0 prototypes, got shape {tuple(prototypes.shape)}")
    if prototypes.shape[-1] != tokens.shape[-1]:
        raise ValueError(
            f"prototypes: expected D = {tokens.shape[-1]} features as in tokens, got D = {prototypes.shape[-1]}"
        )
    leading = zip(reversed(prototypes.shape[:-2]), reversed(tokens.shape[:-2]))
    if any(a != b and a != 1 and b != 1 for a, b in leading):
        raise ValueError(
            f"prototypes: leading dimensions {tuple(prototypes.shape[:-2])} do not broadcast with those of tokens, "
            f"{tuple(tokens.shape[:-2])}"
        )


def check_one_bank(prototypes: Tensor, tokens: Tensor) -> None:
    """Raise ValueError unless `prototypes` is one bank (K, D) that fits the tokens."""
    check_bank(prototypes, tokens)
    if prototypes.dim() != 2:
        raise ValueError(f"prototypes: expected one bank (K, D), got shape {tuple(prototypes.shape)}")


def check_temperature(temperature: float | Tensor, *shapes: tuple[int, ...]) -> float | Tensor:
    """Return the temperature as a float, or the tensor as it is.

    Raises ValueError unless it is finite and > 0 (compiled code does not look inside tensors), and, for a tensor,
    unless its shape broadcasts to the leading dimensions, those to which `shapes` broadcast.
    """
    if isinstance(temperature, Tensor):
        lead = torch.broadcast_shapes(*shapes)
        fits = len(temperature.shape) <= len(lead)
        fits = fits and all(a in (1, b) for a, b in zip(reversed(temperature.shape), reversed(lead)))
        if not fits:
            shape = tuple(temperature.shape)
            raise ValueError(
                f"temperature: expected a number, or a shape that broadcasts to {tuple(lead)}, got {shape}"
            )
        valid = torch.compiler.is_compiling() or bool(((temperature > 0) & (temperature < math.inf)).all())
    else:
        try:
            temperature = float(temperature)
        except (TypeError, ValueError):
            raise ValueError(f"temperature: expected a number or a tensor, got {temperature!r}") from None
        valid = 0 < temperature < math.inf
    if not valid:
        raise ValueError(f"temperature: expected a finite number > 0, got {temperature}")
    return temperature


def prepare(tokens: Tensor, prototypes: Tensor, temperature: float | Tensor, mask: Tensor | None):
    """Check all four; return tokens, prototypes and temperature in the working precision (float32 at least), and the
    dtype that PyTorch's type promotion gives to a result.

    A tensor of temperatures has one entry per leading index (one per head, say) and comes back with two more
    dimensions, ready for (..., N, K). A temperature is held above `smallest ** 0.7` of the dtype (3e-27 in float32),
    where tokens of ordinary size take their nearest prototype, so that nothing overflows.
    """
    tokens = check_tokens(tokens, mask)
    check_bank(prototypes, tokens)
    temperature = check_temperature(temperature, tokens.shape[:-2], prototypes.shape[:-2])
    promoted, dtype = torch.promote_types(tokens.dtype, prototypes.dtype), working_dtype(tokens, prototypes)
    floor = torch.finfo(dtype).tiny ** 0.7
    if isinstance(temperature, Tensor):
        temperature = temperature.to(tokens.device, dtype).clamp_min(floor)[..., None, None]
    else:
        temperature = max(temperature, floor)
    return tokens.to(dtype), prototypes.to(dtype), temperature, promoted


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """The precision of sums: float64 if any input is, else float32."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def keep(values: Tensor, mask: Tensor | None) -> Tensor:
    """Set rows (..., N, anything) of masked tokens to 0."""
    return values if mask is None else torch.where(mask[..., None], values, 0)


def mean_over_tokens(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of (..., N) over unmasked tokens and leading dimensions; 0 if there is none."""
    if mask is None:
        return values.sum() / max(values.numel(), 1)
    mask = mask.expand(values.shape)
    return torch.where(mask, values, 0).sum() / mask.sum().clamp_min(1)


def pool(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the sequence: (..., N, D) -> (..., D), over unmasked tokens; 0 if there is none."""
    if mask is None:
        return tokens.mean(-2)
    total = keep(tokens, mask).sum(-2, dtype=working_dtype(tokens))
    return (total / mask.sum(-1, keepdim=True).clamp_min(1)).to(tokens.dtype)


def _describe(value) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
