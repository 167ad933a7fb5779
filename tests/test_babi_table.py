"""fairseq-rum babi-table: accuracies of many runs, out of what fairseq-validate printed."""

import pytest

from fairseq_rum.cli.main import main

LINE = '2026-01-01 | INFO | %s | {"epoch": 1, "%s_loss": "0.1", "%s_accuracy": "%s"}\n'


def write(path, accuracy, split="test", before=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before + LINE % (split, split, split, accuracy))


@pytest.fixture
def runs(tmp_path):
    """Two runs: lstm on tasks 1 to 3, rum on 1 and 3, and a joint one."""
    folder = tmp_path / "runs"
    for task, accuracy in ((1, 94.9), (2, 30), (3, 25.26)):
        write(folder / "lstm" / f"qa{task}" / "test.log", accuracy)
    write(folder / "rum" / "qa1" / "test.log", 100, before=LINE % ("test", "test", "test", 7))
    write(folder / "rum" / "qa3" / "test.json", 95)
    # Of training: the accuracy after an epoch is none of a chosen checkpoint.
    (folder / "rum" / "qa1" / "train.log").write_text(
        '{"epoch": 3, "test_accuracy": "50", "test_num_updates": "9"}\n{"epoch": 3, "test_acc'
    )
    return folder


def rows(out):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines()]


def test_table(runs, capsys):
    assert main(["babi-table", "--runs", str(runs)]) == 0
    assert rows(capsys.readouterr().out) == [
        ["run", "mean", "failed (< 95%)", "1", "2", "3"],
        ["---"] * 6,
        ["lstm", "50.1", "3", "94.9", "30.0", "25.3"],
        ["rum", "97.5 (2 of 3 tasks)", "0", "100.0", "-", "95.0"],
    ]


def test_labels_tasks_and_means(runs, capsys):
    command = ["babi-table", "--runs", str(runs), "--labels", "rum=RUM lambda=1", "--tasks", "1,3"]
    assert main([*command, "--without", "3"]) == 0
    assert rows(capsys.readouterr().out) == [
        ["run", "mean", "mean without 3", "failed (< 95%)", "1", "3"],
        ["---"] * 6,
        ["RUM lambda=1", "97.5", "100.0", "0", "100.0", "95.0"],
    ]


@pytest.mark.parametrize("value", ["null", '"nan"', '"x"', "[" * 100000])
def test_what_is_no_accuracy_is_passed_over(tmp_path, capsys, value):
    write(tmp_path / "runs" / "a" / "qa1" / "test.log", 80)
    with open(tmp_path / "runs" / "a" / "qa1" / "test.log", "a") as file:
        file.write(f'{{"test_accuracy": {value}}}\n')
    assert main(["babi-table", "--runs", str(tmp_path / "runs")]) == 0
    assert rows(capsys.readouterr().out)[-1] == ["a", "80.0", "1", "80.0"]


def test_joint_run_and_a_folder_of_one_run(tmp_path, capsys):
    text = "".join(LINE % ((f"test{task}",) * 3 + (90 + task,)) for task in (1, 15))
    (tmp_path / "joint").mkdir()
    (tmp_path / "joint" / "test.log").write_text(text + LINE % ("test", "test", "test", 1))
    assert main(["babi-table", "--runs", str(tmp_path)]) == 0
    assert rows(capsys.readouterr().out)[2] == ["joint", "98.0", "1", "91.0", "105.0"]
    write(tmp_path / "alone" / "qa7" / "test.log", 50)
    assert main(["babi-table", "--runs", str(tmp_path / "alone")]) == 0
    assert rows(capsys.readouterr().out)[2] == ["alone", "50.0", "1", "50.0"]


def test_figure(runs, tmp_path):
    out = tmp_path / "bars.svg"
    command = ["babi-table", "--runs", str(runs), "--title", "All of them", "--out", str(out)]
    assert main(command) == 0
    first = out.read_bytes()
    assert main(command) == 0
    assert out.read_bytes() == first and b"<svg" in first


def test_bars():
    from fairseq_rum.viz.babi_table import plot_tasks

    figure = plot_tasks({"a": {1: 50.0, 2: 60.0}, "b": {2: 70.0}}, [1, 2], "t")
    (axes,) = figure.axes
    heights = [[bar.get_height() for bar in container] for container in axes.containers]
    assert heights == [[50.0, 60.0], [70.0]]
    left = [[bar.get_x() for bar in container] for container in axes.containers]
    assert left[0][0] == pytest.approx(-0.425) and left[1][0] == pytest.approx(1.0)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert axes.get_title() == "t" and axes.lines[0].get_ydata()[0] == 95


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--labels", "gru=GRU"], "--labels gru=GRU: there is no run 'gru', but lstm, rum"),
        (["--labels", "lstm=A", "rum=A"], "--labels: two runs are called 'A'"),
        (["--tasks", "21"], "--tasks 21: there are tasks 1 to 20"),
        (["--tasks", "1-999999999"], "--tasks 1-999999999: there are tasks 1 to 20"),
        (["--tasks", "1-9999999999999"], "expected numbers, such as 1,6,15-20"),
        (["--tasks", "1,5-3"], "--tasks 1,5-3: there are tasks 1 to 20"),
        (["--without", "21"], "--without 21: there are tasks 1 to 20"),
        (["--out", "bars.txt"], "--out bars.txt: the name must end in"),
    ],
)
def test_bad_options(runs, capsys, arguments, message):
    assert main(["babi-table", "--runs", str(runs), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_nothing_to_gather(runs, tmp_path, capsys):
    assert main(["babi-table", "--runs", str(tmp_path / "no")]) == 2
    assert "no such folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["babi-table", "--runs", str(tmp_path / "empty")]) == 2
    assert "no test accuracy of a task in it, from fairseq-validate" in capsys.readouterr().err
    write(runs / "lstm" / "qa1" / "again.log", 3)
    assert main(["babi-table", "--runs", str(runs)]) == 2
    assert "again.log and" in capsys.readouterr().err
