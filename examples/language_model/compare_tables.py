"""The runs of compare.py as tables and a figure, made from their records and logs alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List

from run_tools import load, read, where_made, write

COMPARISON, FULL, SHORT = "comparison", "full", "short"


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        group: the table that it belongs to.
        label: in the table and in the figure.
        model: options of the model.
        batch: streams.
        updates: at most so many; none in the comparison, where the minutes count.
        every: updates between two lines of the log.
    """

    group: str
    label: str
    model: str
    batch: int = 128
    updates: int = 0
    every: int = 10


def table(group: str, runs: Mapping[str, Run], results: Path) -> str:
    """The results of the runs of a group that there are, as Markdown, and where they were made."""
    columns, row = TABLES[group]
    lines: List[str] = []
    made: Dict[str, Dict[str, Any]] = {}
    for name, run in runs.items():
        record = load(results / name / "run.json")
        if run.group != group or not record:
            continue
        lines.append("| " + " | ".join([run.label, *row(results / name, record)]) + " |")
        made[name] = record
    if not lines:
        return "Not run yet."
    header = ["run", *columns]
    head = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*head, *lines, "", *where_made(made)])


def _counts(record: Dict[str, Any]) -> List[str]:
    status = "" if record["status"] == "finished" else f" ({record['status']})"
    return [f"{record['parameters'] or 0:,}", f"{record['updates']:,}{status}"]


def _compared_row(results: Path, record: Dict[str, Any]) -> List[str]:
    """Numbers at equal minutes, and at the updates that the slowest run reached as well."""
    from fairseq_rum.data.training_log import parse_log

    at = dict(zip(*parse_log(read(results / "log.jsonl")).series("valid", "bpc")))
    values = [at.get(100.0), at.get(200.0), record.get("valid_bpc"), record.get("test_bpc")]
    return [
        *_counts(record),
        f"{record['minutes']:.1f}",
        *("-" if value is None else f"{value:.3f}" for value in values),
    ]


def _full_row(results: Path, record: Dict[str, Any]) -> List[str]:
    memory, speed = record.get("peak_memory_mb"), record.get("characters_per_second")
    return [
        *_counts(record),
        f"{record['minutes']:.1f}",
        "-" if speed is None else f"{speed:,}",
        "-" if memory is None else f"{memory:,} MB",
    ]


def _short_row(results: Path, record: Dict[str, Any]) -> List[str]:
    from fairseq_rum.data.training_log import TRAIN, parse_log

    log = parse_log(read(results / "log.jsonl"))
    at = dict(zip(*log.series(TRAIN, "bpc")))
    norms = log.series(TRAIN, "gnorm")[1]
    values = [at.get(float(update)) for update in (10, 25, 50, 100)]
    return [
        *_counts(record),
        *("-" if value is None else f"{value:.2f}" for value in values),
        f"{max(norms):.3g}" if norms else "-",
    ]


TABLES = {
    COMPARISON: (
        ["parameters", "updates", "minutes", "valid bpc at 100 updates", "at 200", "at the end",
         "test bpc"],
        _compared_row,
    ),
    FULL: (["parameters", "updates", "minutes", "characters/s", "peak memory"], _full_row),
    SHORT: (
        ["parameters", "updates", "train bpc at 10", "at 25", "at 50", "at 100",
         "largest gradient norm"],
        _short_row,
    ),
}  # fmt: skip


def write_page(runs: Mapping[str, Run], results: Path, page: Path) -> None:
    """Draw the figure beside the page, and put the tables between the page's marks."""
    text = page.read_text(encoding="utf-8")
    figure = draw(runs, results, page.parent / "compare_bpc.png")
    for group in TABLES:
        begin, end = f"<!-- {group}: compare.py -->", f"<!-- {group}: end -->"
        content = table(group, runs, results) + (figure if group == COMPARISON else "")
        pattern = re.compile(f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", re.DOTALL)
        text = pattern.sub(lambda _, content=content: f"\n{content}\n", text)
    write(page, text)


def draw(runs: Mapping[str, Run], results: Path, figure: Path) -> str:
    """The validation curves of the comparison in one figure; the line that shows it on the page."""
    from fairseq_rum.cli.main import main as fairseq_rum

    drawn = [
        f"{run.label}={results / name}"
        for name, run in runs.items()
        if run.group == COMPARISON and "valid_bpc" in load(results / name / "run.json")
    ]
    if not drawn:
        return ""
    axes = "--metric bpc --split valid --x minutes".split()
    fairseq_rum(["plot", "curves", "--runs", *drawn, *axes, "--out", str(figure)])
    return f"\n\n![bits per character on the validation text against minutes]({figure.name})"
