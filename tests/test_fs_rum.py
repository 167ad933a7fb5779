"""fs_rum: what test_language_model.py says of rum_lm holds for it, and what it alone promises."""

import logging
import math

import pytest
import test_language_model as lm
import torch
from conftest import TEXT, USER_DIR, run_fairseq, run_hydra
from omegaconf import OmegaConf
from test_language_model import build, log_value, parameters, train

from fairseq_rum.cells import GRUCell, LSTMCell, registered_cells
from fairseq_rum.errors import InputError
from fairseq_rum.models.fs_rum import FastSlowLanguageModel, FastSlowLanguageModelConfig

SMALL = [*lm.SMALL, "--arch", "fs_rum", "--slow-hidden-size", 12]
LAMBDA_1 = ["--rum-lambda", 1]
FOUR_LSTM = ["--fast-cells", 4, "--slow-rnn-unit", "lstm"]


@pytest.fixture(autouse=True, scope="module")
def fs_rum():
    """The helpers of test_language_model.py build and train fs_rum: a later --arch counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm, "SMALL", SMALL)
        yield


@pytest.fixture(scope="module")
def trained(char_data, tmp_path_factory, fs_rum):
    folder = tmp_path_factory.mktemp("trained")
    return train(char_data, folder, "--max-epoch", 2, "--dropout", 0.1, "--batch-size", 16)


@pytest.mark.parametrize("extra", [[], LAMBDA_1, FOUR_LSTM], ids=["k=2", "lambda=1", "k=4"])
def test_carried_state_equals_one_long_pass(char_data, extra):
    """In float64, over every split: windows with carried state = the whole streams at once.

    A product of 18 rows may round in another way than one of 82, and at its initial values the
    model lets a difference of 1e-14 grow to 1 within 400 steps. So the gains of the layer
    normalizations are shrunk, and the streams are short ones.
    """
    task, model = build(char_data, "--decoder-layers", 2, *extra)
    model = model.double().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("norm_gain"):
            parameter.data.mul_(0.3)
    for split, rows in (("train", 60), ("valid", 10), ("test", 5)):
        task.load_dataset(split)
        logits, inputs = [], []
        batches = task.get_batch_iterator(task.dataset(split), max_sentences=rows)
        for sample in batches.next_epoch_itr():
            sample = task.with_state(sample, training=False)
            logits.append(model(**sample["net_input"])[0])
            inputs.append(sample["net_input"]["src_tokens"])
        assert len(logits) == 5
        inputs = torch.cat(inputs, dim=1)
        difference = (torch.cat(logits, dim=1) - model(inputs)[0]).abs()
        assert difference[inputs.ne(task.dictionary.pad())].max() < 1e-12


def test_state_does_not_leak(char_data):
    lm.test_state_does_not_leak(char_data)


def test_resume_in_the_middle_of_an_epoch_is_bit_for_bit(char_data, tmp_path):
    """With dropout .35 and zoneout on."""
    lm.test_resume_in_the_middle_of_an_epoch_is_bit_for_bit(char_data, tmp_path, [])


@pytest.mark.parametrize("extra", [[], FOUR_LSTM], ids=["k=2", "k=4"])
def test_incremental_decoding_is_the_full_pass(char_data, extra):
    lm.test_incremental_decoding_is_the_full_pass(char_data, extra)


def test_generation(trained, char_data, capsys, monkeypatch, tmp_path):
    lm.test_generation(trained, char_data, capsys, monkeypatch, tmp_path)


def bits(caplog):
    """What fairseq-eval-lm found."""
    message = next(r.getMessage() for r in caplog.records if "Loss (base 2)" in r.getMessage())
    return float(message.split(": ")[1].split(",")[0])


def test_it_learns_and_evaluation_without_noise_agrees(trained, char_data, caplog):
    caplog.set_level(logging.INFO)
    valid = torch.load(trained, weights_only=True)["extra_state"]["val_loss"]
    assert valid < math.log2(24)
    run_fairseq(
        "eval-lm", char_data, "--user-dir", USER_DIR, "--task", "stateful_language_modeling",
        "--path", trained, "--gen-subset", "valid", "--tokens-per-sample", lm.WINDOW, "--cpu",
        "--no-progress-bar",
    )  # fmt: skip
    assert bits(caplog) == pytest.approx(valid, abs=1e-3)


def test_fairseqs_own_task(char_data, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    lines = ["--task", "language_modeling", "--sample-break-mode", "eos"]
    path = train(
        char_data, tmp_path, *lines, "--required-batch-size-multiple", 1, "--max-update", 3
    )
    valid = log_value(caplog, "valid", "bpc ")
    run_fairseq(
        "eval-lm", char_data, "--user-dir", USER_DIR, *lines, "--path", path, "--cpu",
        "--gen-subset", "valid", "--batch-size", 10, "--no-progress-bar",
    )  # fmt: skip
    assert bits(caplog) == pytest.approx(valid, abs=1e-3)


def test_twenty_streams_are_twenty_texts(char_data):
    """No target is dropped, and the batch of 20 says of its pieces what batch 1 says of each.

    The streams differ in length by one token at most; the shorter ones end with padding, which is
    no target. So all that batch 20 does to the BPC is that 20 pieces start without a past.
    """
    task, model = build(char_data)
    model = model.double().eval()
    task.load_dataset("valid")
    stream, pad = task.dataset("valid"), task.dictionary.pad()

    def run(rows):
        batches = task.get_batch_iterator(stream, max_sentences=rows).next_epoch_itr()
        samples, logits = [], []
        for sample in batches:
            samples.append(task.with_state(sample, training=False))
            logits.append(model(**samples[-1]["net_input"])[0])
        inputs = torch.cat([s["net_input"]["src_tokens"] for s in samples], 1)
        target = torch.cat([s["target"] for s in samples], 1)
        losses = torch.nn.functional.cross_entropy(
            torch.cat(logits, 1).transpose(1, 2), target, ignore_index=pad, reduction="none"
        )
        return inputs, target, losses

    inputs, target, losses = run(20)
    assert int(target.ne(pad).sum()) == len(stream) == len(TEXT) * 10
    for row in range(20):
        length = int(target[row].ne(pad).sum())
        alone = model(inputs[row : row + 1, :length])[0]
        expected = torch.nn.functional.cross_entropy(
            alone[0], target[row, :length], reduction="none"
        )
        assert (losses[row, :length] - expected).abs().max() < 1e-12
    _, single, exact = run(1)
    assert torch.equal(single[0], target[target.ne(pad)]), "the same targets in the same order"
    first = int(target[0].ne(pad).sum())
    assert (exact[0, :first] - losses[0, :first]).abs().max() < 1e-12


def test_every_slow_unit(char_data):
    task, _ = build(char_data)
    tokens = torch.randint(4, len(task.dictionary), (2, 5))
    sizes = {"decoder_embed_dim": 8, "decoder_hidden_size": 16, "slow_hidden_size": 12}
    for unit in set(registered_cells()) - {"fast_slow"}:
        options = {**vars(FastSlowLanguageModelConfig()), **sizes, "slow_rnn_unit": unit}
        cfg = OmegaConf.create({"model": options, "criterion": {"_name": "bits_per_token"}})
        model = FastSlowLanguageModel.build_model(cfg.model, task)
        model(tokens)[0].square().sum().backward()
        cell = model.decoder.rnn.layers[0].cell
        assert cell.slow.unit == unit
        assert any(p.grad.any() for p in cell.slow.parameters())


def test_defaults_of_the_architecture(char_data):
    _, model = build(char_data)
    decoder = model.decoder
    cell = decoder.rnn.layers[0].cell
    assert [c.unit for c in (*cell.fast, cell.slow)] == ["lstm", "lstm", "rum"]
    assert decoder.dropout == cell.dropout == 0.35
    for fast in cell.fast:
        assert (fast.layer_norm, fast.zoneout, fast.zoneout_cell) == (True, 0.1, 0.5)
    slow = cell.slow
    assert (slow.lambda_, slow.eta, slow.activation, slow.update_gate) == (0, 1.0, "relu", True)
    assert (slow.layer_norm, slow.layer_norm_gate, slow.zoneout) == (True, "before", 0.1)
    assert build(char_data, "--dropout", 0.2)[1].decoder.rnn.layers[0].cell.dropout == 0.2
    assert build(char_data, "--fast-slow-dropout", 0)[1].decoder.rnn.layers[0].cell.dropout == 0


def test_a_switch_that_is_on_stays_on(char_data):
    cell = build(char_data, "--lstm-layer-norm", "--rum-layer-norm")[1].decoder.rnn.layers[0].cell
    assert cell.fast[0].layer_norm and cell.slow.layer_norm


def test_what_the_architecture_sets_for_another_unit_is_left_out(char_data):
    cell = build(char_data, "--slow-rnn-unit", "goru")[1].decoder.rnn.layers[0].cell
    assert cell.slow.unit == "goru"
    with pytest.raises(InputError, match="--rum-eta is an option of unit 'rum', but .* goru, lstm"):
        build(char_data, "--slow-rnn-unit", "goru", "--rum-eta", 0.5)
    with pytest.raises(InputError, match="--slow-rnn-unit: unknown unit 'tree'"):
        build(char_data, "--slow-rnn-unit", "tree")


def orthogonal(weight):
    """Orthonormal columns or rows, whichever are fewer."""
    if weight.shape[0] < weight.shape[1]:
        weight = weight.t()
    return torch.allclose(weight.t() @ weight, torch.eye(weight.shape[1]), atol=1e-5)


def test_kernels_embedding_and_softmax_are_orthogonal(char_data):
    task, model = build(char_data)
    cell = model.decoder.rnn.layers[0].cell
    for fast in cell.fast:
        assert orthogonal(fast.weight_ih) and orthogonal(fast.weight_hh)
        assert not fast.bias_ih.any() and not fast.bias_hh.any()
        assert torch.equal(fast.norm_shift[16:32], torch.ones(16)), "the forget bias"
    n = cell.slow.hidden_size
    for weight in (cell.slow.weight_ih, cell.slow.weight_hh):
        assert all(orthogonal(block) for block in weight.split(n))
    embedding = model.decoder.embed_tokens.weight.clone()
    assert not embedding[task.dictionary.pad()].any()
    assert orthogonal(model.decoder.output_projection.weight)


def test_orthogonal_kernels_of_single_units(char_data):
    for unit, kind in (("lstm", LSTMCell), ("gru", GRUCell)):
        _, model = build(char_data, "--arch", "rum_lm", "--slow-hidden-size", 12, "--rnn-unit",
                         "fast_slow", "--fast-rnn-unit", unit, "--orthogonal-kernels")  # fmt: skip
        fast = model.decoder.rnn.layers[0].cell.fast[0]
        assert isinstance(fast, kind) and orthogonal(fast.weight_ih)
        assert fast.bias_ih.sum() == (16 if unit == "lstm" else 0), "the forget gate's"
    with pytest.raises(InputError, match="--orthogonal-kernels: this model has neither"):
        build(char_data, "--arch", "rum_lm", "--slow-hidden-size", 12, "--rnn-unit", "fast_slow",
              "--fast-rnn-unit", "rum", "--orthogonal-kernels")  # fmt: skip


def test_hydra_trains_the_same_model(char_data, tmp_path):
    """fairseq-hydra-train and --arch: the same parameters after two updates."""
    hydra = run_hydra(
        "language_model", "fs_rum_tiny", tmp_path, f"task.data={char_data}", "dataset.batch_size=4",
        "task.tokens_per_sample=20", "dataset.num_workers=0",
    )  # fmt: skip
    run_fairseq(
        "train", char_data, "--user-dir", USER_DIR, "--task", "stateful_language_modeling",
        "--arch", "fs_rum_tiny", "--criterion", "bits_per_token", "--sentence-avg", "--optimizer",
        "adam", "--lr-scheduler", "phases", "--lr", "0.002,0.0001,0.00001", "--phase-epochs",
        "180,60,120", "--clip-norm", 1.0, "--tokens-per-sample", 20, "--batch-size", 4,
        "--max-update", 2, "--save-dir", tmp_path / "flags", "--cpu", "--num-workers", 0,
        "--no-progress-bar",
    )  # fmt: skip
    hydra = parameters(hydra)
    flags = parameters(tmp_path / "flags" / "checkpoint_last.pt")
    assert hydra.keys() == flags.keys()
    assert all(torch.equal(hydra[name], flags[name]) for name in flags)
