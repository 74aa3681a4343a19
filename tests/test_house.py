"""The house rules that a machine can check."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "ddcl_lite").rglob("*.py"))
LEAVES = {"attention", "figures", "notebook", "data", "measures"}  # these import nothing of ours
MAY_IMPORT = {
    "claims": {"experiments", "prototypes", "meanfield", "data", "measures", "figures", "notebook"},
    "experiments": {"prototypes", "meanfield", "data", "measures", "notebook"},
    "prototypes": {"attention", "measures"},
    "meanfield": {"attention", "measures"},
    **{leaf: set() for leaf in LEAVES},
}
PREINSTALLED = {"torch", "numpy", "scipy", "pandas", "sklearn", "skimage", "matplotlib", "ipywidgets", "IPython"}
PREINSTALLED |= {"tqdm", "tokenizers", "safetensors"}  # what Colab has
OPTIONAL = {"torchvision"}  # Colab has it too; only where its absence is caught
NEVER = [
    r"descending V separates",
    r"V >= 0 prevents collapse",
    r"eps <= 0\.1 guarantees",
    r"RoPE stops collapse",
    r"a sign change prevents collapse",
    r"on the circle RoPE changes nothing",
    r"real layers collapse when looped",
]


def tracked(*patterns):
    listing = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def room(path):
    return path.relative_to(ROOT / "ddcl_lite").with_suffix("").parts[0]


def imports(path):
    """(level, dotted module, names) of every import statement."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names]


def caught(path):
    """The modules that are imported inside `try: ... except ImportError`, in a function."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    attempts = [node for function in functions for node in ast.walk(function) if isinstance(node, ast.Try)]
    found = set()
    for attempt in attempts:
        if any(isinstance(each.type, ast.Name) and each.type.id == "ImportError" for each in attempt.handlers):
            for node in attempt.body:
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found.add((node.module or "").split(".")[0])
    return found


def rooms_imported(path):
    depth = len(path.relative_to(ROOT / "ddcl_lite").parts)
    for level, module, names in imports(path):
        parts = module.split(".") if module else []
        if level == 0 and parts[0] == "ddcl_lite":
            yield from parts[1:2] or names
        elif level == depth:  # out of its own room
            yield from parts[:1] or names


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) != "__init__"], ids=lambda p: p.stem)
def test_imports_point_one_way(path):
    own = room(path)
    assert set(rooms_imported(path)) - {own} <= MAY_IMPORT[own]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_the_library_imports_only_what_colab_has(path):
    import sys

    outside = {module.split(".")[0] for level, module, _ in imports(path) if level == 0}
    assert outside - caught(path) <= set(sys.stdlib_module_names) | PREINSTALLED | {"ddcl_lite"}
    assert caught(path) <= PREINSTALLED | OPTIONAL


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_modules_are_short_and_say_what_they_are(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    assert ast.get_docstring(ast.parse(text))


def test_every_package_is_in_the_wheel():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".") for path in MODULES if path.name == "__init__.py"
    }
    assert set(project["tool"]["setuptools"]["packages"]) == packages | {"ddcl_lite.results"}
    assert not any("==" in dependency for dependency in project["project"]["dependencies"])


def test_everything_to_build_with_is_pinned():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", pin) for pin in pins)


def test_the_repository_url_is_known_in_one_place():
    url = re.search(r"url: (\S+)", (ROOT / "_config.yml").read_text(encoding="utf-8"))[1]
    texts = tracked("*.md", "*.py", "*.toml", "*.yml", "Makefile", ".ci/run")
    holders = [path.name for path in texts if url in path.read_text(encoding="utf-8")]
    assert holders == ["_config.yml"]


def test_notebooks_hold_no_outputs():
    for path in tracked("chapters/*.ipynb"):
        assert '"output_type"' not in path.read_text(encoding="utf-8"), path.name


def test_sentences_that_the_book_never_prints():
    for path in tracked("chapters/*.md", "book/*.md", "README.md", "ddcl_lite/*.py"):
        text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
        assert [sentence for sentence in NEVER if re.search(sentence, text, re.I)] == [], path.name


def test_relative_links_of_the_readme_resolve():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"(?:\]\(|src(?:set)?=\")([^)\"\s]+)", text)
    assert links and all((ROOT / link.split("#")[0]).exists() for link in links if "://" not in link)


def test_the_readme_shows_both_commands_on_its_first_screen():
    first = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40]
    assert any(line.startswith("make book") for line in first) and any(line.startswith("make test") for line in first)
