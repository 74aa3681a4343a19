"""The matrix: its conditions hold where a notebook runs, faults are reported, outcomes are stored as expected."""

import json
import os
import re
import socket
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import matrix  # noqa: E402
import ways  # noqa: E402

from book import provenance  # noqa: E402
from ddcl_lite.claims import CLAIMS  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kernels are reached through Unix sockets")
PYTHON = Path(sys.executable)


def chapter(folder, *cells):
    """A notebook with these code cells between two of text."""
    made = [new_markdown_cell("# One"), *map(new_code_cell, cells), new_markdown_cell("The end.")]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = folder / "01_one.ipynb"
    nbformat.write(new_notebook(cells=made, metadata=metadata), path)
    return path


def outcome(way, path):
    result = matrix.run_notebook(way, path)
    assert result.chapter == "01_one" and result.seconds >= 0
    return result.passed, result.note


# The conditions, as seen from inside the kernel.

COUNT = "import sys\nsys.ran = [*getattr(sys, 'ran', []), {!r}]"
EMPTY = "import os\nassert os.listdir() == [], os.listdir()"
THREADS = "import torch\nassert torch.get_num_threads() == 1, torch.get_num_threads()"
HERE = "import sys\nassert sys.executable == {!r}, sys.executable"
READ_ONLY = """\
for place in {places}:
    try:
        open(place + "/written", "w").close()
    except OSError:
        continue
    os.remove(place + "/written")
    raise AssertionError(place)"""
OFFLINE = """\
import socket
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=5).close()
except OSError:
    pass
else:
    raise AssertionError("the network can be reached")"""


def ran(way, path, expected):
    """Pass if the cells a and b ran in this order: the last of them raises what the notebook saw."""
    path = chapter(path, COUNT.format("a"), COUNT.format("b"), f"assert len(sys.ran) < {len(expected)}, sys.ran")
    passed, note = outcome(way, path)
    assert not passed and f"AssertionError: {expected}" in note, note


def test_a_runs_every_cell_twice_in_an_empty_folder_with_one_thread(tmp_path):
    way = ways.way("a", PYTHON, PYTHON)
    cells = [EMPTY, THREADS, COUNT.format("a"), COUNT.format("b"), HERE.format(sys.executable)]
    assert outcome(way, chapter(tmp_path, *cells)) == (True, "")
    ran(way, tmp_path, ["a", "a", "b", "b"])


@pytest.fixture(scope="module")
def locked():
    return ways.way("b", PYTHON, PYTHON)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DDCL_LITE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return str(tmp_path / "cache")


def test_b_runs_twice_in_one_kernel_without_rights(tmp_path, locked, cache):
    root = os.geteuid() == 0
    who = f"assert os.geteuid() == {ways.NOBODY if root else os.geteuid()}, os.geteuid()"
    home = f"home = os.path.expanduser('~')\nassert home != {os.path.expanduser('~')!r}\nopen(home + '/x', 'w')"
    given = f"assert [os.environ[n] for n in ('PYTHONHASHSEED', 'DDCL_LITE_CACHE')] == ['123', {cache!r}]"
    places = [".", str(ROOT), cache] if root else ["."]
    path = chapter(tmp_path, EMPTY, READ_ONLY.format(places=places), who, home, given, HERE.format(sys.executable))
    assert outcome(locked, path) == (True, "")
    passed, note = outcome(replace(locked, locked=False, before=[]), path)
    assert not passed and "AssertionError: .," in note, note
    ran(locked, tmp_path, ["a", "b", "a", "b"])


def test_b_has_no_network(tmp_path, locked):
    if not locked.before or locked.before[0] != "unshare":
        assert locked.environment["PIP_NO_INDEX"] and "proxies" in locked.what
        pytest.skip("no network namespaces here")
    assert "no network" in locked.what
    with socket.create_server(("127.0.0.1", 0)) as server:
        path = chapter(tmp_path, OFFLINE.format(port=server.getsockname()[1]))
        assert outcome(locked, path) == (True, "")
        passed, note = outcome(replace(locked, before=locked.before[locked.before.index("--") + 1 :]), path)
        assert not passed and "the network can be reached" in note, note


def test_b_refuses_a_machine_where_nobody_gets_another_python(monkeypatch):
    monkeypatch.setattr(ways, "facts", lambda python, before=(): {"python": "3.11.2" if before else "3.11.7"})
    monkeypatch.setattr(ways.os, "geteuid", lambda: 0)
    with pytest.raises(ValueError, match=f"nobody .* can start {PYTHON} as it is"):
        ways.way("b", PYTHON, PYTHON)


def colab(monkeypatch, **changed):
    """A Python that says it is Colab's, but for these versions."""
    pins = dict(line.split("==") for line in ways.CONSTRAINTS.read_text(encoding="utf-8").splitlines() if "==" in line)
    python = changed.pop("python", "3.13.0 (main)")
    monkeypatch.setattr(ways, "facts", lambda python_: {"python": python, "versions": {**pins, **changed}})


def test_c_runs_once_in_the_given_python_with_colabs_versions(tmp_path, monkeypatch):
    colab(monkeypatch, torch="2.11.0+cpu")
    way = ways.way("c", Path("another"), PYTHON)
    assert outcome(way, chapter(tmp_path, EMPTY, HERE.format(sys.executable))) == (True, "")
    ran(way, tmp_path, ["a", "b"])


@pytest.mark.parametrize("changed", [{"numpy": "2.4.6"}, {"python": "3.11.7 (main)"}, {"python": "3.131.0"}])
def test_c_refuses_other_versions_and_another_python(monkeypatch, changed):
    colab(monkeypatch, **changed)
    (name,) = changed
    with pytest.raises(ValueError, match=f"expected Python 3.13 and the versions of .*{name} "):
        ways.way("c", PYTHON, PYTHON)


def test_c_says_how_to_make_colabs_python(tmp_path):
    with pytest.raises(ValueError, match=r"make \.venv-colab/ready"):
        ways.way("c", PYTHON, tmp_path / "none")


# Faults.


@pytest.fixture(scope="module")
def plain():
    return ways.way("a", PYTHON, PYTHON)


FAULTS = {
    "total = 3": ["total = total + 1\nassert total == 4", "code cell 2, second time: AssertionError, in `assert total"],
    "x = 1": ["open('left.txt', 'w').close()", "left in its folder: left.txt"],
    "y = 1": ["raise ValueError('one\\ntwo')", "code cell 2, first time: ValueError: one, in `raise ValueError"],
    "z = 1": ["import os\nos._exit(3)", "code cell 2, first time: DeadKernelError: "],
    "w = 1": ["open('/no/file.txt')", "code cell 2, first time: FileNotFoundError: [Errno 2] No such file or "],
    "v = 1": ["v = (", "code cell 2, first time: SyntaxError: "],
}


@pytest.mark.parametrize("first, second, expected", [(one, *rest) for one, rest in FAULTS.items()])
def test_a_fault_is_reported_with_its_cell(tmp_path, plain, first, second, expected):
    passed, note = outcome(plain, chapter(tmp_path, first, second))
    assert not passed and note.startswith(expected) and "\n" not in note and "/no/" not in note, note


def test_a_warning_is_noted(tmp_path, plain):
    found = outcome(plain, chapter(tmp_path, "import warnings\nwarnings.warn('old')"))
    assert found[0] and re.fullmatch(r"code cell 1, first time warns: \d+\.py:2: UserWarning: old", found[1]), found


def test_a_runner_that_cannot_start_is_a_failure(tmp_path, plain):
    passed, note = outcome(replace(plain, before=["false"]), chapter(tmp_path, "x = 1"))
    assert not passed and note == "tests/execute.py: exit status 1, and nothing said"


def test_the_time_limit_is_the_cells(tmp_path, plain, monkeypatch):
    import execute

    monkeypatch.setattr(execute, "SECONDS_PER_CELL", 1)
    notebook = nbformat.read(chapter(tmp_path, "x = 1", "import time\ntime.sleep(60)"), as_version=4)
    failed, note = execute.execute(ways.arrange(notebook, ways.once), str(tmp_path))
    assert failed and note.startswith("code cell 2: CellTimeoutError: ")


MEASURED = """\
import json, sys
seed = sys.argv[sys.argv.index("--seed") + 1]
assert seed != "3", "no number"
print(json.dumps([{"id": "D1", "supported": seed != "2"}, {"id": "D2", "supported": True}]))
"""


def test_an_unsupported_claim_and_one_that_stops_are_reported(tmp_path):
    stub = tmp_path / "python"
    stub.write_text(f"#!{sys.executable}\n{MEASURED}", encoding="utf-8")
    stub.chmod(0o755)
    result = matrix.run_claims(stub, Path("01_one.ipynb"), ["D1", "D2"])
    assert not result.passed
    assert result.note == "seed 2: D1 not supported; seed 3: AssertionError: no number"
    assert "seed 0: D4 not supported" in matrix.run_claims(stub, Path("01_one.ipynb"), ["D4"]).note


def test_claims_are_measured(monkeypatch):
    monkeypatch.setattr(matrix, "SEEDS", [1])
    result = matrix.run_claims(PYTHON, Path("03_decomposition.ipynb"), ["D1"])
    assert result.passed and result.note == "" and result.chapter == "03_decomposition"


# What is stored and printed.


FACTS = {"python": "3.11.7 (main)", "versions": {"numpy": "2.4.6", "torch": "2.13.0+cpu"}}


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Two chapters, of which `failing` fail, in place of the book."""
    book = SimpleNamespace(failing=set(), ran=[], results=tmp_path / "book/matrix.json")
    for name in ("01_one", "02_two"):
        (tmp_path / "chapters").mkdir(exist_ok=True)
        (tmp_path / f"chapters/{name}.ipynb").touch()
    (tmp_path / "book").mkdir()

    def notebook(way, path):
        book.ran.append(path.stem)
        bad = path.stem in book.failing
        return matrix.Result(path.stem, not bad, 1.5, "code cell 2: ValueError" * bad)

    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    monkeypatch.setattr(matrix, "RESULTS", book.results)
    monkeypatch.setattr(matrix, "run_notebook", notebook)
    monkeypatch.setattr(matrix, "run_claims", lambda python, path, ids: notebook(None, path))
    monkeypatch.setattr(matrix, "facts", lambda python: FACTS)
    monkeypatch.setattr(matrix, "way", lambda name, python, colab: ways.Way(f"way {name}", ways.once, python))
    return book


def stored(book):
    return {run["name"]: run for run in json.loads(book.results.read_text(encoding="utf-8"))["runs"]}


def test_outcomes_are_what_the_provenance_page_reads(book):
    assert matrix.main([]) == 0
    runs = stored(book)
    assert list(runs) == ["a", "b", "c", "seeds"]
    html = provenance.matrix(SimpleNamespace(srcdir=matrix.ROOT, env=SimpleNamespace(found_docs=[])), str)
    assert "<p>8 of 8 passed.</p>" in html and "way a" in html and "FAILED" not in html and "02_two" in html
    assert runs["a"]["results"][0] == {"chapter": "01_one", "passed": True, "seconds": 1.5, "note": ""}
    assert (runs["a"]["python"], runs["a"]["versions"]) == ("3.11.7", FACTS["versions"])


def test_the_facts_are_those_of_the_python():
    found = ways.facts(PYTHON)
    assert (found["python"], found["base"]) == (sys.version, sys.base_prefix)
    assert {"torch", "numpy", "matplotlib", "ipykernel"} <= set(found["versions"])
    assert found["versions"]["torch"] == version("torch")


def test_a_single_run_replaces_its_own_outcome_only(book, capsys):
    matrix.main([])
    before = stored(book)
    book.failing = {"02_two"}
    assert matrix.main(["--run", "b"]) == 1
    after = stored(book)
    assert [result["passed"] for result in after["b"]["results"]] == [True, False]
    assert {name: run for name, run in after.items() if name != "b"} == {k: v for k, v in before.items() if k != "b"}
    out = capsys.readouterr().out
    assert "code cell 2: ValueError" in out and out.endswith("1 of 2 passed.\n")


def test_some_chapters_are_run_and_not_stored(book):
    assert matrix.main(["--run", "a", "--chapters", "02_two"]) == 0
    assert book.ran == ["02_two"] and not book.results.exists()


@pytest.mark.parametrize("arguments", [["--chapters", "03_three"], ["--run", "d"]])
def test_an_unknown_name_is_refused_with_the_known_ones(book, capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        matrix.main(arguments)
    known = "01_one 02_two" if "--chapters" in arguments else "seeds"
    assert stop.value.code == 2 and known in capsys.readouterr().err
    assert book.ran == []


def test_every_chapter_has_claims_to_measure():
    numbers = {int(path.stem[:2]) for path in (ROOT / "chapters").glob("[0-9][0-9]_*.ipynb")}
    assert numbers <= {claim.chapter for claim in CLAIMS.values()}
