"""One look for every figure, readable on light and dark pages and without colour vision."""

import matplotlib as mpl
import matplotlib.pyplot as plt

INK = "#414243"  # stands for the page's own text colour; `show` turns it into `currentColor`

# Contrast of at least 3 against white and against the dark page; told apart in every common colour-vision deficiency,
# and always joined by a marker or a line style.
COLOURS = ["#1f77b4", "#d55e00", "#009e73", "#c05aa0", "#7f7f7f", "#b8860b"]
MARKERS = ["o", "s", "^", "D", "v", "P"]

STYLE = {
    "figure.figsize": (6.4, 3.6),
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.prop_cycle": mpl.cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    **dict.fromkeys(
        ["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"], INK
    ),
}


def subplots(*args, **kwargs):
    """`matplotlib.pyplot.subplots` in the book's style, which from then on is matplotlib's default in this session."""
    mpl.rcParams.update(STYLE)
    return plt.subplots(*args, **kwargs)
