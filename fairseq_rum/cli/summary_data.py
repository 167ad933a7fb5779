"""From pairs of texts and summaries to a data directory: what both ``prepare`` commands share.

A data directory has, beside what fairseq-preprocess writes:

- ``summarization.json``: how text becomes words, see ``SummaryText``;
- ``SPLIT.source-target.SIDE.unknown``: the words behind the markers, see ``unknown_words``;
- ``SPLIT.source.txt``, ``SPLIT.target.txt`` of each split but train: the whole source and the
  reference as words, in the order of the examples. Where examples have several references there
  are ``SPLIT.target1.txt`` ... with an empty line for an example that has no more.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from fairseq_rum.cli.binarize import (
    add_destination,
    all_or_nothing,
    check_destination,
    load_symbols,
    prefixes,
    run_preprocess,
    written_tokens,
)
from fairseq_rum.data.summaries import PARTS, Pair
from fairseq_rum.data.summary_text import SETTINGS_FILE, SummaryText
from fairseq_rum.data.unknown_words import (
    SPECIAL_SYMBOLS,
    count_markers,
    format_unknown,
    is_reserved,
    mark_source,
    mark_target,
    marked_words,
    marker,
    side_file,
)
from fairseq_rum.errors import InputError

SOURCE, TARGET = "source", "target"

Splits = Mapping[str, Callable[[], Iterable[Pair]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of both commands."""
    add_destination(parser)
    parser.add_argument("--lowercase", action="store_true", help="lower-case all words")
    parser.add_argument(
        "--source-length",
        metavar="N",
        type=int,
        help="keep the first N words of a text (default: 400, or as many as --dict has markers)",
    )
    parser.add_argument(
        "--target-length",
        metavar="N",
        type=int,
        default=100,
        help="keep the first N words of a summary in train and valid; test summaries are the "
        "references and stay whole (default: %(default)s)",
    )
    parser.add_argument(
        "--vocabulary",
        metavar="N",
        type=int,
        help="the N most frequent words of train, texts and summaries together (default: 50000)",
    )
    parser.add_argument(
        "--min-count",
        metavar="N",
        type=int,
        help="of these, words that occur at least N times (default: 1); a small corpus has "
        "unknown words to train on, and to copy, from 3 on",
    )
    parser.add_argument(
        "--dict",
        metavar="FILE",
        help="the dict.source.txt of another data directory, to test on texts of another kind: "
        "no vocabulary is made then, and train may be missing",
    )
    parser.add_argument(
        "--shuffle",
        choices=PARTS,
        help="put the paragraphs or sentences of each text into a random order",
    )
    parser.add_argument("--seed", metavar="N", type=int, help="of --shuffle (default: 1)")


def check_options(args: argparse.Namespace) -> None:
    """What can be found out before any text is read.

    Raises:
        InputError: an option is out of range, or would have no effect.
    """
    for name in ("source_length", "target_length", "vocabulary", "min_count"):
        value = getattr(args, name)
        option = "--" + name.replace("_", "-")
        if value is not None and value < 1:
            raise InputError(f"{option} {value}: must be at least 1")
        if value is not None and args.dict is not None and name in ("vocabulary", "min_count"):
            raise InputError(f"{option} has no effect with --dict, which is the vocabulary")
    if args.seed is not None and args.shuffle is None:
        raise InputError("--seed has no effect without --shuffle")
    check_destination(args.destdir, args.workers)


@dataclass
class _Count:
    """What is told about a split at the end."""

    pairs: int = 0
    empty: int = 0
    references: int = 1
    words: Counter = field(default_factory=Counter)  # of each side
    tokens: Counter = field(default_factory=Counter)  # unknown, copyable ... of each side


def write_data(args: argparse.Namespace, splits: Splits, tokenizer: str, language: str) -> None:
    """Make the data directory, whole or not at all.

    Args:
        args: the options of :func:`add_arguments`.
        splits: split -> its pairs. Pairs without a text or a summary are left out of train and
            valid; a test split keeps every pair.
        tokenizer, language: see ``SummaryText``.

    Raises:
        InputError: bad input. Nothing is written then.
    """
    with all_or_nothing(args.destdir) as (data, scratch):
        symbols = None if args.dict is None else load_symbols("--dict", args.dict)
        settings = _settings(args, symbols, tokenizer, language)
        counts = {}
        frequencies: Counter = Counter()
        for split, pairs in splits.items():
            print(f"{split}: reading and tokenizing ...", file=sys.stderr)
            counted = frequencies if split == "train" and symbols is None else None
            words = _tokenized(args, settings, split, pairs)
            counts[split] = _write_words(settings, split, words, data, scratch, counted)
        dictionary = args.dict
        if symbols is None:
            symbols = _new_symbols(args, frequencies, settings.markers)
            dictionary = str(scratch / "dict.txt")
            _write_dictionary(dictionary, symbols, frequencies)
        known = set(symbols[: len(symbols) - settings.markers])
        for split, count in counts.items():
            _write_marked(split, known, settings.markers, count, data, scratch)
        print("binarizing with fairseq-preprocess ...", file=sys.stderr)
        command = ["--source-lang", SOURCE, "--target-lang", TARGET, "--joined-dictionary"]
        command += ["--srcdict", dictionary, "--destdir", str(data)]
        command += ["--workers", str(args.workers)]
        run_preprocess([*command, *prefixes(list(splits), scratch)])
        _check_written(counts, data)
        settings.save(data / SETTINGS_FILE)
    _print_summary(args, counts, len(symbols) - len(SPECIAL_SYMBOLS) - settings.markers, settings)


def _settings(
    args: argparse.Namespace, symbols: Optional[list[str]], tokenizer: str, language: str
) -> SummaryText:
    markers = args.source_length or 400
    if symbols is not None:
        try:
            markers = count_markers(symbols)
        except ValueError as error:
            raise InputError(f"--dict {args.dict}: {error}") from error
        if not markers:
            raise InputError(
                f"--dict {args.dict}: does not end with markers ({marker(0)} ...), is it from "
                "fairseq-rum prepare summarization?"
            )
        if (args.source_length or 0) > markers:
            raise InputError(
                f"--source-length {args.source_length}: --dict {args.dict} has only "
                f"{markers} markers"
            )
    return SummaryText(
        tokenizer=tokenizer,
        language=language,
        lowercase=args.lowercase,
        source_length=args.source_length or markers,
        target_length=args.target_length,
        markers=markers,
    )


def _tokenized(
    args: argparse.Namespace,
    settings: SummaryText,
    split: str,
    pairs: Callable[[], Iterable[Pair]],
) -> Iterator[tuple[list[str], list[list[str]]]]:
    """The words of each text and of its summaries, by ``--workers`` processes."""
    seed = None if args.shuffle is None else f"{1 if args.seed is None else args.seed} {split}"
    work = functools.partial(_words_of_pair, settings, args.shuffle, seed)
    with contextlib.ExitStack() as stack:
        apply = map
        if args.workers > 1:
            pool = stack.enter_context(multiprocessing.Pool(args.workers))
            apply = functools.partial(pool.imap, chunksize=64)
        yield from apply(work, enumerate(pairs()))


def _words_of_pair(
    settings: SummaryText, part: Optional[str], seed: Optional[str], numbered: tuple[int, Pair]
) -> tuple[list[str], list[list[str]]]:
    number, pair = numbered
    if part is not None:
        pair = pair.shuffled(part, f"{seed} {number}")
    source = settings.preprocess(pair.text())
    return source, [settings.preprocess(target) for target in pair.targets]


def _write_words(
    settings: SummaryText,
    split: str,
    pairs: Iterable[tuple[list[str], list[list[str]]]],
    data: Path,
    scratch: Path,
    frequencies: Optional[Counter],
) -> _Count:
    """Write the truncated words of a split to scratch, the whole ones to data, and count."""
    count = _Count()
    is_test = split.startswith("test")
    with contextlib.ExitStack() as stack:

        def create(folder: Path, name: str) -> object:
            path = folder / f"{split}.{name}"
            return stack.enter_context(open(path, "w", encoding="utf-8", newline="\n"))

        short = create(scratch, "source.words"), create(scratch, "target.words")
        whole = [] if split == "train" else [create(data, "source.txt"), create(data, "target.txt")]
        for source, targets in pairs:
            if not (source and targets[0]):
                count.empty += 1
                if not is_test:
                    continue
            if whole:
                while len(whole) <= len(targets):
                    whole.append(create(data, f"target{len(whole) - 1}.txt"))
                    whole[-1].write("\n" * count.pairs)
                for file, words in zip(whole, [source, *targets, *[[]] * len(whole)]):
                    file.write(" ".join(words) + "\n")
            count.pairs += 1
            source, target = source[: settings.source_length], targets[0]
            target = target if is_test else target[: settings.target_length]
            for side, file, words in zip((SOURCE, TARGET), short, (source, target)):
                count.words[side] += len(words)
                file.write(" ".join(words) + "\n")
                if frequencies is not None:
                    frequencies.update(words)
        count.references = max(1, len(whole) - 1)
    if count.pairs == 0:
        left_out = f", {count.empty:,} without a text or a summary" if count.empty else ""
        raise InputError(f"{split}: no pairs{left_out}")
    return count


def _new_symbols(args: argparse.Namespace, frequencies: Counter, markers: int) -> list[str]:
    """The symbols of a new dictionary: special ones, words by frequency, markers."""
    least = args.min_count or 1
    words = [word for word in frequencies if frequencies[word] >= least and not is_reserved(word)]
    words.sort(key=lambda word: (-frequencies[word], word))
    return [*SPECIAL_SYMBOLS, *words[: args.vocabulary or 50000], *map(marker, range(markers))]


def _write_dictionary(path: str, symbols: list[str], frequencies: Counter) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for symbol in symbols[len(SPECIAL_SYMBOLS) :]:
            count = 0 if is_reserved(symbol) else frequencies[symbol]
            file.write(f"{symbol} {count}\n")


def _write_marked(
    split: str, known: set[str], markers: int, count: _Count, data: Path, scratch: Path
) -> None:
    """Write what fairseq-preprocess is to read, and the side files."""
    with contextlib.ExitStack() as stack:

        def file(path: object, mode: str = "w") -> object:
            return stack.enter_context(open(path, mode, encoding="utf-8", newline="\n"))

        words = [file(scratch / f"{split}.{side}.words", "r") for side in (SOURCE, TARGET)]
        marked = [file(scratch / f"{split}.{side}") for side in (SOURCE, TARGET)]
        sides = [file(side_file(data, split, SOURCE, TARGET, side)) for side in (SOURCE, TARGET)]
        for source_line, target_line in zip(*words):
            source, target = source_line.split(), target_line.split()
            source_tokens, unknown = mark_source(source, known, markers)
            words_of_markers = marked_words(source_tokens, unknown)
            target_tokens, missing = mark_target(target, known, words_of_markers)
            for file_, tokens in zip(marked, (source_tokens, target_tokens)):
                file_.write(" ".join(tokens) + "\n")
            for file_, missed in zip(sides, (unknown, missing)):
                file_.write(format_unknown(missed))
            count.tokens["source unknown"] += sum(map(is_reserved, source_tokens))
            count.tokens["target unknown"] += sum(map(is_reserved, target_tokens))
            count.tokens["target missing"] += len(missing)


def _check_written(counts: Mapping[str, _Count], data: Path) -> None:
    """Make sure that fairseq-preprocess kept every example and word."""
    for split, count in counts.items():
        for side in (SOURCE, TARGET):
            written = written_tokens(data / f"{split}.{SOURCE}-{TARGET}.{side}.idx")
            expected = count.pairs, count.words[side] + count.pairs
            if written != expected:
                raise RuntimeError(
                    f"fairseq-preprocess wrote {written} of {expected} rows and tokens of the "
                    f"{side} of {split}"
                )


def _print_summary(
    args: argparse.Namespace, counts: Mapping[str, _Count], vocabulary: int, settings: SummaryText
) -> None:
    for split, count in counts.items():
        source, target = (count.words[side] for side in (SOURCE, TARGET))
        unknown, missing = (count.tokens[f"target {what}"] for what in ("unknown", "missing"))
        line = [
            f"{split}: {count.pairs:,} pairs",
            f"{source / count.pairs:.1f} -> {target / count.pairs:.1f} words",
            f"unknown: {_percent(count.tokens['source unknown'], source)} of the texts, "
            f"{_percent(unknown, target)} of the summaries, of these "
            f"{_percent(unknown - missing, unknown)} can be copied",
        ]
        if count.references > 1:
            line.append(f"up to {count.references} references")
        if count.empty:
            kept = "kept" if split.startswith("test") else "left out"
            line.append(f"{count.empty:,} without a text or a summary {kept}")
        print(", ".join(line))
    print(f"vocabulary: {vocabulary:,} words and {settings.markers} markers")
    if "train" in counts:
        train = [
            f"fairseq-train {shlex.quote(args.destdir)}",
            '--user-dir "$(fairseq-rum user-dir)"',
            "--task rum_summarization --criterion pointer_coverage_loss --arch pointer_gen_rum",
            "--optimizer rum_adagrad --lr 0.15 --clip-norm 2.0 --batch-size 16",
        ]
        if "valid" not in counts:
            train.append("--disable-validation")
        print("next:", " ".join(train))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "0%"
