"""Answers -> results, in a process of its own that is stopped when it takes too long or too much.

The parent has imported everything once and forks: a start costs milliseconds. Cells run one after the other in IPython,
checks right after the answers that they check. The child reports each cell before it starts it. If it dies there, the
next child leaves that cell out, so that one bad cell costs its own points alone. This holds against mistakes and crude
cheating. It is no sandbox: what students hand in can read and write what you can.
"""

import contextlib
import multiprocessing
import os
import re
import signal
import tempfile
import time

from .sets import Set, SetError
from .submission import Submission
from .worker import LIMITS, Limits, Result, Step, child

CHECKED = re.compile(r'\bcheck\(\s*"\w+/(?P<check>[\w-]+)"')
GRACE = 5  # seconds after a cell's limit until the process is killed


def plan(one: Set, submission: Submission, key: str) -> list[Step]:
    """The cells in the order in which they run."""
    steps, answer = [], None
    for cell in one.notebook(key, submission.owner).cells:
        about = cell.metadata.get("nbgrader")
        if about is None:
            continue
        name, points = about["grade_id"], about.get("points", 0)
        for place, source in enumerate(submission.extras.get(name, [])):
            steps.append(Step("own", f"{name}-own-{place}", source))
        if about["solution"]:
            if (
                answer
                and answer.kind == "answer"
                and not any(s.kind == "check" and s.answer == answer.name for s in steps)
            ):
                raise SetError(f"{one.name}: the answer {answer.name} is not followed by its checks, but by {name}")
            kind = "text" if about["grade"] else "answer"
            answer = Step(kind, name, submission.answers.get(name, ""), points, name)
            steps.append(answer)
        elif about["grade"]:
            for found in CHECKED.finditer(cell.source):
                answer.forbidden |= set(one.checks[found["check"]].forbidden)
            steps.append(Step("check", name, cell.source, points, answer.name))
        elif cell.cell_type == "code":
            steps.append(Step("given", name, cell.source))
    return steps


def run(one: Set, submission: Submission, key: str, limits: Limits = LIMITS, only: str = "") -> list[Result]:
    """Results of every graded cell, whatever the answers do. only: of the answers, the one with this grade_id."""
    steps = [step for step in plan(one, submission, key) if not only or step.answer in ("", only)]
    return run_steps(one, steps, key, submission.owner, limits)


def run_steps(one: Set, steps: list[Step], key: str, owner: str = "", limits: Limits = LIMITS) -> list[Result]:
    """Results of every check and text among the steps, in their order."""
    results, left_out, end = {}, {}, time.monotonic() + limits.total
    while True:
        new, died = _attempt(one, steps, key, owner, limits, left_out, end)
        results |= {result.name: result for result in new}
        if died is None:
            break
        if died[0] in left_out:  # where nothing of the student's runs
            raise RuntimeError(f"the grader died at {died[0]!r} of {one.name}: {died[1]}")
        left_out.update([died])
    late = f"Not reached: the whole submission may take {limits.total:g} s."
    graded = [step for step in steps if step.kind in ("check", "text")]
    return [results.get(s.name) or Result(s.name, s.points, "stopped", late, answer=s.answer) for s in graded]


def _attempt(one, steps, key, owner, limits, left_out, end):
    """Run the steps in a child. Returns the results, and (the step at which it died, why) or, if it did not, None."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    results, current, deadline = [], "", end
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = context.Process(target=child, args=(theirs, folder, one, key, owner, limits, steps, left_out))
        process.start()
        try:
            theirs.close()
            while ours.poll(max(0.0, deadline - time.monotonic())):
                kind, value = ours.recv()
                if kind == "done":
                    return results, None
                if kind == "start":
                    current, deadline = value, min(end, time.monotonic() + limits.cell + GRACE)
                else:
                    results.append(Result(*value))
            if deadline == end:
                return results, None
            return results, (current, f"it took more than {limits.cell:g} s and could not be stopped")
        except (EOFError, OSError):
            process.join(5)
            return results, (current, _death(process.exitcode))
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()  # if it had no group of its own yet
            process.join()
            ours.close()


def _death(code) -> str:
    if code is not None and code < 0:
        return f"it ended the whole process ({signal.Signals(-code).name})"
    return "it ended the whole process"
