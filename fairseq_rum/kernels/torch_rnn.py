"""LSTM and GRU through torch's own fused loops (cuDNN, oneDNN): backend ``fused``.

Those know no padding mask. Here the steps that count are moved to the front of each row, and the
padded ones behind them get one more input feature whose weights close the input gate of the LSTM
and open its forget gate, or open the update gate of the GRU, as far as a float goes: the memory
cell stays what it was, and no gradient comes from there.
"""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from fairseq_rum.cells.base import RecurrentCell, State
from fairseq_rum.cells.registry import get_cell
from fairseq_rum.compat import autocast_dtype
from fairseq_rum.kernels.dispatch import Kernel, register_kernel

SHUT = 1e4
"""Far above what a gate's sum can be, and a number in half precision too."""


class _TorchKernel(Kernel):
    """One of torch's loops.

    Args:
        function: the loop.
        at_padding: for each gate, in torch's order: 1 open at padded steps, -1 shut, 0 whatever.
    """

    def __init__(self, function: Callable, at_padding: Sequence[int]) -> None:
        self.function = function
        self.at_padding = at_padding

    def unsupported(
        self, cell: RecurrentCell, x: Tensor, state: State, padding_mask: Optional[Tensor]
    ) -> Optional[str]:
        if type(cell).project_input is not get_cell(cell.unit).project_input:
            return f"no projection of {type(cell).__name__}'s own"
        if not cell.plain_step:
            return f"no {' or '.join(cell.step_extras)}"
        if x.shape[1] == 0:
            return "no empty sequence"
        narrow = x.dtype in (torch.bfloat16, torch.float16)
        if (narrow or autocast_dtype(x.device) is not None) and x.device.type == "cpu":
            return "no half precision on CPUs, which may lack the instructions"
        return None

    def __call__(
        self,
        cell: RecurrentCell,
        x: Tensor,
        state: State,
        padding_mask: Optional[Tensor],
        reverse: bool,
    ) -> Tuple[Tensor, State]:
        if reverse:
            x = x.flip(1)
            padding_mask = None if padding_mask is None else padding_mask.flip(1)
        if padding_mask is None:
            output, state = self._run(cell, x, cell.weight_ih, state)
        else:
            output, state = self._run_padded(cell, x, state, padding_mask)
        return output.flip(1) if reverse else output, state

    def _run(
        self, cell: RecurrentCell, x: Tensor, weight_ih: Tensor, state: State
    ) -> Tuple[Tensor, State]:
        has_bias = cell.bias_ih is not None
        weights: List[Tensor] = [weight_ih, cell.weight_hh]
        if has_bias:
            weights += [cell.bias_ih, cell.bias_hh]
        hidden = [part.unsqueeze(0).contiguous() for part in state]  # cuDNN takes no other
        output, *final = self.function(
            x,
            hidden if len(hidden) > 1 else hidden[0],
            weights,
            has_bias,
            1,
            0.0,
            torch.is_grad_enabled(),  # train: cuDNN has no backward pass without; no dropout here
            False,
            True,
        )
        return output, tuple(part.squeeze(0) for part in final)

    def _run_padded(
        self, cell: RecurrentCell, x: Tensor, state: State, padding_mask: Tensor
    ) -> Tuple[Tensor, State]:
        order = padding_mask.to(torch.uint8).argsort(dim=1, stable=True)
        padded = padding_mask.gather(1, order).unsqueeze(-1)
        x = _take(x, order)
        rows = (cell.hidden_size, 1)
        gates = [cell.weight_ih.new_full(rows, SHUT * gate) for gate in self.at_padding]
        output, (_, *memory) = self._run(
            cell,
            torch.cat([x, padded.to(x.dtype)], dim=-1),
            torch.cat([cell.weight_ih, torch.cat(gates)], dim=-1),
            state,
        )
        # The output gate is not shut: the hidden state is that of the last step that counts.
        lengths = (~padding_mask).sum(dim=1, keepdim=True)
        hidden = _take(output, (lengths - 1).clamp(min=0)).squeeze(1)
        hidden = torch.where(lengths > 0, hidden, state[0].to(hidden.dtype))
        return _take(output.masked_fill(padded, 0.0), order.argsort(dim=1)), (hidden, *memory)


def _take(x: Tensor, steps: Tensor) -> Tensor:
    """Of ``(B, T, N)`` the steps ``(B, S)``."""
    return x.gather(1, steps.unsqueeze(-1).expand(-1, -1, x.shape[2]))


register_kernel("lstm", "fused", _TorchKernel(torch._VF.lstm, (-1, 1, 0, 0)))
register_kernel("gru", "fused", _TorchKernel(torch._VF.gru, (0, 1, 0)))
