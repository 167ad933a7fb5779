"""Marks for unknown words: what is copied comes out as the word it was, whatever it looked like."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_rum.data.summary_text import SummaryText
from fairseq_rum.data.unknown_words import (
    SPECIAL_SYMBOLS,
    UnknownWords,
    count_markers,
    format_unknown,
    mark_source,
    mark_target,
    marked_words,
    marker,
    marker_position,
    side_file,
    unmark,
)
from fairseq_rum.errors import InputError

TRICKY = ("<unk-0>", "<unk-3>", "<unk-03>", "<unk-x>", "<<unk>>", "<unk-٣>", *SPECIAL_SYMBOLS)
WORDS = st.sampled_from(["a", "b", "c", *TRICKY]) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1
).map(lambda text: "".join(text.split()) or "x")


def test_by_hand():
    known = {"the", "sat"}
    source = "the Owl sat Owl by the Yew".split()
    tokens, unknown = mark_source(source, known, markers=7)
    assert tokens == "the <unk-1> sat <unk-1> <unk-4> the <unk-6>".split()
    assert unknown == ["Owl", "by", "Yew"]
    words = marked_words(tokens, unknown)
    assert words == {"<unk-1>": "Owl", "<unk-4>": "by", "<unk-6>": "Yew"}

    target = "Yew , the Owl , sat".split()
    marked, missing = mark_target(target, known, words)
    assert marked == "<unk-6> <unk> the <unk-1> <unk> sat".split()
    assert missing == [",", ","]
    assert unmark(marked, words, missing) == target
    assert unmark(marked, words) == "Yew <unk> the Owl <unk> sat".split()


def test_marking_is_that_of_fairseqs_example():
    """The pointer-generator example of fairseq marks the same words in the same way."""
    import io
    import runpy
    from pathlib import Path

    import fairseq

    script = Path(fairseq.__path__[0]) / "examples" / "pointer_generator" / "preprocess.py"
    replace = runpy.run_path(str(script))["replace_oovs"]
    source, target, known = "a X b Y X Z", "Z a X W", {"a", "b", "W"}
    outputs = io.StringIO(), io.StringIO()
    replace([source], [target], known, *outputs)
    tokens, unknown = mark_source(source.split(), known, 6)
    marked, _ = mark_target(target.split(), known, marked_words(tokens, unknown))
    assert [" ".join(tokens) + "\n", " ".join(marked) + "\n"] == [o.getvalue() for o in outputs]


@given(st.lists(WORDS, max_size=12), st.lists(WORDS, max_size=8), st.sets(WORDS, max_size=8))
def test_round_trip(source, target, known):
    """decode(encode(x)) = x for any words: those that look like markers or symbols too."""
    tokens, unknown = mark_source(source, known, markers=12)
    assert len(tokens) == len(source) and len(set(unknown)) == len(unknown)
    assert not set(SPECIAL_SYMBOLS).intersection(tokens)
    words = marked_words(tokens, unknown)
    assert unmark(tokens, words) == source
    for position, token in enumerate(tokens):
        if marker_position(token) is not None:
            assert source.index(source[position]) == marker_position(token)

    marked, missing = mark_target(target, known, words)
    assert unmark(marked, words, missing) == target
    assert all(token in known or token in words or token == "<unk>" for token in marked)

    lines = format_unknown(unknown) + format_unknown(missing)
    read = UnknownWords(lines.encode())
    assert [read[0], read[1]] == [unknown, missing]


def test_fairseq_reads_the_tokens_that_were_written():
    """Whatever is in a word, fairseq's line of tokens is the one that marking made."""
    from fairseq.tokenizer import tokenize_line

    words = "a\u200bb \ufeffx <unk-2> é e\u0301 \U0010ffff".split()
    tokens, _ = mark_source(words, set(words), 6)
    assert tokenize_line(" ".join(tokens) + "\n") == tokens


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: mark_source(["a"] * 3, {"a"}, 2), "3 words needs as many markers, got 2"),
        (lambda: marked_words(["<unk-0>"], []), "1 markers in the source, but 0 unknown words"),
        (lambda: unmark(["<unk-7>"], {"<unk-6>": "x"}), "<unk-7> is not in the source"),
        (lambda: unmark(["<unk>"], {}, []), "more <unk> in the target than its 0 words"),
        (lambda: unmark(["a"], {}, ["x"]), "fewer <unk> in the target than its 1 words"),
        (lambda: count_markers(["a", "<unk-1>"]), "not <unk-0> to <unk-1> in a row"),
        (lambda: count_markers(["<unk-1>", "<unk-1>"]), "not <unk-0> to <unk-1> in a row"),
    ],
)
def test_contradictions_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_markers_end_the_dictionary():
    assert count_markers([]) == count_markers(["a", "<unk-1>", "b"]) == 0
    assert count_markers(["a", "<unk-1>", *map(marker, range(3))]) == 3
    assert marker_position(marker(399)) == 399
    assert [marker_position(word) for word in TRICKY[2:]] == [None] * len(TRICKY[2:])


def test_side_file(tmp_path):
    path = side_file(tmp_path, "train", "source", "target", "target")
    assert path == str(tmp_path / "train.source-target.target.unknown")
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(map(format_unknown, [["é", "x\u2028y".replace("\u2028", "")], [], ["z"]]))
    words = pickle.loads(pickle.dumps(UnknownWords.load(path, 3)))
    assert list(words) == [["é", "xy"], [], ["z"]]
    assert words[-1] == ["z"]
    with pytest.raises(IndexError):
        words[3]
    assert len(UnknownWords(b"")) == 0
    assert list(UnknownWords(b"a b\n\nc")) == [["a", "b"], [], ["c"]]  # cut off at the end


def test_side_file_that_is_wrong(tmp_path):
    path = tmp_path / "unknown"
    with pytest.raises(InputError, match="unknown: cannot be read"):
        UnknownWords.load(path, 1)
    path.write_bytes(b"a\n\n")
    with pytest.raises(InputError, match="unknown: has 2 lines, but the split has 1,234 examples"):
        UnknownWords.load(path, 1234)
    path.write_bytes(b"ab\xff\n")
    with pytest.raises(InputError, match="unknown: not UTF-8 at byte offset 2"):
        UnknownWords.load(path, 1)


def test_settings_are_kept(tmp_path):
    settings = SummaryText("none", "de", True, 7, 3, 8)
    settings.save(tmp_path / "summarization.json")
    assert SummaryText.load(tmp_path / "summarization.json") == settings


@pytest.mark.parametrize(
    "settings, text, words",
    [
        (SummaryText("none", lowercase=True), "<s> A b.\tC </s> <s>x", "a b. c <s>x"),
        (SummaryText("moses"), "It's  Mr. B's <s> (RUM) owl. ", "It 's Mr. B 's ( RUM ) owl ."),
        (SummaryText("moses"), "a < b & <unk-3> | [c] \"d\"", "a < b & < unk-3 > | [ c ] \" d \""),
        (SummaryText("moses"), " \t ", ""),
    ],
)  # fmt: skip
def test_text_to_words(settings, text, words):
    assert settings.preprocess(text) == words.split()
    assert settings.preprocess_source(text) == words.split()


def test_source_is_truncated():
    settings = SummaryText("none", source_length=3, markers=5)
    assert settings.preprocess_source("a b c d e") == ["a", "b", "c"]
    assert settings.preprocess("a b c d e") == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "not a file that fairseq-rum prepare summarization wrote"),
        ("[]", "expected an object with tokenizer, language, lowercase"),
        ('{"tokenizer": "moses"}', "expected an object"),
        (
            '{"tokenizer": "none", "language": "en", "lowercase": 1, "source_length": 4,'
            ' "target_length": 1, "markers": 4}',
            "lowercase has a value of the wrong type",
        ),
        (
            '{"tokenizer": "no", "language": "en", "lowercase": true, "source_length": 4,'
            ' "target_length": 1, "markers": 4}',
            "tokenizer 'no' is none of moses, none",
        ),
        (
            '{"tokenizer": "none", "language": "en", "lowercase": true, "source_length": 4,'
            ' "target_length": 1, "markers": 3}',
            "source_length 4 is above the 3 markers",
        ),
    ],
)
def test_settings_that_are_malformed(tmp_path, text, message):
    path = tmp_path / "summarization.json"
    path.write_text(text)
    with pytest.raises(InputError, match=f"summarization.json: .*{message}"):
        SummaryText.load(path)
