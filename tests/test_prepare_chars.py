"""``fairseq-rum prepare chars``, from text files to fairseq's binary form and back."""

import os
import random
import stat
import tempfile
from pathlib import Path

import pytest
from fairseq.data import Dictionary, data_utils
from fairseq_cli import preprocess
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_rum.cli.main import main
from fairseq_rum.data.char_codec import CharCodec, CodecInfo

SOME_EXAMPLES = settings(max_examples=15, deadline=None)  # each calls fairseq-preprocess

TRICKY = {
    "carriage returns": "a\r\nb\rc\n\r",
    "line ends of other kinds": "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g\n",
    "the codec's own words": "▁ U+0041 U+2581 0x41 </s> <unk> <pad>\n",
    "white space": "\ta  b\t\xa0\u3000 \n  leading and trailing  \n",
    "controls": "\0\x01\x7f\x1b[0m\n",
    "byte order mark": "\ufeffa\n",
    "empty lines": "\n\na\n\n\nb\n\n",
    "only newlines": "\n\n\n",
    "one newline": "\n",
    "no final newline": "a\nb",
    "one line, no newline": "abc",
    "one symbol": "a",
    "only a space": " ",
    "beyond the basic plane": "🦉👩‍👩‍👧 𝔘 \U000e0001\U0010ffff\n",
    "combining": "e\u0301 é a\u0300\u0316\u200d\n",
}


def prepare(folder, *options, unit="characters", **texts):
    """Run the command on `texts`, split -> str or bytes, and return its exit status."""
    command = ["prepare", "chars", "--unit", unit, "--destdir", str(folder / "data")]
    for split, text in texts.items():
        path = folder / f"{split}.txt"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        command += [f"--{split}pref", str(path)]
    return main(command + list(options))


def load(data, split):
    """The dictionary and rows, as fairseq's tasks load them."""
    dictionary = Dictionary.load(str(data / "dict.txt"))
    return dictionary, data_utils.load_indexed_dataset(str(data / split), dictionary)


def restore(data, split):
    """The text of a binarized split."""
    info = CodecInfo.load(data / "codec.json")
    dictionary, rows = load(data, split)
    tokens = (dictionary[index] for row in range(len(rows)) for index in rows[row].tolist())
    return CharCodec(info.unit).decode_stream(tokens, info.splits[split].final_newline)


def names_in(folder):
    """All that is in a folder, hidden files included, to compare before and after."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def check_round_trip(unit, text):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert prepare(folder, unit=unit, train=text) == 0
        data = folder / "data"
        assert restore(data, "train") == text

        newline = "\n" if unit == "characters" else b"\n"
        split = CodecInfo.load(data / "codec.json").splits["train"]
        assert split.symbols == len(text)
        assert split.final_newline == text.endswith(newline)
        dictionary, rows = load(data, "train")
        assert rows.sizes.sum() == len(text) + (not split.final_newline)
        # No padding, no <unk>: fairseq's four special symbols, and what occurs.
        symbols = set(text) - {"\n", ord("\n")}
        assert len(dictionary) == 4 + len(symbols)


@SOME_EXAMPLES
@given(st.text(min_size=1))
def test_any_text_comes_back(text):
    check_round_trip("characters", text)


@SOME_EXAMPLES
@given(st.binary(min_size=1))
def test_any_bytes_come_back(data):
    check_round_trip("bytes", data)


@pytest.mark.parametrize("name", TRICKY)
def test_tricky_text_comes_back(name):
    check_round_trip("characters", TRICKY[name])
    check_round_trip("bytes", TRICKY[name].encode())


def test_all_bytes_come_back():
    check_round_trip("bytes", bytes(range(256)) * 2)


def test_workers_change_nothing(tmp_path):
    # Chunks of a file begin in the middle of a character.
    generator = random.Random(1)
    text = "\n".join("".join(generator.choices("aé日🦉 ", k=n % 40)) for n in range(300))
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        folder.mkdir()
        assert prepare(folder, "--workers", str(workers), train=text, valid="\n") == 0
        assert restore(folder / "data", "train") == text
    files = {path.name: path.read_bytes() for path in (tmp_path / "1" / "data").iterdir()}
    for path in (tmp_path / "3" / "data").iterdir():
        assert path.name == "preprocess.log" or files[path.name] == path.read_bytes()


def test_splits_are_named_as_by_fairseq_preprocess(tmp_path):
    for name, text in {"a": "abc\n", "b": "ab", "c": "cc\n"}.items():
        (tmp_path / name).write_text(text)
    pair = f"{tmp_path / 'b'},{tmp_path / 'c'}"
    assert prepare(tmp_path, "--validpref", pair, "--testpref", pair, train="abc\n") == 0
    data = tmp_path / "data"
    splits = ["train", "valid", "valid1", "test", "test1"]
    assert [restore(data, split) for split in splits] == ["abc\n", "ab", "cc\n", "ab", "cc\n"]
    assert list(CodecInfo.load(data / "codec.json").splits) == splits
    assert {path.name for path in data.iterdir()} == {
        *(f"{split}.{end}" for split in splits for end in ("bin", "idx")),
        *("dict.txt", "codec.json", "preprocess.log"),
    }


def test_dictionary_can_be_reused(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    assert prepare(first, train="abcd ab\n") == 0
    dictionary = first / "data" / "dict.txt"
    assert prepare(second, "--srcdict", str(dictionary), train="dcba\n") == 0
    assert (second / "data" / "dict.txt").read_text() == dictionary.read_text()
    assert restore(second / "data", "train") == "dcba\n"


def test_summary_and_nothing_of_fairseqs_log(tmp_path, capsys):
    capsys.readouterr()
    assert prepare(tmp_path, unit="bytes", train=b"ab b\n" * 500, valid=b"a") == 0
    shown = capsys.readouterr()
    data = tmp_path / "data"
    assert shown.out.splitlines() == [
        f"train: 2,500 targets (bytes) from {tmp_path / 'train.txt'}",
        f"valid: 1 targets (bytes) from {tmp_path / 'valid.txt'}",
        "vocabulary: 3 symbols and the newline; 7 with all of fairseq's special symbols",
        f'next: fairseq-train {data} --user-dir "$(fairseq-rum user-dir)" '
        "--task stateful_language_modeling --criterion bits_per_token --arch rum_lm "
        "--optimizer adam --lr 0.002 --batch-size 32",
    ]
    assert len(shown.err.splitlines()) == 1


def test_next_command_quotes_and_knows_of_no_validation(tmp_path, capsys):
    assert prepare(tmp_path, "--destdir", str(tmp_path / "my data"), train="a") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"'{tmp_path / 'my data'}'" in last
    assert last.endswith("--disable-validation")


def test_log_is_kept_and_its_handler_is_not(tmp_path):
    before = list(preprocess.logger.handlers), preprocess.logger.level, preprocess.logger.propagate
    assert prepare(tmp_path, train="ab\n") == 0
    assert "Wrote preprocessed data" in (tmp_path / "data" / "preprocess.log").read_text()
    assert before == (
        list(preprocess.logger.handlers),
        preprocess.logger.level,
        preprocess.logger.propagate,
    )


def test_destdir_is_an_ordinary_folder_with_new_parents(tmp_path):
    (tmp_path / "ordinary").mkdir()
    deep = tmp_path / "x" / "y" / "data"
    assert prepare(tmp_path, "--destdir", str(deep), train="ab\n") == 0
    assert [path.name for path in deep.parent.iterdir()] == ["data"]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (deep, tmp_path / "ordinary")]
    assert modes[0] == modes[1]


def test_destdir_may_be_an_empty_folder_or_a_link_to_one(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "data").symlink_to("empty")
    assert prepare(tmp_path, train="ab\n") == 0
    assert (tmp_path / "data").is_symlink()
    assert restore(tmp_path / "empty", "train") == "ab\n"


def bad(*options, message, train="abc\n", **kwargs):
    """A case of bad input; {} in options and message is the test's folder."""
    return options, message, {"train": train, **kwargs}


BAD_INPUT = {
    "missing train": bad("--trainpref", "{}/no", message="--trainpref {}/no: no such file"),
    "missing valid1": bad(
        "--validpref", "{}/train.txt,{}/no", message="--validpref {}/no: no such file"
    ),
    "folder": bad("--testpref", "{}", message="--testpref {}: Is a directory"),
    "empty train": bad(train="", message="--trainpref {}/train.txt: is empty"),
    "empty valid": bad(valid="", message="--validpref {}/valid.txt: is empty"),
    "empty name": bad("--validpref", "", message="--validpref : no such file"),
    "not UTF-8": bad(
        train="é\nab".encode() + b"\xff\n",
        message="--trainpref {}/train.txt: not UTF-8 at byte offset 5, use --unit bytes",
    ),
    "UTF-8 cut off": bad(
        test=b"a\nb\xc3",
        message="--testpref {}/test.txt: not UTF-8 at byte offset 3, use --unit bytes",
    ),
    "unseen": bad(
        valid="a\n\ncdb\n",
        message="--validpref {}/valid.txt, line 3: 'd' does not occur in --trainpref {}/train.txt",
    ),
    "unseen, not printable": bad(
        test="a\r\n",
        message="--testpref {}/test.txt, line 1: 'U+000D' does not occur in "
        "--trainpref {}/train.txt",
    ),
    "unseen byte": bad(
        unit="bytes",
        test=b"\xff",
        message="--testpref {}/test.txt, line 1: '0xFF' does not occur in --trainpref {}/train.txt",
    ),
    "not in the dictionary": bad(
        *("--srcdict", "{}/dict/good.txt"),
        message="--trainpref {}/train.txt, line 1: 'c' does not occur in "
        "--srcdict {}/dict/good.txt",
    ),
    "missing dictionary": bad("--srcdict", "{}/no", message="--srcdict {}/no: no such file"),
    "malformed dictionary": bad(
        *("--srcdict", "{}/dict/bad.txt"),
        message="--srcdict {}/dict/bad.txt: Incorrect dictionary format",
    ),
    "no workers": bad("--workers", "0", message="--workers 0: must be at least 1"),
    "destdir not empty": bad("--destdir", "{}/dict", message="--destdir {}/dict: is not empty"),
    "destdir is a file": bad(
        "--destdir", "{}/train.txt", message="--destdir {}/train.txt: Not a directory"
    ),
    "destdir below a file": bad(
        "--destdir", "{}/train.txt/new/data", message="--destdir {}/train.txt/new/data: cannot be"
    ),
    "destdir is here": bad("--destdir", ".", message="--destdir .: is the current folder"),
    "destdir is nothing": bad("--destdir", "", message="--destdir : is the current folder"),
    "comma": bad("--destdir", "{}/a,b/data", message="--destdir {}/a,b/data: fairseq cannot take"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(tmp_path, capsys, monkeypatch, name):
    options, message, kwargs = BAD_INPUT[name]
    (tmp_path / "dict").mkdir()
    (tmp_path / "dict" / "good.txt").write_text("a 1\nb 1\n")
    (tmp_path / "dict" / "bad.txt").write_text("a\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for split in {"train", "valid", "test"} & set(kwargs):
        (tmp_path / f"{split}.txt").touch()  # prepare() fills it
    names = names_in(tmp_path)

    status = prepare(tmp_path, *(each.replace("{}", str(tmp_path)) for each in options), **kwargs)
    assert status == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("fairseq-rum: error: " + message.replace("{}", str(tmp_path)))
    assert names_in(tmp_path) == names
    assert (tmp_path / "dict" / "good.txt").read_text() == "a 1\nb 1\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission(tmp_path, capsys):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert prepare(tmp_path, "--destdir", str(tmp_path / "locked" / "data"), train="a\n") == 2
    assert "cannot be made (Permission denied)" in capsys.readouterr().err


def test_failure_of_fairseq_leaves_nothing(tmp_path, monkeypatch):
    real_main = preprocess.main

    def fail_late(args):
        real_main(args)
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(preprocess, "main", fail_late)
    handlers = list(preprocess.logger.handlers)
    with pytest.raises(RuntimeError, match="disk on fire"):
        prepare(tmp_path, "--destdir", str(tmp_path / "x" / "y" / "data"), train="ab\n")
    assert names_in(tmp_path) == ["train.txt"]
    assert preprocess.logger.handlers == handlers


def test_destdir_that_fills_meanwhile_is_left_alone(tmp_path, monkeypatch, capsys):
    real_main = preprocess.main

    def another_process(args):
        real_main(args)
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "precious").write_text("mine")

    monkeypatch.setattr(preprocess, "main", another_process)
    assert prepare(tmp_path, train="ab\n") == 2
    assert f"--destdir {tmp_path / 'data'}: cannot be made" in capsys.readouterr().err
    assert names_in(tmp_path) == ["data", "data/precious", "train.txt"]


def test_targets_that_fairseq_loses_are_noticed(tmp_path, monkeypatch):
    real_main = preprocess.main

    def lose_a_line(args):
        Path(args.trainpref).write_text("a\n")
        real_main(args)

    monkeypatch.setattr(preprocess, "main", lose_a_line)
    with pytest.raises(RuntimeError, match="wrote 2 of 4 targets of train"):
        prepare(tmp_path, train="a\na\n")
    assert not (tmp_path / "data").exists()


def test_penn_treebank_has_no_target_more_or_fewer(shared_data, tmp_path):
    texts, data = shared_data / "ptb", tmp_path / "data"
    targets = {"train": 5_101_618, "valid": 399_782, "test": 449_945}
    command = ["prepare", "chars", "--unit", "bytes", "--workers", "2", "--destdir", str(data)]
    for split in targets:
        command += [f"--{split}pref", str(texts / f"{split}.txt")]
    assert main(command) == 0

    info = CodecInfo.load(data / "codec.json")
    for split, expected in targets.items():
        dictionary, rows = load(data, split)
        assert rows.sizes.sum() == info.splits[split].symbols == expected
        assert info.splits[split].final_newline
        assert len(dictionary) == 49 + 4  # 49 symbols; the newline is one of fairseq's four
    assert restore(data, "test") == (texts / "test.txt").read_bytes()
