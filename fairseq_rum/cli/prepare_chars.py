"""Binarize text files by characters or bytes, for language models.

Each character (or byte) is a symbol, the newline included: it is fairseq's end-of-sentence symbol.
The dictionary holds exactly the symbols of the training text. The text can be restored exactly.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_rum.cli.binarize import (
    add_destination,
    all_or_nothing,
    check_destination,
    load_symbols,
    prefixes,
    run_preprocess,
    written_tokens,
)
from fairseq_rum.data.char_codec import CODEC_FILE, UNITS, CharCodec, CodecInfo, SplitInfo
from fairseq_rum.errors import InputError


class _Source(NamedTuple):
    """A text file, and the option that named it."""

    option: str
    path: str

    def __str__(self) -> str:
        return f"{self.option} {self.path}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fairseq-rum prepare chars``."""
    parser.add_argument("--trainpref", metavar="FILE", required=True, help="training text")
    parser.add_argument(
        "--validpref", metavar="FILE[,FILE...]", help="validation texts: valid, valid1, ..."
    )
    parser.add_argument("--testpref", metavar="FILE[,FILE...]", help="test texts: test, test1, ...")
    add_destination(parser)
    parser.add_argument(
        "--unit",
        choices=UNITS,
        default=UNITS[0],
        help="one symbol for each character of UTF-8 text, or for each byte of any file "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--srcdict", metavar="DICT", help="use this dict.txt instead of making one from --trainpref"
    )


def run(args: argparse.Namespace) -> int:
    """Do what the options say.

    Raises:
        InputError: bad input. Nothing is written then.
    """
    sources = _sources(args)
    _check_options(args, sources)
    with all_or_nothing(args.destdir) as (data, scratch):
        info = _write_tokens(args, sources, scratch)
        total = sum(split.symbols for split in info.splits.values())
        print(f"binarizing {total:,} symbols with fairseq-preprocess ...", file=sys.stderr)
        _binarize(args, list(sources), data, scratch)
        _check_targets(info, data)
        info.save(data / CODEC_FILE)
        dictionary = (data / "dict.txt").read_text(encoding="utf-8").splitlines()
    _print_summary(args, info, sources, len(dictionary))
    return 0


def _sources(args: argparse.Namespace) -> dict[str, _Source]:
    """Split -> its text, with the names that fairseq-preprocess gives: valid, valid1, ..."""
    sources = {"train": _Source("--trainpref", args.trainpref)}
    for split, files in (("valid", args.validpref), ("test", args.testpref)):
        if files is not None:
            for number, path in enumerate(files.split(",")):
                sources[f"{split}{number or ''}"] = _Source(f"--{split}pref", path)
    return sources


def _check_options(args: argparse.Namespace, sources: dict[str, _Source]) -> None:
    """What can be found out before any text is read."""
    dictionary = [] if args.srcdict is None else [_Source("--srcdict", args.srcdict)]
    for source in [*sources.values(), *dictionary]:
        if not os.path.exists(source.path):
            raise InputError(f"{source}: no such file")
    check_destination(args.destdir, args.workers)


def _write_tokens(args: argparse.Namespace, sources: dict[str, _Source], folder: Path) -> CodecInfo:
    """Write the tokens of each split into `folder`, a line for each line of text."""
    codec = CharCodec(args.unit)
    if args.srcdict is None:
        origin = sources["train"]
        known: set[str] = set()
    else:
        origin = _Source("--srcdict", args.srcdict)
        known = set(load_symbols("--srcdict", args.srcdict))

    splits = {}
    for split, source in sources.items():
        symbols, final_newline = 0, True
        with open(folder / split, "w", encoding="utf-8", newline="\n") as file:
            for number, (tokens, final_newline) in enumerate(_encode_lines(source, codec), 1):
                if source is origin:
                    known.update(tokens)
                elif not known.issuperset(tokens):
                    unseen = next(token for token in tokens if token not in known)
                    raise InputError(
                        f"{source}, line {number}: {unseen!r} does not occur in {origin}"
                    )
                symbols += len(tokens) + final_newline
                file.write(" ".join(tokens) + "\n")
        if symbols == 0:
            raise InputError(f"{source}: is empty")
        splits[split] = SplitInfo(final_newline, symbols)
    return CodecInfo(args.unit, splits)


def _encode_lines(source: _Source, codec: CharCodec) -> Iterator[tuple[list[str], bool]]:
    """The tokens of each line, and whether a newline ends it."""
    offset = 0
    for line in _read_lines(source):
        try:
            tokens = codec.encode_line(line[:-1] if line.endswith(b"\n") else line)
        except UnicodeDecodeError as error:
            where = offset + error.start
            raise InputError(
                f"{source}: not UTF-8 at byte offset {where}, use --unit bytes"
            ) from error
        offset += len(line)
        yield tokens, line.endswith(b"\n")


def _read_lines(source: _Source) -> Iterator[bytes]:
    try:
        # In binary mode a line ends at "\n" alone.
        with open(source.path, "rb") as file:
            yield from file
    except OSError as error:
        raise InputError(f"{source}: {error.strerror}") from error


def _binarize(args: argparse.Namespace, splits: Sequence[str], data: Path, tokens: Path) -> None:
    command = ["--only-source", "--task", "language_modeling", "--padding-factor", "1"]
    command += ["--workers", str(args.workers), "--destdir", str(data)]
    if args.srcdict is not None:
        command += ["--srcdict", args.srcdict]
    run_preprocess([*command, *prefixes(splits, tokens)])


def _check_targets(info: CodecInfo, data: Path) -> None:
    """Make sure that fairseq-preprocess kept every symbol, whatever its version and --workers."""
    for split, recorded in info.splits.items():
        _, written = written_tokens(data / f"{split}.idx")
        expected = recorded.symbols + (not recorded.final_newline)
        if written != expected:
            raise RuntimeError(
                f"fairseq-preprocess wrote {written} of {expected} targets of {split}"
            )


def _print_summary(
    args: argparse.Namespace, info: CodecInfo, sources: dict[str, _Source], vocabulary: int
) -> None:
    for split, source in sources.items():
        print(f"{split}: {info.splits[split].symbols:,} targets ({info.unit}) from {source.path}")
    print(
        f"vocabulary: {vocabulary} symbols and the newline; "
        f"{vocabulary + 4} with all of fairseq's special symbols"
    )
    train = [
        f"fairseq-train {shlex.quote(args.destdir)}",
        '--user-dir "$(fairseq-rum user-dir)"',
        "--task stateful_language_modeling --criterion bits_per_token --arch rum_lm",
        "--optimizer adam --lr 0.002 --batch-size 32",
    ]
    if "valid" not in sources:
        train.append("--disable-validation")
    print("next:", " ".join(train))
