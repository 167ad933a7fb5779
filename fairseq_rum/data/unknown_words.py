"""Words outside the vocabulary as marks of their place in the source, so that they can be copied.

Within an example an unknown word of the source is the marker ``<unk-K>``, where K is the position
of its first occurrence (See et al. 2017; the convention of fairseq's pointer-generator example).
The markers are the last symbols of the dictionary. Which word a marker stands for is kept in a text
file beside each binarized side of a split.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Optional, Union

import numpy as np

from fairseq_rum.errors import InputError

UNKNOWN = "<unk>"
SPECIAL_SYMBOLS = ("<s>", "<pad>", "</s>", UNKNOWN)  # fairseq's, in the order of their indices

_MARKER = re.compile(r"<unk-(0|[1-9][0-9]*)>", re.ASCII)


def marker(position: int) -> str:
    """The marker of the unknown word that first occurs at a position, from 0."""
    return f"<unk-{position}>"


def marker_position(token: str) -> Optional[int]:
    """The position in a marker; None for any other token."""
    found = _MARKER.fullmatch(token)
    return None if found is None else int(found[1])


def is_reserved(word: str) -> bool:
    """Whether a word looks like a marker or a special symbol: it is never an ordinary word."""
    return word.startswith("<") and (word in SPECIAL_SYMBOLS or _MARKER.fullmatch(word) is not None)


def count_markers(symbols: Sequence[str]) -> int:
    """The number of markers that a dictionary ends with: ``<unk-0>`` up to the last symbol.

    Raises:
        ValueError: the last symbols are markers, but not in a row that begins with ``<unk-0>``.
    """
    last = marker_position(symbols[-1]) if symbols else None
    if last is None:
        return 0
    start = len(symbols) - last - 1
    if start < 0 or any(symbols[start + k] != marker(k) for k in range(last + 1)):
        raise ValueError(f"the dictionary's markers are not {marker(0)} to {marker(last)} in a row")
    return last + 1


def mark_source(
    words: Sequence[str], known: Container[str], markers: int
) -> tuple[list[str], list[str]]:
    """Replace the unknown words of a source by markers.

    Args:
        words: the source, truncated, each word without white space.
        known: the ordinary vocabulary. Words that look like markers or special symbols count as
            unknown, whether they are in it or not.
        markers: the number of markers in the dictionary, at least the number of words.

    Returns:
        The tokens, as many as words, and the distinct unknown words in the order of their first
        occurrence, which is the order of their markers.

    Raises:
        ValueError: there are more words than markers.
    """
    if len(words) > markers:
        raise ValueError(f"a source of {len(words)} words needs as many markers, got {markers}")
    tokens = []
    marks: dict[str, str] = {}
    for position, word in enumerate(words):
        if word in known and not is_reserved(word):
            tokens.append(word)
        else:
            tokens.append(marks.setdefault(word, marker(position)))
    return tokens, list(marks)


def marked_words(tokens: Iterable[str], unknown: Sequence[str]) -> dict[str, str]:
    """Marker -> word, for the tokens and unknown words that :func:`mark_source` returned.

    Raises:
        ValueError: there are not as many distinct markers as unknown words.
    """
    found = dict.fromkeys(token for token in tokens if _MARKER.fullmatch(token))
    if len(found) != len(unknown):
        raise ValueError(f"{len(found)} markers in the source, but {len(unknown)} unknown words")
    return dict(zip(found, unknown))


def mark_target(
    words: Sequence[str], known: Container[str], words_of_markers: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Replace the unknown words of a target by the markers of its source, or by ``<unk>``.

    Args:
        words: the target, each word without white space.
        known: the ordinary vocabulary, as for :func:`mark_source`.
        words_of_markers: of the source, see :func:`marked_words`.

    Returns:
        The tokens, and the words that became ``<unk>``, each as often as it does, in order.
    """
    marks = {word: mark for mark, word in words_of_markers.items()}
    tokens, unknown = [], []
    for word in words:
        if word in known and not is_reserved(word):
            tokens.append(word)
        elif word in marks:
            tokens.append(marks[word])
        else:
            tokens.append(UNKNOWN)
            unknown.append(word)
    return tokens, unknown


def unmark(
    tokens: Iterable[str],
    words_of_markers: Mapping[str, str],
    unknown: Optional[Sequence[str]] = None,
) -> list[str]:
    """The words of a source, a target or a hypothesis: the inverse of marking.

    Args:
        tokens: words, markers and ``<unk>``.
        words_of_markers: of the source, see :func:`marked_words`.
        unknown: what stands for each ``<unk>``, as :func:`mark_target` returned it; None to leave
            ``<unk>`` as it is.

    Raises:
        ValueError: a marker that the source has not, or not as many ``<unk>`` as unknown words.
    """
    words = []
    rest = iter(() if unknown is None else unknown)
    for token in tokens:
        if token == UNKNOWN and unknown is not None:
            word = next(rest, None)
            if word is None:
                raise ValueError(f"more {UNKNOWN} in the target than its {len(unknown)} words")
            words.append(word)
        elif token in words_of_markers:
            words.append(words_of_markers[token])
        elif _MARKER.fullmatch(token):
            raise ValueError(f"{token} is not in the source")
        else:
            words.append(token)
    if next(rest, None) is not None:
        raise ValueError(f"fewer {UNKNOWN} in the target than its {len(unknown or ())} words")
    return words


def side_file(
    data: Union[str, os.PathLike], split: str, source: str, target: str, side: str
) -> str:
    """The path of the unknown words of one side of a split, beside fairseq's binary files.

    Args:
        data: the data directory.
        split: ``train``, ``valid``, ``test`` ...
        source, target: the names of the two sides.
        side: one of the two.
    """
    return os.path.join(data, f"{split}.{source}-{target}.{side}.unknown")


def format_unknown(unknown: Iterable[str]) -> str:
    """The line of a side file for the unknown words of one example, with its end."""
    return " ".join(unknown) + "\n"


class UnknownWords(Sequence):
    """The unknown words of each example of a split, read from a side file.

    The file is kept as one piece of bytes, and words are decoded when asked for: 300,000 examples
    take little more memory than the file, in worker processes too.

    Args:
        data: the content of a side file.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
        if data and not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        self._ends = ends

    @classmethod
    def load(cls, path: Union[str, os.PathLike], examples: int) -> UnknownWords:
        """Read a side file.

        Args:
            path: see :func:`side_file`.
            examples: the number of examples in the split.

        Raises:
            InputError: the file is missing, not UTF-8, or has not one line for each example.
        """
        try:
            with open(path, "rb") as file:
                data = file.read()
            data.decode("utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 at byte offset {error.start}") from error
        words = cls(data)
        if len(words) != examples:
            raise InputError(
                f"{path}: has {len(words):,} lines, but the split has {examples:,} examples"
            )
        return words

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> list[str]:  # type: ignore[override]
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        index %= len(self)
        start = self._ends[index - 1] + 1 if index else 0
        line = self._data[start : self._ends[index]].decode("utf-8")
        return line.split(" ") if line else []

    def __iter__(self) -> Iterator[list[str]]:
        return (self[index] for index in range(len(self)))
