"""The data behind `fairseq-rum plot landscape`."""

import numpy as np
import pytest
import torch

from fairseq_rum.cells import RecurrentCell
from fairseq_rum.cli.main import main
from fairseq_rum.viz.landscape import (
    LossSlice,
    coordinates,
    loss_slice,
    plot_landscape,
    random_directions,
)


def test_coordinates():
    for points, reach in ((3, 0.1), (51, 1.0), (25, 0.7)):
        alphas = coordinates(points, reach)
        assert len(alphas) == points and alphas[points // 2] == 0
        np.testing.assert_allclose(alphas, np.linspace(-reach, reach, points), atol=1e-15)


def test_slices_of_a_known_function():
    a, b = torch.randn(3, 2, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    directions = [[torch.randn_like(a), torch.randn_like(b)] for _ in range(2)]
    kept, alphas = (a.clone(), b.clone()), coordinates(5, 2.0)

    def f(a, b):
        return float((a**2).sum() + b.sin().sum())

    values = loss_slice(lambda: f(a, b), [a, b], directions, alphas)
    assert values.shape == (5, 5) and values[2, 2] == f(*kept)
    assert torch.equal(a, kept[0]) and torch.equal(b, kept[1])
    (da, db), (ea, eb) = directions
    for i, alpha in enumerate(alphas):
        for j, beta in enumerate(alphas):
            expected = f(a + alpha * da + beta * ea, b + alpha * db + beta * eb)
            assert values[i, j] == pytest.approx(expected)
    line = loss_slice(lambda: f(a, b), [a, b], directions[:1], alphas)
    np.testing.assert_allclose(line, values[:, 2])


def test_weights_are_restored_after_an_error():
    weight = torch.randn(3)
    kept = weight.clone()

    def loss():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loss_slice(loss, [weight], random_directions([weight], 1, 1), coordinates(3, 1))
    assert torch.equal(weight, kept)


def test_directions():
    weights = [torch.randn(4, 3), torch.randn(5), torch.zeros(2, 2)]
    one, two = random_directions(weights, 2, seed=7)
    again = random_directions(weights, 2, seed=7)
    assert all(torch.equal(x, y) for x, y in zip(one + two, again[0] + again[1]))
    assert not torch.equal(one[0], two[0])
    assert not torch.equal(one[0], random_directions(weights, 1, seed=8)[0][0])
    (scaled,) = random_directions(weights, 1, seed=7, filter_normalized=True)
    torch.testing.assert_close(scaled[0].norm(dim=1), weights[0].norm(dim=1))
    torch.testing.assert_close(scaled[1].norm(), weights[1].norm())
    assert not scaled[2].any()
    cosines = torch.nn.functional.cosine_similarity(scaled[0], one[0], dim=1)
    torch.testing.assert_close(cosines, torch.ones(4))


def test_the_figure_holds_the_data():
    alphas = coordinates(5, 1)
    slices = [
        LossSlice(label, state, alphas, alphas**2 + i)
        for i, label in enumerate(("RUM", "GORU"))
        for state in ("before training", "trained")
    ]
    axes = plot_landscape(slices).axes
    assert [place.get_title() for place in axes] == ["before training", "trained"]
    for place in axes:
        lines = place.get_lines()
        assert [line.get_label() for line in lines] == ["RUM", "GORU"]
        for i, line in enumerate(lines):
            np.testing.assert_array_equal(line.get_ydata(), alphas**2 + i)
    square = alphas[:, None] ** 2 + 3 * alphas
    square[0, 0] = np.inf
    panels = plot_landscape([LossSlice("RUM", "trained", alphas, square)], "t").axes
    assert panels[0].get_title() == "RUM, trained"


@pytest.mark.parametrize("dimensions", [1, 2])
def test_command(recall_run, tmp_path, monkeypatch, capsys, dimensions):
    """At alpha = 0 is the loss; only the rotation's weights are varied, and all are put back."""
    from fairseq_rum.cli import trained as trained_module
    from fairseq_rum.viz import landscape

    slices, models, fixed, loss = [], {}, {}, trained_module.Trained.loss
    monkeypatch.setattr(
        landscape, "plot_landscape", lambda s: slices.extend(s) or plot_landscape(s)
    )

    def watched(self, model, sample):
        models[model] = (self, sample)
        (cell,) = (module for module in model.modules() if isinstance(module, RecurrentCell))
        rotation = cell.rotation_weights()
        others = [k for name, k in cell.kernels().items() if name not in rotation]
        others = [*others[:1], model.output_projection.weight.detach()]
        fixed.setdefault(model, set()).add(tuple(float(k.sum()) for k in others))
        return loss(self, model, sample)

    monkeypatch.setattr(trained_module.Trained, "loss", watched)
    rum = recall_run("--rnn-unit", "rum", "--rum-lambda", "1")
    goru = recall_run("--rnn-unit", "goru")
    arguments = ["plot", "landscape", "--checkpoints", f"RUM={rum}", f"GORU={goru}", "--points",
                 "5", "--dimensions", str(dimensions), "--reach", "0.5",
                 "--filter-normalize"]  # fmt: skip
    assert main([*arguments, "--out", str(tmp_path / "a.png")]) == 0
    assert "4 slices of 5 points" in capsys.readouterr().out
    middle = (2,) * dimensions
    assert all(len(sums) == 1 for sums in fixed.values())
    for one, (model, (trained, sample)) in zip(slices, models.items(), strict=True):
        assert one.values.shape == (5,) * dimensions and np.isfinite(one.values).all()
        assert one.values[middle] == loss(trained, model, sample).item()
        assert len(np.unique(one.values)) > 1
        expected = trained.model if one.state == "trained" else trained.initial()
        for name, value in expected.state_dict().items():
            assert torch.equal(model.state_dict()[name], value)
    states = [(one.label, one.state) for one in slices]
    assert states == [
        (label, state) for label in ("RUM", "GORU") for state in ("before training", "trained")
    ]


def test_bad_input(recall_run, tmp_path, capsys):
    rum, lstm = recall_run("--rnn-unit", "rum"), recall_run("--rnn-unit", "lstm")
    out = str(tmp_path / "a.png")
    for arguments, message in (
        ([lstm], "its units (lstm) have no rotation, as rum and goru have"),
        ([rum, "--points", "4"], "--points must be odd and at least 3, got 4"),
        ([rum, "--reach", "0"], "--reach must be positive, got 0.0"),
    ):
        command = ["plot", "landscape", "--out", out, "--checkpoints", *map(str, arguments)]
        assert main(command) == 2
        assert message in capsys.readouterr().err
