"""``rum_lm``: a language model of any recurrent unit."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel, register_model
from fairseq.modules import AdaptiveSoftmax
from omegaconf import II
from torch import Tensor, nn

from fairseq_rum.cells import LSTMCell, RecurrentCell
from fairseq_rum.config import UnitConfig, build_unit, check_sizes, check_units
from fairseq_rum.data.carried_state import CarriedState
from fairseq_rum.data.encoders import codec_encoder_name
from fairseq_rum.errors import InputError
from fairseq_rum.layers import StackedRecurrent
from fairseq_rum.models.dictionary_check import DictionaryCheck
from fairseq_rum.models.incremental import IncrementalState, RecurrentIncrementalDecoder
from fairseq_rum.models.named_architectures import NamedArchitectures


@dataclass
class RumLanguageModelConfig(UnitConfig):
    """Options of ``rum_lm``."""

    rnn_unit: str = field(default="rum", metadata={"help": "recurrent unit: rum, lstm, gru, ..."})
    decoder_layers: int = field(default=1, metadata={"help": "number of layers, >= 1"})
    decoder_embed_dim: int = field(default=128, metadata={"help": "size of the embeddings"})
    decoder_hidden_size: int = field(default=512, metadata={"help": "hidden size of the unit, N"})
    decoder_out_embed_dim: Optional[int] = field(
        default=None,
        metadata={"help": "size of a linear layer before the softmax (default: no such layer)"},
    )
    dropout: float = field(
        default=0.0,
        metadata={"help": "dropout on the embeddings, between layers and on the output"},
    )
    share_decoder_input_output_embed: bool = field(
        default=False,
        metadata={
            "help": "tie the softmax to the embeddings; a linear layer maps to their size where "
            "the hidden size differs"
        },
    )
    adaptive_softmax_cutoff: Optional[str] = field(
        default=None,
        metadata={
            "help": "comma-separated cutoffs of the adaptive softmax, with --criterion "
            "adaptive_loss (default there: those of 10000,50000,200000 below the vocabulary)"
        },
    )
    orthogonal_kernels: bool = field(
        default=False,
        metadata={
            "help": "LSTM and GRU start with orthogonal kernels and zero biases (the forget gate's "
            "excepted) instead of torch's uniform ones; other units have their papers'"
        },
    )
    criterion_name: str = II("criterion._name")


@register_model("rum_lm", dataclass=RumLanguageModelConfig)
class RumLanguageModel(NamedArchitectures, FairseqLanguageModel):
    """Language model: embedding, recurrent layers, softmax.

    Works under fairseq's ``language_modeling`` and under ``stateful_language_modeling``, which
    hands the hidden state from window to window. A named architecture is a subclass with other
    defaults: what they set for a unit that another one has taken the place of is left out.
    """

    base_config = RumLanguageModelConfig

    @classmethod
    def build_model(cls, cfg: RumLanguageModelConfig, task: Any) -> "RumLanguageModel":
        """Build the model for a task's dictionary.

        Raises:
            InputError: an option is out of its range, contradicts another, or belongs to a unit
                that the model does not use.
        """
        preset = cls.preset()
        check_units(cfg, [cfg.rnn_unit], preset)
        sizes = ("layers", "embed_dim", "hidden_size", "out_embed_dim")
        check_sizes(cfg, [f"decoder_{size}" for size in sizes])
        if not 0.0 <= cfg.dropout < 1.0:
            raise InputError(f"--dropout must lie in [0, 1), got {cfg.dropout}")
        model = cls(RecurrentDecoder(cfg, task.source_dictionary, task.target_dictionary))
        found = orthogonal_kernels_(model) if cfg.orthogonal_kernels else 0
        if cfg.orthogonal_kernels and not found and not preset.orthogonal_kernels:
            raise InputError("--orthogonal-kernels: this model has neither LSTM nor GRU units")
        return model

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str = "model.pt",
        data_name_or_path: str = ".",
        **kwargs: Any,
    ) -> nn.Module:
        """fairseq's hub interface; text goes through the character codec of the data directory."""
        kwargs.setdefault("bpe", codec_encoder_name(model_name_or_path, data_name_or_path))
        return super().from_pretrained(
            model_name_or_path, checkpoint_file, data_name_or_path, **kwargs
        )

    @property
    def supported_targets(self) -> set:
        """Next-token prediction alone."""
        return {"future"}


class RecurrentDecoder(RecurrentIncrementalDecoder):
    """Embedding, recurrent layers, softmax, with exact incremental state.

    Args:
        cfg: the options.
        dictionary: of the inputs.
        output_dictionary: of the targets, when it differs.

    Raises:
        InputError: contradictory options.
    """

    def __init__(
        self,
        cfg: RumLanguageModelConfig,
        dictionary: Dictionary,
        output_dictionary: Optional[Dictionary] = None,
    ) -> None:
        super().__init__(dictionary)
        self.dropout = cfg.dropout
        self.padding_idx = dictionary.pad()
        self.dictionary_check = DictionaryCheck(dictionary)
        vocabulary = len(output_dictionary or dictionary)
        self.embed_tokens = nn.Embedding(len(dictionary), cfg.decoder_embed_dim, self.padding_idx)
        self.rnn = StackedRecurrent(
            lambda size: build_unit(cfg, cfg.rnn_unit, size, cfg.decoder_hidden_size),
            cfg.decoder_embed_dim,
            cfg.decoder_layers,
            dropout=cfg.dropout,
            backend=cfg.rnn_backend,
        )

        out_dim = cfg.decoder_out_embed_dim
        if cfg.share_decoder_input_output_embed:
            if out_dim not in (None, cfg.decoder_embed_dim):
                raise InputError(
                    f"--share-decoder-input-output-embed needs --decoder-out-embed-dim {out_dim} "
                    f"to equal --decoder-embed-dim {cfg.decoder_embed_dim}"
                )
            if vocabulary != len(dictionary):
                raise InputError(
                    "--share-decoder-input-output-embed needs one vocabulary for input and output: "
                    "drop --output-dictionary-size"
                )
            out_dim = cfg.decoder_embed_dim
        features = self.rnn.output_size
        self.project_out: Optional[nn.Linear] = None
        if out_dim is not None and (cfg.decoder_out_embed_dim or out_dim != features):
            self.project_out = nn.Linear(features, out_dim)
            features = out_dim

        self.output_projection: Optional[nn.Linear] = None
        cutoff = _adaptive_cutoff(cfg, vocabulary)
        if cutoff is not None:
            self.adaptive_softmax = AdaptiveSoftmax(vocabulary, features, cutoff, cfg.dropout)
        else:
            self.output_projection = nn.Linear(features, vocabulary)
            if cfg.share_decoder_input_output_embed:
                self.output_projection.weight = self.embed_tokens.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embedding and softmax orthogonal, as in the paper; the units have their own."""
        nn.init.orthogonal_(self.embed_tokens.weight)
        if self.output_projection is not None:
            nn.init.orthogonal_(self.output_projection.weight)
            nn.init.zeros_(self.output_projection.bias)
        with torch.no_grad():
            self.embed_tokens.weight[self.padding_idx].zero_()

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Dict[str, List[Tensor]]] = None,
        incremental_state: Optional[IncrementalState] = None,
        features_only: bool = False,
        src_lengths: Optional[Tensor] = None,
        carried_state: Optional[CarriedState] = None,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Logits for the next token at every position.

        Args:
            prev_output_tokens: ``(B, T)`` input tokens.
            encoder_out: ignored, a language model has no encoder.
            incremental_state: fairseq's cache for decoding: only the last token is computed once
                it holds a state.
            features_only: return the input of the softmax.
            src_lengths: ignored, padding is told by its symbol.
            carried_state: state to start from and to leave behind, see :class:`CarriedState`.

        Returns:
            logits ``(B, T, vocabulary)``, and fairseq's extras: no attention.
        """
        x = self.extract_features(prev_output_tokens, incremental_state, carried_state)
        return (x if features_only else self.output_layer(x)), {"attn": None}

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        incremental_state: Optional[IncrementalState] = None,
        carried_state: Optional[CarriedState] = None,
    ) -> Tensor:
        """The input of the softmax, ``(B, T, features)``."""
        states = None
        if incremental_state is not None:
            states = self._cached_states(incremental_state)
            if states is not None:
                prev_output_tokens = prev_output_tokens[:, -1:]
        elif carried_state is not None:
            states = carried_state.get(self)

        padding_mask = prev_output_tokens.eq(self.padding_idx)
        x = self.embed_tokens(prev_output_tokens)
        x = F.dropout(x, self.dropout, self.training)
        x, final = self.rnn(x, states, padding_mask if bool(padding_mask.any()) else None)
        x = F.dropout(x, self.dropout, self.training)
        if self.project_out is not None:
            x = self.project_out(x)

        if incremental_state is not None:
            flat = {
                f"{i}.{j}": part for i, state in enumerate(final) for j, part in enumerate(state)
            }
            self.remember(incremental_state, flat)
        elif carried_state is not None:
            carried_state.set(self, final)
        return x

    def output_layer(self, features: Tensor, **kwargs: Any) -> Tensor:
        """Logits; the features themselves where an adaptive softmax takes over."""
        return features if self.output_projection is None else self.output_projection(features)

    def _cached_states(
        self, incremental_state: IncrementalState
    ) -> Optional[List[Tuple[Tensor, ...]]]:
        cached = self.remembered(incremental_state)
        if cached is None:
            return None
        return [
            tuple(cached[f"{i}.{j}"] for j in range(len(layer.cell.state_shapes)))
            for i, layer in enumerate(self.rnn.layers)
        ]


def orthogonal_kernels_(model: nn.Module) -> int:
    """Start LSTM and GRU as the reference code of the Fast-Slow RNN does its LSTM, in place.

    Each of the two kernels is orthogonal as one matrix, the biases are zero; the forget gate's is
    1, which layer normalization would take out again: with it, 1 is in the shift after it. Units
    with a start of their own keep it.

    Returns:
        How many units there were.
    """
    cells = [c for c in model.modules() if isinstance(c, RecurrentCell) and c.starts_uniform]
    for cell in cells:
        for name, parameter in cell.named_parameters():
            if name.startswith("weight_"):
                nn.init.orthogonal_(parameter)
            elif name.startswith("bias_"):
                nn.init.zeros_(parameter)
        if isinstance(cell, LSTMCell) and not cell.layer_norm:
            nn.init.ones_(cell.bias_ih[cell.hidden_size : 2 * cell.hidden_size])
    return len(cells)


def _adaptive_cutoff(cfg: RumLanguageModelConfig, vocabulary: int) -> Optional[List[int]]:
    """Cutoffs of the adaptive softmax where the criterion asks for one, else None."""
    if cfg.criterion_name != "adaptive_loss":
        if cfg.adaptive_softmax_cutoff is not None:
            raise InputError(
                "--adaptive-softmax-cutoff needs --criterion adaptive_loss, got --criterion "
                f"{cfg.criterion_name}"
            )
        return None
    if cfg.share_decoder_input_output_embed:
        raise InputError(
            "--share-decoder-input-output-embed has no effect on an adaptive softmax: drop it or "
            "--criterion adaptive_loss"
        )
    if cfg.adaptive_softmax_cutoff is not None:
        try:
            cutoff = [int(c) for c in cfg.adaptive_softmax_cutoff.split(",")]
        except ValueError:
            cutoff = []
        if not cutoff or sorted({0, *cutoff}) != [0, *cutoff] or cutoff[-1] > vocabulary:
            raise InputError(
                f"--adaptive-softmax-cutoff {cfg.adaptive_softmax_cutoff} must be numbers that "
                f"increase from at least 1 to at most the vocabulary of {vocabulary}"
            )
        return cutoff
    default = [c for c in (10000, 50000, 200000) if c < vocabulary]
    if not default:
        raise InputError(
            f"--criterion adaptive_loss: give --adaptive-softmax-cutoff, the vocabulary of "
            f"{vocabulary} is below the smallest default cutoff of 10000"
        )
    return default
