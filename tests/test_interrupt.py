"""Ctrl-C, and the death of the main process, leave no process behind."""

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT
from test_language_model import train_arguments

SECONDS = 20
"""torch's workers look every 5 s whether their parent is still there."""


def alive(group):
    """Whether a process group has processes that have not ended."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return any(int(pgid) == group and not state.startswith("Z") for pgid, state in rows)


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.2)
    return condition()


def interrupted(command, log, send):
    """Start a command as a shell does, in a process group of its own; send a signal in training.

    Returns its exit status, its output, and whether its processes are gone soon afterwards.
    """
    with open(log, "w") as output:
        process = subprocess.Popen(
            [str(x) for x in command], stdout=output, stderr=output, cwd=ROOT,
            start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
            # Where the tests run in the background of a shell, SIGINT is ignored, as inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    try:
        assert wait_for(lambda: "train_inner" in log.read_text(), 120), log.read_text()[-3000:]
        send(process)
        status = process.wait(timeout=60)
        gone = wait_for(lambda: not alive(process.pid), SECONDS)
        return status, log.read_text(), gone
    finally:
        if alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


def endless(data, save_dir, *extra):
    """Training that would go on for hours, with two workers."""
    arguments = train_arguments(
        data, save_dir, "--num-workers", 2, "--max-update", 10**7, "--log-interval", 1,
        "--disable-validation", "--no-save", *extra,
    )  # fmt: skip
    return [sys.executable, "-m", "fairseq_cli.train", *arguments]


def test_control_c_leaves_no_process(char_data, tmp_path):
    """A terminal sends SIGINT to the whole process group, workers included."""
    command = endless(char_data, tmp_path / "out")
    status, output, gone = interrupted(
        command, tmp_path / "log", lambda process: os.killpg(process.pid, signal.SIGINT)
    )
    assert status != 0 and "KeyboardInterrupt" in output
    assert gone, output[-2000:]


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_do_not_outlive_the_main_process(char_data, tmp_path, number):
    command = endless(char_data, tmp_path / "out")
    status, output, gone = interrupted(
        command, tmp_path / "log", lambda process: process.send_signal(number)
    )
    assert status == -number and gone, output[-2000:]
