"""``rum_qa``: answers questions about stories with recurrent layers of any unit."""

from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.models import BaseFairseqModel, register_model
from torch import Tensor, nn

from fairseq_rum.config import UnitConfig, build_unit, check_sizes, check_units
from fairseq_rum.errors import InputError
from fairseq_rum.layers import StackedRecurrent
from fairseq_rum.layers.probe import Probe
from fairseq_rum.models.dictionary_check import DictionaryCheck
from fairseq_rum.models.named_architectures import NamedArchitectures
from fairseq_rum.modules.sentence_attention import ATTENTIONS, SentenceAttention
from fairseq_rum.modules.sentence_embedding import SENTENCE_EMBEDDINGS, embed_sentences

LEVELS = ("sentence", "word")


@dataclass
class RumQaConfig(UnitConfig):
    """Options of ``rum_qa``."""

    rnn_unit: str = field(default="rum", metadata={"help": "recurrent unit: rum, lstm, gru, ..."})
    embed_dim: int = field(default=64, metadata={"help": "size of the word embeddings"})
    hidden_size: int = field(default=100, metadata={"help": "hidden size of the unit, N"})
    num_layers: int = field(default=1, metadata={"help": "number of layers, >= 1"})
    dropout: float = field(
        default=0.0,
        metadata={"help": "dropout on the unit's inputs, between layers and on the last features"},
    )
    level: str = field(
        default="sentence",
        metadata={"help": "a step of the unit is a sentence (the default) or a word"},
    )
    sentence_embedding: Optional[str] = field(
        default=None,
        metadata={
            "help": "at the level of sentences, what is made of the embeddings of the words: mean "
            "(default), sum, or position (sum with position encoding)"
        },
    )
    attention: str = field(
        default="none",
        metadata={
            "help": "at the level of sentences, of the question to the story: none, dot, general "
            "or rotation (default: none)"
        },
    )
    reproduce_padding: Optional[int] = field(
        default=None,
        metadata={
            "help": "fill up every story to so many steps (sentences, or words with the ends of "
            "sentences), at its beginning, with a trained padding symbol that the unit reads like "
            "any other, as the code of RUM's authors does; they took the longest story of training "
            "and test set (default: padding has no effect)"
        },
    )


@register_model("rum_qa", dataclass=RumQaConfig)
class RumQa(NamedArchitectures, BaseFairseqModel):
    """A unit reads the story and then the question; the last state gives the answer.

    At the level of words it reads a word a step, with an end to each sentence; at the level of
    sentences one vector for each, see :func:`embed_sentences`, and attention may look back at the
    states after each, see :class:`SentenceAttention`. Padding is at the end and so after all that
    the answer depends on: no mask slows the unit down.

    Args:
        cfg: the options.
        task: with the dictionaries of words and answers.

    Shapes:
        - ``src_tokens`` ``(B, T)``, sentences ended by ``</s>``, the question last, then padding;
        - ``src_lengths`` ``(B,)``;
        - output: logits ``(B, answers)``.
    """

    base_config = RumQaConfig

    def __init__(self, cfg: RumQaConfig, task: Any) -> None:
        super().__init__()
        self.pad, self.eos = task.words.pad(), task.words.eos()
        self.words_check = DictionaryCheck(task.words)
        self.answers_check = DictionaryCheck(task.answers)
        self.level = cfg.level
        self.sentence_embedding = cfg.sentence_embedding or "mean"
        self.fill_to = cfg.reproduce_padding
        self.dropout = cfg.dropout
        self.embed_tokens = nn.Embedding(
            len(task.words), cfg.embed_dim, self.pad if self.fill_to is None else None
        )
        self.rnn = StackedRecurrent(
            lambda size: build_unit(cfg, cfg.rnn_unit, size, cfg.hidden_size),
            cfg.embed_dim,
            cfg.num_layers,
            dropout=cfg.dropout,
            backend=cfg.rnn_backend,
        )
        features = self.rnn.output_size
        self.attention: Optional[SentenceAttention] = None
        if cfg.attention != "none":
            self.attention = SentenceAttention(cfg.attention, features, cfg.embed_dim)
            features = self.attention.output_size
        self.output_projection = nn.Linear(features, task.num_answers)
        nn.init.xavier_uniform_(self.output_projection.weight)
        nn.init.zeros_(self.output_projection.bias)

    @classmethod
    def build_model(cls, cfg: RumQaConfig, task: Any) -> "RumQa":
        """Build the model for the task.

        Raises:
            InputError: an option is out of its range, contradicts another, or belongs to a unit
                that the model does not use, or the task is another one.
        """
        if not hasattr(task, "num_answers"):
            raise InputError("--arch rum_qa needs --task babi_qa")
        check_units(cfg, [cfg.rnn_unit], cls.preset())
        check_sizes(cfg, ("embed_dim", "hidden_size", "num_layers", "reproduce_padding"))
        if not 0.0 <= cfg.dropout < 1.0:
            raise InputError(f"--dropout must lie in [0, 1), got {cfg.dropout}")
        for name, choices in (
            ("level", LEVELS),
            ("sentence_embedding", (None, *SENTENCE_EMBEDDINGS)),
            ("attention", ("none", *ATTENTIONS)),
        ):
            if getattr(cfg, name) not in choices:
                raise InputError(
                    f"--{name.replace('_', '-')}: unknown {getattr(cfg, name)!r}, choose one of "
                    f"{', '.join(filter(None, choices))}"
                )
        if cfg.level == "word":
            if cfg.attention != "none":
                raise InputError(f"--attention {cfg.attention} needs --level sentence")
            if cfg.sentence_embedding is not None:
                raise InputError("--sentence-embedding needs --level sentence")
        return cls(cfg, task)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> Tensor:
        """Logits of the answers."""
        return self.answer(src_tokens, src_lengths)[0]

    def answer(self, src_tokens: Tensor, src_lengths: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """Logits of the answers, and what they attend to.

        Returns:
            logits ``(B, answers)``, and with attention the weights of the sentences ``(B, S)``.
        """
        x, lengths, question_lengths = self._inputs(src_tokens, src_lengths)
        if self.fill_to is not None:
            x, lengths = self._fill_up(x, lengths, question_lengths)
        states, _ = self.rnn(F.dropout(x, self.dropout, self.training))
        last = lengths - 1
        features, weights = _pick(states, last), None
        if self.attention is not None:
            steps = torch.arange(states.shape[1], device=states.device)
            is_sentence = steps < last.unsqueeze(1)
            features, weights = self.attention(features, states, is_sentence, _pick(x, last))
        features = F.dropout(features, self.dropout, self.training)
        return self.output_projection(features), weights

    def report_to(self, probe: Probe, inputs: Dict[str, Any], output: Any) -> None:
        """Which steps come after the question: the units are not told."""
        x, lengths, question_lengths = self._inputs(inputs["src_tokens"], inputs["src_lengths"])
        if self.fill_to is not None:
            x, lengths = self._fill_up(x, lengths, question_lengths)
        steps = torch.arange(x.shape[1], device=x.device)
        for unit in probe.traces:
            probe.pad(unit, steps >= lengths.unsqueeze(1))

    def _inputs(self, tokens: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """Inputs of the unit ``(B, T, E)``, steps of each row, and those of its question."""
        if self.level == "sentence":
            x, counts = embed_sentences(
                tokens, self.embed_tokens.weight, self.pad, self.eos, self.sentence_embedding
            )
            return x, counts, torch.ones_like(counts)
        ends = tokens.eq(self.eos)
        ended_before = ends.cumsum(1) - ends.long()
        is_question = ended_before == ends.sum(1, keepdim=True) - 1
        return self.embed_tokens(tokens), lengths, is_question.sum(1)

    def _fill_up(self, x: Tensor, lengths: Tensor, question_lengths: Tensor) -> Tuple[Tensor, ...]:
        """Padding before each story, and the steps with it; that at the end makes room for it."""
        added = (self.fill_to - (lengths - question_lengths)).clamp_min(0)
        lengths = lengths + added
        source = torch.arange(int(lengths.max()), device=x.device) - added.unsqueeze(1)
        index = source.clamp(0, x.shape[1] - 1).unsqueeze(-1).expand(-1, -1, x.shape[2])
        filler = self.embed_tokens.weight[self.pad]
        return torch.where((source < 0).unsqueeze(-1), filler, x.gather(1, index)), lengths


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """Row b at step ``index[b]``: ``(B, T, N) -> (B, N)``."""
    return x[torch.arange(len(x), device=x.device), index]
