"""A claim: one statement, its verdict, and the function that measures it."""

from collections.abc import Callable
from typing import NamedTuple

import torch

VERDICTS = {
    "holds": "holds",
    "conditional": "holds under a condition that we state",
    "fails": "fails as stated",
    "measured": "an empirical statement: we report what our setting gives",
}


class Evidence(NamedTuple):
    """A named number and the bounds that the verdict needs. No bound: reported, not asserted."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def needed(self) -> str:
        """The bounds in words; empty if there is none."""
        bounds = (("at least", self.at_least), ("at most", self.at_most))
        return " and ".join(f"{word} {bound:.4g}" for word, bound in bounds if bound is not None)

    @property
    def supports(self) -> bool:
        above = self.at_least is None or self.value >= self.at_least
        return bool(above and (self.at_most is None or self.value <= self.at_most))


class Claim(NamedTuple):
    """A statement as its source has it, our verdict and reading, the chapter that discusses it, and its measurement."""

    id: str
    statement: str
    verdict: str
    reading: str
    chapter: int
    body: Callable[[int, torch.device], list[Evidence]]

    def measure(self, seed: int = 0, device: str | torch.device = "cpu") -> "Result":
        """Run the measurement; the same seed draws the same numbers on every device. Random state stays as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Result(self, self.body(seed, torch.device(device)))


class Result(NamedTuple):
    """A claim with its evidence from one seed."""

    claim: Claim
    evidence: list[Evidence]

    @property
    def supported(self) -> bool:
        return bool(self.evidence) and all(item.supports for item in self.evidence)

    def as_dict(self) -> dict:
        """{id, statement, verdict, reading, chapter, supported, evidence}, ready for JSON."""
        fields = {name: getattr(self.claim, name) for name in ("id", "statement", "verdict", "reading", "chapter")}
        evidence = [{**item._asdict(), "value": float(item.value), "supports": item.supports} for item in self.evidence]
        return {**fields, "supported": self.supported, "evidence": evidence}


CLAIMS: dict[str, Claim] = {}


def claim(id: str, statement: str, verdict: str, reading: str, chapter: int):
    """Register the decorated function (seed, device) -> [Evidence, ...] as the measurement of a claim."""
    if verdict not in VERDICTS:
        raise ValueError(f"verdict: expected one of {', '.join(VERDICTS)}, got {verdict!r}")
    if id in CLAIMS:
        raise ValueError(f"id: {id} is registered already")

    def register(body):
        CLAIMS[id] = Claim(id, statement, verdict, reading, chapter, body)
        return body

    return register


def find(id: str) -> Claim:
    """The claim with this id. Raises ValueError that lists the known ones."""
    if id not in CLAIMS:
        raise ValueError(f"unknown claim {id!r}; known: {', '.join(sorted_ids())}")
    return CLAIMS[id]


def sorted_ids() -> list[str]:
    """D1, D2, ..., D10, ..., U1, ...: by letter, then by number."""
    return sorted(CLAIMS, key=lambda id: (id[0], int(id[1:])))
