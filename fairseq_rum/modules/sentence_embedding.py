"""Words to vectors, and sentences to one vector each."""

from __future__ import annotations

from typing import Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

SENTENCE_EMBEDDINGS = ("mean", "sum", "position")


def embed_sentences(
    tokens: Tensor, weight: Tensor, pad: int, eos: int, how: str = "mean"
) -> Tuple[Tensor, Tensor]:
    r"""A vector for each sentence, made of the embeddings :math:`w_j` of its J words.

    ``mean``: :math:`\sum_j w_j / J`, as RUM's paper says; ``sum``: :math:`\sum_j w_j`, as its
    authors' code does; ``position``: :math:`\sum_j l_j \odot w_j` with
    :math:`l_{jk} = (1 - j/J) - (k/d)(1 - 2j/J)`, j and k from 1, the position encoding of
    Sukhbaatar et al. (End-To-End Memory Networks, 2015, Section 4.1), which tells orders of words
    apart.

    Args:
        tokens: ``(B, T)``, sentences one after the other, each ended by ``eos``, which is no word.
        weight: the embeddings, ``(words, d)``.
        pad: the symbol of padding.
        eos: the symbol at the end of each sentence.
        how: one of :data:`SENTENCE_EMBEDDINGS`.

    Returns:
        ``(B, S, d)``, zero for what is no sentence, and the number of sentences of each row,
        ``(B,)``; S is the largest of them.

    Raises:
        ValueError: there is no such way.
    """
    if how not in SENTENCE_EMBEDDINGS:
        raise ValueError(f"unknown {how!r}, choose one of {', '.join(SENTENCE_EMBEDDINGS)}")
    batch, d = len(tokens), weight.shape[1]
    ends = tokens.eq(eos)
    is_word = ~(ends | tokens.eq(pad))
    numbers = ends.cumsum(1)
    counts = numbers[:, -1]
    most = int(counts.max())
    # Bags of words, one for each sentence of a (B, S) grid; those that are no sentence are empty.
    bags = (numbers + most * torch.arange(batch, device=tokens.device).unsqueeze(1))[is_word]
    sizes = torch.bincount(bags, minlength=batch * most)
    starts = sizes.cumsum(0) - sizes
    words = tokens[is_word]
    if how != "position":
        vectors = F.embedding_bag(words, weight, starts, mode=how)
        return vectors.view(batch, most, d), counts
    # l_jk is linear in k: two sums with a number for each word, the second one times k/d.
    part = (torch.arange(1, len(words) + 1, device=tokens.device) - starts[bags]).to(weight.dtype)
    part = part / sizes[bags]
    first, second = (
        F.embedding_bag(words, weight, starts, mode="sum", per_sample_weights=factor)
        for factor in (1 - part, 1 - 2 * part)
    )
    k = torch.arange(1, d + 1, device=weight.device, dtype=weight.dtype)
    return (first - k / d * second).view(batch, most, d), counts
