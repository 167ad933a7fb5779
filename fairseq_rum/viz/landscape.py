"""Slices of the loss along random directions of some weights (Figure 8)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fairseq_rum.viz.curves import COLORS, style_axes


@dataclass(frozen=True)
class LossSlice:
    """The loss around the weights of a model.

    Attributes:
        label: of the model.
        state: which weights of it, such as "before training".
        alphas: coordinates along each direction, ``(P,)``; 0 is the weights themselves.
        values: ``(P,)`` or ``(P, P)``, the first direction first.
    """

    label: str
    state: str
    alphas: np.ndarray
    values: np.ndarray


def coordinates(points: int, reach: float) -> np.ndarray:
    """``points`` numbers from -reach to reach with exactly 0 in the middle; ``points`` is odd."""
    half = points // 2
    return np.arange(-half, half + 1) / half * reach


def random_directions(
    weights: Sequence[Tensor], count: int, seed: int, filter_normalized: bool = False
) -> list[list[Tensor]]:
    """Directions with independent normal entries, the same for the same seed.

    Args:
        weights: what they are directions of.
        count: how many.
        seed: of the random numbers.
        filter_normalized: give every filter, a row of a matrix or a vector as a whole, the norm of
            the weights in its place (Li et al., Visualizing the Loss Landscape of Neural Nets,
            NeurIPS 2018), so that models of other scales can be compared.
    """
    generator = torch.Generator().manual_seed(seed)
    directions = []
    for _ in range(count):
        direction = []
        for weight in weights:
            entry = torch.randn(weight.shape, generator=generator).to(weight)
            direction.append(_filter_normalized(entry, weight) if filter_normalized else entry)
        directions.append(direction)
    return directions


def loss_slice(
    loss: Callable[[], float | Tensor],
    weights: Sequence[Tensor],
    directions: Sequence[Sequence[Tensor]],
    alphas: np.ndarray,
    progress: Callable[[list], Iterable] = iter,
) -> np.ndarray:
    """The loss at weights + sum of alpha times direction, for all combinations of alphas.

    Args:
        loss: computes it with the weights as they are.
        weights: changed in place; afterwards they are what they were, to the bit.
        directions: each with a tensor for each of the weights.
        alphas: ``(P,)``.
        progress: wraps the list of points that are gone through, such as tqdm.

    Returns:
        ``(P,)`` for one direction, ``(P, P)`` for two.
    """
    points = list(itertools.product(range(len(alphas)), repeat=len(directions)))
    values = np.full((len(alphas),) * len(directions), np.nan)
    kept = [weight.clone() for weight in weights]
    with torch.no_grad():
        try:
            for point in progress(points):
                for weight, start, *steps in zip(weights, kept, *directions):
                    weight.copy_(start)
                    for index, step in zip(point, steps):
                        weight.add_(step, alpha=float(alphas[index]))
                values[point] = float(loss())
        finally:
            for weight, start in zip(weights, kept):
                weight.copy_(start)
    return values


def plot_landscape(slices: Sequence[LossSlice], title: str = "") -> Figure:
    """Draw slices of one direction as lines, of two as filled contours.

    A column is a state; lines of all models share it, contours have a row for each model.
    """
    states = list(dict.fromkeys(one.state for one in slices))
    labels = list(dict.fromkeys(one.label for one in slices))
    flat = slices[0].values.ndim == 1
    rows = 1 if flat else len(labels)
    figure = Figure(figsize=(3.9 * len(states), 3.1 * rows + 0.3), layout="constrained")
    axes = figure.subplots(rows, len(states), squeeze=False)
    for one in slices:
        row, column = labels.index(one.label), states.index(one.state)
        if flat:
            place = axes[0, column]
            place.plot(one.alphas, one.values, color=COLORS[row % len(COLORS)], label=one.label)
            place.set_title(one.state, fontsize=9)
            place.set_xlabel(r"$\alpha$")
            continue
        place = axes[row, column]
        shown = np.ma.masked_invalid(one.values.T)
        contours = place.contourf(one.alphas, one.alphas, shown, levels=24, cmap="viridis")
        place.plot(0, 0, "+", color="white")
        place.set_title(f"{one.label}, {one.state}", fontsize=9)
        place.set_xlabel(r"$\alpha$")
        place.set_ylabel(r"$\beta$")
        figure.colorbar(contours, ax=place).ax.tick_params(labelsize=7)
    if flat:
        axes[0, 0].set_ylabel("loss, nats")
        axes[0, -1].legend(fontsize=8, frameon=False)
        for place in axes.flat:
            style_axes(place)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _filter_normalized(direction: Tensor, weight: Tensor) -> Tensor:
    if weight.dim() < 2:
        return direction * (weight.norm() / direction.norm().clamp_min(1e-12))
    rows, norms = direction.flatten(1), weight.flatten(1).norm(dim=1, keepdim=True)
    rows = rows * (norms / rows.norm(dim=1, keepdim=True).clamp_min(1e-12))
    return rows.view_as(direction)
