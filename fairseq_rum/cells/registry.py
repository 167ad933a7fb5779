"""Units by name: the only place that knows which there are."""

from __future__ import annotations

import inspect
from typing import Callable, Dict, List, Type, TypeVar

from fairseq_rum.cells.base import RecurrentCell
from fairseq_rum.errors import InputError

_CELLS: Dict[str, Type[RecurrentCell]] = {}
C = TypeVar("C", bound=Type[RecurrentCell])


def register_cell(name: str) -> Callable[[C], C]:
    """Class decorator that makes a unit available everywhere as ``--rnn-unit NAME``.

    Raises:
        ValueError: the name is taken, or the class is no :class:`RecurrentCell`.
    """

    def register(cls: C) -> C:
        if name in _CELLS:
            raise ValueError(f"unit {name!r} is already registered, by {_CELLS[name].__name__}")
        if not issubclass(cls, RecurrentCell):
            raise ValueError(f"unit {name!r}: {cls.__name__} must extend RecurrentCell")
        cls.unit = name
        _CELLS[name] = cls
        return cls

    return register


def registered_cells() -> List[str]:
    """The names of all units, sorted."""
    return sorted(_CELLS)


def get_cell(name: str, option: str = "--rnn-unit") -> Type[RecurrentCell]:
    """The unit of that name.

    Args:
        name: a registered name.
        option: the option that the name came from, for the message.

    Raises:
        InputError: no unit has that name; the message lists those there are.
    """
    if name not in _CELLS:
        raise InputError(
            f"{option}: unknown unit {name!r}, choose one of {', '.join(registered_cells())}"
        )
    return _CELLS[name]


def build_cell(name: str, input_size: int, hidden_size: int, **options: object) -> RecurrentCell:
    """Build the unit of that name.

    Raises:
        InputError: no unit has that name, it does not know one of the options, or an option is
            out of its range.
    """
    cls = get_cell(name)
    known = inspect.signature(cls.__init__).parameters
    for option in options:
        if option not in known:
            raise InputError(f"unit {name!r} has no option {option!r}")
    try:
        return cls(input_size, hidden_size, **options)  # type: ignore[arg-type]
    except ValueError as error:
        raise InputError(f"unit {name!r}: {error}") from error
