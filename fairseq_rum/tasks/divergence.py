"""Stops a training run whose loss or gradients are no longer numbers; it registers nothing."""

import math
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn

from fairseq_rum.cells import RecurrentCell
from fairseq_rum.errors import DivergenceError

LARGEST_LOSS = 1e4
"""In nats for each element of the sample size: 2 to the 14,000th of a chance."""


class StopsWhenDiverging:
    """Mix-in for tasks: ends training at the first loss or gradient that is not finite.

    fairseq ends such a run too, for gradients alone, with a traceback and a second pass that looks
    for the module. Scaled gradients of ``--fp16`` and ``--amp`` are left to fairseq, which skips an
    update where they overflow.
    """

    def train_step(
        self,
        sample: Dict[str, Any],
        model: nn.Module,
        criterion: nn.Module,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> Tuple[torch.Tensor, int, Dict[str, Any]]:
        """fairseq's step.

        Raises:
            DivergenceError: the loss or a gradient is not finite, or the loss is beyond all
                measure.
        """
        result = super().train_step(  # type: ignore[misc]
            sample, model, criterion, optimizer, update_num, ignore_grad
        )
        loss, size = float(result[0].detach()), max(float(result[1]), 1.0)
        problem = None
        if not math.isfinite(loss):
            problem = f"the loss is {loss}"
        elif loss / size > LARGEST_LOSS:
            problem = f"the loss is {loss / size:.3g}"
        elif not ignore_grad and not _is_scaled(optimizer):
            problem = _bad_gradient(model)
        if problem is not None:
            raise DivergenceError(
                f"training diverged at update {update_num + 1}: {problem}; {advice(model)}"
            )
        return result


def advice(model: nn.Module) -> str:
    """What may help, with the units of the model by name."""
    cells = [module for module in model.modules() if isinstance(module, RecurrentCell)]
    units = ", ".join(dict.fromkeys(cell.unit for cell in cells))
    hints = dict.fromkeys(cell.against_divergence for cell in cells if cell.against_divergence)
    tips = [*hints, "lower --lr", "or --clip-norm"]
    return f"the units are {units}: {', '.join(tips)}" if units else ", ".join(tips[-2:])


def _is_scaled(optimizer: Any) -> bool:
    """Whether gradients are scaled; those of ``--amp`` on the CPU, with no effect there, aren't."""
    scaler = getattr(optimizer, "scaler", None)
    return scaler is not None and getattr(scaler, "is_enabled", lambda: True)()


def _bad_gradient(model: nn.Module) -> Optional[str]:
    named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    gradients: List[torch.Tensor] = [gradient.detach() for _, gradient in named]
    if not gradients:
        return None
    norms = torch._foreach_norm(gradients)
    if bool(torch.isfinite(torch.stack([norm.float() for norm in norms]).sum())):
        return None
    for (name, _), norm in zip(named, norms):
        if not bool(torch.isfinite(norm)):
            return f"the gradient of {name} is not finite"
    return None
