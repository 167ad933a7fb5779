"""Questions about stories as a fairseq dataset, from what ``fairseq-rum prepare babi`` wrote."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset, data_utils

from fairseq_rum.data.dictionaries import load_dictionary
from fairseq_rum.data.indexed import load_split
from fairseq_rum.errors import InputError

PARTS = ("story", "question", "answer")
UNSEEN = -100
"""The class of an answer that no training question has: criterions leave it out, as torch does."""


def load_dictionaries(data: str) -> Tuple[Dictionary, Dictionary]:
    """The words, and the answers, of a data directory.

    Raises:
        InputError: the directory or a dictionary is missing, or a dictionary is malformed.
    """
    if not os.path.isdir(data):
        raise InputError(f"no data directory {data!r}")
    dictionaries = {}
    for part in PARTS:
        path = os.path.join(data, part, "dict.txt")
        if not os.path.isfile(path):
            raise InputError(
                f"no dictionary {path!r}: is this a directory of fairseq-rum prepare babi?"
            )
        dictionaries[part] = load_dictionary(path)
    if dictionaries["story"] != dictionaries["question"]:
        raise InputError(f"{data}: stories and questions have different dictionaries")
    return dictionaries["story"], dictionaries["answer"]


def load_questions(
    data: str, split: str, words: Dictionary, answers: Dictionary, shuffle: bool
) -> QuestionDataset:
    """A split of a data directory.

    Args:
        data: the directory, with a folder for stories, questions and answers.
        split: train, valid, test, ...
        words: the dictionary of stories and questions.
        answers: the dictionary of answers.
        shuffle: other batches in every epoch.

    Raises:
        InputError: a part of the split is missing, empty, or unlike the others.
    """
    parts = []
    for part in PARTS:
        dictionary = answers if part == "answer" else words
        found = load_split(os.path.join(data, part, split), dictionary)
        parts.append([found[index].numpy() for index in range(len(found))])
    if len({len(part) for part in parts}) > 1:
        sizes = ", ".join(f"{len(rows)} of {part}" for part, rows in zip(PARTS, parts))
        raise InputError(f"split {split} ({data}): its parts differ in length, {sizes}")
    story, question, answer = parts
    if not story:
        raise InputError(f"split {split} ({data}) is empty")
    if any(len(row) != 2 for row in answer):
        raise InputError(f"split {split} ({data}): an answer is not one symbol")
    # The end of an empty story is no sentence.
    stories = [row if len(row) > 1 else row[:0] for row in story]
    classes = np.array([row[0] for row in answer], dtype=np.int64) - answers.nspecial
    classes[classes < 0] = UNSEEN
    return QuestionDataset(stories, question, classes, words.pad(), words.eos(), shuffle)


class QuestionDataset(FairseqDataset):
    """Examples are a story and then a question, a sequence of words with an end to each sentence.

    An item is its own index: the collater makes the batch at once, out of one flat array. Batches
    are of stories with similar numbers of sentences, which is what padding costs.

    Args:
        stories: words of each story, every sentence ended by ``eos``; may be empty.
        questions: words of each question, ended by ``eos``.
        classes: the answers, from 0; :data:`UNSEEN` for one that the model has no class for.
        pad: the padding symbol.
        eos: the symbol at the end of a sentence.
        shuffle: draw the order of examples of a length from numpy's generator, which fairseq seeds.
    """

    def __init__(
        self,
        stories: Sequence[np.ndarray],
        questions: Sequence[np.ndarray],
        classes: np.ndarray,
        pad: int,
        eos: int,
        shuffle: bool = False,
    ) -> None:
        rows = [part for pair in zip(stories, questions) for part in pair]
        self._words = np.concatenate(rows).astype(np.int32)
        lengths = np.array([len(row) for row in rows], dtype=np.int64).reshape(-1, 2).sum(1)
        self._starts = np.cumsum(lengths) - lengths
        self._lengths = lengths
        ends = np.concatenate([[0], np.cumsum(self._words == eos)])
        self.sentences = ends[self._starts + lengths] - ends[self._starts]
        self._classes = classes
        self._pad = pad
        self._shuffle = shuffle

    def __len__(self) -> int:
        return len(self._classes)

    def __getitem__(self, index: int) -> int:
        return index

    def collater(self, samples: Sequence[int]) -> Dict[str, Any]:
        """The batch of these examples, padded at the end."""
        if not len(samples):
            return {}  # fairseq's sign that a process has no batch left
        items = np.asarray(samples, dtype=np.int64)
        lengths = self._lengths[items]
        steps = np.arange(lengths.max())
        inside = steps < lengths[:, None]
        tokens = np.full(inside.shape, self._pad, dtype=np.int64)
        tokens[inside] = self._words[(self._starts[items, None] + steps)[inside]]
        return {
            "id": torch.from_numpy(items),
            "nsentences": len(items),
            "ntokens": int(lengths.sum()),
            "net_input": {
                "src_tokens": torch.from_numpy(tokens),
                "src_lengths": torch.from_numpy(lengths),
            },
            "target": torch.from_numpy(self._classes[items]),
        }

    def batches(
        self, max_sentences: Optional[int], max_tokens: Optional[int], seed: int, epoch: int
    ) -> List[np.ndarray]:
        """The split cut into batches of similar length, each example in one of them.

        Args:
            max_sentences: at most so many examples.
            max_tokens: at most so many words, padding included.
            seed, epoch: what the order depends on, with ``shuffle``.

        Raises:
            InputError: an example is longer than ``max_tokens``.
        """
        longest = int(self._lengths.max())
        if max_tokens is not None and longest > max_tokens:
            raise InputError(f"--max-tokens {max_tokens}: there is a story of {longest} words")
        with data_utils.numpy_seed(seed, epoch):
            indices = self.ordered_indices()
        return data_utils.batch_by_size(
            indices,
            self.num_tokens,
            num_tokens_vec=self._lengths[indices],
            max_tokens=max_tokens,
            max_sentences=max_sentences,
        )

    def num_tokens(self, index: int) -> int:
        """Words of an example."""
        return int(self._lengths[index])

    def size(self, index: int) -> int:
        """Words of an example."""
        return int(self._lengths[index])

    def ordered_indices(self) -> np.ndarray:
        """All examples, by their number of sentences."""
        order = np.random.permutation(len(self)) if self._shuffle else np.arange(len(self))
        return order[np.argsort(self.sentences[order], kind="stable")]
