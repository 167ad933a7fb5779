"""The hidden state that a language model hands from one window of a stream to the next."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn

State = Tuple[Tensor, ...]


class CarriedState:
    """State between windows, owned by the task and passed to the model with every batch.

    The task calls :meth:`begin` with a window's position; the model takes what :meth:`get` gives
    and leaves what it ends with by :meth:`set`. A pass over a split begins at window 0, which
    forgets everything, so no state outlives its split or epoch. Beginning the same window twice
    (a batch that is tried again) starts from the same state twice. States are kept per model, so
    that the models of an ensemble do not share one.
    """

    def __init__(self) -> None:
        self._window = -1
        self._start: WeakKeyDictionary[nn.Module, List[State]] = WeakKeyDictionary()
        self._end: WeakKeyDictionary[nn.Module, List[State]] = WeakKeyDictionary()
        self._restored: Optional[List[State]] = None

    @property
    def next_window(self) -> int:
        """The window that can be begun next, besides 0 and the present one."""
        return self._window + 1

    def begin(self, window: int) -> None:
        """Make ready for a window.

        Raises:
            RuntimeError: the window does not follow on what is held.
        """
        if window == 0:
            self._start, self._end = WeakKeyDictionary(), WeakKeyDictionary()
            self._restored = None
        elif window == self._window + 1:
            self._start, self._end = self._end, WeakKeyDictionary()
        elif window != self._window:
            raise RuntimeError(
                f"no hidden state for window {window} of the stream: the last one was "
                f"{self._window}; --reset-dataloader starts the epoch anew"
            )
        self._window = window

    def get(self, model: nn.Module) -> Optional[List[State]]:
        """The states that a model starts this window from; None for its initial states."""
        if model not in self._start and self._restored is not None:
            device = next(model.parameters()).device
            return [tuple(part.to(device) for part in state) for state in self._restored]
        return self._start.get(model)

    def set(self, model: nn.Module, states: Sequence[State]) -> None:
        """Leave the states that a model ended this window with; their gradient is cut."""
        self._end[model] = [tuple(part.detach() for part in state) for state in states]

    def final_states(self) -> Optional[List[State]]:
        """What the only model ended the last window with, for a checkpoint; None before that."""
        states = list(self._end.values())
        return states[0] if states else None

    def restore(self, next_window: int, states: List[State]) -> None:
        """Continue before window ``next_window`` with states from a checkpoint."""
        self.__init__()
        self._window = next_window - 1
        self._restored = states
