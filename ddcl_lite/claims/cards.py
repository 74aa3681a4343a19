"""Claims as a page shows them: a card where one is discussed, and the ledger of all."""

import html

from .registry import CLAIMS, VERDICTS, Result, find, sorted_ids

BOX = "border:1px solid currentColor;border-radius:.4em;padding:.6em 1em;margin:1em 0"
BADGE = "display:inline-block;padding:0 .5em;border-radius:.8em;color:#fff;background:"
COLOURS = {"holds": "#00704f", "conditional": "#8a5a00", "fails": "#a83e00", "measured": "#1a6496"}


def card(id: str, seed: int = 0, device="cpu") -> None:
    """Measure a claim here and now and display it. Raises AssertionError where the evidence misses a bound.

    Unknown id: ValueError that lists the known ones.
    """
    from IPython.display import HTML, display

    result = find(id).measure(seed, device)
    display(HTML(card_html(result)))
    missed = [item.name for item in result.evidence if not item.supports]
    assert result.supported, f"claim {id}: the evidence misses its bounds: {'; '.join(missed) or 'there is none'}"


def ledger(seed: int = 0, device="cpu") -> None:
    """Measure every claim and display the table."""
    from IPython.display import HTML, display

    results = [CLAIMS[id].measure(seed, device) for id in sorted_ids()]
    rows = "".join(f"<tr>{row_html(result)}</tr>" for result in results)
    head = '<th scope="col">Claim</th><th scope="col">Statement, verdict, our reading, and the evidence</th>'
    display(HTML(f'<table class="ddcl-ledger"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'))
    unsupported = [result.claim.id for result in results if not result.supported]
    assert not unsupported, f"the evidence misses its bounds: {', '.join(unsupported)}"


def card_html(result: Result) -> str:
    """One claim as an aside."""
    return (
        f'<aside class="ddcl-claim" style="{BOX}">'
        f"<p><b>Claim {result.claim.id}.</b> {text_html(result)}</p>{evidence_html(result)}</aside>"
    )


def row_html(result: Result) -> str:
    id, chapter = result.claim.id, result.claim.chapter
    return (
        f'<th scope="row" id="claim-{id}">{id}<br><small>chapter {chapter}</small></th>'
        f"<td>{text_html(result)}{evidence_html(result)}</td>"
    )


def text_html(result: Result) -> str:
    statement, verdict, reading = result.claim[1:4]
    badge = f'<span style="{BADGE}{COLOURS[verdict]}" title="{VERDICTS[verdict]}">{verdict}</span>'
    return f"{html.escape(statement)} {badge}<br><i>Our reading.</i> {html.escape(reading)}"


def evidence_html(result: Result) -> str:
    items = "".join(
        f"<li>{html.escape(item.name)}: {number(item.value)}{bounds(item)}</li>" for item in result.evidence
    )
    return f'<ul style="margin:.2em 0">{items}</ul>'


def bounds(item) -> str:
    """The bound in words, with a sign that does not depend on colour."""
    if not item.needed:
        return " <small>(reported)</small>"
    return f" <small>(needed: {item.needed}; {'met' if item.supports else 'MISSED'})</small>"


def number(value: float) -> str:
    return f"{value:.4g}"
