"""The Long Short-Term Memory."""

from __future__ import annotations

from typing import Dict, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.cells.base import (
    RecurrentCell,
    State,
    check_layer_norm,
    check_probability,
    uniform_,
)
from fairseq_rum.cells.registry import register_cell
from fairseq_rum.cells.zoneout import zoneout as apply_zoneout
from fairseq_rum.functional import block_layer_norm


@register_cell("lstm")
class LSTMCell(RecurrentCell):
    r"""Long Short-Term Memory (Hochreiter & Schmidhuber 1997; Gers et al. 2000), as torch.nn.LSTM.

    .. math::
        i, f, g, o &= W^x x_t + b^x + W^h h_{t-1} + b^h\\
        c_t &= \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g)\\
        h_t &= \sigma(o) \odot \tanh(c_t)

    Layer normalization, LN (Ba et al. 2016; as in the LSTM of the RUM authors): of the sums of i,
    f, g and o, each by itself, and of the memory cell where it is read,
    :math:`h_t = \sigma(o) \odot \tanh(\mathrm{LN}(c_t))`.

    Zoneout (Krueger et al. 2017) then keeps a part of :math:`c_{t-1}` and of :math:`h_{t-1}`;
    h_t is computed from the memory cell before its zoneout.

    Args:
        input_size: N_x.
        hidden_size: N.
        bias: False drops both biases.
        layer_norm: layer normalization, with epsilon 1e-3.
        zoneout: probability that a hidden unit keeps its old value: a random mask in training,
            the expectation in evaluation.
        zoneout_cell: the same for the memory cell.

    Shapes:
        - input ``(B, N_x)``, output ``(B, N)``, state ``(h, c)``, both ``(B, N)``.

    Parameters: ``weight_ih`` ``(4N, N_x)``, ``weight_hh`` ``(4N, N)``, ``bias_ih`` and ``bias_hh``
    ``(4N,)``, rows in torch's order i, f, g, o: the tensors of a one-layer torch.nn.LSTM load as
    they are (:func:`fairseq_rum.cells.from_torch`). Initialized as in torch, with the forget
    gate's bias at 1 (Jozefowicz et al. 2015). With layer normalization also ``norm_gain`` and
    ``norm_shift`` ``(5N,)`` in the order i, f, g, o, c: 1 and 0, but the shift of f, which is what
    the forget gate's bias then is, starts at 1.

    Raises:
        ValueError: a probability outside [0, 1], or layer normalization with N = 1.
    """

    starts_uniform = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        layer_norm: bool = False,
        zoneout: float = 0.0,
        zoneout_cell: float = 0.0,
    ) -> None:
        super().__init__(input_size, hidden_size)
        if layer_norm:
            check_layer_norm(hidden_size)
        self.layer_norm = layer_norm
        self.zoneout = check_probability("zoneout", zoneout)
        self.zoneout_cell = check_probability("zoneout_cell", zoneout_cell)
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        for name in ("bias_ih", "bias_hh"):
            value = nn.Parameter(torch.empty(4 * hidden_size)) if bias else None
            self.register_parameter(name, value)
        if layer_norm:
            self.norm_gain = nn.Parameter(torch.empty(5 * hidden_size))
            self.norm_shift = nn.Parameter(torch.empty(5 * hidden_size))
        self.reset_parameters()

    @property
    def state_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """``h`` and the memory cell ``c``."""
        return {"h": (self.hidden_size,), "c": (self.hidden_size,)}

    @property
    def step_extras(self) -> Tuple[str, ...]:
        """Layer normalization and zoneout, where they are on."""
        extras = ("layer normalization",) if self.layer_norm else ()
        return (*extras, "zoneout") if self.zoneout or self.zoneout_cell else extras

    def reset_parameters(self) -> None:
        """Uniform as in torch; the forget gate's bias at 1."""
        for parameter in self.parameters():
            uniform_(parameter, self.hidden_size)
        forget = slice(self.hidden_size, 2 * self.hidden_size)
        with torch.no_grad():
            if self.bias_ih is not None:
                self.bias_ih[forget].fill_(1.0)
                self.bias_hh[forget].zero_()
            if self.layer_norm:
                self.norm_gain.fill_(1.0)
                self.norm_shift.zero_()
                self.norm_shift[forget].fill_(1.0)

    def project_input(self, x: Tensor) -> Tensor:
        """The input's part of the four gates: ``(..., N_x) -> (..., 4N)``."""
        return F.linear(x, self.weight_ih, self.bias_ih)

    def step(self, projected: Tensor, state: State) -> Tuple[Tensor, State]:
        """One step."""
        h, c = state
        n = self.hidden_size
        gates = projected + F.linear(h, self.weight_hh, self.bias_hh)
        if self.layer_norm:
            gates = block_layer_norm(gates, 4, self.norm_gain[: 4 * n], self.norm_shift[: 4 * n])
        i, f, g, o = gates.chunk(4, dim=-1)
        new_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        read = new_c
        if self.layer_norm:
            read = block_layer_norm(new_c, 1, self.norm_gain[4 * n :], self.norm_shift[4 * n :])
        new_h = torch.sigmoid(o) * torch.tanh(read)
        new_c = apply_zoneout(new_c, c, self.zoneout_cell, self.training)
        new_h = apply_zoneout(new_h, h, self.zoneout, self.training)
        return new_h, (new_h, new_c)

    def extra_repr(self) -> str:
        """Sizes and options, for ``print(model)``."""
        return (
            f"{super().extra_repr()}, layer_norm={self.layer_norm}, zoneout={self.zoneout}, "
            f"zoneout_cell={self.zoneout_cell}"
        )
