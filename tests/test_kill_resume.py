"""Training that is killed and started again ends with the same parameters, bit for bit.

Quick cases run with every test; the whole matrix is in ``make soak``.
"""

import itertools
import random
import signal
import subprocess
import sys

import pytest
import summary_corpus
import torch
from conftest import ROOT, USER_DIR
from test_babi_qa import prepare as prepare_babi

UPDATES = 12
SAVE = ["--save-interval-updates", 3, "--keep-interval-updates", 1, "--max-update", UPDATES]
COMMON = ["--user-dir", USER_DIR, "--cpu", "--num-workers", 0, "--log-format", "json", "--seed", 5]

MODELS = {
    "rum_lm": [
        "--task", "stateful_language_modeling", "--arch", "rum_lm", "--rum-lambda", 1,
        "--decoder-hidden-size", 8, "--decoder-embed-dim", 6, "--dropout", 0.2, "--rum-layer-norm",
        "--rum-zoneout", 0.1, "--criterion", "bits_per_token", "--optimizer", "adam",
        "--lr", 0.01, "--batch-size", 4, "--tokens-per-sample", 25, "--max-tokens-valid", 200,
    ],
    "copying": [
        "--task", "copying_memory", "--arch", "rum_memory", "--delay", 5, "--hidden-size", 8,
        "--rum-lambda", 1, "--criterion", "memory_accuracy", "--optimizer", "rmsprop",
        "--lr", 0.01, "--batch-size", 8, "--train-examples", 40, "--valid-examples", 8,
    ],
    "recall": [
        "--task", "associative_recall", "--arch", "rum_memory", "--recall-length", 4,
        "--rnn-unit", "lstm", "--hidden-size", 8, "--fresh-batches", "--criterion",
        "memory_accuracy", "--optimizer", "rmsprop", "--lr", 0.01, "--batch-size", 8,
        "--train-examples", 40, "--valid-examples", 8,
    ],
    "fs_rum": [
        "--task", "stateful_language_modeling", "--arch", "fs_rum", "--fast-cells", 2,
        "--decoder-hidden-size", 8, "--slow-hidden-size", 10, "--decoder-embed-dim", 6,
        "--dropout", 0.2, "--lstm-zoneout", 0.1, "--rum-zoneout", 0.1, "--rum-lambda", 1,
        "--criterion", "bits_per_token", "--optimizer", "adam", "--lr", 0.01, "--batch-size", 4,
        "--tokens-per-sample", 25,
    ],
    "pointer_gen_rum": [
        "--task", "rum_summarization", "--arch", "pointer_gen_rum", "--coverage", "--rum-zoneout",
        0.1, "--decoder-rnn-unit", "rum", "--embed-dim", 8, "--encoder-hidden-size", 8,
        "--decoder-hidden-size", 8, "--criterion", "pointer_coverage_loss", "--optimizer",
        "rum_adagrad", "--lr", 0.1, "--batch-size", 7,
    ],
    "babi_qa": [
        "--task", "babi_qa", "--arch", "rum_qa", "--embed-dim", 8, "--hidden-size", 8, "--dropout",
        0.2, "--rum-lambda", 1, "--rum-zoneout", 0.1, "--criterion", "answer_accuracy",
        "--optimizer", "adam", "--lr", 0.01, "--batch-size", 16,
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def summary_data(tmp_path_factory):
    pairs = summary_corpus.make_pairs(40)
    folder = tmp_path_factory.mktemp("summaries")
    return summary_corpus.prepare(folder, pairs, "--vocabulary", 24, valid=pairs)


@pytest.fixture(scope="module")
def babi_data(tmp_path_factory):
    return prepare_babi(tmp_path_factory.mktemp("babi"))


@pytest.fixture(scope="module")
def commands(char_data, summary_data, babi_data):
    """Model -> the options of fairseq-train without --save-dir."""
    data = {
        "rum_lm": [char_data],
        "fs_rum": [char_data],
        "pointer_gen_rum": [summary_data],
        "babi_qa": [babi_data],
    }
    return {
        name: [str(x) for x in (*data.get(name, []), *COMMON, *options, *SAVE)]
        for name, options in MODELS.items()
    }


def train(command, save_dir, when="never", number=0, fraction=0.0):
    """Run fairseq-train in a process of its own; its exit status and output."""
    script = [sys.executable, str(ROOT / "tests" / "killed_train.py")]
    plan = [when, str(number), str(fraction)]
    result = subprocess.run(
        [*script, *plan, *command, "--save-dir", str(save_dir)],
        capture_output=True, text=True, timeout=300, cwd=ROOT,
    )  # fmt: skip
    return result.returncode, result.stdout + result.stderr


@pytest.fixture(scope="module")
def expected(commands, tmp_path_factory):
    """Model -> the parameters of a run that nothing disturbs; trained when asked for."""
    known = {}

    def parameters(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            status, output = train(commands[name], folder)
            assert status == 0, output[-2000:]
            known[name] = final(folder)
        return known[name]

    return parameters


def final(folder):
    state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
    assert state["optimizer_history"][-1]["num_updates"] == UPDATES
    return state["model"]


def check(commands, expected, folder, name, plans):
    """Kill as planned, one plan after the other, start again, and compare."""
    for when, number, fraction in plans:
        status, output = train(commands[name], folder, when, number, fraction)
        assert status == -signal.SIGKILL, output[-2000:]
        for path in folder.glob("*.pt"):  # what is there is whole
            torch.load(path, weights_only=True)
    status, output = train(commands[name], folder)
    assert status == 0, output[-2000:]
    found, wanted = final(folder), expected(name)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_killed_while_a_checkpoint_is_written(commands, expected, tmp_path):
    """In the middle of the second checkpoint, then of the copy of one."""
    check(commands, expected, tmp_path, "rum_lm", [("save", 2, 0.5), ("copy", 2, 0.5)])


def test_killed_within_a_step(commands, expected, tmp_path):
    check(commands, expected, tmp_path, "copying", [("step", 7, 0.5)])


def plans():
    """For each model steps, saves and copies, at random moments."""
    numbers = random.Random(1)
    for name, when in itertools.product(MODELS, ("step", "save", "copy")):
        number = numbers.randint(2, 9) if when == "step" else numbers.randint(1, 3)
        yield name, (when, number, round(numbers.random(), 2))


@pytest.mark.soak
@pytest.mark.parametrize("name, plan", plans())
def test_killed_at_random(commands, expected, tmp_path, name, plan):
    check(commands, expected, tmp_path, name, [plan])
