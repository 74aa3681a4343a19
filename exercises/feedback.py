"""Results -> a page for every student, an overview of the class, and a table to import."""

import csv
import html
import io
from collections import Counter
from dataclasses import dataclass

from .sets import Set
from .worker import Result

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}
body{color:#1b1b1b;background:#fff}table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;padding:.35rem .6rem;border-bottom:1px solid #ccc}
td.n{text-align:right;white-space:nowrap}.right{color:#00604b}.wrong,.stopped{color:#9c2f00}
@media(prefers-color-scheme:dark){body{color:#e8e8e8;background:#161616}.right{color:#5fd3b0}.wrong,.stopped{color:#ff9d70}}"""
WORDS = {
    "right": "right",
    "wrong": "not right",
    "open": "not answered",
    "to read": "to be read by a person",
    "read": "read by a person",
    "stopped": "stopped",
}


@dataclass
class Graded:
    """One student: results, what is odd about the file, and a status in a few words."""

    student: str
    results: list[Result]
    notes: list[str]
    status: str

    @property
    def total(self) -> float:
        return sum(result.earned for result in self.results)


def exercises(one: Set, key: str) -> dict[str, float]:
    """Points of every exercise, by the grade_id of its answer, in the order of the set."""
    points, answer = {}, None
    for cell in one.notebook(key).cells:
        about = cell.metadata.get("nbgrader")
        if about and about["solution"]:
            answer = about["grade_id"]
        if about and about["grade"]:
            points[answer] = points.get(answer, 0) + about["points"]
    return points


def table(one: Set, key: str, class_: list[Graded]) -> str:
    """grades.csv: one row a student, ready for a learning-management system."""
    points = exercises(one, key)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["student", "total", "of", *points, "to read", "status"])
    for graded in class_:
        earned = Counter()
        for result in graded.results:
            earned[result.answer] += result.earned
        waiting = sum(result.points for result in graded.results if result.status == "to read")
        row = [_number(earned[name]) for name in points]
        total = [_number(graded.total), _number(sum(points.values()))]
        writer.writerow([plain_name(graded.student), *total, *row, _number(waiting), graded.status])
    return text.getvalue()


def page(one: Set, key: str, graded: Graded) -> str:
    """The feedback of one student: no expected value, no line of a check."""
    rows = []
    for result in graded.results:
        words = f'<td class="{result.status.replace(" ", "-")}">{WORDS[result.status]}</td>'
        number = f'<td class="n">{_number(result.earned)} of {_number(result.points)}</td>'
        rows.append(f"<tr><td>{_e(result.name)}</td>{words}{number}<td>{_e(result.message)}</td></tr>")
    total = f"{_number(graded.total)} of {_number(sum(exercises(one, key).values()))} points"
    notes = "".join(f"<li>{_e(note)}</li>" for note in graded.notes)
    waiting = sum(result.points for result in graded.results if result.status == "to read")
    body = f"<p><strong>{total}</strong>, {_e(graded.status)}.</p>"
    body += f"<p>{_number(waiting)} more points wait for a person to read an answer.</p>" if waiting else ""
    body += f"<h2>About your file</h2><ul>{notes}</ul>" if notes else ""
    head = "<tr><th>check</th><th>result</th><th>points</th><th>what to look at</th></tr>"
    body += f"<h2>Checks</h2><table>{head}{''.join(rows)}</table>" if rows else ""
    return _page(f"{_e(one.title)}: {_e(graded.student)}", body)


def overview(one: Set, key: str, class_: list[Graded]) -> str:
    """The class: points by exercise, which mistake how often, whose file needs a look."""
    count = max(len(class_), 1)
    rows = []
    for name, most in exercises(one, key).items():
        mean = sum(r.earned for graded in class_ for r in graded.results if r.answer == name) / count
        full = sum(sum(r.earned for r in graded.results if r.answer == name) == most for graded in class_)
        rows.append(
            f'<tr><td>{_e(name)}</td><td class="n">{mean:.2f} of {_number(most)}</td><td class="n">{full}</td></tr>'
        )
    head = "<tr><th>exercise</th><th>points, mean</th><th>students with all of them</th></tr>"
    body = f"<p>{len(class_)} students.</p><h2>Exercises</h2><table>{head}{''.join(rows)}</table>"
    mistakes, sentences = Counter(), {}
    for graded in class_:
        theirs = {(r.answer, r.mistake): r.message for r in graded.results if r.mistake}
        mistakes.update(theirs.keys())
        sentences = theirs | sentences
    rows = [
        f'<tr><td class="n">{n}</td><td>{_e(answer)}</td><td>{_e(name)}</td><td>{_e(sentences[answer, name])}</td></tr>'
        for (answer, name), n in sorted(mistakes.items(), key=lambda item: (-item[1], item[0]))
    ]
    head = "<tr><th>students</th><th>exercise</th><th>mistake</th><th>what they were told</th></tr>"
    body += f"<h2>Mistakes</h2><table>{head}{''.join(rows)}</table>" if rows else ""
    odd = "".join(f"<li>{_e(g.student)}: {_e(' '.join([g.status + '.', *g.notes]))}</li>" for g in class_ if g.notes)
    body += f"<h2>Files that need a look</h2><ul>{odd}</ul>" if odd else ""
    return _page(f"{_e(one.title)}: the class", body)


def _page(title: str, body: str) -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    head += f"<style>{STYLE}</style>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{title}</h1>{body}</body></html>\n'


def _e(text) -> str:
    return html.escape(str(text))


def _number(value: float) -> str:
    return f"{value:g}"


def plain_name(student: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{student}" if student[:1] in "=+-@\t\r" else student
