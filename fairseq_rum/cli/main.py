"""The command ``fairseq-rum``.

A subcommand is a module with ``add_arguments(parser)`` and ``run(args) -> int``, the exit status.
Its docstring is its help text. It imports what is slow to import (fairseq, matplotlib) in ``run``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from fairseq_rum import __version__
from fairseq_rum.cli import (
    ask,
    attn_vis,
    babi_table,
    bench,
    plot_activations,
    plot_angles,
    plot_curves,
    plot_gradients,
    plot_kernels,
    plot_landscape,
    plot_memory,
    prepare_babi,
    prepare_babi_sim,
    prepare_chars,
    prepare_docstrings,
    prepare_summarization,
    score,
)
from fairseq_rum.compat import require_fairseq
from fairseq_rum.errors import InputError


def _print_user_dir(args: argparse.Namespace) -> int:
    # Not resolved: the last part must stay the package's name, which fairseq imports.
    print(Path(__file__).absolute().parents[1])
    return 0


def _add_command(group: Any, name: str, module: ModuleType) -> None:
    help_text = module.__doc__.splitlines()[0]
    parser = group.add_parser(
        name,
        help=help_text,
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``fairseq-rum`` with all its subcommands."""
    parser = argparse.ArgumentParser(
        prog="fairseq-rum", description="Tools around fairseq's own commands for RUM models."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    user_dir = commands.add_parser(
        "user-dir", help='print the plugin\'s folder: --user-dir "$(fairseq-rum user-dir)"'
    )
    user_dir.set_defaults(run=_print_user_dir)

    prepare = commands.add_parser("prepare", help="turn raw data into fairseq's binary form")
    corpora = prepare.add_subparsers(title="kinds of data", metavar="KIND", required=True)
    _add_command(corpora, "chars", prepare_chars)
    _add_command(corpora, "babi", prepare_babi)
    _add_command(corpora, "babi-sim", prepare_babi_sim)
    _add_command(corpora, "summarization", prepare_summarization)
    _add_command(corpora, "docstrings", prepare_docstrings)

    plot = commands.add_parser("plot", help="draw a figure from what fairseq wrote")
    figures = plot.add_subparsers(title="figures", metavar="FIGURE", required=True)
    _add_command(figures, "curves", plot_curves)
    _add_command(figures, "activations", plot_activations)
    _add_command(figures, "gradients", plot_gradients)
    _add_command(figures, "kernels", plot_kernels)
    _add_command(figures, "angles", plot_angles)
    _add_command(figures, "landscape", plot_landscape)
    _add_command(figures, "memory", plot_memory)

    _add_command(commands, "attn-vis", attn_vis)
    _add_command(commands, "score", score)
    _add_command(commands, "ask", ask)
    _add_command(commands, "babi-table", babi_table)
    _add_command(commands, "bench", bench)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``fairseq-rum`` and return its exit status: 2 for bad input, told in one sentence."""
    args = build_parser().parse_args(argv)
    try:
        return args.run(args)
    except InputError as error:
        print(f"fairseq-rum: error: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("fairseq", "fairseq_cli"):
            raise
        try:
            require_fairseq()
        except ImportError as why:
            print(f"fairseq-rum: error: {why}", file=sys.stderr)
            return 2
        raise


if __name__ == "__main__":
    sys.exit(main())
