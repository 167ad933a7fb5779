"""rum_lm and stateful_language_modeling through fairseq's real commands, and their invariants."""

import logging
import math

import pytest
import torch
from conftest import TEXT, USER_DIR, run_fairseq, run_hydra
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_rum.cells import registered_cells
from fairseq_rum.errors import InputError

SMALL = ["--decoder-embed-dim", 8, "--decoder-hidden-size", 16]
WINDOW, ROWS = 18, 4  # the last window of a split is a short one


def train_arguments(data, save_dir, *extra, task="stateful_language_modeling"):
    return [
        data, "--user-dir", USER_DIR, "--task", task, "--arch", "rum_lm", *SMALL,
        "--criterion", "bits_per_token", "--optimizer", "adam", "--lr", 0.01, "--clip-norm", 1,
        "--tokens-per-sample", WINDOW, "--batch-size", ROWS, "--save-dir", save_dir,
        "--no-progress-bar", "--log-interval", 5, "--cpu", "--num-workers", 0, *extra,
    ]  # fmt: skip


def train(data, save_dir, *extra, **kwargs):
    run_fairseq("train", *train_arguments(data, save_dir, *extra, **kwargs))
    return save_dir / "checkpoint_last.pt"


def build(data, *extra, task="stateful_language_modeling"):
    """Task and model as fairseq-train builds them from these arguments."""
    parser = options.get_training_parser()
    arguments = [str(x) for x in train_arguments(data, "unused", *extra, task=task)]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(1)
    return task, task.build_model(cfg.model)


def parameters(path):
    return torch.load(path, weights_only=True)["model"]


@pytest.fixture(scope="module")
def trained(char_data, tmp_path_factory):
    """A checkpoint of three epochs, with two layers."""
    folder = tmp_path_factory.mktemp("trained")
    return train(
        char_data, folder, "--max-epoch", 3, "--decoder-layers", 2, "--no-epoch-checkpoints"
    )


def log_value(caplog, logger, name):
    """The last value of a metric that fairseq printed."""
    lines = [r.getMessage() for r in caplog.records if r.name == logger and name in r.getMessage()]
    return float(lines[-1].split(name)[1].split()[0].rstrip(",|"))


def test_training_learns_and_evaluation_agrees(char_data, tmp_path, caplog, capsys):
    caplog.set_level(logging.INFO)
    checkpoint = train(char_data, tmp_path, "--max-epoch", 5, "--sentence-avg")
    valid = log_value(caplog, "valid", "bpc ")
    assert valid < 3.0 < math.log2(24)
    loss = log_value(caplog, "valid", "| loss ")
    tokens = len(TEXT) * 10
    rows = ROWS * math.ceil(tokens / ROWS / WINDOW)
    assert loss == pytest.approx(valid * tokens / rows, rel=1e-3), "--sentence-avg divides by rows"

    common = [char_data, "--user-dir", USER_DIR, "--task", "stateful_language_modeling", "--cpu"]
    run_fairseq("eval-lm", *common, "--path", checkpoint, "--gen-subset", "valid",
                "--tokens-per-sample", WINDOW, "--no-progress-bar")  # fmt: skip
    message = next(r.getMessage() for r in caplog.records if "Loss (base 2)" in r.getMessage())
    assert float(message.split(": ")[1].split(",")[0]) == pytest.approx(valid, abs=1e-4)
    assert any(f"Evaluated {tokens:,} tokens" in r.getMessage() for r in caplog.records)

    run_fairseq("validate", *common, "--path", checkpoint, "--batch-size", ROWS,
                "--valid-subset", "valid", "--no-progress-bar")  # fmt: skip
    # This command takes over the root logger.
    assert f"| bpc {valid:g} |" in capsys.readouterr().out


@pytest.mark.parametrize("unit", registered_cells())
def test_any_unit_trains(char_data, tmp_path, caplog, unit):
    caplog.set_level(logging.INFO)
    train(char_data, tmp_path, "--rnn-unit", unit, "--max-update", 3, "--disable-validation")
    assert math.isfinite(log_value(caplog, "train", "bpc "))


def test_rum_options_reach_the_unit(char_data):
    _, model = build(
        char_data, "--rum-lambda", 1, "--rum-eta", 0.5, "--rum-activation", "tanh",
        "--rum-no-update-gate", "--rnn-backend", "naive",
    )  # fmt: skip
    layer = model.decoder.rnn.layers[0]
    cell = layer.cell
    assert (cell.lambda_, cell.eta, cell.activation, cell.update_gate) == (1, 0.5, "tanh", False)
    assert layer.backend == "naive"


@pytest.mark.parametrize("unit, extra", [("rum", ["--rum-lambda", 1]), ("rum", []), ("lstm", [])])
def test_carried_state_equals_one_long_pass(char_data, unit, extra):
    """In float64, over every split: windows with carried state = the whole stream at once."""
    task, model = build(char_data, "--rnn-unit", unit, "--decoder-layers", 2, *extra)
    model = model.double().eval()
    for split in ("train", "valid", "test"):
        task.load_dataset(split)
        stream = task.dataset(split)
        batches = task.get_batch_iterator(stream, max_sentences=3).next_epoch_itr()
        logits, inputs = [], []
        for sample in batches:
            sample = task.with_state(sample, training=False)
            logits.append(model(**sample["net_input"])[0])
            inputs.append(sample["net_input"]["src_tokens"])
        whole = model(torch.cat(inputs, dim=1))[0]
        real = torch.cat(inputs, dim=1).ne(task.dictionary.pad())
        assert (torch.cat(logits, dim=1) - whole)[real].abs().max() < 1e-12


def test_state_does_not_leak(char_data):
    """A pass over a split gives the same whatever ran before, and evaluation leaves training be."""
    task, model = build(char_data)
    model.eval()
    criterion = task.build_criterion(criterion_config())
    for split in ("train", "valid", "test"):
        task.load_dataset(split)

    def evaluate(split):
        batches = task.get_batch_iterator(task.dataset(split), max_sentences=ROWS)
        return [task.valid_step(s, model, criterion)[0].item() for s in batches.next_epoch_itr()]

    first = evaluate("valid")
    evaluate("test")
    assert evaluate("valid") == first
    training = task.get_batch_iterator(task.dataset("train"), max_sentences=ROWS).next_epoch_itr()
    samples = [next(training) for _ in range(3)]
    states = []
    for interrupt in (False, True):
        for sample in samples:
            model(**task.with_state(sample, training=True)["net_input"])
            if interrupt:
                evaluate("valid")
        states.append(task._carried[True].final_states())
    assert torch.equal(states[0][0][0], states[1][0][0])


def criterion_config():
    from fairseq.criterions.cross_entropy import CrossEntropyCriterionConfig
    from omegaconf import OmegaConf

    return OmegaConf.create(
        {**CrossEntropyCriterionConfig().__dict__, "_name": "bits_per_token", "sentence_avg": False}
    )


@pytest.mark.parametrize("extra", [[], ["--rum-lambda", 1, "--update-freq", 2, "--dropout", 0.2]])
def test_resume_in_the_middle_of_an_epoch_is_bit_for_bit(char_data, tmp_path, extra):
    whole = train(char_data, tmp_path / "whole", "--max-update", 14, *extra)
    train(char_data, tmp_path / "parts", "--max-update", 8, *extra)
    resumed = train(char_data, tmp_path / "parts", "--max-update", 14, *extra)
    expected, found = parameters(whole), parameters(resumed)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    saved = torch.load(resumed, weights_only=True)["extra_state"]["StatefulLanguageModelingTask"]
    assert saved["next_window"] == 14 * (2 if extra else 1)
    assert saved["states"][0][0].shape == (ROWS, 16)


def test_resume_with_other_streams_is_refused(char_data, tmp_path):
    train(char_data, tmp_path, "--max-update", 4)
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    for rows, window in ((2, 18), (16, 18), (4, 60)):
        other = ["--batch-size", rows, "--tokens-per-sample", window]
        with pytest.raises(InputError, match=f"4 streams .* this run has .* {rows} and {window}"):
            train(char_data, tmp_path, "--max-update", 6, *other)
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
    train(char_data, tmp_path, "--max-update", 6, "--batch-size", 2, "--reset-dataloader")


def test_missing_state_is_told(char_data, tmp_path):
    """A checkpoint of fairseq's own task within an epoch has no state to continue from."""
    checkpoint = train(char_data, tmp_path, "--max-update", 4)
    state = torch.load(checkpoint, weights_only=True)
    del state["extra_state"]["StatefulLanguageModelingTask"]
    torch.save(state, checkpoint)
    with pytest.raises(RuntimeError, match="no hidden state for window 4"):
        train(char_data, tmp_path, "--max-update", 6)


def test_any_batch_size_evaluates_every_token(trained, char_data, caplog):
    """--batch-size 1 is the exact protocol; more rows start colder, on the same targets."""
    caplog.set_level(logging.INFO)
    for rows in (1, 5):
        caplog.clear()
        run_fairseq(
            "eval-lm", char_data, "--user-dir", USER_DIR, "--task", "stateful_language_modeling",
            "--path", trained, "--gen-subset", "test", "--tokens-per-sample", WINDOW, "--cpu",
            "--batch-size", rows, "--no-progress-bar",
        )  # fmt: skip
        messages = [r.getMessage() for r in caplog.records]
        assert any(f"Evaluated {len(TEXT) * 5:,} tokens" in m for m in messages)


def test_fairseqs_own_task(char_data, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    # fairseq 0.12.3 drops the last batch of an evaluation with its default multiple of 8.
    extra = ["--max-epoch", 2, "--sample-break-mode", "eos", "--required-batch-size-multiple", 1]
    checkpoint = train(char_data, tmp_path, *extra, task="language_modeling")
    valid = log_value(caplog, "valid", "bpc ")
    run_fairseq(
        "eval-lm", char_data, "--user-dir", USER_DIR, "--task", "language_modeling", "--path",
        checkpoint, "--gen-subset", "valid", "--sample-break-mode", "eos", "--cpu", "--batch-size",
        8, "--no-progress-bar",
    )  # fmt: skip
    message = next(r.getMessage() for r in caplog.records if "Loss (base 2)" in r.getMessage())
    assert float(message.split(": ")[1].split(",")[0]) == pytest.approx(valid, abs=1e-3)


def test_adaptive_softmax(char_data, tmp_path):
    arguments = ["--criterion", "adaptive_loss", "--adaptive-softmax-cutoff", "10",
                 "--ddp-backend", "legacy_ddp", "--max-update", 3]  # fmt: skip
    path = train(char_data, tmp_path, *arguments)
    names = parameters(path)
    assert any("adaptive_softmax" in name for name in names)
    assert not any("output_projection" in name for name in names)


def test_tied_embeddings(char_data, tmp_path):
    saved = parameters(
        train(char_data, tmp_path, "--share-decoder-input-output-embed", "--max-update", 2)
    )
    embedding = saved["decoder.embed_tokens.weight"]
    assert torch.equal(embedding, saved["decoder.output_projection.weight"])
    assert saved["decoder.project_out.weight"].shape == (8, 16)


@pytest.mark.parametrize("extra", [[], ["--rum-lambda", 1], ["--rnn-unit", "lstm"]])
def test_incremental_decoding_is_the_full_pass(char_data, extra):
    task, model = build(char_data, "--decoder-layers", 2, *extra)
    decoder = model.double().eval().decoder
    tokens = torch.randint(4, len(task.dictionary), (6, 9))
    order = torch.tensor([3, 3, 0, 5, 1, 1])
    incremental = {}
    for t in range(5):
        step = decoder(tokens[:, : t + 1], incremental_state=incremental)[0]
        assert (step[:, -1] - decoder(tokens)[0][:, t]).abs().max() < 1e-12
    decoder.reorder_incremental_state_scripting(incremental, order)
    tokens = torch.cat([tokens[order, :5], tokens[:, 5:]], dim=1)
    for t in range(5, 9):
        step = decoder(tokens[:, : t + 1], incremental_state=incremental)[0]
        assert (step[:, -1] - decoder(tokens)[0][:, t]).abs().max() < 1e-12


def test_prefix_of_several_tokens(char_data):
    task, model = build(char_data)
    decoder = model.double().eval().decoder
    tokens = torch.randint(4, len(task.dictionary), (2, 6))
    incremental = {}
    prefix = decoder(tokens[:, :4], incremental_state=incremental)[0]
    last = decoder(tokens[:, :5], incremental_state=incremental)[0]
    whole = decoder(tokens)[0]
    assert (prefix - whole[:, :4]).abs().max() < 1e-12
    assert (last[:, 0] - whole[:, 4]).abs().max() < 1e-12


def test_generation(trained, char_data, capsys, monkeypatch, tmp_path):
    """fairseq-generate and fairseq-interactive; typed text goes through the character codec."""
    common = [char_data, "--user-dir", USER_DIR, "--path", trained, "--cpu", "--beam", 3]
    for task in ("stateful_language_modeling", "language_modeling"):
        prompts = tmp_path / "prompts"
        prompts.write_text("the cat\nwho sat ")
        codec = [] if task == "stateful_language_modeling" else ["--bpe", "rum_characters"]
        run_fairseq("interactive", *common, *codec, "--task", task, "--input", prompts)
        out = capsys.readouterr().out
        completions = [line.split("\t")[2] for line in out.splitlines() if line.startswith("D-")]
        assert len(completions) == 2
        assert completions[0].startswith("the cat") and completions[1].startswith("who sat ")
    run_fairseq("generate", *common, "--task", "language_modeling", "--gen-subset", "test",
                "--sample-break-mode", "eos", "--batch-size", 4, "--max-len-b", 60)  # fmt: skip
    assert "Generate test with beam=3" in capsys.readouterr().out


def test_hub(trained, char_data):
    from fairseq_rum.models import RumLanguageModel

    hub = RumLanguageModel.from_pretrained(
        str(trained.parent), trained.name, data_name_or_path=str(char_data)
    )
    hub.eval()
    line = "the cat sat on the mat, and the dog sat on the log."
    scores = hub.score([line, "the tac sat on the mat, and the god sat on the log."])
    assert len(scores[0]["positional_scores"]) == len(line)
    assert scores[0]["score"] > scores[1]["score"]
    assert hub.decode(hub.encode(line)) == line
    torch.manual_seed(0)
    assert hub.sample("the cat", beam=1, sampling=True, max_len_b=40).startswith("the cat")


def test_hydra_config_is_the_arch(char_data, tmp_path, monkeypatch):
    """The YAML and ``--arch rum_lm`` give the same model: same parameters after two updates."""

    hydra = run_hydra(
        "language_model", "rum_lm", tmp_path, f"task.data={char_data}", "dataset.batch_size=4",
        "task.tokens_per_sample=20", "dataset.num_workers=0",
    )  # fmt: skip
    run_fairseq(
        "train", char_data, "--user-dir", USER_DIR, "--task", "stateful_language_modeling",
        "--arch", "rum_lm", "--criterion", "bits_per_token", "--sentence-avg", "--optimizer",
        "adam", "--lr", 0.002, "--clip-norm", 1.0, "--tokens-per-sample", 20, "--batch-size", 4,
        "--max-update", 2, "--save-dir", tmp_path / "flags", "--cpu", "--num-workers", 0,
        "--no-progress-bar",
    )  # fmt: skip
    hydra = parameters(hydra)
    flags = parameters(tmp_path / "flags" / "checkpoint_last.pt")
    assert hydra.keys() == flags.keys()
    assert all(torch.equal(hydra[name], flags[name]) for name in flags)


def test_checkpoint_is_plain_data(trained):
    """Loads with weights_only and builds the same model anew."""
    models, cfg, _ = checkpoint_utils.load_model_ensemble_and_task([str(trained)])
    assert cfg.model._name == "rum_lm" and cfg.model.criterion_name == "bits_per_token"
    saved = parameters(trained)
    assert all(torch.equal(saved[k], v) for k, v in models[0].state_dict().items())


def test_final_newline_is_no_target_when_the_text_has_none(tmp_path):
    from fairseq_rum.cli.main import main

    (tmp_path / "train").write_text("ab\nba")
    data = tmp_path / "data-bin"
    assert main(["prepare", "chars", "--trainpref", str(tmp_path / "train"),
                 "--destdir", str(data)]) == 0  # fmt: skip
    task, _ = build(data)
    task.load_dataset("train")
    tokens = task.dataset("train").tokens(0, len(task.dataset("train")))
    assert task.dictionary.string(tokens, include_eos=True) == "a b </s> b a"
