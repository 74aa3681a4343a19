"""`python -m book.build`: export the notebooks, execute the chapters, build the site. `make book` calls this.

The stack's cache of executed chapters does not see the library they import. So this keeps a fingerprint of everything
a page can depend on beside its own source, and starts from nothing when that has changed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import export

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
INDEX = BUILD / "html" / "index.html"
SHARED = ["ddcl_lite/**/*", "book/results/*", "book/site_extension.py", "requirements.txt", "_config.yml", "_toc.yml"]
SUPPORTED = ((3, 11), (3, 13))
NO_KERNEL = {"DDCL_LITE_STATIC": "1"}  # tells `explore`, in the kernels that execute chapters, that the page has none


def main() -> int:
    """Build the site; the exit status is 0 only if there was no warning. A failed build leaves no page to publish."""
    low, high = SUPPORTED
    if not low <= sys.version_info[:2] <= high:
        found = ".".join(map(str, sys.version_info[:2]))
        print(f"This book needs Python {low[0]}.{low[1]} to {high[0]}.{high[1]}, not {found}.", file=sys.stderr)
        return 1
    if export.main([]):
        return 1
    forget_stale_pages(BUILD / "fingerprint", fingerprint())
    jupyter_book = "from jupyter_book.cli.main import main; main()"  # it has no -m form
    command = [sys.executable, "-c", jupyter_book, "build", str(ROOT), "-W", "--keep-going", "-n"]
    status = subprocess.run(command, cwd=ROOT, env=os.environ | NO_KERNEL).returncode
    if status or not INDEX.exists():
        shutil.rmtree(BUILD / "html", ignore_errors=True)
        shutil.rmtree(BUILD / ".doctrees", ignore_errors=True)
        print("The build failed: see the warnings above. No site was written.", file=sys.stderr)
        return 1
    finish()
    print(f"\nThe book is built. Open {INDEX.relative_to(ROOT)}, that is {INDEX.as_uri()}")
    return 0


def finish() -> None:
    """Copy the static files, which Sphinx skips if no page changed, and give the redirect at the root an empty icon.

    Without one a browser asks the server for /favicon.ico, in vain; a file it would fetch while it is leaving.
    """
    shutil.copytree(ROOT / "book" / "_static", BUILD / "html" / "_static", dirs_exist_ok=True)
    redirect, icon = INDEX.read_text(encoding="utf-8"), '<link rel="icon" href="data:,">\n'
    if icon not in redirect:
        INDEX.write_text(icon + redirect, encoding="utf-8")


def fingerprint() -> str:
    """A hash of the names and contents of all that chapters share, and of the Python version."""
    digest = hashlib.sha256(sys.version.encode())
    files = {path for pattern in SHARED for path in ROOT.glob(pattern)}
    for path in sorted(files):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def forget_stale_pages(stamp: Path, current: str) -> None:
    """Remove every built page and executed chapter unless the stamp shows that they were made with this library."""
    if stamp.exists() and stamp.read_text(encoding="utf-8") == current:
        return
    shutil.rmtree(stamp.parent, ignore_errors=True)
    stamp.parent.mkdir(parents=True)
    stamp.write_text(current, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
