"""Which version of a unit's loop runs: registration, choice, and the record of it."""

from __future__ import annotations

import logging
from typing import Dict, List, Optional, Set, Tuple

from torch import Tensor

from fairseq_rum.cells.base import RecurrentCell, State
from fairseq_rum.cells.registry import get_cell
from fairseq_rum.compat import in_forward_mode
from fairseq_rum.errors import InputError
from fairseq_rum.kernels.naive import run_naive

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "naive", "fused", "cpp", "triton")


class Kernel:
    """One backend of one unit."""

    def unavailable(self) -> Optional[str]:
        """Why this backend cannot run on this machine at all; None when it can."""
        return None

    def unsupported(
        self, cell: RecurrentCell, x: Tensor, state: State, padding_mask: Optional[Tensor]
    ) -> Optional[str]:
        """Why this backend does not cover this call; None when it does."""
        return None

    def __call__(
        self,
        cell: RecurrentCell,
        x: Tensor,
        state: State,
        padding_mask: Optional[Tensor],
        reverse: bool,
    ) -> Tuple[Tensor, State]:
        """Run the unit; arguments and results as :func:`run_sequence`."""
        raise NotImplementedError


_KERNELS: Dict[str, Dict[str, Kernel]] = {}
_LOGGED: Set[str] = set()


def register_kernel(unit: str, backend: str, kernel: Kernel) -> None:
    """Make ``kernel`` the backend of that name for a unit; earlier ones are preferred by auto.

    Raises:
        ValueError: no such backend name, or the unit has that backend already.
    """
    if backend not in BACKENDS or backend in ("auto", "naive"):
        raise ValueError(f"{backend!r} is not a backend that a kernel can register as")
    backends = _KERNELS.setdefault(unit, {})
    if backend in backends:
        raise ValueError(f"unit {unit!r} already has a backend {backend!r}")
    backends[backend] = kernel


def backend_table() -> List[Tuple[str, str, str]]:
    """Rows (unit, backend, "available" or why not), for ``fairseq-rum bench --backends``."""
    return [
        (unit, backend, kernel.unavailable() or "available")
        for unit, backends in sorted(_KERNELS.items())
        for backend, kernel in backends.items()
    ]


def check_backend(unit: str, backend: str) -> None:
    """Check ``--rnn-backend`` for a unit before anything is built.

    Raises:
        InputError: no such backend, the unit has none of that name, or it cannot run here.
    """
    if backend not in BACKENDS:
        raise InputError(f"--rnn-backend: unknown {backend!r}, choose one of {', '.join(BACKENDS)}")
    if backend in ("auto", "naive"):
        return
    kernel = _KERNELS.get(unit, {}).get(backend)
    if kernel is None:
        known = ", ".join(["auto", "naive", *_KERNELS.get(unit, {})])
        raise InputError(f"--rnn-backend {backend}: unit {unit!r} has none, choose one of {known}")
    reason = kernel.unavailable()
    if reason is not None:
        raise InputError(f"--rnn-backend {backend} cannot run here: {reason}")


def run_sequence(
    cell: RecurrentCell,
    x: Tensor,
    state: State,
    padding_mask: Optional[Tensor] = None,
    reverse: bool = False,
    backend: str = "auto",
) -> Tuple[Tensor, State]:
    """Run a unit over a sequence.

    Args:
        cell: the unit.
        x: inputs, ``(B, T, N_x)``; without steps, T = 0, the state stays as it is.
        state: the state before the first step, batch in dimension 0.
        padding_mask: ``(B, T)``, True at padded steps: they leave the state as it is, and their
            output is zero.
        reverse: start at the last step.
        backend: ``auto`` takes the first registered backend that covers the call; a backend
            named takes that one, or the next that covers the call, and says so once.

    Returns:
        outputs ``(B, T, N)`` and the state after the last step.

    Raises:
        InputError: the backend named does not exist for this unit or cannot run on this machine.
    """
    if backend not in ("auto", "naive"):
        check_backend(cell.unit, backend)
    if x.shape[1] == 0:
        return state[0].new_empty((x.shape[0], 0, cell.hidden_size)), state
    if padding_mask is not None:  # what stands at padded steps counts nowhere, not even as NaN
        x = x.masked_fill(padding_mask.unsqueeze(-1), 0.0)
    if backend != "naive":
        backends = _KERNELS.get(cell.unit, {})
        names = list(backends)
        wanted = names if backend == "auto" else names[names.index(backend) :]
        reasons = []
        for name in wanted:
            kernel = backends[name]
            reason = (
                kernel.unavailable()
                or _unsupported(cell)
                or kernel.unsupported(cell, x, state, padding_mask)
            )
            if reason is None:
                _log_choice(cell.unit, backend, name, reasons)
                return kernel(cell, x, state, padding_mask, reverse)
            reasons.append(f"{name}: {reason}")
        _log_choice(cell.unit, backend, "naive", reasons)
    return run_naive(cell, x, state, padding_mask, reverse)


def _unsupported(cell: RecurrentCell) -> Optional[str]:
    """What no kernel covers."""
    if type(cell).step is not get_cell(cell.unit).step:
        return f"no step of {type(cell).__name__}'s own"
    if in_forward_mode():
        return "no forward-mode derivatives"
    return None


def _log_choice(unit: str, asked: str, taken: str, reasons: List[str]) -> None:
    if asked == taken:
        return
    because = f" ({'; '.join(reasons)})" if reasons else ""
    message = f"unit {unit}: backend {asked} takes {taken}{because}"
    if message not in _LOGGED:
        _LOGGED.add(message)
        logger.info(message)
