"""What differs between versions of fairseq, torch, numpy and Python, in one place."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import types
import warnings
from collections import defaultdict
from importlib import metadata
from typing import Any, List, Optional, Tuple

import numpy as np
import torch

#: The distributions that provide the import package ``fairseq``, with the version that is known.
KNOWN_FAIRSEQ = {"ve-fairseq": "0.12.3", "fairseq-fixed": "0.12.3.1", "fairseq": "0.12.2"}
INSTALL_HINT = 'pip install "fairseq-rum[fairseq]"'

_warned = False


def fairseq_installed() -> bool:
    """Whether there is a fairseq to import; nothing is imported to find out."""
    # A folder that happens to be called fairseq is a namespace package, which has no file.
    if sys.modules.get("fairseq") is not None:
        return getattr(sys.modules["fairseq"], "__file__", None) is not None
    spec = importlib.util.find_spec("fairseq")
    return spec is not None and spec.origin is not None


def installed_fairseq() -> List[Tuple[str, str]]:
    """Name and version of each installed distribution that provides ``fairseq``: one, normally."""
    found = []
    for name in KNOWN_FAIRSEQ:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return found


def require_fairseq() -> types.ModuleType:
    """Import fairseq, and warn once if it is not one of :data:`KNOWN_FAIRSEQ`.

    Raises:
        ImportError: fairseq is missing, or is there and cannot be imported; the message says which,
            and what to install.
    """
    if not fairseq_installed():
        raise ImportError(f"fairseq is not installed: {INSTALL_HINT}", name="fairseq")
    try:
        fairseq = importlib.import_module("fairseq")
    except Exception as error:  # fairseq 0.12.2 on Python >= 3.11 raises ValueError
        raise ImportError(_why_not_importable(error), name="fairseq") from error
    _warn_if_unknown()
    return fairseq


def _describe(found: List[Tuple[str, str]]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found)


def _why_not_importable(error: Exception) -> str:
    found = installed_fairseq()
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    message = (
        f"{_describe(found) or 'fairseq'} is installed but cannot be imported on {python} "
        f"({type(error).__name__}: {error}): "
    )
    if isinstance(error, ValueError) and "mutable default" in str(error):
        message += "it has mutable dataclass defaults, which Python >= 3.11 refuses; "
    if found:
        message += f"pip uninstall {' '.join(name for name, _ in found)}, then "
    return message + INSTALL_HINT


def _warn_if_unknown() -> None:
    global _warned
    found = installed_fairseq()
    if _warned or (len(found) == 1 and found[0] in KNOWN_FAIRSEQ.items()):
        return
    _warned = True
    if len(found) > 1:
        problem = f"{_describe(found)} overwrite each other's files, keep one"
    else:
        problem = f"{_describe(found) or 'a fairseq without package metadata'} was not tried"
    warnings.warn(
        f"fairseq_rum: {problem}; known to work: {_describe(list(KNOWN_FAIRSEQ.items()))}",
        stacklevel=3,
    )


def allow_checkpoint_globals() -> None:
    """Let ``torch.load(weights_only=True)`` read what fairseq itself puts into checkpoints.

    These are ``argparse.Namespace`` (the legacy models and optimizers) and numpy numbers and arrays
    (metrics). All else stays refused. torch < 2.6 loads without that restriction by default and
    has no names for globals that were renamed, as numpy's were.
    """
    if _torch_version() < (2, 6) or not hasattr(torch.serialization, "add_safe_globals"):
        return
    try:
        from numpy._core import multiarray
    except ImportError:  # numpy < 1.26
        from numpy.core import multiarray  # type: ignore[no-redef]
    allowed: List[Any] = [argparse.Namespace, np.ndarray, np.dtype]
    allowed += [type(np.dtype(name)) for name in ("int64", "int32", "float32", "float64")]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        for name in ("_reconstruct", "scalar"):
            allowed.append((getattr(multiarray, name), f"{module}.{name}"))
    torch.serialization.add_safe_globals(allowed)


def _torch_version() -> Tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def is_tracing() -> bool:
    """Whether ``torch.compile`` or ``torch.jit.trace`` is recording what calls this.

    torch < 2.3 cannot say so of the former, which is no.
    """
    compiling = hasattr(torch.compiler, "is_compiling") and torch.compiler.is_compiling()
    return compiling or torch._C._get_tracing_state() is not None


def in_forward_mode() -> bool:
    """Whether derivatives are taken in forward mode (``torch.autograd.forward_ad``)."""
    return torch.autograd.forward_ad._current_level >= 0


def autocast_dtype(device: torch.device) -> Optional[torch.dtype]:
    """The dtype of matrix products under ``torch.autocast`` on this device; None outside of it."""
    kind = device.type
    if kind not in ("cpu", "cuda"):
        return None
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if kind == "cpu":  # torch < 2.4 has functions of their own for each
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def restore_numpy_long() -> None:
    """Give numpy >= 2 back ``np.compat.long``, Python's int, which fairseq's block modes use."""
    if not hasattr(np, "compat"):
        np.compat = types.ModuleType("numpy.compat")
    if not hasattr(np.compat, "long"):
        np.compat.long = int


class _Counts(defaultdict):
    """Counts by name that keep no zero."""

    def __setitem__(self, name: str, count: int) -> None:
        if count:
            super().__setitem__(name, count)
        else:
            self.pop(name, None)


def forget_ended_aggregators() -> None:
    """Let ``fairseq.logging.metrics`` drop the names of aggregators that have ended.

    Its trainer opens one at each update, under a name that is never used again, and the count of
    its users, 0 from then on, would stay: about 200 bytes an update.
    """
    metrics = importlib.import_module("fairseq.logging.metrics")
    counts = getattr(metrics, "_active_aggregators_cnt", None)
    if isinstance(counts, defaultdict) and not isinstance(counts, _Counts):
        metrics._active_aggregators_cnt = _Counts(int, counts)


def apply() -> None:
    """All that fairseq needs before the plugin is used; calling it again changes nothing."""
    allow_checkpoint_globals()
    restore_numpy_long()
    forget_ended_aggregators()
