"""Norms of hidden states."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NORM_FLOOR = 1e-12
DENORMAL_FLOOR = 1e-30


def time_normalize(h: Tensor, eta: float) -> Tensor:
    """Time normalization (Section 3 of the paper): ``eta h / |h|``, zero for h = 0.

    Args:
        h: hidden states, shape ``(..., N)``.
        eta: the norm that every state gets, positive.

    Returns:
        The states scaled to norm eta, of the dtype of h; the norm is taken in float32 or float64.
    """
    dtype = torch.float64 if h.dtype == torch.float64 else torch.float32
    return (eta * F.normalize(h.to(dtype), dim=-1, eps=NORM_FLOOR)).to(h.dtype)


def flush_denormals(h: Tensor) -> Tensor:
    """Set ``|h| < 1e-30`` to zero: units that ReLU has switched off decay by the product of the
    update gates, and denormal numbers make CPU arithmetic several times slower."""
    if h.dtype in (torch.float32, torch.float64, torch.bfloat16):
        return F.hardshrink(h, DENORMAL_FLOOR)
    return h  # the smallest number of float16 is far above the floor
