"""The protocol that every recurrent unit follows."""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from typing import Dict, Iterator, Optional, Tuple

import torch
from torch import Tensor, nn

State = Tuple[Tensor, ...]


class RecurrentCell(nn.Module):
    """One step of a recurrent unit.

    A unit splits its step in two: :meth:`project_input` is all that depends on the input alone and
    runs once for the whole sequence, :meth:`step` is the rest. The state is always a tuple of
    tensors, h first, batch in dimension 0, so that no caller asks which unit it holds.

    Attributes:
        unit: the name that the unit is registered under.
        input_size: N_x, the number of features of an input.
        hidden_size: N, the number of features of an output.
        state_shapes: ordered name -> shape without the batch dimension; the first is ``h``.
        starts_uniform: weights start as in torch's LSTM, uniform and small; a model that starts
            them otherwise may change that, and leaves units with a start of their own alone.
    """

    unit: str = ""
    starts_uniform: bool = False

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        # By thread: another one may evaluate without gradient while this one trains.
        self._derived: Dict[int, Tuple[Tensor, ...]] = {}
        if input_size < 1 or hidden_size < 1:
            raise ValueError(
                f"input_size and hidden_size must be at least 1, got {input_size} and {hidden_size}"
            )
        self.input_size = input_size
        self.hidden_size = hidden_size

    @property
    def state_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """Ordered name -> shape without the batch dimension; the first is ``h``, of shape (N,)."""
        return {"h": (self.hidden_size,)}

    @property
    def step_extras(self) -> Tuple[str, ...]:
        """What is switched on beyond the unit's published step ("layer normalization", "zoneout").

        A fused loop refuses a cell whose extras it doesn't know.
        """
        return ()

    @property
    def plain_step(self) -> bool:
        """True when the step is exactly the unit's published one."""
        return not self.step_extras

    @property
    def against_divergence(self) -> str:
        """An option of the unit that keeps its state from growing and is off; empty if none is."""
        return ""

    def init_state(self, batch: int) -> State:
        """The state before the first step, zeros unless the unit says otherwise."""
        like = next(self.parameters())
        return tuple(like.new_zeros((batch, *shape)) for shape in self.state_shapes.values())

    def project_input(self, x: Tensor) -> Tensor:
        """All that depends on the input alone: ``(..., N_x) -> (..., P)``, P as the unit needs."""
        raise NotImplementedError

    def step(self, projected: Tensor, state: State) -> Tuple[Tensor, State]:
        """One step: projected input ``(B, P)`` and state -> output ``(B, N)`` and next state."""
        raise NotImplementedError

    def derive(self) -> Tuple[Tensor, ...]:
        """What the steps need that depends on the parameters alone, such as a unitary matrix.

        A step reads it through :attr:`derived`, never by calling this.
        """
        return ()

    @property
    def derived(self) -> Tuple[Tensor, ...]:
        """The result of :meth:`derive`: kept inside :meth:`prepared`, computed anew outside."""
        kept = self._derived.get(threading.get_ident())
        return self.derive() if kept is None else kept

    def observe(self, projected: Tensor, state: State) -> Dict[str, Tensor]:
        """What goes on inside a step, for figures and logs: name -> one number per example, (B,).

        Called with the arguments of the step to come. Nothing unless the unit says otherwise. Names
        that units share: ``cos_theta`` of the angle of a rotation, ``update_gate`` for the mean of
        the gate that keeps the old state.
        """
        return {}

    def kernels(self) -> Dict[str, Tensor]:
        """The weight matrices by name, for figures: without gradient, and views of the weights."""
        own = self.named_parameters(recurse=False)
        return {name: weight.detach() for name, weight in own if weight.dim() == 2}

    def rotation_weights(self) -> Dict[str, Tensor]:
        """The weights that a rotation of the state is made of, as views; none in most units."""
        return {}

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Compute :meth:`derive` once for all steps inside this context.

        A loop over steps enters it. The parameters must not change inside. It covers the cells
        that this one is made of, and entering it twice does nothing more.
        """
        thread = threading.get_ident()
        cells = [
            module
            for module in self.modules()
            if isinstance(module, RecurrentCell) and thread not in module._derived
        ]
        try:
            for cell in cells:
                cell._derived[thread] = cell.derive()
            yield
        finally:
            for cell in cells:
                cell._derived.pop(thread, None)

    def forward(self, x: Tensor, state: Optional[State] = None) -> Tuple[Tensor, State]:
        """One step from the plain input ``(B, N_x)``, from the initial state when none is given."""
        if state is None:
            state = self.init_state(x.shape[0])
        return self.step(self.project_input(x), state)

    def extra_repr(self) -> str:
        """The sizes, for ``print(model)``."""
        return f"{self.input_size}, {self.hidden_size}"


def orthogonal_blocks_(weight: Tensor, blocks: int) -> None:
    """Make each of the row blocks of a stacked weight matrix orthogonal, with gain 1, in place.

    Orthogonal columns or rows, whichever are fewer: a block is ``(rows / blocks, columns)``.
    """
    with torch.no_grad():
        for block in weight.chunk(blocks):
            nn.init.orthogonal_(block)


def uniform_(weight: Tensor, hidden_size: int) -> None:
    """torch's own initialization of LSTM and GRU: U(-1/sqrt(N), 1/sqrt(N)), in place."""
    bound = 1.0 / math.sqrt(hidden_size)
    nn.init.uniform_(weight, -bound, bound)


def check_probability(name: str, value: float) -> float:
    """``value`` as a float.

    Raises:
        ValueError: it lies outside [0, 1].
    """
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
    return float(value)


def check_layer_norm(hidden_size: int) -> None:
    """Check that layer normalization makes sense for that hidden size.

    Raises:
        ValueError: hidden size 1, whose normalized value is always zero.
    """
    if hidden_size < 2:
        raise ValueError("layer normalization needs a hidden size of at least 2, got 1")
