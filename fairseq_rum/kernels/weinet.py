"""WeiNet in its attention form: backend ``fused`` of the unit ``weinet``.

As in :mod:`fairseq_rum.kernels.fast_weights`, a stretch of up to N steps never forms the memory:

    A_{t-1} y = F_{t-1} A_0 y + sum_{tau < t} F_{t-1} / F_tau stored_tau (key_tau . y)

where F_t is the product of the forget gates up to t. The logarithm of F is what is kept.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_rum.cells.base import RecurrentCell
from fairseq_rum.functional.norms import LAYER_NORM_EPS
from fairseq_rum.kernels.dispatch import register_kernel
from fairseq_rum.kernels.stretch import StretchKernel


class _AttentionStretch(torch.autograd.Function):
    """Steps of one stretch: ``(T, B, 3N + 1)`` of input sums, and the state -> h, what is stored
    and its keys, each ``(B, T, N)``, and log F, ``(B, T)``."""

    @staticmethod
    def forward(
        ctx,  # noqa: ANN001
        projected: Tensor,
        h: Tensor,
        start: Optional[Tensor],
        weight_hh: Tensor,
        weight_memory: Tensor,
        gain: Tensor,
        shift: Tensor,
    ) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        steps, batch, _ = projected.shape
        n = h.shape[-1]
        history = projected.new_empty(batch, steps, n)
        stored, keys = torch.empty_like(history), torch.empty_like(history)
        log_keep = projected.new_zeros(batch, steps)  # log F_t
        weight_t, memory_t = weight_hh.t(), weight_memory.t()
        saved: List[Tuple[Tensor, ...]] = []
        first = h
        for t, fed in enumerate(projected.unbind(0)):
            sums = torch.addmm(fed, h, weight_t)
            slow, gates = sums[:, :n], torch.sigmoid(sums[:, n:-1])
            query = torch.relu(slow)
            log_keep[:, t] = F.logsigmoid(sums[:, -1])
            total, attention, fading = slow, None, None
            if t > 0:
                log_keep[:, t] += log_keep[:, t - 1]
                fading = torch.exp(log_keep[:, t - 1 : t] - log_keep[:, :t]).unsqueeze(1)
                attention = torch.bmm(query.unsqueeze(1), keys[:, :t].transpose(1, 2)).mul_(fading)
                total = torch.baddbmm(slow.unsqueeze(1), attention, stored[:, :t]).squeeze(1)
            if start is not None:
                read = torch.bmm(query.unsqueeze(1), start.transpose(1, 2)).squeeze(1)
                total = total + (read * torch.exp(log_keep[:, t - 1 : t]) if t > 0 else read)
            normalized, mean, rstd = torch.native_layer_norm(
                total, (n,), gain, shift, LAYER_NORM_EPS
            )
            h = torch.relu_(normalized)
            mapped = h @ memory_t
            written = gates * mapped
            history[:, t], stored[:, t], keys[:, t] = h, written[:, :n], written[:, n:]
            saved.append((query, attention, fading, total, mean, rstd, gates, mapped, sums[:, -1:]))
        ctx.save_for_backward(
            projected,
            first,
            start,
            weight_hh,
            weight_memory,
            gain,
            shift,
            history,
            stored,
            keys,
            log_keep,
        )
        ctx.steps = saved
        return history, stored, keys, log_keep

    @staticmethod
    @once_differentiable
    def backward(
        ctx,  # noqa: ANN001
        grad_history: Tensor,
        grad_stored: Tensor,
        grad_keys: Tensor,
        grad_log: Tensor,
    ) -> Tuple[Optional[Tensor], ...]:
        (
            projected,
            first,
            start,
            weight_hh,
            weight_memory,
            gain,
            shift,
            history,
            stored,
            keys,
            log_keep,
        ) = ctx.saved_tensors
        steps, batch, _ = projected.shape
        n = history.shape[-1]
        grad_sums = torch.empty_like(projected)
        grad_mapped = projected.new_empty(steps, batch, 2 * n)
        grad_gain, grad_shift = torch.zeros_like(gain), torch.zeros_like(shift)
        grad_start = None if start is None else torch.zeros_like(start)
        # The gradients of stored_tau and key_tau from all later attentions are sums over the later
        # steps: a row of weights times what they weigh.
        totals, queries = torch.empty_like(history), torch.empty_like(history)
        attentions = projected.new_empty(batch, steps, steps)
        scores = torch.empty_like(attentions)
        # From all later steps: what log F_{t-1} - log F_tau gets, for every tau, and log F alone.
        reach = projected.new_zeros(batch, steps)
        reach_start = grad_log.flip(1).cumsum(1).flip(1)
        for t in range(steps - 1, -1, -1):
            query, attention, fading, total, mean, rstd, gates, mapped, forget = ctx.steps[t]
            d_written = torch.cat((grad_stored[:, t], grad_keys[:, t]), -1)
            if t < steps - 1:
                row = slice(t, t + 1)
                d_written += torch.cat(
                    (
                        torch.bmm(attentions[:, row, t + 1 :], totals[:, t + 1 :]),
                        torch.bmm(scores[:, row, t + 1 :], queries[:, t + 1 :]),
                    ),
                    -1,
                ).squeeze(1)
            d_mapped = d_written * gates
            d_h = torch.addmm(grad_history[:, t], d_mapped, weight_memory)
            if t < steps - 1:
                d_h.addmm_(grad_sums[t + 1], weight_hh)
            d_h = torch.where(history[:, t] > 0, d_h, 0.0)
            d_total, d_gain, d_shift = torch.ops.aten.native_layer_norm_backward(
                d_h, total, (n,), mean, rstd, gain, shift, (True, True, True)
            )
            grad_gain += d_gain
            grad_shift += d_shift
            d_query = None
            d_forget = reach[:, :t].sum(1, keepdim=True) + reach_start[:, t : t + 1]
            if t > 0:
                d_attention = torch.bmm(d_total.unsqueeze(1), stored[:, :t].transpose(1, 2))
                reach[:, :t] += (d_attention * attention).squeeze(1)
                d_score = d_attention.mul_(fading)
                d_query = torch.bmm(d_score, keys[:, :t]).squeeze(1)
                totals[:, t], queries[:, t] = d_total, query
                attentions[:, :t, t], scores[:, :t, t] = attention.squeeze(1), d_score.squeeze(1)
            if start is not None:
                faded = d_total * torch.exp(log_keep[:, t - 1 : t]) if t > 0 else d_total
                grad_start.addcmul_(faded.unsqueeze(2), query.unsqueeze(1))
                through = torch.bmm(faded.unsqueeze(1), start).squeeze(1)
                if t > 0:
                    reach_start[:, :t] += (through * query).sum(1, keepdim=True)
                d_query = through if d_query is None else d_query + through
            d_sums = grad_sums[t]
            d_sums[:, :n] = d_total
            if d_query is not None:
                d_sums[:, :n] += torch.where(query > 0, d_query, 0.0)
            d_sums[:, n:-1] = d_written * mapped * gates * (1 - gates)
            d_sums[:, -1:] = d_forget * torch.sigmoid(-forget)
            grad_mapped[t] = d_mapped
        grad_first = grad_sums[0] @ weight_hh
        previous = torch.cat((first.unsqueeze(0), history[:, :-1].transpose(0, 1)))
        grad_weight = grad_sums.flatten(0, 1).t() @ previous.flatten(0, 1)
        grad_memory = grad_mapped.flatten(0, 1).t() @ history.transpose(0, 1).flatten(0, 1)
        return grad_sums, grad_first, grad_start, grad_weight, grad_memory, grad_gain, grad_shift


class WeiNetKernel(StretchKernel):
    """The attention form."""

    def stretch(
        self, cell: RecurrentCell, projected: Tensor, h: Tensor, memory: Tensor, is_zero: bool
    ) -> Tuple[Tensor, Tensor]:
        """Attention within the stretch, the product with the memory at its end."""
        history, stored, keys, log_keep = _AttentionStretch.apply(
            projected,
            h,
            None if is_zero else memory,
            cell.weight_hh,
            cell.weight_memory,
            cell.norm_gain,
            cell.norm_shift,
        )
        last = log_keep[:, -1:]
        faded = stored * torch.exp(last - log_keep).unsqueeze(-1)
        written = torch.bmm(faded.transpose(1, 2), keys)
        return history, torch.addcmul(written, memory, torch.exp(last).unsqueeze(-1))


register_kernel("weinet", "fused", WeiNetKernel())
