"""Reading fairseq's logs, and `fairseq-rum plot curves`: the data behind the figure, no pixels."""

import json
import logging
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import USER_DIR, run_fairseq

from fairseq_rum.cli.main import main
from fairseq_rum.data.training_log import find_log, parse_line, parse_log, read_log, write_log
from fairseq_rum.errors import InputError
from fairseq_rum.viz.curves import Baseline, Curve, plot_curves


def inner(updates, wall, loss=None, **more):
    values = {
        "epoch": 1,
        "update": 0.5,
        "loss": str(loss if loss is not None else 1 / updates),
        "accuracy": str(updates / 10),
        "num_updates": str(updates),
        "wall": str(wall),
        **{name: str(value) for name, value in more.items()},
    }
    return f"2026-01-01 00:00:00 | INFO | train_inner | {json.dumps(values)}"


def valid(updates, accuracy, split="valid"):
    values = {"epoch": 1, f"{split}_accuracy": str(accuracy), f"{split}_baseline": "0.173287",
              f"{split}_num_updates": str(updates)}  # fmt: skip
    return json.dumps(values)


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


# --- reading logs


def test_json_lines():
    assert parse_line(inner(100, 7, 0.25)) == (
        "train_inner",
        {"epoch": 1, "update": 0.5, "loss": 0.25, "accuracy": 10, "num_updates": 100, "wall": 7},
    )
    split, point = parse_line(valid(40, 12.5, "valid1"))
    assert split == "valid1"
    assert point == {"epoch": 1, "accuracy": 12.5, "baseline": 0.173287, "num_updates": 40}
    line = '{"epoch": 2, "train_loss": "nan", "train_train_wall": "5", "train_num_updates": "9"}'
    split, point = parse_line(line)
    assert split == "train" and point["train_wall"] == 5 and point["loss"] != point["loss"]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "2026 | INFO | fairseq_cli.train | {'_name': None, 'common': {}}",
        inner(100, 7)[:-5],
        '{"epoch": 1}',
        "[1, 2]",
        '{"num_updates": "many"}',
        "epoch 001 | loss is high",
    ],
)
def test_what_is_no_line_of_metrics(line):
    assert parse_line(line) is None


def test_simple_lines():
    line = "2026 | INFO | train_inner | epoch 002:     10 / 391 loss=1.5, num_updates=401, wall=30"
    assert parse_line(line) == (
        "train_inner",
        {"epoch": 2, "loss": 1.5, "num_updates": 401, "wall": 30},
    )
    line = "epoch 001 | valid on 'dev' subset | loss 1.25 | accuracy 50 | num_updates 391"
    assert parse_line(line) == (
        "dev",
        {"epoch": 1, "loss": 1.25, "accuracy": 50, "num_updates": 391},
    )
    split, point = parse_line("epoch 001 | loss 1.25 | num_updates 391 | lr 0.001")
    assert split == "train" and point["lr"] == 0.001


def test_repeated_lines_count_once():
    lines = [inner(100, 60), *[inner(200, 120)] * 2, *[valid(200, 50)] * 3, *[inner(300, 180)] * 4]
    log = parse_log("\n".join(lines))
    assert log.series("train_inner", "accuracy") == ([100, 200, 300], [10, 20, 30])
    assert log.series("train_inner", "accuracy", "minutes")[0] == [1, 2, 3]
    assert log.series("valid", "accuracy", "minutes") == ([2], [50])


@pytest.mark.parametrize("wall", ["zero", "anew", "on"])
def test_a_resumed_run(wall):
    """Killed after 400 updates and resumed from 200: whatever becomes of fairseq's clock."""
    before = [inner(u, 0.6 * u, 1.0) for u in (100, 200, 300, 400)]
    after = []
    for u in (300, 400, 500):
        seconds = {"zero": 0, "anew": 0.6 * (u - 200), "on": 0.6 * u}[wall]
        after.append(inner(u, seconds, 2.0, wps=80, wpb=48))
    log = parse_log("\n".join(before + after))
    updates, losses = log.series("train_inner", "loss")
    assert updates == [100, 200, 300, 400, 500] and losses == [1, 1, 2, 2, 2]
    assert log.series("train_inner", "loss", "minutes")[0] == pytest.approx([1, 2, 3, 4, 5])


def test_validations_of_updates_that_were_lost():
    before = [inner(400, 1), valid(450, 40), inner(900, 2), valid(900, 90), valid(1000, 95)]
    log = parse_log("\n".join([*before, inner(600, 3)]))
    assert log.series("valid", "accuracy") == ([450], [40])
    assert log.last("accuracy") == 60


def test_writing_a_log_and_reading_it_again(tmp_path):
    lines = [inner(100, 60), valid(100, 30), inner(200, 0, wps=100, wpb=30), valid(200, 40),
             valid(200, 9, "test")]  # fmt: skip
    log = parse_log("\n".join(lines))
    write_log(log, tmp_path / "log.jsonl", leave_out=["update", "wps", "wpb"])
    again = read_log(tmp_path)
    assert again.series("train_inner", "minutes")[1] == [1, 1.5]
    for split in ("train_inner", "valid", "test"):
        for metric in ("loss", "accuracy", "baseline"):
            for x in ("num_updates", "minutes"):
                assert again.series(split, metric, x) == log.series(split, metric, x)
    assert "update" not in again.metrics("train_inner")


def test_finding_the_log(tmp_path):
    run = tmp_path / "run"
    write(run / "run.json", '{"seed": 1}')
    write(run / "notes.txt", "nothing")
    with pytest.raises(InputError, match="run: no file with fairseq's metrics in it"):
        find_log(run)
    log = write(run / "train.log", inner(100, 6))
    assert find_log(run) == find_log(log) == log
    with pytest.raises(InputError, match="absent: no such file or folder"):
        find_log(tmp_path / "absent")
    with pytest.raises(InputError, match="notes.txt: no metrics of fairseq in it"):
        read_log(run / "notes.txt")


@pytest.mark.parametrize("log_format", ["json", "simple"])
def test_what_fairseq_writes(tmp_path, caplog, log_format):
    """Three epochs with a log file, whose lines fairseq repeats, and a resumed run."""
    caplog.set_level(logging.INFO)
    log_file = tmp_path / "train.log"
    for updates in (7, 12):
        run_fairseq(
            "train", "--user-dir", USER_DIR, "--task", "copying_memory", "--delay", 3, "--arch",
            "rum_memory", "--hidden-size", 4, "--criterion", "memory_accuracy", "--optimizer",
            "rmsprop", "--train-examples", 40, "--valid-examples", 8, "--batch-size", 8, "--cpu",
            "--num-workers", 0, "--save-dir", tmp_path, "--log-format", log_format, "--log-file",
            log_file, "--log-interval", 2, "--max-update", updates,
        )  # fmt: skip
    for handler in list(logging.getLogger("fairseq.logging.progress_bar").handlers):
        logging.getLogger("fairseq.logging.progress_bar").removeHandler(handler)
        handler.close()
    lines = [line for line in log_file.read_text().splitlines() if parse_line(line)]
    assert len(lines) > len(set(lines)), "fairseq repeats lines, which is why we have to care"
    log = read_log(tmp_path)
    updates, losses = log.series("train_inner", "loss")
    assert updates == [2, 4, 6, 8, 10, 12] and all(0 < loss < 5 for loss in losses)
    assert log.series("valid", "accuracy")[0] == [5, 7, 10, 12]
    baseline = log.last("baseline")
    assert baseline == pytest.approx(10 * 2.0794415 / 23, abs=1e-5)
    minutes, _ = log.series("train_inner", "loss", "minutes")
    assert minutes == sorted(minutes)


# --- the figure


def test_figure_holds_the_data():
    curves = [Curve(f"run {i}", [1, 2, 3], [i, i + 0.5, i]) for i in range(12)]
    curves.append(Curve("one point", [2], [4.0]))
    figure = plot_curves(
        curves, "updates", "loss", [Baseline(0.5, "guess"), Baseline(2.0)], "T", True
    )
    (axes,) = figure.axes
    lines = axes.get_lines()
    assert len(lines) == 15
    for curve, line in zip(curves, lines):
        assert (list(line.get_xdata()), list(line.get_ydata())) == (list(curve.x), list(curve.y))
    assert [set(line.get_ydata()) for line in lines[13:]] == [{0.5}, {2.0}]
    assert lines[12].get_marker() == "o" and lines[0].get_marker() == "None"
    looks = {(line.get_color(), line.get_linestyle()) for line in lines[:13]}
    assert len(looks) == 13, "no two curves look the same"
    assert axes.get_xlabel() == "updates" and axes.get_ylabel() == "loss"
    assert axes.get_yscale() == "log" and axes.get_title() == "T"
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [curve.label for curve in curves] + ["guess"]


@pytest.fixture
def runs(tmp_path):
    write(tmp_path / "rum" / "log.jsonl", inner(100, 60), valid(100, 30), inner(200, 120),
          valid(200, 90))  # fmt: skip
    write(tmp_path / "lstm.log", inner(100, 30), inner(200, 60), valid(200, 20))
    return [str(tmp_path / "rum"), str(tmp_path / "lstm.log")]


@pytest.mark.parametrize("suffix, head", [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_formats(runs, tmp_path, suffix, head, capsys):
    out = tmp_path / f"figure.{suffix}"
    assert main(["plot", "curves", "--runs", *runs, "--out", str(out)]) == 0
    first = out.read_bytes()
    assert first.startswith(head)
    assert capsys.readouterr().out == f"{out}: loss of 2 runs\n"
    main(["plot", "curves", "--runs", *runs, "--out", str(out)])
    assert out.read_bytes() == first


def test_what_is_drawn(runs, tmp_path, monkeypatch):
    """Labels, axes and baselines, taken from what the command hands to viz."""
    from fairseq_rum.viz import curves as module

    seen = {}

    def record(drawn, *rest):
        seen["curves"], seen["rest"] = drawn, rest
        return plot_curves(drawn, *rest)

    monkeypatch.setattr(module, "plot_curves", record)
    out = tmp_path / "figure.svg"
    arguments = [
        "plot", "curves", "--runs", runs[0], f"LSTM, N=50={runs[1]}", "--metric", "accuracy",
        "--split", "valid", "--x", "minutes", "--baseline", "10:chance", "--baseline",
        "baseline:memoryless", "--title", "recall", "--out", str(out),
    ]  # fmt: skip
    assert main(arguments) == 0
    assert seen["curves"] == [Curve("rum", [1, 2], [30, 90]), Curve("LSTM, N=50", [1], [20])]
    assert seen["rest"] == (
        "minutes", "accuracy (valid)", [Baseline(10, "chance"), Baseline(0.173287, "memoryless")],
        "recall", False,
    )  # fmt: skip
    ElementTree.parse(out)


@pytest.mark.parametrize(
    "extra, message",
    [
        (["--out", "a.jpg"], "--out a.jpg: the name must end in .png, .svg, .pdf"),
        (["--out", "no/such/a.png"], "--out no/such/a.png: no such folder"),
        (["--metric", "bleu"], "run 'rum' has no --metric bleu in train, it has accuracy, epoch"),
        (["--split", "test"], "run 'rum' has no --split test, it has train_inner, valid"),
        (["--baseline", "guess"], "--baseline guess: neither a number nor a metric of these runs"),
        (["--baseline", "wall"], "--baseline wall: the runs have different values of it"),
        (["--runs", "absent"], "absent: no such file or folder"),
        (["--runs", "A=/no/x=1.jsonl"], "error: /no/x=1.jsonl: no such file or folder"),
        (["--runs", "/no/x=1.jsonl"], "error: /no/x=1.jsonl: no such file or folder"),
    ],
)
def test_bad_input(runs, tmp_path, capsys, extra, message):
    arguments = ["plot", "curves", "--runs", *runs, "--out", str(tmp_path / "a.png"), *extra]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


def test_two_runs_of_one_name(runs, tmp_path, capsys):
    out = str(tmp_path / "a.png")
    assert main(["plot", "curves", "--runs", runs[0], runs[0], "--out", out]) == 2
    assert "two runs are called 'rum', write NAME=PATH" in capsys.readouterr().err
