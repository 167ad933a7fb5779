"""Turn pairs of texts and summaries into fairseq's binary form, unknown words as markers.

A word outside the vocabulary becomes the marker of its place in the text, so that a model can copy
it: see --task rum_summarization. The forms of input (--format) and their files:

  lines    --train TEXTS SUMMARIES     line n of one is the summary of line n of the other
  stories  --train URLS --stories DIR  CNN and Daily Mail: HASH.story files and lists of their URLs
  jsonl    --train FILE                a JSON object a line, as SciTLDR
  csv      --train FILE                columns, with their names in the first row
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterator, Sequence

from fairseq_rum.cli import summary_data
from fairseq_rum.data.summaries import (
    Pair,
    read_aligned,
    read_csv,
    read_json_lines,
    read_stories,
)
from fairseq_rum.errors import InputError

_FORMATS = ("lines", "stories", "jsonl", "csv")
_SPLITS = ("train", "valid", "test")
_DEFAULTS = {
    "source_field": "source",
    "target_field": "target",
    "delimiter": ",",
    "language": "en",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fairseq-rum prepare summarization``."""
    parser.add_argument(
        "--format", choices=_FORMATS, default="lines", help="form of input (default: %(default)s)"
    )
    for split in _SPLITS:
        parser.add_argument(
            f"--{split}", metavar="FILE", nargs="+", help=f"the file or files of {split}"
        )
    parser.add_argument(
        "--stories", metavar="DIR", nargs="+", help="stories: folders with .story files"
    )
    parser.add_argument(
        "--source-field", metavar="NAME", help="jsonl, csv: field of the text (default: source)"
    )
    parser.add_argument(
        "--target-field",
        metavar="NAME",
        help="jsonl, csv: field of the summary, or of the title (default: target)",
    )
    parser.add_argument("--delimiter", metavar="C", help="csv: between columns (default: a comma)")
    parser.add_argument(
        "--tokenized",
        action="store_true",
        help="words are what white space separates; without it sacremoses tokenizes",
    )
    parser.add_argument(
        "--language", metavar="CODE", help="for the rules of sacremoses (default: en)"
    )
    summary_data.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Do what the options say.

    Raises:
        InputError: bad input. Nothing is written then.
    """
    _check_options(args)
    splits = {}
    for split in _SPLITS:
        files = getattr(args, split)
        if files is not None:
            splits[split] = _reader(args, files)
    tokenizer = "none" if args.tokenized else "moses"
    summary_data.write_data(args, splits, tokenizer, _option(args, "language"))
    return 0


def _option(args: argparse.Namespace, name: str) -> str:
    value = getattr(args, name)
    return _DEFAULTS[name] if value is None else value


def _check_options(args: argparse.Namespace) -> None:
    """What can be found out before any text is read."""
    summary_data.check_options(args)
    if args.train is None and (args.dict is None or (args.valid is None and args.test is None)):
        raise InputError("give --train, or --dict with --valid or --test")
    for name, formats in (
        ("stories", ("stories",)),
        ("source_field", ("jsonl", "csv")),
        ("target_field", ("jsonl", "csv")),
        ("delimiter", ("csv",)),
    ):
        if getattr(args, name) is not None and args.format not in formats:
            raise InputError(
                f"--{name.replace('_', '-')} has no effect with --format {args.format}"
            )
    if args.format == "stories" and args.stories is None:
        raise InputError("--format stories needs --stories, the folders of the .story files")
    if args.delimiter is not None and len(args.delimiter) != 1:
        raise InputError(f"--delimiter {args.delimiter!r}: must be one character")
    if args.format == "lines" and args.shuffle == "paragraphs":
        raise InputError(
            "--shuffle paragraphs: --format lines does not tell where paragraphs end, use sentences"
        )
    if args.tokenized and args.language is not None:
        raise InputError("--language has no effect with --tokenized")
    for folder in args.stories or []:
        if not os.path.isdir(folder):
            raise InputError(f"--stories {folder}: no such folder")
    for split in _SPLITS:
        _check_files(args.format, split, getattr(args, split))


def _check_files(form: str, split: str, files: Sequence[str] | None) -> None:
    if files is None:
        return
    expected = 2 if form == "lines" else 1
    if len(files) != expected:
        what = "two files, texts and summaries" if expected == 2 else "one file"
        raise InputError(f"--{split}: --format {form} takes {what}, got {len(files)}")
    for file in files:
        if not os.path.exists(file):
            raise InputError(f"--{split} {file}: no such file")


def _reader(args: argparse.Namespace, files: Sequence[str]) -> Callable[[], Iterator[Pair]]:
    if args.format == "lines":
        return functools.partial(read_aligned, *files)
    if args.format == "stories":
        return functools.partial(read_stories, files[0], args.stories)
    fields = _option(args, "source_field"), _option(args, "target_field")
    if args.format == "jsonl":
        return functools.partial(read_json_lines, files[0], *fields)
    return functools.partial(read_csv, files[0], *fields, _option(args, "delimiter"))
