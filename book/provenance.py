"""The provenance page's tables: what this build was made with, how long pages ran, what is stored, and the matrix.

A local extension of Sphinx. The page is read anew in every build, and each <div data-provenance="NAME"> on it is filled
by the function of that name. Data that cannot be read is a warning, and in this book a warning fails the build.
"""

import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.util import logging

PAGE = "book/provenance"
LOG = logging.getLogger(__name__)


def setup(app):
    app.connect("env-get-outdated", lambda *_: [PAGE])
    app.connect("html-page-context", fill, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def fill(app, pagename, templatename, context, doctree):
    """Fill the page's places; what cannot be read becomes a warning and a line that says so."""
    if pagename != PAGE:
        return

    def content(match):
        try:
            return SECTIONS[match[1]](app, context["pathto"])
        except (ValueError, OSError) as error:
            LOG.warning("%s, section %r: %s", PAGE, match[1], error)
            return f"<p>This could not be read: {escape(str(error))}</p>"

    context["body"] = re.sub(r'<div data-provenance="(\w+)">\s*</div>', content, context["body"])


# The sections.


def build(app, to) -> str:
    root = Path(app.srcdir)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
    facts = {
        "Commit": commit(root),
        "Built": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "Device": f"{device}, {platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "Packages": ", ".join(packages((root / "requirements.txt").read_text(encoding="utf-8"))),
    }
    return table([], [(f"<strong>{name}</strong>", escape(fact)) for name, fact in facts.items()])


def times(app, to) -> str:
    """Run times from this build, or from the execution whose outputs it took out of the cache."""
    data = NbMetadataCollector.get_doc_data(app.env)
    names = [name for name in app.env.found_docs if name.startswith("chapters/") or data[name].get("exec_data")]
    rows, total = [], 0.0
    for name in sorted(names, key=lambda name: (not name.startswith("chapters/"), name)):
        run = data[name].get("exec_data") or {}
        seconds = run.get("runtime")
        total += seconds or 0
        day = f"<time>{datetime.fromtimestamp(run['mtime']).date()}</time>" if run else ""
        took = "not executed" if not run else "not recorded" if seconds is None else f"{seconds:.1f}"
        title = f'<a href="{to(name)}">{escape(app.env.titles[name].astext())}</a>'
        rows.append((title, took if not run or run["succeeded"] else f"failed: {escape(run['error'])}", day))
    return table(["Page", "Seconds", "Executed"], [*rows, ("<strong>All</strong>", f"{total:.0f}", "")])


def results(app, to) -> str:
    rows = []
    for path in sorted((Path(app.srcdir) / "book" / "results").glob("*.json")):
        record = load(path)
        check(record, path.name, command=str, device=str, date=str, versions=dict)
        versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
        command = f"<code>{escape(record['command'])}</code>"
        day = f"<time>{escape(record['date'])}</time>"
        rows.append((path.stem, command, escape(record["device"]), day, escape(versions)))
    return table(["Result", "Command", "Device", "Date", "Versions"], rows)


def matrix(app, to) -> str:
    path = Path(app.srcdir) / "book" / "matrix.json"
    if not path.exists():
        return "<p>The matrix was not run.</p>"
    record = load(path)
    check(record, path.name, runs=list)
    for run in record["runs"]:
        check(run, path.name, name=str, what=str, date=str, commit=str, python=str, versions=dict, results=list)
        for result in run["results"]:
            where = f"{path.name}, run {run['name']}"
            check(result, where, chapter=str, passed=bool, seconds=(int, float), note=str)
            if not result["passed"] and not result["note"].strip():
                raise ValueError(f"{where}, {result['chapter']}: note: expected the reason of a failure, got ''")
    return matrix_html(app, to, record["runs"])


SECTIONS = {"build": build, "times": times, "results": results, "matrix": matrix}


def matrix_html(app, to, runs: list[dict]) -> str:
    """What each run was, a table of chapters by runs, and every note."""
    cells = {(run["name"], result["chapter"]): result for run in runs for result in run["results"]}
    chapters = sorted({chapter for _, chapter in cells})

    def title(chapter):
        name = f"chapters/{chapter}"
        known = name in app.env.found_docs
        return f'<a href="{to(name)}">{escape(app.env.titles[name].astext())}</a>' if known else escape(chapter)

    def cell(run, chapter):
        result = cells.get((run["name"], chapter))
        if not result:
            return "not run"
        return f"{'passed' if result['passed'] else '<strong>FAILED</strong>'}, {result['seconds']:.0f} s"

    about = [
        f"<dt>{escape(run['name'])}</dt><dd>{escape(run['what'])}<br><small>{escape(run['date'])}, commit "
        f"{escape(run['commit'])}, Python {escape(run['python'])}, "
        + escape(", ".join(f"{name} {number}" for name, number in run["versions"].items()))
        + "</small></dd>"
        for run in runs
    ]
    rows = [(title(chapter), *(cell(run, chapter) for run in runs)) for chapter in chapters]
    notes = [
        f"<li>{title(chapter)}, {escape(name)}: {escape(result['note'])}</li>"
        for (name, chapter), result in cells.items()
        if result["note"].strip()
    ]
    passed = sum(result["passed"] for result in cells.values())
    heads = ["Chapter", *(escape(run["name"]) for run in runs)]
    return (
        f"<p>{passed} of {len(cells)} passed.</p><dl>{''.join(about)}</dl>{table(heads, rows)}"
        + f"<p>Notes:</p><ul>{''.join(notes)}</ul>" * bool(notes)
    )


# What they are made of.


def commit(root: Path) -> str:
    """The short hash of the checkout at `root`, and whether files have changed since; "unknown" without git."""

    def git(*arguments):
        try:
            done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
        except OSError:  # no git
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    top = git("rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != root.resolve():  # none, or some other repository around it
        return "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=12", "HEAD") + (", with changes" if changed else "") or "unknown"


def packages(requirements: str) -> list[str]:
    """The installed version of everything pinned, with the pin where they differ."""
    found = []
    for name, pin in re.findall(r"^([\w.-]+)==(\S+)", requirements, flags=re.M):
        try:
            installed = version(name)
        except PackageNotFoundError:
            installed = "not installed"
        same = installed.split("+")[0] == pin
        found.append(f"{name} {installed}" + ("" if same else f" (pinned: {pin})"))
    return found


def load(path: Path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name}: expected JSON, got something else: {error}") from None


def check(record, where: str, **kinds) -> None:
    """Raise ValueError where the record lacks a field of the given type."""
    if not isinstance(record, dict):
        raise ValueError(f"{where}: expected an object, got {record!r:.80}")
    for key, kind in kinds.items():
        if not isinstance(record.get(key), kind):
            expected = "a number" if isinstance(kind, tuple) else kind.__name__
            raise ValueError(f"{where}: {key}: expected {expected}, got {record.get(key)!r:.80}")


def table(heads: list[str], rows: list[tuple]) -> str:
    """An HTML table in a box that scrolls; cells are HTML already."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>" if heads else ""
    return f'<div class="pst-scrollable-table-container"><table class="table">{top}<tbody>{body}</tbody></table></div>'
