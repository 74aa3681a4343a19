"""`python -m book.picture`: draw the README's picture, the landing page's first figure, for light and dark pages."""

from pathlib import Path

from ddcl_lite import spread
from ddcl_lite.experiments.transition import opening
from ddcl_lite.figures import transition
from ddcl_lite.figures.show import svg

STATIC = Path(__file__).parent / "_static"
INK = {"light": "#1f2328", "dark": "#f0f6fc"}  # GitHub's text colours


def main() -> None:
    tokens, ratios, banks = opening()
    spreads = {label: [spread(bank, tokens) for bank in each] for label, each in banks.items()}
    for ground, ink in INK.items():
        text = svg(transition(ratios, spreads), "readme", "see the README").replace("currentColor", ink)
        (STATIC / f"transition-{ground}.svg").write_text(text + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
