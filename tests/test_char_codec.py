"""The codec between text and tokens, its record on disk, and fairseq's --bpe front end to it."""

import io
import json
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_rum.data.char_codec import UNITS, CharCodec, CodecInfo, SplitInfo
from fairseq_rum.errors import InputError

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates, too


@given(ANY_TEXT)
def test_characters_round_trip(text):
    codec = CharCodec("characters")
    tokens = codec.encode_line(text)
    assert len(tokens) == len(text)
    assert codec.decode_line(tokens) == text


@given(st.binary())
def test_bytes_round_trip(data):
    codec = CharCodec("bytes")
    tokens = codec.encode_line(data)
    assert len(tokens) == len(data)
    assert codec.decode_line(tokens) == data


@given(st.text())
def test_text_and_its_utf8_are_the_same_input(text):
    for unit in UNITS:
        codec = CharCodec(unit)
        assert codec.encode_line(text) == codec.encode_line(text.encode())


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("characters", "".join(map(chr, range(sys.maxunicode + 1)))),
        ("bytes", bytes(range(256))),
    ],
    ids=UNITS,
)
def test_every_token_passes_through_fairseq(unit, text):
    from fairseq.tokenizer import tokenize_line

    codec = CharCodec(unit)
    tokens = codec.encode_line(text)
    assert len(set(tokens)) == len(tokens) == len(text)
    assert codec.decode_line(tokens) == text

    line = " ".join(tokens)
    assert tokenize_line(line) == tokens
    assert not re.search(r"\s", "".join(tokens))
    assert len(io.StringIO(line, newline=None).readlines()) == 1


@pytest.mark.parametrize(
    ("unit", "text", "tokens"),
    [
        ("characters", "a b", "a ▁ b"),
        ("characters", "▁", "U+2581"),
        ("characters", "U+0041", "U + 0 0 4 1"),
        ("characters", "\r\t\0\x85\u2028\u3000", "U+000D U+0009 U+0000 U+0085 U+2028 U+3000"),
        ("characters", "é日🦉", "é 日 🦉"),
        ("characters", "e\u0301\u200d", "e \u0301 U+200D"),
        ("characters", "\U0010ffff", "U+10FFFF"),
        ("characters", "a\nb\n", "a </s> b </s>"),
        ("characters", "</s>", "< / s >"),
        ("characters", "", ""),
        ("bytes", "a b", "a ▁ b"),
        ("bytes", "▁", "0xE2 0x96 0x81"),
        ("bytes", "0x41", "0 x 4 1"),
        ("bytes", b"\x00\t\r\n\x7f\xff", "0x00 0x09 0x0D </s> 0x7F 0xFF"),
    ],
)
def test_tokens(unit, text, tokens):
    assert CharCodec(unit).encode_line(text) == tokens.split(" ") * bool(tokens)


@pytest.mark.parametrize(
    ("unit", "token"),
    [
        ("characters", "<unk>"),
        ("characters", "U+110000"),
        ("characters", "U+41"),
        ("characters", ""),
        ("bytes", "é"),
        ("bytes", "0x41"),
        ("bytes", "U+0041"),
    ],
)
def test_what_is_no_token_raises(unit, token):
    with pytest.raises(ValueError, match=re.escape(repr(token))):
        CharCodec(unit).decode_line(["a", token])


def test_unknown_unit_names_the_known_ones():
    with pytest.raises(ValueError, match="'words'.*characters, bytes"):
        CharCodec("words")


def test_bytes_that_are_not_utf8_are_no_characters():
    with pytest.raises(UnicodeDecodeError):
        CharCodec("characters").encode_line(b"\xff")


@pytest.mark.parametrize("unit", UNITS)
def test_stream_drops_only_the_newline_that_fairseq_added(unit):
    codec = CharCodec(unit)
    tokens = ["a", "</s>", "</s>"]
    whole = codec.decode_line(tokens)
    assert codec.decode_stream(iter(tokens)) == whole
    assert codec.decode_stream(iter(tokens), final_newline=False) == whole[:-1]
    for wrong in (["a"], []):
        with pytest.raises(ValueError, match="do not end with </s>"):
            codec.decode_stream(wrong, final_newline=False)


def test_info_round_trip(tmp_path):
    info = CodecInfo("bytes", {"train": SplitInfo(True, 12), "valid1": SplitInfo(False, 3)})
    path = tmp_path / "codec.json"
    info.save(path)
    assert CodecInfo.load(path) == info
    assert json.loads(path.read_text()) == {
        "unit": "bytes",
        "splits": {
            "train": {"final_newline": True, "symbols": 12},
            "valid1": {"final_newline": False, "symbols": 3},
        },
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "line 1"),
        ("\xff", "utf-8"),
        ("[]", "unit and splits"),
        ('{"unit": "bytes"}', "unit and splits"),
        ('{"unit": "words", "splits": {}}', "'words'"),
        ('{"unit": ["bytes"], "splits": {}}', "unit"),
        ('{"unit": "bytes", "splits": []}', "splits"),
        ('{"unit": "bytes", "splits": {"train": 1}}', "'train'"),
        ('{"unit": "bytes", "splits": {"train": {"symbols": 1}}}', "'train'"),
        ('{"unit": "bytes", "splits": {"t": {"symbols": true, "final_newline": true}}}', "'t'"),
        ('{"unit": "bytes", "splits": {"t": {"symbols": 1, "final_newline": 1}}}', "'t'"),
    ],
)
def test_malformed_info_is_an_input_error(tmp_path, text, reason):
    path = tmp_path / "codec.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=f"{re.escape(str(path))}: .*{reason}"):
        CodecInfo.load(path)


def test_missing_info_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=re.escape(str(tmp_path / "codec.json"))):
        CodecInfo.load(tmp_path / "codec.json")


def _bpe(name):
    """The encoder as fairseq's commands make it: from their command line."""
    from fairseq import options
    from fairseq.data import encoders
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    import fairseq_rum.data.encoders  # noqa: F401

    command = ["data", "--task", "language_modeling", "--path", "model.pt", "--bpe", name]
    parser = options.get_interactive_generation_parser()
    args = options.parse_args_and_arch(parser, command)
    return encoders.build_bpe(convert_namespace_to_omegaconf(args).bpe)


@pytest.mark.parametrize("unit", UNITS)
def test_bpe_takes_and_gives_raw_text(unit):
    from fairseq.data import Dictionary

    bpe = _bpe(f"rum_{unit}")
    text = "Tom & Jerry\tsaw ▁ 🦉:\n </s> U+0041"
    encoded = bpe.encode(text)
    assert bpe.decode(encoded) == text
    ids = Dictionary().encode_line(encoded, append_eos=False, add_if_not_exist=False).tolist()
    assert ids.count(Dictionary().eos()) == text.count("\n")


@pytest.mark.parametrize("unit", UNITS)
def test_bpe_keeps_what_is_no_token(unit):
    bpe = _bpe(f"rum_{unit}")
    assert (
        bpe.decode("a <unk> ▁ <<unk>> b </s> madeupword0000") == "a<unk> <<unk>>b\nmadeupword0000"
    )
    assert bpe.decode("") == ""


def test_bpe_bytes_that_are_not_utf8_are_replaced():
    assert _bpe("rum_bytes").decode("a 0xC3 b 0xC3 0xA9 é") == "a\ufffdbéé"
