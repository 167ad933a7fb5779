"""The files of the bAbI tasks (Weston et al. 2015, 20 tasks): reading them, checking every line.

A line is a number and a sentence, or a number, a question, an answer and the numbers of the
sentences that support it, with tabs between::

    1 Mary moved to the bathroom.
    2 John went to the hallway.
    3 Where is Mary?<tab>bathroom<tab>1

Numbers count up; a 1 begins a new story. A question is asked of all sentences of its story before
it; earlier questions are no part of the story.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterator, List, Sequence, Tuple, Union

from fairseq_rum.errors import InputError

PUBLISHED = "https://research.facebook.com/downloads/babi/ (tasks_1-20_v1-2.tar.gz)"
SENTENCE_END = "</s>"
"""What ends a sentence of a story, fairseq's own end-of-sentence symbol."""

TASK_NAMES = (
    "single supporting fact",
    "two supporting facts",
    "three supporting facts",
    "two-argument relations",
    "three-argument relations",
    "yes/no questions",
    "counting",
    "lists/sets",
    "simple negation",
    "indefinite knowledge",
    "basic coreference",
    "conjunction",
    "compound coreference",
    "time reasoning",
    "basic deduction",
    "basic induction",
    "positional reasoning",
    "size reasoning",
    "path finding",
    "agent's motivations",
)
"""The tasks in their order: task 1 is the first."""

Sentence = Tuple[str, ...]

_LINE_END = re.compile(r"\r\n|\r|\n")
_LINE = re.compile(r"\s*(\d{1,9})\s+(\S.*)")
_WORD = re.compile(r"\w+(?:[-'\u2019]\w+)*|[^\w\s]")
_RESERVED = ("<s>", "<pad>", "</s>", "<unk>")


@dataclass(frozen=True)
class Question:
    """One example: a question about a story.

    Attributes:
        story: the sentences before the question, as words; may be empty.
        question: its words.
        answer: a class. Answers of several words, ``milk,football``, are one.
        supporting: positions in the story of the sentences that the answer follows from, from 0.
        where: file and line, for messages; no part of what makes two questions equal.
    """

    story: Tuple[Sentence, ...]
    question: Sentence
    answer: str
    supporting: Tuple[int, ...] = field(default=(), compare=False)
    where: str = field(default="", compare=False)

    @property
    def story_text(self) -> str:
        """The story in one line, :data:`SENTENCE_END` between sentences."""
        return f" {SENTENCE_END} ".join(" ".join(sentence) for sentence in self.story)

    @property
    def question_text(self) -> str:
        """The question's words in one line."""
        return " ".join(self.question)


def split_words(text: str) -> Sentence:
    """The words of a sentence in lower case; the full stop or question mark at its end is dropped.

    Punctuation inside is a word of its own, so none of fairseq's special symbols can come out.
    """
    words = _WORD.findall(text.lower())
    if words and words[-1] in (".", "?"):
        words.pop()
    return tuple(words)


def read_babi(path: Union[str, Path]) -> List[Question]:
    """All questions of a file, in their order.

    A byte-order mark and mixed line ends are fine, and so are empty lines.

    Raises:
        InputError: the file cannot be read, is no bAbI file, or a line of it is wrong.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = len(_LINE_END.split(data[: error.start].decode("utf-8", "replace")))
        raise InputError(f"{path}, line {line}: not UTF-8") from error
    questions = list(_parse(_LINE_END.split(text), str(path)))
    if not questions:
        raise InputError(f"{path}: no question in it, is this a bAbI file?")
    return questions


def _parse(lines: Sequence[str], name: str) -> Iterator[Question]:
    story: List[Sentence] = []
    positions: Dict[int, int] = {}  # number of a line -> position in the story
    before = 0
    for index, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {index}"
        number, text = _numbered(line, where)
        if number == 1:
            story, positions = [], {}
        elif number != before + 1:
            expected = f"{before + 1}, or 1 for a new story," if before else "1"
            raise InputError(f"{where}: has number {number} where {expected} was expected")
        before = number
        if "\t" in text:
            yield _question(text, story, positions, where)
            continue
        if text.rstrip().endswith("?"):
            raise InputError(f"{where}: a question without an answer")
        positions[number] = len(story)
        story.append(_words(text, where))


def _numbered(line: str, where: str) -> Tuple[int, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise InputError(f"{where}: not a line of a bAbI file, which is a number and a sentence")
    return int(match[1]), match[2]


def _question(
    text: str, story: Sequence[Sentence], positions: Dict[int, int], where: str
) -> Question:
    question, answer, *rest = (part.strip() for part in text.split("\t"))
    if not answer:
        raise InputError(f"{where}: a question without an answer")
    if len(rest) > 1:
        raise InputError(f"{where}: more than question, answer and supporting facts")
    if len(answer.split()) > 1 or answer.lower() in _RESERVED:
        raise InputError(f"{where}: {answer!r} is no answer, which is words with commas between")
    supporting = []
    for number in rest[0].split() if rest else ():
        if not re.fullmatch(r"\d{1,9}", number) or int(number) not in positions:
            raise InputError(f"{where}: supporting fact {number} is no earlier sentence")
        supporting.append(positions[int(number)])
    words = _words(question, where)
    return Question(tuple(story), words, answer.lower(), tuple(supporting), where)


def _words(text: str, where: str) -> Sentence:
    words = split_words(text)
    if not words:
        raise InputError(f"{where}: a sentence without words")
    return words
