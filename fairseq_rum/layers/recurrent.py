"""A unit run over sequences: direction, padding, state carry, stacking."""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.cells import RecurrentCell, State
from fairseq_rum.kernels import check_backend, run_sequence


class RecurrentLayer(nn.Module):
    """One unit over a sequence, in one direction.

    Args:
        cell: the unit.
        reverse: run from the last step to the first.
        backend: which version of the unit's loop, see :func:`fairseq_rum.kernels.run_sequence`.

    Raises:
        InputError: the backend does not exist for this unit or cannot run on this machine.
    """

    def __init__(self, cell: RecurrentCell, reverse: bool = False, backend: str = "auto") -> None:
        super().__init__()
        check_backend(cell.unit, backend)
        self.cell = cell
        self.reverse = reverse
        self.backend = backend

    def forward(
        self,
        x: Tensor,
        state: Optional[State] = None,
        padding_mask: Optional[Tensor] = None,
    ) -> Tuple[Tensor, State]:
        """Run the unit.

        Args:
            x: ``(B, T, N_x)``.
            state: the state to start from; the unit's initial state when None.
            padding_mask: ``(B, T)``, True where padded. A padded step carries the state through
                unchanged, and its output is zero.

        Returns:
            outputs ``(B, T, N)``, and the state after the last step.
        """
        if state is None:
            state = self.cell.init_state(x.shape[0])
        return run_sequence(self.cell, x, state, padding_mask, self.reverse, self.backend)


class StackedRecurrent(nn.Module):
    """Layers of units on top of each other, in one direction or both.

    Args:
        make_cell: builds the unit of a layer from the number of its input features.
        input_size: features of the input.
        num_layers: how many layers.
        bidirectional: a second unit in every layer runs from the last step to the first; the
            outputs of the two are concatenated.
        dropout: probability, on the outputs of every layer but the last.
        backend: as in :class:`RecurrentLayer`.

    Raises:
        ValueError: fewer than one layer, or a dropout outside [0, 1].
        InputError: as :class:`RecurrentLayer`.
    """

    def __init__(
        self,
        make_cell: Callable[[int], RecurrentCell],
        input_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        if not 0.0 <= dropout <= 1.0:
            raise ValueError(f"dropout must lie in [0, 1], got {dropout}")
        self.num_layers = num_layers
        self.num_directions = 2 if bidirectional else 1
        self.dropout = dropout
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            for direction in range(self.num_directions):
                self.layers.append(RecurrentLayer(make_cell(input_size), direction == 1, backend))
            input_size = self.num_directions * self.layers[-1].cell.hidden_size

    @property
    def output_size(self) -> int:
        """Features of the output: N, or 2N in both directions."""
        return self.num_directions * self.layers[-1].cell.hidden_size

    def init_state(self, batch: int) -> List[State]:
        """The initial state of every layer and direction, in torch's order."""
        return [layer.cell.init_state(batch) for layer in self.layers]

    def forward(
        self,
        x: Tensor,
        states: Optional[Sequence[State]] = None,
        padding_mask: Optional[Tensor] = None,
    ) -> Tuple[Tensor, List[State]]:
        """Run all layers.

        Args:
            x: ``(B, T, N_x)``.
            states: one state for every layer and direction (layer 0 forward, layer 0 backward,
                layer 1 forward ...); the initial states when None.
            padding_mask: ``(B, T)``, True where padded.

        Returns:
            outputs ``(B, T, N)`` or ``(B, T, 2N)``, and the states after the last step.
        """
        if states is None:
            states = self.init_state(x.shape[0])
        final: List[State] = []
        for index in range(self.num_layers):
            if index > 0:
                x = F.dropout(x, self.dropout, self.training)
            outputs = []
            for direction in range(self.num_directions):
                position = index * self.num_directions + direction
                output, state = self.layers[position](x, states[position], padding_mask)
                outputs.append(output)
                final.append(state)
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        return x, final
