"""Cut a MyST page into blocks: paragraphs, math, labels, code fences and directives."""

import re
from dataclasses import dataclass, field

import yaml


class Stop(Exception):
    """The export cannot go on. The message is one line: where, and why."""


@dataclass
class Block:
    """A piece of a page: "text" (a paragraph), "math", a "label", a "code" fence or a "directive"."""

    kind: str
    line: int  # where it starts, from 1
    body: list  # its lines; of a directive, those after its options
    name: str = ""  # the label, or the directive
    argument: str = ""
    options: dict = field(default_factory=dict)
    indent: str = ""
    first: int = 0  # the line of body[0]


STARTS = {  # what a line can begin; else it is text
    "skip": re.compile(r"\s*$|%"),  # blank, or a comment
    "label": re.compile(r"\((?P<label>[^()]+)\)=\s*$"),
    "fence": re.compile(r"(?P<indent>\s*)(?P<marks>`{3,}(?=[^`]*$)|~{3,}|:{3,})\s*(?P<info>.*?)\s*$"),
    "broken": re.compile(r"\s*`{3,}\{[^`]*`"),  # a directive, but backticks in its title hide it
    "math": re.compile(r"(?P<indent>\s*)\$\$(?:(?!\$\$).)*(?P<end>\$\$\s*(?:\([^)]*\)\s*)?)?$"),
    "align": re.compile(r"(?P<indent>\s*)\\begin\{(?P<name>[a-z]+\*?)\}"),
}
OPTION = re.compile(r":(?P<key>[\w-]+):\s*(?P<value>.*?)\s*$")


def parse(lines, first, page):
    """Yield the blocks of `lines`; `first` is the number of the first line in `page`."""
    at = 0
    while at < len(lines):
        kind, match = start(lines[at])
        if kind == "broken":
            raise Stop(f"{page}:{first + at}: a title with backticks needs a ::: fence")
        end = finish(lines, at, kind, match)
        if end is None:
            raise Stop(f"{page}:{first + at}: {lines[at].strip()} is not closed before its cell ends")
        if kind != "skip":
            yield build(kind, match, lines[at:end], first + at, page)
        at = end


def start(line):
    """What `line` begins, and how it matched."""
    found = ((kind, pattern.match(line)) for kind, pattern in STARTS.items())
    return next(((kind, match) for kind, match in found if match), ("text", None))


def finish(lines, at, kind, match):
    """The index after the last line of the block that starts at `at`; None if it never ends."""
    after = range(at + 1, len(lines))
    if kind == "text":
        return next((i for i in after if start(lines[i])[0] != "text"), len(lines))
    if kind in ("skip", "label") or (kind == "math" and match["end"]):
        return at + 1
    if kind == "align":
        after, last = range(at, len(lines)), rf".*\\end\{{{re.escape(match['name'])}\}}\s*$"
    elif kind == "math":
        last = r".*\$\$\s*(\([^)]*\))?\s*$"
    else:
        last = rf"\s*{match['marks'][0]}{{{len(match['marks'])},}}\s*$"
    return next((i + 1 for i in after if re.match(last, lines[i])), None)


def build(kind, match, lines, line, page):
    """The block made of `lines`."""
    if kind == "text":
        return Block("text", line, lines)
    if kind == "label":
        return Block("label", line, [], match["label"])
    indent = match["indent"]
    if kind in ("math", "align"):
        return Block("math", line, lines, indent=indent)
    named = re.match(r"\{([^}\s]+)\}\s*(.*)", match["info"])
    if not named and match["marks"].startswith(":"):
        raise Stop(f"{page}:{line}: a ::: fence needs a {{name}}")
    if not named:
        return Block("code", line, lines)
    body = [text[len(indent) :] if text.startswith(indent) else text.lstrip() for text in lines[1:-1]]
    options, used = read_options(body, line, page)
    return Block("directive", line, body[used:], *named.groups(), options, indent, line + 1 + used)


def read_options(body, line, page):
    """A directive's options, from `:key: value` lines or a YAML block, and the number of lines they take."""
    if body and body[0].startswith("---"):
        end = next((i for i in range(1, len(body)) if body[i].startswith("---")), len(body))
        try:
            options = yaml.safe_load("\n".join(body[1:end])) or {}
            return {key: str(value) for key, value in options.items()}, end + 1
        except (yaml.YAMLError, AttributeError):
            raise Stop(f"{page}:{line}: the directive's options are not valid YAML") from None
    options = {}
    for match in map(OPTION.match, body):
        if not match:
            break
        options[match["key"]] = match["value"]
    return options, len(options)


def title_of(block):
    """What links to a directive and its heading call it; empty if it has no title."""
    kind = block.name.removeprefix("prf:").removesuffix("-start").title()
    if block.name == "figure":
        return " ".join("\n".join(block.body).strip().partition("\n\n")[0].split())
    if block.name.startswith("prf:"):
        return block.argument and f"{kind} ({block.argument})"
    if kind == "Exercise":
        return block.argument and f"{kind}: {block.argument}"
    return block.argument if block.name in ("admonition", "dropdown") else ""
