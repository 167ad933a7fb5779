"""What the commands that draw figures share: some options, and writing the file."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_rum.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairseq_rum.data.training_log import TrainingLog

FORMATS = ("png", "svg", "pdf")
LAST = "checkpoint_last.pt"
_GENERIC_NAMES = ("log", "train", "fairseq", "output")


@dataclass
class Run:
    """A training run by what it left: its label, the folder of its log, and the log."""

    label: str
    folder: Path
    log: TrainingLog


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add ``--out`` to a command's options."""
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="the figure: .png, .svg or .pdf"
    )


def add_checkpoints(parser: argparse.ArgumentParser, several: bool = True) -> None:
    """Add the options that name trained models, for ``load_all``."""
    parser.add_argument(
        "--checkpoints" if several else "--checkpoint",
        dest="checkpoints",
        nargs="+" if several else 1,
        required=True,
        metavar="[NAME=]PATH",
        help=f"what fairseq-train saved; of a folder its {LAST}",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="data directory, where it isn't the one of the training"
    )


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the option that :func:`read_runs` takes the value of."""
    parser.add_argument(
        "--runs", nargs="+", required=True, metavar="[NAME=]PATH", help="logs, or their folders"
    )


def read_runs(runs: Sequence[str]) -> list[Run]:
    """The runs that ``--runs`` names.

    Raises:
        InputError: a log is missing or has no metrics, or two runs have one name.
    """
    from fairseq_rum.data.training_log import find_log, read_log

    read: list[Run] = []
    for text in runs:
        label, path = split_name(text)
        found = find_log(path).absolute()
        folder = found if found.is_dir() else found.parent
        if not label:
            generic = found.stem in _GENERIC_NAMES or Path(path).is_dir()
            label = folder.name if generic else found.stem
        read.append(Run(label, folder, read_log(found)))
    unique([run.label for run in read], "--runs")
    return read


def prepare(args: argparse.Namespace) -> None:
    """Check ``--out`` before any work is done, and that there is a matplotlib to draw with.

    Raises:
        InputError: an unknown kind of file, a folder that doesn't exist, or no matplotlib.
    """
    out = Path(args.out)
    if out.suffix[1:].lower() not in FORMATS:
        raise InputError(f"--out {args.out}: the name must end in .{', .'.join(FORMATS)}")
    check_folder(args.out)
    # Importing fairseq sets the root logger to DEBUG, and matplotlib tells of every font then.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(f"figures need matplotlib: pip install matplotlib ({error})") from error


def check_folder(out: str) -> None:
    """Check that the folder of ``--out`` exists.

    Raises:
        InputError: it doesn't.
    """
    if not Path(out).absolute().parent.is_dir():
        raise InputError(f"--out {out}: no such folder")


def save(figure: Figure, out: str, dpi: int = 150) -> None:
    """Write a figure; the same data give the same file.

    Raises:
        InputError: the file cannot be written.
    """
    from matplotlib import rc_context

    # No date and no random ids.
    undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    suffix = Path(out).suffix[1:].lower()
    try:
        with rc_context({"svg.hashsalt": "fairseq_rum"}):
            figure.savefig(out, dpi=dpi, metadata=undated.get(suffix))
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}") from error


def split_name(text: str) -> tuple[str, str]:
    """Name and path of NAME=PATH, where either may contain "=" too; no name for a path alone."""
    parts = text.split("=")
    for count in range(len(parts)):
        path = "=".join(parts[count:])
        if Path(path).exists():
            return "=".join(parts[:count]), path
    name, _, path = text.partition("=")
    return ("", text) if not path or os.sep in name else (name, path)


def unique(labels: Sequence[str], option: str) -> None:
    """Check that no two runs have one name.

    Raises:
        InputError: two have.
    """
    for index, label in enumerate(labels):
        if label in labels[:index]:
            raise InputError(f"{option}: two runs are called {label!r}, write NAME=PATH")
