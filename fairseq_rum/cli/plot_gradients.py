"""Draw the norms of gradients and of the last hidden state, from what training logged (Figure 6).

The norm of the gradient of all parameters is in every log of fairseq. The norm of the last hidden
state, and that of the loss's gradient at every step of encoder and decoder, need a run with
--log-dynamics. A run is the folder of its log and checkpoints.

  fairseq-rum plot gradients --runs rum=checkpoints/rum lstm=checkpoints/lstm --out gradients.png
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from fairseq_rum.cli import figures
from fairseq_rum.errors import InputError

if TYPE_CHECKING:
    from fairseq_rum.cli.figures import Run
    from fairseq_rum.viz.curves import Curve

_LAST = "h_last_norm"
_SIDES = ("encoder", "decoder")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand."""
    figures.add_runs(parser)
    parser.add_argument(
        "--updates",
        nargs="+",
        type=int,
        metavar="N",
        help="of the gradients at every step (default: the first and the last that were logged)",
    )
    figures.add_out(parser)


def run(args: argparse.Namespace) -> int:
    """Read the logs and write the figure."""
    figures.prepare(args)
    from fairseq_rum.data.training_log import TRAIN
    from fairseq_rum.viz.curves import Curve
    from fairseq_rum.viz.gradients import Panel, plot_gradients

    runs = figures.read_runs(args.runs)
    everywhere: list[Curve] = []
    last: list[Curve] = []
    for one in runs:
        for name in one.log.metrics(TRAIN):
            place, _, metric = name.rpartition("/")
            if metric in ("gnorm", _LAST):
                label = f"{one.label}, {place}" if place else one.label
                curve = Curve(label, *one.log.series(TRAIN, name))
                (last if metric == _LAST else everywhere).append(curve)
    panels = [
        Panel("gradient of all parameters", "updates", everywhere),
        Panel("last hidden state", "updates", last),
    ]
    for side, curves in _steps(runs, args.updates).items():
        panels.append(Panel(f"gradient at each step{f' of the {side}' * bool(side)}", "t", curves))
    panels = [panel for panel in panels if panel.curves]
    if not panels:
        raise InputError("--runs: there is no norm of a gradient in these logs")
    figures.save(plot_gradients(panels), args.out)
    print(f"{args.out}: {', '.join(panel.title for panel in panels)}")
    if not last:
        print("hidden states and gradients at each step need a run with --log-dynamics")
    return 0


def _steps(runs: list[Run], wanted: list[int] | None) -> dict[str, list[Curve]]:
    """Side of the model ("" if it has none) -> gradients along the sequence."""
    from fairseq_rum.data.dynamics_log import DYNAMICS_FILE, read_dynamics
    from fairseq_rum.viz.curves import Curve

    sides: dict[str, list[Curve]] = {}
    for one in runs:
        path = one.folder / DYNAMICS_FILE
        if not path.exists():
            if wanted:
                raise InputError(f"--updates: run {one.label!r} has no {path}")
            continue
        records = read_dynamics(path)
        for updates in wanted or sorted({min(records), max(records)}):
            if updates not in records:
                raise InputError(f"--updates {updates}: {path} has {', '.join(map(str, records))}")
            for unit, seen in records[updates].items():
                side = unit.partition(".")[0] if unit.startswith(_SIDES) else ""
                label = f"{one.label}, {f'{unit}, ' * bool(unit)}update {updates}"
                points = [
                    (t, value)
                    for t, value in enumerate(seen["gradient"], 1)
                    if value > 0 and not math.isnan(value)
                ]
                if points:
                    sides.setdefault(side, []).append(Curve(label, *zip(*points)))
    return sides
