"""Attention of a question to the sentences of a story."""

from __future__ import annotations

from typing import Tuple

import torch
from torch import Tensor, nn

from fairseq_rum.functional import rotate

ATTENTIONS = ("dot", "general", "rotation")


class SentenceAttention(nn.Module):
    r"""What a question's state q reads from the states :math:`h_s` of the sentences before it.

    .. math::
        \alpha_s = \mathrm{softmax}_s(q \cdot h_s), \quad c = \sum_s \alpha_s h_s

    ========  ==================================  ==============================================
    kind      score of a sentence                 result
    ========  ==================================  ==============================================
    dot       :math:`q \cdot h_s`                 c and q, one after the other: 2N
    general   :math:`q \cdot W_a h_s` (Luong)     c and q: 2N
    rotation  :math:`q \cdot h_s`                 Rotation(e, c) q, with e = W x + b: N
    ========  ==================================  ==============================================

    In ``rotation`` x is the embedded question: the context turns the question's state in the plane
    of the two, the "phase-inspired attention" that RUM's paper proposes as future work. A question
    without any sentence has the context zero, and keeps its state there.

    Args:
        kind: one of :data:`ATTENTIONS`.
        hidden_size: N.
        embed_dim: features of x.

    Raises:
        ValueError: there is no such kind.
    """

    def __init__(self, kind: str, hidden_size: int, embed_dim: int) -> None:
        super().__init__()
        if kind not in ATTENTIONS:
            raise ValueError(f"unknown attention {kind!r}, choose one of {', '.join(ATTENTIONS)}")
        self.kind = kind
        self.output_size = hidden_size if kind == "rotation" else 2 * hidden_size
        if kind == "general":
            self.weight = nn.Parameter(torch.eye(hidden_size))
        elif kind == "rotation":
            self.embed_question = nn.Linear(embed_dim, hidden_size)

    def forward(
        self, query: Tensor, states: Tensor, is_sentence: Tensor, question: Tensor
    ) -> Tuple[Tensor, Tensor]:
        """Read.

        Args:
            query: q, ``(B, N)``.
            states: h, ``(B, S, N)``.
            is_sentence: ``(B, S)``, False where there is none.
            question: x, ``(B, embed_dim)``.

        Returns:
            the result, ``(B, output_size)``, and the weights, ``(B, S)``, zero where there is no
            sentence.
        """
        key = query @ self.weight if self.kind == "general" else query
        scores = (states @ key.unsqueeze(-1)).squeeze(-1)
        # Not -inf, whose softmax is nan for a row without a sentence; those weights are zero.
        scores = scores.masked_fill(~is_sentence, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1) * is_sentence
        context = (weights.unsqueeze(1) @ states).squeeze(1)
        if self.kind == "rotation":
            return rotate(self.embed_question(question), context, query), weights
        return torch.cat((context, query), dim=-1), weights
