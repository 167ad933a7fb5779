"""Binarize text files by characters or bytes, for language models.

Each character (or byte) is a symbol, the newline included: it is fairseq's end-of-sentence symbol.
The dictionary holds exactly the symbols of the training text. The text can be restored exactly.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

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
    parser.add_argument(
        "--destdir", metavar="DIR", required=True, help="folder to make; must not exist or be empty"
    )
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
    parser.add_argument(
        "--workers", metavar="N", type=int, default=1, help="processes (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Do what the options say.

    Raises:
        InputError: bad input. Nothing is written then.
    """
    sources = _sources(args)
    _check_options(args, sources)
    with _all_or_nothing(args.destdir) as (data, scratch):
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
    if args.workers < 1:
        raise InputError(f"--workers {args.workers}: must be at least 1")
    dictionary = [] if args.srcdict is None else [_Source("--srcdict", args.srcdict)]
    for source in [*sources.values(), *dictionary]:
        if not os.path.exists(source.path):
            raise InputError(f"{source}: no such file")

    option = f"--destdir {args.destdir}"
    target = os.path.realpath(args.destdir)
    # The folder's parent is part of the names that fairseq-preprocess gets as a list.
    if "," in target:
        raise InputError(f"{option}: fairseq cannot take a comma in a path")
    if not os.path.exists(target):
        return
    try:
        is_empty = not os.listdir(target)
    except OSError as error:
        raise InputError(f"{option}: {error.strerror}") from error
    if not is_empty:
        raise InputError(f"{option}: is not empty, and nothing is overwritten")
    if os.path.samefile(target, os.curdir):
        # It would be replaced, and the user's shell would stay in the old one.
        raise InputError(f"{option}: is the current folder, name another one")


@contextlib.contextmanager
def _all_or_nothing(destdir: str) -> Iterator[tuple[Path, Path]]:
    """Yield two new folders, for data and for scratch; the first becomes `destdir` at the end.

    On any failure neither they nor new parents of `destdir` are left behind.
    """
    target = Path(os.path.realpath(destdir))
    new_parents = [folder for folder in target.parents if not os.path.exists(folder)]
    temporary = None
    try:
        try:
            os.makedirs(target.parent, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        except OSError as error:
            raise InputError(f"--destdir {destdir}: cannot be made ({error.strerror})") from error
        # Folders inside: the one by mkdtemp is for its owner only.
        data, scratch = temporary / "data", temporary / "scratch"
        data.mkdir()
        scratch.mkdir()
        yield data, scratch
        try:
            os.rename(data, target)
        except OSError as error:
            raise InputError(f"--destdir {destdir}: cannot be made ({error.strerror})") from error
        new_parents = []
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        for folder in new_parents:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _write_tokens(args: argparse.Namespace, sources: dict[str, _Source], folder: Path) -> CodecInfo:
    """Write the tokens of each split into `folder`, a line for each line of text."""
    codec = CharCodec(args.unit)
    if args.srcdict is None:
        origin = sources["train"]
        known: set[str] = set()
    else:
        origin = _Source("--srcdict", args.srcdict)
        known = _load_symbols(origin)

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


def _load_symbols(source: _Source) -> set[str]:
    from fairseq.data import Dictionary

    try:
        return set(Dictionary.load(source.path).symbols)
    except Exception as error:  # fairseq raises it, as it is, for text that is not UTF-8
        reason = " ".join(str(error).split())  # fairseq quotes the line with its end
        raise InputError(f"{source}: {reason}") from error


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


def _binarize(args: argparse.Namespace, splits: Iterable[str], data: Path, tokens: Path) -> None:
    """Call fairseq-preprocess; its messages go to its preprocess.log only."""
    from fairseq import options
    from fairseq_cli import preprocess

    command = ["--only-source", "--task", "language_modeling", "--padding-factor", "1"]
    command += ["--workers", str(args.workers), "--destdir", str(data)]
    if args.srcdict is not None:
        command += ["--srcdict", args.srcdict]
    for kind in ("train", "valid", "test"):
        files = [str(tokens / split) for split in splits if split.startswith(kind)]
        if files:
            command += [f"--{kind}pref", ",".join(files)]

    with _log_to_file_only(preprocess.logger):
        preprocess.main(options.get_preprocessing_parser().parse_args(command))


@contextlib.contextmanager
def _log_to_file_only(logger: logging.Logger) -> Iterator[None]:
    """Silence a logger but for the handlers that are added inside, and close those at the end."""
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.propagate = propagate
        for handler in [each for each in logger.handlers if each not in handlers]:
            logger.removeHandler(handler)
            handler.close()


def _check_targets(info: CodecInfo, data: Path) -> None:
    """Make sure that fairseq-preprocess kept every symbol, whatever its version and --workers."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    for split, recorded in info.splits.items():
        # By name: when an Index goes, the memory of its sizes goes with it.
        index = MMapIndexedDataset.Index(str(data / f"{split}.idx"))
        written = int(index.sizes.sum())
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
