"""Gather the test accuracies of runs on the bAbI tasks into a table, and a figure of bars.

The runs are RUNS/NAME/qa1 and so on. A task's folder has what fairseq-validate printed, with
--valid-subset test and --log-format json; a joint run has it for the splits test1, test2 ...

  fairseq-rum babi-table --runs checkpoints/babi --out babi.png
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from fairseq_rum.cli import figures
from fairseq_rum.cli.prepare_babi import parse_tasks
from fairseq_rum.data.babi_results import FAILED_BELOW, Accuracies, read_results, summary
from fairseq_rum.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fairseq-rum babi-table``."""
    parser.add_argument("--runs", metavar="DIR", required=True, help="the folder of all runs")
    parser.add_argument(
        "--labels",
        nargs="+",
        default=[],
        metavar="NAME=LABEL",
        help="what to call runs; only these, in this order (default: all, by their names)",
    )
    parser.add_argument(
        "--tasks", metavar="LIST", help="such as 1-20 (default: those that any of the runs has)"
    )
    parser.add_argument(
        "--without", metavar="LIST", help="give the mean over the other tasks as well"
    )
    parser.add_argument("--out", metavar="FILE", help="the figure: .png, .svg or .pdf")
    parser.add_argument("--title", default="", metavar="TEXT", help="of the figure")


def run(args: argparse.Namespace) -> int:
    """Print the table and draw the figure."""
    if args.out is not None:
        figures.prepare(args)
    results = _labelled(read_results(args.runs), args.labels)
    tasks = sorted({task for accuracies in results.values() for task in accuracies})
    if args.tasks is not None:
        tasks = parse_tasks(args.tasks)
    without = parse_tasks(args.without, "--without") if args.without is not None else []
    print(table(results, tasks, without))
    if args.out is not None:
        from fairseq_rum.viz.babi_table import plot_tasks

        figures.save(plot_tasks(results, tasks, args.title), args.out)
    return 0


def table(
    results: Mapping[str, Accuracies], tasks: Sequence[int], without: Sequence[int] = ()
) -> str:
    """A row of Markdown for each run: mean, failed tasks, and the accuracy on each task.

    Args:
        results: accuracies in percent, by label and number of the task.
        tasks: the columns.
        without: there is another mean, over the tasks that are none of these.
    """
    header = ["run", "mean", f"failed (< {FAILED_BELOW:g}%)", *map(str, tasks)]
    others = [task for task in tasks if task not in without]
    if without:
        header.insert(2, f"mean without {', '.join(map(str, without))}")
    lines = [header, ["---"] * len(header)]
    for label, accuracies in results.items():
        row = [label, _mean(accuracies, tasks), str(summary(accuracies, tasks)[1])]
        if without:
            row.insert(2, _mean(accuracies, others))
        row += [f"{accuracies[task]:.1f}" if task in accuracies else "-" for task in tasks]
        lines.append(row)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _mean(accuracies: Accuracies, tasks: Sequence[int]) -> str:
    """The mean, with the number of tasks where some are missing."""
    mean, _ = summary(accuracies, tasks)
    if mean is None:
        return "-"
    done = sum(task in accuracies for task in tasks)
    return f"{mean:.1f}" if done == len(tasks) else f"{mean:.1f} ({done} of {len(tasks)} tasks)"


def _labelled(results: dict[str, Accuracies], labels: Sequence[str]) -> dict[str, Accuracies]:
    if not labels:
        return results
    pairs = []
    for text in labels:
        name, _, label = text.partition("=")
        if name not in results:
            raise InputError(f"--labels {text}: there is no run {name!r}, but {', '.join(results)}")
        pairs.append((label or name, results[name]))
    figures.unique([label for label, _ in pairs], "--labels")
    return dict(pairs)
