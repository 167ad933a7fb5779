"""A dictionary that can name words outside it, so that fairseq's commands print real words."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Optional

import torch
from fairseq.data import Dictionary
from fairseq.tokenizer import tokenize_line
from torch import Tensor

from fairseq_rum.data.dictionaries import load_dictionary
from fairseq_rum.data.unknown_words import count_markers, is_reserved, marker
from fairseq_rum.errors import InputError


class PointerDictionary(Dictionary):
    """Symbols, markers among them, and beyond both the unknown words met lately.

    An unknown word of a text gets an index from ``len(dictionary)`` on, which no model and no file
    sees: :meth:`mark` makes markers of such indices before a text goes into a model, :meth:`unmark`
    puts them in the place of markers in what comes out. fairseq's commands call :meth:`string` on
    both, as of any dictionary. ``len`` does not change.

    An index stands for one word and is not used again. Only the latest words are kept, so that a
    long run takes no more memory than a short one: older ones read as ``<unk>``.
    """

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.capacity = 5000
        self._index_of: OrderedDict[str, int] = OrderedDict()
        self._word_of: dict[int, str] = {}
        self._given = 0
        self._markers: Optional[int] = None

    @classmethod
    def load(cls, f: str) -> PointerDictionary:
        """Read a dictionary file.

        Raises:
            InputError: it is missing or malformed, or its markers are not at its end in a row.
        """
        dictionary = load_dictionary(f, cls)
        try:
            dictionary._markers = count_markers(dictionary.symbols)
        except ValueError as error:
            raise InputError(f"{f}: {error}") from error
        return dictionary

    @property
    def markers(self) -> int:
        """How many markers there are; their indices are the last ones."""
        if self._markers is None:
            self._markers = count_markers(self.symbols)
        return self._markers

    def reserve(self, words: int) -> None:
        """Keep at least so many of the latest unknown words."""
        self.capacity = max(self.capacity, words)

    def encode_words(self, words: Iterable[str]) -> list[int]:
        """The index of each word; words that look like markers or special symbols are ``<unk>``."""
        return [self._encode(word) for word in words]

    def encode_line(
        self,
        line: str,
        line_tokenizer: Callable[[str], Sequence[str]] = tokenize_line,
        add_if_not_exist: bool = True,
        consumer: Optional[Callable[[str, int], None]] = None,
        append_eos: bool = True,
        reverse_order: bool = False,
    ) -> torch.IntTensor:
        """The indices of a text's words; unknown words get one beyond the dictionary in any case.

        Nothing is added to the dictionary, whose length models and generators rely on.
        """
        words = line_tokenizer(line)
        indices = self.encode_words(reversed(words) if reverse_order else words)
        if consumer is not None:
            for word, index in zip(words, indices):
                consumer(word, index)
        return torch.IntTensor(indices + [self.eos()] if append_eos else indices)

    def __getitem__(self, idx: int) -> str:
        return self.symbols[idx] if idx < len(self) else self._word_of.get(int(idx), self.unk_word)

    def mark(self, tokens: Tensor) -> Tensor:
        """Replace each unknown word of sources by its marker, or by ``<unk>`` where there is none.

        Args:
            tokens: ``(B, S)``, padded on either side; positions count from the first word.
        """
        marked = tokens.clone()
        for row in (tokens >= len(self)).any(1).nonzero().flatten().tolist():
            places = tokens[row].ne(self.pad()).nonzero().flatten()
            indices = tokens[row, places].tolist()
            first: dict[int, int] = {}
            for position, index in enumerate(indices):
                if index >= len(self):
                    indices[position] = self._marker_index(first.setdefault(index, position))
            marked[row, places] = marked.new_tensor(indices)
        return marked

    def unmark(self, tokens: Tensor, source: Tensor) -> Tensor:
        """Replace each marker by the word that it stands for.

        Args:
            tokens: ``(T,)``, a hypothesis for this source.
            source: ``(S,)``, the source before :meth:`mark`.
        """
        words = source[source.ne(self.pad())]
        positions = tokens - (len(self) - self.markers)
        is_marker = positions >= 0
        if not bool(is_marker.any()):
            return tokens
        is_word = is_marker & (positions < len(words))
        chosen = words[positions.clamp(0, len(words) - 1)].to(tokens)
        is_word &= chosen >= len(self)
        return torch.where(is_word, chosen, tokens.masked_fill(is_marker, self.unk()))

    def mark_constraints(self, constraints: Tensor, source: Tensor) -> Tensor:
        """Replace each unknown word of fairseq's packed constraints by its marker in the source.

        Args:
            constraints: ``(B, C)``.
            source: ``(B, S)``, before :meth:`mark`.

        Raises:
            InputError: the source has no such word.
        """
        result, marked = constraints.clone(), self.mark(source)
        for row, place in (constraints >= len(self)).nonzero().tolist():
            found = source[row].eq(constraints[row, place]).nonzero().flatten()
            if not len(found):
                word = self[int(constraints[row, place])]
                raise InputError(
                    f"constraint {word!r} is neither in the dictionary nor in its text"
                )
            result[row, place] = marked[row, found[0]]
        return result

    def _marker_index(self, position: int) -> int:
        if position >= self.markers:
            return self.unk()
        return self.indices[marker(position)]

    def _encode(self, word: str) -> int:
        if is_reserved(word):
            return self.unk()
        index = self.indices.get(word)
        if index is not None:
            return index
        index = self._index_of.get(word)
        if index is None:
            index = len(self) + self._given
            self._given += 1
            self._index_of[word] = index
            self._word_of[index] = word
            while len(self._index_of) > self.capacity:
                _, oldest = self._index_of.popitem(last=False)
                del self._word_of[oldest]
        else:
            self._index_of.move_to_end(word)
        return index
