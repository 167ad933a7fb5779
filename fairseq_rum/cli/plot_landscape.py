"""Draw slices of the loss around the weights that a unit's rotation is made of (Figure 8).

These are varied along random directions, all else and the first training batch stay: for RUM the
kernels of tau and e, for GORU and EURNN the angles. One direction gives lines, two give contours;
both before training, as in the paper, and at the checkpoint. The directions are normal, or with
--filter-normalize of the weights' own scale.

  fairseq-rum plot landscape --checkpoints RUM=checkpoints/recall/t30-rum1 \\
      GORU=checkpoints/recall/t30-goru --dimensions 2 --out landscape.png
"""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING

from fairseq_rum.cli import figures
from fairseq_rum.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

_STATES = {"initial": "before training", "trained": "trained"}
_POINTS = {1: 51, 2: 25}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand."""
    figures.add_checkpoints(parser)
    parser.add_argument("--dimensions", type=int, default=1, choices=(1, 2), help="default: 1")
    parser.add_argument(
        "--at",
        nargs="+",
        default=list(_STATES),
        choices=list(_STATES),
        help="which weights the slice goes through (default: both)",
    )
    parser.add_argument(
        "--reach", type=float, default=1.0, metavar="A", help="alpha from -A to A (default: 1)"
    )
    parser.add_argument(
        "--points",
        type=int,
        metavar="N",
        help="along a direction, odd (default: 51, and 25 x 25 for two directions)",
    )
    parser.add_argument(
        "--filter-normalize",
        action="store_true",
        help="each row of a direction gets the norm of the weights' row (Li et al. 2018)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of the directions (default: 1)"
    )
    figures.add_out(parser)


def run(args: argparse.Namespace) -> int:
    """Compute the slices and write the figure."""
    figures.prepare(args)
    points = _POINTS[args.dimensions] if args.points is None else args.points
    if points < 3 or points % 2 == 0:
        raise InputError(f"--points must be odd and at least 3, got {points}")
    if not args.reach > 0:
        raise InputError(f"--reach must be positive, got {args.reach}")
    from tqdm import tqdm

    from fairseq_rum.cli.trained import load_all
    from fairseq_rum.viz import landscape

    alphas = landscape.coordinates(points, args.reach)
    slices = []
    for trained in load_all(args):
        sample = trained.first_batch()
        for state in dict.fromkeys(args.at):
            model = trained.initial() if state == "initial" else trained.model
            title = f"{trained.label}, {_STATES[state]}"
            # disable=None: no bar where standard error is no terminal.
            progress = functools.partial(tqdm, desc=title, disable=None)
            weights = _rotation_weights(model, trained.path)
            directions = landscape.random_directions(
                weights, args.dimensions, args.seed, args.filter_normalize
            )
            loss = functools.partial(trained.loss, model, sample)
            values = landscape.loss_slice(loss, weights, directions, alphas, progress)
            slices.append(landscape.LossSlice(trained.label, _STATES[state], alphas, values))
    figures.save(landscape.plot_landscape(slices), args.out)
    print(f"{args.out}: {len(slices)} slices of {points} points in {args.dimensions} direction(s)")
    return 0


def _rotation_weights(model: nn.Module, path: str) -> list[Tensor]:
    from fairseq_rum.cells import RecurrentCell

    cells = [module for module in model.modules() if isinstance(module, RecurrentCell)]
    weights = [weight for cell in cells for weight in cell.rotation_weights().values()]
    if not weights:
        units = ", ".join(dict.fromkeys(cell.unit for cell in cells))
        raise InputError(f"{path}: its units ({units}) have no rotation, as rum and goru have")
    return weights
