"""babi_qa, rum_qa and answer_accuracy: through fairseq's commands, and number by number."""

import json
import logging

import pytest
import torch
from conftest import ROOT, USER_DIR, run_fairseq, run_hydra
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from omegaconf import OmegaConf
from test_babi_data import NAMES, PLACES, story

from fairseq_rum.cells import registered_cells
from fairseq_rum.cli.main import main
from fairseq_rum.criterions import AnswerAccuracyCriterion
from fairseq_rum.data.training_log import parse_line
from fairseq_rum.errors import DivergenceError, InputError

TEST = (
    story("Ann", "attic", "barn")
    + "1 Is it Ann?\tattic\n"
    + story("Quentin", "attic", "barn")
    + story("Ann", "moon", "den")
    + "".join(f"{i} Ann went to the den.\n" for i in range(1, 31))
    + "31 Where is Ann?\tden\n"
)
"""An empty story, unknown words, an answer that training lacks, a story longer than any there."""


def prepare(folder, task=1, names=NAMES, places=PLACES):
    files = folder / "babi" / "en"
    files.mkdir(parents=True, exist_ok=True)
    stories = [story(names[i % 5], places[i % 4], places[(i + 1) % 4]) for i in range(60)]
    (files / f"qa{task}_x_train.txt").write_text("".join(stories))
    (files / f"qa{task}_x_test.txt").write_text(TEST)
    destination = folder / f"data{task}"
    assert main(["prepare", "babi", "--path", str(folder / "babi"), "--size", "en", "--tasks",
                 str(task), "--destdir", str(destination)]) == 0  # fmt: skip
    return destination / f"qa{task}"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """108 questions to train on, 12 to validate with, 8 to test."""
    return prepare(tmp_path_factory.mktemp("babi"))


SMALL = ["--embed-dim", 12, "--hidden-size", 16]


def arguments(data, save_dir, *extra):
    return [
        data, "--user-dir", USER_DIR, "--task", "babi_qa", "--arch", "rum_qa", "--criterion",
        "answer_accuracy", "--optimizer", "adam", "--lr", 0.001, "--batch-size", 32,
        "--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric",
        "--save-dir", save_dir, "--log-format", "json", "--no-epoch-checkpoints", "--cpu",
        "--num-workers", 0, "--data-buffer-size", 0, *extra,
    ]  # fmt: skip


def train(data, save_dir, *extra):
    run_fairseq("train", *arguments(data, save_dir, *extra))
    return save_dir / "checkpoint_last.pt"


def build(data, *extra):
    """Task and model as fairseq-train builds them from these arguments."""
    parser = options.get_training_parser()
    command = [str(x) for x in arguments(data, "unused", *SMALL, *extra)]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, command))
    task = tasks.setup_task(cfg.task)
    return task, task.build_model(cfg.model)


def logged(caplog, logger):
    return [parse_line(r.getMessage())[1] for r in caplog.records if r.name == logger]


def validate(capsys, data, checkpoint, *extra, split="test"):
    """What fairseq-validate says of a split."""
    run_fairseq("validate", data, "--user-dir", USER_DIR, "--task", "babi_qa", "--path", checkpoint,
                "--valid-subset", split, "--batch-size", 5, "--cpu", "--num-workers", 0,
                "--log-format", "json", *extra)  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in reversed(lines) if f"{split}_accuracy" in line)
    return json.loads(line[line.index("{") :])


def parameters(path):
    return torch.load(path, weights_only=True)["model"]


# --- through fairseq's commands


@pytest.mark.parametrize(
    "extra",
    [
        ["--rum-lambda", 1],
        ["--level", "word", "--rnn-unit", "gru"],
        ["--attention", "rotation", "--sentence-embedding", "position"],
    ],
)
def test_it_learns(data, tmp_path, caplog, extra):
    caplog.set_level(logging.INFO)
    train(data, tmp_path, "--max-epoch", 30, "--lr", 0.01, "--validate-interval", 10,
          "--hidden-size", 32, "--no-save", *extra)  # fmt: skip
    points, valid = logged(caplog, "train"), logged(caplog, "valid")
    assert points[-1]["loss"] < 0.5 * points[0]["loss"]
    assert valid[-1]["accuracy"] > 80, "25% by chance"


@pytest.mark.parametrize("unit", registered_cells())
def test_any_unit_trains(data, tmp_path, caplog, unit):
    caplog.set_level(logging.INFO)
    train(data, tmp_path, *SMALL, "--rnn-unit", unit, "--max-update", 2, "--disable-validation",
          "--no-save")  # fmt: skip
    assert 0 < logged(caplog, "train")[-1]["loss"] < 10


def test_validate_counts_every_question(data, tmp_path, caplog, capsys):
    """Batches of 5 and 3; an answer that training lacks counts as wrong."""
    caplog.set_level(logging.INFO)
    checkpoint = train(data, tmp_path, *SMALL, "--max-epoch", 12, "--lr", 0.01)
    found = validate(capsys, data, checkpoint)
    task, model = build(data)
    model.load_state_dict(parameters(checkpoint))
    task.load_dataset("test")
    sample = task.dataset("test").collater(range(8))
    guesses = model(**sample["net_input"]).argmax(1)
    right = guesses.eq(sample["target"])
    assert sample["target"].tolist().count(-100) == 1 and 0 < right.sum() < 8
    assert float(found["test_accuracy"]) == pytest.approx(12.5 * int(right.sum()))
    valid = logged(caplog, "valid")[-1]
    again = validate(capsys, data, checkpoint, split="valid")
    assert float(again["valid_loss"]) == pytest.approx(valid["loss"], rel=1e-4)
    assert float(again["valid_accuracy"]) == pytest.approx(valid["accuracy"], abs=0.01)


def test_resume_is_bit_for_bit(data, tmp_path):
    """From the middle of epoch 1 into epoch 3 (4 updates each, in another order each)."""
    whole = train(data, tmp_path / "whole", *SMALL, "--max-update", 10)
    train(data, tmp_path / "parts", *SMALL, "--max-update", 3)
    resumed = train(data, tmp_path / "parts", *SMALL, "--max-update", 10)
    expected, found = parameters(whole), parameters(resumed)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_run_that_diverges_ends_with_a_sentence(data, tmp_path):
    with pytest.raises(DivergenceError, match="training diverged at update .* the units are rum: "):
        train(data, tmp_path, *SMALL, "--optimizer", "sgd", "--lr", 1e9, "--max-update", 20,
              "--no-save")  # fmt: skip


def test_early_stopping(data, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    checkpoint = train(data, tmp_path, *SMALL, "--patience", 2, "--lr", 0.02, "--max-epoch", 200)
    accuracies = [point["accuracy"] for point in logged(caplog, "valid")]
    assert len(accuracies) < 200 and max(accuracies[-2:]) <= max(accuracies[:-2])
    best = torch.load(checkpoint.with_name("checkpoint_best.pt"), weights_only=True)
    epoch = max(i for i, each in enumerate(accuracies, 1) if each == max(accuracies))
    assert best["extra_state"]["train_iterator"]["epoch"] == epoch + 1, "the next one to train"


def test_fairseqs_own_criterion(data, tmp_path, caplog):
    """cross_entropy, fairseq's default, logs the same loss in bits."""
    caplog.set_level(logging.INFO)
    common = [*SMALL, "--max-update", 4, "--no-save"]
    train(data, tmp_path, *common)
    train(data, tmp_path, *common, "--criterion", "cross_entropy", "--best-checkpoint-metric",
          "loss", "--sentence-avg")  # fmt: skip
    nats, bits = logged(caplog, "valid")
    assert bits["loss"] * 0.693147 == pytest.approx(nats["loss"], abs=2e-3)


def test_another_data_directory_is_refused(data, tmp_path, capsys):
    checkpoint = train(data, tmp_path / "a", *SMALL, "--max-update", 1)
    words = prepare(tmp_path, 2, names=["Gus", "Hal", "Ida", "Jo", "Ken"])
    with pytest.raises(InputError, match="trained with another dictionary"):
        validate(capsys, words, checkpoint)
    answers = prepare(tmp_path, 3, places=["barn", "attic", "den", "cellar"])
    lines = (data / "answer" / "dict.txt").read_text().splitlines()
    (answers / "answer" / "dict.txt").write_text("\n".join(lines[::-1]) + "\n")
    for part in ("story", "question"):
        (answers / part / "dict.txt").write_bytes((data / part / "dict.txt").read_bytes())
    with pytest.raises(InputError, match="trained with another dictionary"):
        validate(capsys, answers, checkpoint)


PROTOCOL = ["--rum-lambda", 1, "--patience", 10, "--max-epoch", 100, "--log-interval", 100]


def test_hydra_config_has_the_values_of_the_command_line(data):
    parser = options.get_training_parser()
    command = [str(x) for x in arguments(data, "unused", *PROTOCOL)]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, command))
    sections = OmegaConf.load(ROOT / "user_dir_configs" / "question_answering" / "babi.yaml")
    for section, values in sections.items():
        for key in values:
            if key not in ("user_dir", "save_dir", "data"):
                assert cfg[section][key] == values[key], f"{section}.{key}"


def test_hydra_trains_the_same_model(data, tmp_path):
    hydra = run_hydra("question_answering", "babi", tmp_path, f"task.data={data}")
    flags = train(data, tmp_path / "flags", *PROTOCOL, "--max-update", 2)
    expected, found = parameters(flags), parameters(hydra)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.parametrize(
    "extra, message",
    [
        (["--level", "letter"], "--level: unknown 'letter', choose one of sentence, word"),
        (["--attention", "hard"], "--attention: unknown 'hard', choose one of none, dot, general"),
        (
            ["--sentence-embedding", "max"],
            "--sentence-embedding: unknown 'max', choose one of mean",
        ),
        (["--level", "word", "--attention", "dot"], "--attention dot needs --level sentence"),
        (["--level", "word", "--sentence-embedding", "sum"], "--sentence-embedding needs --level"),
        (["--hidden-size", 0], "--hidden-size must be at least 1, got 0"),
        (["--embed-dim", 0], "--embed-dim must be at least 1, got 0"),
        (["--num-layers", 0], "--num-layers must be at least 1, got 0"),
        (["--reproduce-padding", 0], "--reproduce-padding must be at least 1, got 0"),
        (["--dropout", 1], "--dropout must lie in"),
        (["--rnn-unit", "lstm", "--rum-lambda", 1], "--rum-lambda is an option of unit 'rum'"),
        (["--rnn-unit", "rnn"], "--rnn-unit: unknown unit 'rnn'"),
    ],
)
def test_bad_options(data, extra, message):
    with pytest.raises(InputError, match=message):
        build(data, *extra)


def test_another_unit_in_the_named_architecture(data):
    _, model = build(data, "--arch", "rum_babi", "--rnn-unit", "gru")
    assert model.rnn.layers[0].cell.unit == "gru"


def test_bad_data(data, tmp_path):
    with pytest.raises(InputError, match="no data directory '/no/such'"):
        build("/no/such")
    with pytest.raises(InputError, match="no dictionary .*is this a directory of fairseq-rum pre"):
        build(tmp_path)
    task, _ = build(data)
    with pytest.raises(InputError, match="no split 'other' in the data directory"):
        task.load_dataset("other")
    with pytest.raises(InputError, match="give --batch-size"):
        task.load_dataset("valid")
        task.get_batch_iterator(task.dataset("valid"))
    with pytest.raises(InputError, match="--arch rum_qa needs --task babi_qa"):
        run_fairseq("train", "--user-dir", USER_DIR, "--task", "copying_memory", "--arch", "rum_qa",
                    "--criterion", "answer_accuracy", "--cpu", "--batch-size", 8)  # fmt: skip


# --- number by number


def model_and_sample(data, *extra):
    """In float64, with 20 questions about stories of one sentence to three."""
    task, model = build(data, *extra)
    task.load_dataset("test")
    task.load_dataset("train")
    return model.double().eval(), task.dataset("train"), task.dataset("test")


VARIANTS = [
    ["--level", "word"],
    ["--level", "word", "--reproduce-padding", 25],
    ["--rum-lambda", 1, "--attention", "dot"],
    ["--attention", "general", "--sentence-embedding", "sum", "--num-layers", 2],
    ["--attention", "rotation", "--sentence-embedding", "position"],
    ["--reproduce-padding", 5, "--rnn-unit", "lstm"],
    ["--reproduce-padding", 5, "--attention", "dot"],
]


@pytest.mark.parametrize("extra", VARIANTS)
def test_padding_has_no_effect(data, extra):
    """Alone, among others and with more padding at the end: the same logits."""
    model, _, test = model_and_sample(data, *extra)
    together = model(**test.collater(range(8))["net_input"])
    for index in range(8):
        inputs = test.collater([index])["net_input"]
        torch.testing.assert_close(model(**inputs)[0], together[index], rtol=1e-9, atol=1e-12)
        more = torch.nn.functional.pad(inputs["src_tokens"], (0, 9), value=model.pad)
        padded = model(more, inputs["src_lengths"])[0]
        torch.testing.assert_close(padded, together[index], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("level", ["sentence", "word"])
def test_the_model_is_the_unit_over_story_and_question(data, level):
    model, train, _ = model_and_sample(data, "--level", level, "--rum-lambda", 1)
    (cell,) = (layer.cell for layer in model.rnn.layers)
    inputs = train.collater([1])["net_input"]
    tokens, state = inputs["src_tokens"][0], cell.init_state(1)
    weight = model.embed_tokens.weight
    ends = (tokens == model.eos).nonzero().flatten().tolist()
    assert len(ends) == 4, "three sentences and the question"
    if level == "word":
        steps = weight[tokens]
    else:
        starts = [0, *(end + 1 for end in ends)]
        steps = [weight[tokens[a:b]].mean(0) for a, b in zip(starts, ends)]
    for x in steps:
        output, state = cell(x.unsqueeze(0), state)
    torch.testing.assert_close(model(**inputs), model.output_projection(output))


@pytest.mark.parametrize("level", ["sentence", "word"])
def test_the_authors_padding(data, level):
    """Padding before the story is read like any symbol; the longer of two stories has none."""
    fill = 40
    model, train, test = model_and_sample(
        data, "--level", level, "--reproduce-padding", fill, "--rnn-unit", "gru"
    )
    (cell,) = (layer.cell for layer in model.rnn.layers)
    weight = model.embed_tokens.weight
    inputs = test.collater([2])["net_input"]
    assert inputs["src_tokens"][0].tolist().count(model.eos) == 1, "an empty story"
    question = weight[inputs["src_tokens"][0]]
    steps = [*[weight[model.pad]] * fill]
    steps += [*question] if level == "word" else [question[:-1].mean(0)]
    state = cell.init_state(1)
    for x in steps:
        output, state = cell(x.unsqueeze(0), state)
    torch.testing.assert_close(model(**inputs), model.output_projection(output))
    model(**inputs).sum().backward()
    assert weight.grad[model.pad].abs().sum() > 0, "it is trained"
    # 30 sentences of 6 symbols: longer than 40 words, shorter than 40 sentences.
    inputs = test.collater([7])["net_input"]
    plain = build(data, "--level", level, "--rnn-unit", "gru")[1].double().eval()
    plain.load_state_dict(model.state_dict())
    same = torch.allclose(model(**inputs), plain(**inputs))
    assert same == (level == "word")


def test_attention_of_the_answer(data):
    model, _, test = model_and_sample(data, "--attention", "dot")
    logits, weights = model.answer(**test.collater([1, 2])["net_input"])
    assert torch.equal(logits, model(**test.collater([1, 2])["net_input"]))
    torch.testing.assert_close(weights[0, :3].sum(), torch.tensor(1.0).double())
    assert (weights[0, 3:] == 0).all() and (weights[1] == 0).all(), "an empty story has none"
    assert model_and_sample(data)[0].answer(**test.collater([1])["net_input"])[1] is None


def test_dropout(data):
    model, train, _ = model_and_sample(data, "--dropout", 0.5)
    inputs = train.collater(range(4))["net_input"]
    assert torch.equal(model(**inputs), model(**inputs))
    model.train()
    assert not torch.equal(model(**inputs), model(**inputs))


class Logits(torch.nn.Module):
    """A model that gives these logits."""

    def forward(self, logits):
        return logits


def test_criterion(data):
    """Weighted by targets over uneven batches; what the model has no class for is wrong."""
    task, _ = build(data)
    criterion = AnswerAccuracyCriterion(task)
    logits, target = torch.randn(7, 4), torch.tensor([0, 3, 1, 2, 2, -100, 1])
    logs, losses = [], []
    for rows in (slice(0, 5), slice(5, 7)):
        sample = {"net_input": {"logits": logits[rows]}, "target": target[rows],
                  "ntokens": 50, "nsentences": len(target[rows])}  # fmt: skip
        loss, size, log = criterion(Logits(), sample)
        assert size == log["sample_size"] == int((target[rows] >= 0).sum())
        logs.append(log)
        losses.append(loss)
    with metrics.aggregate() as aggregator:
        criterion.reduce_metrics(logs)
    values = aggregator.get_smoothed_values()
    known = target >= 0
    expected = -logits.log_softmax(1)[known, target[known]].sum()
    torch.testing.assert_close(sum(losses), expected)
    assert values["loss"] == pytest.approx(float(expected) / 6, abs=1e-6)
    right = int(logits.argmax(1).eq(target).sum())
    assert values["accuracy"] == pytest.approx(100 * right / 7, abs=1e-3)
    summed = {key: sum(log[key] for log in logs) for key in logs[0]}
    with metrics.aggregate() as aggregator:
        criterion.reduce_metrics([summed])
        criterion.reduce_metrics([])
    # The sum of float32 in another order, rounded to six digits.
    assert aggregator.get_smoothed_values() == pytest.approx(values, abs=2e-6)
