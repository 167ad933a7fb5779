"""LSTM and GRU through torch's own fused loops (cuDNN, oneDNN): backend ``fused``."""

from __future__ import annotations

from typing import Callable, Optional, Tuple

import torch
from torch import Tensor

from fairseq_rum.cells.base import RecurrentCell, State
from fairseq_rum.kernels.dispatch import Kernel, register_kernel


class _TorchKernel(Kernel):
    def __init__(self, function: Callable) -> None:
        self.function = function

    def unsupported(
        self, cell: RecurrentCell, x: Tensor, state: State, padding_mask: Optional[Tensor]
    ) -> Optional[str]:
        if not cell.plain_step:
            return f"no {' or '.join(cell.step_extras)}"
        if padding_mask is not None:
            return "no padding mask"
        if x.shape[1] == 0:
            return "no empty sequence"
        if x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            return "no autocast on CPUs, which may lack the instructions"
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
        has_bias = cell.bias_ih is not None
        weights = [cell.weight_ih, cell.weight_hh]
        if has_bias:
            weights += [cell.bias_ih, cell.bias_hh]
        hidden = [part.unsqueeze(0) for part in state]
        output, *final = self.function(
            x,
            hidden if len(hidden) > 1 else hidden[0],
            weights,
            has_bias,
            1,
            0.0,
            False,
            False,
            True,
        )
        if reverse:
            output = output.flip(1)
        return output, tuple(part.squeeze(0) for part in final)


register_kernel("lstm", "fused", _TorchKernel(torch._VF.lstm))
register_kernel("gru", "fused", _TorchKernel(torch._VF.gru))
