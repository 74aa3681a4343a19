"""The browser that the tests drive: the system's Chromium or Google Chrome."""

import os
import shutil

import pytest

BROWSERS = [
    *("chromium", "chromium-browser", "google-chrome"),
    *(f"/Applications/{name}.app/Contents/MacOS/{name}" for name in ("Chromium", "Google Chrome")),
]
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
]


def find_browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        give_up = pytest.fail if os.environ.get("DDCL_LITE_NEED_BROWSER") else pytest.skip
        give_up("no Chromium or Google Chrome on this machine: the site was not looked at")
    return found
