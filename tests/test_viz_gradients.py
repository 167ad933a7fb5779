"""The data behind `fairseq-rum plot gradients`."""

import json

import pytest

from fairseq_rum.cli.main import main
from fairseq_rum.data.dynamics_log import DYNAMICS_FILE, dynamics_line, read_dynamics
from fairseq_rum.data.training_log import read_log
from fairseq_rum.viz.curves import Curve
from fairseq_rum.viz.gradients import Panel, plot_gradients


@pytest.fixture
def drawn(monkeypatch):
    from fairseq_rum.viz import gradients

    panels = []
    monkeypatch.setattr(
        gradients, "plot_gradients", lambda p: panels.extend(p) or plot_gradients(p)
    )
    return panels


def test_the_figure_holds_the_curves():
    panels = [Panel(f"p{i}", "t", [Curve("a", [1, 2], [i + 1, 5])]) for i in range(3)]
    axes = plot_gradients(panels).axes
    assert [place.get_title() for place in axes] == ["p0", "p1", "p2", ""]
    for place, panel in zip(axes, panels):
        (line,) = place.get_lines()
        assert (list(line.get_xdata()), list(line.get_ydata())) == ([1, 2], list(panel.curves[0].y))
        assert place.get_yscale() == "log"


def test_a_real_run(recall_run, tmp_path, drawn, capsys):
    run, plain = recall_run("--rnn-unit", "rum", "--log-dynamics"), recall_run("--rnn-unit", "lstm")
    out = str(tmp_path / "g.png")
    arguments = ["plot", "gradients", "--runs", f"rum={run}", f"lstm={plain}", "--out", out]
    assert main(arguments) == 0
    assert [panel.title for panel in drawn] == [
        "gradient of all parameters",
        "last hidden state",
        "gradient at each step",
    ]
    log, steps = read_log(run), read_dynamics(run / DYNAMICS_FILE)
    everywhere, last, each = (panel.curves for panel in drawn)
    assert [curve.label for curve in everywhere] == ["rum", "lstm"]
    assert everywhere[0] == Curve("rum", *log.series("train_inner", "gnorm"))
    assert last == [Curve("rum", *log.series("train_inner", "h_last_norm"))]
    assert [curve.label for curve in each] == ["rum, update 1", "rum, update 5"]
    for curve, updates in zip(each, (1, 5)):
        assert list(curve.x) == list(range(1, 8))
        assert list(curve.y) == steps[updates][""]["gradient"]
    assert "need a run with --log-dynamics" not in capsys.readouterr().out
    drawn.clear()
    assert main([*arguments[:3], str(plain), "--out", out]) == 0
    assert [panel.title for panel in drawn] == ["gradient of all parameters"]
    assert "need a run with --log-dynamics" in capsys.readouterr().out


def test_encoder_and_decoder(tmp_path, drawn):
    line = {"num_updates": 10, "gnorm": 2, "encoder.0/h_last_norm": 1, "decoder/h_last_norm": 3}
    (tmp_path / "log.json").write_text(json.dumps(line))
    units = {
        "encoder.0": {"gradient": [1.0, 0.5, float("nan")]},
        "encoder.1": {"gradient": [0.0, 0.1, 0.2]},
        "decoder": {"gradient": [3.0]},
    }
    (tmp_path / DYNAMICS_FILE).write_text(dynamics_line(10, units))
    assert main(["plot", "gradients", "--runs", f"r={tmp_path}", "--out", f"{tmp_path}/a.svg"]) == 0
    panels = {panel.title: panel.curves for panel in drawn}
    assert [curve.label for curve in panels["last hidden state"]] == ["r, decoder", "r, encoder.0"]
    encoder = panels["gradient at each step of the encoder"]
    assert encoder[0] == Curve("r, encoder.0, update 10", (1, 2), (1.0, 0.5))
    assert encoder[1] == Curve("r, encoder.1, update 10", (2, 3), (0.1, 0.2))
    (decoder,) = panels["gradient at each step of the decoder"]
    assert decoder.y == (3.0,)


def test_bad_input(recall_run, tmp_path, capsys):
    run, plain = recall_run("--rnn-unit", "rum", "--log-dynamics"), recall_run("--rnn-unit", "lstm")
    for arguments, message in (
        ([run, "--updates", "7"], "--updates 7: "),
        ([plain, "--updates", "1"], "has no "),
        ([tmp_path / "absent"], "absent: no such file or folder"),
    ):
        command = ["plot", "gradients", "--out", str(tmp_path / "a.png"), "--runs"]
        assert main([*command, *map(str, arguments)]) == 2
        assert message in capsys.readouterr().err
