"""Every chapter, run as a student runs it: from another folder, with another seed, its claims asserted on the way."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHAPTERS = sorted((ROOT / "chapters").glob("*.md"))
MEMORY = 4 * 2**30
INSTALL = ["install", "remove-cell"]


def cells(notebook, kind):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def run(notebook, folder, python=sys.executable, **parameters):
    """Execute with papermill in an empty folder; return the executed notebook and the peak memory in bytes."""
    options = [part for name, value in parameters.items() for part in ("-p", name, str(value))]
    command = [
        python,
        "-c",
        "import sys, resource; from papermill.__main__ import papermill\n"
        "papermill(sys.argv[1:], standalone_mode=False)\n"
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "print(peak * (1 if sys.platform == 'darwin' else 1024), file=open('peak', 'w', encoding='utf-8'))",
        str(notebook),
        "out.ipynb",
        "--no-progress-bar",
        *options,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    executed = json.loads((folder / "out.ipynb").read_text(encoding="utf-8"))
    return executed, int((folder / "peak").read_text(encoding="utf-8"))


def outputs(notebook):
    return [output for cell in cells(notebook, "code") for output in cell["outputs"]]


def printed(notebook):
    return "".join("".join(output["text"]) for output in outputs(notebook) if output["output_type"] == "stream")


def html(notebook):
    return "".join("".join(output["data"].get("text/html", "")) for output in outputs(notebook) if "data" in output)


@pytest.mark.skipif(sys.platform == "win32", reason="peak memory is measured with a Unix call")
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_runs_with_another_seed(chapter, tmp_path):
    seed = 1 + int(chapter.stem[:2]) % 4
    executed, peak = run(chapter.with_suffix(".ipynb"), tmp_path, seed=seed, scale="quick")
    assert f"with seed {seed}." in printed(executed), "the parameters did not reach the chapter"
    assert peak < MEMORY, f"{peak / 2**30:.1f} GiB"
    streams = [output for output in outputs(executed) if output.get("name") == "stderr"]
    assert streams == [], "warnings reach the page"
    assert not any("image/png" in output.get("data", {}) for output in outputs(executed)), "a figure without alt text"
    cards = re.findall(r'card\("(\w+)"', chapter.read_text(encoding="utf-8"))
    assert len(cards) == html(executed).count('class="ddcl-claim"') and "MISSED" not in html(executed)
    shows = r"^(?:show\(fig|(?:Prototypes|Sphere|Transition)\()"  # an indented `show` is in a function for `explore`
    figures = re.findall(shows, chapter.read_text(encoding="utf-8"), flags=re.M)
    assert html(executed).count("<svg role=") == len(figures)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_has_the_form_of_a_chapter(chapter):
    text = chapter.read_text(encoding="utf-8")
    notebook = json.loads(chapter.with_suffix(".ipynb").read_text(encoding="utf-8"))
    first = next(cell for cell in cells(notebook, "code") if "parameters" in cell["metadata"].get("tags", []))
    assert re.match(r"seed = 0  # @param .*\nscale = \"quick\"  # @param ", "".join(first["source"]))
    prose = re.sub(r"```.*?```|^---.*?---$|\$\$.*?\$\$", "", text, flags=re.S | re.M)
    prose = re.sub(r"\$[^$]+\$", "x", prose)  # a formula in the line is one word
    assert 1200 <= len(prose.split()) <= 2500, len(prose.split())
    assert "setup(seed, scale)" in text and "**You need**" in text and "**Time**" in text
    assert text.count("**Predict.**") >= 3
    labels = re.findall(r"\{exercise\}.*\n:label: (\S+)", text)
    assert 3 <= len(labels) <= 5
    assert labels == re.findall(r"\{solution-start\} (\S+)", text)
    assert text.count("Difficulty ") == text.count("*Hint*") == len(labels)
    assert "## What you can now do" in text and "## Further reading" in text
    longest = max(len(cell["source"]) for cell in cells(notebook, "code") if cell["metadata"].get("tags") != INSTALL)
    assert longest <= 20, longest


def test_an_injected_value_reaches_nothing_without_the_parameters_tag(tmp_path):
    """The trap that the check on the printed seed is for: papermill injects at the top and is overruled."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cell = new_code_cell("seed = 0\nprint(f'with seed {seed}.')")
    nbformat.write(new_notebook(cells=[cell], metadata=kernel), tmp_path / "in.ipynb")
    executed, _ = run(tmp_path / "in.ipynb", tmp_path, seed=3)
    assert "with seed 3." not in printed(executed)
