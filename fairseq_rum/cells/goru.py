"""The Gated Orthogonal Recurrent Unit."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.cells.base import RecurrentCell, State
from fairseq_rum.cells.registry import register_cell
from fairseq_rum.cells.unitary import PairRotations
from fairseq_rum.functional import modrelu


@register_cell("goru")
class GORUCell(RecurrentCell):
    r"""Gated Orthogonal Recurrent Unit: Jing et al., Gated Orthogonal Recurrent Units: On Learning
    to Forget, 2017 (arXiv 1706.02761; Neural Computation 2019).

    .. math::
        r_t &= \sigma(W_r^x x_t + W_r^h h_{t-1} + b_r)   & \text{(reset gate)}\\
        g_t &= \sigma(W_g^x x_t + W_g^h h_{t-1} + b_g)   & \text{(update gate)}\\
        c_t &= \mathrm{modReLU}_{b_c}(W_c^x x_t + r_t \odot U h_{t-1})\\
        h_t &= g_t \odot h_{t-1} + (1 - g_t) \odot c_t

    U is orthogonal, a product of layers of pair rotations as in the unit ``eurnn`` with real
    numbers (:mod:`fairseq_rum.functional.eunn`);
    :math:`\mathrm{modReLU}_b(z) = \mathrm{sign}(z) \mathrm{ReLU}(|z| + b)`.

    Args:
        input_size: N_x.
        hidden_size: N.
        capacity: the number of layers of the tunable arrangement, even, from 2 to N; 2 when None.
        fft: the FFT arrangement instead, with ceil(log2 N) layers.

    Shapes:
        - input ``(B, N_x)``, output ``(B, N)``, state ``(h,)`` of shape ``(B, N)``.

    Parameters:
        - ``weight_ih`` ``(3N, N_x)`` in the order r, g, c and ``weight_hh`` ``(2N, N)`` in the
          order r, g, from U(-0.01, 0.01);
        - ``bias`` ``(3N,)`` in the order r, g, c: 2, 0 and 2, as in the authors' code; that of c
          is the bias of modReLU;
        - ``rotations.theta`` ``(K,)`` from U(-pi, pi), with K as in ``eurnn``;
        - in all 3 N N_x + 2 N^2 + 3 N + K.

    Raises:
        ValueError: N = 1, capacity odd or outside [2, N] or together with ``fft``.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        capacity: Optional[int] = None,
        fft: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.fft = fft
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(2 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(3 * hidden_size))
        self.rotations = PairRotations(hidden_size, capacity, fft, is_complex=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small weights; r and modReLU start with bias 2, all angles uniform on the circle."""
        n = self.hidden_size
        nn.init.uniform_(self.weight_ih, -0.01, 0.01)
        nn.init.uniform_(self.weight_hh, -0.01, 0.01)
        nn.init.constant_(self.bias, 2.0)
        nn.init.zeros_(self.bias[n : 2 * n])
        self.rotations.reset_parameters()

    def project_input(self, x: Tensor) -> Tensor:
        """The input's part of r, g and c, and the biases of the gates: ``(..., 3N)``."""
        n = self.hidden_size
        bias = torch.cat((self.bias[: 2 * n], self.bias.new_zeros(n)))
        return F.linear(x, self.weight_ih, bias)

    def derive(self) -> Tuple[Tensor, ...]:
        """The matrix of the gates and U side by side, ``(N, 3N)``, or the layers of U."""
        if not self.rotations.as_matrix:
            return self.rotations.coefficients()
        u = self.rotations.matrix().to(self.weight_hh.dtype)
        return (torch.cat((self.weight_hh.t(), u), dim=-1),)

    def step(self, projected: Tensor, state: State) -> Tuple[Tensor, State]:
        """One step."""
        (h,) = state
        n = 2 * self.hidden_size
        r, g, rotated = self._gates_and_rotated(projected, h)
        candidate = modrelu(torch.addcmul(projected[..., n:], r, rotated), self.bias[n:])
        h = torch.addcmul(candidate, g, h - candidate)
        return h, (h,)

    def observe(self, projected: Tensor, state: State) -> Dict[str, Tensor]:
        """The mean of g_t."""
        _, g, _ = self._gates_and_rotated(projected, state[0])
        return {"update_gate": g.mean(-1)}

    def rotation_weights(self) -> Dict[str, Tensor]:
        """The angles of U."""
        return {"rotations.theta": self.rotations.theta.detach()}

    def _gates_and_rotated(self, projected: Tensor, h: Tensor) -> Tuple[Tensor, ...]:
        """r, g and U h."""
        n = 2 * self.hidden_size
        if self.rotations.as_matrix:
            (weight,) = self.derived
            recurrent = torch.mm(h, weight)
            gates, rotated = recurrent[..., :n], recurrent[..., n:]
        else:
            gates = F.linear(h, self.weight_hh)
            rotated = self.rotations(h, *self.derived).to(h.dtype)
        r, g = torch.sigmoid(projected[..., :n] + gates).chunk(2, dim=-1)
        return r, g, rotated

    def extra_repr(self) -> str:
        """Sizes and options, for ``print(model)``."""
        return f"{super().extra_repr()}, layers={len(self.rotations.partner)}, fft={self.fft}"
