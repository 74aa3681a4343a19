"""What makes a page stale, what stops a build, what make and the CI script do, and the site's small helpers."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils.core import publish_doctree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from book import build, site_extension  # noqa: E402

SHARED = [
    *("ddcl_lite/layer.py", "ddcl_lite/data/rows.csv", "book/results/full.json", "book/site_extension.py"),
    *("requirements.txt", "_config.yml", "_toc.yml"),
]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tiny book that `book.build` takes for its own."""
    for name in SHARED:
        write(tmp_path / name, "one")
    for name, path in {"ROOT": "", "BUILD": "_build", "INDEX": "_build/html/index.html"}.items():
        monkeypatch.setattr(build, name, tmp_path / path)
    write(tmp_path / "book/_static/book.css", "one")
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# What makes a page stale.


@pytest.mark.parametrize("name", [*SHARED, "ddcl_lite/new.py"])
def test_what_chapters_share_changes_the_fingerprint(tree, name):
    before = build.fingerprint()
    write(tree / name, "two")
    assert build.fingerprint() != before


@pytest.mark.parametrize("name", ["ddcl_lite/__pycache__/layer.pyc", "chapters/01_one.md", "README.md"])
def test_nothing_else_changes_the_fingerprint(tree, name):
    before = build.fingerprint()
    write(tree / name, "two")
    assert build.fingerprint() == before


def test_a_renamed_file_and_another_python_change_the_fingerprint(tree, monkeypatch):
    before = build.fingerprint()
    (tree / "ddcl_lite/layer.py").rename(tree / "ddcl_lite/layers.py")
    renamed = build.fingerprint()
    monkeypatch.setattr(sys, "version", "3.99")
    assert len({before, renamed, build.fingerprint()}) == 3


@pytest.mark.parametrize("stamp, kept", [("this library", True), ("another library", False), (None, False)])
def test_pages_are_forgotten_only_if_the_stamp_differs(tmp_path, stamp, kept):
    page, path = write(tmp_path / "_build/html/index.html", "page"), tmp_path / "_build/fingerprint"
    if stamp:
        write(path, stamp)
    build.forget_stale_pages(path, "this library")
    assert page.exists() == kept
    assert path.read_text(encoding="utf-8") == "this library"


# What stops a build.


@pytest.fixture
def stack(tree, monkeypatch):
    """Stands in for the exporter and for Jupyter Book: `status` is what each returns, `calls` what was called."""
    stack = SimpleNamespace(calls=[], export=0, book=0, writes=True)

    def export(arguments):
        stack.calls.append("export")
        return stack.export

    def run(command, **options):
        stack.calls.append(command)
        if stack.writes:
            write(build.INDEX, "page")
        return SimpleNamespace(returncode=stack.book)

    monkeypatch.setattr(build.export, "main", export)
    monkeypatch.setattr(build, "subprocess", SimpleNamespace(run=run))
    return stack


def test_a_build_that_succeeds_says_where_the_site_is(stack, capsys):
    assert build.main() == 0
    assert build.INDEX.exists()
    assert build.INDEX.as_uri() in capsys.readouterr().out
    assert {"-W", "--keep-going", "-n"} <= set(stack.calls[1])  # a warning is a failure


@pytest.mark.parametrize("fault", [{"book": 1}, {"book": -9}, {"writes": False}])
def test_a_build_that_fails_leaves_no_page(stack, capsys, fault):
    build.main()
    page, cache = build.INDEX, write(build.BUILD / ".jupyter_cache/chapter", "executed")
    if "writes" in fault:
        page.unlink()
    vars(stack).update(fault)
    assert build.main() != 0
    assert not page.parent.exists()
    assert cache.exists()  # chapters that ran need not run again
    assert "No site was written" in capsys.readouterr().err


def test_a_failed_export_stops_the_build(stack):
    stack.export = 1
    assert build.main() != 0
    assert stack.calls == ["export"]


@pytest.mark.parametrize("version", [(3, 10, 14), (3, 14, 0)])
def test_another_python_is_refused_in_one_line(stack, capsys, monkeypatch, version):
    monkeypatch.setattr(build, "sys", SimpleNamespace(version_info=version, stderr=sys.stderr))
    assert build.main() == 1
    assert stack.calls == []
    (line,) = capsys.readouterr().err.splitlines()
    assert "Python 3.11 to 3.13" in line and f"3.{version[1]}" in line


# What make and the CI script do.


def call(command, folder, **environment):
    """Run a command that knows nothing of the make and the CI that these tests may run under."""
    ours = ("MAKE", "MFLAGS", "DDCL_LITE")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(command, cwd=folder, env=clean | environment, capture_output=True, text=True, timeout=60)


def script(path, text):
    write(path, f"#!/bin/sh\n{text}\n").chmod(0o755)
    return path


def test_make_alone_lists_every_target():
    listed = call(["make"], ROOT).stdout.splitlines()
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)[1].split()
    assert sorted(line.split()[1] for line in listed) == sorted(phony)
    assert all(len(line.split()) > 2 for line in listed)  # each with what it does


def test_make_test_builds_the_book_first():
    plan = call(["make", "-n", "test"], ROOT).stdout
    steps = [plan.index(step) for step in ("book.build", "pytest -q -n 2", "--nbval-lax")]
    assert steps == sorted(steps)


def make_environment(folder, version):
    """`make .venv/ready` in a copy, with a Python that reports this version and makes no environment."""
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    lie = f"import sys; sys.version_info = {(*version, 0, 'final', 0)}"
    python = script(
        folder / "python",
        f'[ "$1" = -m ] && touch "{folder}/asked" && exit 9\nexec "{sys.executable}" -c "{lie}\n$2"',
    )
    return call(["make", ".venv/ready", f"PYTHON={python}"], folder)


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_make_refuses_another_python_in_one_line(tmp_path, version):
    done = make_environment(tmp_path, version)
    mine = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert mine == [f"This book needs Python 3.11 to 3.13, not 3.{version[1]}: call make PYTHON=python3.13, say."]
    assert done.returncode != 0
    assert not (tmp_path / "asked").exists() and not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("version", [(3, 11), (3, 13)])
def test_make_takes_a_supported_python(tmp_path, version):
    done = make_environment(tmp_path, version)
    assert "This book needs" not in done.stderr
    assert (tmp_path / "asked").exists()


@pytest.fixture
def machine(tmp_path):
    """A machine with nothing but a make and an apt-get, which only write down how they were called."""
    for name in ("make", "apt-get"):
        script(tmp_path / name, f'echo {name} "$@" "$DDCL_LITE_NEED_BROWSER" >> "{tmp_path}/calls"')
    (tmp_path / "dirname").symlink_to(shutil.which("dirname"))
    return tmp_path


def ci(machine):
    done = call([shutil.which("bash"), ROOT / ".ci/run"], machine, PATH=str(machine))
    return done.returncode, (machine / "calls").read_text(encoding="utf-8").splitlines()


def test_ci_can_be_run():
    assert os.access(ROOT / ".ci/run", os.X_OK)


@pytest.mark.parametrize("name", ["chromium", "google-chrome"])
def test_ci_tests_everything_and_insists_on_the_browser(machine, name):
    script(machine / name, "")
    assert ci(machine) == (0, ["make test 1"])


def test_ci_installs_a_missing_browser(machine):
    status, calls = ci(machine)
    assert status == 0
    assert any("install" in line and "chromium" in line for line in calls[:-1])
    assert calls[-1] == "make test 1"


def test_ci_fails_if_the_tests_fail(machine):
    script(machine / "chromium", "")
    script(machine / "make", f'echo red >> "{machine}/calls"; exit 2')
    assert ci(machine) == (2, ["red"])


# The site's small helpers.

BUTTONS = ["launch-buttons", "download-buttons", "fullscreen-button"]


def labels(pagename):
    """The labels of a page's buttons after the extension has seen them."""
    context = {"header_buttons": [{"label": label} for label in BUTTONS]}
    site_extension.header_buttons(None, pagename, "page.html", context, None)
    return [button["label"] for button in context["header_buttons"]]


def test_a_chapter_keeps_its_launch_buttons_and_offers_its_notebook_for_the_raw_source():
    assert labels("chapters/01_one") == ["launch-buttons", "fullscreen-button", "download-notebook"]


@pytest.mark.parametrize("pagename", ["book/api", "genindex"])
def test_other_pages_lose_their_launch_buttons(pagename):
    assert labels(pagename) == ["fullscreen-button"]


@pytest.mark.parametrize(
    "exception, format, copied", [(None, "html", True), (OSError(), "html", False), (None, "latex", False)]
)
def test_notebooks_are_published_beside_their_pages(tmp_path, exception, format, copied):
    write(tmp_path / "chapters/01_one.ipynb", "notebook")
    (tmp_path / "site").mkdir()
    app = SimpleNamespace(srcdir=tmp_path, outdir=tmp_path / "site", builder=SimpleNamespace(format=format))
    site_extension.copy_notebooks(app, exception)
    assert (tmp_path / "site/chapters/01_one.ipynb").exists() == copied


FORMULA = "q_k = exp(-|z - p_k|^2 / T) / sum_j exp(-|z - p_j|^2 / T)"
TABLE = "tokens      (..., N, D)\nprototypes  (K, D)   float*"
PROSE = r"Rows of |x|_2 are *not* scaled, \n stays, and T_ = 1."


@pytest.mark.parametrize("paragraph", [FORMULA, TABLE])
def test_formulas_and_tables_become_literal_blocks(paragraph):
    block = publish_doctree("\n".join(site_extension.restructured(paragraph)))
    assert block[0].tagname == "literal_block"
    assert block.astext() == paragraph


def test_a_paragraph_keeps_its_special_characters():
    page = publish_doctree("\n".join(site_extension.restructured(PROSE)))
    assert [part.tagname for part in page.findall()] == ["document", "paragraph", "#text"]  # no markup found in it
    assert page.astext() == PROSE


def test_code_stays_code_and_lines_are_joined():
    text = "Weights of `q_k`\nand *more*, so x = 1."
    assert site_extension.restructured(text) == [r"Weights of ``q_k`` and \*more\*, so x = 1."]


def test_a_docstring_is_rewritten_in_place():
    lines = ["Distances.", "", FORMULA, "", "From *ours*.", ""]
    site_extension.plain_docstring(None, "function", "f", None, None, lines)
    page = publish_doctree("\n".join(lines))
    assert [part.tagname for part in page] == ["paragraph", "literal_block", "paragraph"]
    assert page.astext() == f"Distances.\n\n{FORMULA}\n\nFrom *ours*."


def test_ledger_rows_and_cards_lead_to_each_other():
    app = SimpleNamespace(env=SimpleNamespace(found_docs={"chapters/03_decomposition", "book/claims"}))
    ledger = {"pathto": lambda name: f"../{name}.html", "body": "<small>chapter 3</small><small>chapter 9</small>"}
    site_extension.link_claims(app, "book/claims", "", ledger, None)
    row = '<small><a href="../chapters/03_decomposition.html">chapter 3</a></small>'
    assert ledger["body"] == row + "<small>chapter 9</small>"  # a chapter that is not there yet gets no link
    chapter = {"pathto": lambda name: f"../{name}.html", "body": "<p><b>Claim D1.</b> as Claim D1 says</p>"}
    site_extension.link_claims(app, "chapters/03_decomposition", "", chapter, None)
    link = '<a href="../book/claims.html#claim-D1">Claim D1</a>'
    assert chapter["body"] == f"<p><b>{link}.</b> as Claim D1 says</p>"


def test_a_changed_style_sheet_reaches_the_site(tree, monkeypatch):
    write(tree / "_build/html/index.html", "page")
    monkeypatch.setattr(build.export, "main", lambda arguments: 0)
    monkeypatch.setattr(build, "forget_stale_pages", lambda *_: None)
    monkeypatch.setattr(build.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0))
    write(tree / "book/_static/book.css", "two")
    assert build.main() == 0
    assert (tree / "_build/html/_static/book.css").read_text(encoding="utf-8") == "two"
    assert build.main() == 0  # and once more: the icon of the redirect is there once
    page = (tree / "_build/html/index.html").read_text(encoding="utf-8")
    assert page == '<link rel="icon" href="data:,">\npage'
