"""Weights of LSTM and GRU from torch.nn to this package and back."""

from __future__ import annotations

from typing import Union

import torch
from torch import nn

from fairseq_rum.cells.base import RecurrentCell
from fairseq_rum.cells.gru import GRUCell
from fairseq_rum.cells.lstm import LSTMCell

_PAIRS = ((nn.LSTM, nn.LSTMCell, LSTMCell), (nn.GRU, nn.GRUCell, GRUCell))
_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

TorchModule = Union[nn.LSTM, nn.LSTMCell, nn.GRU, nn.GRUCell]


def from_torch(module: TorchModule) -> RecurrentCell:
    """The cell that computes the same as a module of torch.

    Args:
        module: torch.nn.LSTM or GRU of one layer and one direction, or torch.nn.LSTMCell or
            GRUCell.

    Returns:
        A new cell with a copy of the weights, of the same dtype, on the same device.

    Raises:
        ValueError: another module, several layers, both directions, or an LSTM with a projection.
    """
    cls = next((c for *torch_types, c in _PAIRS if isinstance(module, tuple(torch_types))), None)
    if cls is None:
        raise ValueError(f"from_torch takes an LSTM or GRU of torch, got {type(module).__name__}")
    suffix = ""
    if isinstance(module, nn.RNNBase):
        suffix = "_l0"
        if module.num_layers != 1 or module.bidirectional or getattr(module, "proj_size", 0):
            raise ValueError(
                "from_torch takes one layer in one direction without projection: "
                "convert the layers of a larger module one by one"
            )
    cell = cls(module.input_size, module.hidden_size, bias=bool(module.bias))
    weight = getattr(module, f"weight_ih{suffix}")
    cell.to(device=weight.device, dtype=weight.dtype)
    _copy(module, suffix, cell, "")
    return cell


def to_torch(cell: RecurrentCell) -> TorchModule:
    """The torch.nn.LSTM or torch.nn.GRU that computes the same as a cell.

    Args:
        cell: a unit ``lstm`` or ``gru`` without layer normalization and zoneout.

    Returns:
        A new module of one layer, ``batch_first=True`` as everywhere here, with a copy of the
        weights, of the same dtype, on the same device.

    Raises:
        ValueError: another unit, or one with layer normalization or zoneout, which torch lacks.
    """
    sequence = next((s for s, _, c in _PAIRS if isinstance(cell, c)), None)
    if sequence is None:
        raise ValueError(f"to_torch takes the units lstm and gru, got {cell.unit!r}")
    if not cell.plain_step:
        raise ValueError(f"torch's modules have no {' or '.join(cell.step_extras)}")
    module = sequence(
        cell.input_size, cell.hidden_size, bias=cell.bias_ih is not None, batch_first=True
    )
    module.to(device=cell.weight_ih.device, dtype=cell.weight_ih.dtype)
    _copy(cell, "", module, "_l0")
    return module


def _copy(source: nn.Module, source_suffix: str, target: nn.Module, target_suffix: str) -> None:
    with torch.no_grad():
        for name in _NAMES:
            value = getattr(source, name + source_suffix, None)
            if value is not None:
                getattr(target, name + target_suffix).copy_(value)
