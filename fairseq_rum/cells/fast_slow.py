"""The Fast-Slow RNN: fast cells in sequence within a step, and a slow one between the first two."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.cells.base import RecurrentCell, State, check_probability
from fairseq_rum.cells.registry import build_cell, get_cell, register_cell
from fairseq_rum.errors import InputError


@register_cell("fast_slow")
class FastSlowCell(RecurrentCell):
    r"""Fast-Slow RNN (Mujika, Meier & Steger, NIPS 2017, Equations 1 to 4), of any two units.

    .. math::
        h^{F_1}_t &= f^{F_1}(h^{F_k}_{t-1}, x_t)\\
        h^S_t &= f^S(h^S_{t-1}, D(h^{F_1}_t))\\
        h^{F_2}_t &= f^{F_2}(h^{F_1}_t, D(h^S_t))\\
        h^{F_i}_t &= f^{F_i}(h^{F_{i-1}}_t), \quad 3 \le i \le k

    The fast cells have weights of their own and one state: each continues from that of the one
    before it, memory cell included. The output is :math:`h^{F_k}_t`. D is dropout, on what passes
    between the fast and the slow cells and never on what a cell hands to itself; dropout of the
    input and of the output is left to the model, as for every other unit.

    F_3 to F_k have no input. The reference feeds them one zero; here the weights for it do not
    exist, and their projected input, the biases, is computed once a sequence.

    Args:
        input_size: N_x.
        hidden_size: N, the size of the fast cells.
        fast_unit: name of the unit of the fast cells.
        slow_unit: name of the unit of the slow cell.
        fast_cells: k, the number of fast cells.
        slow_size: the size of the slow cell; N when None.
        dropout: probability, see above.
        part_options: the options of the two units, by unit; cells of one unit share them.

    Shapes:
        - input ``(B, N_x)``, output ``(B, N)``;
        - state: that of a fast cell (``h`` first, which is the output), then that of the slow cell
          with names that begin with ``slow_``.

    Parameters: ``fast.0`` to ``fast.k-1`` and ``slow``, each laid out and initialized as its unit.
    Where a unit learns its initial state, that of F_1 is the one that the fast cells start from.

    Raises:
        InputError: a unit is unknown, or one of its options is.
        ValueError: k < 2, a size below 1, a dropout outside [0, 1], a unit made of itself, or
            options of a unit that no cell is.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        fast_unit: str = "lstm",
        slow_unit: str = "rum",
        fast_cells: int = 2,
        slow_size: Optional[int] = None,
        dropout: float = 0.0,
        part_options: Optional[Mapping[str, Mapping[str, Any]]] = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        for unit, option in ((fast_unit, "--fast-rnn-unit"), (slow_unit, "--slow-rnn-unit")):
            if get_cell(unit, option) is type(self):
                raise InputError(f"{option} {unit}: it cannot be made of itself")
        if fast_cells < 2:
            raise ValueError(f"fast_cells must be at least 2, got {fast_cells}")
        slow_size = hidden_size if slow_size is None else slow_size
        if slow_size < 1:
            raise ValueError(f"slow_size must be at least 1, got {slow_size}")
        options = dict(part_options or {})
        unused = sorted(options.keys() - {fast_unit, slow_unit})
        if unused:
            raise ValueError(
                f"options of {unused[0]!r}, but it is made of {fast_unit!r} and {slow_unit!r}"
            )
        self.fast_unit = fast_unit
        self.slow_unit = slow_unit
        self.dropout = check_probability("dropout", dropout)
        inputs = (input_size, slow_size, *[1] * (fast_cells - 2))
        self.fast = nn.ModuleList(
            build_cell(fast_unit, size, hidden_size, **options.get(fast_unit, {}))
            for size in inputs
        )
        for cell in self.fast[2:]:
            _remove_input(cell)
        self.slow = build_cell(slow_unit, hidden_size, slow_size, **options.get(slow_unit, {}))

    @property
    def state_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """The one state of the fast cells, ``h`` first, and the slow cell's, named ``slow_...``."""
        slow = {f"slow_{name}": shape for name, shape in self.slow.state_shapes.items()}
        return {**self.fast[0].state_shapes, **slow}

    @property
    def step_extras(self) -> Tuple[str, ...]:
        """Those of its cells, and dropout where it is on."""
        extras = dict.fromkeys((*self.fast[0].step_extras, *self.slow.step_extras))
        return (*extras, "dropout") if self.dropout else tuple(extras)

    def init_state(self, batch: int) -> State:
        """The initial states of a fast cell and of the slow one."""
        return (*self.fast[0].init_state(batch), *self.slow.init_state(batch))

    def project_input(self, x: Tensor) -> Tensor:
        """F_1's projection."""
        return self.fast[0].project_input(x)

    def derive(self) -> Tuple[Tensor, ...]:
        """The projected inputs of F_3 to F_k, ``(1, P)``, which are what no input leaves."""
        nothing = next(self.parameters()).new_empty(1, 0)
        return tuple(cell.project_input(nothing) for cell in self.fast[2:])

    def step(self, projected: Tensor, state: State) -> Tuple[Tensor, State]:
        """One step: F_1, S, F_2, and on to F_k."""
        first, second, *others = self.fast
        count = len(first.state_shapes)
        output, fast_state = first.step(projected, state[:count])
        slow, slow_state = self.slow.step(self._feed(self.slow, output), state[count:])
        output, fast_state = second.step(self._feed(second, slow), fast_state)
        for cell, nothing in zip(others, self.derived):
            output, fast_state = cell.step(nothing.expand(len(projected), -1), fast_state)
        return output, (*fast_state, *slow_state)

    def _feed(self, cell: RecurrentCell, output: Tensor) -> Tensor:
        """What a cell takes of another one's output."""
        return cell.project_input(F.dropout(output, self.dropout, self.training))

    def extra_repr(self) -> str:
        """Sizes and options, for ``print(model)``; its cells tell theirs."""
        return f"{super().extra_repr()}, dropout={self.dropout}"


def _remove_input(cell: RecurrentCell) -> None:
    """Leave a unit with one input feature without any: its projection is then its biases alone."""
    weights = [*cell.named_parameters(recurse=False), *cell.named_buffers(recurse=False)]
    for name, weight in weights:
        if name.endswith("_ih") and weight.dim() == 2:
            empty = weight.detach()[:, :0].clone()
            setattr(cell, name, nn.Parameter(empty) if isinstance(weight, nn.Parameter) else empty)
    cell.input_size = 0
