"""`show`: what stands on the page, for every reader."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from ddcl_lite.figures import COLOURS, MARKERS, intervals, parallel_axis, show, subplots
from ddcl_lite.figures.show import figure_html
from ddcl_lite.figures.spheres import WHEEL, spheres
from ddcl_lite.figures.style import INK
from ddcl_lite.meanfield.sphere import uniform


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


def dots(ax):
    """The points behind and in front on one sphere: positions, edges' and faces' colours."""
    return [(c.get_offsets().data, c.get_edgecolors(), c.get_facecolors()) for c in ax.collections]


def test_spheres_lie_in_a_row_or_in_so_many_columns_with_their_titles():
    panels = {f"panel {i}": (uniform(9, 3, seed=i), None) for i in range(5)}
    assert [ax.get_title() for ax in spheres(panels).axes] == list(panels)
    fig = spheres(panels, columns=2)
    assert len(fig.axes) == 6 and [ax.get_title() for ax in fig.axes] == [*panels, ""]
    assert fig.axes[0].get_subplotspec().get_gridspec().get_geometry() == (3, 2)
    assert not any(ax.axison for ax in fig.axes) and all(ax.get_aspect() == 1 for ax in fig.axes)
    plt.close("all")


@pytest.mark.parametrize("view", [(-60, 25), (0, 0), (130, -70), (10, 90)])
def test_points_are_seen_from_the_eye_filled_in_front_and_hollow_behind(view):
    azimuth, elevation = np.radians(view)
    eye = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    points = uniform(40, 3, seed=1).numpy()
    fig = spheres({"": (np.concatenate([points, [0.9 * eye + [0, 0, 0.1]], [eye]]), None)}, view)
    (behind, _, hollow), (front, _, filled) = dots(fig.axes[0])
    depth = points @ eye
    assert len(behind) == (depth < 0).sum() and len(hollow) == 0
    assert len(front) == (depth >= 0).sum() + 2 and (filled[:, 3] == 1).all()
    np.testing.assert_allclose(np.square(behind).sum(1), 1 - depth[depth < 0] ** 2, atol=1e-12)
    np.testing.assert_allclose(front[-1], 0, atol=1e-12)  # what faces the eye is in the middle
    assert front[-2, 0] == pytest.approx(0, abs=1e-12) and front[-2, 1] == pytest.approx(0.1 * np.cos(elevation))
    east = np.array([-np.sin(azimuth), np.cos(azimuth), 0])
    np.testing.assert_allclose(front[:-2, 0], points[depth >= 0] @ east, atol=1e-12)  # to the right, not mirrored
    plt.close(fig)


@pytest.mark.parametrize("dim", [2, 3])
def test_colours_of_points_are_one_those_of_the_book_or_a_wheel_that_closes(dim):
    points = torch.zeros(4, dim)
    points[:, 0] = 1  # on the circle, and in front of the eye
    rgb = {}
    for name, values in {"one": None, "book": torch.tensor([0, 1, 2, 10]), "wheel": [0.0, 0.25, 0.999999, 1.0]}.items():
        fig = spheres({"": (points, values)}, view=(0, 0))
        rgb[name] = dots(fig.axes[0])[-1][2][:, :3]
        plt.close(fig)
    book = [plt.matplotlib.colors.to_rgb(colour) for colour in COLOURS]
    np.testing.assert_allclose(rgb["one"], [book[0]] * 4)
    np.testing.assert_allclose(rgb["book"], [book[i % len(book)] for i in (0, 1, 2, 10)])
    np.testing.assert_allclose(rgb["wheel"][1], WHEEL(0.25)[:3])
    np.testing.assert_allclose(rgb["wheel"][[0, 3]], [book[0]] * 2, atol=0.01)
    np.testing.assert_allclose(rgb["wheel"][2], book[0], atol=0.05)
    assert np.abs(rgb["wheel"][1] - rgb["wheel"][0]).max() > 0.2


def test_points_on_a_circle_are_drawn_where_they_are():
    points = uniform(7, 2)
    fig = spheres({"circle": (points, None)})
    ((drawn, _, _),) = dots(fig.axes[0])
    np.testing.assert_allclose(drawn, points)
    plt.close(fig)


def test_a_figure_of_spheres_can_be_shown():
    shown = figure_html(spheres({"a": (uniform(9, 3), np.arange(9))}), "Nine tokens.", "A sphere with nine dots.")
    assert "currentColor" in shown and INK not in shown


@pytest.mark.parametrize(
    "points, values, message",
    [
        (np.ones((4, 4)), None, r"expected points \(n, 2\) or \(n, 3\), got shape \(4, 4\)"),
        (np.ones((4, 3)), np.arange(5), r"expected one value a point, 4, got shape \(5,\)"),
    ],
)
def test_spheres_say_what_they_expect(points, values, message):
    with pytest.raises(ValueError, match="here: " + message):
        spheres({"here": (points, values)})


def test_spheres_tell_true_from_false_by_colour():
    fig = spheres({"here": (uniform(4, 3), np.array([True, False, True, False]))})
    faces = {
        tuple(face[:3])
        for group in fig.axes[0].collections
        for face in [*group.get_facecolors(), *group.get_edgecolors()]
    }
    assert len(faces) >= 2
    plt.close(fig)
