"""Tokens on a circle or a sphere, drawn flat: seen from one side, what is behind drawn hollow."""

import math

import matplotlib as mpl
import numpy as np

from .style import COLOURS, INK, subplots

WHEEL = mpl.colors.LinearSegmentedColormap.from_list("wheel", [*COLOURS[:4], COLOURS[0]])  # cyclic


def spheres(panels: dict, view=(-60, 25), columns: int | None = None, size: float = 4):
    """A row (or a grid of `columns`) of spheres, one for each title -> (points, values); returns the figure.

    points (n, 3) or (n, 2), unit vectors; values None (one colour), n integers (colours of the book, in turn) or n
    floats in [0, 1] (a wheel of colours that closes: labels on a ring). view is (azimuth, elevation) in degrees of the
    eye. Filled points face the eye, hollow ones lie behind; the equator and the axis (the last coordinate) are drawn.
    """
    for title, (points, values) in panels.items():
        if np.ndim(points) != 2 or np.shape(points)[1] not in (2, 3):
            raise ValueError(f"{title}: expected points (n, 2) or (n, 3), got shape {np.shape(points)}")
        if values is not None and np.shape(values) != (len(points),):
            raise ValueError(f"{title}: expected one value a point, {len(points)}, got shape {np.shape(values)}")
    columns = columns or len(panels)
    rows = math.ceil(len(panels) / columns)
    fig, axes = subplots(rows, columns, figsize=(2.3 * columns, 2.5 * rows), squeeze=False)
    for ax in axes.flat:
        ax.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
        ax.axis("off")
    for ax, (title, (points, values)) in zip(axes.flat, panels.items()):
        ax.set_title(title)
        draw(ax, np.asarray(points, dtype=float), values, view, size)
    return fig


def draw(ax, points, values, view, size) -> None:
    """One sphere on an axes."""
    colours = np.array(_colours(values, len(points)))
    turn = np.linspace(0, 2 * np.pi, 181)
    ax.plot(np.cos(turn), np.sin(turn), color=INK, lw=0.8)
    if points.shape[1] == 2:
        ax.scatter(*points.T, s=size**2, c=colours, zorder=3)
        return
    basis = _basis(view)
    for line in (np.stack([np.cos(turn), np.sin(turn), 0 * turn], -1), np.outer([-1.15, 1.15], [0, 0, 1])):
        across, up, depth = basis @ line.T
        ax.plot(across, up, ":", color=INK, lw=0.6)
        ax.plot(np.where(depth >= 0, across, np.nan), np.where(depth >= 0, up, np.nan), color=INK, lw=0.6)
    across, up, depth = basis @ points.T
    front = depth >= 0
    ax.scatter(across[~front], up[~front], s=size**2, facecolors="none", edgecolors=colours[~front], lw=0.7, zorder=2)
    ax.scatter(across[front], up[front], s=size**2, c=colours[front], lw=0, zorder=3)


def _basis(view) -> np.ndarray:
    """Rows: to the right, up, and towards the eye."""
    azimuth, elevation = np.radians(view)
    eye = np.array([np.cos(azimuth) * np.cos(elevation), np.sin(azimuth) * np.cos(elevation), np.sin(elevation)])
    right = np.array([-np.sin(azimuth), np.cos(azimuth), 0])
    return np.stack([right, np.cross(eye, right), eye])


def _colours(values, count: int) -> list:
    if values is None:
        return [mpl.colors.to_rgb(COLOURS[0])] * count
    values = np.asarray(values)
    if values.dtype.kind in "iub":
        return [mpl.colors.to_rgb(COLOURS[int(value) % len(COLOURS)]) for value in values]
    return [WHEEL(value % 1)[:3] for value in values]
