"""Every statement that the book makes, as a function that measures it.

`python -m ddcl_lite.claims [ID ...] [--seed S] [--device cpu|cuda] [--json]`
"""

from . import (  # registers their claims
    codebook,
    debris,
    decomposition,
    documents,
    energy,
    flow,
    force,
    gauges,
    labels,
    layer,
    looped,
    metastability,
    orbits,
    signs,
    temperature,
    text,
    timescales,
)
from .cards import card, ledger
from .registry import CLAIMS, VERDICTS, Claim, Evidence, Result, claim, find, sorted_ids

__all__ = ["CLAIMS", "VERDICTS", "Claim", "Evidence", "Result", "card", "claim", "find", "ledger", "sorted_ids"]
__all__ += ["codebook", "debris", "decomposition", "documents", "energy", "flow", "force", "gauges", "labels", "layer"]
__all__ += ["looped", "metastability", "orbits", "signs", "temperature", "text", "timescales"]
