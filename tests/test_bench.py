"""``fairseq-rum bench``: the tables, and that what they say is so."""

import pytest
import torch

from fairseq_rum.cells import build_cell
from fairseq_rum.cli.bench import COVERAGE
from fairseq_rum.cli.main import main
from fairseq_rum.kernels.rum import KERNELS

CALLS = {
    "float32, float64": [({}, torch.float32), ({}, torch.float64)],
    "bfloat16, float16, autocast": [({}, torch.bfloat16), ({}, torch.float16)],
    "lambda 0 and 1, eta, every activation": [
        ({"lambda_": lambda_, "eta": 1.0, "activation": activation}, torch.float32)
        for lambda_ in (0, 1)
        for activation in ("relu", "tanh", "sigmoid", "softsign", "none")
    ],
    "without update gate, without biases": [({"update_gate": False, "bias": False}, torch.float32)],
    "constant rotation": [({"rotation_trainable": False}, torch.float32)],
    "layer normalization, zoneout": [
        ({"layer_norm": True}, torch.float32),
        ({"zoneout": 0.1}, torch.float32),
    ],
}


def test_backends(capsys):
    assert main(["bench", "--backends"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["rum", "fused", "available"] for line in lines)
    assert any(line.startswith("layer normalization") for line in lines)
    assert not any("nn.LSTM" in line for line in lines)


def test_measurement(capsys):
    arguments = ["--seconds", "0.01", "--steps", "2", "--batch-size", "2", "--hidden-size", "4"]
    assert main(["bench", *arguments]) == 0
    assert "nn.LSTM  " in capsys.readouterr().out
    assert main(["bench", "--steps", "0"]) == 2
    assert "--steps must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["triton", "cpp", "fused"])
def test_coverage_is_what_the_kernels_say(name, monkeypatch):
    if name == "triton":  # all that does not concern the device
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    column = COVERAGE[0].index(name)
    rows = {row[0]: row[column] for row in COVERAGE[1:]}
    for call, cases in CALLS.items():
        for options, dtype in cases:
            cell = build_cell("rum", 3, 4, **options).to(dtype)
            x = torch.zeros(2, 3, 3, dtype=dtype)
            reason = KERNELS[name].unsupported(cell, x, cell.init_state(2), None)
            assert (reason is None) == (rows[call] == "yes"), (call, reason)
