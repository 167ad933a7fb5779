"""The data behind `fairseq-rum plot memory`."""

import numpy as np
import pytest
import torch
from conftest import USER_DIR, run_fairseq
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

from fairseq_rum.cli.main import main
from fairseq_rum.data.memory_tasks import AssociativeRecall, MemoryDataset
from fairseq_rum.viz.memory import EMOJI, Answer, plot_memory, symbol_names


def test_the_font_has_the_emoji():
    known = FT2Font(font_manager.findfont("DejaVu Sans")).get_charmap()
    assert all(ord(symbol) in known for symbol in EMOJI)


@pytest.mark.parametrize("emoji", [False, True])
def test_no_two_symbols_look_the_same(emoji):
    for letters in (1, 5, 26, 34, 35, 52, 53, 120):
        names = symbol_names(letters, emoji)
        assert len(set(names)) == len(names) == letters + 10
        assert ("a" in names) == (not emoji or letters > 34)


@pytest.mark.parametrize("query", ["letter", "position"])
def test_an_example_taken_apart(query):
    problem = AssociativeRecall(8, query)
    sample = MemoryDataset(problem, "test", 50).collater(range(50))
    for inputs, (target,) in zip(
        sample["net_input"]["src_tokens"].tolist(), sample["target"].tolist()
    ):
        string, asked, answer = problem.question(inputs)
        assert string == inputs[:8] and answer == target
        shown = string[asked] if query == "position" else string[asked] - problem.letters
        assert shown == answer


def test_the_figure_holds_the_answers():
    probabilities = np.array([0.1, 0.6, 0.05, 0.25])
    names = symbol_names(4, True)[:4]
    figure = plot_memory(names, "which?", 2, names, 3, [Answer("RUM", probabilities)] * 2, top=3)
    string, *answers = figure.axes
    texts = [text.get_text() for text in string.texts]
    assert texts == [*(x for i, name in enumerate(names, 1) for x in (name, str(i))), "which?"]
    for axes in answers:
        assert [bar.get_width() for bar in axes.patches] == [0.6, 0.25, 0.1]
        assert [label.get_text() for label in axes.get_yticklabels()] == [
            names[i] for i in (1, 3, 0)
        ]
        assert axes.get_title() == f"RUM: wrong, {names[3]} would be right"
    (good,) = plot_memory(names, "", 0, names, 1, [Answer("A", probabilities)]).axes[1:]
    assert good.get_title() == "A: right"


@pytest.mark.parametrize("query", ["letter", "position"])
def test_command(recall_run, tmp_path, monkeypatch, capsys, query):
    from fairseq_rum.viz import memory

    seen = []
    monkeypatch.setattr(memory, "plot_memory", lambda *a: seen.append(a) or plot_memory(*a))
    runs = [recall_run("--rnn-unit", unit, "--query", query) for unit in ("rum", "lstm")]
    arguments = ["plot", "memory", "--checkpoints", f"RUM={runs[0]}", f"LSTM={runs[1]}"]
    out = ["--out", str(tmp_path / "m.png")]
    assert main([*arguments, "--example", "3", "--letters", *out]) == 0
    ((string, question, asked, names, right, answers, top),) = seen
    problem = AssociativeRecall(4, query)
    sample = MemoryDataset(problem, "test", 8).collater([3])
    assert right == sample["target"].item() and string[asked] == names[right]
    assert ("position" in question) == (query == "position") and top == 4
    assert len(names) == problem.output_symbols
    for run, answer in zip(runs, answers):
        state = torch.load(run / "checkpoint_last.pt", weights_only=True)["model"]
        size = len(state["output_projection.bias"])
        assert answer.probabilities.shape == (size,)
        assert answer.probabilities.sum() == pytest.approx(1)
    best = answers[0].probabilities
    line = f"RUM: {names[best.argmax()]} with {100 * best.max():.2f}%"
    assert line in capsys.readouterr().out


def test_bad_input(recall_run, tmp_path, capsys):
    run = recall_run("--rnn-unit", "rum")
    other = recall_run("--rnn-unit", "lstm", "--query", "position")
    copying = tmp_path / "copying"
    run_fairseq(
        "train", "--user-dir", USER_DIR, "--task", "copying_memory", "--delay", 3, "--arch",
        "rum_memory", "--hidden-size", 4, "--criterion", "memory_accuracy", "--optimizer",
        "rmsprop", "--train-examples", 8, "--valid-examples", 8, "--batch-size", 8, "--cpu",
        "--num-workers", 0, "--save-dir", copying, "--max-update", 1,
    )  # fmt: skip
    for arguments, message in (
        ([run, "--example", "8"], "--example 8: test has 0 to 7"),
        ([run, "--top", "0"], "--top must be at least 1, got 0"),
        ([run, other], "was trained on strings of another kind"),
        ([copying], "trained on another task than associative_recall"),
    ):
        command = ["plot", "memory", "--out", str(tmp_path / "a.png"), "--checkpoints"]
        assert main([*command, *map(str, arguments)]) == 2
        assert message in capsys.readouterr().err
