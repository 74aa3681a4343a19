"""Run every problem set with Colab's versions, solved and unsolved: `make colab`.

The notebooks are made here, and executed by a Python with the versions of tests/colab-constraints.txt that knows
nothing of this checkout but ddcl_lite. Solved, no cell may fail. Unsolved, cells fail only because an answer is
missing.
"""

import subprocess
import sys
from pathlib import Path

import nbformat
from nbgrader.preprocessors import ClearHiddenTests

from exercises.release import RELEASE
from exercises.sets import PUBLIC, all_sets

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "_build" / "colab"
MISSING = {"NotImplementedError", "NameError"}


def execute(programs: Path, path: Path, *options: str) -> None:
    """Execute a notebook in place. Raises CalledProcessError where it fails."""
    command = [programs.resolve() / "jupyter-execute", "--timeout=300", "--inplace", *options, path.name]
    subprocess.run(command, cwd=OUT, check=True)


def errors(path: Path) -> list[str]:
    cells = nbformat.read(path, 4).cells
    return [out.ename for cell in cells for out in cell.get("outputs", []) if out.output_type == "error"]


def main(programs: Path) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for one in all_sets():
        solved, _ = ClearHiddenTests().preprocess(one.notebook(PUBLIC), {})
        path = OUT / f"{one.name}-solved.ipynb"
        nbformat.write(solved, path)
        execute(programs, path)
        path = OUT / f"{one.name}.ipynb"
        path.write_bytes((RELEASE / path.name).read_bytes())
        execute(programs, path, "--allow-errors")
        found = errors(path)
        if not found or set(found) - MISSING:
            sys.exit(f"{one.name}, unsolved: expected only {MISSING}, got {found}")
        print(f"{one.name}: runs solved; unsolved, {len(found)} cells ask for an answer")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
