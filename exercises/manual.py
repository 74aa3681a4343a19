"""Points that a person gave: `manual.csv` in the folder of submissions: student, cell, points, comment.

One row for each answer read; cell: the name that the feedback page has for it. The next run puts them into everything.
"""

import csv
import io
from pathlib import Path

from .feedback import Graded, plain_name
from .sets import Set, SetError
from .worker import Result

COLUMNS = ["student", "cell", "points", "comment"]


def read_manual(folder: Path, one: Set, key: str, students) -> list[tuple[str, Result]]:
    """(student, result) for each row of the file, if there is one; SetError that names the row and what is wrong."""
    path = folder / "manual.csv"
    if not path.exists():
        return []
    try:
        rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""), skipinitialspace=True)
        rows = [(rows.line_num, row) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SetError(f"{path}: it cannot be read as CSV in UTF-8 ({error})") from None
    names = {plain_name(student): student for student in students} | {student: student for student in students}
    most = {
        cell.metadata["nbgrader"]["grade_id"]: cell.metadata["nbgrader"]["points"]
        for cell in one.notebook(key).cells
        if cell.metadata.get("nbgrader", {}).get("solution") and cell.metadata["nbgrader"]["grade"]
    }
    found = {}
    for number, row in rows:
        where = f"{path}, line {number}"
        if None in row or set(row) != set(COLUMNS) or None in row.values():
            raise SetError(f"{where}: expected the columns {', '.join(COLUMNS)}, separated by commas")
        student, cell, comment = names.get(row["student"].strip()), row["cell"].strip(), row["comment"].strip()
        if student is None:
            raise SetError(f"{where}: there is no file of a student {row['student']!r}")
        if cell not in most:
            raise SetError(f"{where}: {cell!r} is no answer that a person reads; there is {', '.join(most) or 'none'}")
        try:
            points = float(row["points"])
        except ValueError:
            raise SetError(f"{where}: {row['points']!r} is no number of points") from None
        if not 0 <= points <= most[cell]:
            raise SetError(f"{where}: {row['points']} points for {cell}, expected 0 to {most[cell]:g}")
        if (student, cell) in found:
            raise SetError(f"{where}: {student!r} has points for {cell} already")
        found[student, cell] = Result(cell, most[cell], "read", comment or "Read.", answer=cell, given=points)
    return [(student, result) for (student, _), result in found.items()]


def merge(class_: list[Graded], marks: list[tuple[str, Result]]) -> None:
    """Put a person's points in the place of what was to read, also for a file that could not be graded."""
    for student, mark in marks:
        results = next(graded for graded in class_ if graded.student == student).results
        place = next((place for place, result in enumerate(results) if result.name == mark.name), len(results))
        results[place : place + 1] = [mark]
