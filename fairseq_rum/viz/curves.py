"""Curves of several runs in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS = colormaps["tab10"].colors
_STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Curve:
    """One line: its label, and the coordinates of its points."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Baseline:
    """A horizontal line; an empty label leaves it out of the legend."""

    value: float
    label: str = ""


def plot_curves(
    curves: Sequence[Curve],
    xlabel: str,
    ylabel: str,
    baselines: Sequence[Baseline] = (),
    title: str = "",
    log_y: bool = False,
) -> Figure:
    """Draw the curves, and the baselines as dashed grey lines.

    Args:
        curves: in the order of the legend.
        xlabel, ylabel: what the axes are.
        baselines: horizontal lines.
        title: above the figure.
        log_y: a logarithmic y axis.

    Returns:
        a figure that belongs to no window; ``figure.savefig`` writes it.
    """
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    draw_curves(axes, curves)
    for baseline in baselines:
        axes.axhline(
            baseline.value,
            color="0.45",
            linestyle=(0, (6, 3)),
            linewidth=1.0,
            label=baseline.label or "_nolegend_",
        )
    if log_y:
        axes.set_yscale("log")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if title:
        axes.set_title(title)
    style_axes(axes)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        # Beside the axes, so that it hides no curve however many there are.
        axes.legend(
            handles, labels, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False
        )
    return figure


def draw_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    """Add the curves to axes, no two of which look the same."""
    for index, curve in enumerate(curves):
        # Ten colours, then the same ones in another style of line.
        style = _STYLES[index // len(COLORS) % len(_STYLES)]
        # A single point is invisible as a line.
        marker = "o" if len(curve.x) == 1 else None
        axes.plot(
            curve.x,
            curve.y,
            style,
            color=COLORS[index % len(COLORS)],
            label=curve.label,
            marker=marker,
            linewidth=1.4,
        )


def style_axes(axes: Axes) -> None:
    """A light grid, and no frame on the sides without numbers."""
    axes.grid(True, color="0.92", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
