"""examples/memory_runs.py: the list of runs, and a small one from start to table."""

import importlib.util
import json
import shlex
import subprocess
import sys

import in_process
import pytest
from conftest import ROOT, USER_DIR

from fairseq_rum.config import build_unit, check_units

spec = importlib.util.spec_from_file_location("memory_runs", ROOT / "examples" / "memory_runs.py")
memory_runs = importlib.util.module_from_spec(spec)
sys.modules["memory_runs"] = memory_runs
spec.loader.exec_module(memory_runs)
memory_tables, run_tools = sys.modules["memory_tables"], sys.modules["run_tools"]


@pytest.mark.parametrize("name", sorted(memory_runs.TASKS))
def test_list_of_runs(name):
    task = memory_runs.TASKS[name]()
    names = [run.name for run in task.runs]
    assert len(set(names)) == len(names)
    for group in task.groups:
        labels = [run.label for run in task.runs if run.group == group]
        assert labels and len(set(labels)) == len(labels), "labels tell the curves apart"


def test_every_command_is_understood():
    """fairseq's parser knows every option, and the unit can be built with those it has."""
    from fairseq import options

    seen = set()
    for name, make in memory_runs.TASKS.items():
        task = make()
        arguments = memory_runs.parse_arguments([name, "--user-dir", USER_DIR])
        for run in task.runs:
            key = (name, run.unit, run.protocol.split("--lr ")[0])
            if key in seen:
                continue
            seen.add(key)
            command = memory_runs.train_command(task, run, "unused", arguments)
            args = options.parse_args_and_arch(options.get_training_parser(), command[1:])
            check_units(args, [args.rnn_unit])
            cell = build_unit(args, args.rnn_unit, 10, args.hidden_size)
            assert cell.hidden_size == args.hidden_size
            assert args.stop_at_accuracy == 100 and args.max_update == run.updates


@pytest.fixture
def small():
    """A run that takes a second."""
    unit = "--rnn-unit lstm --hidden-size 4"
    options = "--task copying_memory --delay 2 --train-examples 300 --valid-examples 20"
    return memory_runs.Task(
        "copying",
        {"t100": f"{options} --test-examples 20"},
        [memory_runs.Run("t100-lstm", "t100", "LSTM", unit, 3)],
    )


@pytest.fixture
def mostly_in_process(monkeypatch):
    """The first command in a process of its own, as all are; the others here, to save time."""
    real, calls = memory_runs.execute, []

    def execute(command, output, threads, lock=None):
        calls.append(command)
        if len(calls) == 1:
            return real(command, output, threads, lock)
        return in_process.execute(command, output, threads, lock)

    monkeypatch.setattr(memory_runs, "execute", execute)


def test_a_run_from_start_to_table(small, tmp_path, capsys, mostly_in_process):
    work, results = tmp_path / "work", tmp_path / "results"
    arguments = ["copying", "--work", str(work), "--results", str(results), "--user-dir", USER_DIR]
    assert memory_runs.main([*arguments, "--max-update", "2"], small) == 0
    assert "t100-lstm: finished after 2 updates" in capsys.readouterr().out
    record = json.loads((results / "t100-lstm" / "run.json").read_text())
    assert record["status"] == "finished" and record["updates"] == 2 and record["seed"] == 1
    assert shlex.split(record["command"])[:3] == ["fairseq-train", "--user-dir", USER_DIR]
    assert "of" in record["hardware"][0] and 0 <= record["test_accuracy"] <= 100
    text = (results / "RESULTS.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| LSTM"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["LSTM", f"{record['parameters']:,}", "2"]
    assert record["parameters"] == 4 * 4 * (10 + 4) + 2 * 16 + 5 * 9
    assert float(cells[4]) == pytest.approx(record["test_accuracy"], abs=0.05)
    assert record["command"] in text and record["hardware"][0] in text
    assert (results / "t100-loss.png").exists() and (results / "t100-accuracy.png").exists()

    # Nothing is left to do; more updates go on from there.
    assert memory_runs.main([*arguments, "--max-update", "2"], small) == 0
    assert "t100-lstm: finished before" in capsys.readouterr().out
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1], 'w'); "
         "fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()",
         str(work / "t100-lstm" / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout.readline() == "held\n"
    assert memory_runs.main(arguments, small) == 0
    assert "t100-lstm: another process is at it" in capsys.readouterr().out
    holder.communicate("")
    assert memory_runs.main(arguments, small) == 0
    assert "t100-lstm: finished after 3 updates" in capsys.readouterr().out
    lines = (results / "t100-lstm" / "log.jsonl").read_text().splitlines()
    updates = [json.loads(line).get("num_updates") for line in lines]
    assert [u for u in updates if u] == [1, 2, 3]


LINE = '2026 | INFO | valid | {"epoch": 1, "valid_accuracy": "%s", "valid_num_updates": "%d"}\n'


@pytest.mark.parametrize(
    "text, status, expected",
    [
        (LINE % ("99.98", 50), 0, "unfinished"),
        (LINE % ("99.98", 100), 0, "finished"),
        (LINE % ("100", 50), 0, "solved"),
        (LINE % ("100", 50), -9, "unfinished"),
        (LINE % ("100", 50) + "OSError: no space\n", 1, "error"),
        (LINE % ("50", 50), -15, "unfinished"),
        (LINE % ("50", 50) + "FloatingPointError: gradients are Nan/Inf\n", 1, "diverged"),
        (LINE % ("50", 50) + "RuntimeError: no space\n", 1, "error"),
        ("", 1, "error"),
    ],
)
def test_what_becomes_of_a_run(text, status, expected):
    record = memory_runs.outcome(text, status, 100)
    assert record["status"] == expected
    done = expected in ("solved", "finished", "diverged")
    assert memory_runs.is_done(record, 100) == done
    assert not memory_runs.is_done({}, 100)


def pretend(monkeypatch, accuracy):
    """Training that ends well, and a test that prints this or fails."""

    def execute(command, output, threads, lock=None):
        trains = command[0] == "fairseq-train"
        with open(output, "a") as file:
            file.write(LINE % ("77", 3) if trains else accuracy)
        return int(not trains and not accuracy)

    monkeypatch.setattr(memory_runs, "execute", execute)


def test_a_test_that_fails_is_an_error_and_made_again(small, tmp_path, capsys, monkeypatch):
    arguments = ["copying", "--work", str(tmp_path / "w"), "--results", str(tmp_path / "r")]
    pretend(monkeypatch, "")
    assert memory_runs.main(arguments, small) == 1
    assert "t100-lstm: error, see " in capsys.readouterr().out
    record = json.loads((tmp_path / "r" / "t100-lstm" / "run.json").read_text())
    assert record["status"] == "error" and record["test_accuracy"] is None
    assert "77.0" not in (tmp_path / "r" / "RESULTS.md").read_text()
    pretend(monkeypatch, '{"test_accuracy": "75.5"}')
    assert memory_runs.main(arguments, small) == 0
    assert "| 75.5 |" in (tmp_path / "r" / "RESULTS.md").read_text()


def test_other_seeds_are_other_runs(small, tmp_path, capsys, monkeypatch):
    pretend(monkeypatch, '{"test_accuracy": "75.5"}')
    arguments = ["copying", "--work", str(tmp_path / "w"), "--results", str(tmp_path / "r")]
    assert memory_runs.main(arguments, small) == 0
    capsys.readouterr()
    for option in ("--seed", "--data-seed"):
        for more in ([], ["--results", str(tmp_path / "other")]):
            assert memory_runs.main([*arguments, *more, option, "2"], small) == 1
            assert f"error: begun with {option} 1, not 2" in capsys.readouterr().out


def test_what_another_process_is_at_is_left_alone(small, tmp_path, monkeypatch):
    results, work = tmp_path / "r", tmp_path / "w"
    (work / "t100-lstm").mkdir(parents=True)
    (work / "t100-lstm" / "fairseq.log").write_text(LINE % ("50", 1))
    (results / "t100-lstm").mkdir(parents=True)
    path = results / "t100-lstm" / "run.json"
    record = {"status": "unfinished", "updates": 0, "seed": 1, "hardware": ["x"], "commit": [],
              "command": "c", "minutes": 0}  # fmt: skip
    path.write_text(json.dumps(record))
    (results / "t100-lstm" / "log.jsonl").touch()
    command = ["copying", "--work", str(work), "--results", str(results), "--table"]
    with run_tools.locked(work / "t100-lstm"):
        assert memory_runs.main(command, small) == 0
        assert json.loads(path.read_text())["updates"] == 0
    assert memory_runs.main(command, small) == 0
    assert json.loads(path.read_text())["updates"] == 1


def test_unknown_names(capsys):
    for wrong in (["--group", "t31"], ["--only", "t30-rnn"]):
        with pytest.raises(SystemExit):
            memory_runs.main(["recall", "--list", *wrong])
        assert "there are t" in capsys.readouterr().err


def test_baselines_with_too_few_updates_are_named(tmp_path):
    """At least the larger of 2,000 updates and three times those of RUM, once it has solved it."""
    task = memory_runs.TASKS["recall"]()
    assert memory_tables.fairness(task, "t30", tmp_path) == ""
    for name, status, updates in (
        ("rum1", "solved", 1000), ("lstm", "finished", 2999), ("gru", "finished", 3000),
        ("weinet", "solved", 50), ("rum0", "finished", 100), ("goru", "unfinished", 1200),
    ):  # fmt: skip
        folder = tmp_path / f"t30-{name}"
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"status": status, "updates": updates}))
    note = memory_tables.fairness(task, "t30", tmp_path)
    assert "after 1,000 updates" in note and "at least 3,000" in note
    assert note.strip().endswith("With fewer: GORU (1,200), LSTM (2,999).")
