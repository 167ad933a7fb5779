"""Bad input to fairseq's commands: one clear sentence, a non-zero exit, nothing overwritten."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, USER_DIR
from test_language_model import build, train, train_arguments

from fairseq_rum.errors import InputError


def test_missing_data_directory(tmp_path):
    with pytest.raises(InputError, match="no data directory '/no/such'"):
        train("/no/such", tmp_path)


def test_directory_without_dictionary(tmp_path):
    with pytest.raises(InputError, match="no dictionary .*dict.txt"):
        train(tmp_path, tmp_path / "out")


def test_missing_split(char_data, tmp_path):
    with pytest.raises(InputError, match="no split 'other' in the data directory"):
        train(char_data, tmp_path, "--valid-subset", "other", "--ignore-unused-valid-subsets")


def test_empty_split(char_data, tmp_path):
    from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

    data = tmp_path / "data-bin"
    shutil.copytree(char_data, data)
    builder = MMapIndexedDatasetBuilder(str(data / "valid.bin"))
    builder.finalize(str(data / "valid.idx"))
    with pytest.raises(InputError, match="split valid .*is empty|split valid .*cannot be read"):
        train(data, tmp_path / "out")


def test_split_shorter_than_batch_times_window(char_data, tmp_path):
    with pytest.raises(InputError, match="split valid .* has 800 tokens, fewer than --batch-size"):
        train(char_data, tmp_path, "--batch-size", 4, "--batch-size-valid", 100)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--rnn-unit", "rumm"], "--rnn-unit: unknown unit 'rumm', choose one of .*lstm.*rum"),
        (["--rnn-backend", "fast"], "--rnn-backend: unknown 'fast'"),
        (["--rum-lambda", 2], "lambda must be 0 or 1, got 2"),
        (["--rum-eta", -1], "eta must be positive, got -1"),
        (["--rum-eta", 0], "eta must be positive, got 0"),
        (["--rum-activation", "gelu"], "unknown --rum-activation 'gelu'"),
        (
            ["--rnn-unit", "lstm", "--rum-eta", 1],
            "--rum-eta is an option of unit 'rum', but .* lstm",
        ),
        (["--rnn-unit", "gru", "--rum-lambda", 0], "--rum-lambda is an option of unit 'rum'"),
        (["--rnn-unit", "lstm", "--rum-no-update-gate"], "--rum-no-update-gate is an option of"),
        (["--decoder-hidden-size", 0], "--decoder-hidden-size must be at least 1, got 0"),
        (["--decoder-layers", 0], "--decoder-layers must be at least 1"),
        (["--dropout", 1.0], "--dropout must lie in"),
        (["--tokens-per-sample", 0], "--tokens-per-sample must be at least 1"),
        (["--decoder-out-embed-dim", 0], "--decoder-out-embed-dim must be at least 1, got 0"),
        (
            ["--share-decoder-input-output-embed", "--decoder-out-embed-dim", 12],
            "needs --decoder-out-embed-dim 12 to equal --decoder-embed-dim 8",
        ),
        (
            ["--adaptive-softmax-cutoff", "10"],
            "needs --criterion adaptive_loss, got --criterion bits",
        ),
    ],
)
def test_bad_and_contradictory_options(char_data, arguments, message):
    with pytest.raises(InputError, match=message):
        build(char_data, *arguments)


def test_streams_are_told_by_one_option(char_data):
    task, _ = build(char_data)
    task.load_dataset("valid")
    stream = task.dataset("valid")
    with pytest.raises(InputError, match="give --batch-size, the number of streams"):
        task.get_batch_iterator(stream)
    with pytest.raises(InputError, match="--batch-size 4 .* is more than --max-tokens 5: give one"):
        task.get_batch_iterator(stream, max_tokens=5, max_sentences=4)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "give --adaptive-softmax-cutoff, the vocabulary of .* is below"),
        *(
            (["--adaptive-softmax-cutoff", cutoff], f"--adaptive-softmax-cutoff {cutoff} must be")
            for cutoff in ("12,5", "5,500", "0,5", "abc", "5,,9", "5,5")
        ),
        (["--adaptive-softmax-cutoff", "9", "--share-decoder-input-output-embed"], "has no effect"),
    ],
)
def test_bad_adaptive_softmax(char_data, arguments, message):
    with pytest.raises(InputError, match=message):
        build(char_data, "--criterion", "adaptive_loss", "--ddp-backend", "legacy_ddp", *arguments)


def test_context_window(char_data):
    task, _ = build(char_data)
    task.load_dataset("valid")
    with pytest.raises(InputError, match="--context-window has no place in stateful"):
        task.eval_lm_dataloader(task.dataset("valid"), context_window=5)


@pytest.mark.parametrize("same_size", [True, False])
def test_wrong_dictionary_for_a_checkpoint(char_data, tmp_path, same_size):
    """Also where the two are of one size, and every symbol would silently mean another."""
    from conftest import run_fairseq

    checkpoint = train(char_data, tmp_path / "out", "--max-update", 1)
    before = checkpoint.read_bytes()
    data = tmp_path / "data-bin"
    shutil.copytree(char_data, data)
    lines = (data / "dict.txt").read_text().splitlines()
    lines = lines[::-1] if same_size else [*lines, "Z 1"]
    (data / "dict.txt").write_text("\n".join(lines) + "\n")
    message = "the checkpoint was trained with another dictionary .* than the dict.txt"
    with pytest.raises(InputError, match=message):
        run_fairseq(
            "eval-lm", data, "--user-dir", USER_DIR, "--task", "stateful_language_modeling",
            "--path", checkpoint, "--gen-subset", "valid", "--cpu",
        )  # fmt: skip
    with pytest.raises(Exception) as error:
        train(data, tmp_path / "out", "--max-update", 2)
    assert isinstance(error.value.__context__ or error.value, InputError)
    assert checkpoint.read_bytes() == before


def test_the_executable_prints_one_sentence(tmp_path):
    """No traceback for a user's mistake, and a non-zero exit."""
    arguments = [str(x) for x in train_arguments("/no/such", tmp_path / "out")]
    command = [sys.executable, "-c", "from fairseq_cli.train import cli_main; cli_main()"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command + arguments, capture_output=True, text=True, timeout=120, env=environment
    )
    assert result.returncode != 0
    assert result.stderr.strip().splitlines()[-1] == (
        "fairseq_rum: error: no data directory '/no/such'"
    )
    assert "Traceback" not in result.stderr
