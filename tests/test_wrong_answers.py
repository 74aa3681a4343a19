"""Every wrong answer of every bank is refused, most with a sentence of their own; one process a set."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from exercises import bank, sets  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the grader forks")
SETS = pytest.mark.parametrize("one", sets.all_sets(), ids=lambda one: one.name)


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)


@SETS
def test_every_wrong_answer_is_refused_and_most_by_name(one, capsys):
    done = python("-m", "exercises.bank", one.name)
    assert done.returncode == 0, done.stdout + done.stderr
    refused, count, by_name = map(int, re.findall(r"\d+", done.stdout.split(":")[1]))
    with capsys.disabled():
        print(f"\n{done.stdout.strip()}", file=sys.stderr)  # of a parallel run, too, this is seen
    assert refused == count == len(one.wrong_answers)
    assert by_name >= 0.8 * count


@SETS
def test_every_exercise_has_five_of_them_with_names_of_their_own(one):
    count = Counter(answer.cell for answer in one.wrong_answers)
    notebook = one.notebook(sets.PUBLIC)
    about = [cell.metadata["nbgrader"] for cell in notebook.cells if "nbgrader" in cell.metadata]
    exercises = {each["grade_id"] for each in about if each["solution"] and not each["grade"]}
    assert set(count) == exercises
    assert min(count.values()) >= 5, count
    assert len({(answer.cell, answer.name) for answer in one.wrong_answers}) == len(one.wrong_answers)
    assert all(answer.misconception for answer in one.wrong_answers)


@SETS
def test_every_mistake_that_is_known_by_name_has_a_sentence_of_its_own(one):
    for name, check in one.checks.items():
        pairs = {(mistake.name, mistake.sentence) for mistake in check.mistakes}
        assert len({known for known, _ in pairs}) == len(pairs) == len({sentence for _, sentence in pairs}), name


PLANTED = """
from exercises import bank, grade, sets
one = sets.find("01_collapse")
grade.warm_up(one)
wrong, right = one.wrong_answers[:2], bank.official(one, sets.PUBLIC)
wrong.append(bank.WrongAnswer("right", "none", "cosine", right["cosine"]))
wrong.append(wrong[0]._replace(name="known as another", mistake="sign"))
sets.Set.wrong_answers = wrong
print(*bank.report(one), sep="\\n")
"""


def test_the_bank_itself_can_fail():
    """A right answer among the wrong ones, and one that is not known by the name given."""
    done = python("-c", PLANTED)
    assert "3 of 4 wrong answers refused" in done.stdout, done.stderr
    assert "'right' gets full points" in done.stdout
    assert "'known as another' should be known as 'sign', not ['wrong axis']" in done.stdout


def test_the_name_of_a_set_that_is_not_there(capsys):
    assert bank.main(["99_none"]) == 1
    assert "there is no set '99_none'" in capsys.readouterr().err
