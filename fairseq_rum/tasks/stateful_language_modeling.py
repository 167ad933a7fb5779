"""``stateful_language_modeling``: hidden state carried from window to window of a long text."""

import logging
import os
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import get_available_dataset_impl
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingTask
from omegaconf import II
from torch import nn

from fairseq_rum.config import check_sizes
from fairseq_rum.data.carried_state import CarriedState
from fairseq_rum.data.char_codec import CodecInfo
from fairseq_rum.data.dictionaries import load_dictionary
from fairseq_rum.data.encoders import build_codec_encoder
from fairseq_rum.data.indexed import load_split
from fairseq_rum.data.token_stream import StreamWindows, TokenStream, WindowIterator
from fairseq_rum.errors import InputError
from fairseq_rum.tasks.divergence import StopsWhenDiverging
from fairseq_rum.tasks.dynamics import DynamicsConfig, LogsDynamics

logger = logging.getLogger(__name__)


@dataclass
class StatefulLanguageModelingConfig(DynamicsConfig):
    """Options of ``stateful_language_modeling``."""

    data: Optional[str] = field(
        default=None,
        metadata={"help": "data directory of fairseq-preprocess; several, separated by ':', are "
                  "taken in turn, one an epoch"},
    )  # fmt: skip
    tokens_per_sample: int = field(
        default=150, metadata={"help": "steps of a window; the gradient is cut between windows"}
    )
    batch_size: Optional[int] = II("dataset.batch_size")
    batch_size_valid: Optional[int] = II("dataset.batch_size_valid")
    dataset_impl: Optional[ChoiceEnum(get_available_dataset_impl())] = II("dataset.dataset_impl")
    train_subset: str = II("dataset.train_subset")
    disable_validation: bool = II("dataset.disable_validation")


@register_task("stateful_language_modeling", dataclass=StatefulLanguageModelingConfig)
class StatefulLanguageModelingTask(LogsDynamics, StopsWhenDiverging, LanguageModelingTask):
    """Train a language model on contiguous streams, its state carried between windows.

    A split is cut into as many streams as a batch has rows (``--batch-size``, in every
    data-parallel process), and each batch is the next window (``--tokens-per-sample``) of all of
    them. The model starts a window with the state that it ended the last one with; the gradient is
    cut in between.
    Every token of a split is a target once in an epoch: none is lost at the border of a window or
    at the end. State is reset at the start of every pass over a split, kept apart for training and
    evaluation, and saved with the checkpoint, so that a resumed run continues where it stopped.

    The model takes a :class:`CarriedState` as ``carried_state``, as ``rum_lm`` does. Generation
    (fairseq-generate, fairseq-interactive, hub) works as under fairseq's ``language_modeling``.
    """

    def __init__(
        self, cfg: StatefulLanguageModelingConfig, dictionary: Dictionary, codec: Any = None
    ) -> None:
        super().__init__(cfg, dictionary)
        check_sizes(cfg, ["tokens_per_sample"])
        self.codec: Optional[CodecInfo] = codec
        self._carried = {True: CarriedState(), False: CarriedState()}
        self._gathered: Optional[List[Tuple[torch.Tensor, ...]]] = None
        self._train_windows: Optional[StreamWindows] = None
        if cfg.batch_size_valid is not None or cfg.batch_size is not None:
            # fairseq-eval-lm takes the same streams as validation did, unless told otherwise.
            self.state.merge_state_dict({"streams_valid": cfg.batch_size_valid or cfg.batch_size})

    @classmethod
    def setup_task(
        cls, cfg: StatefulLanguageModelingConfig, **kwargs: Any
    ) -> "StatefulLanguageModelingTask":
        """Load the dictionary, and the record of the character codec where there is one.

        Raises:
            InputError: the data directory or its dictionary is missing, or the latter malformed.
        """
        if not cfg.data:
            raise InputError("give the data directory that fairseq-preprocess wrote")
        path = utils.split_paths(cfg.data)[0]
        if not os.path.isdir(path):
            raise InputError(f"no data directory {path!r}")
        dict_path = os.path.join(path, "dict.txt")
        if not os.path.isfile(dict_path):
            raise InputError(
                f"no dictionary {dict_path!r}: is this a fairseq-preprocess directory?"
            )
        dictionary = load_dictionary(dict_path)
        logger.info(f"dictionary: {len(dictionary)} types")
        codec_path = os.path.join(path, "codec.json")
        codec = CodecInfo.load(codec_path) if os.path.isfile(codec_path) else None
        return cls(cfg, dictionary, codec)

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split.

        Raises:
            InputError: the split is missing, empty or damaged.
        """
        paths = utils.split_paths(self.args.data)
        split_path = os.path.join(paths[(epoch - 1) % len(paths)], split)
        lines = load_split(split_path, self.dictionary, self.args.dataset_impl, combine)
        known = self.codec is not None and split in self.codec.splits
        drop_last = known and not self.codec.splits[split].final_newline
        self.datasets[split] = TokenStream(lines, f"{split} ({split_path})", drop_last)

    def get_batch_iterator(
        self,
        dataset: Any,
        max_tokens: Optional[int] = None,
        max_sentences: Optional[int] = None,
        seed: int = 1,
        num_shards: int = 1,
        shard_id: int = 0,
        num_workers: int = 0,
        epoch: int = 1,
        data_buffer_size: int = 0,
        skip_remainder_batch: bool = False,
        **kwargs: Any,
    ) -> EpochBatchIterator:
        """Batches in the order of the text; anything but a :class:`TokenStream` as fairseq does."""
        if not isinstance(dataset, TokenStream):
            return super().get_batch_iterator(
                dataset,
                max_tokens=max_tokens,
                max_sentences=max_sentences,
                seed=seed,
                num_shards=num_shards,
                shard_id=shard_id,
                num_workers=num_workers,
                epoch=epoch,
                data_buffer_size=data_buffer_size,
                skip_remainder_batch=skip_remainder_batch,
                **kwargs,
            )
        window = self.args.tokens_per_sample
        if max_sentences is None:
            if max_tokens is None:
                raise InputError("give --batch-size, the number of streams")
            max_sentences = max(1, max_tokens // window)
        elif max_tokens is not None and max_sentences * window > max_tokens:
            raise InputError(
                f"--batch-size {max_sentences} x --tokens-per-sample {window} is more than "
                f"--max-tokens {max_tokens}: give one of --batch-size and --max-tokens"
            )
        windows = StreamWindows(
            dataset,
            max_sentences,
            window,
            self.dictionary.pad(),
            self.dictionary.eos(),
            num_shards,
            shard_id,
        )
        if dataset is self.datasets.get(self.args.train_subset):
            self._train_windows = windows
        return WindowIterator(
            windows,
            seed=seed,
            num_workers=num_workers,
            epoch=epoch,
            buffer_size=data_buffer_size,
            skip_remainder_batch=skip_remainder_batch,
        )

    def eval_lm_dataloader(
        self,
        dataset: TokenStream,
        max_tokens: Optional[int] = None,
        batch_size: Optional[int] = None,
        context_window: int = 0,
        **kwargs: Any,
    ) -> Iterator[Dict[str, Any]]:
        """Batches for fairseq-eval-lm: the streams of validation unless ``--batch-size`` is given.

        Raises:
            InputError: ``--context-window`` is given, which carried state makes meaningless.
        """
        if context_window > 0:
            raise InputError(
                "--context-window has no place in stateful_language_modeling: the state carries "
                "all of the context"
            )
        if batch_size is None:
            batch_size = self.state.state_dict.get("streams_valid", 1)
        kwargs.pop("max_positions", None)
        iterator = self.get_batch_iterator(dataset, max_sentences=batch_size, **kwargs)
        return _Stateful(iterator.next_epoch_itr(shuffle=False), self)

    def train_step(
        self,
        sample: Dict[str, Any],
        model: nn.Module,
        criterion: nn.Module,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> Tuple[torch.Tensor, int, Dict[str, Any]]:
        """One step, from the state that the last window left."""
        sample = self.with_state(sample, training=True)
        result = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        if self.args.disable_validation:
            self._gather_states()
        return result

    def valid_step(
        self, sample: Dict[str, Any], model: nn.Module, criterion: nn.Module
    ) -> Tuple[torch.Tensor, int, Dict[str, Any]]:
        """One step of evaluation, from the state that the last window left."""
        return super().valid_step(self.with_state(sample, training=False), model, criterion)

    def with_state(self, sample: Dict[str, Any], training: bool) -> Dict[str, Any]:
        """The sample with the carried state as an input of the model."""
        carried = self._carried[training]
        carried.begin(sample["window"])
        return {**sample, "net_input": {**sample["net_input"], "carried_state": carried}}

    def begin_valid_epoch(self, epoch: int, model: nn.Module) -> None:
        """Called in every process before a checkpoint is saved: the time to gather the states."""
        self._gather_states()

    def _gather_states(self) -> None:
        """All processes' states, in the order of the streams; only one process saves them."""
        states = self._carried[True].final_states()
        if states is None or not (dist.is_available() and dist.is_initialized()):
            self._gathered = None
            return
        self._gathered = []
        for state in states:
            parts = []
            for part in state:
                pieces = [torch.empty_like(part) for _ in range(dist.get_world_size())]
                dist.all_gather(pieces, part.contiguous())
                parts.append(torch.cat(pieces))
            self._gathered.append(tuple(parts))

    def get_checkpoint_dict(self) -> Dict[str, Any]:
        """What fairseq saves with a checkpoint for :meth:`set_checkpoint_dict`."""
        carried = self._carried[True]
        states = self._gathered if self._gathered is not None else carried.final_states()
        if states is None or carried.next_window >= len(self._train_windows):
            return {}  # an epoch starts from the initial state
        record = {
            "next_window": carried.next_window,
            "states": [tuple(part.cpu() for part in state) for state in states],
        }
        return {type(self).__name__: record}

    def set_checkpoint_dict(self, record: Dict[str, Any]) -> None:
        """Continue within an epoch, with this process's streams."""
        windows = self._train_windows
        rows = slice(windows.first_row, windows.first_row + windows.batch_size)
        states = [tuple(part[rows] for part in state) for state in record["states"]]
        self._carried[True].restore(record["next_window"], states)

    def build_bpe(self, args: Any) -> Any:
        """The data directory's character codec, where there is one and no other ``--bpe``."""
        return super().build_bpe(args) or build_codec_encoder(self.codec)


class _Stateful:
    """An iterator over evaluation batches that hands each one the carried state."""

    def __init__(self, batches: Any, task: "StatefulLanguageModelingTask") -> None:
        self._batches = batches
        self._task = task

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        for sample in self._batches:
            yield self._task.with_state(sample, training=False)
