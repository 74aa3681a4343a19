"""Honest statistics of a comparison: intervals, and paired differences to a baseline, over a few seeds."""

import math
from typing import NamedTuple

import pandas as pd
from scipy import stats


class Comparison(NamedTuple):
    """How a table with one row per method and seed is read.

    method, score: the names of its columns. baseline: the method that the others are paired with, seed by seed.
    test_share: where each seed is another random split, the share that is tested on. Such splits share data, so the
    variance of a mean over J seeds is taken as s^2 (1/J + test share / training share) (Nadeau and Bengio 2003).
    0 where seeds are independent, as with one fixed split: s^2 / J.
    higher_is_better: False for errors.
    """

    method: str
    score: str
    baseline: str
    test_share: float = 0.0
    higher_is_better: bool = True

    def summarise(self, table: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
        """Per method, in the table's order: mean score, mean gain over the baseline, and the half width of a t-interval
        for each. Raises ValueError for a table without these columns or with two rows of one method and seed, for fewer
        than two seeds, and where a method lacks a seed."""
        methods = self._methods(table)
        if not 0 <= self.test_share < 1:
            raise ValueError(f"test_share: expected a number from 0 to below 1, got {self.test_share}")
        if self.baseline not in methods:
            raise ValueError(f"table: expected the baseline {self.baseline!r} among its methods, got {methods}")
        scores = table.pivot(index="seed", columns=self.method, values=self.score)[methods]
        if len(scores) < 2 or scores.isna().any(axis=None):
            raise ValueError(f"table: expected two seeds or more, each for every method, got\n{scores}")
        gains = scores.sub(scores[self.baseline], axis=0)
        count = len(scores)
        shared = self.test_share / (1 - self.test_share)
        factor = stats.t.ppf((1 + level) / 2, count - 1) * math.sqrt(1 / count + shared)
        columns = {self.score: scores.mean(), "+-": factor * scores.std()}
        columns |= {f"gain over {self.baseline}": gains.mean(), "+- (gain)": factor * gains.std()}
        return pd.DataFrame(columns)

    def verdicts(self, table: pd.DataFrame) -> dict[str, str]:
        """One line per method: better, worse, or not told apart from the baseline, at 5% for all of them together
        (Bonferroni). Scores below 1 in size are given in points, hundredths."""
        methods = [name for name in self._methods(table) if name != self.baseline]
        summary = self.summarise(table, 1 - 0.05 / max(len(methods), 1))
        points = bool((summary[self.score].abs() <= 1).all())
        lines = {}
        for name in methods:
            gain, width = summary.loc[name, f"gain over {self.baseline}"], summary.loc[name, "+- (gain)"]
            relation = "better than" if (gain > 0) == self.higher_is_better else "worse than"
            relation = relation if abs(gain) > width else "not told apart from"
            values = f"{100 * gain:+.1f} +- {100 * width:.1f} points" if points else f"{gain:+.3g} +- {width:.2g}"
            lines[name] = f"{relation} the {self.baseline}: {values}"
        return lines

    def _methods(self, table: pd.DataFrame) -> list[str]:
        """The methods of a table in its order, after a look at its columns and rows."""
        columns = ["seed", self.method, self.score]
        if not set(columns) <= set(table.columns):
            raise ValueError(f"table: expected the columns {columns}, got {list(table.columns)}")
        repeated = table.duplicated(columns[:2])
        if repeated.any():
            raise ValueError(f"table: expected one row per method and seed, got another of\n{table[repeated]}")
        return list(dict.fromkeys(table[self.method]))
