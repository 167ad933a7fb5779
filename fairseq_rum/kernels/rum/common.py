"""What the hand-derived loops share: precision, slopes of the activations."""

from __future__ import annotations

from typing import Callable, Dict

import torch
from torch import Tensor

TINY = {torch.float32: 1e-37, torch.float64: 1e-300}
"""Added to |tau|^2 before the reciprocal root: keeps tau = 0 finite, and changes no other row."""

NEAR_ANTIPARALLEL = 1.0 / 16.0
"""Below this, 1 + cos is taken from |p + q|^2 / 2: the sum of products has cancelled by then."""


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, else float32: what reductions and rotations are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _tanh_slope(c: Tensor) -> Tensor:
    return 1 - c * c


def _sigmoid_slope(c: Tensor) -> Tensor:
    return c * (1 - c)


def _softsign_slope(c: Tensor) -> Tensor:
    return (1 - c.abs()).square()


def _relu_slope(c: Tensor) -> Tensor:
    return (c > 0).to(c.dtype)


SLOPES: Dict[str, Callable[[Tensor], Tensor]] = {
    "relu": _relu_slope,
    "tanh": _tanh_slope,
    "sigmoid": _sigmoid_slope,
    "softsign": _softsign_slope,
    "none": torch.ones_like,
}
"""f'(z) as a function of f(z), which is what the loops keep."""
