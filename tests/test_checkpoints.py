"""Checkpoints: a fault leaves a whole one, and a damaged one is named."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from fairseq_rum.data.checkpoints import protect_checkpoints
from fairseq_rum.errors import InputError


class Payload:
    """Runs a shell command when it is unpickled without restriction."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    state = {"model": {"weight": torch.arange(1000.0)}, "args": None, "cfg": None}
    history = [{"num_updates": 1, "lr_scheduler_state": {"best": None}}]
    extra = {"train_iterator": {"epoch": 1}}
    torch.save({**state, "extra_state": extra, "optimizer_history": history}, path)
    return path


def damaged(data, how):
    middle = len(data) // 2
    return {
        "empty": b"",
        "half": data[:middle],
        "without its end": data[:-20],
        "one byte changed": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "text": b"hello, world\n" * 40,
    }[how]


@pytest.mark.parametrize("how", ["empty", "half", "without its end", "one byte changed", "text"])
def test_a_damaged_checkpoint_is_named(checkpoint, how):
    assert "weight" in checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["model"]
    checkpoint.write_bytes(damaged(checkpoint.read_bytes(), how))
    with pytest.raises(InputError, match="checkpoint_last.pt is damaged or no checkpoint"):
        checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))


@pytest.mark.parametrize("payload", [True, False])
def test_what_no_checkpoint_needs_is_named_and_does_not_run(checkpoint, tmp_path, payload):
    marker = tmp_path / "ran"
    extra = Payload(f"touch {marker}") if payload else Path("x")
    torch.save({"extra": extra}, checkpoint)
    with pytest.raises(InputError, match=r"checkpoint_last.pt holds (posix|pathlib)\S+, which no"):
        checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    assert not marker.exists()


def test_a_missing_checkpoint_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "none.pt"))


def test_a_copy_that_breaks_off_leaves_the_old_one(checkpoint, tmp_path, monkeypatch):
    old = tmp_path / "checkpoint_best.pt"
    old.write_bytes(b"whole")

    def half(source, target):
        Path(target).write_bytes(Path(source).read_bytes()[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfile", half)
    with pytest.raises(KeyboardInterrupt):
        PathManager.copy(str(checkpoint), str(old), overwrite=True)
    assert old.read_bytes() == b"whole"
    monkeypatch.undo()
    assert PathManager.copy(str(checkpoint), str(old), overwrite=True)
    assert old.read_bytes() == checkpoint.read_bytes()
    assert not list(tmp_path.glob("*.tmp"))


def test_protecting_twice_changes_nothing():
    before = checkpoint_utils.load_checkpoint_to_cpu, PathManager.copy
    protect_checkpoints()
    assert before == (checkpoint_utils.load_checkpoint_to_cpu, PathManager.copy)
