"""Trained models for figures, and the data behind `fairseq-rum plot kernels`."""

import numpy as np
import pytest
import torch

from fairseq_rum.cells import RecurrentCell
from fairseq_rum.cli import trained as module
from fairseq_rum.cli.main import build_parser, main
from fairseq_rum.tasks.memory_task import MemoryTask
from fairseq_rum.viz.kernels import diagonal_share, diagonal_strip, plot_kernels


def load(*paths):
    arguments = ["plot", "angles", "--checkpoints", *map(str, paths), "--out", "a.png"]
    return module.load_all(build_parser().parse_args(arguments))


def test_diagonal_strip():
    matrix = np.arange(16.0).reshape(4, 4)
    strip = diagonal_strip(matrix, 2)
    assert strip.shape == (5, 4)
    for k in range(-2, 3):
        inside = [i for i in range(4) if 0 <= i + k < 4]
        assert [strip[2 + k, i] for i in inside] == [matrix[i, i + k] for i in inside]
        assert np.isnan(np.delete(strip[2 + k], inside)).all()
    assert (diagonal_strip(matrix, 0) == matrix.diagonal()).all()


def test_diagonal_share():
    assert diagonal_share(np.eye(3)) == float("inf")
    assert diagonal_share(np.full((3, 3), -2.0)) == pytest.approx(1)
    assert diagonal_share(np.array([[3.0, -1], [2, -6]])) == pytest.approx(3)


def test_the_figure_holds_the_matrices():
    rng = np.random.default_rng(1)
    kernels = {"W_hh": rng.normal(size=(6, 6)), "W_xh": rng.normal(size=(6, 3))}
    figure = plot_kernels(kernels, 2, "t")
    shown = [image.get_array().filled(np.nan) for axes in figure.axes for image in axes.images]
    expected = [kernels["W_hh"], diagonal_strip(kernels["W_hh"], 2), kernels["W_xh"]]
    for found, array in zip(shown, expected, strict=True):
        np.testing.assert_array_equal(found, array)
    plot_kernels({"zero": np.zeros((1, 1))})


def test_command(recall_run, tmp_path, capsys, monkeypatch):
    from fairseq_rum.viz import kernels as viz

    drawn = {}
    monkeypatch.setattr(viz, "plot_kernels", lambda *a: drawn.update(a[0]) or plot_kernels(*a))
    run, out = recall_run("--rnn-unit", "rum"), str(tmp_path / "k.pdf")
    assert main(["plot", "kernels", "--checkpoint", f"x={run}", "--width", "2", "--out", out]) == 0
    assert "5 matrices of unit rnn.layers.0.cell (rum)" in capsys.readouterr().out
    weights = torch.load(run / "checkpoint_last.pt", weights_only=True)["model"]
    tau, u = weights["rnn.layers.0.cell.weight_hh"].chunk(2)
    np.testing.assert_array_equal(drawn["W_hh tau"], tau)
    np.testing.assert_array_equal(drawn["W_hh u"], u)
    arguments = ["plot", "kernels", "--checkpoint", str(run), "--out", out]
    for extra, message in (
        (["--unit", "encoder"], "--unit encoder: "),
        (["--width", "-1"], "--width must be at least 0"),
        (["--out", "k.bmp"], "k.bmp: the name must end in .png"),
    ):
        assert main([*arguments, *extra]) == 2
        assert message in capsys.readouterr().err


def test_a_trained_model(recall_run, monkeypatch):
    """The initial weights are those that training began with, the batch is its first."""
    seen, train_step = [], MemoryTask.train_step

    def watched(self, sample, **rest):
        seen.append(sample["id"].tolist())
        return train_step(self, sample, **rest)

    monkeypatch.setattr(MemoryTask, "train_step", watched)
    run = recall_run("--rnn-unit", "rum", "--rum-lambda", "1", "--max-update", 3)
    (trained,) = load(run / "checkpoint_last.pt")
    assert trained.label == run.name and not trained.model.training
    still = recall_run("--rnn-unit", "rum", "--rum-lambda", "1", "--lr", "0.0")
    (untrained,) = load(f"still={still}")
    assert untrained.label == "still"
    state = torch.get_rng_state()
    initial = trained.initial().state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in untrained.model.state_dict().items():
        assert torch.equal(initial[name], value)
        assert torch.equal(untrained.initial().state_dict()[name], value)
    assert not torch.equal(
        initial["output_projection.weight"], trained.model.output_projection.weight
    )
    sample = trained.first_batch()
    assert sample["id"].tolist() == seen[0]
    assert (trained.first_batch("valid")["target"] != sample["target"]).any()
    logits = trained.model(sample["net_input"]["src_tokens"])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), sample["target"].flatten())
    torch.testing.assert_close(trained.loss(trained.model, sample), loss)
    assert set(trained.probed(trained.model, sample).series()) == {"rnn.layers.0.cell"}


def test_language_models(char_data, tmp_path):
    """A task with data and with state that is carried between windows."""
    from conftest import USER_DIR, run_fairseq

    run_fairseq(
        "train", char_data, "--user-dir", USER_DIR, "--task", "stateful_language_modeling",
        "--arch", "rum_lm", "--decoder-hidden-size", 6, "--decoder-embed-dim", 4, "--batch-size",
        8, "--tokens-per-sample", 10, "--optimizer", "adam", "--max-update", 2, "--cpu",
        "--num-workers", 0, "--save-dir", tmp_path, "--decoder-layers", 2, "--disable-validation",
    )  # fmt: skip
    (trained,) = load(tmp_path)
    sample = trained.first_batch()
    series = trained.probed(trained.model, sample).series()
    assert [unit["h_norm"].shape for unit in series.values()] == [(8, 10)] * 2
    name, cell = module.pick_unit(trained.model, trained.path, None)
    assert name == "decoder.rnn.layers.0.cell" and isinstance(cell, RecurrentCell)


def test_what_is_no_trained_model(recall_run, tmp_path, capsys):
    def error(path):
        arguments = ["plot", "kernels", "--checkpoint", str(path), "--out", str(tmp_path / "a.png")]
        assert main(arguments) == 2
        return capsys.readouterr().err

    run = recall_run("--rnn-unit", "rum")
    assert "absent.pt: no such checkpoint" in error(tmp_path / "absent.pt")
    assert "checkpoint_last.pt: no such checkpoint" in error(tmp_path)
    text = tmp_path / "text.pt"
    text.write_text("no checkpoint")
    assert "text.pt is damaged or no checkpoint" in error(text)
    torch.save({"weights": torch.ones(2)}, tmp_path / "other.pt")
    assert "other.pt is damaged or no checkpoint" in error(tmp_path / "other.pt")
    state = torch.load(run / "checkpoint_last.pt", weights_only=True)
    state["cfg"]["task"]["_name"] = "unheard_of"
    torch.save(state, tmp_path / "task.pt")
    assert "task.pt: unknown task 'unheard_of'" in error(tmp_path / "task.pt")
    torch.save({**state, "cfg": None}, tmp_path / "bare.pt")
    assert "bare.pt: no checkpoint of fairseq-train" in error(tmp_path / "bare.pt")
