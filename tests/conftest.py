import os
from collections.abc import Iterator

import matplotlib
import pytest
import torch
from browser import FLAGS, find_browser
from playwright.sync_api import Browser, sync_playwright

matplotlib.use("Agg")


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="no CUDA device")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=path, args=FLAGS) as browser:
        yield browser


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def cloud():
    """Tokens (2, 9, 5), prototypes (4, 5) and a mask (2, 9) with real and masked tokens, in float64."""
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0, 0]], dtype=torch.bool)
    return torch.randn(2, 9, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64), mask


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and no network."""
    monkeypatch.setenv("DDCL_LITE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    return tmp_path / "cache"
