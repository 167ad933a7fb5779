"""Text as a sequence of characters or bytes, in a form that fairseq-preprocess keeps intact.

fairseq-preprocess reads a text file with universal newlines, splits each line at any Unicode white
space and ends it with ``</s>``. So each character (or byte) is one token without white space, and
the newline has no token of its own but is ``</s>``. A file of n characters gives n targets.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fairseq_rum.errors import InputError

CODEC_FILE = "codec.json"
UNITS = ("characters", "bytes")

NEWLINE = "</s>"
SPACE = "\u2581"

_ESCAPED_CHARACTER = re.compile(r"U\+([0-9A-F]{4,6})")


class _CharacterTokens(dict[str, str]):
    """Character -> token; entries are made when first asked for."""

    def __missing__(self, character: str) -> str:
        # Printable characters but the space are never white space or line ends (tested for all).
        plain = character.isprintable() and character != SPACE
        token = self[character] = character if plain else f"U+{ord(character):04X}"
        return token


class _TokenCharacters(dict[str, str]):
    """Token -> character, the inverse of :class:`_CharacterTokens`."""

    def __missing__(self, token: str) -> str:
        escaped = _ESCAPED_CHARACTER.fullmatch(token)
        if len(token) == 1:
            character = token
        elif escaped and int(escaped[1], 16) < 0x110000:
            character = chr(int(escaped[1], 16))
        else:
            raise KeyError(token)
        self[token] = character
        return character


def _byte_token(byte: int) -> str:
    # 0x21 to 0x7E is printable ASCII without the space.
    return chr(byte) if 0x21 <= byte <= 0x7E else f"0x{byte:02X}"


class CharCodec:
    """Lines of text to tokens and back, without loss for any text and any bytes.

    ===========  ===============================================  ==================
    unit         printable                                        anything else
    ===========  ===============================================  ==================
    characters   itself; the space is ``▁`` (U+2581)              ``U+000D`` (hex)
    bytes        ASCII: itself; the space is ``▁``                ``0x0D`` (hex)
    ===========  ===============================================  ==================

    The newline, ``\\n`` and no other, is ``</s>``. The character ``▁`` is ``U+2581``. Which
    characters are printable grows with Python's Unicode version; decoding does not depend on it.

    Args:
        unit: ``characters`` (Unicode code points) or ``bytes``.

    Raises:
        ValueError: there is no such unit.
    """

    def __init__(self, unit: str = "characters") -> None:
        if unit not in UNITS:
            raise ValueError(f"unknown unit {unit!r}, choose one of {', '.join(UNITS)}")
        self.unit = unit
        self._encode: dict[Any, str]
        self._decode: dict[str, Any]
        if unit == "characters":
            self._encode = _CharacterTokens({"\n": NEWLINE, " ": SPACE})
            self._decode = _TokenCharacters({NEWLINE: "\n", SPACE: " "})
        else:
            self._encode = {byte: _byte_token(byte) for byte in range(256)}
            self._encode.update({ord("\n"): NEWLINE, ord(" "): SPACE})
            self._decode = {token: bytes([byte]) for byte, token in self._encode.items()}

    def encode_line(self, line: str | bytes) -> list[str]:
        """The tokens of a text, one for each character or byte.

        For a line that fairseq-preprocess is to read, leave its newline out: fairseq adds ``</s>``.

        Raises:
            UnicodeError: text and bytes do not convert into each other as UTF-8.
        """
        if self.unit == "characters" and isinstance(line, bytes):
            line = line.decode("utf-8")
        elif self.unit == "bytes" and isinstance(line, str):
            line = line.encode("utf-8")
        return list(map(self._encode.__getitem__, line))

    def decode_line(self, tokens: Iterable[str]) -> str | bytes:
        """The text (unit characters) or bytes (unit bytes) of some tokens.

        Raises:
            ValueError: a token is none of this unit, such as ``<unk>``.
        """
        empty = "" if self.unit == "characters" else b""
        try:
            return empty.join(map(self._decode.__getitem__, tokens))
        except KeyError as error:
            raise ValueError(f"{error.args[0]!r} is no token of the unit {self.unit}") from None

    def decode_stream(self, tokens: Iterable[str], final_newline: bool = True) -> str | bytes:
        """The original text of a binarized split.

        Args:
            tokens: all rows' tokens one after another, each row with its ``</s>``.
            final_newline: as recorded in :class:`CodecInfo`. If false, the last ``</s>`` was added
                by fairseq-preprocess and is dropped.

        Raises:
            ValueError: as :meth:`decode_line`, or there is no last ``</s>`` to drop.
        """
        text = self.decode_line(tokens)
        if final_newline:
            return text
        if text[-1:] not in ("\n", b"\n"):
            raise ValueError(f"the tokens do not end with {NEWLINE}")
        return text[:-1]


@dataclass(frozen=True)
class SplitInfo:
    """What the binarized form of a split does not tell.

    Args:
        final_newline: whether the text ends with a newline. If not, the last ``</s>`` of the split
            was added by fairseq-preprocess and is no target.
        symbols: the number of targets: characters or bytes of the text, newlines included.
    """

    final_newline: bool
    symbols: int


@dataclass(frozen=True)
class CodecInfo:
    """How the text of a data directory became symbols; kept in its ``codec.json``.

    Args:
        unit: ``characters`` or ``bytes``.
        splits: split name, such as ``train`` or ``valid1`` -> its :class:`SplitInfo`.
    """

    unit: str
    splits: dict[str, SplitInfo]

    def save(self, path: str | os.PathLike) -> None:
        """Write the JSON file."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=2)
            file.write("\n")

    @classmethod
    def load(cls, path: str | os.PathLike) -> CodecInfo:
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
                f"{path}: not a file that fairseq-rum prepare chars wrote ({error})"
            ) from error

    @classmethod
    def _from_json(cls, data: Any) -> CodecInfo:
        if not isinstance(data, dict) or set(data) != {"unit", "splits"}:
            raise ValueError("expected an object with unit and splits")
        if data["unit"] not in UNITS:
            raise ValueError(f"unit {data['unit']!r} is none of {', '.join(UNITS)}")
        if not isinstance(data["splits"], dict):
            raise ValueError("splits is no object")
        splits = {}
        for name, split in data["splits"].items():
            if not isinstance(split, dict) or set(split) != {"final_newline", "symbols"}:
                raise ValueError(f"split {name!r} needs final_newline and symbols")
            # type() and not isinstance(): True is an int.
            if type(split["final_newline"]) is not bool or type(split["symbols"]) is not int:
                raise ValueError(f"split {name!r} has a value of the wrong type")
            splits[name] = SplitInfo(**split)
        return cls(data["unit"], splits)
