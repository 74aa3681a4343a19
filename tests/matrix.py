"""Every chapter, run in the ways in which readers run it: `make matrix`, or one of the runs: `make matrix RUN=b`.

a: every cell twice in a row, in an empty folder, with one thread.
b: the chapter twice in one kernel, in a folder that it cannot write to, as an unprivileged user with a new home,
   without a network, with a warm cache and another PYTHONHASHSEED.
c: once, with the versions that Colab has, on its Python.
seeds: the claims of every chapter with seeds 0 to 4.

Prints a line a chapter and a table; exit status 1 if anything failed. The outcome is stored in book/matrix.json, each
run in place of its last outcome, and shown on the provenance page. With --chapters nothing is stored.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import nbformat
from ways import CORES, EXECUTE, NOBODY, ONE_THREAD, ROOT, Way, arrange, clean, facts, last_line, way

from book.provenance import commit, load
from ddcl_lite.claims import CLAIMS, sorted_ids
from ddcl_lite.data import cache_folder

RESULTS = ROOT / "book" / "matrix.json"
COLAB = ROOT / ".venv-colab" / "bin" / "python"
RUNS = ["a", "b", "c", "seeds"]
SEEDS = range(5)


class Result(NamedTuple):
    """How one chapter fared. The note says why it failed, or what it warned of."""

    chapter: str
    passed: bool
    seconds: float
    note: str


def run_notebook(way: Way, path: Path) -> Result:
    """Run one chapter. It fails if a cell does, or if it leaves anything in its folder."""
    with tempfile.TemporaryDirectory(prefix="m") as base:
        notebook, folder, home = (Path(base) / name for name in ("chapter.ipynb", "work", "home"))
        nbformat.write(arrange(nbformat.read(path, as_version=4), way.cells), notebook)
        folder.mkdir()
        environment = clean() | {"DDCL_LITE_CACHE": str(cache_folder())} | way.environment
        if way.locked:
            home.mkdir()
            Path(base).chmod(0o755)
            folder.chmod(0o555)
            environment["HOME"] = str(home)
            if os.geteuid() == 0:
                os.chown(home, NOBODY, NOBODY)
        began = time.perf_counter()
        command = [*way.before, str(way.python), str(EXECUTE), str(notebook), str(folder)]
        done = subprocess.run(command, cwd=base, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        left = sorted(os.listdir(folder))
    note = done.stdout.strip()
    if done.returncode and not note:
        said = last_line(done.stderr) or f"exit status {done.returncode}, and nothing said"
        note = f"tests/execute.py: {said}"
    if left:
        note = f"{note}; left in its folder: {', '.join(left)}".removeprefix("; ")
    return Result(path.stem, not done.returncode and not left, round(seconds, 1), note)


def run_claims(python: Path, path: Path, ids: list[str]) -> Result:
    """Measure a chapter's claims with every seed. It fails if the evidence for one misses its bounds."""
    notes, began = [], time.perf_counter()
    for seed in SEEDS:
        command = [str(python), "-m", "ddcl_lite.claims", *ids, "--seed", str(seed), "--json"]
        done = subprocess.run(command, cwd=ROOT, env=clean() | ONE_THREAD, capture_output=True, text=True)
        try:
            found = {claim["id"]: claim["supported"] for claim in json.loads(done.stdout)}
        except ValueError:
            notes.append(f"seed {seed}: {last_line(done.stderr) or f'exit status {done.returncode}'}")
            continue
        notes += [f"seed {seed}: {id} not supported" for id in ids if not found.get(id)]
    return Result(path.stem, not notes, round(time.perf_counter() - began, 1), "; ".join(notes))


def run(name: str, chapters: list[Path], python: Path, colab: Path, stamp: dict) -> dict:
    """One run over these chapters, as book/matrix.json has it. Prints a line a chapter."""
    if name == "seeds":
        what = "The claims of the chapter with seeds 0 to 4, one thread."
        by_chapter = {
            path: [id for id in sorted_ids() if CLAIMS[id].chapter == int(path.stem[:2])] for path in chapters
        }
        jobs = [(run_claims, python, path, ids) for path, ids in by_chapter.items() if ids]
    else:
        chosen = way(name, python, colab)
        what, python = chosen.what, chosen.python
        jobs = [(run_notebook, chosen, path) for path in chapters]
    what += f" Wall time, {CORES} chapters at once."
    print(f"\n{name}: {what}", flush=True)
    results, found, pool = [], facts(python), ThreadPoolExecutor(CORES)
    try:
        for future in as_completed([pool.submit(*job) for job in jobs]):
            results.append(future.result())
            print(line(name, results[-1]), flush=True)
    finally:
        pool.shutdown(cancel_futures=True)  # what waits does not start after an interruption
    results = [result._asdict() for result in sorted(results)]
    versions = {"python": found["python"].split()[0], "versions": found["versions"]}
    return {"name": name, "what": what, **stamp, **versions, "results": results}


def line(name: str, result: Result) -> str:
    outcome = "passed" if result.passed else "FAILED"
    return f"{name:6} {result.chapter:20} {outcome} {result.seconds:7.1f} s  {result.note}".rstrip()


def store(done: dict, path: Path) -> None:
    """Put a run in the place of the last one of its name; the others stay."""
    before = load(path)["runs"] if path.exists() else []
    runs = {one["name"]: one for one in [*before, done]}
    text = json.dumps({"runs": [runs[name] for name in sorted(runs, key=order)]}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def order(name: str) -> int:
    return RUNS.index(name)


def table(runs: list[dict]) -> str:
    """A row a chapter, a column a run: seconds of wall time, or FAILED."""
    cells = {(one["name"], result["chapter"]): result for one in runs for result in one["results"]}
    names = [one["name"] for one in runs]
    rows = [f"{'wall seconds':20}" + "".join(f"{name:>9}" for name in names)]
    for chapter in sorted({chapter for _, chapter in cells}):
        found = [cells.get((name, chapter)) for name in names]
        shown = ["" if not one else f"{one['seconds']:.1f}" if one["passed"] else "FAILED" for one in found]
        rows.append(f"{chapter:20}" + "".join(f"{one:>9}" for one in shown))
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {path.stem: path for path in sorted((ROOT / "chapters").glob("[0-9][0-9]_*.ipynb"))}
    parser.add_argument("--run", nargs="+", choices=RUNS, default=RUNS, help="default: all")
    parser.add_argument("--chapters", nargs="+", metavar="NAME", help="default: all, and the outcome is stored")
    parser.add_argument("--colab", type=Path, default=COLAB, help="the Python with Colab's versions")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.chapters or []) - set(known))
    if unknown:
        parser.error(f"--chapters: expected some of {' '.join(known)}, got {' '.join(unknown)}")
    chapters = [known[name] for name in options.chapters or known]
    stamp = {"date": datetime.now(UTC).date().isoformat(), "commit": commit(ROOT)}
    done = []
    for name in sorted(set(options.run), key=order):
        try:
            done.append(run(name, chapters, Path(sys.executable), options.colab, stamp))
        except ValueError as error:
            parser.error(str(error))
        if not options.chapters:
            store(done[-1], RESULTS)
    results = [result for one in done for result in one["results"]]
    passed = sum(result["passed"] for result in results)
    print(f"\n{table(done)}\n\n{passed} of {len(results)} passed.")
    return 0 if results and passed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
