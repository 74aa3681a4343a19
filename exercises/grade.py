"""Grade a folder of notebooks: `make grade SUBMISSIONS=folder KEY=...`.

One file a student, `name.ipynb`. Into `graded/` of that folder go grades.csv, a feedback page for each student, and
overview.html. The same folder and key give the same files. No submission stops the others.
"""

import argparse
import contextlib
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tqdm import tqdm

from .feedback import Graded, overview, page, table
from .manual import merge, read_manual
from .runner import run
from .sets import Set, SetError, all_sets, check_key, find
from .submission import collect, read, says
from .worker import LIMITS, Limits, end_with_parent


def submissions(folder: Path) -> dict[str, Path]:
    """The files of a folder by student, in order; SetError where there are none."""
    if not folder.is_dir():
        raise SetError(f"SUBMISSIONS={folder}: there is no such folder")
    paths = sorted(path for path in folder.glob("*.ipynb") if not path.name.startswith("._"))  # a Mac's
    if not paths:
        raise SetError(f"SUBMISSIONS={folder}: no file there ends in .ipynb")
    stems = {os.fsencode(path.stem).decode(errors="backslashreplace"): path for path in paths}
    times = Counter(map(first_name, stems))
    return {first_name(stem) if times[first_name(stem)] == 1 else stem: path for stem, path in stems.items()}


def first_name(stem: str) -> str:
    """A browser saves a file's second copy as `name (1)`."""
    return re.sub(r" ?\(\d+\)$", "", stem) or stem


def guess_set(paths) -> Set:
    """The set that most files say they are of; SetError if none says."""
    found = Counter(first["set"] for first in (says(read(path)[0]) for path in paths) if first)
    known = [one.name for one in all_sets() if found[one.name]]
    if not known:
        raise SetError("none of the files says which problem set it is: name it with SET=")
    return find(max(known, key=found.get))


def grade_one(name: str, path: Path, key: str, student: str, limits: Limits) -> Graded:
    """Everything about one student's file, as a submission to the set of this name; it never raises."""
    try:
        one = find(name)
        found = collect(path, one, key, first_name(student))
        if found.fatal:
            return Graded(student, [], [found.fatal], "not graded")
        results = run(one, found, key, limits)
    except Exception as error:
        told = f"The grader failed on this file ({type(error).__name__}): it needs a person's eyes."
        return Graded(student, [], [told], "not graded")
    return Graded(student, results, found.notes, "graded, see notes" if found.notes else "graded")


def grade(folder: Path, key: str, one: Set | None = None, limits: Limits = LIMITS, jobs: int = 2) -> list[Graded]:
    """Grade every file of a folder, `jobs` at a time, and write what came of it."""
    files = submissions(folder)
    one = one or guess_set(files.values())
    marks = read_manual(folder, one, key, files)
    warm_up(one)
    work = {student: (one.name, path, key, student, limits) for student, path in files.items()}
    class_ = []
    with tqdm(total=len(work), desc="grading", delay=1) as bar:
        while work:
            with _workers(jobs) as pool, contextlib.suppress(BrokenProcessPool):
                waiting = {student: pool.submit(grade_one, *arguments) for student, arguments in work.items()}
                for student, job in waiting.items():
                    class_.append(job.result())
                    del work[student]
                    bar.update()
            if work:  # some file ended its worker, and so the pool: this one, or one beside it
                class_.append(_alone(work.pop(next(iter(work)))))
                bar.update()
    merge(class_, marks)
    write(folder / "graded", one, key, class_)
    return class_


def _alone(arguments) -> Graded:
    """Grade a file with a worker of its own, in case it ends that, too."""
    with _workers(1) as pool:
        try:
            return pool.submit(grade_one, *arguments).result()
        except BrokenProcessPool:
            told = "This file ended the grader itself: it needs a person's eyes."
            return Graded(arguments[3], [], [told], "not graded")


@contextlib.contextmanager
def _workers(jobs: int):
    """A pool of processes, each of which forks once more for every submission. Ctrl-C leaves nothing running."""
    fork = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
        ProcessPoolExecutor(jobs, fork, _start_worker, (scratch,)) as pool,
    ):
        try:
            yield pool
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.kill()
            raise


def _start_worker(scratch: str) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent has it and ends this process
    tempfile.tempdir = scratch


def warm_up(one: Set) -> None:
    """Import once what every submission needs: each is then a fork of this process."""
    import matplotlib
    import pandas  # noqa: F401
    import torch

    import ddcl_lite

    matplotlib.use("agg")
    import matplotlib.pyplot  # noqa: F401

    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    point = torch.zeros(1, 1, requires_grad=True)
    ddcl_lite.decompose(point, point, 1.0).total.backward()  # which imports the rest of torch
    _ = one.checks


def write(folder: Path, one: Set, key: str, class_: list[Graded]) -> None:
    """Write the table and the pages, in place of those of an earlier run."""
    shutil.rmtree(folder / "feedback", ignore_errors=True)
    (folder / "feedback").mkdir(parents=True)
    texts = {"grades.csv": table(one, key, class_), "overview.html": overview(one, key, class_)}
    texts |= {f"feedback/{graded.student}.html": page(one, key, graded) for graded in class_}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", errors="replace")


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser("python -m exercises.grade", description="Grade a folder of notebooks.")
    parser.add_argument("submissions", type=Path, help="the folder: one name.ipynb a student")
    parser.add_argument("--key", help="the course key that the notebooks were made with")
    parser.add_argument("--set", help="the problem set; else what most files say")
    parser.add_argument("--cell-seconds", type=float, default=LIMITS.cell, help="for one cell")
    parser.add_argument("--seconds", type=float, default=LIMITS.total, help="for one submission")
    parser.add_argument("--memory", type=int, default=LIMITS.memory, help="MiB for one submission")
    parser.add_argument("--jobs", type=int, default=2, help="submissions at a time")
    options = parser.parse_args(arguments)
    limits = Limits(options.cell_seconds, options.seconds, options.memory)
    try:
        key = check_key(options.key)
        one = find(options.set) if options.set else None
        class_ = grade(options.submissions, key, one, limits, options.jobs)
    except (SetError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        return 130
    states = Counter(graded.status for graded in class_)
    print(f"{len(class_)} submissions: " + ", ".join(f"{n} {status}" for status, n in sorted(states.items())))
    others = sorted(p.name for p in options.submissions.iterdir() if p.suffix != ".ipynb")
    others = [name for name in others if name not in ("graded", "manual.csv") and not name.startswith(".")]
    if others:
        print(f"not read, as their names do not end in .ipynb: {', '.join(others)}")
    print(f"{options.submissions / 'graded'}: grades.csv, overview.html, feedback/")
    if set(states) == {"not graded"}:
        print("None could be graded: is KEY the key of these notebooks?", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # or the order of a set is another in every run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "exercises.grade", *sys.argv[1:]])
    sys.exit(main())
