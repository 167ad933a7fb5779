"""The recurrent network that learns how to update an auto-associative memory."""

from __future__ import annotations

from typing import Dict, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.cells.base import RecurrentCell, State, check_layer_norm, uniform_
from fairseq_rum.cells.registry import register_cell
from fairseq_rum.functional.norms import LAYER_NORM_EPS


@register_cell("weinet")
class WeiNetCell(RecurrentCell):
    r"""WeiNet: a learned update of an auto-associative memory.

    Zhang & Zhou, Learning to Update Auto-Associative Memory in Recurrent Neural Networks for
    Improving Sequence Memorization, 2017 (arXiv 1709.06493). No code of the authors is public.

    .. math::
        s_t &= W_s^x x_t + W_s^h h_{t-1} + b_s\\
        h_t &= \mathrm{ReLU}(\mathrm{LN}(s_t + A_{t-1} \, \mathrm{ReLU}(s_t)))\\
        i_t &= \sigma(W_i^x x_t + W_i^h h_{t-1} + b_i) & \text{(gate of what is stored)}\\
        j_t &= \sigma(W_j^x x_t + W_j^h h_{t-1} + b_j) & \text{(gate of its key)}\\
        f_t &= \sigma(w_f^x \cdot x_t + w_f^h \cdot h_{t-1} + b_f) & \text{(forget gate, one)}\\
        A_t &= f_t A_{t-1} + (i_t \odot W_v h_t) (j_t \odot W_k h_t)^\top, \quad A_0 = 0

    Established: the paper starts from fast weights (Ba et al. 2016), whose rule
    :math:`A_t = \lambda A_{t-1} + \eta h_t h_t^\top` is fixed, and replaces the rule by one whose
    parameters are learned together with the task; the memory stores patterns of the hidden state
    under themselves; the RUM paper reports 22k parameters at N = 50 for recall.

    Our own reading: what the rule's parameters are. W_v and W_k learn what of h_t is stored and
    under which key, the gates i and j decide element by element what is written (by i_t j_t^T), and
    f how much of the old memory stays. They start such that the update is nearly that of fast
    weights with decay 0.95 and eta 0.5: W_v = W_k = I, b_f = 3, and b_i = b_j such that the product
    of the gates is 0.5. With an embedding of size N and an output layer to 10 digits recall at
    T = 30 has 22,161 parameters. The paper's use of several memories is not there.

    Args:
        input_size: N_x.
        hidden_size: N.

    Shapes:
        - input ``(B, N_x)``, output ``(B, N)``;
        - state ``(h, A)``: ``(B, N)`` and ``(B, N, N)``.

    Parameters:
        - ``weight_ih`` ``(3N + 1, N_x)``, ``weight_hh`` ``(3N + 1, N)``, ``bias`` ``(3N + 1,)`` in
          the order s, i, j, f; ``weight_memory`` ``(2N, N)`` in the order v, k; ``norm_gain`` and
          ``norm_shift`` ``(N,)``, for layer normalization with epsilon 1e-3;
        - the rows of s: ``weight_ih`` from U(-1/sqrt(N), 1/sqrt(N)), ``weight_hh`` the identity
          times 0.05; the rows of the gates: both from U(-0.01, 0.01); W_v and W_k the identity,
          b_f = 3, b_i = b_j = 0.88, b_s and the shift 0, the gain 1;
        - in all (3N + 1) (N_x + N + 1) + 2 N^2 + 2N.

    Raises:
        ValueError: N = 1.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        check_layer_norm(hidden_size)
        n = hidden_size
        self.weight_ih = nn.Parameter(torch.empty(3 * n + 1, input_size))
        self.weight_hh = nn.Parameter(torch.empty(3 * n + 1, n))
        self.bias = nn.Parameter(torch.empty(3 * n + 1))
        self.weight_memory = nn.Parameter(torch.empty(2 * n, n))
        self.norm_gain = nn.Parameter(torch.empty(n))
        self.norm_shift = nn.Parameter(torch.empty(n))
        self.reset_parameters()

    @property
    def state_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """``h`` and the memory ``A``."""
        n = self.hidden_size
        return {"h": (n,), "A": (n, n)}

    def reset_parameters(self) -> None:
        """Near the rule of fast weights, from where learning starts."""
        n = self.hidden_size
        with torch.no_grad():
            nn.init.uniform_(self.weight_ih, -0.01, 0.01)
            nn.init.uniform_(self.weight_hh, -0.01, 0.01)
            uniform_(self.weight_ih[:n], n)
            nn.init.eye_(self.weight_hh[:n]).mul_(0.05)
            nn.init.eye_(self.weight_memory[:n])
            nn.init.eye_(self.weight_memory[n:])
            nn.init.zeros_(self.bias)
            self.bias[n : 3 * n].fill_(0.88)
            self.bias[3 * n].fill_(3.0)
            nn.init.ones_(self.norm_gain)
            nn.init.zeros_(self.norm_shift)

    def project_input(self, x: Tensor) -> Tensor:
        """The input's part of s, i, j and f, with the biases: ``(..., N_x) -> (..., 3N + 1)``."""
        return F.linear(x, self.weight_ih, self.bias)

    def step(self, projected: Tensor, state: State) -> Tuple[Tensor, State]:
        """One step."""
        h, memory = state
        n = self.hidden_size
        sums = torch.addmm(projected, h, self.weight_hh.t())
        slow, gates = sums[:, :n], torch.sigmoid(sums[:, n:])
        # As a row times the transpose: many times faster on CPU than a column.
        read = torch.bmm(torch.relu(slow).unsqueeze(1), memory.transpose(1, 2)).squeeze(1)
        h = torch.relu(
            F.layer_norm(slow + read, (n,), self.norm_gain, self.norm_shift, LAYER_NORM_EPS)
        )
        stored, key = (gates[:, :-1] * F.linear(h, self.weight_memory)).chunk(2, dim=-1)
        forget = gates[:, -1:].unsqueeze(-1)
        memory = torch.baddbmm(memory * forget, stored.unsqueeze(2), key.unsqueeze(1))
        return h, (h, memory)
