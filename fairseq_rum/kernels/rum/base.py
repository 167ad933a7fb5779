"""What all fused versions of RUM's loop share: the signature, the projection, the layout."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

from torch import Tensor

from fairseq_rum.cells.base import RecurrentCell, State
from fairseq_rum.kernels.dispatch import Kernel


class RumSettings(NamedTuple):
    """The options of a RUM cell that its loop depends on."""

    lambda_: int
    eta: Optional[float]
    activation: str
    update_gate: bool


class RumKernel(Kernel):
    """A backend of RUM: subclasses give :meth:`sequence` and, where needed, the two refusals.

    A subclass with an ``unsupported`` of its own asks the one here too.
    """

    @staticmethod
    def settings(cell: RecurrentCell) -> RumSettings:
        """The options of that cell."""
        return RumSettings(cell.lambda_, cell.eta, cell.activation, cell.update_gate)

    def unsupported(
        self, cell: RecurrentCell, x: Tensor, state: State, padding_mask: Optional[Tensor]
    ) -> Optional[str]:
        """The loops know Algorithm 1 alone, without layer normalization or zoneout."""
        return None if cell.plain_step else f"no {' or '.join(cell.step_extras)}"

    def sequence(
        self,
        projected: Tensor,
        h: Tensor,
        memory: Optional[Tensor],
        weight_hh: Tensor,
        padded: Optional[Tensor],
        reverse: bool,
        settings: RumSettings,
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """The loop over projected inputs, differentiable in all of its floating-point arguments.

        Args:
            projected: ``(T, B, 3N)`` in the order tau, u, e, or ``(T, B, 2N)`` without gate.
            h: ``(B, N)``.
            memory: R, ``(B, N, N)`` for lambda = 1, else None.
            weight_hh: ``(2N, N)`` in the order tau, u, or ``(N, N)`` without gate.
            padded: ``(T, B)``, True at padded steps: state unchanged, output zero.
            reverse: start at the last step.
            settings: the options of the cell.

        Returns:
            outputs ``(T, B, N)``, the final h and, for lambda = 1, the final R.
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
        projected = cell.project_input(x.transpose(0, 1))
        outputs, h, memory = self.sequence(
            projected,
            state[0],
            state[1] if cell.lambda_ else None,
            cell.weight_hh,
            None if padding_mask is None else padding_mask.t(),
            reverse,
            self.settings(cell),
        )
        return outputs.transpose(0, 1), (h,) if memory is None else (h, memory)
