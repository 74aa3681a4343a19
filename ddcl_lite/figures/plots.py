"""Pictures that several chapters draw."""

from .style import COLOURS, MARKERS, subplots


def intervals(ax, names, groups: dict) -> None:
    """Names down the side; for each group (label -> (centres, half widths)) a marker with its interval per name."""
    step = 0.22
    for index, (label, (centres, widths)) in enumerate(groups.items()):
        offset = step * (index - (len(groups) - 1) / 2)
        heights = [place + offset for place in range(len(names))]
        ax.errorbar(
            centres, heights, xerr=widths, fmt=MARKERS[index], color=COLOURS[index], capsize=3, lw=1.5, label=label
        )
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    if len(groups) > 1:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(groups))


def transition(ratios, spreads: dict):
    """Final spread of a bank against T/T_c, one curve per label; returns the figure."""
    fig, ax = subplots()
    for index, (label, spread) in enumerate(spreads.items()):
        ax.plot(ratios, spread, MARKERS[index] + "-", color=COLOURS[index], label=label)
    ax.axvline(1, color=COLOURS[4], linestyle=":")
    ax.annotate("critical temperature", (1.02, 0.9))
    ax.set_xlabel("temperature T / T_c")
    ax.set_ylabel("final spread of the bank (token sd)")
    ax.legend(loc="lower left")
    return fig


def parallel_axis(token, prototypes, weights, total, reconstruction, variance):
    """One token (2,), its prototypes (K, 2) and weights, and the loss beside its two parts; returns the figure."""
    fig, (ax, bar) = subplots(1, 2, figsize=(7.6, 3.6), width_ratios=[3, 1])
    centroid = sum(weight * p for weight, p in zip(weights, prototypes))
    for p, weight in zip(prototypes, weights):
        ax.plot(*zip(token, p), "--", color=COLOURS[0], lw=1)
        ax.plot(*zip(centroid, p), ":", color=COLOURS[1])
        ax.plot(*p, "D", color=COLOURS[1], ms=4 + 20 * weight)
        ax.annotate(f"q = {weight:.2f}", p, xytext=(-10, -16), textcoords="offset points", ha="right")
    ax.plot(*zip(token, centroid), color=COLOURS[2], lw=3)
    for name, point, mark in (("token z", token, "o"), ("centroid", centroid, "^")):
        ax.plot(*point, mark, color=COLOURS[2], ms=9)
        ax.annotate(name, point, xytext=(9, 0), textcoords="offset points")
    ax.set(xlabel="feature 1", ylabel="feature 2", aspect="equal")
    ax.margins(0.3, 0.2)
    bar.bar(0, total, color=COLOURS[0], hatch="//", label="$L_q$")
    bar.bar(1, variance, bottom=reconstruction, color=COLOURS[1], hatch="..", label="$V$")
    bar.bar(1, reconstruction, color=COLOURS[2], label="$L_{OLS}$")
    bar.set(xticks=[], ylabel="squared distance")
    bar.legend(loc="upper center", bbox_to_anchor=(0.5, 0))
    return fig
