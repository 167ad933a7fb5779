"""Pairs of a text and its summary, read from the forms in which corpora come.

Each reader yields the pairs in order and reads as it goes. A file that cannot be read as what it is
said to be raises :class:`InputError` with the file and the line.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_rum.data.sentences import split_sentences
from fairseq_rum.errors import InputError

PARTS = ("paragraphs", "sentences")

# A line of a story that ends otherwise gets a full stop, as in See et al.'s preparation.
_LINE_ENDS = (".", "!", "?", "...", "'", "`", '"', "\u2019", "\u201d", ")")
_HIGHLIGHT = "@highlight"


@dataclass(frozen=True)
class Pair:
    """A text and its summaries.

    Args:
        source: the pieces of the text, in order.
        targets: its summaries, the first of which is trained on.
        parts: which of :data:`PARTS` the pieces may be taken for; none if nothing is known.
    """

    source: Sequence[str]
    targets: Sequence[str]
    parts: Sequence[str] = ()

    def text(self) -> str:
        """The whole source."""
        return "\n".join(self.source)

    def shuffled(self, part: str, seed: str) -> Pair:
        """The same with the paragraphs or sentences of the source in an order that the seed gives.

        Sentences that the file does not tell apart are found by ``split_sentences``.

        Raises:
            ValueError: where paragraphs end is not known.
        """
        if part in self.parts:
            pieces = list(self.source)
        elif part == "sentences":
            pieces = [sentence for piece in self.source for sentence in split_sentences(piece)]
        else:
            raise ValueError(f"the {part} of a text are not known in this form")
        random.Random(seed).shuffle(pieces)
        return Pair(pieces, self.targets, (part,))


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of each line of a UTF-8 file; a line ends at ``\\n`` alone.

    Raises:
        InputError: the file cannot be read, or is not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
                try:
                    yield number, line.decode("utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise InputError(f"{path}, line {number}: not UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def read_aligned(source: str, target: str) -> Iterator[Pair]:
    """Pairs from two files: line n of one is the summary of line n of the other.

    Raises:
        InputError: the files have different numbers of lines; found out at the end.
    """
    counts = {source: 0, target: 0}
    for texts in itertools.zip_longest(read_lines(source), read_lines(target)):
        for path, line in zip(counts, texts):
            counts[path] += line is not None
        if None not in texts:
            (_, text), (_, summary) = texts
            yield Pair([text], [summary])
    if counts[source] != counts[target]:
        raise InputError(
            f"{source} has {counts[source]:,} lines, but {target} has {counts[target]:,}"
        )


def read_stories(urls: str, folders: Sequence[str]) -> Iterator[Pair]:
    """Pairs from the stories of CNN and Daily Mail, in the order of a list of their URLs.

    The story of a URL is the file HASH.story in one of the folders, with the SHA-1 of the URL. Its
    lines are the paragraphs, those after ``@highlight`` the summary.

    Raises:
        InputError: no folder has the story of a URL, or a story has no highlights.
    """
    for number, url in read_lines(urls):
        if not url.strip():
            continue
        name = hashlib.sha1(url.strip().encode("utf-8")).hexdigest() + ".story"
        paths = [os.path.join(folder, name) for folder in folders]
        path = next(filter(os.path.isfile, paths), None)
        if path is None:
            raise InputError(
                f"{urls}, line {number}: no file {name}, the story of {url.strip()}, in "
                f"{', '.join(folders)}"
            )
        yield read_story(path)


def read_story(path: str) -> Pair:
    """The pair of one ``.story`` file.

    Raises:
        InputError: there is no ``@highlight`` in it.
    """
    paragraphs: list[str] = []
    highlights: list[str] = []
    seen = False
    for _, line in read_lines(path):
        line = line.strip()
        if line.startswith(_HIGHLIGHT):
            seen = True
        elif line:
            sentence = line if line.endswith(_LINE_ENDS) else f"{line} ."
            (highlights if seen else paragraphs).append(sentence)
    if not seen:
        raise InputError(f"{path}: has no {_HIGHLIGHT}")
    return Pair(paragraphs, ["\n".join(highlights)], ("paragraphs",))


def read_json_lines(path: str, source: str, target: str) -> Iterator[Pair]:
    """Pairs from a file with one JSON object a line, as SciTLDR's.

    Args:
        path: the file; empty lines are passed over.
        source: the field of the text: a string, whose lines are its paragraphs, or a list of
            strings, whose items are shuffled as they are.
        target: the field of the summary: a string, or a list of summaries of the same text.

    Raises:
        InputError: a line is not JSON, or a field is missing or something else.
    """
    for number, line in read_lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}: not JSON ({error})") from error
        except RecursionError as error:
            raise InputError(f"{where}: not JSON that can be read (nested too deep)") from error
        if not isinstance(record, dict):
            raise InputError(f"{where}: not a JSON object")
        text, summary = (_strings(record, name, where) for name in (source, target))
        if not summary:
            raise InputError(f"{where}: the list {target!r} is empty")
        if isinstance(record[source], str):
            yield _pair_of_text(record[source], summary)
        else:
            yield Pair(text, summary, PARTS)


def _strings(record: dict[str, Any], name: str, where: str) -> list[str]:
    """A field that is a string or a list of strings, as a list."""
    if name not in record:
        have = ", ".join(map(repr, sorted(record)))
        raise InputError(f"{where}: no field {name!r}, there are {have}"[:500])
    value = record[name]
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in values):
        raise InputError(f"{where}: field {name!r} is neither a string nor a list of strings")
    try:
        "".join(values).encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: field {name!r} has half of a surrogate pair") from error
    return values


def read_csv(path: str, source: str, target: str, delimiter: str = ",") -> Iterator[Pair]:
    """Pairs from two columns of a table, whose first row has the names of the columns.

    Args:
        path: the file.
        source: the column of the text; the lines of a cell are its paragraphs.
        target: the column of the summary.
        delimiter: what separates columns.

    Raises:
        InputError: a column is missing, a row is too short or too long, or quotes do not match.
    """
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a C long
    lines = (f"{line}\n" for _, line in read_lines(path))
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next(rows, [])
        for name in (source, target):
            if header.count(name) != 1:
                have = ", ".join(map(repr, header))
                raise InputError(f"{path}: not one column {name!r}, the first row has {have}"[:500])
        columns = header.index(source), header.index(target)
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise InputError(
                    f"{path}, line {rows.line_num}: {len(row)} columns, but the first row has "
                    f"{len(header)}"
                )
            text, summary = (row[column] for column in columns)
            yield _pair_of_text(text, [summary])
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num}: not CSV ({error})") from error


def _pair_of_text(text: str, targets: Iterable[str]) -> Pair:
    paragraphs = [line for line in text.splitlines() if line.strip()]
    return Pair(paragraphs, list(targets), ("paragraphs",))
