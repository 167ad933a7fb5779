"""Reading recorded summaries, and the page of `fairseq-rum attn-vis` as a parser sees it."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from fairseq_rum.cli.main import main
from fairseq_rum.data.recorded_summaries import RecordedSummary, read_recorded
from fairseq_rum.errors import InputError
from fairseq_rum.viz.attention_page import Example, attention_page

HOSTILE = ["<script>alert(1)</script>", '"><img', "onerror=x", "</style>", "]]>", "&amp;", "<!--",
           "\u202eright", "a\x00b", "\ud800", "javascript:x", "é😀"]  # fmt: skip
VOID = {"meta", "br", "img", "link"}


class Page(HTMLParser):
    """Checks that elements are closed in their order, and collects what the page says."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.words, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)
        if self.open and self.open[-1] == "bdi":
            self.words.append(data)


def check_self_contained(text):
    page = Page(text)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "svg"}
    for _, attributes in page.elements:
        for name in attributes:
            assert not name.startswith("on") and name not in ("src", "href", "srcset", "action")
        if "style" in attributes:
            assert re.fullmatch(r"(--[cv]:[01]\.\d\d;?)+", attributes["style"])
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in style and "@import" not in style and "http" not in style
    return page


def record(source, summary, p_gen, attention, index=0):
    return RecordedSummary(
        index, source, summary, np.array(p_gen), np.array(attention).reshape(len(p_gen), -1)
    )


def test_copying_and_coverage_by_hand():
    one = record(
        ["anna", "met", "bert", "anna"],
        ["bert", "saw", "anna"],
        [0.2, 0.9, 0.5],
        [[0.1, 0.1, 0.7, 0.1], [0.4, 0.2, 0.4, 0], [0.3, 0, 0.1, 0.6]],
    )
    np.testing.assert_allclose(one.coverage, [0.8, 0.3, 1.2, 0.7])
    expected = [[0, 0, 0.8 * 0.7, 0], [0, 0, 0, 0], [0.15, 0, 0, 0.3]]
    np.testing.assert_allclose(one.copied, expected)
    second = 0.1 + 0.1 + 0.4 + 0
    third = min(0.3, 0.5) + 0 + min(0.1, 1.1) + min(0.6, 0.1)
    assert one.coverage_loss == pytest.approx((0 + second + third) / 3)
    empty = RecordedSummary(None, [], [], np.zeros(0), np.zeros((0, 0)))
    assert empty.copied.shape == (0, 0) and empty.coverage_loss == 0


def test_the_page_says_what_it_should():
    one = record(["anna", "met", "bert"], ["bert", "ran"], [0.1, 0.98],
                 [[0.0, 0.1, 0.9], [0.5, 0.004, 0.5]])  # fmt: skip
    text = attention_page([Example("Example 7", "bert left", {"RUM": one})], "T & T")
    page = check_self_contained(text)
    said = "".join(page.texts)
    for part in ("T & T", "Example 7", "Reference: bert left", "RUM", "0.10", "0.98",
                 "copies 46%", "coverage loss 0.25"):  # fmt: skip
        assert part in said
    words = [attributes for tag, attributes in page.elements if tag == "bdi"][2:]
    assert [attributes.get("style") for attributes in words] == [
        "--c:0.81", None, "--v:0.50", "--v:0.10", "--c:0.81;--v:1.00",
    ]  # fmt: skip
    notes = [attributes.get("title") for attributes in words]
    assert notes[2:] == ["coverage 0.50", "coverage 0.10", "coverage 1.40, copied 0.81 as word 1"]


def test_everything_is_escaped():
    count = len(HOSTILE)
    attention = np.full((count, count), 1 / count)
    one = record(HOSTILE, HOSTILE, np.full(count, 0.1), attention)
    example = Example(" ".join(HOSTILE), " ".join(HOSTILE), {"<b>LEAD": one, "RUM": one})
    text = attention_page([example], "<title>")
    page = check_self_contained(text)
    expected = [word.replace("\x00", "\ufffd").replace("\ud800", "\ufffd") for word in HOSTILE]
    assert page.words[2:] == expected * 4, "twice in each of two runs"
    assert "".join(page.texts).count(f"Reference: {' '.join(expected)}") == 1
    text.encode("utf-8")


def test_both_columns_and_an_empty_text():
    empty = RecordedSummary(3, [], [], np.zeros(0), np.zeros((0, 0)))
    text = attention_page([Example("e", None, {"LEAD": empty, "RUM": empty})], "t")
    page = check_self_contained(text)
    assert [a.get("class") for tag, a in page.elements if tag in ("div", "section")] == [
        "runs", "run", "run",
    ]  # fmt: skip
    assert "Reference" not in "".join(page.texts)


def line(index=0, source=("a", "b"), summary=("b",), p_gen=(0.5,), attention=((0.2, 0.8),)):
    return {"id": index, "source": source, "summary": summary, "p_gen": p_gen,
            "attention": attention}  # fmt: skip


def write(path, *values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def test_reading(tmp_path):
    path = write(tmp_path / "a.jsonl", line(4), line(None, (), ("x",), (1.0,), ((1.0,),)),
                 line(2, ("a",), (), (), ()))  # fmt: skip
    first, typed, nothing = read_recorded(str(path))
    assert (first.index, first.source, first.summary) == (4, ["a", "b"], ["b"])
    np.testing.assert_array_equal(first.attention, [[0.2, 0.8]])
    assert typed.index is None and typed.attention.shape == (1, 0)
    assert nothing.attention.shape == (0, 1) and nothing.coverage.tolist() == [0]


@pytest.mark.parametrize(
    "value, message",
    [
        ({}, "no object with attention, id, p_gen"),
        ([], "no object with"),
        (line(source="ab"), "no list of words"),
        (line(source=["a", 1]), "no list of words"),
        (line(p_gen=[0.5, 0.5]), "but p_gen of"),
        (line(attention=[[0.2]]), "attention of"),
        (line(attention=[[0.2, float("nan")]]), "not finite"),
        (line(index="x"), "id 'x' is no number"),
    ],
)
def test_lines_that_are_none(tmp_path, value, message):
    path = write(tmp_path / "a.jsonl", line(), value)
    with pytest.raises(InputError, match=f"a.jsonl: line 2 is not from .*({message})"):
        read_recorded(str(path))


@pytest.fixture
def files(tmp_path):
    write(tmp_path / "lead.jsonl", line(1), line(0), line(2))
    write(tmp_path / "rum.jsonl", line(2, ["a", "b", "c"], ["c"], [0.1], [[0, 0, 1]]), line(1))
    lines = [f"{letter}-{i}\t{text}" for i in range(3)
             for letter, text in (("S", "a b"), ("T", f"<ref {i}>"), ("H", "-1\tb"))]  # fmt: skip
    (tmp_path / "generate-test.txt").write_text("\n".join(lines))
    return tmp_path


def test_command(files, capsys):
    out = files / "page.html"
    arguments = ["attn-vis", "--runs", f"LEAD={files / 'lead.jsonl'}", str(files / "rum.jsonl"),
                 "--generated", str(files / "generate-test.txt"), "--out", str(out)]  # fmt: skip
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{out}: 2 examples by LEAD, rum\n"
    page = check_self_contained(out.read_text(encoding="utf-8"))
    said = "".join(page.texts)
    assert said.index("Example 1") < said.index("<ref 1>") < said.index("Example 2")
    assert "Example 0" not in said
    assert main([*arguments, "--limit", "1"]) == 0
    assert "Example 2" not in out.read_text()
    assert main([*arguments, "--examples", "2", "2"]) == 0
    assert "Example 1" not in out.read_text()


def test_bad_input(files, capsys):
    lead, rum, out = (str(files / name) for name in ("lead.jsonl", "rum.jsonl", "page.html"))
    write(files / "other.jsonl", line(1, ["x", "y"]), line(7))
    write(files / "twice.jsonl", line(1), line(1))
    write(files / "below.jsonl", line(-1))
    (files / "deep.jsonl").write_text("[" * 100000 + "\n")
    (files / "bare.txt").write_text("H-0\t-1\tb\n")
    for arguments, message in (
        ([lead, "--out", "a.png"], "--out a.png: the name must end in .html"),
        ([lead, "--out", "no/such/a.html"], "no such folder"),
        ([lead, lead], "two runs are called 'lead'"),
        ([lead, str(files / "absent")], "absent: No such file"),
        ([lead, str(files / "other.jsonl")], "example 1 of 'lead' and 'other' are two texts"),
        ([str(files / "twice.jsonl")], "twice.jsonl: example 1 is there twice"),
        ([lead, rum, "--examples", "0"], "--examples 0: not all runs have it"),
        ([lead, "--limit", "0"], "--limit must be at least 1, got 0"),
        ([lead, "--generated", str(files / "bare.txt")], "no references (T-0 ...) in it"),
        ([str(files / "other.jsonl"), "--examples", "7", "--generated",
          str(files / "generate-test.txt")], "there is no example 7 in it"),
        ([str(files / "below.jsonl"), "--generated", str(files / "generate-test.txt")],
         "there is no example -1 in it"),
        ([str(files / "deep.jsonl")], "deep.jsonl: line 1 is not from fairseq-generate"),
    ):  # fmt: skip
        assert main(["attn-vis", "--out", out, "--runs", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert not (files / "page.html").exists()


def test_from_training_to_the_page(tmp_path, capsys):
    """fairseq-train, fairseq-generate --attention-path, attn-vis."""
    from conftest import USER_DIR, run_fairseq
    from summary_corpus import make_pairs, prepare, train_arguments

    pairs = make_pairs(8)
    pairs[0][3] = "<script>alert(1)</script> " + pairs[0][3]
    data = prepare(tmp_path, pairs, valid=pairs, test=pairs)
    run_fairseq("train", *train_arguments(data, tmp_path, "--max-update", 3))
    attention, results = tmp_path / "rum.jsonl", tmp_path / "results"
    run_fairseq(
        "generate", data, "--user-dir", USER_DIR, "--task", "rum_summarization", "--path",
        tmp_path / "checkpoint_last.pt", "--attention-path", attention, "--results-path", results,
        "--batch-size", 4, "--cpu", "--num-workers", 0, "--beam", 2, "--max-len-b", 8,
    )  # fmt: skip
    out = tmp_path / "page.html"
    assert main(["attn-vis", "--runs", str(attention), "--generated",
                 str(results / "generate-test.txt"), "--out", str(out)]) == 0  # fmt: skip
    page = check_self_contained(out.read_text(encoding="utf-8"))
    said = "".join(page.texts)
    for number, (source, reference) in enumerate(zip(*pairs)):
        assert f"Example {number}" in said and f"Reference: {reference}" in said
        assert source in said
