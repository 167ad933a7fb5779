"""The data behind `fairseq-rum plot angles`."""

import numpy as np
import pytest

from fairseq_rum.cli.main import main
from fairseq_rum.viz.angles import Angles, angle_histogram, plot_angles


def test_histogram_counts():
    cosines = np.array([[-1.0, 0.2], [0.1, 1.0], [-0.6, np.nan], [0.49, 0.6], [0.5, 0.0]])
    counts = angle_histogram(cosines, 4)  # [-1, -.5), [-.5, 0), [0, .5), [.5, 1]
    assert counts.tolist() == [[2, 0], [0, 0], [2, 2], [1, 2]]
    assert angle_histogram(np.full((2, 3), np.nan), 5).tolist() == [[0, 0, 0]] * 5


def test_the_figure_holds_shares_and_means():
    cosines = np.random.default_rng(1).uniform(-1, 1, (50, 7))
    cosines[3:, 6] = np.nan
    panels = [Angles("a", cosines), Angles("b", -cosines), Angles("c", np.full((2, 3), np.nan))]
    figure = plot_angles(panels, 2, 10)
    shown = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in shown] == ["a", "b", "c"]
    for axes, panel in zip(shown, panels):
        shares = np.asarray(axes.images[0].get_array())
        counts = angle_histogram(panel.cosines, 10)
        np.testing.assert_allclose(shares, counts / counts.sum(0).clip(1))
        x, y = axes.get_lines()[0].get_data()
        assert list(x) == list(range(1, panel.cosines.shape[1] + 1))
        if panel.title != "c":
            np.testing.assert_allclose(y, np.nanmean(panel.cosines, 0))


@pytest.fixture
def drawn(monkeypatch):
    from fairseq_rum.viz import angles

    panels = []
    monkeypatch.setattr(
        angles, "plot_angles", lambda p, *rest: panels.extend(p) or plot_angles(p, *rest)
    )
    return panels


def test_command(recall_run, tmp_path, drawn):
    zero = recall_run("--rnn-unit", "rum")
    one = recall_run("--rnn-unit", "rum", "--rum-lambda", "1")
    out = str(tmp_path / "angles.png")
    arguments = ["plot", "angles", "--checkpoints", f"zero={zero}", f"one={one}", "--initial"]
    assert main([*arguments, "--split", "valid", "--out", out]) == 0
    titles = ["zero, before training", "zero", "one, before training", "one"]
    assert [panel.title for panel in drawn] == titles
    assert all(panel.cosines.shape == (8, 7) for panel in drawn)
    # Before training both have the same weights; lambda = 1 rotates otherwise from step 2 on.
    before, after = drawn[0].cosines, drawn[1].cosines
    np.testing.assert_array_equal(before[:, 0], drawn[2].cosines[:, 0])
    assert not np.allclose(before, after)


def test_bad_input(recall_run, tmp_path, capsys):
    rum, lstm = recall_run("--rnn-unit", "rum"), recall_run("--rnn-unit", "lstm")
    out = str(tmp_path / "angles.png")
    for arguments, message in (
        ([lstm], "none of its units rotates by an angle"),
        ([rum, "--unit", "x"], "checkpoint_last.pt these rotate: rnn.layers.0.cell"),
        ([rum, "--bins", "0"], "--bins must be at least 1, got 0"),
        ([rum, "--columns", "-2"], "--columns must be at least 1, got -2"),
        ([rum, "--split", "dev"], "no split 'dev', a memory task has train, valid, test"),
        ([rum, rum], "two runs are called"),
    ):
        assert main(["plot", "angles", "--out", out, "--checkpoints", *map(str, arguments)]) == 2
        assert message in capsys.readouterr().err
