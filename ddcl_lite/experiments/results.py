"""Full-scale results: written once by the command that made them, read by the chapters that show them."""

import datetime
import importlib.resources
import json
import platform
from pathlib import Path

import pandas as pd
import torch

FOLDER = Path(__file__).parents[2] / "book" / "results"  # in a checkout; installed, they lie in ddcl_lite/results


def store(name: str, table: pd.DataFrame, settings: dict, device, command: str) -> Path:
    """Write a table with its command, settings, device and date to book/results/NAME.json; return the path.

    Raises RuntimeError outside a checkout of the book.
    """
    if not FOLDER.is_dir():
        raise RuntimeError(f"there is no folder {FOLDER}: full-scale results are stored from a checkout of the book")
    device = torch.device(device)
    record = {
        "command": command,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"CPU ({torch.get_num_threads()} threads)",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.date.today().isoformat(),
        "settings": settings,
        "table": table.to_dict("list"),
    }
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def stored(name: str) -> dict:
    """The record that `store` wrote, with its table as a DataFrame. Raises ValueError listing what there is."""
    folder = importlib.resources.files("ddcl_lite.results")
    known = sorted(path.name.removesuffix(".json") for path in folder.iterdir() if path.name.endswith(".json"))
    if name not in known:
        raise ValueError(f"name: expected one of {', '.join(known)}, got {name!r}")
    record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return {**record, "table": pd.DataFrame(record["table"])}
