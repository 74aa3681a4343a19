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
