"""Write the notebook of every chapter: `python -m book.export`, or `make notebooks`.

chapters/NN_name.md, a MyST text notebook, becomes chapters/NN_name.ipynb beside it, which Colab opens.
`--check` changes nothing and fails where a notebook is not what its chapter says.
"""

import argparse
import hashlib
import posixpath
import re
import sys
import tomllib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import nbformat
import yaml
from docutils.nodes import make_id
from jupytext.myst import MystMetadataParsingError, myst_to_notebook
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from pybtex.database import parse_string
from pybtex.exceptions import PybtexError

from book.lower import VERBATIM, Lowering, unlink
from book.myst import Stop, parse, title_of

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_OWNER = "-your-org-"  # no legal owner name on GitHub, so no stranger can hold it
REPOSITORY = re.compile(
    rf"https://github\.com/([A-Za-z0-9]+(?:-[A-Za-z0-9]+)*|{DEFAULT_OWNER})/([A-Za-z0-9._-]+)(?<!\.git)"
)
CHAPTERS = "[0-9][0-9]_*"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


# ---------------------------------------------------------------- what the chapters refer to


@dataclass
class Book:
    """The book around a chapter: what its links and citations mean."""

    root: Path
    owner: str
    repository: str
    branch: str
    version: str
    pages: dict = field(default_factory=dict)  # path -> (title, url)
    labels: dict = field(default_factory=dict)  # label -> (title, url)
    citations: dict = field(default_factory=dict)  # key -> (authors, year, url)

    @property
    def home(self):
        """The repository's URL."""
        return f"https://github.com/{self.owner}/{self.repository}"

    def published(self, page):
        """Where the book is read."""
        site = f"{self.owner}.github.io"
        name = "" if self.repository.lower() == site.lower() else f"{self.repository}/"
        return f"https://{site}/{name}{page.removesuffix('.md')}.html"

    def colab(self, page):
        """Where Colab opens a chapter."""
        notebook = f"{page.removesuffix('.md')}.ipynb"
        return f"https://colab.research.google.com/github/{self.owner}/{self.repository}/blob/{self.branch}/{notebook}"

    def file(self, path, image):
        """Where a file of the repository is seen; empty if there is none."""
        source = path.removesuffix("ipynb") + "md" if path.endswith(".ipynb") else path
        if not (self.root / source).is_file():
            return ""
        if image and self.owner == DEFAULT_OWNER:  # nothing is published yet
            return posixpath.relpath(path, "chapters")
        return f"{self.home}/{'raw' if image else 'blob'}/{self.branch}/{path}"


def read_book(root):
    """Collect what the chapters may refer to."""
    config = load(root, "_config.yml", yaml.safe_load)
    project = load(root, "pyproject.toml", tomllib.loads)
    try:
        url, branch = config["repository"]["url"], config["repository"]["branch"]
        version = project["project"]["version"]
    except (KeyError, TypeError):
        needed = "_config.yml needs repository: url: and branch:, pyproject.toml needs project.version"
        raise Stop(needed) from None
    match = REPOSITORY.fullmatch(str(url))
    if not match:
        raise Stop(f"_config.yml: repository: url must be https://github.com/OWNER/REPO, not {url}")
    book = Book(root, *match.groups(), branch, version, citations=read_citations(root))
    for path in sorted([*root.glob("chapters/*.md"), *root.glob("book/*.md")]):
        add_page(book, path.relative_to(root).as_posix())
    return book


def load(root, name, read):
    """A file of the repository, read as what it is."""
    try:
        return read((root / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, PybtexError) as error:
        raise Stop(f"{name}: {str(error).splitlines()[0]}") from None


def read_citations(root):
    """Authors, year and address of every work in the bibliography."""
    name = "book/references.bib"
    if not (root / name).exists():
        return {}
    works = load(root, name, partial(parse_string, bib_format="bibtex")).entries
    return {key: (authors(one), one.fields.get("year", "n.d."), address(one)) for key, one in works.items()}


def authors(work):
    """Chen / Chen and Lee / Chen et al."""
    people = work.persons.get("author") or work.persons.get("editor") or []
    last = ([*one.rich_prelast_names, *one.rich_last_names] for one in people)
    names = [" ".join(part.render_as("text") for part in parts) for parts in last]
    if not names:
        return work.fields.get("organization") or work.fields.get("title") or work.key
    return f"{names[0]} et al." if len(names) > 2 else " and ".join(names)


def address(work):
    """A work's URL: its own, its DOI's or arXiv's."""
    sites = {"url": "", "doi": "https://doi.org/", "eprint": "https://arxiv.org/abs/"}
    found = (site + work.fields[name] for name, site in sites.items() if name in work.fields)
    return next(found, "").replace("(", "%28").replace(")", "%29")  # parentheses would end a link


def add_page(book, page):
    """Add a page, and what is labelled in it, to the book."""
    url, waiting = book.published(page), []
    book.pages[page] = "", url

    def add(label, title, anchor, line):
        if label in book.labels:
            raise Stop(f"{page}:{line}: the label {label} is used twice")
        book.labels[label] = title, f"{url}#{anchor}"

    for block in walk(read_page(book.root, page), 1, page):
        if block.kind == "label":
            waiting.append(block)
            continue
        heading = re.match(r"(#+)\s+(.*)", block.body[0]) if block.kind == "text" else None
        title = heading[2].strip() if heading else title_of(block)
        if heading and heading[1] == "#" and not book.pages[page][0]:
            book.pages[page] = title, url
        for label in waiting:
            add(label.name, title, make_id(label.name), label.line)
        waiting.clear()
        own = block.options.get("label") or block.options.get("name")
        if own and block.name not in VERBATIM:  # Sphinx keeps a theorem's or an exercise's label as it is
            add(own, title, own if "label" in block.options else make_id(own), block.line)


def read_page(root, page):
    """The lines of a page. Those of its front matter are blank: they are not for a notebook."""
    lines = load(root, page, str).split("\n")
    front = lines.index("---", 1) + 1 if lines[0] == "---" and "---" in lines[1:] else 0
    return [""] * front + lines[front:]


def walk(lines, first, page):
    """Every block of a page, also those inside directives."""
    for block in parse(lines, first, page):
        yield block
        if block.kind == "directive" and block.name not in VERBATIM:
            yield from walk(block.body, block.first, page)


# ---------------------------------------------------------------- a chapter -> a notebook

PIP = """\
import importlib.util
import subprocess
import sys

# Only where the library is missing: install it alone. Nothing that is already here changes.
if importlib.util.find_spec("ddcl_lite") is None:
    library = "ddcl_lite @ git+{home}@v{version}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", library], check=True)
    importlib.invalidate_caches()
"""
NO_HOME = """\
import importlib.util

if importlib.util.find_spec("ddcl_lite") is None:
    raise RuntimeError(
        "ddcl_lite is not installed, and this copy of the book does not know where it is published. "
        "In a checkout, run `make set-repository URL=https://github.com/owner/name`. "
        "On your own machine, `pip install -e .` there also helps."
    )
"""


def notebook(book, page, before, after):
    """The notebook of one chapter, between the chapters `before` and `after`."""
    lines = read_page(book.root, page)
    if not book.pages[page][0]:
        raise Stop(f"{page}:1: a chapter needs a # title")
    try:
        source = myst_to_notebook("\n".join(lines), add_source_map=True)
    except (MystMetadataParsingError, nbformat.ValidationError) as error:
        raise Stop(f"{page}: {str(error).splitlines()[0]}") from None
    low = Lowering(book, page)
    cells = [new_markdown_cell(banner(low, page, before, after)), install_cell(book)]
    for cell, at in zip(source.cells, source.metadata["source_map"], strict=True):
        if cell.cell_type == "markdown":
            at = next(i for i in range(at, len(lines)) if lines[i])
            cell.source = low.cell(cell.source, at + 1)
        elif cell.cell_type == "code":
            hide(cell, low.gate and low.gate[0])
        if cell.source.strip():
            cells.append(cell)
    if low.gate:
        low.stop(low.gate[1], "{solution-start} without {solution-end}")
    made = new_notebook(cells=name_cells(cells), metadata=METADATA, nbformat=4, nbformat_minor=5)
    nbformat.validate(made)
    return nbformat.writes(made).rstrip("\n") + "\n"


def banner(low, page, before, after):
    """The badge, and the way to the book and to the chapters on either side."""
    book = low.book
    badge = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    links = [f"[Read this chapter in the book]({book.published(page)})"]
    for name, other in ("previous", before), ("next", after):
        if other:
            title = unlink(low.inline(book.pages[other][0], 1))
            links.append(f"{name}: [{title}]({book.colab(other)})")
    return f"{badge}({book.colab(page)})\n\n{' · '.join(links)}"


def install_cell(book):
    template = NO_HOME if book.owner == DEFAULT_OWNER else PIP.format(home=book.home, version=book.version)
    return new_code_cell(template.rstrip(), metadata={"tags": ["install", "remove-cell"]})


def hide(cell, solution):
    """Fold a cell's source where its tags say so, or where it is part of a solution."""
    tags = cell.metadata.get("tags", [])
    if solution or "hide-input" in tags or "hide-cell" in tags:
        cell.metadata.setdefault("jupyter", {})["source_hidden"] = True
    if solution:
        cell.metadata["cellView"] = "form"
        lines = cell.source.split("\n")
        lines.insert(1 if lines[0].startswith("%%") else 0, f"#@title {solution}")  # a cell magic stays first
        cell.source = "\n".join(lines)


def name_cells(cells):
    """Give each cell an id made from what it says: another cell's edit leaves it alone."""
    seen = {}
    for cell in cells:
        name = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[name] = seen.get(name, 0) + 1
        cell["id"] = name if seen[name] == 1 else f"{name}-{seen[name]}"
    return cells


# ---------------------------------------------------------------- files


def export(root):
    """The text of every notebook, by path."""
    book = read_book(root)
    pages = sorted(path.relative_to(root).as_posix() for path in root.glob(f"chapters/{CHAPTERS}.md"))
    texts = map(partial(notebook, book), pages, [None, *pages[:-1]], [*pages[1:], None])
    return dict(zip(((root / page).with_suffix(".ipynb") for page in pages), texts))


def current(path):
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else None


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser("python -m book.export", description="Write every chapter's notebook.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail where one is out of date")
    check = parser.parse_args(arguments).check
    try:
        wanted = export(root)
    except Stop as stop:
        print(stop, file=sys.stderr)
        return 1
    stale = [path for path, text in wanted.items() if current(path) != text]
    stray = sorted(set(root.glob("chapters/*.ipynb")) - set(wanted))
    for path in stray:
        print(f"{path.relative_to(root).as_posix()}: no chapter of this name; delete it", file=sys.stderr)
    for path in stale:
        if check:
            print(f"{path.relative_to(root).as_posix()}: out of date; run `make notebooks`", file=sys.stderr)
        else:
            path.write_text(wanted[path], encoding="utf-8", newline="\n")
            print(path.relative_to(root).as_posix())
    return int(bool(stray or (check and stale)))


if __name__ == "__main__":
    sys.exit(main())
