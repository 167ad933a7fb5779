"""Sentences of a text, by rules that need no model: for ROUGE-Lsum, baselines and shuffling."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ENDS = frozenset(".!?")
_CLOSERS = frozenset(["''", '"', "'", ")", "]", "-rrb-", "-RRB-", "\u201d", "\u2019"])
_ENDS_SENTENCE = re.compile(r"""[.!?]['")\]\u201d\u2019]*$""")
_BEGINS_SENTENCE = re.compile(r"""['"(\[\u201c\u2018]*[A-Z0-9]""")
_ABBREVIATION = re.compile(
    r"""['"(\[\u201c\u2018]*(?:(?:[A-Za-z]\.)+|(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Fig|Eq|No|vs|al|cf)\.)$"""
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text in order, without the white space around them.

    A line end ends a sentence. Within a line that is tokenized, which shows in a ``.``, ``!`` or
    ``?`` that stands alone, a sentence ends there, after closing quotes and brackets. In any other
    line it ends after a word that ends in one of these, unless that is an abbreviation such as
    ``Dr.`` or ``U.S.`` or the next word begins in lower case.
    """
    return [sentence for line in text.split("\n") for sentence in _sentences_of_line(line)]


def _sentences_of_line(line: str) -> Iterator[str]:
    words = line.split()
    ends = _tokenized_ends(words) or _plain_ends(words)
    start = 0
    for end in [*ends, len(words)]:
        if end > start:
            yield " ".join(words[start:end])
        start = end


def _tokenized_ends(words: list[str]) -> list[int]:
    ends = []
    for index, word in enumerate(words):
        if word in _ENDS:
            end = index + 1
            while end < len(words) and words[end] in _CLOSERS:
                end += 1
            ends.append(end)
    return ends


def _plain_ends(words: list[str]) -> list[int]:
    return [
        index + 1
        for index, (word, following) in enumerate(zip(words, words[1:]))
        if _ENDS_SENTENCE.search(word)
        and _BEGINS_SENTENCE.match(following)
        and not _ABBREVIATION.match(word)
    ]
