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

from fairseq_rum.cells.base import RecurrentCell
from fairseq_rum.functional.first_order import first_order_only
from fairseq_rum.functional.norms import LAYER_NORM_EPS
from fairseq_rum.kernels.dispatch import register_kernel
from fairseq_rum.kernels.stretch import StretchKernel


class _AttentionStretch(torch.autograd.Function):
    """Steps of one stretch: ``(T, B, 3N + 1)`` of input sums, and the state -> h ``(T, B, N)``,
    what is stored and its keys side by side ``(B, T, 2N)``, and log F ``(B, T)``.

    What the attention reads has the batch in dimension 0, everything else the time.
    """

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
    ) -> Tuple[Tensor, Tensor, Tensor]:
        steps, batch, width = projected.shape
        n = h.shape[-1]
        sums = torch.empty_like(projected)
        queries, totals, history = (projected.new_empty(steps, batch, n) for _ in range(3))
        mapped, gates = (projected.new_empty(steps, batch, 2 * n) for _ in range(2))
        written = projected.new_empty(batch, steps, 2 * n)
        log_keep = projected.new_empty(batch, steps)
        weight_t, memory_t = weight_hh.t(), weight_memory.t()
        stored, keys_t = written[..., :n], written[..., n:].transpose(1, 2)
        statistics: List[Tuple[Tensor, Tensor]] = []
        attentions: List[Tuple[Optional[Tensor], Optional[Tensor]]] = []
        first, kept = h, None
        for t in range(steps):
            torch.addmm(projected[t], h, weight_t, out=sums[t])
            total = sums[t, :, :n]
            query = torch.relu(total)
            fading = attention = None
            if t > 0:
                fading = torch.exp(kept - log_keep[:, :t]).unsqueeze(1)
                attention = torch.bmm(query.unsqueeze(1), keys_t[..., :t]).mul_(fading)
                total = torch.baddbmm(total.unsqueeze(1), attention, stored[:, :t]).squeeze(1)
            if start is not None:
                read = torch.bmm(query.unsqueeze(1), start.transpose(1, 2)).squeeze(1)
                total = total + (read if kept is None else read * torch.exp(kept))
            normalized, mean, rstd = torch.native_layer_norm(
                total, (n,), gain, shift, LAYER_NORM_EPS
            )
            h = torch.relu_(normalized)
            torch.mm(h, memory_t, out=mapped[t])
            torch.sigmoid(sums[t, :, n:-1], out=gates[t])
            torch.mul(gates[t], mapped[t], out=written[:, t])
            forgotten = F.logsigmoid(sums[t, :, -1:])
            kept = forgotten if kept is None else kept + forgotten
            log_keep[:, t : t + 1] = kept
            queries[t], totals[t], history[t] = query, total, h
            statistics.append((mean, rstd))
            attentions.append((attention, fading))
        ctx.save_for_backward(
            first,
            start,
            weight_hh,
            weight_memory,
            gain,
            shift,
            sums,
            queries,
            totals,
            history,
            mapped,
            gates,
            written,
            log_keep,
        )
        ctx.statistics, ctx.attentions = statistics, attentions
        return history, written, log_keep

    @staticmethod
    @first_order_only("the backend naive")
    def backward(
        ctx,  # noqa: ANN001
        grad_history: Tensor,
        grad_written: Tensor,
        grad_log: Tensor,
    ) -> Tuple[Optional[Tensor], ...]:
        (
            first,
            start,
            weight_hh,
            weight_memory,
            gain,
            shift,
            sums,
            queries,
            totals,
            history,
            mapped,
            gates,
            written,
            log_keep,
        ) = ctx.saved_tensors
        steps, batch, n = history.shape
        stored_t, keys = written[..., :n].transpose(1, 2), written[..., n:]
        grad_sums = torch.empty_like(sums)
        grad_mapped = torch.empty_like(mapped)
        # The gradients of stored_tau and key_tau from all later attentions are sums over the later
        # steps: a row of weights times what they weigh.
        grad_totals, queries_first = (history.new_empty(batch, steps, n) for _ in range(2))
        weights, scores = (history.new_empty(batch, steps, steps) for _ in range(2))
        # From all later steps: what log F_{t-1} - log F_tau gets, for every tau, and log F alone.
        reach = history.new_zeros(batch, steps)
        reach_start = grad_log.flip(1).cumsum(1).flip(1)
        grad_start = None if start is None else torch.zeros_like(start)
        by_gate = mapped * gates * (1 - gates)
        for t in range(steps - 1, -1, -1):
            attention, fading = ctx.attentions[t]
            d_written = grad_written[:, t]
            d_h = grad_history[t]
            if t < steps - 1:
                later = torch.cat(
                    (
                        torch.bmm(weights[:, t : t + 1, t + 1 :], grad_totals[:, t + 1 :]),
                        torch.bmm(scores[:, t : t + 1, t + 1 :], queries_first[:, t + 1 :]),
                    ),
                    -1,
                ).squeeze(1)
                d_written = later.add_(d_written)
                d_h = torch.addmm(d_h, grad_sums[t + 1], weight_hh)
            d_mapped = torch.mul(d_written, gates[t], out=grad_mapped[t])
            d_h = torch.addmm(d_h, d_mapped, weight_memory)
            d_h = torch.ops.aten.threshold_backward(d_h, history[t], 0)
            d_total, d_gain, d_shift = torch.ops.aten.native_layer_norm_backward(
                d_h, totals[t], (n,), *ctx.statistics[t], gain, shift, (True, True, True)
            )
            if t == steps - 1:
                grad_gain, grad_shift = d_gain, d_shift
            else:
                grad_gain += d_gain
                grad_shift += d_shift
            d_sums = grad_sums[t]
            d_sums[:, :n] = d_total
            torch.mul(d_written, by_gate[t], out=d_sums[:, n:-1])
            d_sums[:, -1:] = reach[:, :t].sum(1, keepdim=True) + reach_start[:, t : t + 1]
            query, d_query = queries[t], None
            if t > 0:
                d_attention = torch.bmm(d_total.unsqueeze(1), stored_t[..., :t])
                reach[:, :t].addcmul_(d_attention.squeeze(1), attention.squeeze(1))
                d_score = d_attention.mul_(fading)
                d_query = torch.bmm(d_score, keys[:, :t]).squeeze(1)
                grad_totals[:, t], queries_first[:, t] = d_total, query
                weights[:, :t, t], scores[:, :t, t] = attention.squeeze(1), d_score.squeeze(1)
            if start is not None:
                faded = d_total * torch.exp(log_keep[:, t - 1 : t]) if t > 0 else d_total
                grad_start.addcmul_(faded.unsqueeze(2), query.unsqueeze(1))
                through = torch.bmm(faded.unsqueeze(1), start).squeeze(1)
                if t > 0:
                    reach_start[:, :t] += (through * query).sum(1, keepdim=True)
                d_query = through if d_query is None else d_query + through
            if d_query is not None:
                d_sums[:, :n] += torch.ops.aten.threshold_backward(d_query, query, 0)
            # From log F to its gate, whose sum has the derivative sigma(-sum).
            d_sums[:, -1:] *= torch.sigmoid(-sums[t, :, -1:])
        grad_first = grad_sums[0] @ weight_hh
        previous = torch.cat((first.unsqueeze(0), history[:-1]))
        grad_weight = grad_sums.flatten(0, 1).t() @ previous.flatten(0, 1)
        grad_memory = grad_mapped.flatten(0, 1).t() @ history.flatten(0, 1)
        return grad_sums, grad_first, grad_start, grad_weight, grad_memory, grad_gain, grad_shift


class WeiNetKernel(StretchKernel):
    """The attention form."""

    def stretch(
        self, cell: RecurrentCell, projected: Tensor, h: Tensor, memory: Tensor, is_zero: bool
    ) -> Tuple[Tensor, Tensor]:
        """Attention within the stretch, the product with the memory at its end."""
        n = cell.hidden_size
        history, written, log_keep = _AttentionStretch.apply(
            projected,
            h,
            None if is_zero else memory,
            cell.weight_hh,
            cell.weight_memory,
            cell.norm_gain,
            cell.norm_shift,
        )
        last = log_keep[:, -1:]
        faded = written[..., :n] * torch.exp(last - log_keep).unsqueeze(-1)
        memory = memory * torch.exp(last).unsqueeze(-1)
        return history, torch.baddbmm(memory, faded.transpose(1, 2), written[..., n:])


register_kernel("weinet", "fused", WeiNetKernel())
