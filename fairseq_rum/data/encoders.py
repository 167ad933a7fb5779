"""fairseq's ``--bpe rum_characters`` and ``--bpe rum_bytes``: raw text in, raw text out.

For fairseq-interactive and the hub interface, on data from ``fairseq-rum prepare chars``.
"""

from __future__ import annotations

import os
from typing import Optional

from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass

from fairseq_rum.data.char_codec import CODEC_FILE, CharCodec, CodecInfo


class RumEncoderConfig(FairseqDataclass):
    """No options; fairseq needs it to keep the encoder's name in its own config."""


@register_bpe("rum_characters", dataclass=RumEncoderConfig)
class RumCharacters:
    """Text to space separated tokens of :class:`CharCodec` and back, by characters.

    What no token is, such as ``<unk>`` in a model's output, stays as it is.
    """

    unit = "characters"

    def __init__(self, *unused: object) -> None:
        self.codec = CharCodec(self.unit)

    def encode(self, x: str) -> str:
        """Text to tokens. A newline inside becomes ``</s>``, which fairseq's dictionary knows."""
        return " ".join(self.codec.encode_line(x))

    def decode(self, x: str) -> str:
        """Tokens to text."""
        return "".join(self._decode_token(token) for token in x.split())

    def _decode_token(self, token: str) -> str | bytes:
        try:
            return self.codec.decode_line([token])
        except ValueError:
            return token


@register_bpe("rum_bytes", dataclass=RumEncoderConfig)
class RumBytes(RumCharacters):
    """As :class:`RumCharacters`, by the bytes of UTF-8; what is not UTF-8 decodes to U+FFFD."""

    unit = "bytes"

    def decode(self, x: str) -> str:
        """Tokens to text."""
        parts = (self._decode_token(token) for token in x.split())
        data = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
        return data.decode("utf-8", errors="replace")


_ENCODERS = {encoder.unit: encoder for encoder in (RumCharacters, RumBytes)}


def build_codec_encoder(codec: Optional[CodecInfo]) -> Optional[RumCharacters]:
    """The encoder for data that ``fairseq-rum prepare chars`` made; None for other data."""
    return None if codec is None else _ENCODERS[codec.unit]()


def codec_encoder_name(model_dir: str, data_dir: str) -> Optional[str]:
    """The ``--bpe`` for a data directory, found as fairseq's hub interface finds it."""
    folder = os.path.join(model_dir, data_dir) if data_dir.startswith(".") else data_dir
    path = os.path.join(folder, CODEC_FILE)
    return f"rum_{CodecInfo.load(path).unit}" if os.path.isfile(path) else None
