"""Commands that a script starts, run in this process instead: each takes 5 s to start outside."""

import contextlib
import logging

from conftest import run_fairseq

from fairseq_rum.cli.main import main


def execute(command, output, threads, lock=None):
    """In place of ``run_tools.execute``."""
    root = logging.getLogger()
    with open(output, "a", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        if command[0] == "fairseq-rum":
            return main(command[1:])
        before = list(root.handlers)
        root.addHandler(logging.StreamHandler(file))
        root.setLevel(logging.INFO)
        run_fairseq(command[0][len("fairseq-") :], *command[1:])
        root.handlers[:] = before  # fairseq-validate leaves one that writes to the file
    return 0
