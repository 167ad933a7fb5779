"""``fairseq-rum prepare summarization``: pairs in four forms, to fairseq's binary form and back."""

import csv
import hashlib
import json
import random
import shlex
import tempfile
from pathlib import Path

import pytest
from conftest import USER_DIR, run_fairseq
from fairseq.data import Dictionary, data_utils
from fairseq_cli import preprocess
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_rum.cli.main import main
from fairseq_rum.data.generated import read_generated
from fairseq_rum.data.sentences import split_sentences
from fairseq_rum.data.summaries import (
    Pair,
    read_aligned,
    read_csv,
    read_json_lines,
    read_story,
)
from fairseq_rum.data.summary_text import SummaryText
from fairseq_rum.data.unknown_words import UnknownWords, marked_words, side_file, unmark
from fairseq_rum.errors import InputError

WORDS = "the owl sat on a mat and saw the moon .".split()


def texts(count, seed=1):
    """Lines of words, the rare ones of which occur in few lines."""
    rng = random.Random(seed)
    sources = [[*rng.choices(WORDS, k=rng.randint(4, 12)), f"rare{i}"] for i in range(count)]
    return [" ".join(words) for words in sources], [" ".join(words[-3:]) for words in sources]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def prepare(folder, *options, **splits):
    """Run the command on split=(sources, targets), each a list of lines; its exit status."""
    command = ["prepare", "summarization", "--destdir", str(folder / "data"), *map(str, options)]
    if "--tokenized" not in options and "--language" not in options:
        command.append("--tokenized")
    for split, (sources, targets) in splits.items():
        command += [f"--{split}", write(folder / f"{split}.src", sources)]
        command.append(write(folder / f"{split}.tgt", targets))
    return main(command)


def restore(data, split):
    """The words of both sides of each example, from the binary form and the side files."""
    dictionary = Dictionary.load(str(data / "dict.source.txt"))
    rows, unknown = {}, {}
    for side in ("source", "target"):
        prefix = str(data / f"{split}.source-target.{side}")
        rows[side] = data_utils.load_indexed_dataset(prefix, dictionary)
        path = side_file(data, split, "source", "target", side)
        unknown[side] = UnknownWords.load(path, len(rows[side]))
    pairs = []
    for i in range(len(rows["source"])):
        source, target = ([dictionary[index] for index in rows[side][i].tolist()] for side in rows)
        assert source.pop() == target.pop() == "</s>"
        words = marked_words(source, unknown["source"][i])
        pairs.append(
            (" ".join(unmark(source, words)), " ".join(unmark(target, words, unknown["target"][i])))
        )
    return pairs


def content(data):
    """All files of a data directory but the log."""
    return {path.name: path.read_bytes() for path in data.iterdir() if path.suffix != ".log"}


def test_round_trip_and_files(tmp_path, capsys):
    train, valid, test = texts(40), texts(5, 2), texts(4, 3)
    assert prepare(tmp_path, "--vocabulary", 10, train=train, valid=valid, test=test) == 0
    data = tmp_path / "data"
    for split, expected in (("train", train), ("valid", valid), ("test", test)):
        assert restore(data, split) == list(zip(*expected))
    names = {f"{split}.source-target.{side}.{end}" for split in ("train", "valid", "test")
             for side in ("source", "target") for end in ("bin", "idx", "unknown")}  # fmt: skip
    names |= {f"{split}.{side}.txt" for split in ("valid", "test") for side in ("source", "target")}
    names |= {"dict.source.txt", "dict.target.txt", "summarization.json", "preprocess.log"}
    assert {path.name for path in data.iterdir()} == names
    assert (data / "test.target.txt").read_text() == (tmp_path / "test.tgt").read_text()
    assert SummaryText.load(data / "summarization.json") == SummaryText("none")

    symbols = (data / "dict.source.txt").read_text().splitlines()
    assert symbols == (data / "dict.target.txt").read_text().splitlines()
    assert len(symbols) == 10 + 400 and symbols[10] == "<unk-0> 0" and symbols[-1] == "<unk-399> 0"
    counts = [(-int(count), word) for word, count in (line.split() for line in symbols[:10])]
    assert counts == sorted(counts)

    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("train: 40 pairs, ")
    # The last word of each text is unknown and in its summary.
    assert shown[0].endswith("33.3% of the summaries, of these 100.0% can be copied")
    assert shown[3] == "vocabulary: 10 words and 400 markers"
    command = shlex.split(shown[4].replace("$(fairseq-rum user-dir)", USER_DIR))
    assert command[:2] == ["next:", "fairseq-train"]
    small = "--max-update 1 --embed-dim 4 --encoder-hidden-size 4 --decoder-hidden-size 4 --no-save"
    run_fairseq("train", *command[2:], *small.split(), "--cpu")


ODD_WORDS = [
    *("a", "b", "<unk-0>", "<unk-1>", "<unk>", "<pad>", "é\u200b", "\ufeff", "#fairseq:overwrite"),
    *("\0", "madeupword0000", "🦉", "a:1"),
]


@settings(max_examples=10, deadline=None)  # each calls fairseq-preprocess
@given(
    st.lists(st.tuples(*[st.lists(st.sampled_from(ODD_WORDS), min_size=1, max_size=6)] * 2)),
    st.integers(1, 4),
)
def test_any_words_come_back(pairs, vocabulary):
    with tempfile.TemporaryDirectory() as name:
        # The first character of a file is no byte order mark.
        pairs = [("a", "b"), *((" ".join(source), " ".join(target)) for source, target in pairs)]
        lines = [list(side) for side in zip(*pairs)]
        assert prepare(Path(name), "--vocabulary", vocabulary, test=lines, train=lines) == 0
        assert restore(Path(name) / "data", "train") == pairs
        assert restore(Path(name) / "data", "test") == pairs


def test_fairseq_loads_it_for_translation(tmp_path):
    """What is under fairseq's stock task is an ordinary data set."""
    from fairseq.tasks.translation import TranslationConfig, TranslationTask

    assert prepare(tmp_path, "--source-length", 20, train=texts(6), valid=texts(3)) == 0
    cfg = TranslationConfig(data=str(tmp_path / "data"))
    cfg.dataset_impl, cfg.required_seq_len_multiple = None, 1
    task = TranslationTask.setup_task(cfg)
    task.load_dataset("valid")
    assert len(task.dataset("valid")) == 3
    assert task.source_dictionary == task.target_dictionary


def test_truncation(tmp_path):
    long, short = ["a b c d e f g h"], ["h g f e d c"]
    options = ["--source-length", 3, "--target-length", 2, "--vocabulary", 1]
    splits = dict.fromkeys(("train", "valid", "test"), (long, short))
    assert prepare(tmp_path, *options, **splits) == 0
    data = tmp_path / "data"
    assert restore(data, "train") == restore(data, "valid") == [("a b c", "h g")]
    assert restore(data, "test") == [("a b c", "h g f e d c")], "a reference stays whole"
    assert (data / "test.source.txt").read_text() == "a b c d e f g h\n"
    info = SummaryText.load(data / "summarization.json")
    assert (info.source_length, info.target_length, info.markers) == (3, 2, 3)


def test_vocabulary_counts_what_is_kept(tmp_path):
    options = ["--source-length", 3, "--min-count", 2]
    assert prepare(tmp_path, *options, train=(["a b b z z z", "c"], ["c", "d"])) == 0
    symbols = (tmp_path / "data" / "dict.source.txt").read_text().splitlines()
    assert symbols[:2] == ["b 2", "c 2"] and len(symbols) == 2 + 3


def test_pairs_without_a_side(tmp_path, capsys):
    pairs = (["a", "", "b", "<s> </s>"], ["x", "y", " ", "z"])
    assert prepare(tmp_path, train=pairs, valid=pairs, test=pairs) == 0
    data = tmp_path / "data"
    assert restore(data, "train") == restore(data, "valid") == [("a", "x")]
    assert restore(data, "test") == [("a", "x"), ("", "y"), ("b", ""), ("", "z")]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(", 3 without a text or a summary left out")
    assert lines[2].endswith(", 3 without a text or a summary kept")


def test_dictionary_of_another_corpus(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    assert prepare(first, "--source-length", 5, train=(["a b c"], ["a"])) == 0
    dictionary = first / "data" / "dict.source.txt"
    other = (["q a r b s t u"], ["t q a"])
    assert prepare(second, "--dict", dictionary, test=other) == 0
    data = second / "data"
    assert restore(data, "test") == [("q a r b s", "t q a")]
    assert (data / "dict.target.txt").read_bytes() == dictionary.read_bytes()
    info = SummaryText.load(data / "summarization.json")
    assert info.source_length == info.markers == 5


def test_sacremoses_and_lower_case(tmp_path):
    pair = (["The Owl (old) didn't <unk-0> sleep."], ["<s> Owl's  eyes </s> <s> It's. </s>"])
    assert prepare(tmp_path, "--language", "en", "--lowercase", train=pair) == 0
    assert restore(tmp_path / "data", "train") == [
        ("the owl ( old ) didn 't < unk-0 > sleep .", "owl 's eyes it 's .")
    ]


def test_processes_change_nothing(tmp_path):
    folders = []
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        folder.mkdir()
        options = ["--workers", workers, "--shuffle", "sentences", "--vocabulary", 20]
        assert prepare(folder, *options, train=texts(150), test=texts(9, 2)) == 0
        folders.append(content(folder / "data"))
    assert folders[0] == folders[1]


def test_line_ends_of_other_kinds(tmp_path):
    """A line ends at a newline alone, as in the file that it is aligned with."""
    sources, targets = ["a\r", "b\x85c\u2028d\x0be", "f\rg"], ["x", "y", "z"]
    assert prepare(tmp_path, train=(sources, targets)) == 0
    assert restore(tmp_path / "data", "train") == [("a", "x"), ("b c d e", "y"), ("f g", "z")]


SHA = hashlib.sha1(b"http://a/1").hexdigest()
STORY = "{}\n\nSecond paragraph without a stop\n\n@highlight\n\nOne thing\n\n@highlight\n\nTwo.\n"


def write_stories(folder, urls):
    for url in urls:
        name = hashlib.sha1(url.encode()).hexdigest() + ".story"
        (folder / name).write_text(STORY.format(f"Read {url} now."), encoding="utf-8")


def test_stories(tmp_path):
    cnn, mail = tmp_path / "cnn", tmp_path / "dailymail"
    cnn.mkdir()
    mail.mkdir()
    write_stories(cnn, ["http://a/1"])
    write_stories(mail, ["http://b/é"])
    urls = write(tmp_path / "urls", ["http://b/é", "", "http://a/1"])
    options = ["--format", "stories", "--train", urls, "--stories", cnn, mail]
    assert prepare(tmp_path, *options) == 0
    summary = "One thing . Two."
    assert restore(tmp_path / "data", "train") == [
        (f"Read {url} now. Second paragraph without a stop .", summary)
        for url in ("http://b/é", "http://a/1")
    ]


def test_json_lines_in_the_form_of_scitldr(tmp_path):
    records = [
        {"source": ["A b.", "C d."], "target": ["x", "y"], "title": "T 1", "paper_id": 7},
        {"source": "e\nf", "target": "z", "title": "T 2"},
    ]
    path = write(tmp_path / "json", map(json.dumps, [records[0]]))
    with open(path, "a") as file:
        file.write("\n" + json.dumps(records[1]))
    assert prepare(tmp_path, "--format", "jsonl", "--train", path, "--test", path) == 0
    data = tmp_path / "data"
    assert restore(data, "train") == [("A b. C d.", "x"), ("e f", "z")]
    assert (data / "test.target.txt").read_text() == "x\nz\n"
    assert (data / "test.target1.txt").read_text() == "y\n\n"
    assert not (data / "test.target2.txt").exists() and not (data / "train.target1.txt").exists()

    titles = tmp_path / "titles"
    titles.mkdir()
    options = ["--format", "jsonl", "--train", path, "--target-field", "title"]
    assert prepare(titles, *options) == 0
    assert restore(titles / "data", "train") == [("A b. C d.", "T 1"), ("e f", "T 2")]


def test_references_that_come_late(tmp_path):
    records = [{"source": "a", "target": t} for t in ("x", ["y", "z", "w"], ["v"])]
    path = write(tmp_path / "json", map(json.dumps, records))
    assert prepare(tmp_path, "--format", "jsonl", "--train", path, "--test", path) == 0
    data = tmp_path / "data"
    read = [(data / f"test.target{n}.txt").read_text() for n in ("", 1, 2)]
    assert read == ["x\ny\nv\n", "\nz\n\n", "\nw\n\n"]


def test_csv(tmp_path):
    path = tmp_path / "table.csv"
    with open(path, "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerows([["id", "story", "title"], [1, 'a "b"\n\nc; d', "t"], [2, "e", "u\nv"]])
    options = ["--format", "csv", "--delimiter", ";", "--train", path]
    options += ["--source-field", "story", "--target-field", "title"]
    assert prepare(tmp_path, *options) == 0
    assert restore(tmp_path / "data", "train") == [('a "b" c; d', "t"), ("e", "u v")]


def test_shuffled_paragraphs_keep_their_words_in_order(tmp_path):
    paragraphs = [f"p{i} q{i} . r{i}" for i in range(8)]
    records = [{"source": "\n".join(paragraphs), "target": "x"}] * 3
    path = write(tmp_path / "json", map(json.dumps, records))
    seen = {}
    for seed in ("1", "1", "2"):
        folder = tmp_path / f"{seed}{len(seen)}"
        folder.mkdir()
        options = ["--format", "jsonl", "--train", path, "--shuffle", "paragraphs", "--seed", seed]
        assert prepare(folder, *options) == 0
        sources = [source for source, _ in restore(folder / "data", "train")]
        assert sources == seen.setdefault(seed, sources)
        for source in sources:
            assert sorted(source.replace(" p", "\np").split("\n")) == paragraphs
    assert len({source for sources in seen.values() for source in sources}) == 6


@pytest.mark.parametrize(
    "pair, part, pieces",
    [
        (Pair(["a . b ?", "c"], [""]), "sentences", ["a .", "b ?", "c"]),
        (Pair(["a . b", "c"], [""], ("paragraphs",)), "paragraphs", ["a . b", "c"]),
        (Pair(["a . b", "c"], [""], ("paragraphs", "sentences")), "sentences", ["a . b", "c"]),
    ],
)
def test_what_is_shuffled(pair, part, pieces):
    shuffled = pair.shuffled(part, "seed")
    assert sorted(shuffled.source) == pieces
    assert (
        shuffled.shuffled(part, "other").text().split() != []
        and pair.shuffled(part, "seed") == shuffled
    )


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("", []),
        ("a b", ["a b"]),
        ("a . b ! ) c", ["a .", "b ! )", "c"]),
        ("mr. b u.s. said . c", ["mr. b u.s. said .", "c"]),
        ("a.\nb", ["a.", "b"]),
        ("Dr. A. Smith left. He ran. 'Why?' It did, e.g. Here.", [
            "Dr. A. Smith left.", "He ran.", "'Why?'", "It did, e.g. Here."]),
        ("left. then ran.", ["left. then ran."]),
        ("...", ["..."]),
    ],
)  # fmt: skip
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


def bad(*options, message, **kwargs):
    """A case of bad input; {} in options and message is the test's folder."""
    return options, message, kwargs


GOOD = (["a", "b"], ["x", "y"])
JSON = ("--format", "jsonl", "--train", "{}/json")
CSV = ("--format", "csv", "--train", "{}/table")
STORIES = ("--format", "stories", "--train", "{}/urls", "--stories", "{}/folder")

BAD_INPUT = {
    "nothing": bad(message="give --train, or --dict with --valid or --test"),
    "only a dictionary": bad("--dict", "{}/json", message="give --train, or --dict"),
    "more texts": bad(
        train=(["a", "b", "c"], ["x"]),
        message="{}/train.src has 3 lines, but {}/train.tgt has 1",
    ),
    "more summaries": bad(
        train=GOOD, valid=(["a"], ["x", "y"]),
        message="{}/valid.src has 1 lines, but {}/valid.tgt has 2",
    ),
    "no lines": bad(train=([], []), message="train: no pairs"),
    "nothing but empty lines": bad(
        train=(["", "a"], ["x", ""]), message="train: no pairs, 2 without a text or a summary"
    ),
    "one file": bad("--train", "{}/json", message="--train: --format lines takes two files, texts"),
    "two files": bad(
        "--format", "csv", "--train", "{}/json", "{}/json",
        message="--train: --format csv takes one file, got 2",
    ),
    "missing file": bad(
        "--test", "{}/json", "{}/no", train=GOOD, message="--test {}/no: no such file"
    ),
    "folder": bad("--train", "{}", "{}", message="{}: Is a directory"),
    "not UTF-8": bad("--train", "{}/json", "{}/latin", message="{}/latin, line 2: not UTF-8"),
    "JSON cut off": bad(*JSON, json='{"source": "a"', message="{}/json, line 2: not JSON ("),
    "JSON too deep": bad(*JSON, json="[" * 10**6, message="{}/json, line 2: not JSON"),
    "not an object": bad(*JSON, json="[1]", message="{}/json, line 2: not a JSON object"),
    "no field": bad(
        *JSON, json='{"source": "a", "summary": "b"}',
        message="{}/json, line 2: no field 'target', there are 'source', 'summary'",
    ),
    "field of numbers": bad(
        *JSON, json='{"source": ["a", 1], "target": "b"}',
        message="{}/json, line 2: field 'source' is neither a string nor a list of strings",
    ),
    "no summary": bad(
        *JSON, json='{"source": "a", "target": []}',
        message="{}/json, line 2: the list 'target' is empty",
    ),
    "half a character": bad(
        *JSON, json=r'{"source": "a", "target": "\ud83e"}',
        message="{}/json, line 2: field 'target' has half of a surrogate pair",
    ),
    "no column": bad(
        *CSV, table="id,source\n1,a\n",
        message="{}/table: not one column 'target', the first row has 'id', 'source'",
    ),
    "column twice": bad(
        *CSV, table="source,target,target\n", message="{}/table: not one column 'target', the first"
    ),
    "no table": bad(*CSV, table="", message="{}/table: not one column 'source', the first row has"),
    "short row": bad(
        *CSV, table='source,target\n"a\n\nb",c\na\n',
        message="{}/table, line 5: 1 columns, but the first row has 2",
    ),
    "quote": bad(
        *CSV, table='source,target\n"a\n\nb,c\n', message="{}/table, line 4: not CSV (unexpected"
    ),
    "no story": bad(
        *STORIES,
        message="{}/urls, line 2: no file {sha}.story, the story of http://a/1, in {}/folder",
    ),
    "no highlight": bad(
        *STORIES, story="a\n",
        message="{}/folder/{sha}.story: has no @highlight",
    ),
    "no folder": bad(
        *STORIES[:-1], "{}/no", message="--stories {}/no: no such folder"
    ),
    "stories without": bad(*STORIES[:-2], message="--format stories needs --stories"),
    "dictionary without markers": bad(
        "--dict", "{}/dict.txt", test=GOOD, message="--dict {}/dict.txt: does not end with markers"
    ),
    "dictionary with holes": bad(
        "--dict", "{}/holes.txt", test=GOOD, message="--dict {}/holes.txt: the dictionary's markers"
    ),
    "no dictionary": bad("--dict", "{}/no", test=GOOD, message="--dict {}/no: no such file"),
    "malformed dictionary": bad(
        "--dict", "{}/urls", test=GOOD, message="--dict {}/urls: Incorrect dictionary format"
    ),
    "too few markers": bad(
        "--dict", "{}/two.txt", "--source-length", "3", test=GOOD,
        message="--source-length 3: --dict {}/two.txt has only 2 markers",
    ),
    "paragraphs of a line": bad(
        "--shuffle", "paragraphs", train=GOOD, message="--shuffle paragraphs: --format lines does"
    ),
    "no effect: seed": bad("--seed", "2", train=GOOD, message="--seed has no effect without"),
    "no effect: stories": bad(
        "--stories", "{}/folder", train=GOOD, message="--stories has no effect with --format lines"
    ),
    "no effect: field": bad(
        "--target-field", "x", train=GOOD, message="--target-field has no effect with --format"
    ),
    "no effect: delimiter": bad(
        *JSON, "--delimiter", ";", message="--delimiter has no effect with --format jsonl"
    ),
    "no effect: vocabulary": bad(
        "--dict", "{}/two.txt", "--vocabulary", "3", test=GOOD,
        message="--vocabulary has no effect with --dict",
    ),
    "no effect: language": bad(
        "--tokenized", "--language", "de", train=GOOD, message="--language has no effect with"
    ),
    "delimiter": bad(*CSV, "--delimiter", ";;", message="--delimiter ';;': must be one character"),
    "length": bad("--source-length", "0", train=GOOD, message="--source-length 0: must be at"),
    "workers": bad("--workers", "0", train=GOOD, message="--workers 0: must be at least 1"),
    "destdir not empty": bad(
        "--destdir", "{}/folder/..", train=GOOD, message="--destdir {}/folder/..: is not empty"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(tmp_path, capsys, name):
    options, message, given = BAD_INPUT[name]
    splits = {key: value for key, value in given.items() if isinstance(value, tuple)}
    (tmp_path / "folder").mkdir()
    write(tmp_path / "urls", ["", "http://a/1"])
    write(tmp_path / "json", ["", given.get("json", "{}")])
    (tmp_path / "table").write_text(given.get("table", ""))
    (tmp_path / "latin").write_bytes(b"a\n\xe9\n")
    write(tmp_path / "dict.txt", ["a 1", "<unk-0> 0", "b 1"])
    write(tmp_path / "holes.txt", ["a 1", "<unk-0> 0", "<unk-2> 0"])
    write(tmp_path / "two.txt", ["a 1", "<unk-0> 0", "<unk-1> 0"])
    if "story" in given:
        story = tmp_path / "folder" / f"{SHA}.story"
        story.write_text(given["story"])
    for split in splits:
        (tmp_path / f"{split}.src").touch()  # prepare() fills them
        (tmp_path / f"{split}.tgt").touch()
    names = sorted(tmp_path.rglob("*"))

    status = prepare(tmp_path, *(each.replace("{}", str(tmp_path)) for each in options), **splits)
    shown = capsys.readouterr()
    assert status == 2 and shown.out == ""
    last = shown.err.splitlines()[-1]
    assert last.startswith(
        "fairseq-rum: error: " + message.replace("{}", str(tmp_path)).replace("{sha}", SHA)
    )
    assert sorted(tmp_path.rglob("*")) == names


PIECES = [
    *(
        b"a",
        b" ",
        b"\n",
        b"\r",
        b"\t",
        b",",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b"\0",
        b"\xff",
    ),
    *(
        b"\xef\xbb\xbf",
        b'"source"',
        b'"target"',
        b"source,target\n",
        b"@highlight\n",
        b"null",
        b"\\n",
        b"1e999",
    ),
    *(
        b"H-0\t1\ta\n",
        b"T-0\t",
        b"S-1\t",
        b"\\ud83e",
        "\u2028\u00e9".encode(),
        b'{"source": "a", "target": [',
    ),
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=4), max_size=12).map(b"".join))
def test_any_bytes_are_read_or_refused(data):
    """Whatever a file holds, a reader yields strings or raises one sentence that names the file."""
    with tempfile.TemporaryDirectory() as name:
        path = str(Path(name, "file"))
        Path(path).write_bytes(data)
        for read in (
            lambda: list(read_aligned(path, path)),
            lambda: list(read_json_lines(path, "source", "target")),
            lambda: list(read_csv(path, "source", "target")),
            lambda: [read_story(path)],
        ):
            try:
                pairs = read()
            except InputError as error:
                assert path in str(error) and "\n" not in str(error)
            else:
                for pair in pairs:
                    for text in (*pair.source, *pair.targets):
                        assert "\n" not in SummaryText("none").preprocess(text)
                        text.encode("utf-8")
        for load in (
            lambda: read_generated(path),
            lambda: UnknownWords.load(path, 1),
            lambda: SummaryText.load(path),
        ):
            try:
                load()
            except InputError as error:
                assert path in str(error) and "\n" not in str(error)


def test_rows_that_fairseq_loses_are_noticed(tmp_path, monkeypatch):
    real_main = preprocess.main

    def lose_a_line(args):
        Path(args.trainpref + ".source").write_text("a\n")
        real_main(args)

    monkeypatch.setattr(preprocess, "main", lose_a_line)
    with pytest.raises(RuntimeError, match=r"wrote \(1, 2\) of \(2, 4\) rows and tokens of the"):
        prepare(tmp_path, train=GOOD)
    assert not (tmp_path / "data").exists()


def test_gigaword(shared_data, tmp_path):
    """Real text, already tokenized, comes back word for word, its literal <unk> too."""
    folder = shared_data / "gigaword10k"
    lines = [
        (folder / f"valid.{side}.filter.txt").read_text(encoding="utf-8").splitlines()
        for side in ("article", "title")
    ]
    assert prepare(tmp_path, "--vocabulary", 2000, train=lines) == 0
    assert restore(tmp_path / "data", "train") == list(zip(*lines))
