"""rum_adagrad against TensorFlow's formula, and through fairseq."""

import math

import pytest
import torch
from conftest import USER_DIR, run_fairseq

from fairseq_rum.errors import InputError
from fairseq_rum.optim.adagrad import FairseqAdagrad, FairseqAdagradConfig


def make(params, **options):
    return FairseqAdagrad(FairseqAdagradConfig(lr=[0.15], **options), params)


@pytest.mark.parametrize("start, eps", [(0.1, 0.0), (0.5, 1e-10), (0.0, 1e-3)])
def test_is_the_formula(start, eps):
    """One number at a time in Python: the accumulator starts above zero."""
    p = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    values, sums = p.tolist(), [start] * 3
    optimizer = make([p], adagrad_initial_accumulator=start, adagrad_eps=eps)
    for step in range(20):
        grads = [0.3 * (step + 1), -1e-3, 2.0 - step]
        p.grad = torch.tensor(grads, dtype=torch.float64)
        optimizer.step()
        sums = [s + g * g for s, g in zip(sums, grads)]
        values = [v - 0.15 * g / (math.sqrt(s) + eps) for v, s, g in zip(values, sums, grads)]
        assert p.tolist() == pytest.approx(values, abs=1e-12)


def test_a_small_gradient_makes_a_small_first_step():
    p = torch.zeros(1, dtype=torch.float64)
    p.grad = torch.full_like(p, 1e-3)
    make([p]).step()
    assert -p.item() == pytest.approx(0.15 * 1e-3 / math.sqrt(0.1), rel=1e-4)


@pytest.mark.parametrize(
    "options", [{"adagrad_initial_accumulator": -0.1}, {"adagrad_eps": math.nan}]
)
def test_bad_settings(options):
    (name,) = options
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} must be at least 0, got"):
        make([torch.zeros(1)], **options)


def test_through_fairseq(tmp_path):
    """In the checkpoint: plain numbers, sums that go on, a learning rate that can be changed."""
    command = [
        "--user-dir", USER_DIR, "--task", "associative_recall", "--recall-length", 4, "--arch",
        "rum_memory", "--hidden-size", 4, "--criterion", "memory_accuracy", "--optimizer",
        "rum_adagrad", "--train-examples", 64, "--valid-examples", 8, "--batch-size", 8, "--cpu",
        "--num-workers", 0, "--save-dir", tmp_path, "--no-progress-bar",
        "--adagrad-initial-accumulator", 0.25,
    ]  # fmt: skip
    smallest = []
    for lr, updates in ((0.5, 2), (0.125, 4)):
        run_fairseq("train", *command, "--lr", lr, "--max-update", updates)
        state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
        (group,) = state["last_optimizer_state"]["param_groups"]
        assert (group["lr"], group["eps"], group["initial_accumulator_value"]) == (lr, 1e-10, 0.25)
        sums = [entry["sum"] for entry in state["last_optimizer_state"]["state"].values()]
        smallest.append(sums)
        assert all(entry.min() >= 0.25 for entry in sums)
    assert all((b >= a).all() for a, b in zip(*smallest))
