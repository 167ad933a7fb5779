"""Whatever a file, a stream or a batch looks like; what other files fuzz is not repeated here."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from test_cells import CASES, close, make, name_of
from test_rouge import TYPES, of

from fairseq_rum.data.babi import read_babi
from fairseq_rum.data.rouge import MEASURES, Rouge
from fairseq_rum.errors import InputError
from fairseq_rum.kernels import run_sequence
from fairseq_rum.layers import RecurrentLayer

PIECES = [
    b"1", b"2", b"0", b"-1", b"9" * 30, b" ", b"\t", b"\n", b"\r\n", b"\r", b"?", b".", b",",
    b"Mary", b"Where is Mary", b"</s>", b"<unk>", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xc2\xb2",
    b"\xe2\x80\xa8", b"\xc2\x85", b"\x0b", b"1 Mary went home.\n", b"2 Where?\thome\t1\n",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=4), max_size=14).map(b"".join))
@settings(max_examples=500, deadline=None)
def test_babi_reads_or_refuses_any_bytes(data):
    """Questions that fairseq's tokenizer leaves alone, or one sentence that names the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "qa1")
        path.write_bytes(data)
        try:
            questions = read_babi(path)
        except InputError as error:
            assert str(error).startswith(str(path)) and len(str(error).splitlines()) == 1
            return
    assert questions
    for question in questions:
        assert len(question.answer.split()) == 1 and question.question
        for words in (*question.story, question.question):
            assert " ".join(words).split() == list(words)
        assert all(0 <= fact < len(question.story) for fact in question.supporting)


@given(st.text(), st.text())
@settings(max_examples=200, deadline=None)
def test_rouge_of_any_text_is_that_of_rouge_score(reference, hypothesis):
    theirs = RougeScorer(list(TYPES)[:3], use_stemmer=True).score(reference, hypothesis)
    ours = of(Rouge(), [reference], hypothesis)
    for kind, score in theirs.items():
        expected = [100 * getattr(score, measure) for measure in MEASURES]
        assert ours[kind] == pytest.approx(expected)


units = pytest.mark.parametrize("unit, options", [c[:2] for c in CASES], ids=map(name_of, CASES))


@units
@given(cuts=st.lists(st.integers(0, 9), max_size=4).map(sorted))
@settings(max_examples=10, deadline=None)
def test_state_is_carried_over_any_cuts(unit, options, cuts):
    """In float64: pieces of any lengths, none included, are the whole sequence."""
    torch.manual_seed(1)
    cell = make(unit, options).eval()
    x = torch.randn(2, 9, cell.input_size, dtype=torch.float64)
    whole, end = run_sequence(cell, x, cell.init_state(2))
    state, pieces = cell.init_state(2), []
    for first, last in zip([0, *cuts], [*cuts, 9]):
        output, state = run_sequence(cell, x[:, first:last], state)
        pieces.append(output)
    close(torch.cat(pieces, dim=1), whole)
    for part, expected in zip(state, end):
        close(part, expected)


@units
@given(before=st.integers(0, 4), after=st.integers(0, 4), reverse=st.booleans())
@settings(max_examples=10, deadline=None)
def test_padding_on_either_side_changes_nothing(unit, options, before, after, reverse):
    torch.manual_seed(1)
    cell = make(unit, options).eval()
    layer = RecurrentLayer(cell, reverse)
    x = torch.randn(2, 5, cell.input_size, dtype=torch.float64)
    expected, end = layer(x)
    padded = torch.randn(2, before + 5 + after, cell.input_size, dtype=torch.float64)
    padded[:, before : before + 5] = x
    mask = torch.ones(padded.shape[:2], dtype=torch.bool)
    mask[:, before : before + 5] = False
    output, state = layer(padded, padding_mask=mask)
    close(output[~mask].view_as(expected), expected)
    assert not output[mask].any()
    for part, whole in zip(state, end):
        close(part, whole)
