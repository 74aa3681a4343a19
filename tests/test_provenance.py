"""The provenance page: what it shows of the build, of stored results and of the matrix, and what it refuses to show."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from book import provenance  # noqa: E402

RESULT = {"chapter": "01_one", "passed": True, "seconds": 12.3, "note": ""}
RUN = {
    "name": "a",
    "what": "every cell twice",
    "date": "2026-11-30",
    "commit": "abc",
    "python": "3.11.7",
    "versions": {"torch": "2.13.0"},
    "results": [RESULT],
}
STORED = {"command": "python -m x", "device": "CPU", "date": "2026-11-30", "versions": {"torch": "2.13.0"}}
RAN = {"runtime": 12.34, "mtime": 1e9, "succeeded": True, "error": None}


@pytest.fixture
def app(tmp_path):
    """What Sphinx hands to the page: two chapters, of which the first was executed."""
    (tmp_path / "book" / "results").mkdir(parents=True)
    (tmp_path / "requirements.txt").write_text("pytest==0.1\nno-such-package==1.0\n", encoding="utf-8")
    names = ("chapters/01_one", "chapters/02_two", "book/index", "book/how_to")
    titles = {name: SimpleNamespace(astext=lambda name=name: f"<{name[-3:]}>") for name in names}
    data = {name: {} for name in names} | {"chapters/01_one": {"exec_data": RAN}}
    env = SimpleNamespace(found_docs=set(names), titles=titles, nb_metadata=data)
    return SimpleNamespace(srcdir=str(tmp_path), env=env)


def to(name):
    return f"../{name}.html"


def write(app, name, content):
    text = content if isinstance(content, str) else json.dumps(content)
    (Path(app.srcdir) / "book" / name).write_text(text, encoding="utf-8")


def page(app, section):
    context = {"pathto": to, "body": f'<div data-provenance="{section}"></div>'}
    provenance.fill(app, provenance.PAGE, "page.html", context, None)
    return context["body"]


# Run times.


def test_times_are_those_of_the_execution(app):
    text = provenance.times(app, to)
    assert '<a href="../chapters/01_one.html">&lt;one&gt;</a></td><td>12.3</td><td><time>2001-09-09</time>' in text
    assert "&lt;two&gt;</a></td><td>not executed</td>" in text
    assert "how_to" not in text and "<td>12</td>" in text  # a page without cells; the sum


@pytest.mark.parametrize(
    "change, shown", [({"runtime": None}, "not recorded"), ({"succeeded": False, "error": "Cell<"}, "failed: Cell&lt;")]
)
def test_a_run_that_failed_or_was_not_timed_says_so(app, change, shown):
    app.env.nb_metadata["chapters/01_one"] = {"exec_data": RAN | change}
    assert f"<td>{shown}</td>" in provenance.times(app, to)


# The build.


def test_the_build_names_device_python_and_packages(app):
    text = provenance.build(app, to)
    assert all(f"<strong>{name}</strong>" in text for name in ("Commit", "Built", "Device", "Python", "Packages"))
    assert sys.version.split()[0] in text


def test_packages_are_those_installed():
    assert provenance.packages("# torch==1\npytest==0.1\n") == [f"pytest {pytest.__version__} (pinned: 0.1)"]
    assert provenance.packages(f"pytest=={pytest.__version__}") == [f"pytest {pytest.__version__}"]
    assert provenance.packages("no-such-package==1.0") == ["no-such-package not installed (pinned: 1.0)"]


def test_the_commit_is_that_of_the_book(tmp_path, monkeypatch):
    def git(*arguments):
        who = ("-c", "user.name=x", "-c", "user.email=x", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True, text=True)

    assert provenance.commit(tmp_path) == "unknown"
    git("init")
    (tmp_path / "page.md").write_text("one", encoding="utf-8")
    git("add", "page.md")
    git("commit", "-m", "one")
    head = git("rev-parse", "HEAD").stdout[:12]
    assert provenance.commit(tmp_path) == head
    (tmp_path / "page.md").write_text("two", encoding="utf-8")
    assert provenance.commit(tmp_path) == f"{head}, with changes"
    (tmp_path / "inner").mkdir()
    assert provenance.commit(tmp_path / "inner") == "unknown"  # that repository is not the book's
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.commit(tmp_path) == "unknown"  # no git at all


# Stored results and the matrix.


def test_stored_results_show_how_they_were_made(app):
    write(app, "results/text.json", STORED)
    row = "<td>text</td><td><code>python -m x</code></td><td>CPU</td><td><time>2026-11-30</time></td>"
    assert row + "<td>torch 2.13.0</td>" in page(app, "results")


def test_without_a_file_the_matrix_was_not_run(app):
    assert page(app, "matrix") == "<p>The matrix was not run.</p>"


def test_the_matrix_shows_every_run_and_every_note(app):
    failed = {"chapter": "02_two", "passed": False, "seconds": 1, "note": "needs <that>"}
    other = RUN | {"name": "b", "results": [failed]}
    write(app, "matrix.json", {"runs": [RUN, other]})
    text = page(app, "matrix")
    assert "1 of 2 passed" in text and "every cell twice" in text
    assert "<td>passed, 12 s</td><td>not run</td>" in text
    assert "<td>not run</td><td><strong>FAILED</strong>, 1 s</td>" in text
    assert '<a href="../chapters/02_two.html">&lt;two&gt;</a>, b: needs &lt;that&gt;' in text


def with_result(**change):
    return {"runs": [RUN | {"results": [RESULT | change]}]}


BAD = [
    ("results/text.json", "results", "{", "text.json: expected JSON"),
    ("results/text.json", "results", [], "text.json: expected an object, got []"),
    ("results/text.json", "results", STORED | {"date": 5}, "text.json: date: expected str, got 5"),
    ("matrix.json", "matrix", "", "matrix.json: expected JSON"),
    ("matrix.json", "matrix", {}, "matrix.json: runs: expected list, got None"),
    ("matrix.json", "matrix", {"runs": [RUN | {"what": None}]}, "matrix.json: what: expected str, got None"),
    ("matrix.json", "matrix", with_result(seconds="12"), "run a: seconds: expected a number, got '12'"),
    ("matrix.json", "matrix", with_result(passed=1), "run a: passed: expected bool, got 1"),
    ("matrix.json", "matrix", with_result(passed=False), "run a, 01_one: note: expected the reason of a failure"),
]


@pytest.mark.parametrize("name, section, content, message", BAD)
def test_what_cannot_be_read_is_a_warning_and_a_line_on_the_page(app, monkeypatch, name, section, content, message):
    warnings = []
    monkeypatch.setattr(provenance.LOG, "warning", lambda text, *values: warnings.append(text % values))
    write(app, name, content)
    text = page(app, section)
    assert len(warnings) == 1 and message in warnings[0]  # the book is built with -W
    assert "could not be read" in text


# The page.


def test_the_page_is_read_anew_in_every_build():
    hooks = {}
    provenance.setup(SimpleNamespace(connect=lambda event, hook, **_: hooks.update({event: hook})))
    assert hooks["env-get-outdated"](None, None, set(), set(), set()) == [provenance.PAGE]
    assert (ROOT / f"{provenance.PAGE}.md").is_file()


def test_the_page_has_a_place_for_every_section():
    text = (ROOT / f"{provenance.PAGE}.md").read_text(encoding="utf-8")
    assert [text.count(f'data-provenance="{name}"') for name in provenance.SECTIONS] == [1] * len(provenance.SECTIONS)
    assert text.count("data-provenance") == len(provenance.SECTIONS)


def test_other_pages_stay_as_they_are(app):
    context = {"pathto": to, "body": '<div data-provenance="matrix"></div>'}
    provenance.fill(app, "book/index", "page.html", context, None)
    assert context["body"] == '<div data-provenance="matrix"></div>'
