"""The Long Short-Term Memory."""

from __future__ import annotations

from typing import Dict, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.cells.base import RecurrentCell, State, uniform_
from fairseq_rum.cells.registry import register_cell


@register_cell("lstm")
class LSTMCell(RecurrentCell):
    r"""Long Short-Term Memory (Hochreiter & Schmidhuber 1997; Gers et al. 2000), as torch.nn.LSTM.

    .. math::
        i, f, g, o &= W^x x_t + b^x + W^h h_{t-1} + b^h\\
        c_t &= \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g)\\
        h_t &= \sigma(o) \odot \tanh(c_t)

    Args:
        input_size: N_x.
        hidden_size: N.
        bias: False drops both biases.

    Shapes:
        - input ``(B, N_x)``, output ``(B, N)``, state ``(h, c)``, both ``(B, N)``.

    Parameters: ``weight_ih`` ``(4N, N_x)``, ``weight_hh`` ``(4N, N)``, ``bias_ih`` and ``bias_hh``
    ``(4N,)``, rows in torch's order i, f, g, o: the tensors of a one-layer torch.nn.LSTM load as
    they are. Initialized as in torch, with the forget gate's bias at 1 (Jozefowicz et al. 2015).
    """

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        for name in ("bias_ih", "bias_hh"):
            value = nn.Parameter(torch.empty(4 * hidden_size)) if bias else None
            self.register_parameter(name, value)
        self.reset_parameters()

    @property
    def state_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """``h`` and the memory cell ``c``."""
        return {"h": (self.hidden_size,), "c": (self.hidden_size,)}

    def reset_parameters(self) -> None:
        """Uniform as in torch; the forget gate's bias at 1."""
        uniform_(self, self.hidden_size)
        if self.bias_ih is not None:
            forget = slice(self.hidden_size, 2 * self.hidden_size)
            with torch.no_grad():
                self.bias_ih[forget].fill_(1.0)
                self.bias_hh[forget].zero_()

    def project_input(self, x: Tensor) -> Tensor:
        """The input's part of the four gates: ``(..., N_x) -> (..., 4N)``."""
        return F.linear(x, self.weight_ih, self.bias_ih)

    def step(self, projected: Tensor, state: State) -> Tuple[Tensor, State]:
        """One step."""
        h, c = state
        gates = projected + F.linear(h, self.weight_hh, self.bias_hh)
        i, f, g, o = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)
