"""Norms of hidden states."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LAYER_NORM_EPS = 1e-3  # the authors' value, for all units
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
    update gates, and denormal numbers make CPU arithmetic several times slower. No gradient comes
    back through such a unit, nor through one that is 0."""
    if h.dtype in (torch.float32, torch.float64, torch.bfloat16):
        return F.hardshrink(h, DENORMAL_FLOOR)
    return h  # the smallest number of float16 is far above the floor


def block_layer_norm(
    x: Tensor, blocks: int, gain: Tensor, shift: Tensor, epsilon: float = LAYER_NORM_EPS
) -> Tensor:
    """Layer normalization (Ba et al. 2016) of each of the equal blocks of the last dimension.

    Args:
        x: ``(..., blocks * N)``, such as the gates of a unit side by side.
        blocks: how many blocks, each with its own mean and variance.
        gain: ``(blocks * N,)``, multiplies the normalized values.
        shift: ``(blocks * N,)``, is added to them.
        epsilon: added to the variance.

    Returns:
        The normalized values, of the shape and dtype of x.
    """
    if blocks == 1:
        return F.layer_norm(x, x.shape[-1:], gain, shift, epsilon)
    split = x.unflatten(-1, (blocks, -1))
    normalized = F.layer_norm(split, split.shape[-1:], eps=epsilon).flatten(-2)
    return torch.addcmul(shift, normalized, gain)
