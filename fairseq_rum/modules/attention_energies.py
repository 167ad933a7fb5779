"""Energies of additive attention, plain and in a version for long sources.

The plain one keeps an array of source length x features for every step of a decoder: 13 MB for 16
sources of 400 words and 512 features, which is most of the memory of training. The other one keeps
none, computes it again backwards, and works on pieces that fit a CPU's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from fairseq_rum.functional.first_order import first_order_only

_PIECE = 1 << 18
"""Elements worked on at a time on the CPU, 1 MiB in float32."""


def naive_energies(
    features: Tensor,
    query: Tensor,
    v: Tensor,
    w_c: Optional[Tensor] = None,
    coverage: Optional[Tensor] = None,
) -> Tensor:
    r"""e_i = v . tanh(f_i + q + w_c c_i), as it is written.

    Args:
        features: f, ``(B, S, A)``.
        query: q, ``(B, A)``.
        v, w_c: ``(A,)``; without w_c there is no coverage.
        coverage: c, ``(B, S)``.

    Returns:
        e, ``(B, S)``.
    """
    sums = features + query.unsqueeze(1)
    if w_c is not None:
        sums = sums + coverage.unsqueeze(-1) * w_c
    return torch.tanh(sums) @ v


def energies(
    features: Tensor,
    query: Tensor,
    v: Tensor,
    w_c: Optional[Tensor] = None,
    coverage: Optional[Tensor] = None,
) -> Tensor:
    """:func:`naive_energies`, all of one dtype, differentiable once."""
    return _Energies.apply(features, query, v, w_c, coverage)


class _Energies(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        features: Tensor,
        query: Tensor,
        v: Tensor,
        w_c: Optional[Tensor],
        coverage: Optional[Tensor],
    ) -> Tensor:
        ctx.save_for_backward(features, query, v, w_c, coverage)
        result = features.new_empty(features.shape[:2])
        for rows in _pieces(features):
            torch.matmul(_tanh(features, query, w_c, coverage, rows), v, out=result[rows])
        return result

    @staticmethod
    @first_order_only("naive_energies")
    def backward(  # type: ignore[override]
        ctx: Any, grad: Tensor
    ) -> Tuple[Optional[Tensor], ...]:
        features, query, v, w_c, coverage = ctx.saved_tensors
        size = v.shape[0]
        d_features, d_query, d_v = map(torch.empty_like, (features, query, v))
        d_v.zero_()
        d_w_c = d_coverage = None
        if w_c is not None:
            d_w_c, d_coverage = torch.zeros_like(w_c), torch.empty_like(coverage)
        for rows in _pieces(features):
            g = grad[rows]
            d = _tanh(features, query, w_c, coverage, rows, out=d_features[rows])
            d_v += g.reshape(-1) @ d.reshape(-1, size)
            d.square_().neg_().add_(1.0).mul_(v).mul_(g.unsqueeze(-1))
            torch.sum(d, dim=1, out=d_query[rows])
            if w_c is not None:
                torch.matmul(d, w_c, out=d_coverage[rows])
                d_w_c += coverage[rows].reshape(-1) @ d.reshape(-1, size)
        return d_features, d_query, d_v, d_w_c, d_coverage


def _tanh(
    features: Tensor,
    query: Tensor,
    w_c: Optional[Tensor],
    coverage: Optional[Tensor],
    rows: slice,
    out: Optional[Tensor] = None,
) -> Tensor:
    """The tanh of some rows."""
    # torch's tanh takes 2.5 times as long on a CPU as tanh(x) = 2 sigmoid(2 x) - 1.
    factor = 2.0 if features.device.type == "cpu" else 1.0
    scaled = (factor * query[rows]).unsqueeze(1)
    sums = torch.add(scaled, features[rows], alpha=factor, out=out)
    if w_c is not None:
        sums.addcmul_(coverage[rows].unsqueeze(-1), w_c, value=factor)
    return sums.tanh_() if factor == 1.0 else sums.sigmoid_().mul_(2.0).sub_(1.0)


def _pieces(features: Tensor) -> Iterator[slice]:
    """Some rows of the batch at a time on the CPU, all of them elsewhere."""
    batch, places, size = features.shape
    step = batch
    if features.device.type == "cpu":
        step = max(1, _PIECE // max(1, places * size))
    return (slice(start, start + step) for start in range(0, batch, max(1, step)))
