"""Try the wrong answers of the sets on the grader: `python -m exercises.bank [SET ...]`.

They all run in one process, each in the place of the right answer, and before it: what comes later finds right names.
"""

import sys
from typing import NamedTuple

from .grade import warm_up
from .runner import plan, run_steps
from .sets import PUBLIC, Set, SetError, all_sets, find
from .submission import Submission
from .worker import LIMITS, Result, Step


class WrongAnswer(NamedTuple):
    """One submission that must not get the points of its exercise: `wrong_answers.py` of each set lists them as WRONG.

    name, misconception: what it is and what it stands for. cell: the grade_id of the answer that it replaces. source:
    the cell. mistake: the name by which the grader must know it (`exercises.checks.Mistake`), or "" for general terms.
    """

    name: str
    misconception: str
    cell: str
    source: str
    mistake: str = ""


KEEP = "_before = dict(globals())"
FORGET = "for _name in set(globals()) - {*_before, '_before'}:\n    del globals()[_name]\nglobals().update(_before)"


def official(one: Set, key: str, student: str = "") -> dict[str, str]:
    """The instructor's answers, by grade_id."""
    cells = [cell for cell in one.notebook(key, student).cells if cell.metadata.get("nbgrader", {}).get("solution")]
    return {cell.metadata["nbgrader"]["grade_id"]: cell.source for cell in cells}


def try_all(one: Set, key: str = PUBLIC) -> list[tuple[WrongAnswer, list[Result]]]:
    """Every wrong answer of a set with the results of its checks."""
    right = plan(one, Submission(answers=official(one, key)), key)
    wrong, steps = one.wrong_answers, []
    unknown = {answer.cell for answer in wrong} - {step.name for step in right if step.kind == "answer"}
    if unknown:
        raise SetError(f"{one.name}: wrong answers for {sorted(unknown)}, which are no answers of the set")
    for step in right:
        for place, answer in enumerate(wrong if step.kind == "answer" else []):
            if answer.cell == step.name:
                mine = Step("answer", f"{place}", answer.source, forbidden=step.forbidden)
                checks = [
                    Step("check", f"{place}/{check.name}", check.source, check.points, mine.name)
                    for check in right
                    if check.kind == "check" and check.answer == step.name
                ]
                steps += [Step("own", f"{place}-keep", KEEP), mine, *checks, Step("own", f"{place}-forget", FORGET)]
        steps.append(step)
    results = run_steps(one, steps, key, limits=LIMITS._replace(total=600))
    return [(answer, [r for r in results if r.answer == f"{place}"]) for place, answer in enumerate(wrong)]


def report(one: Set) -> tuple[str, list[str]]:
    """How many are refused in a line, and what is not as it should be."""
    refused, taught, faults = 0, 0, []
    tried = try_all(one)
    for answer, results in tried:
        lost = [result for result in results if result.status != "right"]
        mistakes = {result.mistake for result in lost} - {""}
        refused, taught = refused + bool(lost), taught + bool(mistakes)
        if not lost:
            faults.append(f"{one.name}: {answer.name!r} gets full points")
        elif answer.mistake and answer.mistake not in mistakes:
            faults.append(f"{one.name}: {answer.name!r} should be known as {answer.mistake!r}, not {sorted(mistakes)}")
    return f"{one.name}: {refused} of {len(tried)} wrong answers refused, {taught} by name", faults


def main(names) -> int:
    failed = 0
    try:
        for one in map(find, names) if names else all_sets():
            warm_up(one)
            line, faults = report(one)
            print(line, *faults, sep="\n", flush=True)
            failed += len(faults)
    except SetError as error:
        print(error, file=sys.stderr)
        return 1
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
