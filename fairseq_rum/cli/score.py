"""ROUGE of summaries with bootstrap intervals, and how much they copy and repeat.

Summaries are the lines of a file (--hyp), those in the output of fairseq-generate (--generated,
which has sources and references too), or the first sentences of the texts (--lead), the usual
baseline. All files have a line for each example. A text is split into sentences at ". ! ?" that
stand alone, or else at words that end in one of these and come before a capital.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Optional

from fairseq_rum.data.generated import read_generated
from fairseq_rum.data.rouge import COMBINATIONS, MEASURES, TYPES, Estimate, Rouge, score_corpus
from fairseq_rum.data.sentences import split_sentences
from fairseq_rum.data.summaries import read_lines
from fairseq_rum.data.summary_statistics import (
    mean_length,
    novel_ngrams,
    repeated_trigrams,
)
from fairseq_rum.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fairseq-rum score``."""
    summaries = parser.add_mutually_exclusive_group(required=True)
    summaries.add_argument("--hyp", metavar="FILE", help="summaries")
    summaries.add_argument(
        "--generated", metavar="FILE", help="output of fairseq-generate, or its generate-test.txt"
    )
    summaries.add_argument(
        "--lead", metavar="N", type=int, help="take the first N sentences of --src as summaries"
    )
    parser.add_argument(
        "--ref",
        metavar="FILE",
        nargs="+",
        action="extend",
        help="references; with several files an example has several, an empty line is none "
        "(default: those in --generated)",
    )
    parser.add_argument(
        "--src", metavar="FILE", help="the texts (default: those in --generated, as truncated)"
    )
    parser.add_argument(
        "--combine",
        choices=COMBINATIONS,
        default=COMBINATIONS[0],
        help="of several references: the best for each ROUGE, or the mean (default: %(default)s)",
    )
    parser.add_argument(
        "--p-gen", metavar="FILE", help="the p_gen of each word of a summary, in a line"
    )
    parser.add_argument(
        "--no-stemming", action="store_true", help="compare words as they are, not their stems"
    )
    parser.add_argument(
        "--samples", metavar="N", type=int, default=1000, help="of the bootstrap (default: 1000)"
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=1, help="of the bootstrap (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Do what the options say.

    Raises:
        InputError: bad input.
    """
    if args.samples < 1:
        raise InputError(f"--samples {args.samples}: must be at least 1")
    if args.seed < 0:
        raise InputError(f"--seed {args.seed}: must be at least 0")
    hypotheses, references, sources = _texts(args)
    generated = None if args.p_gen is None else _read_p_gen(args.p_gen, len(hypotheses))
    rouge = Rouge(stem=not args.no_stemming, combine=args.combine)
    scores = score_corpus(rouge, references, hypotheses, args.samples, args.seed)
    result = {
        "summaries": len(hypotheses),
        "rouge": {kind: {m: asdict(scores[kind][m]) for m in MEASURES} for kind in TYPES},
        "statistics": _statistics(hypotheses, references, sources, generated),
    }
    print(json.dumps(result) if args.json else _table(result))
    return 0


def _texts(
    args: argparse.Namespace,
) -> tuple[Sequence[str], list[list[str]], Optional[Sequence[str]]]:
    """Summaries, references of each, and texts if they are known."""
    sources = None if args.src is None else _read(args.src)
    own_references = None
    if args.generated is not None:
        origin = args.generated
        generated = read_generated(origin)
        hypotheses, own_references = generated.hypotheses, generated.references
        sources = generated.sources if sources is None else sources
    elif args.hyp is not None:
        origin = args.hyp
        hypotheses = _read(origin)
    else:
        if args.lead < 1:
            raise InputError(f"--lead {args.lead}: must be at least 1")
        if sources is None:
            raise InputError("--lead needs --src, the texts whose first sentences it takes")
        origin = args.src
        hypotheses = [" ".join(split_sentences(text)[: args.lead]) for text in sources]
    if not hypotheses:
        raise InputError(f"{origin}: is empty")
    if args.ref is not None:
        columns = [_read(path) for path in args.ref]
    elif own_references is not None:
        columns = [own_references]
    else:
        raise InputError("give --ref, the references")
    named = list(zip(args.ref or [], columns))
    named += [] if args.src is None else [(args.src, sources)]
    for path, lines in named:
        if len(lines) != len(hypotheses):
            raise InputError(
                f"{path} has {len(lines):,} lines, but {origin} has {len(hypotheses):,} summaries"
            )
    return hypotheses, [list(row) for row in zip(*columns)], sources


def _read(path: str) -> list[str]:
    return [line for _, line in read_lines(path)]


def _read_p_gen(path: str, summaries: int) -> list[float]:
    """All p_gen of all summaries."""
    values: list[float] = []
    number = 0
    for number, line in read_lines(path):
        try:
            found = [float(value) for value in line.split()]
        except ValueError as error:
            raise InputError(f"{path}, line {number}: {error}") from error
        if not all(0 <= value <= 1 for value in found):
            raise InputError(f"{path}, line {number}: a p_gen lies between 0 and 1")
        values += found
    if number != summaries:
        raise InputError(f"{path} has {number:,} lines, but there are {summaries:,} summaries")
    if not values:
        raise InputError(f"{path}: has no numbers")
    return values


def _statistics(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Optional[Sequence[str]],
    p_gen: Optional[list[float]],
) -> dict[str, Any]:
    pairs = [(i, text) for i, row in enumerate(references) for text in row if text.strip()]
    flat = [text for _, text in pairs]
    result: dict[str, Any] = {
        "length": [mean_length(hypotheses), mean_length(flat)],
        "repeated trigrams": [repeated_trigrams(hypotheses), repeated_trigrams(flat)],
    }
    if sources is not None:
        of_references = novel_ngrams(flat, (sources[i] for i, _ in pairs))
        for n, share in novel_ngrams(hypotheses, sources).items():
            result[f"novel {n}-grams"] = [share, of_references[n]]
    if p_gen is not None:
        result["copied"] = [100 * (1 - sum(p_gen) / len(p_gen)), None]
    return result


def _table(result: dict[str, Any]) -> str:
    lines = [f"{result['summaries']:,} summaries, in percent, with 95% bootstrap intervals"]
    lines.append(f"{'':<14}{'F1':<24}{'precision':<24}{'recall':<24}".rstrip())
    for kind, name in TYPES.items():
        cells = [str(Estimate(**result["rouge"][kind][measure])) for measure in MEASURES]
        lines.append(f"{name:<14}" + "".join(f"{cell:<24}" for cell in cells).rstrip())
    lines.append(f"\n{'':<20}{'summaries':>10}{'references':>12}")
    for name, (ours, theirs) in result["statistics"].items():
        unit = " (words)" if name == "length" else " (%)"
        other = "" if theirs is None else f"{theirs:>12.1f}"
        lines.append(f"{name + unit:<24}{ours:>6.1f}{other}")
    return "\n".join(lines)
