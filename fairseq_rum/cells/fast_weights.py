"""The recurrent network with fast weights."""

from __future__ import annotations

from typing import Dict, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.cells.base import RecurrentCell, State, check_layer_norm, uniform_
from fairseq_rum.cells.registry import register_cell
from fairseq_rum.functional.norms import LAYER_NORM_EPS


@register_cell("fast_weights")
class FastWeightsCell(RecurrentCell):
    r"""Fast weights with layer normalization (FW-LN).

    Ba et al., Using Fast Weights to Attend to the Recent Past, NIPS 2016.

    .. math::
        h_t^0 &= f(W_h h_{t-1} + W_x x_t + b)\\
        h_t^s &= f(\mathrm{LN}(W_h h_{t-1} + W_x x_t + b + A_{t-1} h_t^{s-1})), \quad s = 1 \ldots S
                                                            & \text{(Equation 2)}\\
        h_t &= h_t^S\\
        A_t &= \lambda A_{t-1} + \eta \, h_t h_t^\top, \quad A_0 = 0  & \text{(Equation 1)}

    with f = ReLU. The sum :math:`A_{t-1} y = \eta \sum_{\tau<t} \lambda^{t-1-\tau} h_\tau (h_\tau
    \cdot y)` is an attention over the past hidden states. The step here keeps the matrix, since a
    state has a fixed shape; the backend ``fused`` runs a sequence of up to N steps in the attention
    form, without any N x N matrix but the final one, and carries the matrix from one such stretch
    to the next in a longer sequence.

    Args:
        input_size: N_x.
        hidden_size: N.
        decay: lambda, above 0 and at most 1; the paper takes 0.9 to 0.95.
        eta: the rate at which the fast weights learn, positive; 0.5 in the paper.
        inner_steps: S, at least 1.

    Shapes:
        - input ``(B, N_x)``, output ``(B, N)``;
        - state ``(h, A)``: ``(B, N)`` and ``(B, N, N)``.

    Parameters:
        - ``weight_ih`` ``(N, N_x)`` from U(-1/sqrt(N), 1/sqrt(N)), ``weight_hh`` ``(N, N)``, the
          identity times 0.05, ``bias`` ``(N,)``, zero;
        - ``norm_gain`` and ``norm_shift`` ``(N,)``, 1 and 0: layer normalization has epsilon 1e-3;
        - in all N N_x + N^2 + 3N.

    Raises:
        ValueError: decay outside (0, 1], eta not positive, fewer than one inner step, or N = 1.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        decay: float = 0.95,
        eta: float = 0.5,
        inner_steps: int = 1,
    ) -> None:
        super().__init__(input_size, hidden_size)
        if not 0.0 < decay <= 1.0:
            raise ValueError(f"decay must lie in (0, 1], got {decay}")
        if not eta > 0.0:
            raise ValueError(f"eta must be positive, got {eta}")
        if inner_steps < 1:
            raise ValueError(f"inner_steps must be at least 1, got {inner_steps}")
        check_layer_norm(hidden_size)
        self.decay = float(decay)
        self.eta = float(eta)
        self.inner_steps = int(inner_steps)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))
        self.norm_gain = nn.Parameter(torch.empty(hidden_size))
        self.norm_shift = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    @property
    def state_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """``h`` and the fast weights ``A``."""
        n = self.hidden_size
        return {"h": (n,), "A": (n, n)}

    def reset_parameters(self) -> None:
        """The paper's: uniform input weights, a small multiple of the identity between steps."""
        uniform_(self.weight_ih, self.hidden_size)
        with torch.no_grad():
            nn.init.eye_(self.weight_hh).mul_(0.05)
        nn.init.zeros_(self.bias)
        nn.init.ones_(self.norm_gain)
        nn.init.zeros_(self.norm_shift)

    def project_input(self, x: Tensor) -> Tensor:
        """W_x x + b: ``(..., N_x) -> (..., N)``."""
        return F.linear(x, self.weight_ih, self.bias)

    def step(self, projected: Tensor, state: State) -> Tuple[Tensor, State]:
        """One step, in the matrix form."""
        h, fast = state
        slow = torch.addmm(projected, h, self.weight_hh.t())
        h = torch.relu(slow)
        for _ in range(self.inner_steps):
            # As a row times the transpose: many times faster on CPU than a column.
            row = torch.bmm(h.unsqueeze(1), fast.transpose(1, 2))
            h = slow + row.squeeze(1)
            h = torch.relu(
                F.layer_norm(h, h.shape[-1:], self.norm_gain, self.norm_shift, LAYER_NORM_EPS)
            )
        fast = torch.baddbmm(
            fast, h.unsqueeze(-1), h.unsqueeze(-2), beta=self.decay, alpha=self.eta
        )
        return h, (h, fast)

    def extra_repr(self) -> str:
        """Sizes and options, for ``print(model)``."""
        return (
            f"{super().extra_repr()}, decay={self.decay}, eta={self.eta}, "
            f"inner_steps={self.inner_steps}"
        )
