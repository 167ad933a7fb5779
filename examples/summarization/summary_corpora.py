"""The corpora of the experiments on summarization: their files, preparation and decoding."""

from __future__ import annotations

import argparse
import os
import random
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import List

from run_tools import ROOT, execute, last_line, locked

PREPARE_PAIRS = "fairseq-rum prepare summarization --min-count 3"


@dataclass(frozen=True)
class Corpus:
    """Texts and summaries.

    Attributes:
        name: of its folder.
        title: in the tables.
        prepare: the command without its files and ``--destdir``.
        decode: options of fairseq-generate, the lengths of summaries.
        files: makes files in a folder where needed, and names the options for them.
        dictionary_of: the corpus whose vocabulary it is to be read with.
    """

    name: str
    title: str
    prepare: str
    decode: str
    files: Callable[[Path, Path], List[str]] = lambda folder, data: []
    dictionary_of: str = ""


def names(folder: Path, data: Path) -> List[str]:
    """50 texts about people whose names occur once, and a summary with the names."""
    draw = random.Random(1)
    fillers = "in the old house by a river on that cold day when they were young".split()
    lines = []
    for i in range(50):
        first, second = f"Person{i}A", f"Person{i}B"
        words = draw.sample(fillers, 8)
        place = draw.randrange(9)
        words[place:place] = [first, "met", second] if i % 2 else [second, "saw", first]
        summary = f"{first} met {second}" if i % 2 else f"{first} was seen by {second}"
        lines.append((" ".join(words) + " .", summary))
    texts, summaries = (write(folder / name, column) for name, column in zip("ts", zip(*lines)))
    return [f"--{split} {texts} {summaries}" for split in ("train", "valid", "test")]


def gigaword(folder: Path, data: Path) -> List[str]:
    """The last 500 of 10,000 training pairs are for validation, the 1,000 of valid for the test."""
    options = []
    sides = {"article": [], "title": []}
    for side, files in sides.items():
        lines = (data / "gigaword10k" / f"train.{side}.txt").read_text("utf-8").splitlines()
        files += [write(folder / f"train.{side}", lines[:-500])]
        files += [write(folder / f"valid.{side}", lines[-500:])]
        files += [relative(data / "gigaword10k" / f"valid.{side}.filter.txt")]
    for split, *files in zip(("train", "valid", "test"), *sides.values()):
        options.append(f"--{split} {' '.join(files)}")
    return options


def scitldr(folder: Path, data: Path) -> List[str]:
    """SciTLDR's own splits."""
    splits = {"train": "train", "valid": "dev", "test": "test"}
    folder = relative(data / "scitldr")
    return [f"--{split} {folder}/{file}.jsonl" for split, file in splits.items()]


def scitldr_test(folder: Path, data: Path) -> List[str]:
    """Its test split alone."""
    return scitldr(folder, data)[-1:]


def write(path: Path, lines: Iterable[str]) -> str:
    """Write lines, and return the path as commands name it."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return relative(path)


def relative(path: Path) -> str:
    """The path from the repository's root, where commands are run."""
    return os.path.relpath(path.resolve(), ROOT)


_TLDR = f"{PREPARE_PAIRS} --format jsonl --lowercase"
_SUMMARY, _TITLE = "--min-len 5 --max-len-b 60", "--max-len-b 30"
CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus("names", "50 pairs with unknown names, overfitted",
               f"{PREPARE_PAIRS} --tokenized", _TITLE, names),
        Corpus("gigaword10k", "gigaword10k: article -> headline",
               f"{PREPARE_PAIRS} --tokenized", _TITLE, gigaword),
        Corpus("docstrings", "docstrings: body -> summary line",
               "fairseq-rum prepare docstrings --min-count 3 --lowercase", _TITLE),
        Corpus("scitldr-s2s", "SciTLDR: abstract -> summary", _TLDR, _SUMMARY, scitldr),
        Corpus("scitldr-sh2s", "SciTLDR: abstract with shuffled sentences -> summary",
               f"{_TLDR} --shuffle sentences", _SUMMARY, scitldr),
        Corpus("scitldr-s2t", "SciTLDR: abstract -> title",
               f"{_TLDR} --target-field title", _TITLE, scitldr),
        Corpus("scitldr-ood", "SciTLDR with models of gigaword10k (out of domain)",
               "fairseq-rum prepare summarization --format jsonl --lowercase", _SUMMARY,
               scitldr_test, "gigaword10k"),
    )
}  # fmt: skip


def prepare(corpus: Corpus, options: argparse.Namespace) -> Path:
    """Make the data directory of a corpus unless it is there."""
    folder = options.work / "data" / corpus.name
    data = folder / "data-bin"
    with locked(folder, wait=True):
        if data.exists():
            return data
        command = shlex.split(corpus.prepare)
        if corpus.dictionary_of:
            other = prepare(CORPORA[corpus.dictionary_of], options)
            command += ["--dict", relative(other / "dict.source.txt")]
        for option in corpus.files(folder, options.data):
            command += shlex.split(option)
        command += ["--destdir", relative(data)]
        # As it is put into records, which are for other machines too.
        own = relative(options.data) + os.sep
        recorded = [f"DATA/{a[len(own) :]}" if a.startswith(own) else a for a in command]
        write(folder / "command", [shlex.join(recorded)])
        status = execute(command, folder / "prepare.log", options.threads)
        if status:
            raise RuntimeError(f"{folder / 'prepare.log'}: {last_line(folder / 'prepare.log', 0)}")
    return data
