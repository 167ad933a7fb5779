"""Norms of gradients and states: over training, and along a sequence (Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from fairseq_rum.viz.curves import Curve, draw_curves, style_axes


@dataclass(frozen=True)
class Panel:
    """Curves that share axes."""

    title: str
    xlabel: str
    curves: Sequence[Curve]


def plot_gradients(panels: Sequence[Panel]) -> Figure:
    """Draw panels of norms, on logarithmic axes, two beside each other."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 2.9 * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(places.flat, panels):
        draw_curves(axes, panel.curves)
        axes.set_yscale("log")
        axes.set_title(panel.title, fontsize=9)
        axes.set_xlabel(panel.xlabel, fontsize=8)
        axes.tick_params(labelsize=7, which="both")
        axes.legend(fontsize=7, frameon=False)
        style_axes(axes)
    for axes in places.flat[len(panels) :]:
        axes.set_axis_off()
    return figure
