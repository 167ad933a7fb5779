"""The Gated Recurrent Unit."""

from __future__ import annotations

from typing import Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.cells.base import RecurrentCell, State, uniform_
from fairseq_rum.cells.registry import register_cell


@register_cell("gru")
class GRUCell(RecurrentCell):
    r"""Gated Recurrent Unit (Cho et al. 2014), in the variant of torch.nn.GRU.

    .. math::
        r_t &= \sigma(W_r^x x_t + b_r^x + W_r^h h_{t-1} + b_r^h)\\
        z_t &= \sigma(W_z^x x_t + b_z^x + W_z^h h_{t-1} + b_z^h)\\
        n_t &= \tanh(W_n^x x_t + b_n^x + r_t \odot (W_n^h h_{t-1} + b_n^h))\\
        h_t &= (1 - z_t) \odot n_t + z_t \odot h_{t-1}

    Args:
        input_size: N_x.
        hidden_size: N.
        bias: False drops both biases.

    Shapes:
        - input ``(B, N_x)``, output ``(B, N)``, state ``(h,)`` of shape ``(B, N)``.

    Parameters: ``weight_ih`` ``(3N, N_x)``, ``weight_hh`` ``(3N, N)``, ``bias_ih`` and ``bias_hh``
    ``(3N,)``, rows in torch's order r, z, n: the tensors of a one-layer torch.nn.GRU load as they
    are. Initialized as in torch.
    """

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden_size, hidden_size))
        for name in ("bias_ih", "bias_hh"):
            value = nn.Parameter(torch.empty(3 * hidden_size)) if bias else None
            self.register_parameter(name, value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform as in torch."""
        uniform_(self, self.hidden_size)

    def project_input(self, x: Tensor) -> Tensor:
        """The input's part of the two gates and the candidate: ``(..., N_x) -> (..., 3N)``."""
        return F.linear(x, self.weight_ih, self.bias_ih)

    def step(self, projected: Tensor, state: State) -> Tuple[Tensor, State]:
        """One step."""
        (h,) = state
        x_r, x_z, x_n = projected.chunk(3, dim=-1)
        h_r, h_z, h_n = F.linear(h, self.weight_hh, self.bias_hh).chunk(3, dim=-1)
        r = torch.sigmoid(x_r + h_r)
        z = torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        h = (1 - z) * n + z * h
        return h, (h,)
