"""One submission, cell by cell, inside a process of its own: forked, confined, and without the references in reach."""

import builtins
import contextlib
import ctypes
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import traceback
from dataclasses import astuple, dataclass, field, replace
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from IPython.core.interactiveshell import InteractiveShell

from .checks import Wrong, forbidding
from .hidden import checker
from .sets import FOLDER
from .submission import HIDDEN, unanswered

BUILTINS = dict(vars(builtins))  # as they are before a student's code runs


class Limits(NamedTuple):
    """Seconds for one cell and for a submission, MiB of memory for it, MiB of output for one cell."""

    cell: float = 30
    total: float = 180
    memory: int = 6144
    output: int = 16


LIMITS = Limits()


@dataclass
class Result:
    """What became of one cell. status: right, wrong, open (not answered), to read (by a person), read, stopped."""

    name: str
    points: float
    status: str
    message: str = ""
    mistake: str = ""
    answer: str = ""  # the grade_id of the answer that it checks
    given: float = 0.0  # points, by a person

    @property
    def earned(self) -> float:
        return self.points if self.status == "right" else self.given


@dataclass
class Step:
    """A cell to run. kind: given, own, answer, check, text. forbidden: names of ddcl_lite that it may not call."""

    kind: str
    name: str
    source: str
    points: float = 0
    answer: str = ""
    forbidden: set = field(default_factory=set)


class TimeLimit(BaseException):
    """Raised inside a cell that takes too long; no `except Exception` catches it."""


def end_with_parent() -> None:
    """Have the kernel end this process with the one that started it (Linux; elsewhere it ends at its next cell)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if multiprocessing.parent_process().pid != os.getppid():  # it ended before that
            os._exit(1)


def child(pipe, folder, one, key, owner, limits, steps, left_out) -> None:
    """Run the steps and send what became of each. left_out: name of a step -> how it ended an earlier process."""
    os.setsid()
    end_with_parent()
    _confine(folder, key, limits)
    shell = Shell.instance(colors="NoColor")
    shell.showtraceback = shell.showsyntaxerror = lambda *args, **kwargs: None
    check = checker(one, key, owner)
    _hide_ourselves()
    failed = {}  # answer or own cell -> what became of it
    for step in steps:
        pipe.send(("start", step.name))
        if step.kind == "text":
            pipe.send(("result", astuple(_text(step))))
        elif step.kind == "check":
            if step.name in left_out:
                died = f"While your answer was checked, {left_out[step.name]}."
                result = Result(step.name, step.points, "stopped", died)
            else:
                result = _check(shell, step, check, limits, failed.get(step.answer))
            pipe.send(("result", astuple(replace(result, answer=step.answer))))
        elif step.name in left_out:
            died = f"Your cell did not come to its end: {left_out[step.name]}."
            failed[step.name] = Result(step.name, 0, "stopped", died)
        else:
            failed[step.name] = _cell(shell, step, limits)
    pipe.send(("done", None))
    pipe.close()
    os._exit(0)


class Shell(InteractiveShell):
    """IPython without a history or windows."""

    history_load_length = 0

    def enable_gui(self, gui=None):
        pass

    def ask_exit(self):
        raise SystemExit

    def init_history(self):
        super().init_history()
        self.history_manager.enabled = False


def _confine(folder, key, limits):
    """A folder of its own, no standard input, output into a file, limits of memory, the same random numbers."""
    os.mkdir(os.path.join(folder, "notebook"))  # a name that is the same each time, should a message have it
    os.chdir(os.path.join(folder, "notebook"))
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open("../output", os.O_WRONLY | os.O_CREAT)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for name in [name for name, value in os.environ.items() if key in value]:
        del os.environ[name]
    sys.argv = ["notebook"]
    os.environ |= {"IPYTHONDIR": folder, "PIP_NO_INDEX": "1"}  # a student's !pip must not change the grader
    for limit, most in [
        (resource.RLIMIT_DATA, limits.memory * 2**20),
        (resource.RLIMIT_FSIZE, limits.output * 2**20),
        (resource.RLIMIT_CORE, 0),
    ]:
        resource.setrlimit(limit, (most, most))
    signal.signal(signal.SIGALRM, _late)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def _late(number, frame):
    raise TimeLimit


def _hide_ourselves() -> None:
    """Take the problem sets and their references out of reach of an import."""
    root = str(FOLDER.parent)
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != root]
    for name in [name for name in sys.modules if name.split(".")[0] == "exercises"]:
        del sys.modules[name]


@contextlib.contextmanager
def _limited(limits):
    """Limits of time and output, for one cell."""
    with contextlib.suppress(OSError):
        os.lseek(1, 0, os.SEEK_SET)
        os.ftruncate(1, 0)
    sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    signal.setitimer(signal.ITIMER_REAL, limits.cell, 1.0)  # again every second, for code that catches everything
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")


def _cell(shell, step, limits) -> Result | None:
    """Run a cell; what went wrong, or nothing."""
    try:
        with _limited(limits), forbidding(step.forbidden):
            done = shell.run_cell(step.source, store_history=False)
        error = done.error_before_exec or done.error_in_exec
    except BaseException as raised:  # the alarm can go off in IPython's own code
        error = raised
    if error is None or step.kind == "given":
        return None
    if isinstance(error, NotImplementedError) and step.kind == "answer":
        return Result(step.name, 0, "open", "Not answered yet.")
    message = f"Your cell stopped: {_told(error, limits)}"
    return Result(step.name, 0, "wrong", message, getattr(error, "mistake", ""))


def _check(shell, step, check, limits, before: Result | None) -> Result:
    """Run a check on a copy of the student's names. before: what became of the answer, if anything did."""
    result = Result(step.name, step.points, "right")
    if before and before.mistake:
        return replace(before, name=step.name, points=step.points)
    sys.modules["exercises"], sys.modules["exercises.hidden"] = ModuleType("exercises"), ModuleType("exercises.hidden")
    sys.modules["exercises.hidden"].check = check
    try:
        with _limited(limits):
            exec(compile(step.source, "<check>", "exec"), shell.user_ns | {"__builtins__": dict(BUILTINS)})
    except Wrong as wrong:
        result.status, result.message, result.mistake = "wrong", str(wrong), wrong.mistake
    except AssertionError as error:
        result.status, result.message = "wrong", str(error) or "A visible check of the notebook fails."
        if f"\n{HIDDEN}" in step.source:  # which may know this mistake by name
            hidden = replace(step, source=step.source.split(f"\n{HIDDEN}")[1])
            named = _check(shell, hidden, check, limits, before)
            if named.mistake:
                result.message, result.mistake = named.message, named.mistake
    except NotImplementedError:
        result.status, result.message = "open", "Not answered yet."
    except BaseException as error:
        result.status, result.message = "wrong", f"Your answer stopped: {_told(error, limits)}"
        if before and before.status != "open":
            result.status, result.message = before.status, before.message
        elif isinstance(error, NameError) and _frames(error)[-1].filename == "<check>":
            result.status, result.message = "open", f"Not answered yet, or not under the name {error.name}."
    return result


def _text(step) -> Result:
    status, message = "to read", "A person reads this answer."
    if unanswered(step.source):
        status, message = "open", "Not answered yet."
    return Result(step.name, step.points, status, message, answer=step.name)


def _frames(error: BaseException):
    return traceback.extract_tb(error.__traceback__)


def _told(error: BaseException, limits: Limits) -> str:
    """An error in words, without what lies behind it: no path, no address, no line of a hidden check."""
    if isinstance(error, Wrong):
        return str(error)
    if isinstance(error, TimeLimit):
        return f"it took more than {limits.cell:g} s. Does a loop never end?"
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return f"it ends the program ({type(error).__name__})."
    if isinstance(error, EOFError):
        return "it asks for input(), and nobody is there to answer."
    if isinstance(error, OSError) and error.errno == 27:
        return f"it prints or writes more than {limits.output} MiB."
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return f"it needs more than {limits.memory} MiB of memory."
    if isinstance(error, SyntaxError):
        return f"SyntaxError in line {error.lineno}: {error.msg}."
    lines = [frame.lineno for frame in _frames(error) if "ipython-input" in frame.filename]
    where = f", in line {lines[-1]} of its cell" if lines else ""
    text = re.sub(r"0x[0-9a-f]+", "0x...", str(error).split("\n")[0])[:200]
    text = re.sub(r"/[\w./-]*/", ".../", text)
    return f"{type(error).__name__}: {text}{where}"
