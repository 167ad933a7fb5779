"""A run that blows up ends with a sentence; time normalization cures it."""

import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, USER_DIR, run_fairseq
from torch import nn

from fairseq_rum.cells import build_cell
from fairseq_rum.errors import DivergenceError
from fairseq_rum.layers import RecurrentLayer
from fairseq_rum.tasks.divergence import StopsWhenDiverging, advice

# Without gate and normalization a step multiplies what is above 1.
WILD = [
    "--user-dir", USER_DIR, "--task", "copying_memory", "--arch", "rum_memory", "--delay", 60,
    "--hidden-size", 16, "--rum-no-update-gate", "--rum-activation", "none", "--criterion",
    "memory_accuracy", "--optimizer", "sgd", "--lr", 30, "--batch-size", 8, "--train-examples", 80,
    "--valid-examples", 8, "--max-update", 30, "--cpu", "--num-workers", 0, "--seed", 1,
    "--no-save",
]  # fmt: skip


def test_time_normalization_cures_a_run_that_blows_up():
    with pytest.raises(DivergenceError) as caught:
        run_fairseq("train", *WILD)
    message = str(caught.value)
    assert "training diverged at update" in message and "\n" not in message
    assert "the units are rum: keep the state's norm (--rum-eta 1), lower --lr" in message
    run_fairseq("train", *WILD, "--rum-eta", 1)


def test_the_executable_prints_one_sentence(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "fairseq_cli.train", *map(str, WILD)],
        capture_output=True, text=True, cwd=ROOT, timeout=300,
        env={**os.environ, "FAIRSEQ_RUM_TRACEBACK": ""},
    )  # fmt: skip
    assert result.returncode == 1
    assert (
        result.stderr.strip().splitlines()[-1].startswith("fairseq_rum: error: training diverged")
    )
    assert "Traceback" not in result.stderr


class Step:
    """A task of which only the step is there."""

    def __init__(self, loss, size=1):
        self.result = torch.tensor(loss), size, {}

    def train_step(self, *args):
        return self.result


class Task(StopsWhenDiverging, Step):
    pass


@pytest.mark.parametrize(
    "loss, size, problem",
    [
        (float("nan"), 1, "the loss is nan"),
        (float("inf"), 1, "the loss is inf"),
        (3e4, 2, r"the loss is 1.5e\+04"),
    ],
)
def test_losses(loss, size, problem):
    with pytest.raises(DivergenceError, match=f"diverged at update 8: {problem}; lower --lr"):
        Task(loss, size).train_step({}, nn.Linear(1, 1), None, None, 7)
    assert Task(3e4, 4).train_step({}, nn.Linear(1, 1), None, None, 7)[0] == 3e4


def test_gradients():
    model = nn.Linear(2, 2)
    model.weight.grad, model.bias.grad = torch.ones(2, 2), torch.tensor([1.0, float("inf")])
    with pytest.raises(DivergenceError, match="update 1: the gradient of bias is not finite"):
        Task(1.0).train_step({}, model, None, None, 0)
    Task(1.0).train_step({}, model, None, None, 0, True)  # a step that only warms up

    class Scaled:
        def __init__(self, enabled):
            self.scaler = torch.amp.GradScaler("cpu", enabled=enabled)

    Task(1.0).train_step({}, model, None, Scaled(True), 0)  # fairseq lowers the scale
    with pytest.raises(DivergenceError, match="update 1: the gradient of bias is not finite"):
        Task(1.0).train_step({}, model, None, Scaled(False), 0)  # --amp on the CPU


def test_advice_names_what_is_off():
    def layers(*cells):
        return nn.ModuleList(RecurrentLayer(cell) for cell in cells)

    assert "--rum-eta" in advice(layers(build_cell("rum", 3, 4)))
    assert "--rum-eta" not in advice(layers(build_cell("rum", 3, 4, eta=1.0)))
    assert (
        advice(layers(build_cell("lstm", 3, 4))) == "the units are lstm: lower --lr, or --clip-norm"
    )
