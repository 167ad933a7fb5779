"""Heat maps of a unit's weight matrices, and the strip along the diagonal (Figure 5a)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec


def diagonal_strip(matrix: np.ndarray, width: int) -> np.ndarray:
    """The entries near the diagonal: ``strip[width + k, i] = matrix[i, i + k]``, |k| <= width.

    Args:
        matrix: ``(N, N)``.
        width: how many entries on either side of the diagonal.

    Returns:
        ``(2 width + 1, N)``, nan where the matrix has ended.
    """
    size = len(matrix)
    rows, columns = np.arange(size), np.arange(size) + np.arange(-width, width + 1)[:, None]
    inside = (columns >= 0) & (columns < size)
    return np.where(inside, matrix[rows, columns.clip(0, size - 1)], np.nan)


def diagonal_share(matrix: np.ndarray) -> float:
    """The mean size of an entry on the diagonal over that of one beside it."""
    sizes = np.abs(matrix)
    diagonal = sizes.trace() / len(sizes)
    rest = (sizes.sum() - sizes.trace()) / max(sizes.size - len(sizes), 1)
    return float(diagonal / rest) if rest else float("inf")


def plot_kernels(kernels: Mapping[str, np.ndarray], width: int = 8, title: str = "") -> Figure:
    """Draw every matrix, and below each square one the strip along its diagonal.

    Args:
        kernels: by name.
        width: entries of the strip on either side of the diagonal.
        title: above the figure.
    """
    columns = len(kernels)
    figure = Figure(figsize=(2.9 * columns, 4.6), layout="constrained")
    grid = GridSpec(2, columns, figure, height_ratios=(3, 1))
    for column, (name, matrix) in enumerate(kernels.items()):
        axes = figure.add_subplot(grid[0, column])
        image = _heat_map(axes, matrix, matrix)
        figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=7)
        axes.set_title(name, fontsize=9)
        if matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
            continue
        shown = min(width, len(matrix) - 1)
        axes = figure.add_subplot(grid[1, column])
        extent = (-0.5, len(matrix) - 0.5, shown + 0.5, -shown - 0.5)
        _heat_map(axes, diagonal_strip(matrix, shown), matrix, extent=extent)
        axes.set_title(f"diagonal / rest = {diagonal_share(matrix):.2g}", fontsize=8)
        axes.set_xlabel("row i", fontsize=8)
        axes.set_ylabel("column - i", fontsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _heat_map(axes: Any, values: np.ndarray, scale: np.ndarray, **options: Any) -> Any:
    """Zero is white, and one entry in a hundred at most is beyond the colours."""
    limit = float(np.percentile(np.abs(scale), 99)) or 1.0
    axes.tick_params(labelsize=7)
    return axes.imshow(
        values,
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
        aspect="auto",
        interpolation="nearest",
        **options,
    )
