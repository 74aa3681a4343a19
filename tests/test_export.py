"""The exporter: MyST chapters become notebooks that read well without MyST."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from book.export import Book, install_cell, main, read_book  # noqa: E402
from book.lower import Lowering  # noqa: E402
from book.myst import Stop  # noqa: E402

HOME = "https://github.com/ada/notes"
SITE = "https://ada.github.io/notes"
CONFIG = "repository:\n  url: {url}\n  branch: main\n"
PROJECT = '[project]\nname = "ddcl_lite"\nversion = "1.2.3"\n'
BIBLIOGRAPHY = r"""
@article{erdos, author = {Erd{\H o}s, P and van der Berg, A}, title = {A}, year = 1960, doi = {10.1/x(2)3}}
@misc{trio, author = {Ito, A and Baz, B and Roe, C}, title = {B}, year = {2024}, eprint = {2401.00001}}
@book{solo, author = {Solo, S}, title = {C}, year = {2001}, url = {https://example.org/c}, doi = {10.1/c}}
@misc{bare, author = {Bare, B}, title = {D}, year = {1999}}
"""


def tree(root, url=HOME, pages=None, **chapters):
    """A small book: `_01_name="text"` is the chapter chapters/01_name.md."""
    files = {"_config.yml": CONFIG.format(url=url), "pyproject.toml": PROJECT}
    files |= {"book/references.bib": BIBLIOGRAPHY}
    files |= {f"chapters/{name[1:]}.md": text for name, text in chapters.items()} | (pages or {})
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8", newline="\n")
    (root / "chapters").mkdir(exist_ok=True)
    return root


def exported(root, name):
    """The notebook of a chapter, after an export that has to succeed."""
    assert main([], root) == 0
    return nbformat.read(root / f"chapters/{name}.ipynb", as_version=4)


def body(root, text, **more):
    """The cells that a one-chapter book holds after its title."""
    return exported(tree(root, _01_one=f"# One\n\n{text}", **more), "01_one").cells[2:]


@pytest.fixture
def page(tmp_path):
    """Lower a text as it would be in chapters/02_two.md."""
    (tmp_path / "chapters").mkdir()
    (tmp_path / "book").mkdir()
    (tmp_path / "book/plan (1).png").write_bytes(b"png")
    (tmp_path / "book/picture.png").write_bytes(b"png")
    book = Book(tmp_path, "ada", "notes", "main", "1.2.3")
    book.pages = {
        "chapters/02_two.md": ("Two", f"{SITE}/chapters/02_two.html"),
        "chapters/03_three.md": ("Three and $\\beta$", f"{SITE}/chapters/03_three.html"),
        "book/notation.md": ("Notation", f"{SITE}/book/notation.html"),
    }
    book.labels = {
        "thm:law": ("Theorem (The law of $\\beta$)", f"{SITE}/chapters/03_three.html#thm:law"),
        "thm:cited": ("Theorem (Law, {cite:t}`solo`)", f"{SITE}/chapters/03_three.html#thm:cited"),
        "sec": ("A section", f"{SITE}/book/notation.html#sec"),
        "ex": ("Exercise: Count `a<b`", f"{SITE}/chapters/02_two.html#ex"),
        "ex-plain": ("", f"{SITE}/chapters/02_two.html#ex-plain"),
    }
    book.citations = {
        "erdos": ("Erdős and Rényi", "1960", "https://doi.org/10.1/x"),
        "trio": ("Ito et al.", "2024", "https://arxiv.org/abs/2401.00001"),
        "solo": ("Solo", "2001", "https://example.org/c"),
        "bare": ("Bare", "1999", ""),
    }
    return lambda text, line=1: Lowering(book, "chapters/02_two.md").cell(text, line)


# ---------------------------------------------------------------- text and math that stay


@pytest.mark.parametrize(
    "text",
    [
        "Plain *text* with `code`, a [link](https://example.org/a_(b)) and <https://example.org>.",
        "Costs \\$5 and \\{math}`x` is escaped.",
        "`{ref}` and ``{cite}`key` `` and `` a ` tick `` are code.",
        "`$x$` is code, $\\{x\\}_{[0]}$ and $a_{\\text{b}} \\$ c$ are math.",
        "Math with a tick $x` {foo}`y$ stays.",
        "$$x$$ in a line.",
        "$\\mathbf{{x}}$ has double braces, `{{ x }}` too.",
        "[site](https://example.org){x} and [mail](mailto:a@example.org)",
        "| a | b |\n|---|---|\n| $x$ | `y` |",
        "- [ ] a task\n- [x] another",
        "> a quote",
        '<div class="a">\nraw\n</div>',
        "```python\nx = {'a': `1`}  # {foo}`bar` $5 (label)=\n% magic\n```",
        "````md\n```{note}\n{foo}`bar`\n```\n:::{unknown}\n:::\n````",
        "~~~\n```{note}\n~~~",
        "`````\n````{prf:theorem}\n```\n````\n`````",
        "$$\nx = \\{y\\}\n$$",
    ],
)
def test_plain_markdown_stays_as_it_is(page, text):
    assert page(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$$ x $$", "$$\nx\n$$"),
        ("$$ x $$ (eq-one)", "$$\nx\n$$"),
        ("$$\nx\n$$ (eq:one)", "$$\nx\n$$"),
        ("$$ f(x)\n= (y) $$", "$$\nf(x)\n= (y)\n$$"),
        ("```{math}\n:label: eq\nx\n```", "$$\nx\n$$"),
        (":::{math}\nx\n\ny\n:::", "$$\nx\n$$\n\n$$\ny\n$$"),
        ("```{math} x = 1\n```", "$$\nx = 1\n$$"),
        ("```{math}\n---\nlabel: eq\n---\nx\n```", "$$\nx\n$$"),
        ("```{math}\na &= b \\\\\nc &= d\n```", "$$\n\\begin{split}\na &= b \\\\\nc &= d\n\\end{split}\n$$"),
        ("$$ \\begin{cases}a \\\\ b\\end{cases} $$", "$$\n\\begin{cases}a \\\\ b\\end{cases}\n$$"),
        ("\\begin{align}\na \\label{x}\n\\end{align}", "$$\n\\begin{align}\na \n\\end{align}\n$$"),
        ("so $x$\n$$\ny\n$$\nand", "so $x$\n\n$$\ny\n$$\n\nand"),
        ("1. one\n   $$\n   x\n   $$\n2. two", "1. one\n\n   $$\n   x\n   $$\n\n2. two"),
        ("{math}`x_{1}` and {math}`\\{y\\}`", "$x_{1}$ and $\\{y\\}$"),
    ],
)
def test_display_math_becomes_dollars(page, text, expected):
    assert page(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("% a comment\ntext", "text"),
        ("one\n% a comment\ntwo", "one\n\ntwo"),
        ("100 % of it\n50% off", "100 % of it\n50% off"),
        ("(sec)=\n## A section", "## A section"),
        ("(a)=\n(b)=\ntext", "text"),
        ("f(x)=\ny", "f(x)=\ny"),
    ],
)
def test_comments_and_labels_disappear(page, text, expected):
    assert page(text) == expected


# ---------------------------------------------------------------- directives


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```{prf:theorem} The law\n:label: thm:a\nIt holds.\n```", "**Theorem (The law).**\n\nIt holds."),
        (":::{prf:lemma}\nIt holds.\n:::", "**Lemma.**\n\nIt holds."),
        (":::{prf:definition} Of `x`\n:::", "**Definition (Of `x`).**"),
        (
            ":::{prf:remark} On $\\beta$\n---\nlabel: a\nclass: wide\n---\n\nIt holds.\n:::",
            "**Remark (On $\\beta$).**\n\nIt holds.",
        ),
        ("```{prf:proof}\nClear.\n```", "**Proof.**\n\nClear. □"),
        ("```{prf:proof} Induct.\nClear\n$$x$$\n```", "**Proof.**\n\nInduct.\nClear\n\n$$\nx\n$$\n\n□"),
        (
            ":::{prf:proof}\n:class: dropdown\nClear.\n:::",
            "<details>\n<summary>Proof</summary>\n\nClear. □\n\n</details>",
        ),
        (
            "::::{prf:theorem} A\nLet {math}`x`.\n:::{prf:proof}\n```{math}\ny\n```\n:::\n::::",
            "**Theorem (A).**\n\nLet $x$.\n\n**Proof.**\n\n$$\ny\n$$\n\n□",
        ),
        (
            "````{prf:example} A\n```{prf:proof}\nB.\n```\n````\n\nafter",
            "**Example (A).**\n\n**Proof.**\n\nB. □\n\nafter",
        ),
    ],
)
def test_theorems_and_proofs(page, text, expected):
    assert page(text) == expected


@pytest.mark.parametrize("kind", ["algorithm", "assumption", "claim", "corollary", "proposition"])
def test_every_kind_of_theorem(page, kind):
    assert page(f":::{{prf:{kind}}} T\nx\n:::") == f"**{kind.title()} (T).**\n\nx"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```{note}\nHello.\n```", "> **Note**\n>\n> Hello."),
        (":::{tip} Hello\nthere.\n:::", "> **Tip**\n>\n> Hello\n> there."),
        (":::{seealso}\na\n\nb\n:::", "> **See also**\n>\n> a\n>\n> b"),
        (":::{admonition} Mind $x$\n:class: warning\na\n:::", "> **Mind $x$**\n>\n> a"),
        (
            ":::{admonition} If `a<b`\n:class: tip dropdown\na\n:::",
            "<details>\n<summary>If <code>a&lt;b</code></summary>\n\na\n\n</details>",
        ),
        (":::{dropdown} More\na\n:::", "<details>\n<summary>More</summary>\n\na\n\n</details>"),
        # Jupyter takes the text between dollars as it is: no quote mark may come in between
        (":::{note}\n$$\nx\n+ y\n$$\nif $a\n+ b$\n:::", "> **Note**\n>\n> $$ x + y $$\n>\n> if $a + b$"),
        (":::{note}\n```\n$a\nb$\n```\n:::", "> **Note**\n>\n> ```\n> $a\n> b$\n> ```"),
        (":::{note}\n\\$1\n\n\\$2\n:::", "> **Note**\n>\n> \\$1\n>\n> \\$2"),
        ("- item\n  :::{note}\n  a\n  :::\n- next", "- item\n\n  > **Note**\n  >\n  > a\n\n- next"),
        (
            ":::::{note}\n::::{dropdown} A\n:::{tip}\nb\n:::\n::::\n:::::",
            "> **Note**\n>\n> <details>\n> <summary>A</summary>\n>\n> > **Tip**\n> >\n> > b\n>\n> </details>",
        ),
    ],
)
def test_admonitions(page, text, expected):
    assert page(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":::{exercise} Count\n:label: e\nDo it.\n:::", "**Exercise: Count.**\n\nDo it."),
        ("```{exercise}\n:label: e\nDo it.\n```", "**Exercise.**\n\nDo it."),
        ("```{exercise-start} Count\n```\nDo it.\n```{exercise-end}\n```", "**Exercise: Count.**\n\nDo it."),
        (
            "```{solution} ex\n:class: dropdown\nSo.\n```",
            "<details>\n<summary>Solution: Count <code>a&lt;b</code></summary>\n\nSo.\n\n</details>",
        ),
        ("```{solution} ex-plain\nSo.\n```", "<details>\n<summary>Solution</summary>\n\nSo.\n\n</details>"),
        (
            "```{solution-start} ex\n```\n\n```{solution-end}\n```\n\nafter",
            "**Solution: Count `a<b`** (open the cells below)\n\nafter",
        ),
        (
            "```{solution-start} ex-plain\n:class: dropdown\na\n```\nb\n```{solution-end}\n```",
            "**Solution** (open the cells below)\n\n"
            "<details>\n<summary>The solution in words</summary>\n\na\n\nb\n\n</details>",
        ),
    ],
)
def test_exercises_and_solutions(page, text, expected):
    assert page(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```{code-block} python\n:caption: x\nx = `{foo}`\n```", "```python\nx = `{foo}`\n```"),
        ("````{code-block}\n```{note}\n```\n````", "````\n```{note}\n```\n````"),
        (
            "```{figure} ../book/picture.png\n:alt: A picture\n:name: fig\n\nWhat {math}`x` shows.\n```",
            f"![A picture]({HOME}/raw/main/book/picture.png)\n\nWhat $x$ shows.",
        ),
        ("```{image} /book/picture.png\n:alt: A\n```", f"![A]({HOME}/raw/main/book/picture.png)"),
        ("![A](../book/picture.png)", f"![A]({HOME}/raw/main/book/picture.png)"),
        ("![A](https://example.org/a.png)", "![A](https://example.org/a.png)"),
        ("```{glossary}\nToken\n  One.\n\nBank\n  Two.\n```", "- **Token**:\n  One.\n\n- **Bank**:\n  Two."),
    ],
)
def test_code_pictures_and_glossary(page, text, expected):
    assert page(text) == expected


def test_a_picture_is_relative_while_nothing_is_published(tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "book/picture.png").write_bytes(b"png")
    low = Lowering(Book(tmp_path, "-your-org-", "notes", "main", "1"), "chapters/02_two.md")
    assert low.cell("![A](../book/picture.png)", 1) == "![A](../book/picture.png)"


# ---------------------------------------------------------------- roles and links

LAW, SECTION = f"{SITE}/chapters/03_three.html#thm:law", f"{SITE}/book/notation.html#sec"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{prf:ref}`thm:law`", f"[Theorem (The law of $\\beta$)]({LAW})"),
        ("{prf:ref}`the law <thm:law>`", f"[the law]({LAW})"),
        ("{prf:ref}`thm:cited`", f"[Theorem (Law, Solo (2001))]({SITE}/chapters/03_three.html#thm:cited)"),
        ("{ref}`sec`", f"[A section]({SECTION})"),
        ("{ref}`this\npart <sec>`", f"[this\npart]({SECTION})"),
        ("{ref}`ex`", f"[Exercise: Count `a<b`]({SITE}/chapters/02_two.html#ex)"),
        ("{doc}`03_three`", f"[Three and $\\beta$]({SITE}/chapters/03_three.html)"),
        ("{doc}`signs </book/notation>`", f"[signs]({SITE}/book/notation.html)"),
        ("[next](03_three.md)", f"[next]({SITE}/chapters/03_three.html)"),
        ("[](03_three.md)", f"[Three and $\\beta$]({SITE}/chapters/03_three.html)"),
        ('[`a` [b] $c$](../book/notation.md "hover")', f'[`a` [b] $c$]({SITE}/book/notation.html "hover")'),
        ("[s](#sec), [](#sec)", f"[s]({SECTION}), [A section]({SECTION})"),
        ("[s](../book/notation.md#sec)", f"[s]({SECTION})"),
        ("[plan](../book/picture.png)", f"[plan]({HOME}/blob/main/book/picture.png)"),
        ("**{ref}`sec`**", f"**[A section]({SECTION})**"),
    ],
)
def test_references_are_links_by_title(page, text, expected):
    assert page(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{cite:t}`solo` says", "[Solo (2001)](https://example.org/c) says"),
        ("{cite}`solo`", "([Solo, 2001](https://example.org/c))"),
        (
            "{cite:p}`erdos, trio`",
            "([Erdős and Rényi, 1960](https://doi.org/10.1/x); [Ito et al., 2024](https://arxiv.org/abs/2401.00001))",
        ),
        ("{cite:t}`solo,bare`", "[Solo (2001)](https://example.org/c), Bare (1999)"),
        (":::{note}\n{cite}`bare`\n:::", "> **Note**\n>\n> (Bare, 1999)"),
    ],
)
def test_citations(page, text, expected):
    assert page(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{py:func}`~ddcl_lite.assign`", "`assign()`"),
        ("{func}`ddcl_lite.assign()`", "`ddcl_lite.assign()`"),
        ("{class}`a layer <ddcl_lite.Layer>`", "`a layer`"),
        ("{py:class}`Layer` {py:mod}`!ddcl_lite`", "`Layer` `ddcl_lite`"),
        ("{term}`token` {term}`tokens <token>`", "token tokens"),
        ("{download}`This notebook <02_two.ipynb>`\n\nText.", "Text."),
        ("Keep {download}`this notebook <02_two.ipynb>`.", "Keep this notebook."),
    ],
)
def test_other_roles(page, text, expected):
    assert page(text) == expected


# ---------------------------------------------------------------- what stops the export


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a\n\n```{list-table}\n```", 3, "unknown directive {list-table}"),
        ("a\n\n:::{note}\n:class: tip\n\nb\n```{foo}\n```\n:::", 7, "unknown directive {foo}"),
        (":::{note}\n---\nclass: tip\n---\nb\n{foo}`x`\n:::", 6, "unknown role {foo}"),
        ("a\nb {foo}`x`", 2, "unknown role {foo}"),
        (":::{tip} {foo}`x`\n:::", 1, "unknown role {foo}"),
        (":::{prf:lemma} {foo}`x`\n:::", 1, "unknown role {foo}"),
        ("[{foo}`x`](#sec)", 1, "unknown role {foo}"),
        ("a\n{ref}`nowhere`", 2, "unknown label nowhere"),
        ("[a](#nowhere)", 1, "unknown label nowhere"),
        ("{prf:ref}`a <nowhere>`", 1, "unknown label nowhere"),
        ("{ref}`ex-plain`", 1, "ex-plain has no title"),
        ("{prf:ref}`Theorem %s <thm:law>`", 1, "number"),
        ("a\n\n{cite}`solo,\nghost`", 3, "unknown citation ghost"),
        ("{eq}`one`", 1, "one has another number"),
        ("{numref}`fig`", 1, "fig has another number"),
        ("[a](04_four.md)", 1, "unknown page or file 04_four.md"),
        ("{doc}`04_four`", 1, "unknown page or file 04_four.md"),
        ("![a](nothing.png)", 1, "unknown page or file nothing.png"),
        ("```{figure} nothing.png\n:alt: a\n```", 1, "unknown page or file nothing.png"),
        ("```{figure} ../book/picture.png\n```", 1, "{figure} needs :alt:"),
        ("{download}`data <data.csv>`", 1, "{download} of data.csv"),
        ("```{solution} nowhere\n```", 1, "unknown exercise nowhere"),
        ("```{solution-end}\n```", 1, "{solution-end} without {solution-start}"),
        ("```{solution-start} ex\n```\n```{solution-start} ex\n```", 3, "solution of line 10 is still open"),
        (":::{note}\n```{code-cell}\n```\n:::", 2, "unknown directive {code-cell}"),
        ("a\n\n```{note}\nb", 3, "```{note} is not closed"),
        ("::::{note}\n:::{tip}\n::::", 2, ":::{tip} is not closed"),
        ("$$\nx", 1, "$$ is not closed"),
        ("\\begin{align}\nx", 1, "\\begin{align} is not closed"),
        (":::\nx\n:::", 1, "a ::: fence needs a {name}"),
        ("```{prf:lemma} On `x`\n```", 1, "a title with backticks needs a ::: fence"),
        ("- ```{note}\n  x\n  ```", 1, "```{"),
        (":::{note}\n---\na: [\n---\n:::", 1, "options are not valid YAML"),
        ("a {{ name }}", 1, "{{ name }} has no plain form"),
        ("a[^1]", 1, "[^1] has no plain form"),
        ("Term\n: meaning", 2, ": has no plain form"),
        ("[a]: b.md", 1, "[a]: has no plain form"),
        ("<project:#sec>", 1, "<project: has no plain form"),
    ],
)
def test_what_a_notebook_cannot_show_stops_the_export(page, text, line, what):
    with pytest.raises(Stop) as stop:
        page(text, line=10)
    assert str(stop.value).startswith(f"chapters/02_two.md:{line + 9}: ")
    assert what in str(stop.value)


def test_a_stop_is_one_line_with_file_line_and_name_and_writes_nothing(tmp_path, capsys):
    two = "---\nkernelspec: {name: python3}\n---\n\n# Two\n\n```{code-cell}\n1\n```\n\n\ntext\n{foo}`x`\n"
    tree(tmp_path, _01_one="# One\n", _02_two=two)
    assert main([], tmp_path) == 1
    assert capsys.readouterr().err == "chapters/02_two.md:13: unknown role {foo}\n"
    assert not list(tmp_path.glob("chapters/*.ipynb"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("no title", "chapters/01_one.md:1: a chapter needs a # title"),
        ("# A\n\n(a)=\n## B\n\n(a)=\n## C\n", "chapters/01_one.md:6: the label a is used twice"),
        ("# A\n\n```{code-cell}\n---\n: [\n---\n1\n```", "chapters/01_one.md:3: "),
        ("# A\n\n```{code-cell}\n:tags: word\n1\n```", "chapters/01_one.md: "),
        (
            "# A\n\n:::{exercise} E\n:label: e\n:::\n\n```{solution-start} e\n```\n",
            "chapters/01_one.md:7: {solution-start} without {solution-end}",
        ),
    ],
)
def test_a_malformed_chapter_stops_the_export(tmp_path, capsys, text, what):
    assert main([], tree(tmp_path, _01_one=text)) == 1
    message = capsys.readouterr().err
    assert message.startswith(what)
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    "url",
    [
        "https://gitlab.com/ada/notes",
        "http://github.com/ada/notes",
        "https://github.com/ada",
        "https://github.com/ada/notes/",
        "https://github.com/ada/notes.git",
        "https://github.com/-ada/notes",
        "https://github.com/ada/notes/tree/main",
        "git@github.com:ada/notes",
    ],
)
def test_a_malformed_repository_url_stops_the_export(tmp_path, capsys, url):
    assert main([], tree(tmp_path, url=url, _01_one="# One\n")) == 1
    what = f"_config.yml: repository: url must be https://github.com/OWNER/REPO, not {url}\n"
    assert capsys.readouterr().err == what


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("_config.yml", "title: x\n"),
        ("_config.yml", "a: [\n"),
        ("pyproject.toml", "[project\n"),
        ("pyproject.toml", "[project]\n"),
        ("book/references.bib", "@article{a, title = }"),
        ("_config.yml", None),
    ],
)
def test_a_malformed_setting_stops_the_export(tmp_path, capsys, name, text):
    tree(tmp_path, _01_one="# One\n")
    (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text, encoding="utf-8")
    assert main([], tmp_path) == 1
    message = capsys.readouterr().err
    assert name in message
    assert message.count("\n") == 1


# ---------------------------------------------------------------- labels and citations, from files

LABELLED = """\
# One

(Sec_Intro:a)=
## The *first* part

::::{prf:theorem} Law
:label: thm:My_law
It holds.

:::{prf:lemma} Inside
:label: lem_in
Also.
:::
::::

```{exercise} Count
:label: ex_One
Do it.
```

```{solution} ex_One
:label: sol_One
Done.
```

```{figure} ../book/picture.png
:name: Fig_A
:alt: A picture

What it
shows
```

```{code-cell}
'''
(not_a_label)=
'''
```

```{code-block} md
(nor_this)=
```
"""


SPHINX = """\
root_doc = "chapters/01_one"
extensions = ["myst_parser", "sphinx_proof", "sphinx_exercise"]
myst_enable_extensions = ["colon_fence"]
"""


def test_labels_are_found_everywhere(tmp_path):
    tree(tmp_path, _01_one=LABELLED, pages={"book/notation.md": "(signs)=\n# Notation\n"})
    labels = read_book(tmp_path).labels
    one = f"{SITE}/chapters/01_one.html"
    assert labels == {
        "signs": ("Notation", f"{SITE}/book/notation.html#signs"),
        "Sec_Intro:a": ("The *first* part", f"{one}#sec-intro-a"),
        "thm:My_law": ("Theorem (Law)", f"{one}#thm:My_law"),
        "lem_in": ("Lemma (Inside)", f"{one}#lem_in"),
        "ex_One": ("Exercise: Count", f"{one}#ex_One"),
        "sol_One": ("", f"{one}#sol_One"),
        "Fig_A": ("What it shows", f"{one}#fig-a"),
    }


def test_links_lead_to_anchors_that_the_published_page_has(tmp_path):
    """Sphinx decides what an anchor is called."""
    labels = read_book(tree(tmp_path, _01_one=LABELLED)).labels
    (tmp_path / "book/picture.png").write_bytes(b"png")
    (tmp_path / "conf.py").write_text(SPHINX, encoding="utf-8")
    built = tmp_path / "built"
    build = [sys.executable, "-m", "sphinx", "-q", str(tmp_path), str(built)]
    subprocess.run(build, check=True, capture_output=True)
    anchors = set(re.findall(r'id="([^"]*)"', (built / "chapters/01_one.html").read_text(encoding="utf-8")))
    assert {url.partition("#")[2] for _, url in labels.values()} <= anchors


def test_citations_are_read_from_the_bibliography(tmp_path):
    assert read_book(tree(tmp_path)).citations == {
        "erdos": ("Erdős and van der Berg", "1960", "https://doi.org/10.1/x%282%293"),
        "trio": ("Ito et al.", "2024", "https://arxiv.org/abs/2401.00001"),
        "solo": ("Solo", "2001", "https://example.org/c"),
        "bare": ("Bare", "1999", ""),
    }


def test_a_user_site_has_no_repository_in_its_address(tmp_path):
    book = read_book(tree(tmp_path, url="https://github.com/ada/ada.github.io"))
    assert book.published("book/a.md") == "https://ada.github.io/book/a.html"


# ---------------------------------------------------------------- notebooks

GATED = """\
```{exercise} Count
:label: e
Do it.
```

```{solution-start} e
:class: dropdown
```

First words.

```{code-cell} ipython3
:tags: [remove-output]
%%time
x = 1
```

```{code-cell} ipython3
y = 2
```

Last words.

```{solution-end}
```

After.

```{code-cell} ipython3
z = 3
```
"""


def test_a_solution_hides_its_cells_and_its_words(tmp_path):
    start, first, second, end, free = body(tmp_path, GATED)
    hidden = {"cellView": "form", "jupyter": {"source_hidden": True}}
    assert "**Solution: Count** (open the cells below)\n\n<details>" in start.source
    assert start.source.endswith("First words.\n\n</details>")
    assert first.source == "%%time\n#@title Solution: Count\nx = 1"
    assert first.metadata == hidden | {"tags": ["remove-output"]}
    assert second.source == "#@title Solution: Count\ny = 2"
    assert second.metadata == hidden
    assert end.source.startswith("<details>\n<summary>The solution in words</summary>\n\nLast words.")
    assert end.source.endswith("</details>\n\nAfter.")
    assert free.source == "z = 3"
    assert free.metadata == {}


def test_a_cell_that_lowers_to_nothing_is_left_out(tmp_path):
    gate = "```{solution-start} e\n```\n\n```{code-cell}\n1\n```\n\n```{solution-end}\n```\n"
    cells = body(tmp_path, f":::{{exercise}} E\n:label: e\n:::\n\n{gate}")
    assert [cell.cell_type for cell in cells] == ["markdown", "code"]


TAGS = ["parameters", "hide-input", "hide-cell", "remove-output", "remove-stderr", "raises-exception", "own"]


def test_tags_survive(tmp_path):
    text = "".join(f"```{{code-cell}}\n:tags: [{tag}, second]\n1  # @param\n```\n" for tag in TAGS)
    _, *cells = body(tmp_path, text)
    assert [cell.metadata.tags for cell in cells] == [[tag, "second"] for tag in TAGS]
    assert {cell.source for cell in cells} == {"1  # @param"}
    hidden = [cell for cell in cells if cell.metadata.get("jupyter") == {"source_hidden": True}]
    assert [cell.metadata.tags[0] for cell in hidden] == ["hide-input", "hide-cell"]


def test_the_front_matter_and_its_paths_stay_out(tmp_path):
    front = "---\njupytext: {formats: md}\nwidgets: {a: 1}\ndate: 2020-01-01\nkernelspec: {name: x}\n---\n"
    notebook = exported(tree(tmp_path, _01_one=f"{front}\n# One\n\n```{{code-cell}}\n1\n```\n"), "01_one")
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert notebook.cells[2].source == "# One"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_breaks_part_cells_and_nothing_else_changes_code(tmp_path):
    code = "a = '$x$ {foo}`b`'\n# (label)=\n\n% time"
    cells = body(tmp_path, f"one\n\n+++\n\ntwo\n\n```{{code-cell}}\n{code}\n```")
    assert [cell.source for cell in cells] == ["# One\n\none", "two", code]


def test_the_badge_and_the_neighbours_come_first(tmp_path):
    tree(tmp_path, _01_one="# One\n", _02_two="# Two\n", _03_three="# Three $x$\n")
    colab = "https://colab.research.google.com/github/ada/notes/blob/main/chapters"
    names = ["01_one", "02_two", "03_three"]
    first, middle, last = (exported(tmp_path, name).cells[0].source for name in names)
    assert middle == (
        f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab}/02_two.ipynb)\n\n"
        f"[Read this chapter in the book]({SITE}/chapters/02_two.html)"
        f" · previous: [One]({colab}/01_one.ipynb) · next: [Three $x$]({colab}/03_three.ipynb)"
    )
    assert "previous" not in first
    assert "next" not in last


def test_notebooks_are_valid_and_their_ids_are_unique_and_steady(tmp_path):
    cells = "\n\n".join(["```{code-cell}\n1\n```"] * 3)
    before = exported(tree(tmp_path, _01_one=f"# One\n\n{cells}\n\nlast\n"), "01_one")
    nbformat.validate(before)
    assert (before.nbformat, before.nbformat_minor) == (4, 5)
    ids = [cell.id for cell in before.cells]
    assert len(set(ids)) == len(ids)
    after = exported(tree(tmp_path, _01_one=f"# One\n\n+++\n\nnew\n\n{cells}\n\nlast\n"), "01_one")
    assert [cell.id for cell in after.cells if cell.source != "new"] == ids


def test_jupytext_reads_the_same_cells(tmp_path):
    chapter = "# One\n\ntext $x$\n\n```{code-cell} ipython3\n:tags: [a, b]\nx = 1\n```\n\nmore\n"
    notebook = exported(tree(tmp_path, _01_one=chapter), "01_one")
    view = [(cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]
    read = jupytext.reads(chapter, fmt="md:myst")
    assert view[2:] == [(cell.cell_type, cell.source, cell.metadata) for cell in read.cells]
    again = jupytext.reads(jupytext.writes(notebook, fmt="md:myst"), fmt="md:myst")
    assert view == [(cell.cell_type, cell.source, cell.metadata) for cell in again.cells]


# ---------------------------------------------------------------- the install cell


def installer(root, url):
    cell = exported(tree(root, url=url, _01_one="# One\n"), "01_one").cells[1]
    assert cell.metadata.tags == ["install", "remove-cell"]
    return compile(cell.source, "install cell", "exec")


@pytest.fixture
def pip(monkeypatch):
    """What the install cell runs; it must not reach the real pip."""
    calls = []
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: calls.append((args, options)))
    return calls


@pytest.mark.parametrize("url", [HOME, "https://github.com/-your-org-/notes"])
def test_where_the_library_is_present_nothing_is_installed(tmp_path, monkeypatch, pip, url):
    code = installer(tmp_path, url)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    exec(code, {})
    assert pip == []


def test_without_an_owner_the_install_cell_says_what_to_set(tmp_path, monkeypatch, pip):
    code = installer(tmp_path, "https://github.com/-your-org-/notes")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="`make set-repository URL=https://github.com/owner/name`"):
        exec(code, {})
    assert pip == []


def test_with_an_owner_the_install_cell_installs_this_version_alone(tmp_path, monkeypatch, pip):
    code = installer(tmp_path, HOME)
    asked = []
    monkeypatch.setattr(importlib.util, "find_spec", asked.append)
    exec(code, {})
    wanted = "ddcl_lite @ git+https://github.com/ada/notes@v1.2.3"
    assert asked == ["ddcl_lite"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", wanted]
    assert pip == [((command,), {"check": True})]


def test_the_install_cell_fails_when_pip_fails(monkeypatch):
    """A Python that fails stands in for a pip that fails."""
    cell = install_cell(Book(ROOT, "ada", "notes", "main", "1.2.3"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", "/bin/false" if os.name == "posix" else "where")
    with pytest.raises(subprocess.CalledProcessError):
        exec(cell.source, {})


# ---------------------------------------------------------------- files

SAMPLE = f"# One, naïvely\n\n{GATED}\n\n{{cite:t}}`erdos`\n"


def test_the_same_chapter_gives_the_same_bytes(tmp_path):
    texts = []
    for name, newline in ("a", "\n"), ("b", "\r\n"):
        root = tree(tmp_path / name, _01_one=SAMPLE)
        (root / "chapters/01_one.md").write_text(SAMPLE, encoding="utf-8", newline=newline)
        assert main([], root) == 0
        texts.append((root / "chapters/01_one.ipynb").read_bytes())
    assert texts[0] == texts[1]
    assert b"\r" not in texts[0]
    text = texts[0].decode("utf-8")
    assert "naïvely" in text
    assert text == json.dumps(json.loads(text), ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def test_an_unchanged_notebook_is_not_written_again(tmp_path):
    tree(tmp_path, _01_one=SAMPLE, _02_two="# Two\n")
    assert main([], tmp_path) == 0
    paths = sorted(tmp_path.glob("chapters/*.ipynb"))
    for path in paths:
        os.utime(path, (1, 1))
    (tmp_path / "chapters/02_two.md").write_text("# Two\n\nmore\n", encoding="utf-8")
    assert main([], tmp_path) == 0
    assert [path.stat().st_mtime == 1 for path in paths] == [True, False]


def test_check_names_what_is_stale_and_changes_nothing(tmp_path, capsys):
    tree(tmp_path, _01_one="# One\n", _02_two="# Two\n")
    assert main(["--check"], tmp_path) == 1
    assert not list(tmp_path.glob("chapters/*.ipynb"))
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    stale = tmp_path / "chapters/02_two.ipynb"
    stale.write_text("{}", encoding="utf-8")
    capsys.readouterr()
    assert main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err == "chapters/02_two.ipynb: out of date; run `make notebooks`\n"
    assert stale.read_text(encoding="utf-8") == "{}"


@pytest.mark.parametrize("arguments", [[], ["--check"]])
def test_a_notebook_without_a_chapter_is_an_error(tmp_path, capsys, arguments):
    tree(tmp_path, _01_one="# One\n")
    assert main([], tmp_path) == 0
    stray = tmp_path / "chapters/09_gone.ipynb"
    stray.write_text("{}", encoding="utf-8")
    capsys.readouterr()
    assert main(arguments, tmp_path) == 1
    assert capsys.readouterr().err == "chapters/09_gone.ipynb: no chapter of this name; delete it\n"
    assert stray.exists()


def test_it_runs_as_a_module_and_stops_without_a_traceback(tmp_path):
    root = tree(tmp_path, _01_one="# One\n\n{foo}`x`\n")
    (root / "book/__init__.py").touch()
    for name in ("export.py", "lower.py", "myst.py"):
        (root / "book" / name).write_bytes((ROOT / "book" / name).read_bytes())
    command = [sys.executable, "-m", "book.export"]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr == "chapters/01_one.md:3: unknown role {foo}\n"


def test_every_chapter_of_the_book_is_exported():
    assert main(["--check"]) == 0, "run `make notebooks`"
