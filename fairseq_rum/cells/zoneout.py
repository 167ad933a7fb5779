"""Zoneout: a regularizer that lets some of the units keep their old value."""

from __future__ import annotations

import torch
from torch import Tensor


def zoneout(new: Tensor, old: Tensor, probability: float, training: bool) -> Tensor:
    """Zoneout (Krueger et al. 2017): some of the units keep their old value.

    Args:
        new: the values that a step has computed, any shape.
        old: the values before the step, of the same shape.
        probability: that a unit keeps its old value; 0 returns ``new`` itself.
        training: True draws one mask for every element; False takes the expectation
            ``probability * old + (1 - probability) * new``.

    Returns:
        The values after the step, of the shape of ``new``.
    """
    if probability == 0.0:
        return new
    if training:
        keep = torch.rand(new.shape, device=new.device) < probability
        return torch.where(keep, old.to(new.dtype), new)
    return torch.lerp(new, old.to(new.dtype), probability)
