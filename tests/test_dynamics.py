"""`--log-dynamics`: what is logged is what the units do, and the run is the same as without."""

import json
import math

import pytest
import torch
from conftest import USER_DIR, log_file, run_fairseq

from fairseq_rum.data.dynamics_log import DYNAMICS_FILE, dynamics_line, read_dynamics
from fairseq_rum.data.training_log import read_log
from fairseq_rum.errors import InputError
from fairseq_rum.layers.probe import Probe, probe
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


def train_twice(tmp_path, *arguments):
    """Weights with and without ``--log-dynamics``, and what the run with it logged."""
    folders = [tmp_path / name for name in ("without", "with")]
    for folder, extra in zip(folders, ([], ["--log-dynamics"])):
        with log_file(folder) as log:
            run_fairseq("train", *arguments, "--log-format", "json", "--log-file", log,
                        "--log-interval", 2, "--save-dir", folder, *extra)  # fmt: skip
    first, second = map(weights, folders)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    return read_log(folders[1]), read_dynamics(folders[1] / DYNAMICS_FILE)


def test_language_models_with_carried_state(char_data, tmp_path):
    """Looking does not move the state that goes from window to window."""
    log, steps = train_twice(
        tmp_path, char_data, "--user-dir", USER_DIR, "--task", "stateful_language_modeling",
        "--arch", "rum_lm", "--decoder-hidden-size", 6, "--decoder-embed-dim", 4, "--batch-size",
        8, "--tokens-per-sample", 10, "--optimizer", "adam", "--lr", 0.01, "--max-update", 5,
        "--cpu", "--num-workers", 0, "--dropout", 0.3, "--disable-validation",
    )  # fmt: skip
    assert list(steps) == [2, 4] and len(steps[2][""]["gradient"]) == 10
    assert log.series("train_inner", "cos_theta")[0] == [2, 4]


def test_summarization(tmp_path):
    """p_gen, and steps of the decoder after the end of a summary, which only the model knows."""
    from summary_corpus import make_pairs, prepare, train_arguments

    pairs = make_pairs(12)
    pairs[1][0] += " after a very long time"
    data = prepare(tmp_path, pairs, valid=pairs)
    extra = ["--coverage", "--decoder-rnn-unit", "fast_slow", "--max-update", 4]
    arguments = train_arguments(data, tmp_path, *extra)
    seen, add_padding = [], Probe.pad
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Probe, "pad", lambda *a: seen.append(a[2]) or add_padding(*a))
        log, steps = train_twice(tmp_path, *arguments)
    assert any(mask.any() for mask in seen)
    metrics = log.metrics("train_inner")
    for name in ("p_gen", "coverage_penalty", "decoder.slow/cos_theta", "encoder.1/h_last_norm"):
        assert name in metrics
    updates, values = log.series("train_inner", "p_gen")
    assert updates == [2, 4] and all(0 < value < 1 for value in values)
    for record in steps.values():
        assert set(record) == {"encoder.0", "encoder.1", "decoder", "decoder.fast.0",
                               "decoder.fast.1", "decoder.slow"}  # fmt: skip


def test_questions(tmp_path):
    """A story's padding is known to the model, not to its units."""
    from test_babi_qa import SMALL, arguments, prepare

    data = prepare(tmp_path)
    options = (*SMALL, "--level", "word", "--max-update", 4, "--disable-validation")
    log, steps = train_twice(tmp_path, *arguments(data, tmp_path, *options))
    assert list(steps) == [2, 4]
    assert 0 < log.last("h_last_norm")


def test_padding_of_stories(tmp_path):
    from test_babi_qa import build, prepare

    task, model = build(prepare(tmp_path), "--level", "word")
    tokens = torch.full((2, 9), task.words.pad())
    tokens[0, :5], tokens[1] = 5, 6
    tokens[0, [2, 4]] = tokens[1, [3, 8]] = task.words.eos()
    with probe(model) as found:
        model(src_tokens=tokens, src_lengths=torch.tensor([5, 9]))
    (seen,) = found.series().values()
    assert seen["h_norm"].isnan().tolist() == [[False] * 5 + [True] * 4, [False] * 9]
