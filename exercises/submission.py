"""A student's file -> the answers in it, and what is odd about it.

Whatever was done to the notebook, the grader runs the instructor's one, with the student's answers in their places and
the student's own extra cells before the cells that they precede. So it does not matter whether checks were edited,
moved or deleted.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from .sets import CELL, FIRST_LINE, PUBLIC, Set

LARGEST = 64 * 2**20  # bytes of a file
HIDDEN = "### BEGIN HIDDEN TESTS"


@dataclass
class Submission:
    """What one file holds.

    owner: whose own numbers the copy has; empty for those of the class. answers: source by grade_id, of code and of
    text. extras: grade_id -> sources of the student's own cells before it. notes: what the student should know. fatal:
    why nothing can be graded, else empty.
    """

    owner: str = ""
    answers: dict = field(default_factory=dict)
    extras: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    fatal: str = ""


def read(path: Path) -> tuple[list[dict], str]:
    """The cells of a notebook, each with type, source and name, and why there are none, if so."""
    try:
        if not path.is_file():
            return [], "This is not a file."
        if path.stat().st_size > LARGEST:
            return [], f"The file is larger than {LARGEST >> 20} MiB. Clear its outputs and hand it in again."
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        return [], "The file is not text. Hand in the .ipynb file itself."
    except json.JSONDecodeError as error:
        return [], f"The file is no notebook: its JSON breaks off or is damaged at line {error.lineno}."
    except (OSError, ValueError, RecursionError) as error:
        return [], f"The file cannot be read: {type(error).__name__}."
    if not isinstance(content, dict) or not isinstance(content.get("cells"), list):
        return [], "The file is JSON, but no notebook of format 4: it has no list of cells."
    cells = [_cell(cell) for cell in content["cells"] if isinstance(cell, dict)]
    return cells, "" if cells else "The notebook has no cells."


def _cell(cell: dict) -> dict:
    """Colab writes the source as a list and drops nbgrader's metadata; then the first line of the cell names it."""
    source, name = cell.get("source") or "", None
    source = "".join(map(str, source)) if isinstance(source, list) else str(source)
    source = source.encode(errors="replace").decode()  # half a character cannot be run, and not be written
    if first := CELL.search(source):
        name = first["id"]
    elif isinstance(cell.get("metadata"), dict) and isinstance(cell["metadata"].get("nbgrader"), dict):
        name = cell["metadata"]["nbgrader"].get("grade_id")
    return {"type": cell.get("cell_type"), "source": source, "name": name if isinstance(name, str) else None}


def says(cells: list[dict]):
    """The match of the line that tells set and instance; None if no cell has it."""
    return next(filter(None, (FIRST_LINE.search(cell["source"]) for cell in cells)), None)


def collect(path: Path, one: Set, key: str, student: str) -> Submission:
    """The answers of a file to a set."""
    found = Submission()
    cells, found.fatal = read(path)
    if not found.fatal:
        found.owner, found.fatal = _belongs(cells, one, key, student)
    if found.fatal:
        return found

    notebook = one.notebook(key, found.owner)
    known = {cell.metadata["nbgrader"]["grade_id"]: cell for cell in notebook.cells if "nbgrader" in cell.metadata}
    printed = {cell.source.strip() for cell in notebook.cells}
    answers = [name for name, cell in known.items() if cell.metadata["nbgrader"]["solution"]]
    copies, pending, texts = {}, [], []
    for cell in cells:
        name, source = cell["name"], cell["source"]
        if name in known:
            copies.setdefault(name, []).append(source)
            if name not in answers and source.strip() != known[name].source.split(HIDDEN)[0].strip():
                if known[name].metadata["nbgrader"]["grade"]:
                    found.notes.append(f"The check {name} was changed: the original one counts.")
                elif known[name].cell_type == "code":
                    found.notes.append(f"The cell {name} was changed: yours was run first, then the original.")
                    pending.append(source)
            found.extras.setdefault(name, []).extend(pending)
            pending = []
        elif cell["type"] == "code" and not _install(source):
            pending.append(source)
        elif cell["type"] == "markdown" and source.strip() not in printed and "[![Open in Colab]" not in source:
            texts.append(source)
    for name in answers:
        is_text = known[name].cell_type == "markdown"
        filled = [text for text in copies.get(name, []) if not unanswered(text)] or copies.get(name, [])
        if len(set(copies.get(name, []))) > 1:
            found.notes.append(
                f"The cell {name} is there {len(copies[name])} times: the last one that was filled in counts."
            )
        if is_text and texts and all(map(unanswered, filled)):
            found.answers[name] = "\n\n".join(texts)
            found.notes.append(f"The cell {name} is empty or missing: your own text cells are read in its place.")
        elif filled:
            found.answers[name] = filled[-1]
        else:
            found.notes.append(
                f"The cell {name} is missing, or what names it: what defines its names elsewhere counts."
            )
            found.extras.setdefault(name, []).extend(pending)  # it may be at the end
            pending = []
    order = [name for name in copies if name in answers]
    if order != [name for name in answers if name in order]:
        found.notes.append("The exercises are in another order: they were graded in the order of the set.")
    if "instance" not in copies:
        found.notes.append("The cell with the numbers of the set is missing: the numbers of the class were used.")
    return found


def unanswered(source: str) -> bool:
    """Whether a cell of code still has its stub, or one of text nothing else."""
    return "your answer goes here" in source or not re.sub(r"<!--.*?-->|YOUR ANSWER HERE", "", source).strip()


def _belongs(cells: list[dict], one: Set, key: str, student: str) -> tuple[str, str]:
    """Whose own numbers a file has, and why it is not of this set and key, if so."""
    first = says(cells)
    if first is None:  # the cell with the numbers is gone: graded with the class's, if it is the right set
        answers = {cell.metadata["nbgrader"]["grade_id"] for cell in one.notebook(key).cells if _is_answer(cell)}
        found = answers & {cell["name"] for cell in cells}
        return "", "" if found else f"This is not a copy of the problem set {one.name}."
    if first["set"] != one.name:
        return "", f"This is the problem set {first['set']}, not {one.name}."
    if first["print"] == one.fingerprint(key):
        return "", ""
    if first["print"] == one.fingerprint(key, student):
        return student, ""
    if first["print"] == one.fingerprint(PUBLIC):
        return "", "This is the public copy of the set, with other numbers than the one handed out in the course."
    return "", "The numbers of this copy belong to another course, or to another student."


def _is_answer(cell) -> bool:
    return cell.metadata.get("nbgrader", {}).get("solution", False)


def _install(source: str) -> bool:
    """The cell that installs the library where it is missing."""
    return 'find_spec("ddcl_lite") is None' in source
