"""Backward passes that are written by hand and cannot be differentiated again."""

from __future__ import annotations

import functools
from typing import Any, Callable, NoReturn, Optional, Tuple

import torch
from torch import Tensor

Gradients = Tuple[Optional[Tensor], ...]


class _Refuse(torch.autograd.Function):
    """The identity; differentiating it raises."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, marker: Tensor, instead: str, *gradients: Optional[Tensor]
    ) -> Gradients:
        ctx.instead = instead
        return tuple(None if g is None else g.view_as(g) for g in gradients)

    @staticmethod
    def backward(ctx: Any, *_: Optional[Tensor]) -> NoReturn:  # type: ignore[override]
        raise RuntimeError(
            f"this has first derivatives only: second derivatives need {ctx.instead}"
        )


def first_order_only(instead: str) -> Callable[[Callable[..., Gradients]], Callable]:
    """Decorator of an autograd function's ``backward`` whose result has no derivatives.

    torch's ``once_differentiable`` says so only where the incoming gradient needs a gradient, which
    it does not in ``autograd.grad(loss, x, create_graph=True)``: a gradient penalty would be
    left out silently.

    Args:
        instead: what can be differentiated twice, for the message.

    Returns:
        the decorator. Differentiating the gradients raises RuntimeError.
    """

    def decorate(backward: Callable[..., Gradients]) -> Callable:
        @functools.wraps(backward)
        def guarded(ctx: Any, *incoming: Optional[Tensor]) -> Gradients:
            # The forward pass chose its dtypes; autocast that is on now would change them again.
            kind = next((g.device.type for g in incoming if g is not None), "cpu")
            with torch.no_grad(), torch.autocast(kind, enabled=False):
                gradients = backward(ctx, *incoming)
            if not torch.is_grad_enabled():  # no create_graph
                return gradients
            return _Refuse.apply(torch.empty(0, requires_grad=True), instead, *gradients)

        return guarded

    return decorate
