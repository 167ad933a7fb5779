"""Small real data, and fairseq's commands run in this process (each takes 5 s to start outside)."""

import contextlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
USER_DIR = str(ROOT / "fairseq_rum")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1)


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real corpora, which a clone of the project does not have."""
    path = os.environ.get("FAIRSEQ_RUM_DATA")
    if not path or not Path(path).is_dir():
        pytest.skip("FAIRSEQ_RUM_DATA does not name the folder of corpora")
    return Path(path)


def skip_without_products(dtype):
    """Skip where this torch has no matrix products of the type for this processor."""
    try:
        # Large enough for oneDNN, which torch asks for those in bfloat16.
        torch.nn.functional.linear(torch.ones(64, 64, dtype=dtype), torch.ones(64, 64, dtype=dtype))
    except RuntimeError as error:
        pytest.skip(f"torch {torch.__version__} multiplies no {dtype} here: {error}")


def run_fairseq(command, *arguments):
    """Run ``fairseq-<command>`` in this process, as its executable would."""
    import importlib

    from fairseq import checkpoint_utils
    from fairseq.logging import metrics
    from fairseq_cli import train

    # What fairseq keeps in function attributes would leak from one run into the next.
    metrics.reset()
    for function, names in (
        (checkpoint_utils.save_checkpoint, ("best",)),
        (train.should_stop_early, ("best", "num_runs")),
    ):
        for name in names:
            if hasattr(function, name):
                delattr(function, name)
    module = importlib.import_module(f"fairseq_cli.{command.replace('-', '_')}")
    argv = sys.argv
    sys.argv = [f"fairseq-{command}", *map(str, arguments)]
    threads = torch.get_num_threads()
    try:
        return module.cli_main()
    finally:
        sys.argv = argv
        torch.set_num_threads(threads)


def run_hydra(folder, name, tmp_path, *overrides):
    """Run ``fairseq-hydra-train`` with a file of ``user_dir_configs``; the checkpoint's path."""
    command = [
        str(ROOT / "tests" / "hydra_train.py"), "--config-dir",
        str(ROOT / "user_dir_configs" / folder), "--config-name", name,
        f"common.user_dir={USER_DIR}", f"checkpoint.save_dir={tmp_path / 'hydra'}",
        "common.cpu=true", "optimization.max_update=2", f"hydra.run.dir={tmp_path / 'run'}",
        *overrides,
    ]  # fmt: skip
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return tmp_path / "hydra" / "checkpoint_last.pt"


@pytest.fixture
def fairseq_log(caplog):
    """The log records of fairseq's commands as a list of messages."""
    caplog.set_level(logging.INFO)
    return caplog


TEXT = "the cat sat on the mat, and the dog sat on the log.\nwho sat where? the cat did.\n"


@pytest.fixture(scope="session")
def char_data(tmp_path_factory):
    """A small character corpus, binarized: train 4,900, valid 815, test 415 characters or so."""
    from fairseq_rum.cli.main import main

    folder = tmp_path_factory.mktemp("corpus")
    for split, times in (("train", 60), ("valid", 10), ("test", 5)):
        (folder / split).write_text(TEXT * times, encoding="utf-8")
    destination = folder / "data-bin"
    arguments = ["prepare", "chars", "--destdir", str(destination)]
    for split in ("train", "valid", "test"):
        arguments += [f"--{split}pref", str(folder / split)]
    assert main(arguments) == 0
    return destination


@contextlib.contextmanager
def log_file(folder):
    """For ``--log-file``: its path, and the end of what fairseq keeps open in this process."""
    log = logging.getLogger("fairseq.logging.progress_bar")
    log.setLevel(logging.INFO)
    folder.mkdir(exist_ok=True)
    try:
        yield folder / "log.json"
    finally:
        for handler in list(log.handlers):  # one for every epoch
            log.removeHandler(handler)
            handler.close()


def recall_arguments(folder, *options):
    """Of ``fairseq-train``: a small model on recall, five updates, with log and checkpoint."""
    return [
        "--user-dir", USER_DIR, "--task", "associative_recall", "--recall-length", 4, "--arch",
        "rum_memory", "--hidden-size", 6, "--criterion", "memory_accuracy", "--optimizer",
        "rmsprop", "--lr", 0.01, "--train-examples", 40, "--valid-examples", 8, "--test-examples",
        8, "--batch-size", 8, "--cpu", "--num-workers", 0, "--max-update", 5, "--log-format",
        "json", "--log-interval", 1, "--log-file", folder / "log.json", "--save-dir", folder,
        *options,
    ]  # fmt: skip


@pytest.fixture(scope="session")
def recall_run(tmp_path_factory):
    """Trains such a model with more options, once; gives the folder of the run."""
    runs = {}

    def run(*options):
        if options not in runs:
            folder = tmp_path_factory.mktemp("recall")
            with log_file(folder):
                run_fairseq("train", *recall_arguments(folder, *options))
            runs[options] = folder
        return runs[options]

    return run
