"""The derivatives behind `fairseq-rum plot activations`, and what all figures' commands refuse."""

import pytest
import torch

from fairseq_rum.cli.main import main
from fairseq_rum.viz.activations import COMPARED, derivative, plot_derivatives

EXPECTED = {
    "relu": lambda x: (x > 0).to(x.dtype),
    "tanh": lambda x: 1 - torch.tanh(x) ** 2,
    "sigmoid": lambda x: torch.sigmoid(x) * (1 - torch.sigmoid(x)),
    "softsign": lambda x: 1 / (1 + x.abs()) ** 2,
}


@pytest.mark.parametrize("name", COMPARED)
def test_derivatives(name):
    x = torch.linspace(-3, 3, 60, dtype=torch.float64)  # not at 0, where relu has none
    torch.testing.assert_close(derivative(name, x), EXPECTED[name](x))


def test_the_figure_holds_them():
    lines = plot_derivatives().axes[0].get_lines()
    assert [line.get_label() for line in lines] == list(COMPARED)
    for line in lines:
        x = torch.as_tensor(line.get_xdata())
        assert x[0] == -4 and x[-1] == 4
        y = torch.as_tensor(line.get_ydata())
        torch.testing.assert_close(y[x != 0], EXPECTED[line.get_label()](x)[x != 0])


def test_command(tmp_path, capsys):
    out = tmp_path / "activations.svg"
    assert main(["plot", "activations", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: derivatives of relu, tanh, sigmoid, softsign\n"
    assert "<svg" in out.read_text()
    assert main(["plot", "activations", "--out", str(tmp_path / "a.gif")]) == 2
    assert "a.gif: the name must end in .png, .svg, .pdf" in capsys.readouterr().err
