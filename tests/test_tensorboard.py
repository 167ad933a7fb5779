"""What `--tensorboard-logdir` shows of the units, and reading fairseq's event files."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import recall_arguments

from fairseq_rum.cli.main import main
from fairseq_rum.data.event_files import _events, read_scalars
from fairseq_rum.data.training_log import find_log, read_log
from fairseq_rum.errors import InputError

OPTIONS = ("--rnn-unit", "rum", "--rum-lambda", "1", "--log-interval", 2, "--max-update", 7)


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    return tmp_path_factory.mktemp("board")


@pytest.fixture(scope="module")
def run(tmp_path_factory, board):
    """In a process of its own: the last events are written when it ends."""
    folder = tmp_path_factory.mktemp("run")
    arguments = recall_arguments(folder, *OPTIONS, "--tensorboard-logdir", board)
    command = [sys.executable, "-m", "fairseq_cli.train", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_scalars_are_those_of_the_log(run, board):
    assert find_log(board) == board
    log, seen = read_log(run), read_log(board)
    assert set(seen.points) == set(log.points) == {"train_inner", "train", "valid"}
    for name in ("loss", "cos_theta", "h_norm", "h_last_norm", "update_gate", "gnorm"):
        updates, values = log.series("train_inner", name)
        assert updates == [2, 4, 6]
        assert seen.series("train_inner", name)[0] == updates
        assert seen.series("train_inner", name)[1] == pytest.approx(values, abs=1e-3)
    assert seen.series("valid", "accuracy") == log.series("valid", "accuracy")
    minutes, _ = seen.series("train_inner", "loss", "minutes")
    assert minutes == sorted(minutes) and "minutes" in seen.metrics("valid")
    assert not (run / "dynamics.jsonl").exists(), "that takes --log-dynamics"


def test_histograms(run, board):
    """One for each quantity and look, of all of the batch and its steps."""
    found = {}
    for path in (board / "train_inner").glob("*.dynamics"):
        for event in _events(path):
            for value in event.summary.value:
                found[value.tag, event.step] = value.histo
    names = ("cos_theta", "h_norm", "update_gate")
    assert set(found) == {(name, step) for name in names for step in (2, 4, 6)}
    log = read_log(run)
    for (name, step), histogram in found.items():
        assert histogram.num == 8 * 7 == sum(histogram.bucket)
        updates, means = log.series("train_inner", name)
        mean = means[updates.index(step)]
        assert histogram.sum / histogram.num == pytest.approx(mean, abs=1e-4)


def test_curves_from_event_files(run, board, tmp_path, capsys):
    out = str(tmp_path / "a.svg")
    arguments = ["plot", "curves", "--runs", f"board={board}", f"log={run}", "--out", out]
    assert main([*arguments, "--metric", "cos_theta"]) == 0
    assert capsys.readouterr().out == f"{out}: cos_theta of 2 runs\n"


def test_the_later_file_counts_whatever_became_of_it(board, tmp_path):
    folder = tmp_path / "valid"
    folder.mkdir()
    for time, parent in ((1_700_000_000, "train_inner"), (1_700_000_001, "valid")):
        source = next(p for p in sorted((board / parent).iterdir()) if p.suffix != ".dynamics")
        shutil.copy(source, folder / f"events.out.tfevents.{time}.host")
    expected = {p["num_updates"]: p["loss"] for s, p in read_scalars(board) if s == "valid"}
    os.utime(folder / "events.out.tfevents.1700000000.host")  # copied later
    found = {p["num_updates"]: p["loss"] for _, p in read_scalars(tmp_path)}
    assert {update: found[update] for update in expected} == expected


def test_files_that_are_cut_off_or_none(run, board, tmp_path):
    (path,) = (p for p in (board / "valid").iterdir())
    data = path.read_bytes()
    copy = tmp_path / "valid" / path.name
    copy.parent.mkdir()
    valid = [point for point in read_scalars(board) if point[0] == "valid"]
    for size in (0, 5, 20, len(data) - 1, len(data)):
        copy.write_bytes(data[:size])
        points = read_scalars(tmp_path)
        for (split, read), (_, complete) in zip(points, valid):
            assert split == "valid" and read.items() <= complete.items()
    assert points == valid
    copy.write_bytes(b"\x08" + bytes(7) + b"no records" * 30)
    with pytest.raises(InputError, match="not an event file of TensorBoard"):
        read_scalars(tmp_path)
