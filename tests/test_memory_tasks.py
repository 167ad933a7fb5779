"""copying_memory and associative_recall: the data, and both tasks through fairseq's commands."""

import json
import logging
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, USER_DIR, run_fairseq, run_hydra
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fairseq_rum.cells import registered_cells
from fairseq_rum.data.memory_tasks import (
    AssociativeRecall,
    CopyingMemory,
    MemoryDataset,
    RandomNumbers,
)
from fairseq_rum.data.training_log import parse_line
from fairseq_rum.errors import InputError

COPYING = ["--task", "copying_memory", "--delay", 5, "--copy-symbols", 4, "--copy-length", 3]
RECALL = ["--task", "associative_recall", "--recall-length", 4]
SMALL = ["--train-examples", 100, "--valid-examples", 40, "--batch-size", 16, "--hidden-size", 8]


def arguments(save_dir, *extra):
    return [
        "--user-dir", USER_DIR, "--arch", "rum_memory", "--criterion", "memory_accuracy",
        "--optimizer", "rmsprop", "--lr", 0.001, "--save-dir", save_dir, "--log-format", "json",
        "--no-epoch-checkpoints", "--cpu", "--num-workers", 0, "--data-buffer-size", 0, *extra,
    ]  # fmt: skip


def train(save_dir, *extra):
    run_fairseq("train", *arguments(save_dir, *extra))
    return save_dir / "checkpoint_last.pt"


def build(*extra):
    """Task and model as fairseq-train builds them from these arguments."""
    parser = options.get_training_parser()
    parsed = options.parse_args_and_arch(parser, [str(x) for x in arguments("unused", *extra)])
    cfg = convert_namespace_to_omegaconf(parsed)
    task = tasks.setup_task(cfg.task)
    return task, task.build_model(cfg.model)


def parameters(path):
    return torch.load(path, weights_only=True)["model"]


def logged(caplog, logger):
    """The points that fairseq logged under a split's name."""
    return [parse_line(r.getMessage())[1] for r in caplog.records if r.name == logger]


def examples(problem, count, seed=1, split="train"):
    sample = MemoryDataset(problem, split, count, seed).collater(range(count))
    return sample["net_input"]["src_tokens"].numpy(), sample["target"].numpy()


def assert_uniform(values, classes):
    """A chi-square test that a right generator fails once in 10^6 (normal approximation)."""
    counts = np.bincount(np.asarray(values).ravel(), minlength=classes)
    assert len(counts) == classes, "a value outside the range"
    expected = counts.sum() / classes
    chi = float(((counts - expected) ** 2 / expected).sum())
    freedom = classes - 1
    assert chi < freedom + 5 * math.sqrt(2 * freedom) + 15


# --- the data


def test_random_numbers_are_the_splitmix64_sequence():
    """Against the reference implementation's loop, in Python's integers."""
    numbers = RandomNumbers(3, 1, 4)
    mask = 2**64 - 1
    state, expected = int(np.random.SeedSequence((3, 1, 4)).generate_state(1, np.uint64)[0]), []
    for _ in range(12):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        expected.append(z ^ (z >> 31))
    assert numbers(np.arange(4), 3).ravel().tolist() == expected
    assert numbers(np.array([2]), 3).ravel().tolist() == expected[6:9]


def test_copying():
    inputs, targets = examples(CopyingMemory(100), 4000)
    assert inputs.shape == targets.shape == (4000, 120)
    assert_uniform(inputs[:, :10], 8)
    for position in range(10):
        assert_uniform(inputs[:, position], 8)
    assert_uniform(8 * inputs[:, 0] + inputs[:, 1], 64)
    blank, marker = 8, 9
    assert (inputs[:, 10:109] == blank).all()
    assert (inputs[:, 109] == marker).all()
    assert (inputs[:, 110:] == blank).all()
    assert (targets[:, :110] == blank).all()
    assert (targets[:, 110:] == inputs[:, :10]).all()


@given(st.integers(1, 30), st.integers(1, 20), st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_copying_of_any_size(delay, symbols, length):
    problem = CopyingMemory(delay, symbols, length)
    inputs, targets = examples(problem, 5)
    assert inputs.shape == targets.shape == (5, delay + 2 * length)
    assert inputs.max() == symbols + 1 == problem.input_symbols - 1
    assert targets.max() == symbols == problem.output_symbols - 1
    assert (targets[:, -length:] == inputs[:, :length]).all()
    assert (inputs == symbols + 1).sum() == 5
    assert inputs.argmax(1).tolist() == [length + delay - 1] * 5


def test_the_baseline_is_the_best_loss_without_memory():
    """Certain of the blanks, a guess among n at the last steps: the cross-entropy of that model."""
    problem = CopyingMemory(30, 8, 10)
    _, targets = examples(problem, 300)
    logits = torch.full((300, problem.steps, 9), -50.0)
    logits[:, :40, 8] = 0
    logits[:, 40:, :8] = 0
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())
    assert loss.item() == pytest.approx(problem.baseline, rel=1e-5)
    assert CopyingMemory(100).baseline == pytest.approx(10 * math.log(8) / 120)


@pytest.mark.parametrize("length", [2, 10, 30, 54])
def test_recall(length):
    inputs, answers = examples(AssociativeRecall(length), 4000)
    half = length // 2
    assert inputs.shape == (4000, length + 3) and answers.shape == (4000, 1)
    letters, digits = inputs[:, 0:length:2], inputs[:, 1:length:2] - half
    assert (np.sort(letters, axis=1) == np.arange(half)).all(), "all letters, none repeated"
    for position in range(half):
        assert_uniform(letters[:, position], half)
    assert_uniform(digits, 10)
    assert (inputs[:, length : length + 2] == half + 10).all(), "??"
    asked = inputs[:, -1]
    assert_uniform(asked, half)
    rows, places = np.nonzero(letters == asked[:, None])
    assert rows.tolist() == list(range(4000))
    assert_uniform(places, half)
    assert (digits[rows, places] == answers[:, 0]).all()
    assert_uniform(answers, 10)


def test_permutations_are_uniform():
    inputs, _ = examples(AssociativeRecall(8), 12000)
    orders = inputs[:, 0:8:2] @ np.array([64, 16, 4, 1])
    _, codes = np.unique(orders, return_inverse=True)
    assert_uniform(codes, 24)


def test_recall_of_a_position():
    problem = AssociativeRecall(12, "position")
    inputs, answers = examples(problem, 3000)
    asked = inputs[:, -1] - 17
    assert_uniform(asked, 12)
    assert (inputs[np.arange(3000), asked] == answers[:, 0]).all()
    assert problem.input_symbols == 6 + 11 + 12 and problem.output_symbols == 16
    assert inputs.max() == problem.input_symbols - 1
    same, _ = examples(AssociativeRecall(12), 3000)
    assert (inputs[:, :14] == same[:, :14]).all(), "the same sequences, another question"


def test_examples_depend_on_seed_split_and_index_alone():
    problem = AssociativeRecall(10)
    whole, answers = examples(problem, 1000)
    dataset = MemoryDataset(problem, "train", 1000)
    some = dataset.collater([900, 3, 77])
    assert (some["net_input"]["src_tokens"].numpy() == whole[[900, 3, 77]]).all()
    assert (some["target"].numpy() == answers[[900, 3, 77]]).all()
    for other in (examples(problem, 1000, seed=2), examples(problem, 1000, split="valid")):
        assert (other[0] != whole).any(axis=1).mean() > 0.99
    # Whether two examples are the same by chance: 5! orders x 10^5 digits x 5 questions.
    assert len(np.unique(whole, axis=0)) == 1000


def test_fresh_batches_change_with_the_epoch_and_evaluation_does_not():
    task, _ = build(*RECALL, *SMALL, "--fresh-batches")
    fixed, _ = build(*RECALL, *SMALL)

    def first(task, split, epoch):
        task.load_dataset(split)
        iterator = task.get_batch_iterator(task.dataset(split), max_sentences=4, epoch=epoch)
        return next(iterator.next_epoch_itr(shuffle=False))["net_input"]["src_tokens"]

    assert not torch.equal(first(task, "train", 1), first(task, "train", 2))
    assert torch.equal(first(task, "train", 2), first(task, "train", 2))
    assert torch.equal(first(task, "valid", 1), first(task, "valid", 2))
    assert torch.equal(first(fixed, "train", 1), first(fixed, "train", 2))
    assert torch.equal(first(fixed, "train", 1), first(task, "train", 1))


def epochs(task, workers=0, shards=1, shard=0, count=3):
    """Batches of some epochs as the trainer gets them."""
    task.load_dataset("train")
    batches = []
    for epoch in range(1, count + 1):
        iterator = task.get_batch_iterator(
            task.dataset("train"), max_sentences=16, seed=7, num_workers=workers, epoch=epoch,
            num_shards=shards, shard_id=shard,
        )  # fmt: skip
        batches += [s["net_input"]["src_tokens"] for s in iterator.next_epoch_itr() if s]
    if workers:
        iterator.dataloader._iterator._shutdown_workers()  # left alone they take 5 s each to end
    return batches


def test_batches_are_the_same_over_workers_and_processes():
    task, _ = build(*COPYING, *SMALL, "--fresh-batches")
    expected = epochs(task)
    assert len(expected) == 3 * 7 and [len(b) for b in expected].count(4) == 3
    assert all(torch.equal(a, b) for a, b in zip(expected, epochs(task, workers=2)))
    # Two data-parallel processes: batch k of process r is batch 2k + r.
    for shard in (0, 1):
        part = epochs(task, shards=2, shard=shard)
        both = [
            b for epoch in (expected[:7], expected[7:14], expected[14:]) for b in epoch[shard::2]
        ]
        assert len(part) == len(both) and all(torch.equal(a, b) for a, b in zip(part, both))
    # Another process, whose hashes and random state are its own.
    code = (
        "import numpy as np; np.random.seed(5)\n"
        "from fairseq_rum.data.memory_tasks import *\n"
        "d = MemoryDataset(CopyingMemory(5, 4, 3), 'train', 100, 1, fresh=True)\n"
        "print(d.collater([99, 100])['net_input']['src_tokens'].tolist())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    here = MemoryDataset(CopyingMemory(5, 4, 3), "train", 100, 1, fresh=True)
    found = json.loads(result.stdout)
    assert found == here.collater([99, 100])["net_input"]["src_tokens"].tolist()


def test_every_unit_and_model_seed_sees_the_same_data():
    batches = [
        epochs(build(*RECALL, *SMALL, "--rnn-unit", unit, "--seed", seed)[0])
        for unit, seed in (("rum", 1), ("lstm", 1), ("rum", 2))
    ]
    for other in batches[1:]:
        assert all(torch.equal(a, b) for a, b in zip(batches[0], other))


def test_max_tokens_counts_steps():
    task, _ = build(*RECALL, *SMALL)
    task.load_dataset("train")
    batch = task.get_batch_iterator(task.dataset("train"), max_tokens=7 * 5 + 6).first_batch
    assert batch["target"].shape == (5, 1)


# --- the model and the criterion


def test_model_answers_from_the_whole_sequence():
    """Logits at the last step alone, and every symbol of the sequence has a part in them."""
    task, model = build(*RECALL, *SMALL, "--rum-lambda", 1, "--num-layers", 2, "--hidden-size", 12)
    task.load_dataset("valid")
    tokens = task.dataset("valid").collater(range(6))["net_input"]["src_tokens"]
    logits = model(tokens)
    assert logits.shape == (6, 1, 10)
    for step in range(tokens.shape[1]):
        changed = tokens.clone()
        changed[:, step] = (changed[:, step] + 1) % task.problem.input_symbols
        assert (model(changed) != logits).any()
    assert [layer.cell.hidden_size for layer in model.rnn.layers] == [12, 12]


def test_input_is_one_hot():
    task, model = build(*COPYING, *SMALL)
    cell = model.rnn.layers[0].cell
    assert cell.input_size == 6 and model.output_projection.out_features == 5
    tokens = torch.tensor([[0, 3, 5]])
    x = torch.nn.functional.one_hot(tokens, 6).float()
    assert torch.equal(torch.nn.functional.embedding(tokens, model.one_hot), x)
    assert "one_hot" not in model.state_dict()


@pytest.mark.parametrize("task_arguments", [COPYING, RECALL])
def test_criterion_against_plain_numpy(task_arguments):
    task, model = build(*task_arguments, *SMALL)
    criterion = task.build_criterion(memory_accuracy())
    task.load_dataset("valid")
    samples = [task.dataset("valid").collater(range(a, b)) for a, b in ((0, 16), (16, 25))]
    logs, losses, hits = [], [], []
    for sample in samples:
        loss, size, log = criterion(model, sample)
        logits = model(**sample["net_input"]).detach().double().numpy()
        target = sample["target"].numpy()
        scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        picked = np.take_along_axis(scores, target[..., None], -1)
        assert size == target.size and loss.item() == pytest.approx(-picked.sum(), rel=1e-5)
        losses += (-picked).ravel().tolist()
        hits += (logits.argmax(-1) == target)[:, -task.problem.scored_steps :].ravel().tolist()
        logs.append(log)
    from fairseq.logging import metrics

    with metrics.aggregate(new_root=True) as found:
        task.reduce_metrics(logs, criterion)
    assert found["loss"].avg == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["accuracy"].avg == pytest.approx(100 * np.mean(hits))
    if task.problem.baseline is None:
        assert "baseline" not in found
    else:
        assert found["baseline"].avg == pytest.approx(3 * math.log(4) / 11)


def memory_accuracy():
    return OmegaConf.create({"_name": "memory_accuracy"})


# --- fairseq's commands


@pytest.mark.parametrize(
    "extra",
    [
        ["--task", "copying_memory", "--delay", 10, "--rum-lambda", 0, "--hidden-size", 32],
        ["--task", "associative_recall", "--recall-length", 6, "--rum-lambda", 1,
         "--hidden-size", 32],
    ],
)  # fmt: skip
def test_two_hundred_updates_lower_the_loss(tmp_path, caplog, extra):
    caplog.set_level(logging.INFO)
    train(tmp_path, "--max-update", 200, "--log-interval", 40, "--batch-size", 32,
          "--valid-examples", 200, "--train-examples", 4000, "--validate-interval", 100,
          *extra)  # fmt: skip
    inner, (valid,) = logged(caplog, "train_inner"), logged(caplog, "valid")
    losses = [point["loss"] for point in inner]
    assert losses[-1] < losses[1] < losses[0]
    if "copying_memory" in extra:
        # In nats: on its way to the level of no memory, from ln 9 for a guess at every step.
        assert valid["baseline"] == pytest.approx(10 * math.log(8) / 30, abs=1e-6)
        assert 1.3 * valid["baseline"] > valid["loss"] and losses[0] > 1.6 > 1.6 * valid["loss"]
    else:
        assert valid["accuracy"] > 25 and "baseline" not in valid, "10% by chance"


@pytest.mark.parametrize("unit", registered_cells())
def test_any_unit_trains(tmp_path, caplog, unit):
    caplog.set_level(logging.INFO)
    train(tmp_path, *RECALL, *SMALL, "--rnn-unit", unit, "--max-update", 3, "--disable-validation",
          "--no-save")  # fmt: skip
    assert 0 < logged(caplog, "train")[-1]["loss"] < 10


@pytest.mark.parametrize(
    "extra", [COPYING, [*COPYING, "--fresh-batches"], [*RECALL, "--rmsprop-start", 1]]
)
def test_resume_is_bit_for_bit(tmp_path, extra):
    """From the middle of epoch 1 into epoch 3 (7 updates each)."""
    common = [*extra, *SMALL, "--save-interval", 100]
    whole = train(tmp_path / "whole", *common, "--max-update", 17)
    train(tmp_path / "parts", *common, "--max-update", 4)
    resumed = train(tmp_path / "parts", *common, "--max-update", 17)
    expected, found = parameters(whole), parameters(resumed)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_stop_at_accuracy(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    stop = ["--stop-at-accuracy", 10, "--patience", 1, "--best-checkpoint-metric", "unsolved",
            "--maximize-best-checkpoint-metric", "--validate-interval-updates", 10,
            "--save-interval-updates", 10]  # fmt: skip
    checkpoint = train(tmp_path, *COPYING, *SMALL, *stop, "--max-update", 300, "--lr", 0.01)
    valid = logged(caplog, "valid")
    assert valid[-1]["accuracy"] >= 10 and valid[-1]["unsolved"] == 0
    for point in valid[:-1]:
        assert point["accuracy"] < 10 and point["unsolved"] == point["num_updates"]
    saved = torch.load(checkpoint, weights_only=True)
    updates = saved["optimizer_history"][-1]["num_updates"]
    assert updates == valid[-1]["num_updates"] < 300
    # It says what it needs, and nothing of it shows where it is not asked for.
    with pytest.raises(InputError, match="--stop-at-accuracy needs --patience 1 .* unsolved"):
        build(*COPYING, *SMALL, "--stop-at-accuracy", 10)
    caplog.clear()
    train(tmp_path / "b", *COPYING, *SMALL, "--max-update", 2)
    assert "unsolved" not in logged(caplog, "valid")[0]


def test_validate_agrees_and_knows_the_test_split(tmp_path, caplog, capsys):
    caplog.set_level(logging.INFO)
    checkpoint = train(tmp_path, *COPYING, *SMALL, "--max-update", 6)
    (valid,) = logged(caplog, "valid")
    found = {}
    for split in ("valid", "test"):
        run_fairseq(
            "validate", "--user-dir", USER_DIR, "--task", "copying_memory", "--path", checkpoint,
            "--valid-subset", split, "--batch-size", 9, "--cpu", "--num-workers", 0,
            "--log-format", "json",
        )  # fmt: skip
        lines = capsys.readouterr().out.splitlines()
        line = next(line for line in reversed(lines) if f"{split}_loss" in line)
        found[split] = json.loads(line[line.index("{") :])
    for name in ("loss", "accuracy", "baseline"):
        assert float(found["valid"][f"valid_{name}"]) == pytest.approx(valid[name], rel=1e-4)
    assert found["test"]["test_loss"] != found["valid"]["valid_loss"]


def test_fairseqs_own_criterion(tmp_path, caplog):
    """cross_entropy, fairseq's default, logs the same loss in bits."""
    caplog.set_level(logging.INFO)
    for criterion in ("memory_accuracy", "cross_entropy"):
        train(tmp_path / criterion, *COPYING, *SMALL, "--max-update", 5, "--criterion", criterion)
    nats, bits = logged(caplog, "valid")
    assert bits["loss"] * math.log(2) == pytest.approx(nats["loss"], abs=1e-3)


PROTOCOL = {
    "copying": ["--task", "copying_memory", "--delay", 100, "--hidden-size", 100,
                "--max-update", 8000],
    "recall": ["--task", "associative_recall", "--hidden-size", 50, "--max-update", 50000],
}  # fmt: skip


@pytest.mark.parametrize("name", PROTOCOL)
def test_hydra_config_has_the_values_of_the_command_line(name):
    parser = options.get_training_parser()
    command = arguments("unused", "--rum-lambda", 1, "--batch-size", 128, "--log-interval", 100,
                        *PROTOCOL[name])  # fmt: skip
    cfg = convert_namespace_to_omegaconf(
        options.parse_args_and_arch(parser, [str(x) for x in command])
    )
    sections = OmegaConf.load(ROOT / "user_dir_configs" / "memory" / f"{name}.yaml")
    for section, values in sections.items():
        for key in values:
            if key not in ("user_dir", "save_dir"):
                assert cfg[section][key] == values[key], f"{section}.{key}"


PAPER_UNITS = ["rum", "lstm", "gru", "urnn", "eurnn", "goru", "fast_weights", "weinet"]


@pytest.mark.parametrize("unit", PAPER_UNITS)
def test_the_config_of_a_unit_has_the_values_of_the_command_line(unit):
    group = OmegaConf.load(ROOT / "user_dir_configs" / "memory" / "unit" / f"{unit}.yaml")
    assert group.rnn_unit == unit
    flags = []
    for name, value in group.items():
        flags += [] if value is None else ["--" + name.replace("_", "-"), value]
    _, model = build(*RECALL, *flags)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    plain = ["--rnn-unit", unit, *(["--rum-lambda", 1] if unit == "rum" else [])]
    _, expected = build(*RECALL, *plain)
    assert shapes == {name: value.shape for name, value in expected.state_dict().items()}


def test_hydra_trains_the_same_model(tmp_path):
    """The same parameters after two updates, with the unit's own config."""
    hydra = run_hydra(
        "memory", "recall", tmp_path, "+unit=gru", "dataset.batch_size=4", "task.train_examples=8",
        "task.valid_examples=8",
    )  # fmt: skip
    flags = train(tmp_path / "flags", *PROTOCOL["recall"], "--rnn-unit", "gru", "--batch-size", 4,
                  "--train-examples", 8, "--valid-examples", 8, "--max-update", 2)  # fmt: skip
    expected, found = parameters(flags), parameters(hydra)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.parametrize(
    "extra, message",
    [
        ([*RECALL, "--recall-length", 7], "--recall-length must be even, .* got 7"),
        ([*RECALL, "--recall-length", 0], "--recall-length must be at least 2, got 0"),
        ([*RECALL, "--recall-length", -4], "--recall-length must be at least 2, got -4"),
        ([*RECALL, "--query", "emoji"], "--query must be letter or position, got 'emoji'"),
        ([*COPYING, "--delay", 0], "--delay must be at least 1, got 0"),
        ([*COPYING, "--copy-symbols", 0], "--copy-symbols must be at least 1, got 0"),
        ([*COPYING, "--copy-length", -1], "--copy-length must be at least 1, got -1"),
        ([*COPYING, "--hidden-size", 0], "--hidden-size must be at least 1, got 0"),
        ([*COPYING, "--num-layers", 0], "--num-layers must be at least 1, got 0"),
        ([*COPYING, "--rnn-unit", "rumm"], "--rnn-unit: unknown unit 'rumm'"),
        ([*COPYING, "--rum-lambda", 2], "lambda must be 0 or 1, got 2"),
        ([*RECALL, "--rnn-unit", "goru", "--hidden-size", 1], "unit 'goru': .* at least 2"),
        ([*RECALL, "--rnn-unit", "lstm", "--rum-lambda", 1], "--rum-lambda is an option of unit"),
        ([*COPYING, "--stop-at-accuracy", 0], r"--stop-at-accuracy must lie in \(0, 100\], got 0"),
        ([*COPYING, "--stop-at-accuracy", 101], r"--stop-at-accuracy must lie in \(0, 100\]"),
    ],
)
def test_bad_settings(extra, message):
    with pytest.raises(InputError, match=message):
        build(*SMALL, *extra)


@pytest.mark.parametrize(
    "extra, split, message",
    [
        (["--train-examples", 0], "train", "--train-examples must be at least 1, got 0"),
        (["--valid-examples", -3], "valid", "--valid-examples must be at least 1, got -3"),
        (["--data-seed", -1], "train", "--data-seed must be at least 0, got -1"),
        ([], "dev", "no split 'dev', a memory task has train, valid, test"),
    ],
)
def test_bad_data_sets(extra, split, message):
    task, _ = build(*COPYING, *SMALL, *extra)
    with pytest.raises(InputError, match=message):
        task.load_dataset(split)


@pytest.mark.parametrize("arch", ["rum_copying", "rum_recall"])
def test_another_unit_in_a_named_architecture(arch):
    _, model = build(*RECALL, *SMALL, "--arch", arch, "--rnn-unit", "lstm")
    assert model.rnn.layers[0].cell.unit == "lstm"
    with pytest.raises(InputError, match="--rum-lambda is an option of unit 'rum'"):
        build(*RECALL, *SMALL, "--arch", arch, "--rnn-unit", "lstm", "--rum-lambda", 0)


def test_too_small_batches():
    task, _ = build(*COPYING, *SMALL)
    task.load_dataset("train")
    with pytest.raises(InputError, match="--max-tokens 5 is less than one sequence, 11"):
        task.get_batch_iterator(task.dataset("train"), max_tokens=5)
    with pytest.raises(InputError, match="give --batch-size, at least 1"):
        task.get_batch_iterator(task.dataset("train"), max_sentences=0)


def test_the_model_and_the_criterion_need_a_memory_task(char_data):
    common = [char_data, "--task", "language_modeling", *SMALL[-4:]]
    with pytest.raises(InputError, match="--arch rum_memory needs --task copying_memory"):
        build(*common)
    from types import SimpleNamespace

    from fairseq_rum.criterions.memory_accuracy import MemoryAccuracyCriterion

    with pytest.raises(InputError, match="--criterion memory_accuracy needs --task copying"):
        MemoryAccuracyCriterion(SimpleNamespace())
