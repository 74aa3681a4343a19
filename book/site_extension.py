"""What the site needs beyond its theme: notebooks to download, Colab buttons on chapters only, readable docstrings."""

import re
import shutil
from pathlib import Path

CHAPTERS = "chapters/"


def setup(app):
    app.connect("config-inited", start_in_the_readers_mode)
    app.connect("html-page-context", header_buttons, priority=900)  # after the theme's own
    app.connect("html-page-context", without_thebe, priority=900)
    app.connect("html-page-context", link_claims, priority=900)
    app.connect("build-finished", copy_notebooks)
    app.connect("autodoc-process-docstring", plain_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def start_in_the_readers_mode(app, config):
    """Light or dark as the reader's system says; without a value the theme logs an error."""
    config.html_context.setdefault("default_mode", "auto")


def header_buttons(app, pagename, templatename, context, doctree):
    """A chapter gets a link to its notebook in place of the raw sources; other pages lose the launch buttons too."""
    is_chapter = pagename.startswith(CHAPTERS)
    unwanted = {"download-buttons"} if is_chapter else {"download-buttons", "launch-buttons"}
    buttons = context.get("header_buttons", [])
    buttons[:] = [button for button in buttons if button.get("label") not in unwanted]
    if is_chapter:
        name = pagename.removeprefix(CHAPTERS) + ".ipynb"
        buttons.append(
            {
                "type": "link",
                "url": name,
                "tooltip": "Download this chapter as a notebook",
                "icon": "fas fa-download",
                "label": "download-notebook",
            }
        )


def without_thebe(app, pagename, templatename, context, doctree):
    """Drop the scripts of a live kernel, which no page offers; added twice, they stop with an error."""
    scripts = context.get("script_files", [])
    context["script_files"] = [file for file in scripts if "thebe" not in f"{file.filename} {file.attributes}"]


def link_claims(app, pagename, templatename, context, doctree):
    """Claims in the ledger lead to their chapters; cards, and verdicts on the landing page, to the ledger."""
    to, body = context.get("pathto"), context.get("body", "")
    if pagename == "book/claims":
        chapters = {int(name.split("/")[1][:2]): name for name in app.env.found_docs if name.startswith(CHAPTERS)}

        def chapter(match):
            name = chapters.get(int(match[1]))
            return f'<a href="{to(name)}">{match[0]}</a>' if name else match[0]

        context["body"] = re.sub(r"chapter (\d+)(?=</small>)", chapter, body)
    elif pagename.startswith(CHAPTERS):
        row = rf'<a href="{to("book/claims")}#claim-\1">Claim \1</a>'
        context["body"] = re.sub(r"(?<=<b>)Claim (\w+)(?=\.</b>)", row, body)
    elif pagename == "book/index":
        verdict = rf'<a href="{to("book/claims")}#claim-\1">\1</a>: <span class="ddcl-verdict ddcl-\2">\2</span>'
        context["body"] = re.sub(r"\b([DU]\d+): (holds|conditional|fails|measured)\b", verdict, body)


def copy_notebooks(app, exception):
    """Put the exported notebooks beside their pages."""
    if exception is None and app.builder.format == "html":
        target = Path(app.outdir) / CHAPTERS
        target.mkdir(exist_ok=True)
        for notebook in sorted((Path(app.srcdir) / CHAPTERS).glob("*.ipynb")):
            shutil.copy2(notebook, target)


def plain_docstring(app, what, name, obj, options, lines):
    """Docstrings are plain text: formulas and tables become literal blocks, the rest paragraphs without markup."""
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip())
    lines[:] = [line for paragraph in paragraphs for line in [*restructured(paragraph), ""]]


def restructured(paragraph: str) -> list[str]:
    rows = paragraph.splitlines()
    is_formula = len(rows) == 1 and " = " in rows[0] and not rows[0].endswith(".")
    is_table = any(re.search(r"\S {3,}\S", row) or row.startswith("    ") for row in rows)
    if is_formula or is_table:
        return [".. code-block:: text", "", *("    " + row for row in rows)]
    pieces = re.split(r"(`[^`]+`)", " ".join(row.strip() for row in rows))
    return ["".join(f"`{one}`" if one.startswith("`") else re.sub(r"([*|_\\])", r"\\\1", one) for one in pieces)]
