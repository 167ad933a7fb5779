"""The loop as the protocol defines it: one :meth:`RecurrentCell.step` after the other."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from fairseq_rum.cells.base import RecurrentCell, State


def run_naive(
    cell: RecurrentCell,
    x: Tensor,
    state: State,
    padding_mask: Optional[Tensor] = None,
    reverse: bool = False,
) -> Tuple[Tensor, State]:
    """Run any unit over a sequence; arguments and results as :func:`~.dispatch.run_sequence`."""
    # Time first, and unbound before the loop: indexing in it would cost O(T^2) backwards.
    steps = cell.project_input(x.transpose(0, 1)).unbind(0)
    padded = None if padding_mask is None else padding_mask.t().unbind(0)
    outputs: list = [None] * len(steps)
    times = range(len(steps))
    with cell.prepared():
        for t in reversed(times) if reverse else times:
            output, new_state = cell.step(steps[t], state)
            if padded is None:
                state = new_state
            else:
                state = tuple(
                    torch.where(padded[t].view(-1, *[1] * (new.dim() - 1)), old.to(new.dtype), new)
                    for old, new in zip(state, new_state)
                )
                output = output.masked_fill(padded[t].unsqueeze(-1), 0.0)
            outputs[t] = output
    return torch.stack(outputs, dim=1), state
