"""`explore`: widgets where a kernel lives, plain sliders on the published page, and one figure at a time in both."""

import random
import re
import sys
from types import SimpleNamespace

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from book import build
from ddcl_lite.figures import explore
from ddcl_lite.figures.explore import STATIC, own_ids

CELLS = [
    "from ddcl_lite.figures import explore, show, subplots",
    """def curve(beta, power=1):
    fig, ax = subplots()
    ax.plot([0, 1], [0, beta**power])
    print(f"<beta {beta}>")
    show(fig, "How steep is it?", f"The slope is {beta**power:.1f}.")
    subplots()  # left open""",
    "explore(curve, beta=[0.5, 1, 2])",
    "explore(curve, beta=[1, 3], power=[1, 2, 3])",
    "import matplotlib.pyplot as plt; print(plt.get_fignums())",
]


def executed(folder, **environment):
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in CELLS])
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(STATIC, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        return client.execute()


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The notebook as book.build executes it."""
    return executed(tmp_path_factory.mktemp("published"), **build.NO_KERNEL)


def html(notebook, cell):
    (output,) = notebook.cells[cell].outputs
    return output.data["text/html"]


@pytest.fixture
def shown(monkeypatch):
    """What is displayed, in this process."""
    things = []
    monkeypatch.delenv(STATIC, raising=False)
    monkeypatch.setattr("IPython.display.display", lambda *each, **_: things.extend(each))
    return things


def say(beta, power=1):
    plt.figure()  # left open
    print(f"slope {beta**power}")


# With a kernel.


def test_moving_a_slider_replaces_the_figure(shown):
    mine = plt.figure().number
    explore(say, beta=[2, 3], power=[1, 2])
    ((beta, power, box),) = [one.children for one in shown]
    assert (beta.description, power.description) == ("beta", "power")
    for first, second in ((2, 1), (3, 1), (3, 2), (2, 2)):
        beta.label, power.label = str(first), str(second)
        assert box.value == f"<pre>slope {first**second}\n</pre>"
        assert plt.get_fignums() == [mine]
    assert len(shown) == 1
    plt.close(mine)


def test_what_fails_at_first_is_raised_and_what_fails_later_is_shown(shown):
    with pytest.raises(ZeroDivisionError):
        explore(lambda beta: print(1 / beta), beta=[0, 1])
    assert not shown
    explore(lambda beta: print(1 / beta), beta=[1, 0])
    slider, box = shown[0].children
    slider.label = "0"
    assert box.value == "<pre>ZeroDivisionError: division by zero</pre>"
    slider.label = "1"
    assert box.value == "<pre>1.0\n</pre>" and plt.get_fignums() == []


def test_warnings_are_not_swallowed(shown, capsys):
    def warn(beta):
        print(f"mind {beta}", file=sys.stderr)
        1 / beta

    explore(warn, beta=[7])
    assert capsys.readouterr().err == "mind 7\n"
    with pytest.raises(ZeroDivisionError):  # it may say why
        explore(warn, beta=[0])
    assert capsys.readouterr().err == "mind 0\n"


def test_the_slider_begins_in_the_middle_and_takes_any_values(shown):
    explore(lambda x: print(x), x=[None, 1, "a"])
    slider, box = shown[0].children
    assert box.value == "<pre>1\n</pre>" and slider.label == "1"
    slider.label = "None"
    assert box.value == "<pre>None\n</pre>"
    explore(lambda x: print(x), x=[None, 1])
    assert shown[1].children[1].value == "<pre>None\n</pre>"


def test_a_kernel_without_a_front_end_is_enough(tmp_path):
    notebook = executed(tmp_path)
    outputs = [notebook.cells[cell].outputs for cell in (2, 3)]
    assert all(len(each) == 1 and "application/vnd.jupyter.widget-view+json" in each[0].data for each in outputs)
    assert notebook.cells[-1].outputs[0].text == "[]\n"


def test_a_kernel_without_ipywidgets_says_what_to_install(shown, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ipywidgets", None)
    with pytest.raises(ImportError, match="pip install ipywidgets"):
        explore(say, beta=[1])


def test_pictures_do_not_depend_on_the_moves_before_nor_change_what_comes_after(shown, monkeypatch):
    def thrown(x=0):
        print(x, random.random(), np.random.rand(), torch.rand(()).item())

    def texts(page):
        return re.findall("<pre>(.*?)\\n</pre>", page.data)

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    explore(thrown, x=[0, 1, 2])
    slider, box = shown[0].children
    monkeypatch.setenv(STATIC, "1")
    explore(thrown, x=[0, 1, 2])
    published = texts(shown[1])
    assert len({each.split(" ", 1)[1] for each in published}) == 1 and len(published) == 3
    own = random.random(), np.random.rand(), torch.rand(()).item()
    assert published[0] == f"0 {' '.join(map(str, own))}"  # and so none was used up
    for place in (2, 0, 2, 1):
        slider.index = place
        assert box.value == f"<pre>{published[place]}\n</pre>"


# On the published page.


def test_the_build_says_that_the_page_has_no_kernel(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(build, "BUILD", tmp_path)
    monkeypatch.setattr(build.export, "main", lambda arguments: 0)
    monkeypatch.setattr(build, "forget_stale_pages", lambda *_: None)
    run = lambda command, **options: seen.append(options["env"]) or SimpleNamespace(returncode=1)  # noqa: E731
    monkeypatch.setattr(build, "subprocess", SimpleNamespace(run=run))
    build.main()
    assert seen[0][STATIC] and "PATH" in seen[0]


def test_the_page_holds_every_figure_once_and_no_widget(published):
    nbformat.validate(published)
    assert "widgets" not in published.metadata and "widget" not in nbformat.writes(published)
    assert published.cells[-1].outputs[0].text == "[]\n"
    for cell, count in ((2, 3), (3, 6)):
        text = html(published, cell)
        ids = re.findall(r'\bid="([^"]+)"', text)
        assert text.count("<svg role=") == count and len(ids) == len(set(ids)) > count
        assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(ids)
        assert text.count("&lt;beta") == count


def test_two_outputs_of_one_function_do_not_share_ids(published):
    one, other = (set(re.findall(r'\bid="([^"]+)"', html(published, cell))) for cell in (2, 3))
    assert not one & other
    assert own_ids('<a id="x" href="#x" style="fill:url(#x)" data-id="x">', "p-") == (
        '<a id="p-x" href="#p-x" style="fill:url(#p-x)" data-id="x">'
    )


def visible(page):
    return page.eval_on_selector_all("svg", "all => all.filter(one => one.checkVisibility()).map(one => one.ariaLabel)")


def test_the_slider_on_the_page_shows_one_figure_at_a_time(browser, published):
    with browser.new_page() as page:
        noise = []
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("request", lambda request: noise.append(request.url))
        page.set_content(f"<!doctype html><body>{html(published, 2)}{html(published, 3)}")
        assert visible(page) == ["The slope is 1.0.", "The slope is 1.0."]
        first, beta, power = page.get_by_role("slider").all()
        assert [each.input_value() for each in (first, beta, power)] == ["1", "0", "1"]
        first.focus()
        page.keyboard.press("ArrowRight")
        assert first.get_attribute("aria-valuetext") == "2" == page.locator(".ddcl-value").first.inner_text()
        assert page.get_by_role("status").count() == 0  # the slider tells its value, nobody else
        assert page.locator("[data-lm-suppress-shortcuts]").count() == 2
        beta.fill("1")
        power.fill("2")
        assert visible(page) == ["The slope is 2.0.", "The slope is 27.0."]
        assert [page.get_by_role("slider", name=name).count() for name in ("beta", "power")] == [2, 1]
        assert page.get_by_role("group", name="beta = 3, power = 3").is_visible()
        assert not page.get_by_text("With scripts").first.is_visible()
        assert noise == []


def test_without_scripts_the_first_figure_stands_there_and_a_sentence_says_which(browser, published):
    with browser.new_context(java_script_enabled=False) as tab:
        page = tab.new_page()
        page.set_content(f"<!doctype html><body>{html(published, 3)}")
        assert page.locator("svg").nth(1).is_visible() and not page.locator("svg").first.is_visible()
        assert page.get_by_text("This is beta = 1, power = 2. With scripts").is_visible()
        assert not page.locator("input").first.is_visible()


# What is refused.


@pytest.mark.parametrize("static", ["", "1"])
@pytest.mark.parametrize(
    "fn, values, error, message",
    [
        (3, {"beta": [1]}, TypeError, "fn: expected a function, got 3"),
        (say, {}, ValueError, "expected one or two parameters"),
        (say, {"beta": []}, ValueError, "beta: expected different values, at least one"),
        (say, {"beta": 3}, ValueError, "beta: expected a list of values, got 3"),
        (say, {"beta": "abc"}, ValueError, "beta: expected a list of values, got 'abc'"),
        (say, {"beta": [1, 2, 1]}, ValueError, "beta: expected different values"),
        (say, {"gamma": [1]}, ValueError, "gamma: expected a parameter of say, which has beta, power"),
        (say, {"power": [1]}, ValueError, "beta: say needs a value"),
        (say, {"beta": [1], "power": [1], "c": [1]}, ValueError, "expected one or two parameters to move, got 3"),
        (say, {"beta": range(5), "power": range(5)}, ValueError, "beta, power: expected at most 24 combinations"),
    ],
)
def test_bad_input_is_refused_before_anything_is_shown(shown, monkeypatch, static, fn, values, error, message):
    monkeypatch.setenv(STATIC, static)
    with pytest.raises(error, match=message):
        explore(fn, **values)
    assert not shown and plt.get_fignums() == []
