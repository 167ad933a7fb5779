"""Recurrent units, one a file, by name through :func:`build_cell`."""

from fairseq_rum.cells.base import RecurrentCell, State
from fairseq_rum.cells.eurnn import EURNNCell
from fairseq_rum.cells.fast_slow import FastSlowCell
from fairseq_rum.cells.fast_weights import FastWeightsCell
from fairseq_rum.cells.goru import GORUCell
from fairseq_rum.cells.gru import GRUCell
from fairseq_rum.cells.lstm import LSTMCell
from fairseq_rum.cells.registry import build_cell, get_cell, register_cell, registered_cells
from fairseq_rum.cells.rum import RUMCell
from fairseq_rum.cells.torch_weights import from_torch, to_torch
from fairseq_rum.cells.urnn import URNNCell
from fairseq_rum.cells.weinet import WeiNetCell

__all__ = [
    "EURNNCell",
    "FastSlowCell",
    "FastWeightsCell",
    "GORUCell",
    "GRUCell",
    "LSTMCell",
    "RUMCell",
    "RecurrentCell",
    "State",
    "URNNCell",
    "WeiNetCell",
    "build_cell",
    "from_torch",
    "get_cell",
    "register_cell",
    "registered_cells",
    "to_torch",
]
