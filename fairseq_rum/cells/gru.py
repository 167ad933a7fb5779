"""The Gated Recurrent Unit."""

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


@register_cell("gru")
class GRUCell(RecurrentCell):
    r"""Gated Recurrent Unit (Cho et al. 2014), in the variant of torch.nn.GRU.

    .. math::
        r_t &= \sigma(W_r^x x_t + b_r^x + W_r^h h_{t-1} + b_r^h)\\
        z_t &= \sigma(W_z^x x_t + b_z^x + W_z^h h_{t-1} + b_z^h)\\
        n_t &= \tanh(W_n^x x_t + b_n^x + r_t \odot (W_n^h h_{t-1} + b_n^h))\\
        h_t &= (1 - z_t) \odot n_t + z_t \odot h_{t-1}

    Layer normalization (Ba et al. 2016) acts on the sums inside the two sigmoids and the tanh,
    each by itself. Zoneout (Krueger et al. 2017) keeps a part of :math:`h_{t-1}`.

    Args:
        input_size: N_x.
        hidden_size: N.
        bias: False drops both biases.
        layer_norm: layer normalization, with epsilon 1e-3.
        zoneout: probability that a unit keeps its old value: a random mask in training, the
            expectation in evaluation.

    Shapes:
        - input ``(B, N_x)``, output ``(B, N)``, state ``(h,)`` of shape ``(B, N)``.

    Parameters: ``weight_ih`` ``(3N, N_x)``, ``weight_hh`` ``(3N, N)``, ``bias_ih`` and ``bias_hh``
    ``(3N,)``, rows in torch's order r, z, n: the tensors of a one-layer torch.nn.GRU load as they
    are (:func:`fairseq_rum.cells.from_torch`). Initialized as in torch. With layer normalization
    also ``norm_gain`` and ``norm_shift`` ``(3N,)`` in the order r, z, n, which start at 1 and 0.

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
    ) -> None:
        super().__init__(input_size, hidden_size)
        if layer_norm:
            check_layer_norm(hidden_size)
        self.layer_norm = layer_norm
        self.zoneout = check_probability("zoneout", zoneout)
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden_size, hidden_size))
        for name in ("bias_ih", "bias_hh"):
            value = nn.Parameter(torch.empty(3 * hidden_size)) if bias else None
            self.register_parameter(name, value)
        if layer_norm:
            self.norm_gain = nn.Parameter(torch.empty(3 * hidden_size))
            self.norm_shift = nn.Parameter(torch.empty(3 * hidden_size))
        self.reset_parameters()

    @property
    def step_extras(self) -> Tuple[str, ...]:
        """Layer normalization and zoneout, where they are on."""
        extras = ("layer normalization",) if self.layer_norm else ()
        return (*extras, "zoneout") if self.zoneout else extras

    def reset_parameters(self) -> None:
        """Uniform as in torch."""
        for parameter in self.parameters():
            uniform_(parameter, self.hidden_size)
        if self.layer_norm:
            nn.init.ones_(self.norm_gain)
            nn.init.zeros_(self.norm_shift)

    def project_input(self, x: Tensor) -> Tensor:
        """The input's part of the two gates and the candidate: ``(..., N_x) -> (..., 3N)``."""
        return F.linear(x, self.weight_ih, self.bias_ih)

    def step(self, projected: Tensor, state: State) -> Tuple[Tensor, State]:
        """One step."""
        (h,) = state
        n = 2 * self.hidden_size
        recurrent = F.linear(h, self.weight_hh, self.bias_hh)
        r, z = self._gates(projected[..., :n] + recurrent[..., :n])
        candidate = torch.addcmul(projected[..., n:], r, recurrent[..., n:])
        if self.layer_norm:
            candidate = block_layer_norm(candidate, 1, self.norm_gain[n:], self.norm_shift[n:])
        candidate = torch.tanh(candidate)
        new = torch.addcmul(candidate, z, h - candidate)
        new = apply_zoneout(new, h, self.zoneout, self.training)
        return new, (new,)

    def observe(self, projected: Tensor, state: State) -> Dict[str, Tensor]:
        """The mean of z_t."""
        n = 2 * self.hidden_size
        recurrent = F.linear(state[0], self.weight_hh, self.bias_hh)
        _, z = self._gates(projected[..., :n] + recurrent[..., :n])
        return {"update_gate": z.mean(-1)}

    def _gates(self, sums: Tensor) -> Tuple[Tensor, ...]:
        """r and z from their sums."""
        if self.layer_norm:
            n = 2 * self.hidden_size
            sums = block_layer_norm(sums, 2, self.norm_gain[:n], self.norm_shift[:n])
        return torch.sigmoid(sums).chunk(2, dim=-1)

    def extra_repr(self) -> str:
        """Sizes and options, for ``print(model)``."""
        return f"{super().extra_repr()}, layer_norm={self.layer_norm}, zoneout={self.zoneout}"
