"""The benchmarks run at small size; their numbers are for readers, never asserted."""

import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture
def timing(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import timing

    return timing


def test_what_the_benchmarks_measure_with(timing):
    slow, fast = timing.seconds([lambda: time.sleep(0.02), lambda: None], 3, "cpu")
    assert slow >= 0.02 > fast
    used = timing.peak_bytes(lambda: torch.zeros(2**24).add_(1), "cpu")  # large beside what other threads allocate
    assert math.isnan(used) or used == pytest.approx(2**26, rel=0.1)


def test_bfloat16_is_the_same_computation_rounded(timing):
    import prototypes

    tokens, bank, temperature = prototypes.scene(2, 300, 64, 32, "cpu")
    for shift in (0.0, 5.0):
        rounded = prototypes.in_bfloat16(tokens + shift, bank + shift, temperature)
        exact = prototypes.with_products(tokens.double(), bank.double(), temperature) + shift
        assert (rounded - exact).norm() / (exact - shift).norm() < 0.05


CONTESTANTS = {
    "prototypes": ("fused", "as written", "cdist", "two products", "MultiheadAttention", "VectorQuantize", "N^"),
    "meanfield": ("fused", "n x n", "KeOps", "Harmonic", "n^"),
    "codebooks": ("VQ, EMA, revival", "soft, cooled", "VectorQuantize", "SimVQ", "FSQ", "perplexity / K"),
}


@pytest.mark.parametrize("name", CONTESTANTS)
def test_the_benchmarks_compare_all_contestants(name):
    command = [sys.executable, f"benchmarks/{name}.py", "--small", "--repeats", "1", "--device", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for contestant in CONTESTANTS[name]:
        assert contestant in done.stdout, contestant
