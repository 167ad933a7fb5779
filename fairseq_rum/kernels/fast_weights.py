"""Fast weights in their attention form: backend ``fused`` of the unit ``fast_weights``.

Within a stretch of up to N steps the fast weights are never formed. What they would be multiplied
to is an attention over the hidden states of the stretch, plus the product with the matrix that the
stretch started with, if that isn't zero:

    A_{t-1} y = lambda^(t-1) A_0 y + eta sum_{tau < t} lambda^(t-1-tau) h_tau (h_tau . y)
"""

from __future__ import annotations

from typing import List, Optional, Tuple

import torch
from torch import Tensor

from fairseq_rum.cells.base import RecurrentCell
from fairseq_rum.functional.first_order import first_order_only
from fairseq_rum.functional.norms import LAYER_NORM_EPS
from fairseq_rum.kernels.dispatch import register_kernel
from fairseq_rum.kernels.stretch import StretchKernel


class _AttentionStretch(torch.autograd.Function):
    """Steps of one stretch: ``(T, B, N)`` of W_x x + b, and the state -> h ``(T, B, N)``.

    What the attention reads has the batch in dimension 0, everything else the time.
    """

    @staticmethod
    def forward(
        ctx,  # noqa: ANN001
        projected: Tensor,
        h: Tensor,
        start: Optional[Tensor],
        weight_hh: Tensor,
        gain: Tensor,
        shift: Tensor,
        decay: float,
        eta: float,
        inner_steps: int,
    ) -> Tensor:
        steps, batch, n = projected.shape
        history = torch.empty_like(projected)
        past = projected.new_empty(batch, steps, n)
        past_t = past.transpose(1, 2)
        powers = eta * _powers(decay, steps, projected)
        weight_t = weight_hh.t()
        saved: List[Tuple[Optional[Tensor], ...]] = []
        first = h
        for t, fed in enumerate(projected.unbind(0)):
            slow = torch.addmm(fed, h, weight_t)
            h = torch.relu(slow)
            for _ in range(inner_steps):
                total, attention = slow, None
                if t > 0:
                    attention = torch.bmm(h.unsqueeze(1), past_t[..., :t])
                    attention.mul_(powers[steps - t :])
                    total = torch.baddbmm(slow.unsqueeze(1), attention, past[:, :t]).squeeze(1)
                if start is not None:
                    total = torch.baddbmm(
                        total.unsqueeze(1), h.unsqueeze(1), start.transpose(1, 2), alpha=decay**t
                    ).squeeze(1)
                normalized, mean, rstd = torch.native_layer_norm(
                    total, (n,), gain, shift, LAYER_NORM_EPS
                )
                saved.append((h, attention, total, mean, rstd))
                h = torch.relu_(normalized)
            history[t], past[:, t] = h, h
        ctx.save_for_backward(first, start, weight_hh, gain, shift, history, past, powers)
        ctx.steps = saved
        ctx.settings = (decay, inner_steps)
        return history

    @staticmethod
    @first_order_only("the backend naive")
    def backward(ctx, grad_history: Tensor) -> Tuple[Optional[Tensor], ...]:  # noqa: ANN001
        first, start, weight_hh, gain, shift, history, past, powers = ctx.saved_tensors
        decay, inner_steps = ctx.settings
        steps, batch, n = history.shape
        past_t = past.transpose(1, 2)
        grad_slow = torch.empty_like(history)
        grad_gain, grad_shift = torch.zeros_like(gain), torch.zeros_like(shift)
        grad_start = None if start is None else torch.zeros_like(start)
        # h_tau is the value and the key of every later attention. Its gradient from there is, for
        # both, a sum over the later inner steps: one product of a row of `shares` with `parts`.
        parts = history.new_empty(batch, steps * inner_steps * 2, n)
        shares = history.new_empty(batch, steps, steps * inner_steps * 2)
        for t in range(steps - 1, -1, -1):
            grad, result, slow_sum = grad_history[t], history[t], None
            if t < steps - 1:
                later = 2 * inner_steps * (t + 1)
                attended = torch.bmm(shares[:, t : t + 1, later:], parts[:, later:]).squeeze(1)
                grad = attended.addmm_(grad_slow[t + 1], weight_hh).add_(grad)
            for s in range(inner_steps - 1, -1, -1):
                h, attention, total, mean, rstd = ctx.steps[t * inner_steps + s]
                if grad is None:  # the first step of all, from no memory
                    result = h
                    continue
                grad = torch.ops.aten.threshold_backward(grad, result, 0)
                grad, d_gain, d_shift = torch.ops.aten.native_layer_norm_backward(
                    grad, total, (n,), mean, rstd, gain, shift, (True, True, True)
                )
                grad_gain += d_gain
                grad_shift += d_shift
                slow_sum = grad if slow_sum is None else slow_sum + grad
                result, back = h, None
                if t > 0:
                    grad_attention = torch.bmm(grad.unsqueeze(1), past_t[..., :t])
                    grad_attention.mul_(powers[steps - t :])
                    back = torch.bmm(grad_attention, past[:, :t]).squeeze(1)
                    place = 2 * (t * inner_steps + s)
                    parts[:, place], parts[:, place + 1] = grad, h
                    shares[:, :t, place] = attention.squeeze(1)
                    shares[:, :t, place + 1] = grad_attention.squeeze(1)
                if start is not None:
                    faded = grad * decay**t
                    grad_start.addcmul_(faded.unsqueeze(2), h.unsqueeze(1))
                    through = torch.bmm(faded.unsqueeze(1), start).squeeze(1)
                    back = through if back is None else back + through
                grad = back
            grad_slow[t] = slow_sum
            if grad is not None:
                grad_slow[t] += torch.ops.aten.threshold_backward(grad, result, 0)
        grad_first = grad_slow[0] @ weight_hh
        previous = torch.cat((first.unsqueeze(0), history[:-1]))
        grad_weight = grad_slow.flatten(0, 1).t() @ previous.flatten(0, 1)
        return (
            grad_slow,
            grad_first,
            grad_start,
            grad_weight,
            grad_gain,
            grad_shift,
            None,
            None,
            None,
        )


def _powers(decay: float, steps: int, like: Tensor) -> Tensor:
    """decay^(steps - 1), ..., decay, 1."""
    exponents = torch.arange(steps - 1, -1, -1, device=like.device)
    return torch.pow(decay, exponents.double()).to(like.dtype)


class FastWeightsKernel(StretchKernel):
    """The attention form."""

    def stretch(
        self, cell: RecurrentCell, projected: Tensor, h: Tensor, memory: Tensor, is_zero: bool
    ) -> Tuple[Tensor, Tensor]:
        """Attention within the stretch, the product with the matrix at its end."""
        history = _AttentionStretch.apply(
            projected,
            h,
            None if is_zero else memory,
            cell.weight_hh,
            cell.norm_gain,
            cell.norm_shift,
            cell.decay,
            cell.eta,
            cell.inner_steps,
        )
        steps = len(projected)
        past = history.transpose(0, 1)
        faded = past * (cell.eta * _powers(cell.decay, steps, history).unsqueeze(-1))
        memory = torch.baddbmm(memory, faded.transpose(1, 2), past, beta=cell.decay**steps)
        return history, memory


register_kernel("fast_weights", "fused", FastWeightsKernel())
