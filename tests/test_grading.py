"""A class of notebooks, graded by the command: good ones, mixed ones, and whatever else gets handed in."""

import csv
import html
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from book.export import Book  # noqa: E402
from exercises import bank, release, sets  # noqa: E402
from exercises.grade import first_name, submissions  # noqa: E402
from exercises.sets import PUBLIC  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the grader forks")

BOOK = Book(ROOT, "ada", "notes", "main", "1.0")
ONE, KEY = sets.find("01_collapse"), "autumn-term-26"
FULL = 17  # points of the checks; 3 more are for a text
TEXT = "<!-- Cell believe -->\nHow is use counted, how far apart are the codes, and what do the tokens do?"


def command(folder, key=KEY, *options, **more):
    arguments = [sys.executable, "-m", "exercises.grade", str(folder), "--key", key, *options]
    more = {"env": os.environ | {"PYTHONHASHSEED": "0"}} | more  # as make does: one start in place of two
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, **more)


def table(folder):
    with open(folder / "graded" / "grades.csv", encoding="utf-8", newline="") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def page(folder, student):
    return html.unescape((folder / "graded" / "feedback" / f"{student}.html").read_text(encoding="utf-8"))


def files(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def copy(key=KEY, student=""):
    """A student's notebook as it is handed out, each source in one piece."""
    notebook = json.loads(release.student_copy(ONE, key, BOOK, student))
    for one in notebook["cells"]:
        one["source"] = "".join(one["source"])
    return notebook


def cell(notebook, name):
    return next(c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == name)


def filled(key=KEY, student="", **answers):
    """A student's notebook with the official answers, or others; underscores stand for hyphens."""
    notebook = copy(key, student)
    given = bank.official(ONE, key, student) | {"believe": TEXT}
    given |= {name.replace("_", "-"): source for name, source in answers.items()}
    for name, source in given.items():
        cell(notebook, name)["source"] = source
    return notebook


def as_colab_saves(notebook):
    """Lists of lines, another metadata, format 4.0."""
    notebook = json.loads(json.dumps(notebook))
    for number, one in enumerate(notebook["cells"]):
        one.pop("id", None)
        one["metadata"] = {"id": f"x{number}", "colab": {"base_uri": "https://localhost:8080/"}, "outputId": "y"}
        one["source"] = one["source"].splitlines(keepends=True)
        if one["cell_type"] == "code":
            one["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["1.0\n"]}]
    notebook["metadata"] = {"colab": {"provenance": []}, "kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook["nbformat_minor"] = 0
    return notebook


def without(notebook, name):
    notebook["cells"].remove(cell(notebook, name))
    return notebook


def changed(notebook, change):
    change(notebook)
    return notebook


def own(source, kind="code"):
    return {"cell_type": kind, "metadata": {}, "source": source, "outputs": [], "execution_count": None}


COSINE = bank.official(ONE, KEY)["cosine"]
OFFICIAL = {  # what should get everything, whatever the file went through
    "official": lambda: filled(),
    "with spaces": lambda: filled(),
    "Zoë Ångström": lambda: filled(),
    "=cmd|' -C0'!A0": lambda: filled(),
    "..%2F..%2Fetc": lambda: filled(),
    "saved twice (1)": lambda: filled(),
    "colab": lambda: as_colab_saves(filled()),
    "stub left below": lambda: filled(cosine=COSINE + '\n    raise NotImplementedError("your answer goes here")'),
    "figures": lambda: filled(cosine=COSINE + "\nimport matplotlib.pyplot as plt\nfor i in range(30): plt.figure()"),
    "magics": lambda: filled(cosine="!echo hello\n%matplotlib inline\n" + COSINE),
}


def mixed(number):
    """Right in some exercises, wrong in others, some not begun."""
    wrong = ONE.wrong_answers
    chosen = {answer.cell: answer.source for answer in (wrong[5 * number % 46], wrong[(7 * number + 3) % 46])}
    if number % 3 == 0:
        chosen["diagnosis"] = cell(copy(), "diagnosis")["source"]
    return filled(**{name.replace("-", "_"): source for name, source in chosen.items()})


MIXED = {f"mixed{number}": lambda number=number: mixed(number) for number in range(10)}


def reordered(notebook):
    notebook["cells"].reverse()


def renamed(notebook, name="cosine"):
    one = cell(notebook, name)
    one["source"], one["metadata"] = one["source"].split("\n", 1)[1], {}


def moved_to_the_end(notebook):
    one = cell(notebook, "cosine")
    renamed(notebook)
    notebook["cells"].remove(one)
    notebook["cells"].append(one)


def helper(notebook):
    notebook["cells"].insert(notebook["cells"].index(cell(notebook, "cosine")), own("HELP = 1"))


def text_in_an_own_cell(notebook):
    cell(notebook, "believe")["source"] = "<!-- Cell believe -->\nYOUR ANSWER HERE"
    notebook["cells"].append(own("My three questions are these.", "markdown"))


def instance_edited(notebook):
    cell(notebook, "instance")["source"] = cell(notebook, "instance")["source"].replace('"scale"', '"scala"')
    cell(notebook, "instance")["source"] = cell(notebook, "instance")["source"].replace("'scale'", "'scala'")


def checks_edited(notebook):
    cell(notebook, "check-assign")["source"] = "# Cell check-assign\nassert True"
    cell(notebook, "setup")["source"] += "\nfrom math import tau"
    cell(notebook, "assign")["source"] = "def assign(tokens, prototypes, temperature, mask=None):\n    return tau"


NASTY = {  # name: (what is handed in, points, what the page says)
    "unsolved": (lambda: copy(), 0, "Not answered yet"),
    "loop": (lambda: filled(assign="while True: pass"), 13, "it took more than 4 s"),
    "loop that catches": (
        lambda: filled(cosine="import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass"),
        15,
        "could not be stopped",
    ),
    "loop in a check": (
        lambda: filled(cosine="def cosine_across(*a, **k):\n    while True: pass"),
        15,
        "took more than 4 s",
    ),
    "sys exit": (lambda: filled(assign="import sys\nsys.exit(1)"), 13, "it ends the program (SystemExit)"),
    "exit": (lambda: filled(assign="exit()"), 13, "it ends the program"),
    "os exit": (lambda: filled(cosine="import os\nos._exit(0)"), 15, "it ended the whole process"),
    "crash": (lambda: filled(cosine="import ctypes\nctypes.string_at(0)"), 15, "it ended the whole process (SIGSEGV)"),
    "crash in a check": (
        lambda: filled(cosine="import os\ndef cosine_across(*a, **k):\n    os.abort()"),
        15,
        "While your answer was checked, it ended the whole process (SIGABRT)",
    ),
    "kills the grader": (lambda: filled(cosine="import os\nos.kill(os.getppid(), 9)"), 0, "ended the grader itself"),
    "input": (lambda: filled(cosine='x = input("well?")'), 15, "it asks for input()"),
    "output": (lambda: filled(cosine='while True: print("x" * 100000)'), 15, "it prints or writes more than 16 MiB"),
    "output twice": (
        lambda: filled(cosine='print("x" * (12 << 20))\n' + COSINE, assign='while True: print("x" * 100000)'),
        13,
        "it prints or writes more than 16 MiB",
    ),
    "memory": (lambda: filled(cosine="x = torch.ones(10**11)"), 15, "it needs more than 6144 MiB of memory"),
    "objects": (lambda: filled(cosine="x = [torch.empty(10**9) for _ in range(9)]"), 15, "more than 6144 MiB"),
    "closed output": (lambda: filled(cosine="import sys\nsys.stdout.close()\n" + COSINE), 17, "right"),
    "syntax": (lambda: filled(cosine="def cosine_across(:\n  pass"), 15, "SyntaxError in line 1"),
    "null": (lambda: filled(cosine="x = '\x00'"), 15, "Your cell stopped"),
    "half a character": (lambda: filled(cosine="raise ValueError('\\ud800 \ud800')"), 15, "ValueError"),
    "no module": (lambda: filled(cosine="import nosuchmodule"), 15, "No module named 'nosuchmodule'"),
    "where it runs": (
        lambda: filled(cosine="import os\nraise ValueError(os.getcwd())"),
        15,
        "ValueError: .../notebook",
    ),
    "no numpy": (
        lambda: filled(cosine="def cosine_across(*a, **k):\n    return np.float64(0)"),
        15,
        "NameError: name 'np' is not defined",
    ),
    "partly": (
        lambda: filled(measured="separation = dl.min_separation(bank, tokens, mask)\nraise NotImplementedError"),
        15,
        "not under the name rank",
    ),
    "missing": (lambda: without(filled(), "cosine"), 15, "The cell cosine is missing"),
    "duplicated": (
        lambda: changed(filled(), lambda n: n["cells"].append(cell(copy(), "cosine"))),
        17,
        "The cell cosine is there 2 times: the last one that was filled in counts",
    ),
    "overwritten": (
        lambda: changed(filled(), lambda n: n["cells"].append(own("def assign(*a): return 1"))),
        17,
        "right",
    ),
    "reordered": (lambda: changed(filled(), reordered), 17, "in another order"),
    "renamed": (lambda: changed(filled(), renamed), 17, "The cell cosine is missing, or what names it"),
    "moved": (lambda: changed(filled(), moved_to_the_end), 17, "The cell cosine is missing, or what names it"),
    "other name": (
        lambda: filled(cosine=COSINE.replace("cosine_across", "my_cosine")),
        15,
        "not under the name cosine_across",
    ),
    "edited": (lambda: changed(filled(), checks_edited), 13, "The check check-assign was changed"),
    "numbers edited": (lambda: changed(filled(), instance_edited), 17, "The cell instance was changed"),
    "numbers missing": (lambda: without(filled(), "instance"), 17, "the numbers of the class were used"),
    "helper": (
        lambda: changed(filled(cosine="def cosine_across(r, a, b, n, m):\n    return HELP"), helper),
        15,
        "same whatever goes in",
    ),
    "own text": (lambda: changed(filled(), text_in_an_own_cell), 17, "your own text cells are read in its place"),
    "imports the answers": (lambda: filled(assign="import exercises.sets"), 13, "No module named"),
    "takes the check": (
        lambda: filled(assign="import exercises.hidden\nexercises.hidden.check = print\ndef assign(*a): return 1"),
        13,
        "No module named",
    ),
    "replaces the check": (
        lambda: filled(
            assign="import sys, types\nsys.modules['exercises'] = types.ModuleType('exercises')\n"
            "sys.modules['exercises.hidden'] = types.ModuleType('h')\nsys.modules['exercises.hidden'].check = print\n"
            "def assign(tokens, prototypes, temperature, mask=None):\n"
            "    return torch.full((*tokens.shape[:-1], len(prototypes)), 0.5)"
        ),
        13,
        "not right",
    ),
    "calls it twice": (
        lambda: filled(
            assign="def assign(*a, **k):\n    try:\n        return dl.assign(*a, **k)\n"
            "    except AssertionError:\n        return dl.assign(*a, **k)"
        ),
        13,
        "without ddcl_lite's assign",
    ),
    "patches the library": (
        lambda: filled(
            diagnosis="import ddcl_lite.measures\nddcl_lite.measures.checkup = dl.checkup = lambda *a: {'x': 1.0}\n"
            "diagnosis = dict.fromkeys('ABCD', 'healthy')\nwitness = {'A': 'x', 'B': 'x', 'C': 'x'}"
        ),
        13,
        "not right",
    ),
    "public": (lambda: filled(key=PUBLIC), 0, "This is the public copy of the set"),
    "other course": (lambda: filled(key="spring-term-27"), 0, "belong to another course, or to another student"),
    "other set": (
        lambda: json.dumps(filled()).replace("Set 01_collapse", "Set 02_x"),
        0,
        "is the problem set 02_x, not",
    ),
    "other notebook": (lambda: {"cells": [own("print(1)")]}, 0, "This is not a copy of the problem set 01_collapse"),
    "cut off": (lambda: '{"cells": [ {', 0, "its JSON breaks off or is damaged at line 1"),
    "empty": (lambda: "", 0, "its JSON breaks off"),
    "list": (lambda: "[1, 2]", 0, "no notebook of format 4"),
    "strange cells": (lambda: {"cells": [1, {"metadata": {"nbgrader": {"grade_id": []}}}]}, 0, "This is not a copy"),
    "digits": (lambda: '{"cells": ' + "1" * 5000 + "}", 0, "The file cannot be read: ValueError"),
    "deep": (lambda: "[" * 10**5, 0, "The file cannot be read: RecursionError"),
    "bytes": (lambda: b"\xff\xfe\xfa", 0, "The file is not text"),
    "folder": (lambda: None, 0, "This is not a file"),
}


def hand_in(folder, notebooks):
    folder.mkdir(exist_ok=True)
    for name, content in notebooks.items():
        path = folder / f"{name}.ipynb"
        if content is None:
            path.mkdir()
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
    """Every bad submission, graded once."""
    folder = hand_in(tmp_path_factory.mktemp("nasty"), {name: make() for name, (make, _, _) in NASTY.items()})
    done = command(folder, KEY, "--cell-seconds", "4", "--seconds", "100")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", NASTY)
def test_a_bad_submission_gets_a_message_and_what_it_is_worth(nasty, name):
    _, points, message = NASTY[name]
    assert message in page(nasty, name)
    row = table(nasty)[name]
    assert float(row["total"]) == points
    assert row["of"] == "20"
    assert sum(float(row[each]) for each in ("assign", "in-use", "cosine", "measured", "diagnosis")) == points


@pytest.fixture(scope="module")
def class_of_30(tmp_path_factory):
    fast = ["unsolved", "sys exit", "os exit", "input", "output", "syntax", "missing", "public", "cut off", "folder"]
    folder = tmp_path_factory.mktemp("class")
    hand_in(folder, {name: make() for name, make in (OFFICIAL | MIXED).items()})
    hand_in(folder, {name: NASTY[name][0]() for name in fast})
    (folder / "late.txt").write_text("sorry", encoding="utf-8")
    began = time.monotonic()
    done = command(folder)
    assert done.returncode == 0, done.stderr
    return folder, done, time.monotonic() - began


def test_right_answers_get_all_points_whatever_the_file_went_through(class_of_30):
    folder, done, _ = class_of_30
    rows = table(folder)
    for name in OFFICIAL:
        shown = {"=cmd|' -C0'!A0": "'=cmd|' -C0'!A0", "saved twice (1)": "saved twice"}.get(name, name)
        assert rows[shown]["total"] == f"{FULL}", name
        assert rows[shown]["to read"] == "3", name
        assert rows[shown]["status"] == "graded", name
    assert "30 submissions: " in done.stdout
    assert "late.txt" in done.stdout


def test_a_class_of_thirty_graded_twice_gives_the_same_files(class_of_30, capsys):
    folder, _, seconds = class_of_30
    before = files(folder / "graded")
    assert len(before) == 32
    done = command(folder, KEY, "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert files(folder / "graded") == before
    with capsys.disabled():
        print(f"\na class of 30 graded in {seconds:.0f} s", file=sys.stderr)


def test_the_overview_counts_each_misconception_once_a_student(tmp_path):
    theirs = filled(
        in_use="def in_use(weights, mask):\n    return dl.usage(weights, mask), dl.perplexity(weights, mask)\n"
    )
    hand_in(tmp_path, {"ada": theirs, "ben": theirs, "cai": filled()})
    assert command(tmp_path).returncode == 0
    seen = (tmp_path / "graded/overview.html").read_text("utf-8")
    assert "3 students" in seen
    row = next(row for row in seen.split("<tr>") if "<td>called</td>" in row)
    assert row.startswith('<td class="n">2</td><td>in-use</td>')


def test_a_student_s_own_hash_order_and_random_numbers_are_the_same_every_time(tmp_path):
    source = (
        "import random\nraise ValueError(f'{set(\"abcdefgh\")} {random.random()} {float(torch.rand(()))} {object()}')"
    )
    hand_in(tmp_path, {"ada": filled(cosine=source)})
    seen = []
    for hash_seed in "12":
        assert command(tmp_path, env=os.environ | {"PYTHONHASHSEED": hash_seed}).returncode == 0
        seen.append(files(tmp_path / "graded"))
    assert seen[0] == seen[1]
    assert "ValueError" in page(tmp_path, "ada")


# ---------------------------------------------------------------- keys and names


def test_every_student_s_own_numbers(tmp_path):
    """Recognised by the file's name, also of a second copy; another student's are refused."""
    names = ["ada", "ben", "Zoe\u0308", "cai"]
    own_copies = {name: filled(student=name) for name in names}
    numbers = {name: cell(own_copies[name], "instance")["source"] for name in names}
    assert len(set(numbers.values())) == 4
    by_file = {"ada": own_copies["ada"], "ben (1)": own_copies["ben"], "Zo\u00eb": own_copies["Zoe\u0308"]}
    hand_in(tmp_path, by_file | {"cai": own_copies["ada"], "dan": filled()})
    assert command(tmp_path).returncode == 0
    rows = table(tmp_path)
    assert {name: row["total"] for name, row in rows.items()} == {
        "ada": "17", "ben": "17", "Zo\u00eb": "17", "cai": "0", "dan": "17"
    }  # fmt: skip
    assert "to another student" in page(tmp_path, "cai")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "KEY is missing"),
        ("short", "KEY has 5 characters"),
        ("another-key-1", "is KEY the key of these notebooks?"),
    ],
)
def test_a_wrong_or_missing_key_says_so(tmp_path, key, message):
    hand_in(tmp_path, {"ada": filled()})
    done = command(tmp_path, key)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_notebooks_says_so(tmp_path):
    done = command(tmp_path / "none")
    assert (done.returncode, "there is no such folder" in done.stderr) == (1, True)
    done = command(tmp_path)
    assert (done.returncode, "no file there ends in .ipynb" in done.stderr) == (1, True)
    hand_in(tmp_path, {"ada": {"cells": [own("1")]}})
    done = command(tmp_path)
    assert (done.returncode, "name it with SET=" in done.stderr) == (1, True)


def test_names_of_files():
    assert first_name("ada (1)") == first_name("ada(2)") == "ada"
    assert first_name("(1)") == "(1)"


def test_two_files_of_one_student_stay_two(tmp_path):
    hand_in(tmp_path, {"ada": "", "ada (1)": "", "ben (2)": ""})
    os.close(os.open(os.fsencode(tmp_path) + b"/b\xffd.ipynb", os.O_CREAT))
    assert list(submissions(tmp_path)) == ["ada (1)", "ada", "ben", "b\\xffd"]


# ---------------------------------------------------------------- points by hand


def by_hand(folder, *rows, head="student,cell,points,comment"):
    (folder / "manual.csv").write_text("\n".join([head, *rows]) + "\n", encoding="utf-8-sig")


def test_points_by_hand_are_in_the_table_and_on_the_page(tmp_path):
    hand_in(tmp_path, {"ada": filled(), "=ben": filled(), "cai": "", "dan": filled()})
    by_hand(
        tmp_path, 'ada,believe,2.5,"Two good questions, <one> vague."', "'=ben,believe,0,", "cai,believe,3,On paper."
    )
    assert command(tmp_path).returncode == 0
    rows = table(tmp_path)
    assert {name: (row["total"], row["believe"], row["to read"]) for name, row in rows.items()} == {
        "ada": ("19.5", "2.5", "0"), "'=ben": ("17", "0", "0"), "cai": ("3", "3", "0"), "dan": ("17", "0", "3")
    }  # fmt: skip
    assert "Two good questions, <one> vague." in page(tmp_path, "ada")
    assert "&lt;one&gt;" in (tmp_path / "graded/feedback/ada.html").read_text("utf-8")
    assert "2.5 of 3" in page(tmp_path, "ada")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("bob,believe,1,", "line 3: there is no file of a student 'bob'"),
        ("ada,assign,1,", "line 3: 'assign' is no answer that a person reads; there is believe"),
        ("ada,believe,4,", "line 3: 4 points for believe, expected 0 to 3"),
        ("ada,believe,-1,", "expected 0 to 3"),
        ("ada,believe,nan,", "expected 0 to 3"),
        ("ada,believe,two,", "line 3: 'two' is no number of points"),
        ("cai,believe,1,", "line 3: 'cai' has points for believe already"),
        ("ada,believe,1", "expected the columns student, cell, points, comment"),
        ("ada,believe,1,2,5", "expected the columns"),
    ],
)
def test_a_mistake_in_the_points_by_hand_is_told_before_grading(tmp_path, row, message):
    hand_in(tmp_path, {"ada": filled(), "cai": filled()})
    by_hand(tmp_path, "cai,believe,1,", row)
    done = command(tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / "graded").exists()


# ---------------------------------------------------------------- what must not happen


def test_an_interrupted_run_leaves_no_process_and_no_files(tmp_path):
    hand_in(tmp_path, {f"s{number}": filled(cosine="import time\ntime.sleep(60)") for number in range(4)})
    mark = f"GRADING={uuid.uuid4()}"
    ours = dict([mark.split("=")], TMPDIR=str(tmp_path))
    arguments = [sys.executable, "-m", "exercises.grade", str(tmp_path), "--key", KEY]
    process = subprocess.Popen(arguments, cwd=ROOT, env=os.environ | ours, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while len(running(mark)) < 5 and time.monotonic() < end:  # it, two workers, and a child of each
        time.sleep(0.1)
    assert len(running(mark)) == 5
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in told and "Traceback" not in told
    while running(mark) and time.monotonic() < end:
        time.sleep(0.1)
    assert running(mark) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"s{number}.ipynb" for number in range(4)]


def running(mark):
    """Processes that have a variable in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found.append(path.name)
        except OSError:
            pass
    return found


def test_nothing_hidden_is_in_what_a_class_gets(nasty, class_of_30):
    canaries = set(re.findall(r"canary-[\w-]+", ONE.source))
    assert len(canaries) > 10
    code = hidden_code()
    expected = {
        f"{value:.4f}"
        for check in ONE.checks.values()
        if check.inputs is None and isinstance(value := check.reference(ONE.instance(KEY)), float)
    }
    assert len(code) > 100 and len(expected) == 3
    for folder in (nasty, class_of_30[0]):
        for name, content in files(folder / "graded").items():
            text = html.unescape(content.decode())
            assert not [word for word in (*canaries, *code, *expected, KEY) if word in text], name


def hidden_code():
    """Lines of what the checks compare with, and of the bank, that are not in the notebooks either."""
    lines = (ONE.folder / "reference.py").read_text("utf-8").split("\n")
    lines += [line for answer in ONE.wrong_answers for line in answer.source.split("\n")]
    shown = {line.strip() for one in copy()["cells"] for line in one["source"].split("\n")}
    return {line.strip() for line in lines if len(line.strip()) > 30} - shown
