"""``pointer_gen_rum``: the pointer-generator network with any recurrent units."""

import logging
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary, data_utils
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, register_model
from torch import Tensor, nn

from fairseq_rum.cells import get_cell
from fairseq_rum.config import UnitConfig, build_unit, check_sizes, check_units
from fairseq_rum.data.unknown_words import count_markers
from fairseq_rum.errors import InputError
from fairseq_rum.layers import StackedRecurrent
from fairseq_rum.layers.probe import Probe
from fairseq_rum.models.named_architectures import NamedArchitectures
from fairseq_rum.models.pointer_decoder import PointerDecoder
from fairseq_rum.modules.coverage_attention import coverage_penalty
from fairseq_rum.modules.initialization import uniform_units_
from fairseq_rum.modules.marker_embedding import MarkerEmbedding
from fairseq_rum.modules.state_bridge import vector_parts

logger = logging.getLogger(__name__)

_COVERAGE_WEIGHT = "decoder.attention.w_c"
_UNIT_BOUND = 0.02  # of See et al.'s LSTM


@dataclass
class PointerGeneratorConfig(UnitConfig):
    """Options of ``pointer_gen_rum``."""

    rnn_backend: str = field(
        default="auto",
        metadata={
            "help": "version of the loop of the encoder's unit: auto, naive, fused, cpp or triton; "
            "the decoder attends between its steps and has no such loop"
        },
    )
    encoder_rnn_unit: str = field(
        default="lstm", metadata={"help": "recurrent unit of the encoder: lstm, rum, gru, ..."}
    )
    decoder_rnn_unit: str = field(
        default="rum", metadata={"help": "recurrent unit of the decoder: rum, lstm, gru, ..."}
    )
    embed_dim: int = field(
        default=128, metadata={"help": "size of the embeddings, which both sides share"}
    )
    encoder_hidden_size: int = field(
        default=256, metadata={"help": "hidden size of the encoder, of each of its two directions"}
    )
    decoder_hidden_size: int = field(default=256, metadata={"help": "hidden size of the decoder"})
    coverage: bool = field(
        default=False,
        metadata={
            "help": "let the attention see how much it attended to each word before; for the end "
            "of training, see --finetune-from-model"
        },
    )


@register_model("pointer_gen_rum", dataclass=PointerGeneratorConfig)
class PointerGenerator(NamedArchitectures, FairseqEncoderDecoderModel):
    r"""The pointer-generator network of See et al. 2017 with the units of RUM's paper.

    A bidirectional encoder, a decoder with attention, and a mixture of generating a word of the
    vocabulary and copying one of the source. Only the units differ from See et al.: an LSTM encoder
    and a RUM decoder by default.

    The dictionary is one for both sides. Symbols ``<unk-0>`` ... that it ends with stand for
    unknown words of the source: they can be copied, are not in the softmax, and are embedded as
    ``<unk>``. Under fairseq's ``translation`` with a dictionary without them, known words alone
    are copied. With ``rum_summarization`` real words come out.

    Initialized as the original code (github.com/abisee/pointer-generator): embeddings, softmax and
    state bridge normal with standard deviation 1e-4, the other linear maps uniform by Glorot,
    LSTM U(-0.02, 0.02) with the forget gate's bias 1; RUM keeps its own orthogonal start.
    """

    base_config = PointerGeneratorConfig

    @classmethod
    def build_model(cls, cfg: PointerGeneratorConfig, task: Any) -> "PointerGenerator":
        """Build the model for a task's dictionary.

        Raises:
            InputError: an option is out of its range or belongs to a unit that the model does not
                use, or the task's two sides are not what a model that copies needs.
        """
        for side in ("encoder", "decoder"):
            get_cell(getattr(cfg, f"{side}_rnn_unit"), f"--{side}-rnn-unit")
        preset = cls.preset()
        check_units(cfg, [cfg.encoder_rnn_unit, cfg.decoder_rnn_unit], preset)
        check_sizes(cfg, ("embed_dim", "encoder_hidden_size", "decoder_hidden_size"))
        dictionary = task.source_dictionary
        if dictionary is None or dictionary != task.target_dictionary:
            raise InputError(
                "pointer_gen_rum copies words and needs one dictionary for source and target: "
                "fairseq-preprocess --joined-dictionary"
            )
        if getattr(task.cfg, "left_pad_target", False):
            raise InputError("--left-pad-target: pointer_gen_rum needs targets padded at the end")
        try:
            vocabulary = len(dictionary) - count_markers(dictionary.symbols)
        except ValueError as error:
            raise InputError(f"dictionary: {error}") from error
        embed = MarkerEmbedding(vocabulary, cfg.embed_dim, dictionary.pad(), dictionary.unk())
        encoder = PointerEncoder(cfg, dictionary, embed)
        unit = build_unit(cfg, cfg.decoder_rnn_unit, cfg.embed_dim, cfg.decoder_hidden_size)
        uniform_units_(unit, _UNIT_BOUND)
        decoder = PointerDecoder(dictionary, embed, unit, encoder.unit, cfg.coverage)
        return cls(encoder, decoder)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> nn.Module:
        """fairseq's hub interface; text is tokenized as the task does it."""
        hub = super().from_pretrained(*args, **kwargs)
        hub.tokenizer = hub.task.build_tokenizer(hub.cfg.tokenizer)
        return hub

    def __init__(self, encoder: "PointerEncoder", decoder: PointerDecoder) -> None:
        super().__init__(encoder, decoder)
        self._is_new = True

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        prev_output_tokens: Tensor,
        target: Optional[Tensor] = None,
        features_only: bool = False,
    ) -> Any:
        """Encode and decode, see :meth:`PointerDecoder.forward`.

        Args:
            src_tokens: ``(B, S)``, padded on either side.
            src_lengths: not needed, padding is told by its symbol.
            prev_output_tokens: ``(B, T)``, padded at the end.
            target: ``(B, T)``; when given, the output is log P(target) instead of logits.
            features_only: leave the softmax out.
        """
        encoder_out = self.encoder(src_tokens)
        return self.decoder(
            prev_output_tokens, encoder_out, target=target, features_only=features_only
        )

    def report_to(self, probe: Probe, inputs: Dict[str, Any], output: Any) -> None:
        """p_gen of every word and, with coverage, its part of the coverage loss."""
        padded = inputs["prev_output_tokens"].eq(self.decoder.padding_idx)
        probe.pad("decoder.unit", padded)
        _, extra = output
        seen = {"p_gen": torch.sigmoid(extra["gate"].float())}
        if extra["coverage"]:
            seen["coverage_penalty"] = coverage_penalty(extra["attn"][0])
        for name, values in seen.items():
            probe.reported[name] = values.masked_fill(padded, float("nan"))

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before each update: warn of coverage in a model that is untrained."""
        super().set_num_updates(num_updates)
        if self.training and self._is_new and num_updates == 0:
            self._is_new = False
            if self.decoder.coverage:
                logger.warning(
                    "--coverage from the first update: See et al. train without it and add it at "
                    "the end (--finetune-from-model), with it from the start the network learns "
                    "worse"
                )

    def upgrade_state_dict_named(self, state_dict: Dict[str, Any], name: str) -> None:
        """Called by fairseq before a checkpoint is loaded: one without coverage gets a w_c.

        Raises:
            InputError: the checkpoint has coverage, and this model has not.
        """
        super().upgrade_state_dict_named(state_dict, name)
        self._is_new = False
        if not self.decoder.coverage and _COVERAGE_WEIGHT in state_dict:
            raise InputError("the checkpoint was trained with coverage: add --coverage")
        if self.decoder.coverage and _COVERAGE_WEIGHT not in state_dict:
            state_dict[_COVERAGE_WEIGHT] = self.decoder.attention.w_c.detach().clone()
            logger.info(
                "--coverage: the checkpoint has none, so its weight w_c is new and starts at its "
                "initialization; the optimizer starts anew, which --finetune-from-model does and "
                "--restore-file does with --reset-optimizer"
            )


class PointerEncoder(FairseqEncoder):
    """A bidirectional layer of a unit; it also prepares what the attention needs of the source.

    Args:
        cfg: the options.
        dictionary: of both sides.
        embed_tokens: of both sides.
    """

    def __init__(
        self, cfg: PointerGeneratorConfig, dictionary: Dictionary, embed_tokens: MarkerEmbedding
    ) -> None:
        super().__init__(dictionary)
        self.padding_idx = dictionary.pad()
        self.embed_tokens = embed_tokens
        self.rnn = StackedRecurrent(
            lambda size: build_unit(cfg, cfg.encoder_rnn_unit, size, cfg.encoder_hidden_size),
            cfg.embed_dim,
            bidirectional=True,
            backend=cfg.rnn_backend,
        )
        for layer in self.rnn.layers:
            uniform_units_(layer.cell, _UNIT_BOUND)
        size = self.rnn.output_size
        self.project_memory = nn.Linear(size, size, bias=False)  # W_h of the attention
        nn.init.xavier_uniform_(self.project_memory.weight)

    @property
    def unit(self) -> nn.Module:
        """The unit of the forward direction."""
        return self.rnn.layers[0].cell

    def forward(
        self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None, **unused: Any
    ) -> Dict[str, List[Tensor]]:
        """Encode.

        Args:
            src_tokens: ``(B, S)``, padded on either side; S may be 0.
            src_lengths: not needed, padding is told by its symbol.

        Returns:
            - ``encoder_out``: h, ``(B, S, 2N)``;
            - ``memory_features``: W_h h, ``(B, S, 2N)``;
            - ``encoder_padding_mask``: ``(B, S)``, True where padded;
            - ``src_tokens``;
            - ``final_state``: each vector of the unit's state in both directions, ``(B, 2N)``;
            - ``rows``: ``(B,)``, a number for each row.
        """
        if src_tokens.shape[1] == 0:
            src_tokens = src_tokens.new_full((len(src_tokens), 1), self.padding_idx)
        padding_mask = src_tokens.eq(self.padding_idx)
        outputs, (forward, backward) = self.rnn(
            self.embed_tokens(src_tokens), None, padding_mask if bool(padding_mask.any()) else None
        )
        shapes = self.unit.state_shapes
        vectors = vector_parts(shapes)
        final = [
            torch.cat(parts, dim=-1)
            for name, *parts in zip(shapes, forward, backward)
            if name in vectors
        ]
        return {
            "encoder_out": [outputs],
            "memory_features": [self.project_memory(outputs)],
            "encoder_padding_mask": [padding_mask],
            "src_tokens": [src_tokens],
            "final_state": final,
            "rows": [torch.arange(len(src_tokens), device=src_tokens.device)],
        }

    def reorder_encoder_out(
        self, encoder_out: Dict[str, List[Tensor]], new_order: Tensor
    ) -> Dict[str, List[Tensor]]:
        """The same for rows in another order.

        Beam search mostly swaps hypotheses of one source, which changes nothing: it would
        copy all of a large memory in every step.
        """
        (rows,) = encoder_out["rows"]
        if torch.equal(rows[new_order], rows):
            return encoder_out
        return {
            name: [part.index_select(0, new_order) for part in parts]
            for name, parts in encoder_out.items()
        }

    def max_positions(self) -> int:
        """A recurrent unit has no longest input."""
        return int(1e9)


@torch.no_grad()
def explain_summaries(
    models: Sequence[nn.Module], src_tokens: Tensor, summaries: Sequence[Tensor]
) -> List[Tuple[Tensor, Tensor]]:
    """p_gen and attention of summaries, averaged over the models.

    fairseq's generator does not hand out p_gen, so the summaries go through the models once more.

    Args:
        models: of kind ``pointer_gen_rum``.
        src_tokens: ``(B, S)``.
        summaries: of each row, with the end mark, as the generator made them.

    Returns:
        for each row p_gen ``(T,)`` and attention ``(T, S)``, of its words alone.

    Raises:
        InputError: a model is of another kind.
    """
    pad, eos = models[0].decoder.dictionary.pad(), models[0].decoder.dictionary.eos()
    previous = data_utils.collate_tokens(list(summaries), pad, eos, move_eos_to_beginning=True)
    p_gens, attentions = [], []
    for model in models:
        if not isinstance(model, PointerGenerator):
            raise InputError("--p-gen-path and --attention-path need --arch pointer_gen_rum")
        _, extra = model(src_tokens, None, previous, features_only=True)
        p_gens.append(torch.sigmoid(extra["gate"].float()))
        attentions.append(extra["attn"][0])
    p_gen, attention = torch.stack(p_gens).mean(0), torch.stack(attentions).mean(0)
    return [
        (p_gen[i, : len(row) - 1], attention[i, : len(row) - 1, src_tokens[i].ne(pad)])
        for i, row in enumerate(summaries)
    ]
