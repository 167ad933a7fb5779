"""Draw how cos(theta_t), of the angle that RUM rotates by, is distributed along a sequence.

A panel is the histogram of every step over a batch, and its mean as a line (Figure 5b and c).
--initial puts the model before training beside each checkpoint.

  fairseq-rum plot angles --initial --out angles.png \\
      --checkpoints lambda0=checkpoints/recall/t30-rum0 lambda1=checkpoints/recall/t30-rum1
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fairseq_rum.cli import figures
from fairseq_rum.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from fairseq_rum.layers.probe import Probe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand."""
    figures.add_checkpoints(parser)
    parser.add_argument(
        "--initial", action="store_true", help="each model before its training beside it"
    )
    parser.add_argument(
        "--split",
        metavar="NAME",
        help="whose first batch it is (default: that of the training)",
    )
    parser.add_argument(
        "--unit", metavar="NAME", help="which unit of the model (default: the first that rotates)"
    )
    parser.add_argument(
        "--columns", type=int, metavar="N", help="panels beside each other (default: 2)"
    )
    parser.add_argument(
        "--bins", type=int, default=40, metavar="N", help="parts of [-1, 1] (default: 40)"
    )
    figures.add_out(parser)


def run(args: argparse.Namespace) -> int:
    """Write the figure."""
    figures.prepare(args)
    for name in ("columns", "bins"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name} must be at least 1, got {value}")
    from fairseq_rum.cli.trained import load_all
    from fairseq_rum.viz.angles import Angles, plot_angles

    panels = []
    for trained in load_all(args):
        sample = trained.first_batch(args.split)
        models = [(trained.label, trained.model)]
        if args.initial:
            models.insert(0, (f"{trained.label}, before training", trained.initial()))
        for title, model in models:
            found = trained.probed(model, sample)
            panels.append(Angles(title, _cosines(found, trained.path, args.unit)))
    columns = min(args.columns or 2, len(panels))
    figures.save(plot_angles(panels, columns, args.bins), args.out)
    print(f"{args.out}: angles of {len(panels)} model{'s' if len(panels) > 1 else ''}")
    return 0


def _cosines(found: Probe, path: str, unit: str | None) -> np.ndarray:
    rotating = {u: seen["cos_theta"] for u, seen in found.series().items() if "cos_theta" in seen}
    if not rotating:
        raise InputError(f"{path}: none of its units rotates by an angle, as unit rum does")
    if unit is not None and unit not in rotating:
        raise InputError(f"--unit {unit}: of {path} these rotate: {', '.join(rotating)}")
    return rotating[unit or next(iter(rotating))].numpy()
