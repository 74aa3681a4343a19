"""Execute one notebook in a kernel of this Python: `python tests/execute.py NOTEBOOK FOLDER`, for tests/matrix.py.

The kernel works in FOLDER and is reached through files, so that it needs no network, not even this machine's own.
Prints what went wrong, in one line; nothing if nothing did. Exit status 1 if a cell failed. A cell's metadata may
have a `label`, which says where in the chapter it stands. Without arguments: prints which Python and libraries these
are, as JSON. Needs nothing that Colab's environment lacks.
"""

import json
import re
import sys
import tempfile
from importlib.metadata import requires, version
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

SECONDS_PER_CELL = 600


def main(arguments: list[str]) -> int:
    if not arguments:
        print(json.dumps(here()))
        return 0
    notebook = nbformat.read(arguments[0], as_version=4)
    failed, note = execute(notebook, arguments[1])
    print(note or warned(notebook))
    return int(failed)


def here() -> dict:
    """This Python, and the versions of what the library needs and of what runs notebooks."""
    needed = [re.match(r"[\w.-]+", one)[0] for one in requires("ddcl_lite")]
    return {
        "python": sys.version,
        "base": sys.base_prefix,
        "versions": {name: version(name) for name in sorted([*needed, "ipykernel", "ipywidgets"])},
    }


def execute(notebook, folder: str) -> tuple[bool, str]:
    """(whether a cell failed, where and why); the outputs are left in the notebook."""
    at = []
    with tempfile.TemporaryDirectory(prefix="k") as sockets:  # their paths have to be short
        client = NotebookClient(
            notebook,
            km=AsyncKernelManager(transport="ipc", ip=str(Path(sockets) / "k")),
            timeout=SECONDS_PER_CELL,
            startup_timeout=120,
            resources={"metadata": {"path": folder}},
            on_cell_start=lambda cell, cell_index: at.append(cell.metadata.get("label", f"cell {cell_index}")),
        )
        try:
            client.execute()
        except CellExecutionError as error:
            value = plain(error.evalue).strip().split("\n")[0]
            line = next(iter(re.findall(r"^-+> *\d+ (.*)", plain(error.traceback), flags=re.M)), "").strip()
            return True, f"{at[-1]}: {error.ename}: {value}".removesuffix(": ") + f", in `{line}`" * bool(line)
        except (CellTimeoutError, DeadKernelError) as error:
            return True, f"{at[-1]}: {type(error).__name__}: {str(error).splitlines()[0]}"
    return False, ""


def warned(notebook) -> str:
    """The first line that a reader would see on the red ground of a warning, or nothing."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr" and output.text.strip():
                return f"{cell.metadata.get('label', 'a cell')} warns: {plain(output.text).strip().splitlines()[0]}"
    return ""


def plain(text: str) -> str:
    """Without the codes that colour a terminal, and without the folders of this machine."""
    return re.sub(r"(?<![:\w/])/(?:[^\s/'\"]+/)+", "", re.sub(r"\x1b\[[\d;]*m", "", text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
