"""What the attention forms of units with a memory matrix share: stretches of up to N steps."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from fairseq_rum.cells.base import RecurrentCell, State
from fairseq_rum.compat import autocast_dtype
from fairseq_rum.kernels.dispatch import Kernel


class StretchKernel(Kernel):
    """A backend that runs a sequence in stretches of N steps and carries (h, matrix) over.

    Up to N steps attend to each other at less cost than the product with an N x N matrix has, and
    the backward pass of T steps needs T / N matrices instead of T.
    """

    def unsupported(
        self, cell: RecurrentCell, x: Tensor, state: State, padding_mask: Optional[Tensor]
    ) -> Optional[str]:
        """What a stretch has no notion of; a single step is one of the matrix form."""
        if padding_mask is not None:
            return "no padding mask"
        if x.shape[1] < 2:
            return "no sequence of less than two steps"
        if x.dtype not in (torch.float32, torch.float64):
            return "no half precision"
        if autocast_dtype(x.device) is not None:
            return "no autocast"
        return None

    def stretch(
        self, cell: RecurrentCell, projected: Tensor, h: Tensor, memory: Tensor, is_zero: bool
    ) -> Tuple[Tensor, Tensor]:
        """Run up to N steps.

        Args:
            cell: the unit.
            projected: ``(T, B, P)``, the projected inputs in order.
            h: ``(B, N)``.
            memory: ``(B, N, N)``.
            is_zero: whether ``memory`` is the zero matrix and needs no gradient.

        Returns:
            the hidden states ``(T, B, N)`` and the memory after the last step.
        """
        raise NotImplementedError

    def __call__(
        self,
        cell: RecurrentCell,
        x: Tensor,
        state: State,
        padding_mask: Optional[Tensor],
        reverse: bool,
    ) -> Tuple[Tensor, State]:
        """Stretches, one after the other."""
        h, memory = state
        is_zero = not memory.requires_grad and not bool(memory.any())
        outputs = []
        projected = cell.project_input((x.flip(1) if reverse else x).transpose(0, 1))
        for part in projected.split(cell.hidden_size):
            history, memory = self.stretch(cell, part, h, memory, is_zero)
            h, is_zero = history[-1], False
            outputs.append(history)
        output = (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).transpose(0, 1)
        return output.flip(1) if reverse else output, (h, memory)
