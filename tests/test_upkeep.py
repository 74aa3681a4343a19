"""Workflows, issue forms and what the project says of itself. Checks are seen to fail on planted faults."""

import copy
import datetime
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from pybtex.database import parse_file

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = ["problem", "correction"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
REQUIREMENTS = (ROOT / "requirements.txt").read_text(encoding="utf-8")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def load(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def parts(value, key=None):
    """Every (key, scalar) of what a YAML file holds; the key is the nearest one above."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield str(name), None
            yield from parts(one, str(name))
    elif isinstance(value, list):
        for one in value:
            yield from parts(one, key)
    else:
        yield key, value


def steps(flow):
    return [step for job in flow["jobs"].values() for step in job["steps"]]


def commands(flow):
    return [step["run"] for step in steps(flow) if "run" in step]


def targets(text):
    """What `text` asks of make."""
    return re.findall(r"(?<![\w./-])make +([a-z][\w-]*|\.venv/ready)", text)


def are_targets(names):
    return [f"make {name}: no such target" for name in names if not re.search(rf"^{re.escape(name)}:", MAKEFILE, re.M)]


# The checks of a workflow: each takes what the file says and returns the faults it found.


def has_time_limits(flow):
    """Of its own for every job: GitHub's is six hours."""
    return [name for name, job in flow["jobs"].items() if not 0 < job.get("timeout-minutes", 0) <= 90]


def asks_for_little(flow):
    """Permissions are stated, and only who deploys may write."""
    top = flow.get("permissions")
    wide = {name: job.get("permissions", {}) for name, job in flow["jobs"].items()}
    return [f"{top}"] * (top != {"contents": "read"}) + [
        f"{name}: {asked}"
        for name, asked in wide.items()
        if asked != {} and asked != {"pages": "write", "id-token": "write"}
    ]


def fails_loudly(flow):
    """No step may fail unseen; bash as GitHub names it runs with -eo pipefail."""
    silent = [f"{key}: {value}" for key, value in parts(flow) if key == "continue-on-error"]
    silent += re.findall(r"\|\| *(?:true|:).*|set \+e.*|\|&? *tee.*", "\n".join(commands(flow)))
    silent += [f"shell: {step['shell']}" for step in steps(flow) if "shell" in step]
    return silent + ["no bash"] * (flow.get("defaults") != {"run": {"shell": "bash"}})


def uses_official_actions(flow):
    used = [step["uses"] for step in steps(flow) if "uses" in step]
    return [name for name in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", name)]


def runs_what_is_there(flow):
    """Targets of make, files of the repository, and bash that parses."""
    faults = []
    for text in commands(flow):
        bash = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        faults += [bash.stderr] * bool(bash.returncode) + are_targets(targets(text))
        faults += [path for path in named_files(text) if not (ROOT / path).exists()]
    for step in steps(flow):
        more = step.get("with", {})
        paths = str(more.get("cache-dependency-path", "")).split() + re.findall(r"hashFiles\('(.*?)'\)", str(more))
        faults += [path for path in paths if not list(ROOT.glob(path))]
    return faults


def named_files(text):
    """Paths in a command, but for what the build makes."""
    paths = re.findall(r"(?<![\w$./}-])(?:\.ci|[a-z_]+)/[\w./-]*\w", text)
    return [path for path in paths if not path.startswith(("_build/", "actions/"))]


def closes_its_expressions(flow):
    """Every ${{ }} is closed and starts from a context or a function that GitHub knows."""
    known = r"(?:github|env|matrix|steps|runner|secrets|inputs|needs|vars)\.[\w.-]+|hashFiles\('[^']*'\)"
    faults = []
    for _, value in parts(flow):
        for piece in str(value).split("${{")[1:]:
            inside, end, _ = piece.partition("}}")
            faults += [piece] * (not end or not re.fullmatch(rf" (?:{known}) ", inside))
        faults += [value] * (str(value).count("${{") != str(value).count("}}"))
    return faults


def names_no_repository(flow):
    return [value for _, value in parts(flow) if re.search(r"github\.(?:com|io)|git@", str(value))]


def wakes_at_a_time_that_exists(flow):
    """Five fields, each a number, a list, a range or steps, within its limits."""
    limits, faults = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)], []
    for one in (
        [each["cron"] for each in (flow[True] or {}).get("schedule", [])] if isinstance(flow[True], dict) else []
    ):
        fields = one.split()
        good = len(fields) == 5 and all(
            re.fullmatch(r"(\*|\d+(-\d+)?)(/\d+)?(,\d+(-\d+)?)*", field)
            and all(low <= int(number) <= high for number in re.findall(r"(?<!/)\b\d+", field))
            for field, (low, high) in zip(fields, limits)
        )
        faults += [one] * (not good)
    return faults


def keeps_the_data(flow):
    """The library's cache folder is the one that is cached, but for what the library computes."""
    cached = [
        step["with"]["path"].splitlines() for step in steps(flow) if step.get("uses", "").startswith("actions/cache@")
    ]
    folder = "${{ env.DDCL_LITE_CACHE }}"
    return [f"{paths}" for paths in cached if paths != [f"{folder}/*", f"!{folder}/states"]] + ["not cached"] * (
        not cached or "DDCL_LITE_CACHE" not in flow.get("env", {})
    )


CHECKS = [
    *(has_time_limits, asks_for_little, fails_loudly, uses_official_actions, runs_what_is_there),
    *(closes_its_expressions, names_no_repository, wakes_at_a_time_that_exists, keeps_the_data),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow(path, check):
    assert check(load(path)) == []


def step(flow, key, value):
    flow["jobs"]["test"]["steps"].append({key: value})


def change(flow, key, value):
    flow["jobs"]["test"][key] = value


FAULTS = {
    has_time_limits: [
        lambda flow: flow["jobs"]["test"].pop("timeout-minutes"),
        lambda flow: change(flow, "timeout-minutes", 360),
    ],
    asks_for_little: [
        lambda flow: flow.pop("permissions"),
        lambda flow: flow.update(permissions="write-all"),
        lambda flow: change(flow, "permissions", {"contents": "write"}),
    ],
    fails_loudly: [
        lambda flow: change(flow, "continue-on-error", True),
        lambda flow: flow["jobs"]["test"]["steps"][0].update({"continue-on-error": True}),
        lambda flow: step(flow, "run", "make test || true"),
        lambda flow: step(flow, "run", "make test | tee log"),
        lambda flow: flow["jobs"]["test"]["steps"][-1].update(shell="sh"),
        lambda flow: flow.pop("defaults"),
    ],
    uses_official_actions: [
        lambda flow, name=name: step(flow, "uses", name)
        for name in ("actions/cache", "actions/cache@main", "actions/cache@v5.0.1", "somebody/cache@v5")
    ],
    runs_what_is_there: [
        *(lambda flow, text=text: step(flow, "run", text) for text in ("make tests", "make test; make tests", "if")),
        lambda flow: step(flow, "run", ".ci/none"),
        lambda flow: step(flow, "run", ".venv/bin/pytest tests/test_none.py"),
        lambda flow: step(flow, "with", {"cache-dependency-path": "requirements.txt\nnone.txt"}),
        lambda flow: step(flow, "with", {"key": "${{ hashFiles('none/*.py') }}"}),
    ],
    closes_its_expressions: [
        lambda flow, text=text: step(flow, "run", text)
        for text in ("${{ github.ref }", "github.ref }}", "${{ githbu.ref }}", "${{ }}", "${{ a }} ${{ github.ref")
    ],
    names_no_repository: [lambda flow: step(flow, "run", "git clone https://github.com/ada/notes")],
    wakes_at_a_time_that_exists: [
        lambda flow, cron=cron: flow.update({True: {"schedule": [{"cron": cron}]}})
        for cron in ("17 4 * *", "60 4 * * 1", "17 24 * * 1", "17 4 0 * 1", "17 4 * 13 1", "17 4 * * 7", "@weekly")
    ],
    keeps_the_data: [
        lambda flow: flow.pop("env"),
        lambda flow: flow["jobs"]["test"]["steps"].pop(2),
        lambda flow: flow["jobs"]["test"]["steps"][2]["with"].update(path="~/.cache"),
    ],
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_check_of_workflows_can_fail(check):
    for plant in FAULTS[check]:
        flow = copy.deepcopy(load(".github/workflows/test.yml"))
        plant(flow)
        assert check(flow), plant


def test_the_workflows_do_what_they_are_for():
    assert [path.stem for path in WORKFLOWS] == ["publish", "test", "weekly"]
    flows = {path.stem: load(path) for path in WORKFLOWS}
    assert set(flows["test"][True]) == {"push", "pull_request"}
    assert commands(flows["test"]) == [".ci/run"]
    pythons = flows["test"]["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert pythons == ["3.11", "3.13"] and all(isinstance(one, str) for one in pythons)  # 3.10 would be 3.1
    branch = load("_config.yml")["repository"]["branch"]
    assert flows["publish"][True] == {"push": {"branches": [branch]}, "workflow_dispatch": None}
    text = "\n".join(commands(flows["publish"]))
    order = [text.index(one) for one in ("make set-repository", "git diff --exit-code", "make book", "-m site")]
    assert order == sorted(order)
    build, deploy = flows["publish"]["jobs"].values()
    assert build["steps"][-1] == {"uses": "actions/upload-pages-artifact@v5", "with": {"path": "_build/html"}}
    assert deploy["needs"] == "build" and set(deploy["permissions"]) == {"pages", "id-token"}
    assert flows["publish"]["env"]["DDCL_LITE_NEED_BROWSER"]  # a skipped look at the site would be no look
    assert set(flows["weekly"][True]) == {"schedule", "workflow_dispatch"}
    assert commands(flows["weekly"]) == [".ci/newest", "make colab", "make matrix RUN=c"]
    assert re.search("^c: .*Colab", (ROOT / "tests/matrix.py").read_text(encoding="utf-8"), re.M)


# .ci/newest, with a make and a pip that only write down how they were called.


def newest(folder, pip="exit 0"):
    (folder / ".ci").mkdir()
    (folder / ".venv/bin").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/newest", folder / ".ci")
    shutil.copy(ROOT / "requirements.txt", folder)
    said = f'echo "$(basename "$0") $*" >> "{folder}/calls"'
    for name, then in ("make", "exit 0"), (".ci/run", "exit 0"), (".venv/bin/python", pip):
        (folder / name).write_text(f"#!/bin/sh\n{said}\n{then}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([folder / ".ci/newest"], env=os.environ | {"PATH": path}, capture_output=True, text=True)
    return done.returncode, (folder / "calls").read_text(encoding="utf-8").splitlines()


def test_the_newest_versions_are_tested(tmp_path):
    status, calls = newest(tmp_path)
    assert status == 0
    assert [call.split()[0] for call in calls] == ["make", "python", "python", "python", "run"]
    assert "--upgrade-strategy eager" in calls[1] and "pip check" in calls[2]
    pinned = set(REQUIREMENTS.splitlines())
    asked = (tmp_path / ".venv/newest.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split("==")[0] for line in asked] == re.findall(r"^([\w-]+)==", REQUIREMENTS, re.M)
    held = [line for line in asked if "==" in line]
    assert set(held) <= pinned and {"jupyter-book", "sphinx", "myst-nb", "ruff"} <= {one.split("==")[0] for one in held}
    assert {"torch", "numpy", "matplotlib", "ipython", "nbclient", "pytest", "nbgrader"} <= set(asked)


def test_versions_that_do_not_fit_each_other_stop_it(tmp_path):
    status, calls = newest(tmp_path, pip='case "$*" in *"pip check") exit 1;; esac')
    assert status == 1
    assert "pip check" in calls[-1]


# Issue forms.


def questions(name):
    return {one["id"]: one for one in load(f".github/ISSUE_TEMPLATE/{name}.yml")["body"] if one["type"] != "markdown"}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_one_that_github_shows(name):
    form = load(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "title", "labels", "body"} == set(form)
    for one in form["body"]:
        assert one["type"] in {"input", "textarea", "dropdown", "markdown"}
        assert one["attributes"]["value" if one["type"] == "markdown" else "label"]
        options = one["attributes"].get("options", [])
        assert all(isinstance(option, str) for option in options)  # an unquoted No would be false
        assert len(set(options)) == len(options) and bool(options) == (one["type"] == "dropdown")
    labels = [one["attributes"]["label"] for one in questions(name).values()]
    assert len(set(labels)) == len(labels) == sum(one["type"] != "markdown" for one in form["body"])


@pytest.mark.parametrize(
    "name, asked",
    [
        ("problem", {"page", "cell", "expected", "came", "environment", "versions"}),
        ("correction", {"claim", "statement", "correct", "reason", "paper"}),
    ],
)
def test_a_form_asks_for_what_one_needs(name, asked):
    needed = {id for id, one in questions(name).items() if one.get("validations", {}).get("required")}
    assert needed == asked


def test_the_form_for_problems_knows_every_way_to_run_the_book():
    options = " ".join(questions("problem")["environment"]["attributes"]["options"])
    assert all(way in options for way in ("site", "Colab", "my machine", "make grade"))
    assert are_targets(targets(options)) == []


def test_the_lines_that_print_versions_run(tmp_path):
    description = questions("problem")["versions"]["attributes"]["description"]
    code = re.search(r"```python\n(.*?)```", description, re.S)[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sys.version in done.stdout
    assert re.search(r"^torch==\d", done.stdout, re.M) and f"ddcl_lite=={VERSION}" in done.stdout.splitlines()


def test_whoever_fits_no_form_can_still_write():
    assert load(".github/ISSUE_TEMPLATE/config.yml") == {"blank_issues_enabled": True}


# What the project says of itself.


def missing(text):
    """The targets and paths that a text names and that are not there. NN_name stands for any chapter or set."""
    code = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    paths = [one for one in code if re.fullmatch(r"[\w.-]*(?:/[\w.-]*)+|[\w-]+\.(?:py|md|yml|txt|toml|cff|ipynb)", one)]
    paths += [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    paths += re.findall(r"\b(?:tests|book|chapters|ddcl_lite|exercises)/[\w/]+\.\w+", text)
    paths = [one for one in paths if not one.startswith((".venv/", "_build/"))]  # made, not kept
    gone = [one for one in paths if not any(ROOT.glob(one.replace("NN_name", "[0-9][0-9]_*").rstrip("/")))]
    inside = [one for one in gone if "/" not in one and any(ROOT.glob(f"exercises/[0-9][0-9]_*/{one}"))]
    fences = re.findall(r"^```.*?\n(.*?)^```", text, re.M | re.S)
    return sorted(set(gone) - set(inside)) + are_targets(targets("\n".join(code + fences)))


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "CHANGELOG.md", "README.md", "book/corrections.md"])
def test_what_a_text_names_is_there(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert missing(text if "/" not in name else re.sub(r"\{\w+\}`[^`]*`", "", text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "`tests/test_none.py`",
        "[a](none.md)",
        "`none.md`",
        "`make none`",
        "```\nmake none\n```",
        "`chapters/NN_name.py`",
    ],
)
def test_a_text_that_names_what_is_not_there_is_seen(text):
    assert missing(f"Before\n{text}\nafter.")


def test_contributing_is_short_and_covers_what_people_add():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    headings = re.findall(r"^## Add an? (.*)", text, re.M)
    assert headings == ["claim", "chapter", "question to a problem set", "data set"]
    listed = set(targets("\n".join(re.findall(r"^```\n(.*?)^```", text, re.M | re.S))))
    assert {"book", "test", "notebooks", "exercises", "claims", "lint"} <= listed


def test_the_three_versions_are_one():
    citation = load("CITATION.cff")
    newest, date = re.findall(r"^## (\d\S*) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[0]
    assert VERSION == str(citation["version"]) == newest
    datetime.date.fromisoformat(date)


def test_the_changelog_speaks_to_everyone():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^##+ (.*)", text, re.M)
    assert headings[0] == "Unreleased"
    assert {"For readers", "For students", "For instructors"} <= set(headings)


def test_the_citation_is_valid_and_cites_both_papers():
    citation = load("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # what CFF 1.2.0 demands
    assert citation["cff-version"] == "1.2.0" and citation["type"] in {"software", "dataset"}
    assert [set(author) for author in citation["authors"]] == [{"name"}]  # an entity, no person
    assert citation["title"] == load("_config.yml")["title"]
    assert "url" not in str(citation) and "://" not in str(citation)
    works = parse_file(ROOT / "book/references.bib").entries
    for key, cited in zip(("cirrincione2026ddcl", "imaizumi2026usaav"), citation["references"], strict=True):
        work = works[key]
        assert cited["type"] == "article" and cited["title"] == work.fields["title"]
        assert cited["identifiers"] == [{"type": "other", "value": f"arXiv:{work.fields['eprint']}"}]
        assert cited["year"] == int(work.fields["year"])
        people = [(" ".join(one.first_names + one.middle_names), one.last_names) for one in work.persons["author"]]
        assert [(one["given-names"], [one["family-names"]]) for one in cited["authors"]] == people


def test_the_page_on_corrections_is_in_the_contents_and_names_the_form():
    contents = [chapter["file"] for part in load("_toc.yml")["parts"] for chapter in part["chapters"]]
    assert "book/corrections" in contents
    page = " ".join((ROOT / "book/corrections.md").read_text(encoding="utf-8").split())
    assert load(".github/ISSUE_TEMPLATE/correction.yml")["name"] in page
    assert "://" not in page
