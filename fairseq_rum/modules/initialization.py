"""Initializations of the pointer-generator network's original code."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairseq_rum.cells import RecurrentCell


def truncated_normal_(parameter: Tensor, std: float = 1e-4) -> None:
    """TensorFlow's truncated normal, without values beyond two standard deviations, in place."""
    nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)


def uniform_units_(cell: RecurrentCell, bound: float) -> None:
    """Start LSTM and the like as TensorFlow's LSTMCell does when given a uniform initializer.

    Weight matrices are U(-bound, bound). Biases are 0, and that of a forget gate 1: of a unit's own
    biases this keeps the whole numbers and drops small random ones. Units that have a start of
    their own, as RUM's orthogonal one, keep it. In place.
    """
    for unit in cell.modules():
        if isinstance(unit, RecurrentCell) and unit.starts_uniform:
            for parameter in unit.parameters():
                with torch.no_grad():
                    if parameter.dim() > 1:
                        parameter.uniform_(-bound, bound)
                    else:
                        parameter.round_()
