"""``rum_summarization``: summaries with real words, those outside the vocabulary included."""

import logging
import math
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from fairseq import utils
from fairseq.data import data_utils
from fairseq.data.indexed_dataset import get_available_dataset_impl
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import FairseqTask, register_task
from fairseq.tokenizer import tokenize_line
from omegaconf import II
from torch import Tensor, nn

from fairseq_rum.config import check_sizes
from fairseq_rum.data.indexed import load_split
from fairseq_rum.data.pointer_dictionary import PointerDictionary
from fairseq_rum.data.summarization_dataset import SummarizationDataset
from fairseq_rum.data.summary_record import SummaryRecord
from fairseq_rum.data.summary_text import SETTINGS_FILE, SummaryText
from fairseq_rum.data.unknown_words import UnknownWords, side_file
from fairseq_rum.errors import InputError
from fairseq_rum.models.pointer_gen_rum import explain_summaries
from fairseq_rum.tasks.divergence import StopsWhenDiverging
from fairseq_rum.tasks.dynamics import DynamicsConfig, LogsDynamics
from fairseq_rum.tasks.epoch_batches import DrawsBatchesByEpoch

logger = logging.getLogger(__name__)


@dataclass
class RumSummarizationConfig(DynamicsConfig):
    """Options of ``rum_summarization``."""

    data: Optional[str] = field(
        default=None,
        metadata={"help": "data directory of fairseq-rum prepare; several, separated by ':', are "
                  "taken in turn in training, one an epoch"},
    )  # fmt: skip
    source_lang: Optional[str] = field(
        default=None,
        metadata={"help": "name of the source side", "argparse_alias": "-s"},
    )
    target_lang: Optional[str] = field(
        default=None,
        metadata={"help": "name of the target side", "argparse_alias": "-t"},
    )
    max_source_positions: Optional[int] = field(
        default=None,
        metadata={
            "help": "words of a source that are read, its first ones (default: as many as the data "
            f"were prepared with, {SummaryText.source_length} where that is not known)"
        },
    )
    max_target_positions: Optional[int] = field(
        default=None,
        metadata={
            "help": "steps of a summary that the loss is of, its end mark included; references "
            "stay whole (default: as many as the data were prepared with, "
            f"{SummaryText.target_length} where that is not known)"
        },
    )
    allow_unk: bool = field(
        default=False, metadata={"help": "let <unk> be generated, which is never done otherwise"}
    )
    p_gen_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "file for p_gen of each word of the best summaries, a line for each, for "
            "fairseq-rum score --p-gen"
        },
    )
    attention_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "file for the attention and p_gen of the best summaries with their words, a "
            "JSON object for each"
        },
    )
    dataset_impl: Optional[ChoiceEnum(get_available_dataset_impl())] = II("dataset.dataset_impl")
    train_subset: str = II("dataset.train_subset")


@register_task("rum_summarization", dataclass=RumSummarizationConfig)
class RumSummarizationTask(DrawsBatchesByEpoch, LogsDynamics, StopsWhenDiverging, FairseqTask):
    """Train on pairs of a text and its summary, and generate summaries of real words.

    The data are those of ``fairseq-rum prepare summarization``. A model sees an unknown word as
    the marker of its place in the source, and copies it by that. fairseq's commands print words:
    :meth:`inference_step` replaces markers by indices of the words themselves, see
    :class:`PointerDictionary`, in all that is printed and scored: sources, references, and all
    hypotheses, of ensembles too. ``<unk>`` is not generated.

    Text typed into fairseq-interactive is tokenized as the data were.

    Args:
        cfg: the options.
        dictionary: of both sides.
        settings: how the data were prepared; None if that is not known.

    Raises:
        InputError: an option is out of its range.
    """

    def __init__(
        self,
        cfg: RumSummarizationConfig,
        dictionary: PointerDictionary,
        settings: Optional[SummaryText] = None,
    ) -> None:
        super().__init__(cfg)
        self.dictionary = dictionary
        self.settings = settings
        check_sizes(cfg, ("max_source_positions", "max_target_positions"))
        prepared = settings or SummaryText()
        self.source_length = cfg.max_source_positions or prepared.source_length
        self.target_length = cfg.max_target_positions or prepared.target_length
        if 0 < dictionary.markers < self.source_length:
            raise InputError(
                f"--max-source-positions {self.source_length} is above the number of markers in "
                f"the dictionary, {dictionary.markers}"
            )
        logger.info(f"lengths: {self.source_length} words of a text, {self.target_length} steps")
        self.record = SummaryRecord(cfg.p_gen_path, cfg.attention_path)

    @classmethod
    def setup_task(cls, cfg: RumSummarizationConfig, **kwargs: Any) -> "RumSummarizationTask":
        """Load the dictionary, and the settings of the data where there are any.

        Raises:
            InputError: the data directory or a dictionary is missing, the two sides have different
                dictionaries, or an option is out of its range.
        """
        if not cfg.data:
            raise InputError("give the data directory that fairseq-rum prepare wrote")
        path = utils.split_paths(cfg.data)[0]
        if not os.path.isdir(path):
            raise InputError(f"{path}: no such data directory")
        if cfg.source_lang is None or cfg.target_lang is None:
            cfg.source_lang, cfg.target_lang = data_utils.infer_language_pair(path)
        if cfg.source_lang is None or cfg.target_lang is None:
            raise InputError(f"{path}: there are no pairs in it, was it prepared?")
        source, target = (
            PointerDictionary.load(os.path.join(path, f"dict.{side}.txt"))
            for side in (cfg.source_lang, cfg.target_lang)
        )
        if source != target:
            raise InputError(
                f"{path}: source and target have different dictionaries, a model that copies needs "
                "one (fairseq-preprocess --joined-dictionary)"
            )
        logger.info(f"dictionary: {len(source)} symbols, {source.markers} of them markers")
        settings_path = os.path.join(path, SETTINGS_FILE)
        settings = SummaryText.load(settings_path) if os.path.exists(settings_path) else None
        return cls(cfg, source, settings)

    @property
    def source_dictionary(self) -> PointerDictionary:
        """The dictionary."""
        return self.dictionary

    @property
    def target_dictionary(self) -> PointerDictionary:
        """The same dictionary."""
        return self.dictionary

    def max_positions(self) -> None:
        """There is no limit: what is too long is cut."""
        return None

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split.

        Raises:
            InputError: it is missing, empty or damaged.
        """
        paths = utils.split_paths(self.cfg.data)
        path = paths[(epoch - 1) % len(paths)] if split == self.cfg.train_subset else paths[0]
        names = self.cfg.source_lang, self.cfg.target_lang
        sides = []
        for name in names:
            prefix = os.path.join(path, f"{split}.{'-'.join(names)}.{name}")
            sides.append(load_split(prefix, self.dictionary, self.cfg.dataset_impl))
        source, target = sides

        def unknown() -> Tuple[UnknownWords, ...]:
            files = [side_file(path, split, *names, name) for name in names]
            return tuple(UnknownWords.load(file, len(source)) for file in files)

        self.datasets[split] = SummarizationDataset(
            self.dictionary,
            source,
            source.sizes,
            self.source_length,
            target,
            target.sizes,
            self.target_length,
            split=split,
            unknown=unknown if self.dictionary.markers else None,
            shuffle=split == self.cfg.train_subset,
        )

    def batch_sampler(
        self,
        dataset: SummarizationDataset,
        max_tokens: Optional[int],
        max_sentences: Optional[int],
        seed: int,
    ) -> Callable[[int], Sequence[Any]]:
        """Batches of about one length.

        With ``--required-batch-size-multiple``, 8 by default, fairseq would drop the last batch of
        a split when that does not divide it, and with it the longest texts: 1 is used here.
        """

        def batches(epoch: int) -> Sequence[Any]:
            with data_utils.numpy_seed(seed, epoch):
                indices = dataset.ordered_indices()
            return dataset.batch_by_size(
                indices, max_tokens=max_tokens, max_sentences=max_sentences
            )

        return batches

    def build_dataset_for_inference(
        self,
        src_tokens: List[Tensor],
        src_lengths: List[int],
        constraints: Optional[Tensor] = None,
    ) -> SummarizationDataset:
        """A data set of texts that were typed."""
        return SummarizationDataset(
            self.dictionary, src_tokens, src_lengths, self.source_length, constraints=constraints
        )

    def get_interactive_tokens_and_lengths(
        self, lines: List[str], encode_fn: Callable[[str], str]
    ) -> Tuple[List[Tensor], List[int]]:
        """The indices of texts that were typed, unknown words among them."""
        texts = [encode_fn(line) for line in lines]
        self.dictionary.reserve(sum(len(tokenize_line(text)) for text in texts))
        tokens = [self.dictionary.encode_line(text).long() for text in texts]
        return tokens, [len(row) for row in tokens]

    def build_tokenizer(self, args: Any) -> Any:
        """``--tokenizer`` if it is given, else the tokenization of the data."""
        tokenizer = super().build_tokenizer(args)
        return _Tokenizer(self.settings) if tokenizer is None and self.settings else tokenizer

    def build_generator(self, models: List[nn.Module], args: Any, **kwargs: Any) -> Any:
        """fairseq's generator, which leaves ``<unk>`` out unless ``--allow-unk`` is given.

        Raises:
            InputError: ``--unkpen`` is given without ``--allow-unk``.
        """
        generator = super().build_generator(models, args, **kwargs)
        if not self.cfg.allow_unk:
            if getattr(args, "unkpen", 0):
                raise InputError("--unkpen has no effect without --allow-unk")
            if hasattr(generator, "unk_penalty"):
                generator.unk_penalty = math.inf
        return generator

    def inference_step(
        self,
        generator: Any,
        models: Sequence[nn.Module],
        sample: Dict[str, Any],
        prefix_tokens: Optional[Tensor] = None,
        constraints: Optional[Tensor] = None,
    ) -> List[List[Dict[str, Tensor]]]:
        """fairseq's step; in its result and in the sample unknown words are themselves.

        Raises:
            InputError: a constraint is neither in the dictionary nor in its text, or the data do
                not have the words behind their markers.
        """
        source, target = self._real_words(sample)
        marked = self.dictionary.mark(source)
        if constraints is not None:
            constraints = self.dictionary.mark_constraints(constraints, source)
        net_input = {**sample["net_input"], "src_tokens": marked}
        hypotheses = super().inference_step(
            generator, models, {**sample, "net_input": net_input}, prefix_tokens, constraints
        )
        details = None
        if self.record.is_on:
            best = [beams[0]["tokens"] for beams in hypotheses]
            details = explain_summaries(models, net_input["src_tokens"], best)
        for row, beams in zip(source, hypotheses):
            for hypothesis in beams:
                hypothesis["tokens"] = self.dictionary.unmark(hypothesis["tokens"], row)
        sample["net_input"]["src_tokens"] = source
        if target is not None:
            sample["target"] = target
        if details is not None:
            ids = sample["id"].tolist() if "id" in sample else [None] * len(source)
            for index, row, beams, (p_gen, attention) in zip(ids, source, hypotheses, details):
                words, summary = self._words(row), self._words(beams[0]["tokens"])
                self.record.write(index, words, summary, p_gen, attention)
        return hypotheses

    def _real_words(self, sample: Dict[str, Any]) -> Tuple[Tensor, Optional[Tensor]]:
        """Source and target of a sample with unknown words in place of markers."""
        source = sample["net_input"]["src_tokens"]
        if "split" not in sample:
            return source, None
        dataset = self.datasets[sample["split"]]
        ids = sample["id"].tolist()
        sources = [dataset.source_words(index) for index in ids]
        targets = [dataset.target_words(index) for index in ids]
        self.dictionary.reserve(sum(map(len, sources + targets)))
        eos = self.dictionary.eos()
        rows = [self.dictionary.encode_words(words) or [eos] for words in sources]
        target_rows = [self.dictionary.encode_words(words) + [eos] for words in targets]
        return self._collated(rows).to(source), self._collated(target_rows).to(source)

    def _collated(self, rows: List[List[int]]) -> Tensor:
        pad = self.dictionary.pad()
        return data_utils.collate_tokens([torch.tensor(row) for row in rows], pad)

    def _words(self, tokens: Tensor) -> List[str]:
        special = (self.dictionary.pad(), self.dictionary.eos())
        return [self.dictionary[token] for token in tokens.tolist() if token not in special]


class _Tokenizer:
    """The tokenization of the data in the form of fairseq's ``--tokenizer``."""

    def __init__(self, settings: SummaryText) -> None:
        self._settings = settings

    def encode(self, x: str) -> str:
        return " ".join(self._settings.preprocess(x))

    def decode(self, x: str) -> str:
        return x
