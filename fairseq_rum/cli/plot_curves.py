"""Draw loss, accuracy or bpc of several runs against updates or time, from fairseq's logs.

A run is a log (fairseq-train --log-format json, --log-file FILE or the redirected output) or the
folder it is in; NAME=PATH gives it a name. --metric is any name that fairseq logged. --baseline
draws a horizontal line: at a number, or at what was logged under a name.

  fairseq-rum plot curves --runs rum=checkpoints/rum lstm=checkpoints/lstm --metric loss \\
      --baseline baseline:memoryless --out copying.png
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fairseq_rum.cli import figures
from fairseq_rum.errors import InputError

if TYPE_CHECKING:
    from fairseq_rum.data.training_log import TrainingLog

_AXES = {"updates": ("num_updates", "updates"), "minutes": ("minutes", "minutes")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand."""
    figures.add_runs(parser)
    parser.add_argument("--metric", default="loss", metavar="NAME", help="default: loss")
    parser.add_argument(
        "--split",
        default="train",
        metavar="NAME",
        help="train (averages over --log-interval updates, the default), valid, ...",
    )
    parser.add_argument("--x", default="updates", choices=sorted(_AXES), help="default: updates")
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="VALUE[:LABEL]",
        help="a number, or the name of a logged metric; may be given several times",
    )
    parser.add_argument("--title", default="", metavar="TEXT")
    parser.add_argument("--log-y", action="store_true", help="a logarithmic y axis")
    figures.add_out(parser)


def run(args: argparse.Namespace) -> int:
    """Read the logs and write the figure."""
    figures.prepare(args)
    from fairseq_rum.data.training_log import TRAIN
    from fairseq_rum.viz.curves import Baseline, Curve, plot_curves

    split = TRAIN if args.split == "train" else args.split
    x, xlabel = _AXES[args.x]
    logs = {one.label: one.log for one in figures.read_runs(args.runs)}
    curves = []
    for label, log in logs.items():
        values = log.series(split, args.metric, x)
        if not values[0]:
            raise InputError(_nothing_to_draw(label, log, args.metric, args.split, split))
        curves.append(Curve(label, *values))
    figure = plot_curves(
        curves,
        xlabel,
        args.metric if args.split == "train" else f"{args.metric} ({args.split})",
        [Baseline(*_baseline(text, logs)) for text in args.baseline],
        args.title,
        args.log_y,
    )
    figures.save(figure, args.out)
    print(f"{args.out}: {args.metric} of {len(curves)} run{'s' if len(curves) > 1 else ''}")
    return 0


def _nothing_to_draw(
    label: str, log: TrainingLog, metric: str, split_option: str, split: str
) -> str:
    if split not in log.points:
        splits = ", ".join(sorted(log.points))
        return f"run {label!r} has no --split {split_option}, it has {splits}"
    names = ", ".join(log.metrics(split))
    return f"run {label!r} has no --metric {metric} in {split_option}, it has {names}"


def _baseline(text: str, logs: dict[str, TrainingLog]) -> tuple[float, str]:
    """Value and label of one ``--baseline``."""
    value, _, label = text.partition(":")
    try:
        return float(value), label
    except ValueError:
        pass
    found = {log.last(value) for log in logs.values()} - {None}
    if not found:
        raise InputError(f"--baseline {text}: neither a number nor a metric of these runs")
    if len(found) > 1:
        raise InputError(
            f"--baseline {text}: the runs have different values of it, "
            + ", ".join(f"{number:g}" for number in sorted(found))
        )
    return found.pop(), label or value
