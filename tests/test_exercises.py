"""Problem sets: what students get holds all that they need, and nothing that they must not see."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from book.export import Book  # noqa: E402
from exercises import bank, release, sets  # noqa: E402
from exercises.release import CANARY, MARKERS, SOLUTION, TESTS  # noqa: E402
from exercises.sets import PUBLIC, Set, SetError  # noqa: E402

BOOK = Book(ROOT, "ada", "notes", "main", "1.0")
KEYS = [PUBLIC, "autumn-term-26", "spring-term-27"]
SETS = pytest.mark.parametrize("one", sets.all_sets(), ids=lambda one: one.name)
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the grader forks")


def of(one, name):
    """nbgrader's metadata of the cells of a set, those that are answers, checks, ..."""
    cells = [cell for cell in one.notebook(PUBLIC).cells if "nbgrader" in cell.metadata]
    return [cell for cell in cells if cell.metadata["nbgrader"][name]]


def canaries(one):
    return re.findall(rf"{CANARY}[\w-]+", one.source)


# ---------------------------------------------------------------- what is released


def test_the_public_copies_are_what_their_sources_give():
    assert release.main(["--check"]) == 0


@SETS
def test_a_released_notebook_is_ready_for_colab(one):
    made = nbformat.reads((release.RELEASE / f"{one.name}.ipynb").read_text("utf-8"), as_version=4)
    nbformat.validate(made)
    assert (made.nbformat, made.nbformat_minor) == (4, 5)
    assert made.cells[0].source.startswith("[![Open in Colab](")
    assert f"/exercises/release/{one.name}.ipynb)" in made.cells[0].source
    assert "find_spec" in made.cells[1].source
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert made.metadata.kernelspec.name == "python3"


@SETS
def test_a_key_gives_the_same_bytes_and_another_key_other_numbers(one):
    first, again, other = (release.student_copy(Set(one.name), key, BOOK) for key in (KEYS[1], KEYS[1], KEYS[2]))
    assert first == again
    assert one.instance(KEYS[1]) != one.instance(KEYS[2]) != one.instance(PUBLIC)
    assert first != other
    assert release.student_copy(one, KEYS[1], BOOK, "ada") != release.student_copy(one, KEYS[1], BOOK, "ben")
    assert KEYS[1] not in first


@SETS
def test_every_exercise_has_its_card(one):
    cards = re.findall(r"^\| trains \| difficulty \| minutes \| points \|$", one.source, re.M)
    assert 5 <= len(cards) == len(re.findall(r"^## \d+\. ", one.source, re.M)) <= len(of(one, "solution"))
    points = re.findall(r"\| [123] of 3 \| (\d+) \| (\d+) \|", one.source)
    assert len(points) == len(cards)
    assert sum(int(each) for _, each in points) == sum(cell.metadata["nbgrader"]["points"] for cell in of(one, "grade"))
    assert 60 <= sum(int(minutes) for minutes, _ in points) <= 120


@SETS
def test_every_solution_and_hidden_test_has_a_canary_of_its_own(one):
    everywhere = [canary for each in sets.all_sets() for canary in canaries(each)]
    mine = canaries(one)
    assert len(mine) >= one.source.count(SOLUTION) + one.source.count(TESTS) > 0
    assert all(everywhere.count(canary) == 1 for canary in mine)


COURSE = """
import json, sys
from exercises import bank, grade, sets
from exercises.runner import run
from exercises.submission import Submission, collect
from pathlib import Path
one = sets.find(sys.argv[1])
grade.warm_up(one)
found = []
for key, student in json.loads(sys.argv[2]):
    solved = Submission(student, bank.official(one, key, student))
    unsolved = collect(Path(sys.argv[3]) / f"{key}{student}.ipynb", one, key, student)
    for each in solved, unsolved:
        found.append([(result.name, result.status, result.earned, result.points) for result in run(one, each, key)])
    found.append([unsolved.fatal, unsolved.owner, *unsolved.notes])
print(json.dumps(found))
"""


@forks
@SETS
def test_the_official_solution_has_all_points_and_an_unsolved_copy_none(one, tmp_path):
    """For three keys, and where every student has own numbers."""
    who = [*((key, "") for key in KEYS), (KEYS[1], "ada")]
    for key, student in who:
        copy = release.student_copy(one, key, BOOK, student)
        (tmp_path / f"{key}{student}.ipynb").write_text(copy, encoding="utf-8")
    command = [sys.executable, "-c", COURSE, one.name, json.dumps(who), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for (_, student), solved, unsolved, notes in zip(who, found[::3], found[1::3], found[2::3], strict=True):
        assert notes == ["", student]
        assert len(solved) == len(unsolved) == len(of(one, "grade"))
        assert {status for _, status, _, _ in solved} == {"right", "to read"}
        assert sum(earned for _, status, earned, _ in solved) == sum(
            p for _, status, _, p in solved if status == "right"
        )
        assert {status for _, status, _, _ in unsolved} == {"open"}
        assert sum(earned for _, _, earned, _ in unsolved) == 0


ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("exercises", "book", "tests", "nbgrader", "jupytext"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
import matplotlib
matplotlib.use("agg")
"""


@SETS
def test_a_notebook_with_its_answers_filled_in_runs_anywhere(one, tmp_path):
    """As plain Python, with nothing but the library; and one with stubs stops at the first of them."""
    made = json.loads((release.RELEASE / f"{one.name}.ipynb").read_text("utf-8"))
    answers = bank.official(one, PUBLIC)
    sources = {"solved": [ALONE], "unsolved": [ALONE]}
    for cell in made["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            sources["unsolved"].append(source)
            sources["solved"].append(answers.get(cell["metadata"].get("nbgrader", {}).get("grade_id"), source))
    done = {}
    for name, cells in sources.items():
        (tmp_path / f"{name}.py").write_text("\n\n".join(cells), encoding="utf-8")
        command = [sys.executable, "-P", f"{name}.py"]
        done[name] = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done["solved"].returncode == 0, done["solved"].stderr
    assert done["unsolved"].returncode == 1
    assert "NotImplementedError: your answer goes here" in done["unsolved"].stderr


# ---------------------------------------------------------------- markers


def typos(marker):
    """Every letter left out, doubled, exchanged with the next or replaced; case and spaces."""
    words = marker.removeprefix("### ")
    for i in range(len(marker)):
        yield marker[:i] + marker[i + 1 :]
        yield marker[: i + 1] + marker[i:]
        yield marker[:i] + ("x" if marker[i] != "#" else "%") + marker[i + 1 :]
        yield marker[:i] + marker[i + 1 : i + 2] + marker[i] + marker[i + 2 :]
    yield from (marker.lower(), marker.title(), marker.replace(" ", ""), marker.replace(" ", "  "), words, f"# {words}")
    yield from (
        marker.replace(" ", "\u00a0"),
        marker.replace(" ", "\t"),
        f"x = 1  {marker}",
        f"{marker}:",
        f"#{marker}",
    )
    yield from (f"<!-- {marker} -->", f"{marker} # here", marker.replace(" ", "_"), marker.replace(" ", " # "))


ALL_MARKERS = [*MARKERS, *MARKERS.values()]
TYPOS = sorted({(marker, typo) for marker in ALL_MARKERS for typo in typos(marker) if typo.strip() != marker})


def planted(one, source):
    """The set with another source."""
    other = Set(one.name)
    other.__dict__["source"] = source
    return other


def refused(source, one=None):
    """What the release step says; it must not give a copy."""
    with pytest.raises(SetError) as error:
        release.student_copy(planted(one or sets.find("01_collapse"), source), PUBLIC, BOOK)
    return str(error.value)


def test_the_planted_set_is_the_set_itself():
    one = sets.find("01_collapse")
    assert release.student_copy(planted(one, one.source), PUBLIC, BOOK)


def cells_of(marker):
    """The first cell of the first set that has a marker, and a text cell that has it, if there is one."""
    for cell in sets.find("01_collapse").notebook(PUBLIC).cells:
        if marker in cell.source:
            yield cell


@pytest.mark.parametrize("marker", ALL_MARKERS)
def test_a_mistyped_marker_is_refused_in_every_kind_of_cell(marker):
    tried = 0
    for cell in cells_of(marker):
        name = cell.metadata["nbgrader"]["grade_id"]
        if name not in ("assign", "measured", "check-assign", "believe"):
            continue
        original = cell.source
        for _, typo in (pair for pair in TYPOS if pair[0] == marker):
            cell.source = original.replace(marker, typo)
            with pytest.raises(SetError):
                release.check_markers(cell, name)
                raise AssertionError(f"{typo!r} gets through in {name}")
            tried += 1
    assert tried > 60


@pytest.mark.parametrize(("begin", "end"), MARKERS.items())
def test_two_mistyped_markers_are_refused(begin, end):
    """In one cell, the same way; the whole release step, too."""
    one = sets.find("01_collapse")
    for cell in cells_of(begin):
        original = cell.source
        for mine, yours in zip(typos(begin), typos(end)):
            if mine.strip() != begin and yours.strip() != end:
                cell.source = original.replace(begin, mine).replace(end, yours)
                with pytest.raises(SetError):
                    release.check_markers(cell, "cell")
        cell.source = original
    for mine, yours in (("# ---", "# ---"), ("### HERE", "### THERE"), ("", "")):
        assert "missing" in (told := refused(one.source.replace(begin, mine).replace(end, yours))) or "marker" in told


FAULTS = {
    "no metadata": ("nbgrader: {grade: false, grade_id: assign,", "other: {grade: false, grade_id: assign,"),
    "misspelled metadata": (
        "nbgrader: {grade: false, grade_id: assign,",
        "nbgrader: {grade: false, grade_idd: assign,",
    ),
    "not a solution": ("grade_id: assign, locked: false, schema_version: 3, solution: true", None),
    "not a check": ("nbgrader: {grade: true, grade_id: check-assign, locked: true, points: 2,", None),
    "used twice": ("grade_id: in-use,", "grade_id: assign,"),
    "no code cell": (
        "```{code-cell} ipython3\n---\nnbgrader: {grade: false, grade_id: assign,",
        "```{code-cel} ipython3\n---\nnbgrader: {grade: false, grade_id: assign,",
    ),
    "another end": ("### END HIDDEN TESTS", "### END SOLUTION"),
    "begun twice": ("    ### BEGIN SOLUTION\n", "    ### BEGIN SOLUTION\n    ### BEGIN SOLUTION\n"),
    "no canary": (f"    # {canaries(sets.find('01_collapse'))[0]}\n", ""),
    "canary in the open": ("def in_use(weights, mask):\n", "def in_use(weights, mask):\n    # canary-01-e6b9\n"),
    "no numbers": ("grade_id: instance,", "grade_id: numbers,"),
    "broken metadata": (
        "---\nnbgrader: {grade: false, grade_id: assign,",
        "---\nnbgrader: {grade: false, grade_id assign: {",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_source_stops_the_release(fault):
    old, new = FAULTS[fault]
    if new is None:
        new = old.replace("solution: true", "solution: false").replace("grade: true", "grade: false")
        new = new.replace("points: 2, ", "")
    source = sets.find("01_collapse").source
    assert old in source
    assert "01_collapse" in refused(source.replace(old, new, 1))


def test_the_command_tells_a_fault_and_writes_nothing(tmp_path, monkeypatch, capsys):
    broken = planted(sets.find("01_collapse"), sets.find("01_collapse").source.replace("### END SOLUTION", "", 1))
    monkeypatch.setattr(release, "all_sets", lambda: [broken])
    monkeypatch.setattr(release, "read_book", lambda root: BOOK)
    assert release.main(["--key", KEYS[1], "--out", str(tmp_path)]) == 1
    assert "'### END SOLUTION' is missing" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_names_of_students(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(release, "all_sets", lambda: [sets.find("01_collapse")])
    monkeypatch.setattr(release, "read_book", lambda root: BOOK)
    (tmp_path / "names.txt").write_text("ada\n\nben.b\n", encoding="utf-8")
    options = ["--key", KEYS[1], "--students", str(tmp_path / "names.txt"), "--out", str(tmp_path / "out")]
    assert release.main(options) == 0
    made = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.ipynb"))
    assert made == ["ada/01_collapse.ipynb", "ben.b/01_collapse.ipynb"]
    for names in ("../ada\n", "ada\nada\n", "", ".ada\n", "a/b\n"):
        (tmp_path / "names.txt").write_text(names, encoding="utf-8")
        assert release.main(options) == 1
        assert "names.txt" in capsys.readouterr().err
    assert release.main(["--key", ""]) == 1
    assert "KEY is missing" in capsys.readouterr().err


# ---------------------------------------------------------------- leaks


def hidden_lines(one):
    """Canaries, and lines of the reference, of the wrong answers and of what is hidden, that students do not see."""
    lines = (one.folder / "reference.py").read_text("utf-8").split("\n")
    lines += [line for answer in one.wrong_answers for line in answer.source.split("\n")]
    shown = []
    for cell in one.notebook(PUBLIC).cells:
        hidden, more = release.check_markers(cell, one.name)
        lines, shown = lines + hidden, shown + more
    lines = {line.strip() for line in lines if len(line.strip()) > 40} - set(shown)
    return {*canaries(one), *lines, "from exercises.hidden import"}


@SETS
def test_nothing_hidden_is_in_a_notebook_that_students_get(one):
    hidden = hidden_lines(one)
    assert len(hidden) > 50
    for copy in ((release.RELEASE / f"{one.name}.ipynb").read_text("utf-8"), release.student_copy(one, KEYS[1], BOOK)):
        text = json.dumps(json.loads(copy), ensure_ascii=False)
        for words in hidden:
            assert json.dumps(words, ensure_ascii=False)[1:-1] not in text


@SETS
def test_nothing_hidden_is_on_the_site(one):
    site = ROOT / "_build" / "html"
    if not site.is_dir():
        pytest.skip("the site is not built")
    secret = [words.encode() for words in {*canaries(one), "from exercises.hidden import", "exercises.checks"}]
    for path in [path for path in site.rglob("*") if path.suffix in (".html", ".js", ".md", ".ipynb", ".inv", ".txt")]:
        content = path.read_bytes()
        assert not [words for words in secret if words in content], path


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The wheel and the sdist, built from a copy of all that could get into them."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info", ".ipynb_checkpoints")
    for name in ("ddcl_lite", "book", "exercises", "tests", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=leave)
        elif (ROOT / name).exists():
            shutil.copy2(ROOT / name, source / name)
    for kind in ("sdist", "wheel"):
        script = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
        command = [sys.executable, "-c", script, str(target)]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    return target


def test_nothing_hidden_is_in_the_wheel_or_the_sdist(distributions):
    wheel, sdist = next(distributions.glob("*.whl")), next(distributions.glob("*.tar.gz"))
    with zipfile.ZipFile(wheel) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    with tarfile.open(sdist) as file:
        contents |= {one.name: file.extractfile(one).read() for one in file.getmembers() if one.isfile()}
    assert len(contents) > 50
    assert not [name for name in contents if "exercises/" in name]
    secret = [canary.encode() for one in sets.all_sets() for canary in canaries(one)]
    assert not [name for name, content in contents.items() for words in secret if words in content]


# ---------------------------------------------------------------- nbgrader itself

NBGRADER = """
import json, sys
from pathlib import Path
import nbformat
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from traitlets.config import Config
from exercises import bank, grade, sets
from exercises.runner import run
from exercises.submission import collect

key, course = "autumn-term-26", Path.cwd()
one = sets.find("01_collapse")
source = course / "source" / "ps" / "01_collapse.ipynb"
source.parent.mkdir(parents=True)
nbformat.write(one.notebook(key), source)
config = Config()
config.CourseDirectory.root = str(course)
config.ClearSolutions.code_stub = {"python": 'raise NotImplementedError("your answer goes here")'}
config.ExecutePreprocessor.timeout = 60
api = NbGraderAPI(config=config)
made = api.generate_assignment("ps", create=True)
assert made["success"], made
handed_out = nbformat.read(course / "release" / "ps" / "01_collapse.ipynb", as_version=4)
assert "canary-" not in nbformat.writes(handed_out)
wrong = {answer.cell: answer.source for answer in one.wrong_answers if answer.name in %s}
answers = bank.official(one, key) | wrong | {"believe": "<!-- Cell believe -->\\nThree questions."}
for cell in handed_out.cells:
    name = cell.metadata.get("nbgrader", {}).get("grade_id")
    if name in answers and name != "cosine":
        cell.source = answers[name]
path = course / "submitted" / "ada" / "ps" / "01_collapse.ipynb"
path.parent.mkdir(parents=True)
nbformat.write(handed_out, path)
done = api.autograde("ps", "ada")
assert done["success"], done
with Gradebook(f"sqlite:///{course}/gradebook.db") as book:
    notebook = book.find_submission_notebook("01_collapse", "ps", "ada")
    theirs = {each.name: each.auto_score for each in notebook.grades}
grade.warm_up(one)
ours = {r.name: r.earned if r.status != "to read" else None for r in run(one, collect(path, one, key, "ada"), key)}
print(json.dumps([theirs, ours]))
"""
WRONG = ("mask ignored", "bits and nats", "the library's own under another name", "padded rank", "guess")


@forks
@pytest.mark.timeout(900)
def test_a_mixed_submission_gets_the_same_points_from_nbgrader(tmp_path):
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # nbgrader calls alembic by its name
    environment = os.environ | {"COURSE_KEY": "autumn-term-26", "PYTHONPATH": str(ROOT), "PATH": here}
    command = [sys.executable, "-c", NBGRADER % (WRONG,)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    theirs, ours = json.loads(done.stdout.strip().split("\n")[-1])
    assert theirs == ours
    assert 0 < sum(score or 0 for score in theirs.values()) < 17
