"""Draw the derivatives of the candidate's activations: relu, tanh, sigmoid, softsign (Figure 3).

fairseq-rum plot activations --out activations.png
"""

from __future__ import annotations

import argparse

from fairseq_rum.cli import figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand."""
    figures.add_out(parser)


def run(args: argparse.Namespace) -> int:
    """Write the figure."""
    figures.prepare(args)
    from fairseq_rum.viz.activations import COMPARED, plot_derivatives

    figures.save(plot_derivatives(), args.out)
    print(f"{args.out}: derivatives of {', '.join(COMPARED)}")
    return 0
