"""The page of figures is what its script makes."""

import re
import shlex
import sys

import pytest
from conftest import ROOT
from fairseq import options

from fairseq_rum.cli.main import build_parser

sys.path.insert(0, str(ROOT / "examples"))
import gallery  # noqa: E402, found by the line above

PAGE = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("figure", gallery.FIGURES, ids=lambda figure: figure.file)
def test_commands_of_figures(figure):
    """Each can be called, is on the page as it is, and names runs that there are."""
    command = figure.command.replace("WORK", "checkpoints/gallery")
    assert f"\n$ fairseq-rum {command} --out {figure.file}\n" in PAGE
    build_parser().parse_args(shlex.split(f"{command} --out {figure.file}"))
    assert set(re.findall(r"WORK/([\w-]+)", figure.command)) <= set(gallery.RUNS)


def test_commands_of_runs():
    for name, text in gallery.RUNS.items():
        text = text.replace("WORK", "checkpoints/gallery").replace("NAME", name)
        (command,) = re.findall(rf"^\$ (fairseq-train {re.escape(text)} .*)$", PAGE, re.MULTILINE)
        parser = options.get_training_parser()
        options.parse_args_and_arch(parser, shlex.split(command)[1:])


def test_files():
    shown = set(re.findall(r"\]\(gallery/([\w.]+)\)", PAGE))
    assert {f.file for f in gallery.FIGURES if not f.file.endswith(".html")} <= shown
    files = {path.name: path.stat().st_size for path in (ROOT / "docs" / "gallery").glob("*.png")}
    assert shown == set(files) and sum(files.values()) < 1_000_000
