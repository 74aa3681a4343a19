"""Instructor's notebook -> student's notebook, through nbgrader: `make exercises`, `make course KEY=...`.

Nothing of a solution or hidden test may get through. nbgrader takes markers literally: a mistyped one would leak what
it should hide. So every line that looks like a marker has to be one, every answer and every check hides something,
what is hidden holds a canary (a comment `canary-..`), and hidden lines and canaries are looked for in the result.
"""

import argparse
import re
import sys
from difflib import SequenceMatcher
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell
from nbgrader import preprocessors
from tqdm import tqdm

from book.export import METADATA, Book, install_cell, name_cells, read_book
from book.myst import Stop

from .sets import FOLDER, PUBLIC, Set, SetError, all_sets, check_key

ROOT = FOLDER.parent
RELEASE, COURSE = FOLDER / "release", FOLDER / "course"
SOLUTION, TESTS = "### BEGIN SOLUTION", "### BEGIN HIDDEN TESTS"
MARKERS = {SOLUTION: "### END SOLUTION", TESTS: "### END HIDDEN TESTS"}
CANARY = "canary-"
STUB = 'raise NotImplementedError("your answer goes here")'
STEPS = ("CheckCellMetadata", "ClearSolutions", "LockCells", "ClearOutput", "ClearHiddenTests")


def check_markers(cell, where: str) -> tuple[list[str], list[str]]:
    """Lines of a cell that students must not see, and those that they see; SetError where a marker is not in order."""
    hidden, shown, end = [], [], None
    for number, line in enumerate(cell.source.split("\n"), 1):
        text = line.strip()
        if text in MARKERS:
            if end:
                raise SetError(f"{where}, line {number}: {text!r} before {end!r}")
            end = MARKERS[text]
        elif text in MARKERS.values():
            if text != end:
                raise SetError(f"{where}, line {number}: {text!r} without its beginning")
            end = None
        elif _looks_like_one(text, cell.cell_type):
            spelled = ", ".join(repr(marker) for pair in MARKERS.items() for marker in pair)
            raise SetError(f"{where}, line {number}: {text!r} looks like a marker and is none; they are {spelled}")
        else:
            (hidden if end else shown).append(text)
    if end:
        raise SetError(f"{where}: {end!r} is missing")
    about = cell.metadata.get("nbgrader", {})
    is_check = about.get("grade") and about.get("locked") and not about.get("solution")
    for marker, needed in (SOLUTION, about.get("solution")), (TESTS, is_check):
        if needed and marker not in cell.source:
            raise SetError(f"{where}: {marker!r} is missing")
        if marker in cell.source and not needed:
            raise SetError(f"{where}: {marker!r} in a cell whose metadata say that it hides nothing of the kind")
    if hidden and not any(CANARY in line for line in hidden):
        raise SetError(f"{where}: no canary (a comment `{CANARY}..`) in what is hidden")
    return hidden, shown


def _looks_like_one(text: str, cell_type: str) -> bool:
    """Whether someone may have meant a line to be a marker. In code, three # are for nothing else."""
    letters = re.sub(r"[^A-Z]", "", text[max(text.find("#"), 0) :].upper())
    meant = [re.sub(r"[^A-Z]", "", marker) for pair in MARKERS.items() for marker in pair]
    near = any(SequenceMatcher(None, letters[:40], marker).ratio() > 0.7 for marker in meant)
    return near or (cell_type == "code" and "###" in text)


def student_copy(one: Set, key: str, book: Book, student: str = "") -> str:
    """The student's notebook as the text of an .ipynb file. The badge of a public one opens it in Colab.

    The same arguments give the same bytes. Raises SetError rather than let anything hidden through.
    """
    made, hidden, shown, names = one.notebook(key, student), [], [], []
    for index, cell in enumerate(made.cells):
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        for lines, more in zip((hidden, shown), check_markers(cell, f"{one.name}, cell {name or index}")):
            lines += more
        if name in names:
            raise SetError(f"{one.name}: the grade_id {name!r} is used twice")
        names += [name] if name else []
    try:
        for step in STEPS:
            options = {"code_stub": {"python": STUB}} if step == "ClearSolutions" else {}
            made, _ = getattr(preprocessors, step)(**options).preprocess(made, {})
    except Exception as error:
        raise SetError(f"{one.name}: nbgrader refuses it: {error}") from None
    badge = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    if key == PUBLIC:
        way = f"{badge}({book.colab((RELEASE / f'{one.name}.md').relative_to(ROOT).as_posix())})"
    else:  # nobody but the instructor knows where this copy will lie
        way = f"{badge}(https://colab.research.google.com/) In Colab: *File, Upload notebook*, and choose this file."
    head = new_markdown_cell(f"{way}\n\n[The book]({book.published('book/index')})")
    made.cells = name_cells([head, install_cell(book), *made.cells])
    made.metadata = METADATA | {"problem_set": {"name": one.name, "instance": one.fingerprint(key, student)}}
    made.nbformat, made.nbformat_minor = 4, 5
    text = nbformat.writes(made).rstrip("\n") + "\n"
    leaked = {line for line in hidden if len(line) > 12}.difference(shown)
    leaked &= {line.strip() for cell in made.cells for line in cell.source.split("\n")}
    if leaked or CANARY in text:
        raise SetError(f"{one.name}: hidden lines are in the student's copy: {sorted(leaked) or CANARY}")
    return text


def write(folder: Path, key: str, sets: list[Set], students: list[str] = ()) -> list[Path]:
    """Write the student copies into a folder; one subfolder a student where there are names."""
    book, paths = read_book(ROOT), []
    jobs = [(one, student) for student in students or [""] for one in sets]
    for one, student in tqdm(jobs, desc="writing student copies", leave=False, delay=1):
        path = folder / student / f"{one.name}.ipynb"
        text = student_copy(one, key, book, student)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        paths.append(path)
    return paths


def read_names(path: str) -> list[str]:
    """One student a line, as their files will be called."""
    try:
        names = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise SetError(f"STUDENTS={path}: {error.strerror}") from None
    for name in names:
        if not re.fullmatch(r"[\w.@+-]+", name) or name.startswith("."):
            raise SetError(f"STUDENTS={path}: {name!r} cannot be part of a file name: letters, digits, . _ @ + - only")
    if not names or len(set(names)) < len(names):
        raise SetError(f"STUDENTS={path}: expected one name a line, each once")
    return names


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser("python -m exercises.release", description="Write the students' notebooks.")
    parser.add_argument("--key", help="the course key; without it, the public copies in exercises/release")
    parser.add_argument("--students", default="", help="a file of names: a copy with numbers of its own for each")
    parser.add_argument("--out", type=Path, help="the folder to write to (with --key: exercises/course)")
    parser.add_argument("--check", action="store_true", help="change nothing; fail where a public copy is out of date")
    options = parser.parse_args(arguments)
    try:
        if options.key is None:
            key, folder = PUBLIC, options.out or RELEASE
        else:
            key, folder = check_key(options.key), options.out or COURSE
        if options.check:
            return check()
        students = read_names(options.students) if options.students else []
        paths = write(folder, key, all_sets(), students)
    except (SetError, Stop) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(paths)} notebooks in {folder}" + (f", for {len(students)} students" if students else ""))
    return 0


def check() -> int:
    """1 where a public copy is not what its source says."""
    book = read_book(ROOT)
    wanted = {f"{one.name}.ipynb": student_copy(one, PUBLIC, book) for one in all_sets()}
    there = {path.name: path.read_text(encoding="utf-8") for path in RELEASE.glob("*.ipynb")}
    stale = sorted(name for name in wanted if there.get(name) != wanted[name])
    stray = sorted(set(there) - set(wanted))
    for name in stale:
        print(f"exercises/release/{name}: out of date; run `make exercises`", file=sys.stderr)
    for name in stray:
        print(f"exercises/release/{name}: no set of this name; delete it", file=sys.stderr)
    return int(bool(stale or stray))


if __name__ == "__main__":
    sys.exit(main())
