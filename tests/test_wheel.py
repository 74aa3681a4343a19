"""What a student installs: the wheel, without dependencies, in a bare environment, far from the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from test_chapters import CHAPTERS, printed, run

ROOT = Path(__file__).parents[1]
SOURCES = ["ddcl_lite", "book/results", "pyproject.toml", "README.md", "LICENSE"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that no build folder appears in the checkout."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(target), str(source)]
    subprocess.run(command, check=True)
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """A fresh environment with the wheel; everything else is lent by this one, but not its editable ddcl_lite."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = next(path for path in (folder / "bin" / "python", folder / "Scripts" / "python.exe") if path.exists())
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True)
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return str(python)


def test_the_wheel_holds_the_library_its_data_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ddcl_lite").rglob("*.py")}
    assert modules <= set(names)
    assert "ddcl_lite/results/readouts.json" in names
    assert "ddcl_lite/data/satellites_2016.csv.gz" in names
    assert all(name.startswith(("ddcl_lite/", "ddcl_lite-")) for name in names)


def test_it_is_the_wheel_that_runs(bare, tmp_path):
    script = "import ddcl_lite, ddcl_lite.claims; from ddcl_lite.experiments.results import stored\n"
    script += "print(ddcl_lite.__file__, len(stored('readouts')['table']) > 0)"
    done = subprocess.run([bare, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path, found = done.stdout.split()
    assert found == "True" and not Path(path).is_relative_to(ROOT)
    assert os.fspath(Path(bare).parents[1]) in path


@pytest.mark.skipif(sys.platform == "win32", reason="peak memory is measured with a Unix call")
def test_a_chapter_runs_outside_the_checkout(bare, tmp_path):
    shutil.copy2(CHAPTERS[0].with_suffix(".ipynb"), tmp_path / "chapter.ipynb")
    executed, _ = run(tmp_path / "chapter.ipynb", tmp_path, python=bare, seed=2, scale="quick")
    assert "with seed 2." in printed(executed)
