"""How raw text becomes the words of summarization data: kept in its ``summarization.json``."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Union

from fairseq_rum.errors import InputError

SETTINGS_FILE = "summarization.json"
TOKENIZERS = ("moses", "none")

_SENTENCE_MARK = re.compile(r"(?<!\S)</?s>(?!\S)")


@dataclass(frozen=True)
class SummaryText:
    """The settings of a data set from ``fairseq-rum prepare summarization``.

    Args:
        tokenizer: ``moses`` (sacremoses), or ``none`` for text that is tokenized already: its words
            are what white space separates.
        language: for the rules of ``moses``.
        lowercase: lower case, after tokenization.
        source_length: words that a source keeps, its first ones.
        target_length: the same of targets in training and validation. Those of the test splits are
            kept whole: they are the references.
        markers: the number of markers in the dictionary, see ``unknown_words``.
    """

    tokenizer: str = "moses"
    language: str = "en"
    lowercase: bool = False
    source_length: int = 400
    target_length: int = 100
    markers: int = 400

    def __post_init__(self) -> None:
        if self.tokenizer not in TOKENIZERS:
            raise ValueError(f"tokenizer {self.tokenizer!r} is none of {', '.join(TOKENIZERS)}")
        for name in ("source_length", "target_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is below 1")
        if self.markers < self.source_length:
            raise ValueError(
                f"source_length {self.source_length} is above the {self.markers} markers"
            )

    def preprocess(self, text: str) -> list[str]:
        """The words of a text, not truncated; the marks ``<s>`` and ``</s>`` are left out."""
        text = _SENTENCE_MARK.sub(" ", text)
        text = text if self.tokenizer == "none" else _moses(self.language)(text)
        return (text.lower() if self.lowercase else text).split()

    def preprocess_source(self, text: str) -> list[str]:
        """The words of a source, truncated."""
        return self.preprocess(text)[: self.source_length]

    def save(self, path: Union[str, os.PathLike]) -> None:
        """Write the JSON file."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=2)
            file.write("\n")

    @classmethod
    def load(cls, path: Union[str, os.PathLike]) -> SummaryText:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: the file is missing or malformed.
        """
        try:
            with open(path, encoding="utf-8") as file:
                return cls._from_json(json.load(file))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise InputError(
                f"{path}: not a file that fairseq-rum prepare summarization wrote ({error})"
            ) from error

    @classmethod
    def _from_json(cls, data: object) -> SummaryText:
        names = [entry.name for entry in fields(cls)]
        if not isinstance(data, dict) or set(data) != set(names):
            raise ValueError(f"expected an object with {', '.join(names)}")
        for name in names:
            # type() and not isinstance(): True is an int.
            if type(data[name]) is not type(getattr(cls, name)):
                raise ValueError(f"{name} has a value of the wrong type")
        return cls(**data)


@functools.cache
def _moses(language: str) -> Callable[[str], str]:
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        raise InputError("tokenization needs sacremoses: pip install sacremoses") from error
    return functools.partial(MosesTokenizer(lang=language).tokenize, return_str=True, escape=False)
