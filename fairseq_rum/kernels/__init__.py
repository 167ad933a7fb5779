"""A unit's loop over a sequence, in several versions; ``naive`` is the one that says what is right.

:func:`run_sequence` picks the version: every backend of a unit is a :class:`Kernel` registered for
the unit's name, in order of preference. ``naive`` runs every unit.
"""

# They register their kernels.
from fairseq_rum.kernels import fast_weights, rum, torch_rnn, weinet  # noqa: F401
from fairseq_rum.kernels.dispatch import (
    BACKENDS,
    Kernel,
    backend_table,
    check_backend,
    register_kernel,
    run_sequence,
)

__all__ = [
    "BACKENDS",
    "Kernel",
    "backend_table",
    "check_backend",
    "register_kernel",
    "run_sequence",
]
