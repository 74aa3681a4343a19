"""The first cell of every chapter, and a progress bar that leaves no trace on the page."""

import random
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from tqdm import tqdm

SCALES = {"quick": "at most half a minute on two CPU cores", "full": "up to ten minutes on a GPU"}


def setup(seed: int = 0, scale: str = "quick") -> torch.device:
    """Seed Python, NumPy and PyTorch, choose cuda if there is one, else cpu, and say what to expect.

    Never Apple's mps, which has no float64. Random numbers are drawn on the CPU and then moved, so that one seed means
    one experiment on every device. scale is "quick" or "full"; full scale without a GPU warns.
    Raises ValueError for another scale or a seed that is no integer >= 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed: expected an integer >= 0, got {seed!r}")
    if scale not in SCALES:
        raise ValueError(f'scale: expected "quick" or "full", got {scale!r}')
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"Running on {device} ({name}) with seed {seed}.")
    print(f"{scale.capitalize()} scale: {SCALES[scale]}, once the data is cached.")
    if scale == "full" and device.type == "cpu":
        warnings.warn("full scale is made for a GPU: on a CPU it can take an hour", stacklevel=2)
    return device


def progress(label: str) -> Callable[[Iterable], Iterable]:
    """A tqdm bar to wrap around a loop: `for item in progress("training")(items)`.

    It appears after 3 s and disappears when the loop ends, in a terminal and in a notebook alike.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    out = _Display() if hasattr(shell, "kernel") else sys.stderr
    return partial(tqdm, desc=label, leave=False, file=out, delay=3, mininterval=0.3, ncols=80)


class _Display:
    """A file whose last line is shown in place. A finished bar leaves an empty output: nothing on a static page."""

    def __init__(self):
        self.handle = None

    def write(self, text: str) -> None:
        from IPython.display import HTML, display

        line = text.strip("\r\n ")
        content = HTML(f"<pre>{line}</pre>" if line else "")
        if self.handle:
            self.handle.update(content)
        elif line:
            self.handle = display(content, display_id=True)

    def flush(self) -> None:
        pass
