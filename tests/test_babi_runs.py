"""examples/question_answering/run.py: the list of runs, and a small one from start to table."""

import dataclasses
import importlib.util
import json
import shlex

import in_process
import pytest
from conftest import ROOT, USER_DIR

from fairseq_rum.cli.main import main as fairseq_rum
from fairseq_rum.config import build_unit, check_units
from fairseq_rum.models.rum_qa import RumQaConfig

spec = importlib.util.spec_from_file_location(
    "babi_runs", ROOT / "examples" / "question_answering" / "run.py"
)
babi_runs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(babi_runs)


def chosen(*arguments):
    options = babi_runs.parse_arguments([*arguments, "--user-dir", USER_DIR])
    return babi_runs.all_runs(options), options


def test_list_of_runs():
    runs, _ = chosen()
    assert len({run.name for run in runs}) == len(runs) == 5 * 20 + 4 + 4 * 4 + 9 * 5
    sentence, _ = chosen("--groups", "sentence")
    assert [run.task for run in sentence[:6]] == [1] * 5 + [2], "task by task"
    one, _ = chosen("--models", "rum1", "--tasks", "3", "20")
    assert [run.name for run in one] == ["en-10k/rum1/qa3", "en-10k/rum1/qa20", "en/rum1/qa20"]
    for group in babi_runs.GROUPS:
        labels = [model.label for model in group.models]
        assert len(set(labels)) == len(labels)


def test_every_command_is_understood():
    """fairseq's parser knows every option, and the unit can be built with those it has."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    runs, arguments = chosen()
    for run in {run.model.options: run for run in runs}.values():
        command = babi_runs.train_command(run, arguments)
        args = options.parse_args_and_arch(options.get_training_parser(), command[1:])
        given = {f.name for f in dataclasses.fields(RumQaConfig)} & vars(args).keys()
        cfg = RumQaConfig(**{name: getattr(args, name) for name in given})
        check_units(cfg, [cfg.rnn_unit])
        assert build_unit(cfg, cfg.rnn_unit, cfg.embed_dim, cfg.hidden_size).input_size == 64
    whole = convert_namespace_to_omegaconf(args)
    assert (whole.dataset.batch_size, whole.optimization.lr) == (32, [0.001])
    assert (whole.model.hidden_size, whole.checkpoint.patience) == (100, 10)


def test_the_training_files_of_task_3(tmp_path):
    for name in ("en/qa3_three-supporting-facts_train.txt", "en-valid-10k/qa3_valid.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "en-10k").mkdir()
    _, options = chosen("--babi", str(tmp_path))
    command = babi_runs.prepare_command("en-10k", options)
    assert command[-4:-2] == ["--train-files", "3"] and command[-1].endswith("qa3_valid.txt")
    (tmp_path / "en-10k" / "qa3_three-supporting-facts_train.txt").touch()
    assert "--train-files" not in babi_runs.prepare_command("en-10k", options)


@pytest.fixture
def commands_in_process(monkeypatch):
    """The commands in this process instead of one each, to save time."""
    monkeypatch.setattr(babi_runs, "execute", in_process.execute)


def test_a_run_from_start_to_table(tmp_path, capsys, commands_in_process):
    work, results = tmp_path / "work", tmp_path / "results"
    command = ["prepare", "babi-sim", "--tasks", "15", "--train-questions", "200"]
    command += ["--test-questions", "40", "--destdir", str(work / "data" / "en")]
    assert fairseq_rum(command) == 0
    common = ["--groups", "small", "--tasks", "15", "--jobs", "1", "--work", str(work),
              "--results", str(results), "--user-dir", USER_DIR]  # fmt: skip
    arguments = [*common, "--models", "lstm", "--max-epoch", "1"]
    capsys.readouterr()
    assert babi_runs.main(arguments) == 0
    assert "en/lstm/qa15: finished after 1 epochs, " in capsys.readouterr().out
    record = json.loads((results / "en" / "lstm" / "qa15.json").read_text())
    assert record["status"] == "finished" and record["seed"] == 1 and record["epochs"] == 1
    assert shlex.split(record["command"])[:2] == ["fairseq-train", str(work / "data/en/qa15")]
    assert 0 <= record["test_accuracy"] <= 100 and len(record["valid_accuracy"]) == 1

    text = (tmp_path / "README.md").read_text()
    accuracy = f"{record['test_accuracy']:.1f}"
    assert f"| LSTM | {accuracy} (1 of 5 tasks) | 1 | - | - | - | {accuracy} | - |" in text
    assert f"| LSTM | 1 | {record['parameters']:,} | 1 | " in text
    assert record["command"] in text and record["hardware"][0] in text
    assert (results / "small.png").exists()

    # The same numbers through the command, and nothing left to do.
    assert fairseq_rum(["babi-table", "--runs", str(results / "en")]) == 0
    assert f"| lstm | {accuracy} | 1 | {accuracy} |" in capsys.readouterr().out
    assert babi_runs.main(arguments) == 0
    assert "en/lstm/qa15: finished before" in capsys.readouterr().out
    for option in ("seed", "patience", "max-epoch"):
        assert babi_runs.main([*arguments, f"--{option}", "2"]) == 1
        said = capsys.readouterr().out
        assert f"en/lstm/qa15: error: begun with --{option} " in said and ", not 2: give an" in said
    # What is written around the results stays.
    (tmp_path / "README.md").write_text(f"before\n{text}after\n")
    assert babi_runs.main([*common, "--table"]) == 0
    assert (tmp_path / "README.md").read_text() == f"before\n{text}after\n"


LINE = '2026 | INFO | valid | {"epoch": %d, "valid_accuracy": "%s", "valid_num_updates": "%d"}\n'
STOPPED = "early stop since valid performance hasn't improved for last 10 runs\n"


@pytest.mark.parametrize(
    "text, status, expected",
    [
        (LINE % (1, "50", 9), 0, "unfinished"),
        (LINE % (5, "50", 45), 0, "finished"),
        (LINE % (3, "50", 27) + STOPPED, 0, "finished"),
        (LINE % (3, "50", 27), -15, "unfinished"),
        (LINE % (1, "50", 9) + "FloatingPointError: gradients are Nan/Inf\n", 1, "diverged"),
        (LINE % (1, "50", 9) + "RuntimeError: no space\n", 1, "error"),
        ("", 1, "error"),
    ],
)
def test_what_becomes_of_a_run(text, status, expected):
    assert babi_runs.outcome(text, status, 5)["status"] == expected


def test_sharing_the_work(capfd):
    """Two processes of the script, which both understand its options."""
    assert babi_runs.share(["--models", "goru", "--list"], 2) == 0
    out = capfd.readouterr().out
    assert out.count("# en/goru/qa20") == 2


def test_what_is_missing(tmp_path, capsys):
    work = ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    assert babi_runs.main([*work, "--jobs", "1"]) == 1
    assert "give --babi, the folder with en and en-10k" in capsys.readouterr().err
    assert babi_runs.main([*work, "--table"]) == 0 and not (tmp_path / "README.md").exists()
    for wrong in (["--tasks", "21"], ["--models", "rnn"], ["--jobs", "0"]):
        with pytest.raises(SystemExit):
            babi_runs.main(wrong)
