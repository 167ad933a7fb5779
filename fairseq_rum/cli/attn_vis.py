"""Make a page that shows what summaries copied: one HTML file, which needs nothing else.

A run is the file of fairseq-generate --attention-path; several are shown side by side. The
references are those in the output of fairseq-generate.

  fairseq-generate DATA --user-dir fairseq_rum --task rum_summarization --path MODEL \\
      --attention-path rum.jsonl --results-path out --required-batch-size-multiple 1
  fairseq-rum attn-vis --runs LEAD=lead.jsonl RUM=rum.jsonl --generated out/generate-test.txt \\
      --out copied.html
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_rum.cli import figures
from fairseq_rum.errors import InputError

if TYPE_CHECKING:
    from fairseq_rum.data.recorded_summaries import RecordedSummary

_LIMIT = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand."""
    parser.add_argument(
        "--runs",
        nargs="+",
        required=True,
        metavar="[NAME=]FILE",
        help="of fairseq-generate --attention-path",
    )
    parser.add_argument(
        "--generated", metavar="FILE", help="output of fairseq-generate, for the references"
    )
    parser.add_argument(
        "--examples", nargs="+", type=int, metavar="N", help="numbers of the examples to show"
    )
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help=f"show the first N examples (default: {_LIMIT}, or all that --examples names)",
    )
    parser.add_argument("--title", default="What summaries copy", metavar="TEXT")
    parser.add_argument("--out", required=True, metavar="FILE", help="the page: .html")


def run(args: argparse.Namespace) -> int:
    """Read the runs and write the page."""
    if Path(args.out).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {args.out}: the name must end in .html")
    figures.check_folder(args.out)
    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit must be at least 1, got {args.limit}")
    from fairseq_rum.data.generated import read_generated
    from fairseq_rum.viz.attention_page import Example, attention_page

    runs = _read_runs(args.runs)
    references = None
    if args.generated is not None:
        references = read_generated(args.generated).references
        if references is None:
            raise InputError(f"--generated {args.generated}: no references (T-0 ...) in it")
    limit = args.limit or (None if args.examples else _LIMIT)
    examples = []
    for key in _chosen(runs, args.examples)[:limit]:
        summaries = {name: records[key] for name, records in runs.items()}
        _check_source(key, summaries)
        reference = None
        if references is not None:
            if not 0 <= key < len(references):
                raise InputError(f"--generated {args.generated}: there is no example {key} in it")
            reference = references[key]
        examples.append(Example(f"Example {key}", reference, summaries))
    page = attention_page(examples, args.title)
    try:
        with open(args.out, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
    except OSError as error:
        raise InputError(f"--out {args.out}: {error.strerror}") from error
    print(f"{args.out}: {len(examples)} examples by {', '.join(runs)}")
    return 0


def _read_runs(texts: list[str]) -> dict[str, dict[int, RecordedSummary]]:
    """Name of a run -> number of the example, or place in the file -> summary."""
    from fairseq_rum.data.recorded_summaries import read_recorded

    runs: dict[str, dict[int, RecordedSummary]] = {}
    for text in texts:
        name, path = figures.split_name(text)
        name = name or Path(path).stem
        figures.unique([*runs, name], "--runs")
        runs[name] = {}
        for place, record in enumerate(read_recorded(path)):
            key = place if record.index is None else record.index
            if key in runs[name]:
                raise InputError(f"{path}: example {key} is there twice")
            runs[name][key] = record
    return runs


def _chosen(runs: dict[str, dict[int, RecordedSummary]], wanted: list[int] | None) -> list[int]:
    """The examples to show: those that all runs have."""
    common = set.intersection(*(set(records) for records in runs.values()))
    if wanted is None:
        if not common:
            raise InputError("--runs: these runs have no example in common")
        return sorted(common)
    missing = [key for key in wanted if key not in common]
    if missing:
        raise InputError(f"--examples {missing[0]}: not all runs have it")
    return list(dict.fromkeys(wanted))


def _check_source(key: int, summaries: dict[str, RecordedSummary]) -> None:
    """Refuse runs on other data; one may have read more of a text than another."""
    first, *others = summaries
    source = summaries[first].source
    for name in others:
        other = summaries[name].source
        length = min(len(source), len(other))
        if source[:length] != other[:length]:
            raise InputError(f"--runs: example {key} of {first!r} and {name!r} are two texts")
