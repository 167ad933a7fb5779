"""Collect pairs (docstring -> its summary line) from installed packages: no download.

The sources of Python's standard library, numpy, scipy, torch and scikit-learn are parsed, not
imported. Modules are split into train, valid and test; what occurs in two of them leaves one. The
result is a data directory as that of fairseq-rum prepare summarization.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import multiprocessing
import sys

from fairseq_rum.cli import summary_data
from fairseq_rum.data.docstrings import (
    PACKAGES,
    Docstring,
    package_folder,
    package_version,
    read_module,
    source_files,
    split_docstrings,
)
from fairseq_rum.data.summaries import Pair
from fairseq_rum.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fairseq-rum prepare docstrings``."""
    parser.add_argument(
        "--packages",
        metavar="NAME",
        nargs="+",
        choices=PACKAGES,
        help=f"of {', '.join(PACKAGES)} (default: all that are installed)",
    )
    summary_data.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Do what the options say.

    Raises:
        InputError: bad input. Nothing is written then.
    """
    summary_data.check_options(args)
    pairs = _collect(args)
    by_split, left_out = split_docstrings(pairs)
    print(f"{left_out:,} of {len(pairs):,} pairs left out: they are twice there, or nearly")
    splits = {
        split: functools.partial(_pairs, docstrings)
        for split, docstrings in by_split.items()
        if docstrings
    }
    if "train" not in splits and args.dict is None:
        raise InputError("no docstrings to train on in --packages")
    summary_data.write_data(args, splits, tokenizer="moses", language="en")
    return 0


def _collect(args: argparse.Namespace) -> list[Docstring]:
    """The pairs of all packages; says which versions they are from."""
    found: list[Docstring] = []
    with contextlib.ExitStack() as stack:
        apply = itertools.starmap
        if args.workers > 1:
            apply = stack.enter_context(multiprocessing.Pool(args.workers)).starmap
        for name in args.packages or PACKAGES:
            folder = package_folder(name)
            if folder is None:
                if args.packages:
                    raise InputError(f"--packages {name}: is not installed")
                print(f"{name}: not installed, left out")
                continue
            print(f"{name}: reading sources ...", file=sys.stderr)
            before = len(found)
            for pairs in apply(read_module, source_files(name, folder)):
                found += pairs
            print(f"{name} {package_version(name)}: {len(found) - before:,} pairs")
    return found


def _pairs(docstrings: list[Docstring]) -> list[Pair]:
    return [docstring.pair() for docstring in docstrings]
