"""Two data-parallel processes on the CPU own their shares, and together are one big batch."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, run_fairseq
from test_interrupt import SECONDS, alive, endless, interrupted, wait_for
from test_kill_resume import MODELS, babi_data, commands, summary_data  # noqa: F401
from test_language_model import parameters, train, train_arguments

from fairseq_rum.errors import InputError

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="torch without gloo"
)
SCRIPT = ROOT / "examples" / "distributed" / "train.sh"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def run_in_two(*arguments):
    """examples/distributed/train.sh with two processes; what it printed."""
    result = subprocess.run(
        [str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, timeout=300, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": PATH},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout + result.stderr


def train_in_two(data, save_dir, *extra):
    run_in_two(*train_arguments(data, save_dir, *extra))
    return save_dir / "checkpoint_last.pt"


def assert_close(found, expected, rtol, atol):
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.allclose(found[name], expected[name], rtol=rtol, atol=atol), name


def test_two_processes_are_one_of_twice_the_batch(char_data, tmp_path):
    """Six updates, the last two of them after a restart in two processes, and in one."""
    one = train(char_data, tmp_path / "one", "--max-update", 6)
    two = train_in_two(char_data, tmp_path / "two", "--max-update", 4, "--batch-size", 2)
    extra = torch.load(two, weights_only=True)["extra_state"]
    states = extra["StatefulLanguageModelingTask"]
    assert extra["train_iterator"]["layout"]["streams"] == 4
    assert states["states"][0][0].shape == (4, 16)
    shutil.copytree(tmp_path / "two", tmp_path / "again")
    two = train_in_two(char_data, tmp_path / "two", "--max-update", 6, "--batch-size", 2)
    again = train(char_data, tmp_path / "again", "--max-update", 6)
    for found in (two, again):
        # The sums of the gradients differ in order: float32 rounding, grown over six Adam steps.
        assert_close(parameters(found), parameters(one), rtol=1e-3, atol=1e-4)
    with pytest.raises(InputError, match="tokens in 4 streams .* this run has .* 2 and 18"):
        shutil.copy(tmp_path / "one" / "checkpoint_last.pt", tmp_path / "three.pt")
        train(char_data, tmp_path / "x", "--batch-size", 2, "--restore-file", tmp_path / "three.pt")


# A step of plain descent at rate 1: the parameters move by the gradient.
GRADIENT = ["--optimizer", "sgd", "--lr", 1, "--clip-norm", 0, "--max-update", 1]
NO_MASKS = {"rum_lm": ["--dropout", 0, "--rum-zoneout", 0],
            "fs_rum": ["--dropout", 0, "--rum-zoneout", 0, "--lstm-zoneout", 0,
                       "--lstm-zoneout-cell", 0],
            "pointer_gen_rum": ["--rum-zoneout", 0],
            "babi_qa": ["--dropout", 0, "--rum-zoneout", 0]}  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
def test_gradient_and_loss_are_those_of_the_global_batch(commands, tmp_path, name):  # noqa: F811
    """One process takes the same batches one after the other, or rows for twice the streams."""
    command = [*commands[name], *GRADIENT, *NO_MASKS.get(name, [])]
    single, double = ["--update-freq", 2], []
    if "stateful_language_modeling" in command:
        single, double = [], ["--batch-size", 2]
    run_fairseq("train", *command, *single, "--save-dir", tmp_path / "1")
    run_in_two(*command, *double, "--save-dir", tmp_path / "2")
    found, expected = (tmp_path / n / "checkpoint_last.pt" for n in "21")
    # Sums in another order: float32 rounding, which 25 steps of RUM's rotations let grow.
    assert_close(parameters(found), parameters(expected), rtol=1e-4, atol=3e-5)
    assert training_loss(found) == pytest.approx(training_loss(expected), rel=1e-5)


def training_loss(path):
    """The mean over the epoch so far, which a checkpoint has in full precision."""
    meters = torch.load(path, weights_only=True)["extra_state"]["metrics"]["train"]
    (loss,) = [state for _, name, _, state in meters if name == "loss"]
    return float(loss["sum"] / loss["count"])


@pytest.mark.soak
def test_an_epoch_goes_on_in_another_number_of_processes(commands, tmp_path):  # noqa: F811
    """Two processes, then one with the same global batch: as if nothing had happened."""
    command = [*commands["copying"], "--batch-size", 4, "--no-epoch-checkpoints"]
    run_in_two(*command, "--max-update", 3, "--save-dir", tmp_path / "1")
    shutil.copytree(tmp_path / "1", tmp_path / "2")
    run_in_two(*command, "--max-update", 5, "--save-dir", tmp_path / "2")
    run_fairseq(
        "train", *command, "--max-update", 5, "--save-dir", tmp_path / "1", "--update-freq", 2
    )
    found, expected = (parameters(tmp_path / n / "checkpoint_last.pt") for n in "12")
    assert_close(found, expected, rtol=1e-3, atol=1e-4)


def process_of_rank(group, rank):
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,pgid=,args="], capture_output=True, text=True
    )
    for line in listed.stdout.splitlines():
        pid, pgid, arguments = line.split(None, 2)
        is_rank = f"--distributed-rank {rank} " in f"{arguments} " and "python" in arguments
        if int(pgid) == group and is_rank:
            return int(pid)
    raise AssertionError(listed.stdout)


@pytest.mark.soak
@pytest.mark.parametrize(
    "number, shown", [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGKILL, "SIGKILL")]
)
def test_a_process_that_dies_takes_the_others_with_it(
    char_data, tmp_path, monkeypatch, number, shown
):
    """Within a minute, and what it printed is there."""
    monkeypatch.setenv("PATH", PATH)

    def kill(process):
        # torchrun starts its processes in sessions of their own.
        children.extend(process_of_rank(group, rank) for group, rank in ranks(process))
        os.kill(children[1], number)

    def ranks(process):
        listed = subprocess.run(["ps", "-A", "-o", "ppid=,pgid="], capture_output=True, text=True)
        rows = (map(int, line.split()) for line in listed.stdout.splitlines())
        groups = sorted({pgid for ppid, pgid in rows if ppid == process.pid})
        return [(group, rank) for rank in (0, 1) for group in groups if owns(group, rank)]

    def owns(group, rank):
        try:
            return process_of_rank(group, rank) > 0
        except AssertionError:
            return False

    children = []
    command = [SCRIPT, *endless(char_data, tmp_path / "out")[3:]]
    status, output, gone = interrupted(command, tmp_path / "log", kill)
    assert status != 0 and shown in output and gone
    assert wait_for(lambda: not any(map(alive, children)), SECONDS)


def test_data_directories_are_taken_in_turn(char_data, tmp_path, fairseq_log):
    """``a:b:c``: an epoch of training on each."""
    for name in "abc":
        shutil.copytree(char_data, tmp_path / name)
    train(":".join(str(tmp_path / name) for name in "abc"), tmp_path / "out", "--max-epoch", 4,
          "--no-save")  # fmt: skip
    loaded = [r.getMessage() for r in fairseq_log.records if "examples from" in r.getMessage()]
    folders = [Path(m.split("from: ")[1]).parent.name for m in loaded if m.endswith("/train")]
    assert folders[:4] == ["a", "b", "c", "a"]


def test_accumulated_gradients_are_those_of_a_larger_batch(commands, tmp_path):  # noqa: F811
    command = [*commands["copying"], *GRADIENT, "--train-examples", 8]
    run_fairseq("train", *command, "--batch-size", 8, "--save-dir", tmp_path / "1")
    run_fairseq(
        "train", *command, "--batch-size", 4, "--update-freq", 2, "--save-dir", tmp_path / "2"
    )
    found, expected = (parameters(tmp_path / n / "checkpoint_last.pt") for n in "21")
    assert_close(found, expected, rtol=1e-5, atol=1e-6)
