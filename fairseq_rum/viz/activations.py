"""Derivatives of the activations that the paper compares (Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from fairseq_rum.functional import get_activation
from fairseq_rum.viz.curves import Curve, plot_curves

COMPARED = ("relu", "tanh", "sigmoid", "softsign")


def derivative(name: str, x: torch.Tensor) -> torch.Tensor:
    """f'(x) of the activation of that name, as autograd has it.

    Raises:
        ValueError: the name is no activation's.
    """
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(get_activation(name)(x).sum(), x)
    return slope


def plot_derivatives(names: Sequence[str] = COMPARED, limit: float = 4.0) -> Figure:
    """Draw f'(x) of the activations for x from -limit to limit.

    Raises:
        ValueError: a name is no activation's.
    """
    x = torch.linspace(-limit, limit, 801, dtype=torch.float64)
    curves = [Curve(name, x.tolist(), derivative(name, x).tolist()) for name in names]
    return plot_curves(curves, "x", "f'(x)")
