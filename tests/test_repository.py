"""`make set-repository`: what it refuses, what it changes, and that a failure changes nothing."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from book import repository  # noqa: E402
from book.myst import Stop  # noqa: E402

PARTS = ["book", "chapters", "ddcl_lite", "exercises", "_config.yml", "_toc.yml", "pyproject.toml"]
OLD = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]
NEW = "https://github.com/some-One/Notes.on_collapse-2"


def content(root):
    """Every file of a tree but compiled ones, by name."""
    files = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


# What is a URL.


@pytest.mark.parametrize("owner", ["a", "A1", "some-one", "a" * 39, "x-1-y"])
@pytest.mark.parametrize("name", ["b", "B.c_d-e", ".github", "-", "n" * 100, "one.gitx"])
def test_legal_names_are_taken(owner, name):
    repository.check(f"https://github.com/{owner}/{name}")


BAD = {
    "": "got nothing",
    "notes": "does not begin",
    "http://github.com/ada/notes": "does not begin",
    "https://www.github.com/ada/notes": "does not begin",
    "https://gitlab.com/ada/notes": "does not begin",
    "git@github.com:ada/notes": "does not begin",
    " https://github.com/ada/notes": "does not begin",
    "https://github.com/": "owner",
    "https://github.com//notes": "owner",
    "https://github.com/ada": "repository's name",
    "https://github.com/ada/": "repository's name",
    "https://github.com/ada/notes/": "may follow",
    "https://github.com/ada/notes/tree/main": "may follow",
    "https://github.com/ada/notes.git": r"leave out the \.git",
    "https://github.com/ada/notes.wiki": r"leave out the \.wiki",
    "https://github.com/ada/notes\n": "repository's name",
    "https://github.com/ada/no tes": "repository's name",
    "https://github.com/ada/notes#1": "repository's name",
    "https://github.com/ada/n\u00f6tes": "repository's name",
    "https://github.com/ada/..": "repository's name",
    f"https://github.com/ada/{'n' * 101}": "repository's name",
    "https://github.com/-ada/notes": "owner",
    "https://github.com/ada-/notes": "owner",
    "https://github.com/a--da/notes": "owner",
    "https://github.com/a_da/notes": "owner",
    "https://github.com/a.da/notes": "owner",
    f"https://github.com/{'a' * 40}/notes": "owner",
    OLD if "-your-org-" in OLD else "https://github.com/-your-org-/notes": "owner",
}


@pytest.mark.parametrize("url", BAD)
def test_anything_else_is_refused_with_its_reason(url):
    with pytest.raises(Stop, match=f"(?s)^URL: expected https://github.com/OWNER/REPOSITORY, .*{BAD[url]}.*changed"):
        repository.check(url)


# What changes in _config.yml: tested on a tree with three files, and writers that only say so.

CONFIG = """# Top: url: none
title: Notes
repository:  # known here alone
  # url: not this one
  branch: main

  url: https://github.com/-your-org-/notes  # here
launch_buttons:
  url: https://example.org
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The tree; `calls` lists the writers called, the one named in `fails` fails after it wrote a notebook."""
    (tmp_path / "chapters").mkdir()
    (tmp_path / "exercises/release").mkdir(parents=True)
    (tmp_path / "_config.yml").write_bytes(CONFIG.encode())
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n', encoding="utf-8")
    (tmp_path / "chapters/01_one.ipynb").write_text("https://github.com/-your-org-/notes", encoding="utf-8")
    small = SimpleNamespace(root=tmp_path, calls=[], fails=None, raises=None)

    def run(command, cwd, **_):
        module = command[-1]
        small.calls.append(module)
        url = yaml.safe_load((cwd / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]
        (cwd / repository.WRITERS[module] / "01_one.ipynb").write_text(url, encoding="utf-8")
        if small.raises:
            raise small.raises
        return SimpleNamespace(returncode=int(module == small.fails))

    monkeypatch.setattr(repository, "ROOT", tmp_path)
    monkeypatch.setattr(repository, "CONFIG", tmp_path / "_config.yml")
    monkeypatch.setattr(repository.subprocess, "run", run)
    return small


def test_one_line_changes_comments_stay_and_the_next_steps_are_named(small, capsys):
    assert repository.main([NEW]) == 0
    after = content(small.root)
    assert after["_config.yml"].decode() == CONFIG.replace("https://github.com/-your-org-/notes", NEW)
    assert after["chapters/01_one.ipynb"].decode() == after["exercises/release/01_one.ipynb"].decode() == NEW
    assert small.calls == ["book.export", "exercises.release"]
    said = capsys.readouterr().out
    assert NEW in said and "3 files changed" in said
    assert "Source: GitHub Actions" in said and "git tag v1.2.3" in said


def test_a_second_time_nothing_changes(small, capsys):
    repository.main([NEW])
    before = content(small.root)
    assert repository.main([NEW]) == 0
    assert content(small.root) == before
    assert "nothing to change" in capsys.readouterr().out
    assert len(small.calls) == 4  # a notebook that was out of date is mended all the same


@pytest.mark.parametrize("url", ["", "http://github.com/ada/notes", "--help-me"])
def test_a_bad_url_changes_nothing(small, capsys, url):
    before = content(small.root)
    assert repository.main(["--", url]) == 1
    assert content(small.root) == before and small.calls == []
    assert "expected https://github.com/OWNER/REPOSITORY" in capsys.readouterr().err


@pytest.mark.parametrize("module", repository.WRITERS)
def test_a_writer_that_fails_changes_nothing(small, capsys, module):
    before, small.fails = content(small.root), module
    assert repository.main([NEW]) == 1
    assert content(small.root) == before  # also what the writers had changed by then, and what they had added
    assert f"python -m {module} failed" in capsys.readouterr().err
    assert small.calls[-1] == module


def test_an_interruption_changes_nothing(small):
    before, small.raises = content(small.root), KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        repository.main([NEW])
    assert content(small.root) == before


@pytest.mark.parametrize(
    "config",
    [
        "title: Notes\nrepository:\n  branch: main\n",
        "title: Notes\nrepository: {url: https://github.com/ada/notes, branch: main}\n",
        "title: Notes\nrepository:\n  branch: main\nhtml:\n  url: https://example.org\n",
        "repository:\n  url: a\nrepository:\n  url: b\n",
    ],
)
def test_a_config_without_such_a_line_is_left_alone(small, capsys, config):
    (small.root / "_config.yml").write_text(config, encoding="utf-8")
    before = content(small.root)
    assert repository.main([NEW]) == 1
    assert content(small.root) == before and small.calls == []
    assert "expected one line" in capsys.readouterr().err


def test_line_ends_stay_as_they_are():
    config = CONFIG.replace("\n", "\r\n")
    assert repository.with_url(config, NEW) == CONFIG.replace("https://github.com/-your-org-/notes", NEW).replace(
        "\n", "\r\n"
    )


# From the command line, and in the whole book.


@pytest.mark.parametrize("url", ["", NEW, "https://github.com/a/b\"; touch planted; '", "--check"])
def test_make_hands_the_url_on_as_it_is(tmp_path, url):
    """Behind a Python that only says what it was given."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.txt", "pyproject.toml"):
        (tmp_path / name).touch()
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "import sys, json; print(json.dumps(sys.argv[1:]))" "$@"\n'
    )
    python.chmod(0o755)
    (tmp_path / ".venv/ready").touch()
    command = ["make", "-s", "set-repository", *([f"URL={url}"] if url else [])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == ["-m", "book.repository", "--", url], done.stderr
    assert not (tmp_path / "planted").exists()


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A copy of the book under another URL: its root, and its files before and after."""
    root = tmp_path_factory.mktemp("moved")
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "course"))
        else:
            shutil.copy(ROOT / name, root)
    before = content(root)
    done = python(root, "book.repository", NEW)
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(root=root, before=before, after=content(root))


def python(root, *arguments):
    return subprocess.run([sys.executable, "-m", *arguments], cwd=root, capture_output=True, text=True, timeout=300)


def notebooks(moved):
    """The cells of every notebook, by name."""
    names = [name for name in moved.after if name.endswith(".ipynb")]
    assert len(names) > len(list((ROOT / "chapters").glob("[0-9]*.md")))  # and the problem sets
    return {name: json.loads(moved.after[name])["cells"] for name in names}


@pytest.mark.parametrize("module", repository.WRITERS)
def test_what_was_moved_is_up_to_date(moved, module):
    done = python(moved.root, module, "--check")
    assert done.returncode == 0, done.stderr


def test_badges_and_install_cells_name_the_new_repository(moved):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for name, cells in notebooks(moved).items():
        colab = NEW.replace("https://github.com", "https://colab.research.google.com/github")
        assert f"({colab}/blob/main/{name})" in "".join(cells[0]["source"]), name
        install = "".join(next(cell for cell in cells if "install" in cell["metadata"].get("tags", []))["source"])
        assert f"git+{NEW}@v{version}" in install, name
        assert "_config.yml" not in install, name  # it no longer says what to set
        compile(install, name, "exec")


def test_the_old_repository_is_named_nowhere(moved):
    assert [name for name, text in moved.after.items() if OLD.encode() in text] == []
    assert {name for name, text in moved.after.items() if NEW.encode() in text} == {"_config.yml", *notebooks(moved)}


def test_nothing_but_the_url_and_the_notebooks_changed(moved):
    assert moved.before.keys() == moved.after.keys()
    changed = {name for name, text in moved.after.items() if text != moved.before[name]}
    assert changed == {"_config.yml", *notebooks(moved)}
