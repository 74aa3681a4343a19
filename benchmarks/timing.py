"""How the benchmarks measure: in turns, medians, peak memory, and what the machine itself can do."""

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")


def seconds(calls: Sequence[Callable], repeats: int, device: str) -> list[float]:
    """Median seconds of each call. The calls take turns, so that a busy machine slows all; the first turn warms up.
    repeats = 0: one turn, without."""
    if torch.device(device).type == "cuda":
        with torch.cuda.device(device):
            turns = [[on_cuda(call) for call in calls] for _ in range(repeats + 1)]
    else:
        turns = [[on_cpu(call) for call in calls] for _ in range(repeats + 1)]
    return [statistics.median(times) for times in zip(*turns[min(1, repeats) :])]


def on_cpu(call: Callable) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def on_cuda(call: Callable) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def peak_bytes(call: Callable, device: str) -> float:
    """Memory that a call needs at its peak, on top of what was there. NaN where neither CUDA nor Linux can tell."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        ctypes.CDLL(None).malloc_trim(0)  # hand back what earlier calls left, so that it is not used again unseen
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
        before = status("VmRSS")
        call()
        return max(0, status("VmHWM") - before)
    except (OSError, AttributeError):
        return float("nan")


def status(field: str) -> int:
    line = next(line for line in STATUS.read_text(encoding="utf-8").splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def machine_rates(device: str, dtype: torch.dtype) -> tuple[float, float]:
    """(multiply-adds x 2 per second of a large matrix product, bytes per second of a copy) in this dtype."""
    size = 8192 if torch.device(device).type == "cuda" else 1024
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.empty_like(a)
    product, copy = seconds([lambda: a @ a, lambda: b.copy_(a)], 5, device)
    return 2 * size**3 / product, 2 * a.numel() * a.element_size() / copy
