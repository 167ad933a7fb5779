"""Pairs of a source and a summary, cut to length, with the real words behind their markers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import LanguagePairDataset
from torch import Tensor

from fairseq_rum.data.pointer_dictionary import PointerDictionary
from fairseq_rum.data.unknown_words import UnknownWords, marked_words, unmark
from fairseq_rum.errors import InputError


class SummarizationDataset(LanguagePairDataset):
    """A split, or lines of text to be summarized.

    As in See et al. 2017, the encoder reads the first ``source_length`` words and no end mark (an
    empty source is an end mark alone), and the loss is of the first ``target_length`` steps, which
    include the end mark of a summary that is short enough. A marker in the target for a word that
    was cut from the source becomes ``<unk>``.

    Args:
        dictionary: of both sides.
        source: rows of indices, each ended by the end mark.
        source_sizes: their lengths.
        source_length: words kept.
        target, target_sizes, target_length: the same for the summaries, where there are any.
        split: the name of the split, which each batch carries; None for lines of text.
        unknown: gives the unknown words of source and target of all examples, see
            ``unknown_words``; called when real words are asked for the first time.
        shuffle: the order of examples of one length.
        constraints: fairseq's, of lexically constrained decoding.
    """

    def __init__(
        self,
        dictionary: PointerDictionary,
        source: Sequence[Tensor],
        source_sizes: Sequence[int],
        source_length: int,
        target: Optional[Sequence[Tensor]] = None,
        target_sizes: Optional[Sequence[int]] = None,
        target_length: Optional[int] = None,
        split: Optional[str] = None,
        unknown: Optional[Callable[[], tuple[UnknownWords, UnknownWords]]] = None,
        shuffle: bool = False,
        constraints: Any = None,
    ) -> None:
        sizes = np.clip(np.asarray(source_sizes) - 1, 1, source_length)
        if target is not None:
            target_sizes = np.minimum(np.asarray(target_sizes), target_length)
        super().__init__(
            source,
            sizes,
            dictionary,
            target,
            target_sizes,
            dictionary,
            left_pad_source=False,
            shuffle=shuffle,
            constraints=constraints,
        )
        self.dictionary = dictionary
        self.source_length = source_length
        self.target_length = target_length
        self.split = split
        self._load_unknown = unknown
        self._unknown: Optional[tuple[UnknownWords, UnknownWords]] = None

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = super().__getitem__(index)
        source = example["source"]
        source = source[: min(self.source_length, max(len(source) - 1, 1))]
        example["source"] = source
        if example["target"] is not None:
            target = example["target"][: self.target_length]
            first_marker = len(self.dictionary) - self.dictionary.markers
            is_lost = (target >= first_marker) & ~torch.isin(target, source)
            example["target"] = target.masked_fill(is_lost, self.dictionary.unk())
        return example

    def collater(
        self, samples: list[dict[str, Any]], pad_to_length: Optional[dict[str, int]] = None
    ) -> dict[str, Any]:
        """fairseq's batch of pairs, with ``split``."""
        batch = super().collater(samples, pad_to_length)
        if batch and self.split is not None:
            batch["split"] = self.split
        return batch

    def source_words(self, index: int) -> list[str]:
        """The words of a source, as it is cut."""
        tokens = self._symbols(self.src[index])
        unknown = self._unknown_words(0, index)
        return self._checked(index, unmark, tokens, self._marks(index, tokens, unknown))[
            : self.source_length
        ]

    def target_words(self, index: int) -> list[str]:
        """The words of a summary, whole."""
        source = self._symbols(self.src[index])
        marks = self._marks(index, source, self._unknown_words(0, index))
        tokens = self._symbols(self.tgt[index])
        return self._checked(index, unmark, tokens, marks, self._unknown_words(1, index))

    def _symbols(self, tokens: Tensor) -> list[str]:
        symbols = self.dictionary.symbols
        return [symbols[token] for token in tokens.tolist()[:-1]]

    def _unknown_words(self, side: int, index: int) -> Optional[list[str]]:
        if self._load_unknown is None:
            return None
        if self._unknown is None:
            self._unknown = self._load_unknown()
        return self._unknown[side][index]

    def _marks(
        self, index: int, tokens: Sequence[str], unknown: Optional[Sequence[str]]
    ) -> dict[str, str]:
        return self._checked(index, marked_words, tokens, unknown or [])

    def _checked(self, index: int, function: Callable, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except ValueError as error:
            raise InputError(
                f"example {index} of {self.split}: the .unknown files do not belong to the "
                f"binarized text ({error})"
            ) from error
