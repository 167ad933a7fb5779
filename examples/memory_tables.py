"""Tables and figures of the experiments on the memory tasks; all numbers come from the logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Dict, List

from memory_experiments import Run, Task
from run_tools import load, where_made


def reached(updates: Sequence[float], values: Sequence[float], level: float) -> str:
    """The first update with at least that value."""
    found = [u for u, v in zip(updates, values) if v >= level]
    return f"{int(found[0]):,}" if found else "-"


def table(task: Task, results: Path) -> str:
    """The results of all runs that were begun, as Markdown."""
    from fairseq_rum.data.training_log import read_log

    columns = ["run", "parameters", "updates", "minutes", "accuracy (test)"]
    if task.name == "recall":
        columns[2:2] = ["paper's"]
        columns.append("paper's")
    else:
        columns += ["loss / baseline", "tenth at"]
    columns += ["50% at", "90% at", "99% at", "100% at"]
    parts = [
        f"# {task.name}: results\n\n"
        "Written by `examples/memory_runs.py` from the logs beside this file. Accuracies are in "
        "percent, of the test split where a run has ended and of the last validation where not. "
        '"50% at" and so on: the first validation, in updates, that reached it; "tenth at": a '
        "tenth of the baseline. Minutes are of training and validation, on a machine that may "
        "have had other work.\n"
    ]
    commands, made = [], {}
    for group, title in task.groups.items():
        rows = []
        for run in task.runs:
            folder = results / run.name
            record = load(folder / "run.json")
            if run.group != group or not record:
                continue
            commands.append(f"# {run.name}\n{record['command']}")
            made[run.name] = record
            log = read_log(folder) if (folder / "log.jsonl").stat().st_size else None
            row = _row(task, run, record, log)
            rows.append("| " + " | ".join(row) + " |")
        if rows:
            header = "| " + " | ".join(columns) + " |\n|" + "---|" * len(columns)
            pictures = [f"![{m}]({group}-{m}.png)" for m in metrics_of(task)]
            parts.append(f"## `{title}`\n\n{header}\n" + "\n".join(rows) + "\n")
            parts.append(fairness(task, group, results))
            parts.append("\n".join(pictures) + "\n")
    parts.append("## Seeds and hardware\n\n" + "\n".join(where_made(made)) + "\n")
    parts.append("## Commands\n\n```\n" + "\n".join(commands) + "\n```\n")
    return "\n".join(parts)


def fairness(task: Task, group: str, results: Path) -> str:
    """Which baselines had fewer updates than the comparison asks for."""
    rum = load(results / f"{group}-rum1" / "run.json")
    if rum.get("status") != "solved":
        return ""
    least = max(2000, 3 * rum["updates"])
    short = []
    for run in task.runs:
        record = load(results / run.name / "run.json") if run.group == group else {}
        if not run.label.startswith("RUM") and record.get("status") in ("finished", "unfinished"):
            if record["updates"] < least:
                short.append(f"{run.label} ({record['updates']:,})")
    return (
        f"RUM lambda=1 solved it after {rum['updates']:,} updates; a baseline should have had at "
        f"least {least:,}. With fewer: {', '.join(short) or 'none'}.\n"
    )


def _row(task: Task, run: Run, record: Dict[str, Any], log: Any) -> List[str]:
    updates, accuracy = log.series("valid", "accuracy") if log else ([], [])
    status = record["status"]
    final = record.get("test_accuracy")
    if final is None and status != "error" and accuracy:
        final = accuracy[-1]
    done = f"{record['updates']:,}" + ("" if status in ("solved", "finished") else f" ({status})")
    row = [
        run.label,
        f"{record['parameters']:,}" if "parameters" in record else "-",
        done,
        f"{record['minutes']:.1f}",
        "-" if final is None else f"{final:.1f}",
    ]
    if task.name == "recall":
        row[2:2] = [run.paper_parameters or "-"]
        row.append("-" if run.paper is None else f"{run.paper:g}")
    else:
        at, loss = log.series("valid", "loss") if log else ([], [])
        _, baseline = log.series("valid", "baseline") if log else ([], [])
        ratio = [a / b for a, b in zip(loss, baseline)]
        row.append(f"{ratio[-1]:.3f}" if ratio else "-")
        row.append(reached(at, [-r for r in ratio], -0.1))
    return row + [reached(updates, accuracy, level) for level in (50, 90, 99, 100)]


def metrics_of(task: Task) -> List[str]:
    """What the figures of a task show."""
    return ["accuracy", "loss"] if task.name == "copying" else ["accuracy"]


def figures(task: Task, results: Path) -> None:
    """A figure of the accuracy for each group, and for copying one of the loss."""
    from fairseq_rum.cli.main import main as fairseq_rum

    for group in task.groups:
        runs = [
            f"{run.label}={results / run.name}"
            for run in task.runs
            if run.group == group and _has_points(results / run.name)
        ]
        if not runs:
            continue
        for metric in metrics_of(task):
            out = results / f"{group}-{metric}.png"
            extra = ["--baseline", "baseline:without memory"] if metric == "loss" else []
            fairseq_rum(
                ["plot", "curves", "--runs", *runs, "--metric", metric, "--out", str(out), *extra]
            )


def _has_points(folder: Path) -> bool:
    from fairseq_rum.data.training_log import TRAIN, read_log

    log = folder / "log.jsonl"
    return log.exists() and log.stat().st_size > 0 and TRAIN in read_log(log).points
