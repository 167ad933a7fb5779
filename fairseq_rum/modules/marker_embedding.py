"""Embeddings of a vocabulary that the ids of further, unknown words follow."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairseq_rum.modules.initialization import truncated_normal_


class MarkerEmbedding(nn.Embedding):
    """Embeddings in which every id beyond the vocabulary has the vector of ``<unk>``.

    As in See et al. 2017: what an unknown word is, only copying knows.

    Args:
        vocabulary: V; ids from there on stand for unknown words.
        embed_dim: features.
        padding_idx: the id of padding, whose vector stays zero.
        unk_idx: the id of ``<unk>``.

    Initialized as the original code: normal with standard deviation 1e-4.
    """

    def __init__(self, vocabulary: int, embed_dim: int, padding_idx: int, unk_idx: int) -> None:
        self.unk_idx = unk_idx
        super().__init__(vocabulary, embed_dim, padding_idx)

    def reset_parameters(self) -> None:
        """As the class says."""
        truncated_normal_(self.weight)
        with torch.no_grad():
            self.weight[self.padding_idx].zero_()

    def forward(self, input: Tensor) -> Tensor:
        """Ids of any shape -> vectors ``(..., embed_dim)``."""
        return super().forward(input.masked_fill(input >= self.num_embeddings, self.unk_idx))
