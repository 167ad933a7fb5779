"""rmsprop against torch's and against TensorFlow's formula, and through fairseq."""

import math

import pytest
import torch
from conftest import USER_DIR, run_fairseq

from fairseq_rum.errors import InputError
from fairseq_rum.optim.rmsprop import RMSprop


def gradients(steps):
    """Over the sizes at which epsilon matters, and exact zeros."""
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        scale = 10.0 ** (-2 * (step % 5))
        first = scale * torch.randn(4, 3, generator=generator, dtype=torch.float64)
        second = scale * torch.randn(5, generator=generator, dtype=torch.float64)
        second[0] = 0
        yield first, second


def new_parameters():
    generator = torch.Generator().manual_seed(4)
    shapes = ((4, 3), (5,))
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


def run(optimizer, params, steps=30):
    for grads in gradients(steps):
        for p, g in zip(params, grads):
            p.grad = g.clone()
        optimizer.step()
    return params


@pytest.mark.parametrize("decay, eps, lr", [(0.9, 1e-8, 1e-3), (0.99, 1e-4, 0.1), (0.0, 1e-8, 1.0)])
def test_torch_mode_is_torch(decay, eps, lr):
    ours, theirs = new_parameters(), new_parameters()
    run(RMSprop(ours, lr, decay, eps), ours)
    run(torch.optim.RMSprop(theirs, lr, decay, eps), theirs)
    for a, b in zip(ours, theirs):
        assert (a - b).abs().max() < 1e-13 * max(1.0, lr)


@pytest.mark.parametrize("decay, eps, start", [(0.9, 1e-10, 1.0), (0.5, 1e-3, 1.0), (0.9, 1e-6, 0)])
def test_tensorflow_mode_is_tensorflows_formula(decay, eps, start):
    """tf.train.RMSPropOptimizer, one number at a time in Python."""
    ours = new_parameters()
    run(RMSprop(ours, 1e-2, decay, eps, eps_inside_sqrt=True, start=start), ours)
    for index, (p, found) in enumerate(zip(new_parameters(), ours)):
        for position, value in enumerate(p.flatten().tolist()):
            mean_square = start
            for grads in gradients(30):
                g = grads[index].flatten()[position].item()
                mean_square = decay * mean_square + (1 - decay) * g * g
                value -= 1e-2 * g / math.sqrt(mean_square + eps)
            assert found.flatten()[position].item() == pytest.approx(value, abs=1e-12)


def test_first_step():
    """start 0: alpha / sqrt(1 - rho) whatever the gradient; start 1: alpha g."""
    for start, expected in ((0.0, 1 / math.sqrt(0.1)), (1.0, 1e-4)):
        p = torch.zeros(1, dtype=torch.float64)
        p.grad = torch.full_like(p, 1e-4)
        RMSprop([p], 1.0, 0.9, 1e-12, start=start).step()
        assert -p.item() == pytest.approx(expected, rel=0.06)


def test_parameters_without_gradient_stay():
    p, q = new_parameters()
    q.grad = torch.ones_like(q)
    optimizer = RMSprop([p, q])
    before = p.clone()
    optimizer.step()
    assert torch.equal(p, before) and p not in optimizer.state
    assert optimizer.step(lambda: 3.0) == 3.0


def test_state_is_saved():
    whole, parts = new_parameters(), new_parameters()
    run(RMSprop(whole), whole, 20)
    first = RMSprop(parts)
    grads = list(gradients(20))
    for step, pair in enumerate(grads):
        if step == 10:
            second = RMSprop(parts)
            second.load_state_dict(first.state_dict())
            first = second
        for p, g in zip(parts, pair):
            p.grad = g.clone()
        first.step()
    assert all(torch.equal(a, b) for a, b in zip(whole, parts))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"decay": 1.0}, r"--rmsprop-decay must lie in \[0, 1\), got 1"),
        ({"decay": -0.1}, "--rmsprop-decay must lie in"),
        ({"eps": 0.0}, "--rmsprop-eps must be positive, got 0"),
        ({"start": -1.0}, "--rmsprop-start must be at least 0, got -1"),
        ({"decay": math.nan}, "--rmsprop-decay"),
        ({"eps": math.nan}, "--rmsprop-eps"),
        ({"start": math.nan}, "--rmsprop-start"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(InputError, match=message):
        RMSprop(new_parameters(), **options)


@pytest.mark.parametrize(
    "extra, expected",
    [
        ([], {"decay": 0.9, "eps": 1e-8, "eps_inside_sqrt": False, "start": 0.0}),
        (
            ["--rmsprop-eps-inside-sqrt", "--rmsprop-start", 1],
            {"decay": 0.9, "eps": 1e-10, "eps_inside_sqrt": True, "start": 1.0},
        ),
        (
            ["--rmsprop-decay", 0.5, "--rmsprop-eps", 0.01],
            {"decay": 0.5, "eps": 0.01, "eps_inside_sqrt": False, "start": 0.0},
        ),
    ],
)
def test_options_through_fairseq(tmp_path, extra, expected):
    """In the checkpoint: plain numbers, and a learning rate that a resumed run can change."""
    command = [
        "--user-dir", USER_DIR, "--task", "associative_recall", "--recall-length", 4, "--arch",
        "rum_memory", "--hidden-size", 4, "--criterion", "memory_accuracy", "--optimizer",
        "rmsprop", "--train-examples", 64, "--valid-examples", 8, "--batch-size", 8, "--cpu",
        "--num-workers", 0, "--save-dir", tmp_path, "--no-progress-bar", *extra,
    ]  # fmt: skip
    for lr, updates in ((0.25, 2), (0.125, 4)):
        run_fairseq("train", *command, "--lr", lr, "--max-update", updates)
        saved = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
        (group,) = saved["last_optimizer_state"]["param_groups"]
        assert group["lr"] == lr
        assert {name: group[name] for name in expected} == expected
