"""`python -m book.repository URL`: say where the book is published. `make set-repository URL=...` calls this.

The URL stands in one place, _config.yml. The notebooks that name it are written again: those of the chapters and the
public copies of the problem sets. Should that fail, everything is as it was.
"""

import argparse
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import yaml

from .export import read_book
from .myst import Stop

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "_config.yml"
HOST = "https://github.com/"
WRITERS = {"book.export": "chapters", "exercises.release": "exercises/release"}  # module -> folder of its notebooks
OWNER = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
LINE = re.compile(r"^(repository:[^\n]*\n(?:[ #][^\n]*\n|\r?\n)*?  url:[ ]*)([^\s#]+)", re.M)


def check(url: str) -> None:
    """Stop where the URL is not that of a repository on GitHub, from which alone Colab opens notebooks."""
    owner, _, name = url.removeprefix(HOST).partition("/")
    if not url.startswith(HOST):
        why = f"it does not begin with {HOST}"
    elif not OWNER.fullmatch(owner) or len(owner) > 39:
        why = "an owner has 1 to 39 letters and digits, with single hyphens between them"
    elif "/" in name:
        why = "nothing may follow the repository's name, not even a /"
    elif name.endswith((".git", ".wiki")):
        why = f"leave out the {name[name.rindex('.') :]} at its end"
    elif not NAME.fullmatch(name) or not name.strip("."):
        why = "a repository's name has 1 to 100 letters, digits, hyphens, dots and underscores"
    else:
        return
    raise Stop(f"URL: expected {HOST}OWNER/REPOSITORY, got {url or 'nothing'}: {why}. Nothing was changed.")


def with_url(config: str, url: str) -> str:
    """The text of _config.yml with another URL, and nothing else changed."""
    changed, count = LINE.subn(lambda match: match[1] + url, config)
    before, after = yaml.safe_load(config), yaml.safe_load(changed)
    if count != 1 or after != before | {"repository": before["repository"] | {"url": url}}:
        raise Stop("_config.yml: expected one line `  url: ...` under `repository:`. Nothing was changed.")
    return changed


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the file, then move it into place: nobody ever sees half a file."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_all() -> dict[Path, bytes]:
    """Every file that names the repository, with its content."""
    paths = [CONFIG, *(path for folder in WRITERS.values() for path in sorted((ROOT / folder).glob("*.ipynb")))]
    return {path: path.read_bytes() for path in paths}


def write_all(url: str, before: dict[Path, bytes]) -> None:
    """Set the URL and write the notebooks; put everything back where one of the steps fails."""
    try:
        write_whole(CONFIG, with_url(before[CONFIG].decode("utf-8"), url).encode("utf-8"))
        for module in WRITERS:
            if subprocess.run([sys.executable, "-m", module], cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
                raise Stop(f"python -m {module} failed, see above. Nothing was changed.")
    except BaseException:
        for path in read_all().keys() - before.keys():
            path.unlink()
        for path, content in before.items():
            write_whole(path, content)
        raise


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser("python -m book.repository", description="Say where the book is published.")
    parser.add_argument("url", metavar="URL", help=f"{HOST}OWNER/REPOSITORY")
    url = parser.parse_args(arguments).url
    try:
        check(url)
        before = read_all()
        write_all(url, before)
        book = read_book(ROOT)
    except (Stop, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    changed = sum(content != before.get(path) for path, content in read_all().items())
    if not changed:
        print(f"Every file names {url} already: nothing to change.")
        return 0
    print(f"The repository is {url}: _config.yml and the notebooks made from it say so ({changed} files changed).")
    print(f"The site will be at {book.published('book/index')}.")
    print("Next: commit and push; on GitHub, choose Settings > Pages > Source: GitHub Actions; then")
    print(f"  git tag v{book.version} && git push origin v{book.version}")
    print("since Colab installs the library from that tag.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
