"""The ways in which tests/matrix.py runs notebooks: which cells, which Python, as whom, with what around them."""

import copy
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from execute import plain

ROOT = Path(__file__).resolve().parents[1]
EXECUTE = ROOT / "tests" / "execute.py"
CONSTRAINTS = ROOT / "tests" / "colab-constraints.txt"
CORES = os.cpu_count() or 1
NOBODY = 65534
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
OWN = ("XDG_", "JUPYTER", "IPYTHON", "MPL", "PYTHONPATH", "PYTHONHASHSEED", *ONE_THREAD)  # the caller's habits


@dataclass
class Way:
    """A way to run notebooks."""

    what: str  # in words, for the provenance page
    cells: Callable[[list], list]  # what is run of the code cells
    python: Path
    before: list[str] = field(default_factory=list)  # the start of the command that runs Python
    environment: dict[str, str] = field(default_factory=dict)
    locked: bool = False  # the folder cannot be written to, the home is a new one


# The cells, each with the turn it takes.


def once(cells: list) -> list:
    return [("", cell) for cell in cells]


def each_twice(cells: list) -> list:
    return [(turn, cell) for cell in cells for turn in ("first", "second")]


def all_twice(cells: list) -> list:
    return [(turn, cell) for turn in ("first", "second") for cell in cells]


def arrange(notebook, cells: Callable[[list], list]):
    """A copy of the notebook with its code cells so arranged, each labelled with its place in the chapter."""
    made, code = copy.deepcopy(notebook), [cell for cell in notebook.cells if cell.cell_type == "code"]
    places = {cell.id: place for place, cell in enumerate(code, 1)}
    made.cells = []
    for turn, cell in cells(code):
        one = copy.deepcopy(cell)
        one.metadata["label"] = f"code cell {places[cell.id]}" + f", {turn} time" * bool(turn)
        one.id = f"{cell.id}-{turn}" if turn else cell.id
        made.cells.append(one)
    return made


# The ways.


def way(name: str, python: Path, colab: Path) -> Way:
    """The way of run a, b or c. Raises ValueError where this machine does not have it."""
    if name == "a":
        return Way("Every cell twice in a row, in an empty folder, one thread.", each_twice, python, [], ONE_THREAD)
    if name == "b":
        return unprivileged(python)
    check_colab(colab)
    what = "Once, with the versions that Colab has, in an empty folder, one thread."
    return Way(what, once, colab, [], ONE_THREAD)


def unprivileged(python: Path) -> Way:
    """Twice in one kernel, as one who can write to a new home and /tmp only, offline; `what` says how far that went."""
    before, user, net = confine(python)
    environment = {"PYTHONHASHSEED": "123", "OMP_WAIT_POLICY": "passive"}  # all threads, but not spinning
    if not before or before[0] != "unshare":
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
        environment |= {**proxies, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    what = (
        f"The chapter twice in one kernel, in a folder that cannot be written to, {user}, with a new home, {net}, "
        "PYTHONHASHSEED=123."
    )
    return Way(what, all_twice, python, before, environment, locked=True)


def confine(python: Path) -> tuple[list[str], str, str]:
    """(start of a command that gives up rights and network, as whom, with what cache and network), as far as it goes.

    Where this Python lies in root's own home, nobody needs the right to read it; without that, nobody may find another
    Python, or this one with another libpython. Raises ValueError where nothing works.
    """
    root = os.geteuid() == 0
    offline = ["unshare", *([] if root else ["--map-current-user"]), "--net", "--"]
    nets = {
        "a warm cache and no network (a namespace of its own)": offline,
        "a warm cache and no way to the network (proxies that lead nowhere, no package index)": [],
    }
    nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    reads = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"]
    users = {"as user nobody": nobody, "as user nobody, who may read all files": [*nobody, *reads]}
    expected = facts(python)
    for net, closed in nets.items():
        for user, changed in users.items() if root else [("as an ordinary user", [])]:
            try:
                if facts(python, [*closed, *changed]) == expected:
                    return [*closed, *changed], user, net
            except ValueError:
                continue
    raise ValueError(f"run b: expected that user nobody (by setpriv) can start {python} as it is, in vain")


def check_colab(python: Path) -> None:
    """Raise ValueError unless this Python is Colab's, with the versions of the constraints."""
    if not python.exists():
        raise ValueError(
            f"--colab: expected a Python made by `make .venv-colab/ready`, got {python}, which is not there"
        )
    found = facts(python)
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", CONSTRAINTS.read_text(encoding="utf-8"), flags=re.M))
    has = {"python": ".".join(found["python"].split(".")[:2])}
    has |= {name: version.split("+")[0] for name, version in found["versions"].items()}
    differing = [
        f"{name} {has.get(name)}, not {pin}" for name, pin in {"python": "3.13", **pins}.items() if has.get(name) != pin
    ]
    if differing:
        raise ValueError(f"--colab: expected Python 3.13 and the versions of {CONSTRAINTS.name}, got {differing}")


def facts(python: Path, before: Iterable[str] = ()) -> dict:
    """What tests/execute.py says of itself. Raises ValueError where it cannot be run."""
    command = [*before, str(python), str(EXECUTE)]
    try:
        done = subprocess.run(command, cwd=ROOT, env=clean(), capture_output=True, text=True)
    except OSError as error:
        raise ValueError(f"expected to run {command}, got {error}") from None
    if done.returncode:
        raise ValueError(f"expected to run {command}, got {last_line(done.stderr)}")
    return json.loads(done.stdout)


def clean() -> dict[str, str]:
    """The environment without the caller's habits."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OWN)}


def last_line(text: str) -> str:
    return (plain(text).strip().splitlines() or [""])[-1].strip()
