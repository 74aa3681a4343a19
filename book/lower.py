"""Lower MyST to plain Markdown that reads well in Jupyter and Colab.

`myst.parse` cuts a page into blocks. `DIRECTIVES` and `ROLES` give each name one small function that rewrites it.
A name without a function stops the export: no markup that a notebook cannot show slips through.
"""

import html
import posixpath
import re
import textwrap
from functools import partial

from .myst import Stop, parse, title_of

# ---------------------------------------------------------------- plain Markdown


def display(formula):
    """Display math. As in Sphinx, a blank line parts two formulas, and two backslashes part aligned lines."""
    formula = textwrap.dedent(formula).strip()
    if formula.startswith(r"\begin{"):
        return f"$$\n{formula}\n$$"
    parts = re.split(r"\n\s*\n", formula)
    parts = [f"\\begin{{split}}\n{part}\n\\end{{split}}" if r"\\" in part else part for part in parts]
    return "\n\n".join(f"$$\n{part}\n$$" for part in parts)


def fold(summary, text):
    """A block that opens on a click. Its summary is HTML, where backticks mean nothing."""
    summary = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(summary, quote=False))
    return f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"


SPAN = re.compile(  # a fence, inline code, an escape, or math
    r"^(`{3,}|~{3,}).*?^\1|(`+)(?!`).+?(?<!`)\2(?!`)|\\.|(?P<math>\$\$?(?:\\.|[^$\\\n]|\n(?!\n))+\$\$?)",
    re.M | re.S,
)


def quote(text):
    """A block quote. Math goes on one line: Jupyter would show the next line's `>` inside the formula."""
    text = SPAN.sub(lambda span: " ".join(span[0].split()) if span["math"] else span[0], text)
    return "\n".join(f"> {line}" if line else ">" for line in text.split("\n"))


def unlink(text):
    """`text` without its links: the text of a link may hold none."""
    return re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", text)


# ---------------------------------------------------------------- a page -> plain Markdown

INLINE = re.compile(
    r"""
    (?P<refused>\{\{.+?\}\} | \[\^[^\]]+\] | <(?:project|path|inv): | ^\[[^\]]+\]:[ ]
      | (?<=\n)[ ]{0,3}:[ ] | (?:`{3,}|:{3,})\{)
  | \\.
  | (?P<role>\{(?P<name>[A-Za-z][\w:+.-]*)\}(?P<tick>`+)(?P<content>.+?)(?<!`)(?P=tick)(?!`))
  | (?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)
  | \$\$?(?:\\.|[^$\\])+\$\$?
  | (?P<link>(?P<image>!?)\[(?P<text>(?:`[^`]*`|\\.|[^\[\]\\`]|\[[^\]]*\])*)\]
      \((?P<target>[^()\s]*(?:\([^()]*\)[^()\s]*)*)(?P<hover>\s+"[^"]*")?\))
    """,
    re.X | re.S | re.M,
)
OWN_PARAGRAPH = re.compile(r"\s*\{download\}`[^`]*`\s*")


class Lowering:
    """Lowers one page. `book` knows the pages, labels, citations and files."""

    def __init__(self, book, page):
        self.book, self.page = book, page
        self.gate = None  # (title, line) of a {solution-start} without its end so far

    def stop(self, line, message):
        raise Stop(f"{self.page}:{line}: {message}")

    def cell(self, source, line):
        """Lower a markdown cell. A solution that starts in it may stay open over the next cells."""
        done, inside = [], []

        def close():
            if inside:
                done.append(fold("The solution in words", "\n\n".join(inside)))
                inside.clear()

        for block in parse(source.split("\n"), line, self.page):
            if block.name == "solution-start":
                if self.gate:
                    self.stop(block.line, f"the solution of line {self.gate[1]} is still open")
                self.gate = solution_title(self, block), block.line
                done.append(f"**{self.gate[0]}** (open the cells below)")
                inside += filter(None, [self.body(block)])
            elif block.name == "solution-end":
                if not self.gate:
                    self.stop(block.line, "{solution-end} without {solution-start}")
                close()
                self.gate = None
            elif text := self.block(block):
                (inside if self.gate else done).append(text)
        close()
        return "\n\n".join(done)

    def blocks(self, lines, line):
        return "\n\n".join(filter(None, map(self.block, parse(lines, line, self.page))))

    def body(self, block):
        return self.blocks(block.body, block.first)

    def block(self, block):
        source = "\n".join(block.body)
        if block.kind == "label":
            return ""
        if block.kind == "code":
            return source
        if block.kind == "text":
            text = self.inline(source, block.line)
            return "" if OWN_PARAGRAPH.fullmatch(source) else text
        if block.kind == "math":
            formula = re.sub(r"\$\$\s*\([^)]*\)\s*$", "", source).strip().strip("$")
            text = display(re.sub(r"\\label\{[^}]*\}", "", formula))
        elif block.name in DIRECTIVES:
            text = DIRECTIVES[block.name](self, block)
        else:
            self.stop(block.line, f"unknown directive {{{block.name}}}")
        return textwrap.indent(text, block.indent)

    def inline(self, text, line):
        """Lower a paragraph. Code, math and escapes stay as they are."""

        def replace(match):
            here = line + text.count("\n", 0, match.start())
            if match["refused"]:
                self.stop(here, f"{match['refused'].strip()} has no plain form in a notebook")
            if match["link"]:
                words = self.inline(match["text"], here)
                return self.link(words, match["target"], here, match["image"], match["hover"] or "")
            if not match["role"]:
                return match[0]
            role = ROLES.get(match["name"]) or self.stop(here, f"unknown role {{{match['name']}}}")
            return role(self, match["content"], here)

        return INLINE.sub(replace, text)

    def link(self, words, target, line, image="", hover=""):
        """A link to a label, a page, a file or elsewhere; an image if `image` is "!"."""
        path, _, label = target.partition("#")
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            return f"{image}[{words}]({target}{hover})"
        if label:
            return self.reference(label, words, line)
        path = path[1:] if path.startswith("/") else posixpath.join(posixpath.dirname(self.page), path)
        path = posixpath.normpath(path)
        title, url = self.book.pages.get(path) or ("", self.book.file(path, image))
        if not url:
            self.stop(line, f"unknown page or file {target}")
        return f"{image}[{words or unlink(self.inline(title, line))}]({url}{hover})"

    def reference(self, label, words, line):
        """A link to a label, by the title of what it names."""
        title, url = self.book.labels.get(label) or self.stop(line, f"unknown label {label}")
        words = words or unlink(self.inline(title, line))
        if not words:
            self.stop(line, f"{label} has no title: write `text <{label}>`")
        return f"[{words}]({url})"


# ---------------------------------------------------------------- directives: (page, block) -> text


def titled(low, block):
    """A theorem or an exercise: a bold heading, then its text."""
    kind = block.name.removeprefix("prf:").removesuffix("-start").title()
    title, text = low.inline(title_of(block), block.line) or kind, low.body(block)
    end = "" if title.endswith(("?", "!")) else "."
    return fold(unlink(title), text) if dropdown(block) else f"**{title}{end}**\n\n{text}".rstrip()


def proof(low, block):
    text = low.blocks([block.argument, *block.body], block.first - 1)
    text += " □" if re.search(r"[.!?)]$", text) else "\n\n□"
    return fold("Proof", text) if dropdown(block) else f"**Proof.**\n\n{text}"


def admonition(low, block, name=""):
    """Where the directive's name is the title, its argument is the first line of its text."""
    title = name or low.inline(block.argument, block.line)
    text = low.blocks([block.argument if name else "", *block.body], block.first - 1)
    return fold(unlink(title), text) if dropdown(block) else quote(f"**{title}**\n\n{text}")


def dropdown(block):
    return block.name == "dropdown" or "dropdown" in block.options.get("class", "").split()


def solution_title(low, block):
    exercise = block.argument
    title, _ = low.book.labels.get(exercise) or low.stop(block.line, f"unknown exercise {exercise}")
    return unlink(low.inline(title.replace("Exercise", "Solution", 1) or "Solution", block.line))


def solution(low, block):
    return fold(solution_title(low, block), low.body(block))


def figure(low, block):
    alt = block.options.get("alt") or low.stop(block.line, f"{{{block.name}}} needs :alt:")
    return f"{low.link(alt, block.argument, block.line, '!')}\n\n{low.body(block)}".rstrip()


def code(low, block):
    text = "\n".join(block.body).strip("\n")
    marks = "`" * max([3, *(len(run) + 1 for run in re.findall(r"`{3,}", text))])
    return f"{marks}{block.argument}\n{text}\n{marks}"


def glossary(low, block):
    """Terms stand at the margin, their meanings are indented."""
    lines = (line if line[:1] in ("", " ") else f"- **{line}**:" for line in block.body)
    return low.blocks(list(lines), block.first)


THEOREMS = [
    *("algorithm", "assumption", "axiom", "claim", "conjecture", "corollary", "criterion", "definition"),
    *("example", "lemma", "notation", "observation", "property", "proposition", "remark", "theorem"),
]
ADMONITIONS = ["attention", "caution", "danger", "error", "hint", "important", "note", "tip", "warning"]
NAMES = ["attr", "class", "const", "data", "exc", "mod", "obj"]
DIRECTIVES = {
    **{f"prf:{name}": titled for name in THEOREMS},
    "prf:proof": proof,
    **{name: partial(admonition, name=name.title()) for name in ADMONITIONS},
    "seealso": partial(admonition, name="See also"),
    "admonition": admonition,
    "dropdown": admonition,
    "exercise": titled,
    "exercise-start": titled,
    "exercise-end": lambda low, block: "",
    "solution": solution,
    "figure": figure,
    "image": figure,
    "math": lambda low, block: display("\n".join([block.argument, *block.body])),
    "code": code,
    "code-block": code,
    "glossary": glossary,
}
VERBATIM = {"code-cell", "raw-cell", "code", "code-block", "math", "glossary"}  # what they hold is no MyST


# ---------------------------------------------------------------- roles: (page, content, line) -> text


def targeted(content):
    """`text <target>` in two; the text is empty where only a target is given."""
    match = re.fullmatch(r"(.*?)\s*<([^<>]+)>", content, re.S)
    return match.groups() if match else ("", content)


def refer(low, content, line):
    words, label = targeted(content)
    if re.search(r"%s|\{\w+\}", words):
        numbered(low, content, line)
    return low.reference(label, words, line)


def document(low, content, line):
    words, target = targeted(content)
    return low.link(words, f"{target}.md", line)


def cite(low, content, line, textual=False):
    """Links with the authors and the year of each work."""
    links = []
    for key in map(str.strip, content.split(",")):
        authors, year, url = low.book.citations.get(key) or low.stop(line, f"unknown citation {key}")
        text = f"{authors} ({year})" if textual else f"{authors}, {year}"
        links.append(f"[{text}]({url})" if url else text)
    return ", ".join(links) if textual else f"({'; '.join(links)})"


def api(low, content, line, call=""):
    """Inline code; `~a.b.c` is shortened to `c`."""
    words, target = targeted(content)
    name = target.rpartition(".")[2] if target.startswith("~") else target.lstrip("!")
    return f"`{words or name.removesuffix('()') + call}`"


def term(low, content, line):
    words, target = targeted(content)
    return words or target


def download(low, content, line):
    """A notebook needs no link to itself: only the words stay."""
    words, target = targeted(content)
    own = posixpath.basename(low.page).removesuffix(".md") + ".ipynb"
    if target != own:
        low.stop(line, f"{{download}} of {target}: write a link instead")
    return words or target


def numbered(low, content, line):
    low.stop(line, f"{content} has another number in the notebook: refer to it by title or in words")


ROLES = {
    "math": lambda low, content, line: f"${content}$",
    "ref": refer,
    "prf:ref": refer,
    "doc": document,
    "cite": cite,
    "cite:p": cite,
    "cite:t": partial(cite, textual=True),
    "eq": numbered,
    "numref": numbered,
    "term": term,
    "download": download,
    **{f"{domain}{name}": api for domain in ("", "py:") for name in NAMES},
    **{f"{domain}{name}": partial(api, call="()") for domain in ("", "py:") for name in ("func", "meth")},
}
