"""Reads what ``fairseq-generate --attention-path`` wrote, see :class:`SummaryRecord`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from fairseq_rum.data.summaries import read_lines
from fairseq_rum.errors import InputError

_FIELDS = {"id", "source", "summary", "p_gen", "attention"}


@dataclass(frozen=True)
class RecordedSummary:
    """One summary and where its words came from.

    Attributes:
        index: of the example; None for text that was typed.
        source, summary: words, S and T of them.
        p_gen: ``(T,)``, the probability of generating a word instead of copying one.
        attention: ``(T, S)``.
    """

    index: Optional[int]
    source: Sequence[str]
    summary: Sequence[str]
    p_gen: np.ndarray
    attention: np.ndarray

    @property
    def coverage(self) -> np.ndarray:
        """How much all words of the summary together attended to each of the source, ``(S,)``."""
        return self.attention.sum(0)

    @property
    def copied(self) -> np.ndarray:
        """How much of each word of the summary was copied from each place, ``(T, S)``.

        It is (1 - p_gen) times the attention, where the words at both places are the same.
        """
        words, places = (np.array(side, dtype=object) for side in (self.summary, self.source))
        same = (words[:, None] == places[None, :]).astype(float)
        return (1.0 - self.p_gen)[:, None] * self.attention * same

    @property
    def coverage_loss(self) -> float:
        """See et al.'s coverage loss, the mean over the words of what they attended to again."""
        before = self.attention.cumsum(0) - self.attention
        return float(np.minimum(self.attention, before).sum(1).mean()) if len(self.summary) else 0.0


def read_recorded(path: str) -> list[RecordedSummary]:
    """All summaries of a file, in its order.

    Raises:
        InputError: the file is missing or empty, or a line is not of this form.
    """
    records = []
    for number, line in read_lines(path):
        try:
            records.append(_parse(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(
                f"{path}: line {number} is not from fairseq-generate --attention-path ({error})"
            ) from error
    if not records:
        raise InputError(f"{path}: there are no summaries in it")
    return records


def _parse(value: Any) -> RecordedSummary:
    if not isinstance(value, dict) or not _FIELDS <= value.keys():
        raise ValueError(f"no object with {', '.join(sorted(_FIELDS))}")
    source, summary = _words(value["source"]), _words(value["summary"])
    p_gen = np.asarray(value["p_gen"], dtype=float)
    rows = value["attention"]
    # A text without words has an end mark to attend to.
    attention = np.asarray([row if source else [] for row in rows], dtype=float)
    attention = attention.reshape(len(rows), -1) if len(rows) else np.zeros((0, len(source)))
    shapes = (len(summary),), (len(summary), len(source))
    if (p_gen.shape, attention.shape) != shapes:
        raise ValueError(
            f"{len(summary)} words of {len(source)}, but p_gen of {p_gen.shape} and attention of "
            f"{attention.shape}"
        )
    if not (np.isfinite(p_gen).all() and np.isfinite(attention).all()):
        raise ValueError("a number is not finite")
    index = value["id"]
    if index is not None and not isinstance(index, int):
        raise ValueError(f"id {index!r} is no number")
    return RecordedSummary(index, source, summary, p_gen, attention)


def _words(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ValueError("no list of words")
    return value
