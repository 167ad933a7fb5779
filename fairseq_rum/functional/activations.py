"""The activations that the paper compares for the candidate state (Figure 3)."""

from __future__ import annotations

from typing import Callable, Dict

import torch
import torch.nn.functional as F
from torch import Tensor


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: Dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softsign": F.softsign,
    "none": _identity,
}


def get_activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation of that name.

    Raises:
        ValueError: the name is not one of :data:`ACTIVATIONS`.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}: choose one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
