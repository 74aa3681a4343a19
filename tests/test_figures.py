"""`show`: what stands on the page, for every reader."""

import re

import matplotlib.pyplot as plt
import pytest
import torch

from ddcl_lite.figures import COLOURS, MARKERS, intervals, parallel_axis, show, subplots
from ddcl_lite.figures.show import figure_html
from ddcl_lite.figures.style import INK


def draw():
    fig, ax = subplots()
    ax.plot([0, 1], [0, 1], "o-", label="a & b")
    ax.legend()
    ax.set_xlabel("x")
    return fig


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(one, two):
    bright, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("ground", ["#ffffff", "#14181e"])
def test_colours_stand_out_on_light_and_dark_pages(ground):
    assert all(contrast(colour, ground) >= 3 for colour in COLOURS)
    assert len(MARKERS) >= len(COLOURS) == len(set(COLOURS))


def test_the_figure_has_alt_text_and_caption_and_takes_the_pages_colour():
    shown = figure_html(draw(), "a caption < 1", 'alt "1"')
    assert '<svg role="img" aria-label="alt &quot;1&quot;"' in shown
    assert "<figcaption>a caption &lt; 1</figcaption>" in shown
    assert "currentColor" in shown and INK not in shown
    assert shown.count("<svg") == 1 and "<?xml" not in shown and "<metadata" not in shown


def test_ids_are_unique_to_the_figure_and_all_references_resolve():
    one, two = figure_html(draw(), "first", "x"), figure_html(draw(), "second", "x")
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, two)]
    assert not ids[0] & ids[1]
    for text, known in zip((one, two), ids):
        assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= known


def test_the_same_figure_gives_the_same_bytes():
    assert figure_html(draw(), "c", "a") == figure_html(draw(), "c", "a")


@pytest.mark.parametrize("name, texts", [("caption", ("", "a")), ("alt", ("c", " ")), ("alt", ("c", None))])
def test_a_missing_text_is_refused(name, texts):
    with pytest.raises(ValueError, match=f"^{name}: expected a sentence, got"):
        show(draw(), *texts)


def test_show_closes_the_figure():
    plt.close("all")
    show(draw(), "c", "a")
    assert plt.get_fignums() == []


def test_intervals_draws_each_group_at_its_own_height():
    fig, ax = subplots()
    intervals(ax, ["a", "b"], {"one": ([1.0, 2.0], [0.1, 0.1]), "two": ([1.5, 2.5], [0.2, 0.2])})
    heights = [container[0].get_ydata().tolist() for container in ax.containers]
    assert heights[0] != heights[1] and len(heights) == 2
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    plt.close(fig)


def test_parallel_axis_puts_the_centroid_at_the_weighted_mean_and_stacks_the_parts():
    token, bank, weights = [1.0, 1.0], [[0.0, 0.0], [4.0, 0.0]], [0.75, 0.25]
    fig = parallel_axis(token, torch.tensor(bank), torch.tensor(weights), 4.0, 1.0, 3.0)
    ax, bar = fig.axes
    assert [float(x) for x in ax.lines[-1].get_xdata()] == [1.0]  # the last mark is the centroid
    assert {text.get_text() for text in ax.texts} == {"q = 0.75", "q = 0.25", "token z", "centroid"}
    assert sorted(patch.get_height() for patch in bar.patches) == [1.0, 3.0, 4.0]
    assert max(patch.get_y() + patch.get_height() for patch in bar.patches) == 4.0
