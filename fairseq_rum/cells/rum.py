"""The Rotational Unit of Memory."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.cells.base import (
    RecurrentCell,
    State,
    check_layer_norm,
    check_probability,
    orthogonal_blocks_,
    uniform_,
)
from fairseq_rum.cells.registry import register_cell
from fairseq_rum.cells.zoneout import zoneout as apply_zoneout
from fairseq_rum.functional import (
    block_layer_norm,
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

    Layer normalization, LN, makes that :math:`\mathrm{LN}(\tau_t)`,
    :math:`u_t = \sigma(\mathrm{LN}(\cdot))` and :math:`c_t = f(\mathrm{LN}(e_t + R_t h_{t-1}))`.
    The authors' code normalizes the gate after the sigmoid instead,
    :math:`\mathrm{LN}(\sigma(\cdot))`, which leaves the interval [0, 1];
    ``layer_norm_gate="after"`` does the same.

    Zoneout replaces a part of :math:`h_t` by :math:`h_{t-1}`. It comes before the time
    normalization, so that :math:`|h_t| = \eta` holds with it too (the authors' code normalizes
    first and loses that). The associative memory R takes no part in it.

    Args:
        input_size: N_x.
        hidden_size: N.
        lambda_: 0, a rotation of the present step alone, or 1, rotations accumulated in the
            associative memory R.
        eta: the norm that time normalization gives every hidden state; None for no normalization.
        activation: f, one of relu, tanh, sigmoid, softsign, none.
        update_gate: False drops u_t, so that h_t = c_t.
        bias: False drops the three biases.
        rotation_trainable: False keeps what the rotation is made of, tau and e, at its initial
            value: weights and biases (the ablation RUM' of the paper). The update gate learns.
        layer_norm: layer normalization, with epsilon 1e-3.
        layer_norm_gate: normalization ``before`` (when None) or ``after`` the sigmoid of the
            update gate.
        zoneout: probability that a unit keeps its old value: a random mask in training, the
            expectation in evaluation.
        kernel_init: ``orthogonal``, as in the paper, or ``uniform``: U(-1/sqrt(N), 1/sqrt(N)), as
            in torch's LSTM and GRU and in the authors' version for PyTorch.

    Shapes:
        - input ``(B, N_x)``, output ``(B, N)``;
        - state ``(h,)`` for lambda = 0, ``(h, R)`` for lambda = 1: ``(B, N)`` and ``(B, N, N)``.

    Parameters (rows in the order tau, u, e; without update gate tau, e):
        - ``weight_ih`` ``(3N, N_x)``, ``weight_hh`` ``(2N, N)``, ``bias`` ``(3N,)``;
        - every N-row block of the kernels starts orthogonal with gain 1 (the authors' code takes
          ``weight_ih`` and ``weight_hh`` together), or all are uniform; the biases of tau and u
          start at 1, that of e at 0;
        - ``norm_gain`` and ``norm_shift`` ``(3N,)`` with layer normalization, in the order tau, u,
          candidate (without update gate ``(2N,)``): 1 and 0, but the shift of a gate that is
          normalized before the sigmoid starts at 1, since normalization takes b_u = 1 out again;
        - with ``rotation_trainable=False`` only the rows of the gate are parameters
          (``gate_ih``, ``gate_hh``, ``gate_bias``); the others are buffers (``rotation_ih``,
          ``rotation_hh``, ``rotation_bias``), and ``weight_ih``, ``weight_hh`` and ``bias`` put
          the two together when they are read.

    Raises:
        ValueError: lambda is neither 0 nor 1, eta is not positive, the activation is unknown, a
            probability lies outside [0, 1], ``layer_norm_gate`` is unknown or has nothing to act
            on, ``kernel_init`` is unknown, layer normalization with N = 1, or nothing is left to
            train.
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
        rotation_trainable: bool = True,
        layer_norm: bool = False,
        layer_norm_gate: Optional[str] = None,
        zoneout: float = 0.0,
        kernel_init: str = "orthogonal",
    ) -> None:
        super().__init__(input_size, hidden_size)
        if lambda_ not in (0, 1):
            raise ValueError(f"lambda must be 0 or 1, got {lambda_}")
        if eta is not None and not eta > 0:
            raise ValueError(f"eta must be positive, got {eta}: leave it out for no normalization")
        if layer_norm_gate not in (None, "before", "after"):
            raise ValueError(
                f"layer_norm_gate must be before or after the sigmoid, got {layer_norm_gate!r}"
            )
        if layer_norm_gate is not None and not (layer_norm and update_gate):
            raise ValueError("layer_norm_gate needs layer normalization and the update gate")
        if not rotation_trainable and not update_gate:
            raise ValueError(
                "rotation_trainable=False without the update gate leaves nothing to train"
            )
        if kernel_init not in ("orthogonal", "uniform"):
            raise ValueError(f"kernel_init must be orthogonal or uniform, got {kernel_init!r}")
        if layer_norm:
            check_layer_norm(hidden_size)
        self.kernel_init = kernel_init
        self.lambda_ = int(lambda_)
        self.eta = eta
        self.activation = activation
        self.update_gate = update_gate
        self.rotation_trainable = rotation_trainable
        self.layer_norm = layer_norm
        self.layer_norm_gate = layer_norm_gate or "before"
        self.zoneout = check_probability("zoneout", zoneout)
        self._f = get_activation(activation)
        self._make_weights(bias)
        if layer_norm:
            blocks = 3 if update_gate else 2
            self.norm_gain = nn.Parameter(torch.empty(blocks * hidden_size))
            self.norm_shift = nn.Parameter(torch.empty(blocks * hidden_size))
        self.reset_parameters()

    def _make_weights(self, bias: bool) -> None:
        n, n_x = self.hidden_size, self.input_size
        recurrent = 2 if self.update_gate else 1
        if self.rotation_trainable:
            self.weight_ih = nn.Parameter(torch.empty((recurrent + 1) * n, n_x))
            self.weight_hh = nn.Parameter(torch.empty(recurrent * n, n))
            self.register_parameter(
                "bias", nn.Parameter(torch.empty((recurrent + 1) * n)) if bias else None
            )
            return
        self.gate_ih = nn.Parameter(torch.empty(n, n_x))
        self.gate_hh = nn.Parameter(torch.empty(n, n))
        self.register_parameter("gate_bias", nn.Parameter(torch.empty(n)) if bias else None)
        self.register_buffer("rotation_ih", torch.empty(2 * n, n_x))
        self.register_buffer("rotation_hh", torch.empty(n, n))
        self.register_buffer("rotation_bias", torch.empty(2 * n) if bias else None)

    def __getattr__(self, name: str) -> Any:
        # Reached only for a name that is no attribute, parameter or buffer: the weights of a cell
        # with a constant rotation, which exist as the parts that are trained and those that aren't.
        if name == "weight_hh" and "gate_hh" in self._parameters:
            return torch.cat((self.rotation_hh, self.gate_hh))
        part = {"weight_ih": "ih", "bias": "bias"}.get(name)
        if part is not None and f"gate_{part}" in self._parameters:
            constant, gate = getattr(self, f"rotation_{part}"), getattr(self, f"gate_{part}")
            if gate is None:
                return None
            n = self.hidden_size
            return torch.cat((constant[:n], gate, constant[n:]))
        return super().__getattr__(name)

    @property
    def state_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """``h`` and, for lambda = 1, the associative memory ``R``."""
        n = self.hidden_size
        return {"h": (n,), "R": (n, n)} if self.lambda_ else {"h": (n,)}

    @property
    def step_extras(self) -> Tuple[str, ...]:
        """Layer normalization and zoneout, where they are on."""
        extras = ("layer normalization",) if self.layer_norm else ()
        return (*extras, "zoneout") if self.zoneout else extras

    def reset_parameters(self) -> None:
        """Orthogonal or uniform kernels; the biases of tau and u at 1, that of e at 0."""
        n = self.hidden_size
        if self.rotation_trainable:
            kernels = (self.weight_ih, self.weight_hh)
        else:
            kernels = (self.rotation_ih, self.rotation_hh, self.gate_ih, self.gate_hh)
        with torch.no_grad():
            for kernel in kernels:
                if self.kernel_init == "uniform":
                    uniform_(kernel, n)
                else:
                    orthogonal_blocks_(kernel, kernel.shape[0] // n)
            if self.rotation_trainable and self.bias is not None:
                self.bias.fill_(1.0)
                self.bias[-n:].zero_()
            elif not self.rotation_trainable and self.gate_bias is not None:
                self.gate_bias.fill_(1.0)
                self.rotation_bias[:n].fill_(1.0)
                self.rotation_bias[n:].zero_()
            if self.layer_norm:
                self.norm_gain.fill_(1.0)
                self.norm_shift.zero_()
                if self.update_gate and self.layer_norm_gate == "before":
                    self.norm_shift[n : 2 * n].fill_(1.0)

    @property
    def against_divergence(self) -> str:
        """Time normalization, which the paper found to be needed where states grow."""
        return "" if self.eta is not None else "keep the state's norm (--rum-eta 1)"

    def init_state(self, batch: int) -> State:
        """h_0 = 0 and, for lambda = 1, R_0 = I."""
        state = super().init_state(batch)
        if self.lambda_:
            state[1].diagonal(dim1=-2, dim2=-1).fill_(1.0)
        return state

    def project_input(self, x: Tensor) -> Tensor:
        """The input's part of tau, u and e: ``(..., N_x) -> (..., 3N)`` (2N without gate)."""
        return F.linear(x, self.weight_ih, self.bias)

    def derive(self) -> Tuple[Tensor, ...]:
        """The recurrent weights, put together once a sequence when those of tau are constant."""
        return (self.weight_hh,)

    def step(self, projected: Tensor, state: State) -> Tuple[Tensor, State]:
        """One step of Algorithm 1."""
        n = self.hidden_size
        h = state[0]
        embedded = projected[..., -n:]
        target, gate = self._target_and_gate(projected, h)
        if self.lambda_:
            memory = compose_rotation(state[1], embedded, target)
            rotated = torch.matmul(memory.to(h.dtype), h.unsqueeze(-1)).squeeze(-1)
            rest: Tuple[Tensor, ...] = (memory,)
        else:
            rotated = rotate(embedded, target, h)
            rest = ()
        new = embedded + rotated
        if self.layer_norm:
            new = block_layer_norm(new, 1, self.norm_gain[-n:], self.norm_shift[-n:])
        new = self._f(new)
        if gate is not None:
            new = gate * h + (1 - gate) * new
        new = flush_denormals(new)
        new = apply_zoneout(new, h, self.zoneout, self.training)
        if self.eta is not None:
            new = time_normalize(new, self.eta)
        return new, (new, *rest)

    def observe(self, projected: Tensor, state: State) -> Dict[str, Tensor]:
        """cos(theta_t) between e_t and tau_t, and the mean of u_t."""
        target, gate = self._target_and_gate(projected, state[0])
        embedded = projected[..., -self.hidden_size :]
        seen = {"cos_theta": F.cosine_similarity(embedded, target, dim=-1).clamp(-1.0, 1.0)}
        return seen if gate is None else {**seen, "update_gate": gate.mean(-1)}

    def kernels(self) -> Dict[str, Tensor]:
        """The blocks of the recurrent and of the input weights: tau, u, and e of the input."""
        if self.rotation_trainable:
            recurrent = self.weight_hh.detach().split(self.hidden_size)
            inputs = self.weight_ih.detach().split(self.hidden_size)
        else:
            target, embedded = self.rotation_ih.split(self.hidden_size)
            recurrent = (self.rotation_hh, self.gate_hh.detach())
            inputs = (target, self.gate_ih.detach(), embedded)
        names = ("tau", "u", "e") if self.update_gate else ("tau", "e")
        blocks = {f"W_hh {name}": block for name, block in zip(names, recurrent)}
        return {**blocks, **{f"W_xh {name}": block for name, block in zip(names, inputs)}}

    def rotation_weights(self) -> Dict[str, Tensor]:
        """The kernels of tau and e."""
        return {name: block for name, block in self.kernels().items() if name[-2:] != " u"}

    def _target_and_gate(self, projected: Tensor, h: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """tau and u."""
        n = self.hidden_size
        (weight_hh,) = self.derived
        recurrent = F.linear(h, weight_hh)
        if self.layer_norm:
            return self._normalized_gates(projected[..., :-n] + recurrent)
        target = projected[..., :n] + recurrent[..., :n]
        if not self.update_gate:
            return target, None
        return target, torch.sigmoid(projected[..., n : 2 * n] + recurrent[..., n:])

    def _normalized_gates(self, gates: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """tau and u from their sums, both with layer normalization."""
        n = self.hidden_size
        gain, shift = self.norm_gain[:-n], self.norm_shift[:-n]
        if not self.update_gate:
            return block_layer_norm(gates, 1, gain, shift), None
        if self.layer_norm_gate == "before":
            target, gate = block_layer_norm(gates, 2, gain, shift).chunk(2, dim=-1)
            return target, torch.sigmoid(gate)
        target, gate = gates.chunk(2, dim=-1)
        target = block_layer_norm(target, 1, gain[:n], shift[:n])
        return target, block_layer_norm(torch.sigmoid(gate), 1, gain[n:], shift[n:])

    def extra_repr(self) -> str:
        """Sizes and options, for ``print(model)``."""
        return (
            f"{super().extra_repr()}, lambda_={self.lambda_}, eta={self.eta}, "
            f"activation={self.activation}, update_gate={self.update_gate}, "
            f"rotation_trainable={self.rotation_trainable}, layer_norm={self.layer_norm}, "
            f"layer_norm_gate={self.layer_norm_gate}, zoneout={self.zoneout}, "
            f"kernel_init={self.kernel_init}"
        )
