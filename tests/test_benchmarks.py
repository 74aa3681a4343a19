"""The benchmarks run at small size; their numbers are for readers, never asserted."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_prototype_benchmark_compares_all_contestants():
    command = [sys.executable, "benchmarks/prototypes.py", "--small", "--repeats", "1", "--device", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("fused", "as written", "cdist", "two products", "MultiheadAttention", "VectorQuantize", "N^"):
        assert name in done.stdout, name
    assert "nan" not in done.stdout.lower()
