"""What the ``prepare`` commands share: a folder made as a whole, by fairseq-preprocess."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_rum.errors import InputError


def add_destination(parser: argparse.ArgumentParser) -> None:
    """Add the options ``--destdir`` and ``--workers``."""
    parser.add_argument(
        "--destdir", metavar="DIR", required=True, help="folder to make; must not exist or be empty"
    )
    parser.add_argument(
        "--workers", metavar="N", type=int, default=1, help="processes (default: %(default)s)"
    )


def check_destination(destdir: str, workers: int) -> None:
    """Refuse a folder that cannot be made or would be overwritten, before any text is read.

    Raises:
        InputError: the folder is not empty, or has no place; ``--workers`` is below 1.
    """
    if workers < 1:
        raise InputError(f"--workers {workers}: must be at least 1")
    option = f"--destdir {destdir}"
    target = os.path.realpath(destdir)
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
def all_or_nothing(destdir: str) -> Iterator[tuple[Path, Path]]:
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


def load_symbols(option: str, path: str) -> list[str]:
    """The symbols of a dictionary file in their order, fairseq's special ones first.

    Raises:
        InputError: the file is missing or malformed; the sentence names the option.
    """
    from fairseq_rum.data.dictionaries import load_dictionary

    try:
        return load_dictionary(path).symbols
    except InputError as error:
        raise InputError(f"{option} {error}") from error


def run_preprocess(arguments: Sequence[str]) -> None:
    """Call fairseq-preprocess; its messages go to its preprocess.log only."""
    from fairseq import options
    from fairseq_cli import preprocess

    with _log_to_file_only(preprocess.logger):
        preprocess.main(options.get_preprocessing_parser().parse_args(list(arguments)))


def prefixes(splits: Sequence[str], folder: Path) -> list[str]:
    """fairseq-preprocess's options for texts that are named after their splits in a folder."""
    arguments = []
    for kind in ("train", "valid", "test"):
        files = [str(folder / split) for split in splits if split.startswith(kind)]
        if files:
            arguments += [f"--{kind}pref", ",".join(files)]
    return arguments


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


def written_tokens(path: Path) -> tuple[int, int]:
    """The numbers of rows and of tokens in a binary file of fairseq's, by its index."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    # By name: when an Index goes, the memory of its sizes goes with it.
    index = MMapIndexedDataset.Index(str(path))
    return len(index), int(index.sizes.sum())
