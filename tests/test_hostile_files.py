"""Dictionaries and lines as nobody should make them: they work, or one sentence names them."""

import hashlib
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, USER_DIR, run_fairseq
from fairseq.data import Dictionary, indexed_dataset
from test_language_model import train_arguments

from fairseq_rum.cli.main import main
from fairseq_rum.data.dictionaries import load_dictionary
from fairseq_rum.data.pointer_dictionary import PointerDictionary
from fairseq_rum.data.question_answering import load_dictionaries
from fairseq_rum.errors import InputError

REFUSED = {
    "duplicate": (b"a 3\nb 2\na 1\n", "Duplicate word found when loading Dictionary: 'a'$"),
    "special symbol": (b"a 3\n<pad> 2\n", "Duplicate word .*: '<pad>'$"),
    "not UTF-8": (b"a 3\n\xff\xfe 2\n", "not UTF-8$"),
    "UTF-16": ("a 3\n".encode("utf-16"), "not UTF-8$"),
    "byte order mark": (b"\xef\xbb\xbfa 3\nb 2\n", "begins with a byte order mark"),
    "no count": (b"a 3\nb\n", "Incorrect dictionary format"),
    "empty line": (b"a 3\n\nb 2\n", "Incorrect dictionary format"),
    "a long line": (b"a 3\n" + b"x" * 10**6 + b"\n", "Incorrect dictionary format"),
}
TAKEN = {
    "NUL": (b"\0 3\na\0b 2\n", ["\0", "a\0b"]),
    "CRLF": (b"a 3\r\nb 2\r\n", ["a", "b"]),
    "overwritten": (b"a 3\nb 2\na 1 #fairseq:overwrite\n", ["a", "b", "a"]),
    "empty": (b"", []),
    "other scripts": ("é 3\n▁ 2\n🦉 1\n".encode(), ["é", "▁", "🦉"]),
}


@pytest.mark.parametrize("kind", [Dictionary, PointerDictionary])
@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_dictionaries_that_are_refused(tmp_path, case, kind):
    data, message = case
    path = tmp_path / "dict.txt"
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"{path}: {message}") as caught:
        load_dictionary(str(path), kind)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("case", TAKEN.values(), ids=TAKEN)
def test_dictionaries_that_are_taken(tmp_path, case):
    data, symbols = case
    path = tmp_path / "dict.txt"
    path.write_bytes(data)
    dictionary = load_dictionary(str(path))
    assert dictionary.symbols[dictionary.nspecial :] == symbols


def test_tasks_and_commands_name_the_dictionary(char_data, tmp_path, capsys):
    data = tmp_path / "data"
    shutil.copytree(char_data, data)
    (data / "dict.txt").write_bytes(b"\xef\xbb\xbf" + (char_data / "dict.txt").read_bytes())
    with pytest.raises(InputError, match="data/dict.txt: begins with a byte order mark"):
        run_fairseq("train", *train_arguments(data, tmp_path / "out"))
    for part in ("story", "question", "answer"):
        shutil.copytree(data, data / part)
    with pytest.raises(InputError, match="story/dict.txt: begins with a byte order mark"):
        load_dictionaries(str(data))
    text = tmp_path / "text"
    text.write_text("a b\n")
    bad = str(data / "dict.txt")
    for command in (
        ["chars", "--trainpref", text, "--srcdict", bad],
        ["summarization", "--format", "lines", "--test", text, text, "--dict", bad],
    ):
        assert main(["prepare", *map(str, command), "--destdir", str(tmp_path / "made")]) == 2
        assert f"{bad}: begins with a byte order mark" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_a_model_trains_with_odd_symbols(char_data, tmp_path, end):
    data = tmp_path / "data"
    shutil.copytree(char_data, data)
    symbols = (data / "dict.txt").read_text().splitlines()
    symbols[0], symbols[1] = "\0 7", "x\0y 7"
    (data / "dict.txt").write_bytes("".join(line + end for line in symbols).encode())
    run_fairseq("train", *train_arguments(data, tmp_path / "out", "--max-update", 1, "--no-save"))


def within(megabytes, program, *arguments):
    """Run a program in a process of its own, and check how much memory it took at most."""
    code = (
        "import resource, sys, runpy\n"
        f"{program}\n"
        "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert int(result.stdout.split("peak ")[-1]) < megabytes


TRAIN = """
sys.argv = ["fairseq-train", *sys.argv[1:], "--cpu", "--num-workers", "0", "--no-save",
            "--disable-validation", "--max-update", "1", "--optimizer", "adam", "--lr", "0.001"]
from fairseq_cli.train import cli_main
cli_main()
"""
PREPARE = """
from fairseq_rum.cli.main import main
assert main(["prepare", *sys.argv[1:]]) == 0
"""


@pytest.mark.soak
def test_two_hundred_thousand_symbols(tmp_path):
    """Importing torch and fairseq takes 400 MB of it, the embeddings and Adam 130 MB."""
    count = 200_000
    (tmp_path / "dict.txt").write_text("".join(f"w{i} 1\n" for i in range(count)))
    tokens = np.random.default_rng(1).integers(4, count + 4, 4000).astype(np.uint32)
    tokens.tofile(tmp_path / "train.bin")
    with indexed_dataset.MMapIndexedDataset.Index.writer(
        str(tmp_path / "train.idx"), np.uint32
    ) as index:
        index.write([len(tokens)])
    within(
        2000, TRAIN, tmp_path, "--user-dir", USER_DIR, "--task", "stateful_language_modeling",
        "--arch", "rum_lm", "--decoder-embed-dim", 16, "--decoder-hidden-size", 16, "--criterion",
        "bits_per_token", "--batch-size", 2, "--tokens-per-sample", 20,
    )  # fmt: skip


@pytest.fixture(scope="module")
def long_line():
    """A million words in one line."""
    numbers = random.Random(1)
    return " ".join(f"w{numbers.randrange(5000)}" for _ in range(10**6))


@pytest.mark.soak
@pytest.mark.parametrize("form", ["lines", "stories"])
def test_a_text_of_a_million_words(tmp_path, long_line, form):
    if form == "lines":
        (tmp_path / "text").write_text(f"{long_line}\na short text .\n")
        (tmp_path / "summary").write_text("w1 w2 w3\nshort .\n")
        options = ["--train", tmp_path / "text", tmp_path / "summary"]
    else:
        name = hashlib.sha1(b"http://x").hexdigest()
        (tmp_path / f"{name}.story").write_text(f"{long_line}\n\n@highlight\n\nw1 w2\n")
        (tmp_path / "urls").write_text("http://x\n")
        options = ["--train", tmp_path / "urls", "--stories", tmp_path]
    data = tmp_path / "data"
    within(1500, PREPARE, "summarization", "--format", form, *options, "--destdir", data)
    within(
        1500, TRAIN, data, "--user-dir", USER_DIR, "--task", "rum_summarization", "--arch",
        "pointer_gen_rum", "--encoder-hidden-size", 8, "--decoder-hidden-size", 8, "--criterion",
        "pointer_coverage_loss", "--batch-size", 2,
    )  # fmt: skip


@pytest.mark.soak
def test_a_story_of_a_million_words(tmp_path, long_line):
    folder = tmp_path / "en-10k"
    folder.mkdir()
    for split in ("train", "test"):
        questions = ["1 Mary went home.\n2 Where is Mary?\tkitchen\t1\n"] * 20
        if split == "train":
            questions[0] = f"1 {long_line}.\n2 Where is Mary?\tkitchen\t1\n"
        (folder / f"qa1_single-supporting-fact_{split}.txt").write_text("".join(questions))
    data = tmp_path / "data"
    within(1500, PREPARE, "babi", "--path", tmp_path, "--tasks", 1, "--destdir", data)
    within(
        3000, TRAIN, data / "qa1", "--user-dir", USER_DIR, "--task", "babi_qa", "--arch", "rum_qa",
        "--criterion", "answer_accuracy", "--batch-size", 4,
    )  # fmt: skip
    with pytest.raises(InputError, match="--max-tokens 5000: there is a story of 1000005 words"):
        run_fairseq(
            "train", data / "qa1", "--user-dir", USER_DIR, "--task", "babi_qa", "--arch", "rum_qa",
            "--criterion", "answer_accuracy", "--max-tokens", 5000, "--cpu", "--num-workers", 0,
            "--optimizer", "adam", "--no-save",
        )  # fmt: skip
