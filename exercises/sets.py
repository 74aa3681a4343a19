"""Read a problem set, and give it the numbers that belong to a course key."""

import copy
import hashlib
import hmac
import importlib
import pprint
import random
import re
import unicodedata
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from jupytext.myst import MystMetadataParsingError, myst_to_notebook
from nbformat import NotebookNode, ValidationError

FOLDER = Path(__file__).parent
PUBLIC = "public"  # the key of the copies in release/
SHORTEST_KEY = 8
FIRST_LINE = re.compile(r"# Set (?P<set>\w+), instance (?P<print>[0-9a-f]{8})\b")
HINT = re.compile(r"<details><summary>(.*?)</summary>\s*(.*?)\s*</details>\n?", re.S)  # Markdown needs room around it
CELL = re.compile(r"^\s*(?:# |<!-- )Cell (?P<id>[\w-]+)", re.M)  # how every cell with a grade_id begins


class SetError(Exception):
    """Something that the person at the command line has to mend; its text says what."""


@dataclass(frozen=True)
class Set:
    """One problem set, by the name of its folder."""

    name: str

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @cached_property
    def _reference(self):
        return importlib.import_module(f"exercises.{self.name}.reference")

    @property
    def checks(self) -> dict:
        """Every hidden check by its name: see `exercises.checks.Check`."""
        return self._reference.CHECKS

    @property
    def wrong_answers(self) -> list:
        """The bank of answers that must be refused."""
        return importlib.import_module(f"exercises.{self.name}.wrong_answers").WRONG

    @cached_property
    def title(self) -> str:
        return re.search(r"^# (.*)$", self.source, re.M)[1]

    @cached_property
    def source(self) -> str:
        return (self.folder / "source.md").read_text(encoding="utf-8")

    def instance(self, key: str, student: str = "") -> dict:
        """The numbers of this set under a key, and under a name where every student has an own copy."""
        return self._reference.instance(random.Random(self._digest("numbers", key, student)))

    def fingerprint(self, key: str, student: str = "") -> str:
        """Eight hex digits that tell which key a copy was made with, and not the key."""
        return self._digest("print", key, student)[:8]

    def seed(self, key: str, student: str, check: str) -> int:
        """The seed of a check's random inputs."""
        return int(self._digest(f"check {check}", key, student)[:12], 16)

    def _digest(self, purpose: str, key: str, student: str) -> str:
        text = f"{purpose}/{self.name}/{unicodedata.normalize('NFC', student)}"  # a Mac takes names apart
        return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()

    @cached_property
    def _parsed(self) -> NotebookNode:
        try:
            return myst_to_notebook(self.source)
        except (MystMetadataParsingError, ValidationError) as error:
            raise SetError(f"{self.name}: {str(error).splitlines()[0]}") from None

    def notebook(self, key: str, student: str = "") -> NotebookNode:
        """The instructor's notebook: text, solutions, hidden tests, and the numbers of the key in cell `instance`.

        Every cell with a grade_id begins with a line that names it, in case its metadata gets lost.
        """
        made = copy.deepcopy(self._parsed)
        for cell in made.cells:
            name = cell.metadata.get("nbgrader", {}).get("grade_id")
            if not name and cell.cell_type != "code":
                cell.source = HINT.sub(r"<details><summary>\1</summary>\n\n\2\n\n</details>\n", cell.source)
                continue
            if not name:
                raise SetError(f"{self.name}: a code cell has no nbgrader metadata: {cell.source[:60]!r}")
            if name == "instance":
                numbers = pprint.pformat(self.instance(key, student), width=72, sort_dicts=False)
                first = f"# Set {self.name}, instance {self.fingerprint(key, student)}. Leave this cell as it is."
                cell.source = f"{first}\ninstance = {numbers}"
            head = f"# Cell {name}" if cell.cell_type == "code" else f"<!-- Cell {name} -->"
            cell.source = f"{head}\n{cell.source}"
        if sum(c.metadata.get("nbgrader", {}).get("grade_id") == "instance" for c in made.cells) != 1:
            raise SetError(f"{self.name}: expected one cell with the grade_id instance")
        return made


def all_sets() -> list[Set]:
    return [Set(path.parent.name) for path in sorted(FOLDER.glob("[0-9][0-9]_*/source.md"))]


@cache
def find(name: str) -> Set:
    """The set of this name; SetError that lists the others."""
    known = {one.name: one for one in all_sets()}
    if name not in known:
        raise SetError(f"there is no set {name!r}; there are {', '.join(known)}")
    return known[name]


def check_key(key: str | None) -> str:
    """The key, or SetError."""
    if not key:
        raise SetError(
            "KEY is missing. It is the one that the class's notebooks were made with (make course KEY=...); "
            f"for the public copies of exercises/release it is KEY={PUBLIC}."
        )
    if key != PUBLIC and len(key) < SHORTEST_KEY:
        raise SetError(f"KEY has {len(key)} characters, expected at least {SHORTEST_KEY}: a short one can be guessed")
    return key
