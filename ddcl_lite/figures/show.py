"""A figure on the page: inline SVG that takes the page's text colour, with alt text and a caption."""

import hashlib
import html
import io
import re

import matplotlib as mpl
import matplotlib.pyplot as plt

from .style import INK


def show(fig, caption: str, alt: str) -> None:
    """Display a matplotlib figure as an HTML <figure> and close it: the only way a chapter shows a plot.

    caption says what question the figure answers; alt says what is seen, with the measured values, for those who do not
    see it. Axes and text take the page's text colour, so the figure reads on light and dark pages. The same figure
    gives the same bytes. Raises ValueError if either text is missing.
    """
    from IPython.display import HTML, display

    display(HTML(figure_html(fig, caption, alt)))
    plt.close(fig)


def figure_html(fig, caption: str, alt: str) -> str:
    """The HTML that `show` displays."""
    for name, text in (("caption", caption), ("alt", alt)):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{name}: expected a sentence, got {text!r}")
    label = "fig" + hashlib.sha256(caption.encode()).hexdigest()[:8]
    return (
        f'<figure class="ddcl-figure" style="margin:1em 0">{svg(fig, label, alt)}'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def svg(fig, label: str, alt: str) -> str:
    """The figure as one inline <svg>; ids begin with `label`, so that two figures on a page never share one."""
    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": label}):
        fig.savefig(out, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = re.sub(r'\bid="', f'id="{label}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{label}-", text)
    attributes = f'role="img" aria-label="{html.escape(alt)}" style="max-width:100%;height:auto"'
    return text.replace("<svg ", f"<svg {attributes} ", 1).strip()
