"""The decoder of ``pointer_gen_rum``; it registers nothing by itself."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_rum.cells import RecurrentCell, State
from fairseq_rum.models.dictionary_check import DictionaryCheck
from fairseq_rum.models.incremental import IncrementalState, RecurrentIncrementalDecoder
from fairseq_rum.modules.coverage_attention import CoverageAttention
from fairseq_rum.modules.initialization import truncated_normal_
from fairseq_rum.modules.marker_embedding import MarkerEmbedding
from fairseq_rum.modules.pointer_mixture import mixture_log_probs, target_log_probs
from fairseq_rum.modules.state_bridge import StateBridge, join_vectors, vector_parts

_SOFTMAX_ELEMENTS = 1 << 26
"""Logits kept at a time in training, 256 MiB: beyond it they are computed again backwards."""

_NOTHING_TO_COPY = 100.0
"""g of a row without source: P(w) is the softmax, and log(1 - p_gen) stays finite."""


class PointerDecoder(RecurrentIncrementalDecoder):
    r"""One unit with attention, input feed and the pointer mixture.

    .. math::
        x_t &= W_x [y_{t-1}; h_{t-1}^*] + b_x, \quad h_0^* = 0\\
        o_t, s_t &= \mathrm{unit}(x_t, s_{t-1})\\
        h_t^*, a_t &= \mathrm{attention}(s_t)\\
        g_t &= w \cdot [h_t^*; s_t; x_t] + b\\
        P_{vocab} &= \mathrm{softmax}(V' (V [o_t; h_t^*] + b_v) + b_v')

    As in See et al.'s code, s is all of the unit's state that is a vector: [h; c] of an LSTM, h of
    a RUM. The context before the first step is zero in training and in decoding.

    Args:
        dictionary: of both sides.
        embed_tokens: of both sides; its vocabulary is that of the softmax.
        unit: of the decoder.
        encoder_unit: of one direction of the encoder.
        coverage: let the attention see the sum of its earlier values.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        embed_tokens: MarkerEmbedding,
        unit: RecurrentCell,
        encoder_unit: RecurrentCell,
        coverage: bool = False,
    ) -> None:
        super().__init__(dictionary)
        self.dictionary_check = DictionaryCheck(dictionary)
        self.padding_idx = dictionary.pad()
        self.embed_tokens = embed_tokens
        self.unit = unit
        self.coverage = coverage
        memory = 2 * encoder_unit.hidden_size
        state = sum(vector_parts(unit.state_shapes).values())
        self.bridge = StateBridge(encoder_unit, unit)
        self.input_map = nn.Linear(unit.input_size + memory, unit.input_size)
        self.attention = CoverageAttention(memory, state, coverage)
        self.gate = nn.Linear(memory + state + unit.input_size, 1)
        self.output_map = nn.Linear(unit.hidden_size + memory, unit.hidden_size)
        self.output_projection = nn.Linear(unit.hidden_size, embed_tokens.num_embeddings)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start the maps between the parts; these have a start of their own."""
        for linear in (self.input_map, self.gate, self.output_map):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        truncated_normal_(self.output_projection.weight)
        truncated_normal_(self.output_projection.bias)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Dict[str, List[Tensor]],
        incremental_state: Optional[IncrementalState] = None,
        features_only: bool = False,
        target: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Decode.

        Args:
            prev_output_tokens: ``(B, T)``.
            encoder_out: see :meth:`PointerEncoder.forward`.
            incremental_state: fairseq's cache for decoding: only the last token is computed once
                it holds a state.
            features_only: return the input of the softmax.
            target: ``(B, T)``; return log P(target), ``(B, T)``, zero where padded.

        Returns:
            logits of the vocabulary ``(B, T, V)``, and

            - ``attn``: a list of the attention, ``(B, T, S)``;
            - ``gate``: g, ``(B, T)``; p_gen is its sigmoid;
            - ``src_tokens``: ``(B, S)``;
            - ``coverage``: whether the model has coverage.

            :meth:`get_normalized_probs` makes P(w) of them. fairseq's temperature divides the
            logits; attention and p_gen stay as they are.
        """
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        if target is not None:
            return self._target_log_probs(x, extra, target), extra
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Dict[str, List[Tensor]],
        incremental_state: Optional[IncrementalState] = None,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """The input of the softmax, ``(B, T, N)``, and what :meth:`forward` returns beside it."""
        cached = None
        if incremental_state is not None:
            cached = self.remembered(incremental_state)
            if cached:
                prev_output_tokens = prev_output_tokens[:, -1:]
        state, context, coverage = self._start(encoder_out) if not cached else _unpack(cached)
        (memory,), (features,) = encoder_out["encoder_out"], encoder_out["memory_features"]
        (padding_mask,) = encoder_out["encoder_padding_mask"]

        size = self.embed_tokens.embedding_dim
        of_token, of_context = self.input_map.weight.split((size, memory.shape[-1]), dim=1)
        inputs = F.linear(self.embed_tokens(prev_output_tokens), of_token, self.input_map.bias)
        steps = []
        with self.unit.prepared():
            for x in inputs.unbind(1):
                x = x + F.linear(context, of_context)
                output, state = self.unit.step(self.unit.project_input(x), state)
                query = join_vectors(self.unit, state)
                context, attention = self.attention(query, memory, features, padding_mask, coverage)
                if coverage is not None:
                    coverage = coverage + attention
                steps.append((x, output, query, context, attention))
        x, output, query, contexts, attention = (torch.stack(part, 1) for part in zip(*steps))

        if incremental_state is not None:
            packed = _pack(state, context, coverage)
            self.remember(incremental_state, packed)
        gate = self.gate(torch.cat((contexts, query, x), dim=-1)).squeeze(-1)
        gate = gate.masked_fill(padding_mask.all(1, keepdim=True), _NOTHING_TO_COPY)
        extra = {
            "attn": [attention],
            "gate": gate,
            "src_tokens": encoder_out["src_tokens"][0],
            "coverage": self.coverage,
        }
        return self.output_map(torch.cat((output, contexts), dim=-1)), extra

    def output_layer(self, features: Tensor, **kwargs: Any) -> Tensor:
        """Logits of the vocabulary."""
        return self.output_projection(features)

    def get_normalized_probs(
        self,
        net_output: Tuple[Tensor, Dict[str, Any]],
        log_probs: bool,
        sample: Optional[Dict[str, Tensor]] = None,
    ) -> Tensor:
        """P(w) or its logarithm for all ids, ``(B, T, len(dictionary))``, in float32 at least.

        The logits may be those of the last steps alone.
        """
        logits, extra = net_output
        steps = logits.shape[1]
        result = mixture_log_probs(
            logits,
            extra["gate"][:, -steps:],
            extra["attn"][0][:, -steps:],
            extra["src_tokens"],
            len(self.dictionary),
        )
        return result if log_probs else result.exp()

    def _start(
        self, encoder_out: Dict[str, List[Tensor]]
    ) -> Tuple[State, Tensor, Optional[Tensor]]:
        """State, context and coverage before the first step."""
        (memory,), (padding_mask,) = encoder_out["encoder_out"], encoder_out["encoder_padding_mask"]
        start = self.unit.init_state(len(memory))
        state = self.bridge(encoder_out["final_state"], start)
        coverage = None
        if self.coverage:
            dtype = torch.promote_types(memory.dtype, torch.float32)
            coverage = memory.new_zeros(padding_mask.shape, dtype=dtype)
        return state, memory.new_zeros(len(memory), memory.shape[-1]), coverage

    def _target_log_probs(self, x: Tensor, extra: Dict[str, Any], target: Tensor) -> Tensor:
        """log P(target), without the softmax of padded steps."""
        is_target = target.ne(self.padding_idx)
        features, tokens = x[is_target], target[is_target]
        rows = max(1, _SOFTMAX_ELEMENTS // self.output_projection.out_features)
        if len(tokens) <= rows or not torch.is_grad_enabled():
            chosen = self._log_softmax_at(features, tokens)
        else:
            parts = zip(features.split(rows), tokens.split(rows))
            chosen = torch.cat(
                [checkpoint(self._log_softmax_at, *part, use_reentrant=False) for part in parts]
            )
        vocabulary = chosen.new_zeros(target.shape).masked_scatter(is_target, chosen)
        result = target_log_probs(
            vocabulary,
            extra["gate"],
            extra["attn"][0],
            extra["src_tokens"],
            target,
            self.output_projection.out_features,
        )
        return result.masked_fill(~is_target, 0.0)

    def _log_softmax_at(self, features: Tensor, tokens: Tensor) -> Tensor:
        """log P_vocab of one token each; that of ids outside the vocabulary has no meaning."""
        logits = self.output_projection(features)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        tokens = tokens.clamp_max(logits.shape[-1] - 1)
        return -F.cross_entropy(logits, tokens, reduction="none")


def _pack(state: State, context: Tensor, coverage: Optional[Tensor]) -> Dict[str, Tensor]:
    """What is kept between tokens, as one entry of fairseq's cache."""
    packed = {f"state.{i}": part for i, part in enumerate(state)}
    packed["context"] = context
    if coverage is not None:
        packed["coverage"] = coverage
    return packed


def _unpack(packed: Dict[str, Tensor]) -> Tuple[State, Tensor, Optional[Tensor]]:
    parts = sum(key.startswith("state.") for key in packed)
    state = tuple(packed[f"state.{i}"] for i in range(parts))
    return state, packed["context"], packed.get("coverage")
