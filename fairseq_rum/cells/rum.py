"""The Rotational Unit of Memory."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.cells.base import RecurrentCell, State, orthogonal_blocks_
from fairseq_rum.cells.registry import register_cell
from fairseq_rum.functional import (
    compose_rotation,
    flush_denormals,
    get_activation,
    rotate,
    time_normalize,
)


@register_cell("rum")
class RUMCell(RecurrentCell):
    r"""Rotational Unit of Memory: Algorithm 1 of Dangovski et al., TACL 7, 2019.

    .. math::
        \tau_t &= W_\tau^x x_t + W_\tau^h h_{t-1} + b_\tau  & \text{(memory target)}\\
        u_t &= \sigma(W_u^x x_t + W_u^h h_{t-1} + b_u)      & \text{(update gate)}\\
        e_t &= W_e x_t + b_e                                & \text{(embedded input)}\\
        R_t &= R_{t-1}^\lambda \, \mathrm{Rotation}(e_t, \tau_t), \quad R_0 = I\\
        c_t &= f(e_t + R_t h_{t-1})\\
        h_t &= u_t \odot h_{t-1} + (1 - u_t) \odot c_t\\
        h_t &\leftarrow \eta \, h_t / |h_t|                 & \text{(time normalization, optional)}

    Args:
        input_size: N_x.
        hidden_size: N.
        lambda_: 0, a rotation of the present step alone, or 1, rotations accumulated in the
            associative memory R.
        eta: the norm that time normalization gives every hidden state; None for no normalization.
        activation: f, one of relu, tanh, sigmoid, softsign, none.
        update_gate: False drops u_t, so that h_t = c_t.
        bias: False drops the three biases.

    Shapes:
        - input ``(B, N_x)``, output ``(B, N)``;
        - state ``(h,)`` for lambda = 0, ``(h, R)`` for lambda = 1: ``(B, N)`` and ``(B, N, N)``.

    Parameters (rows in the order tau, u, e; without update gate tau, e):
        - ``weight_ih`` ``(3N, N_x)``, ``weight_hh`` ``(2N, N)``, ``bias`` ``(3N,)``;
        - initialized as the authors do: every N-row block orthogonal with gain 1, the biases of
          tau and u at 1, that of e at 0.

    Raises:
        ValueError: lambda is neither 0 nor 1, eta is not positive, or the activation is unknown.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        lambda_: int = 0,
        eta: Optional[float] = None,
        activation: str = "relu",
        update_gate: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__(input_size, hidden_size)
        if lambda_ not in (0, 1):
            raise ValueError(f"lambda must be 0 or 1, got {lambda_}")
        if eta is not None and not eta > 0:
            raise ValueError(f"eta must be positive, got {eta}: leave it out for no normalization")
        self.lambda_ = int(lambda_)
        self.eta = eta
        self.activation = activation
        self.update_gate = update_gate
        self._f = get_activation(activation)
        recurrent = 2 if update_gate else 1
        self.weight_ih = nn.Parameter(torch.empty((recurrent + 1) * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(recurrent * hidden_size, hidden_size))
        if bias:
            self.bias = nn.Parameter(torch.empty((recurrent + 1) * hidden_size))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    @property
    def state_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """``h`` and, for lambda = 1, the associative memory ``R``."""
        n = self.hidden_size
        return {"h": (n,), "R": (n, n)} if self.lambda_ else {"h": (n,)}

    def reset_parameters(self) -> None:
        """Orthogonal kernels; the biases of tau and u at 1, that of e at 0."""
        n = self.hidden_size
        orthogonal_blocks_(self.weight_ih, self.weight_ih.shape[0] // n)
        orthogonal_blocks_(self.weight_hh, self.weight_hh.shape[0] // n)
        if self.bias is not None:
            with torch.no_grad():
                self.bias.fill_(1.0)
                self.bias[-n:].zero_()

    def init_state(self, batch: int) -> State:
        """h_0 = 0 and, for lambda = 1, R_0 = I."""
        state = super().init_state(batch)
        if self.lambda_:
            state[1].diagonal(dim1=-2, dim2=-1).fill_(1.0)
        return state

    def project_input(self, x: Tensor) -> Tensor:
        """The input's part of tau, u and e: ``(..., N_x) -> (..., 3N)`` (2N without gate)."""
        return F.linear(x, self.weight_ih, self.bias)

    def step(self, projected: Tensor, state: State) -> Tuple[Tensor, State]:
        """One step of Algorithm 1."""
        n = self.hidden_size
        h = state[0]
        recurrent = F.linear(h, self.weight_hh)
        target = projected[..., :n] + recurrent[..., :n]
        embedded = projected[..., -n:]
        if self.lambda_:
            memory = compose_rotation(state[1], embedded, target)
            rotated = torch.matmul(memory.to(h.dtype), h.unsqueeze(-1)).squeeze(-1)
            rest: Tuple[Tensor, ...] = (memory,)
        else:
            rotated = rotate(embedded, target, h)
            rest = ()
        new = self._f(embedded + rotated)
        if self.update_gate:
            gate = torch.sigmoid(projected[..., n : 2 * n] + recurrent[..., n:])
            new = gate * h + (1 - gate) * new
        new = flush_denormals(new)
        if self.eta is not None:
            new = time_normalize(new, self.eta)
        return new, (new, *rest)

    def extra_repr(self) -> str:
        """Sizes and options, for ``print(model)``."""
        return (
            f"{super().extra_repr()}, lambda_={self.lambda_}, eta={self.eta}, "
            f"activation={self.activation}, update_gate={self.update_gate}"
        )
