"""`--log-dynamics`: what is logged is what the units do, and the run is the same as without."""

import json
import math

import pytest
import torch

from fairseq_rum.data.dynamics_log import DYNAMICS_FILE, dynamics_line, read_dynamics
from fairseq_rum.data.training_log import read_log
from fairseq_rum.errors import InputError
from fairseq_rum.tasks import dynamics

RUM = ("--rnn-unit", "rum", "--rum-lambda", "1", "--rum-zoneout", 0.2, "--log-interval", 2)


def weights(run):
    return torch.load(run / "checkpoint_last.pt", weights_only=True)["model"]


def test_the_run_is_the_same_to_the_bit(recall_run):
    """Zoneout included, whose random numbers are those of the run without."""
    without, logged = weights(recall_run(*RUM)), weights(recall_run(*RUM, "--log-dynamics"))
    assert all(torch.equal(value, logged[name]) for name, value in without.items())


def test_what_is_logged(recall_run, monkeypatch):
    """Each number from the weights and the batch of its update, by autograd on a copy."""
    taken, look = [], dynamics.DynamicsLog.look

    def watched(self, sample, model, criterion, updates):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        taken.append((updates, before, sample["net_input"]["src_tokens"], sample["target"]))
        look(self, sample, model, criterion, updates)

    monkeypatch.setattr(dynamics.DynamicsLog, "look", watched)
    options = ("--rnn-unit", "rum", "--log-interval", 2, "--log-dynamics", "--max-update", 6)
    run = recall_run(*options)
    log, steps = read_log(run), read_dynamics(run / DYNAMICS_FILE)
    assert list(steps) == [2, 4, 6]
    from fairseq_rum.cells import build_cell

    for updates, state, tokens, target in taken[1::2]:
        cell = build_cell("rum", 13, 6)
        prefix = "rnn.layers.0.cell."
        cell.load_state_dict(
            {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
        )
        x = torch.nn.functional.one_hot(tokens, 13).float()
        states, cosines, gates = [cell.init_state(len(x))], [], []
        for t in range(x.shape[1]):
            projected = cell.project_input(x[:, t])
            seen = cell.observe(projected, states[-1])
            cosines.append(seen["cos_theta"])
            gates.append(seen["update_gate"])
            states.append(cell.step(projected, states[-1])[1])
        hidden = [state[0] for state in states[1:]]
        logits = hidden[-1] @ state["output_projection.weight"].T + state["output_projection.bias"]
        loss = torch.nn.functional.cross_entropy(logits, target.squeeze(1))
        gradients = torch.stack([g.norm() for g in torch.autograd.grad(loss, hidden)])
        norms = torch.stack([h.detach().norm(dim=-1) for h in hidden])
        (unit,) = steps[updates].values()
        assert unit["gradient"] == pytest.approx(gradients.tolist(), rel=1e-3)
        assert unit["h_norm"] == pytest.approx(norms.mean(1).tolist(), rel=1e-3)
        expected = {
            "cos_theta": torch.stack(cosines).mean(),
            "update_gate": torch.stack(gates).mean(),
            "h_norm": norms.mean(),
            "h_last_norm": norms[-1].mean(),
        }
        for name, value in expected.items():
            places, values = log.series("train_inner", name)
            assert places == [2, 4, 6]
            logged = values[places.index(updates)]
            assert logged == pytest.approx(value.item(), abs=1e-4), name
    assert log.series("train_inner", "gnorm")[0] == [2, 4, 6]


def test_units_without_angles_and_several_of_them(recall_run):
    run = recall_run("--rnn-unit", "lstm", "--num-layers", 2, "--log-dynamics")
    log = read_log(run)
    names = [name for name in log.metrics("train_inner") if "/" in name]
    assert names == ["0/h_last_norm", "0/h_norm", "1/h_last_norm", "1/h_norm"]
    assert set(read_dynamics(run / DYNAMICS_FILE)[1]) == {"0", "1"}


def test_off_is_off(recall_run, monkeypatch):
    def refused(*unused):
        raise AssertionError("probed without being asked to")

    monkeypatch.setattr(dynamics, "probe", refused)
    run = recall_run("--rnn-unit", "gru", "--max-update", 4)
    assert not (run / DYNAMICS_FILE).exists()
    assert "h_norm" not in read_log(run).metrics("train_inner")


def test_the_file(tmp_path):
    path = tmp_path / DYNAMICS_FILE
    lines = [
        dynamics_line(updates, {"": {"gradient": [value, math.nan, 1 / 3]}})
        for updates, value in ((100, 1.0), (200, 2.0), (300, 3.0), (200, 4.0))
    ]
    path.write_text("\n".join([*lines, lines[0][:20]]))  # resumed from 100, then killed
    records = read_dynamics(path)
    assert list(records) == [100, 200]
    values = records[200][""]["gradient"]
    assert values[0] == 4 and math.isnan(values[1]) and values[2] == 0.33333
    assert json.loads(lines[0])["units"][""]["gradient"][1] is None
    for text, message in (("", "nothing was logged yet"), ("1\n2\n", "line 1 is none of")):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_dynamics(path)
    with pytest.raises(InputError, match="absent: No such file"):
        read_dynamics(tmp_path / "absent")
