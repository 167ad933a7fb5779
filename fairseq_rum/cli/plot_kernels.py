"""Draw the weight matrices of a unit as heat maps, the diagonal enlarged (Figure 5a).

For RUM these are W_hh of the memory target tau and the update gate u, and W_xh of tau, u and the
embedded input e.

  fairseq-rum plot kernels --checkpoint checkpoints/ptb/checkpoint_best.pt --out kernels.png
"""

from __future__ import annotations

import argparse

from fairseq_rum.cli import figures
from fairseq_rum.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand."""
    figures.add_checkpoints(parser, several=False)
    parser.add_argument(
        "--unit",
        metavar="NAME",
        help="which unit, by its name in the model (default: the first; a wrong one lists them)",
    )
    parser.add_argument(
        "--width", type=int, default=8, metavar="N", help="of the diagonal strip (default: 8)"
    )
    figures.add_out(parser)


def run(args: argparse.Namespace) -> int:
    """Write the figure."""
    figures.prepare(args)
    if args.width < 0:
        raise InputError(f"--width must be at least 0, got {args.width}")
    from fairseq_rum.cli.trained import load_all, pick_unit
    from fairseq_rum.viz.kernels import plot_kernels

    (trained,) = load_all(args)
    name, cell = pick_unit(trained.model, trained.path, args.unit)
    kernels = {kernel: weight.numpy() for kernel, weight in cell.kernels().items()}
    if not kernels:
        raise InputError(f"--unit {name}: it has no weight matrices of its own")
    title = f"{trained.label}: {cell.unit} {name}"
    figures.save(plot_kernels(kernels, args.width, title), args.out)
    print(f"{args.out}: {len(kernels)} matrices of unit {name} ({cell.unit})")
    return 0
