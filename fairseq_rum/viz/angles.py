"""The angles of RUM's rotations along a sequence (Figure 5b and c)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Angles:
    """cos(theta_t) of a batch, ``(B, T)``, nan at padded steps, under a title."""

    title: str
    cosines: np.ndarray


def angle_histogram(cosines: np.ndarray, bins: int) -> np.ndarray:
    """How many examples of a batch have cos(theta_t) in each of the equal parts of [-1, 1].

    Args:
        cosines: ``(B, T)``; nan doesn't count.
        bins: the number of parts; 1 itself belongs to the last one.

    Returns:
        counts, ``(bins, T)``.
    """
    edges = np.linspace(-1.0, 1.0, bins + 1)
    columns = [np.histogram(column[~np.isnan(column)], edges)[0] for column in cosines.T]
    return np.stack(columns, axis=1)


def plot_angles(panels: Sequence[Angles], columns: int, bins: int = 40) -> Figure:
    """Draw a histogram for every step, as shares of the batch, and the mean as a line.

    Args:
        panels: in the order of reading.
        columns: how many are beside each other.
        bins: parts of [-1, 1].
    """
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.6 * columns + 0.8, 2.5 * rows + 0.3), layout="constrained")
    axes = figure.subplots(rows, columns, sharex="col", sharey=True, squeeze=False)
    image = None
    for place, panel in zip(axes.flat, panels):
        counts = angle_histogram(panel.cosines, bins)
        steps = counts.shape[1]
        image = place.imshow(
            counts / counts.sum(0, keepdims=True).clip(1),
            origin="lower",
            extent=(0.5, steps + 0.5, -1.0, 1.0),
            aspect="auto",
            interpolation="nearest",
            cmap="Blues",
            vmin=0.0,
            vmax=0.5,
        )
        sums, valid = np.nansum(panel.cosines, 0), (~np.isnan(panel.cosines)).sum(0)
        mean = np.where(valid > 0, sums / valid.clip(1), np.nan)
        place.plot(np.arange(1, steps + 1), mean, color="tab:orange", linewidth=1.2)
        place.set_title(panel.title, fontsize=9)
        place.tick_params(labelsize=7)
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    for place in axes[:, 0]:
        place.set_ylabel(r"$\cos\,\theta_t$", fontsize=8)
    for place in axes[-1]:
        place.set_xlabel("step t", fontsize=8)
    bar = figure.colorbar(image, ax=axes, extend="max")
    bar.set_label("share of the batch", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure
