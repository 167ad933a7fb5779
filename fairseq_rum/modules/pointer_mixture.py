r"""The mixture of generating a word and copying one from the source (See et al. 2017, eq. 8 and 9).

.. math::
    p_{gen} &= \sigma(g)\\
    P(w) &= p_{gen} P_{vocab}(w) + (1 - p_{gen}) \sum_{i: w_i = w} a_i

The softmax covers the ordinary vocabulary, ids below its size V; the mixture covers all ids, those
of words that only the source has included. All is computed in float32 at least, and finite with
finite gradients whatever g, the attention and the target are.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

#: Below it a probability counts as zero, and its logarithm is this one's.
SMALLEST = 1e-30
_LOG_SMALLEST = math.log(SMALLEST)


def mixture_log_probs(
    logits: Tensor, gate: Tensor, attention: Tensor, source_ids: Tensor, size: int
) -> Tensor:
    """log P(w) of all w.

    Args:
        logits: of the vocabulary's softmax, ``(B, T, V)``.
        gate: g, ``(B, T)``.
        attention: a, ``(B, T, S)``.
        source_ids: w_i, ``(B, S)``, each below ``size``.
        size: the number of ids, at least V.

    Returns:
        ``(B, T, size)``, not below the logarithm of :data:`SMALLEST`.
    """
    logits, gate, attention = map(_at_least_float32, (logits, gate, attention))
    probs = F.softmax(logits, dim=-1) * torch.sigmoid(gate).unsqueeze(-1)
    probs = F.pad(probs, (0, size - logits.shape[-1]))
    copied = attention * torch.sigmoid(-gate).unsqueeze(-1)
    index = source_ids.unsqueeze(1).expand_as(copied)
    return probs.scatter_add(-1, index, copied).clamp_min(SMALLEST).log()


def target_log_probs(
    vocabulary_log_probs: Tensor,
    gate: Tensor,
    attention: Tensor,
    source_ids: Tensor,
    target: Tensor,
    vocabulary: int,
) -> Tensor:
    """log P(target) alone, without the probabilities of all other words.

    Args:
        vocabulary_log_probs: log P_vocab(target), ``(B, T)``; its values for targets outside the
            vocabulary are not used.
        gate: g, ``(B, T)``.
        attention: a, ``(B, T, S)``.
        source_ids: w_i, ``(B, S)``.
        target: ``(B, T)``.
        vocabulary: V.

    Returns:
        ``(B, T)``; a target that can be neither generated nor copied has about the logarithm of
        :data:`SMALLEST`.
    """
    gate, attention = _at_least_float32(gate), _at_least_float32(attention)
    generated = _at_least_float32(vocabulary_log_probs)
    generated = generated.masked_fill(target >= vocabulary, _LOG_SMALLEST)
    is_target = source_ids.unsqueeze(1) == target.unsqueeze(2)
    copied = (attention * is_target).sum(-1).clamp_min(SMALLEST).log()
    return torch.logaddexp(F.logsigmoid(gate) + generated, F.logsigmoid(-gate) + copied)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
