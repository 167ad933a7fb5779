"""Attention of the pointer-generator network, with or without coverage."""

from __future__ import annotations

import math
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.modules.attention_energies import energies


class CoverageAttention(nn.Module):
    r"""Attention of See et al. 2017, their equations 1 to 3 and, with coverage, 10 and 11.

    .. math::
        e_i^t &= v \cdot \tanh(W_h h_i + W_s s_t + w_c c_i^t + b)\\
        a^t &= \mathrm{softmax}(e^t), \quad h_t^* = \sum_i a_i^t h_i\\
        c^t &= \sum_{t' < t} a^{t'}

    :math:`W_h h_i` is the caller's, who computes it once for all steps.

    Args:
        features: rows of :math:`W_h`, and the size of v, w_c and b.
        query_size: features of s.
        coverage: with the term :math:`w_c c_i^t`.

    Initialized as the original code is: uniform by Glorot & Bengio 2010, b zero.
    """

    def __init__(self, features: int, query_size: int, coverage: bool = False) -> None:
        super().__init__()
        self.project_query = nn.Linear(query_size, features)
        self.v = nn.Parameter(torch.empty(features))
        self.register_parameter("w_c", nn.Parameter(torch.empty(features)) if coverage else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot's bounds, which for v and w_c are those of TensorFlow's shapes (A,) and (1, A)."""
        nn.init.xavier_uniform_(self.project_query.weight)
        nn.init.zeros_(self.project_query.bias)
        size = self.v.numel()
        nn.init.uniform_(self.v, -math.sqrt(3 / size), math.sqrt(3 / size))
        if self.w_c is not None:
            nn.init.uniform_(self.w_c, -math.sqrt(6 / (1 + size)), math.sqrt(6 / (1 + size)))

    def forward(
        self,
        query: Tensor,
        memory: Tensor,
        memory_features: Tensor,
        padding_mask: Optional[Tensor] = None,
        coverage: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor]:
        """One step.

        Args:
            query: s, ``(B, query_size)``.
            memory: h, ``(B, S, M)``.
            memory_features: W_h h, ``(B, S, features)``.
            padding_mask: ``(B, S)``, True where there is nothing to attend to.
            coverage: c, ``(B, S)``; needed with coverage, and without effect otherwise.

        Returns:
            the context ``(B, M)``, and the attention ``(B, S)``, at least in float32. Both are
            zero for a row that is padded throughout.
        """
        parts = (
            self.project_query(query),
            self.v,
            self.w_c,
            None if self.w_c is None else coverage,
        )
        dtype = memory_features.dtype
        e = energies(memory_features, *(None if part is None else part.to(dtype) for part in parts))
        e = e.to(torch.promote_types(dtype, torch.float32))
        if padding_mask is None:
            attention = F.softmax(e, dim=-1)
        else:
            # A row without any place has the softmax nan; it ends here, and its gradient too.
            attention = F.softmax(e.masked_fill(padding_mask, -math.inf), dim=-1)
            attention = attention.masked_fill(padding_mask, 0.0)
        context = torch.bmm(attention.to(memory.dtype).unsqueeze(1), memory).squeeze(1)
        return context, attention


def coverage_before(attention: Tensor) -> Tensor:
    """The coverage that each step finds, the sum of earlier attentions: ``(B, T, S)`` both."""
    return attention.cumsum(1) - attention


def coverage_penalty(attention: Tensor) -> Tensor:
    r"""See et al.'s coverage loss of every step, :math:`\sum_i \min(a_i^t, c_i^t)`: ``(B, T)``.

    Args:
        attention: of all steps, ``(B, T, S)``.
    """
    return torch.minimum(attention, coverage_before(attention)).sum(-1)
