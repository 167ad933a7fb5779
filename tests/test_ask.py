"""fairseq-rum ask: a story and questions typed in, answered by a trained model."""

import io

import pytest
from conftest import USER_DIR, run_fairseq

from fairseq_rum.cli.main import main
from fairseq_rum.data.babi_sim import PLACES


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Two models that have hardly learnt where people are; one has attention."""
    folder = tmp_path_factory.mktemp("ask")
    assert main(["prepare", "babi-sim", "--tasks", "1", "--train-questions", "600",
                 "--test-questions", "10", "--destdir", str(folder / "data")]) == 0  # fmt: skip
    for attention in ("none", "dot"):
        run_fairseq(
            "train", folder / "data" / "qa1", "--user-dir", USER_DIR, "--task", "babi_qa",
            "--arch", "rum_qa", "--rum-lambda", 1, "--attention", attention, "--hidden-size", 48,
            "--criterion", "answer_accuracy", "--optimizer", "adam", "--lr", 0.005,
            "--batch-size", 32, "--max-epoch", 1, "--cpu", "--num-workers", 0, "--seed", 1,
            "--no-epoch-checkpoints", "--save-dir", folder / attention, "--log-format", "none",
        )  # fmt: skip
    return folder


def ask(checkpoints, name, text, monkeypatch, capsys, terminal=False):
    stdin = io.StringIO(text)
    stdin.isatty = lambda: terminal
    monkeypatch.setattr("sys.stdin", stdin)
    capsys.readouterr()
    status = main(["ask", "--checkpoint", str(checkpoints / name / "checkpoint_last.pt")])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


DIALOGUE = (
    "Alice went to the cellar.\nWhere is Alice?\nAlice ran to the pantry.\nWhere is Alice?\n\n"
    "Boris walked to the orchard.\nwhere is boris ?\n"
)


@pytest.mark.parametrize("name", ["none", "dot"])
def test_answers_are_those_of_the_test_split(checkpoints, name, monkeypatch, capsys):
    """The file of the test split, typed in, against the model on the binary data."""
    from fairseq import checkpoint_utils

    path = checkpoints / name / "checkpoint_last.pt"
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    task.load_dataset("test")
    sample = task.dataset("test").collater(range(10))
    expected = [task.answer(int(i)) for i in model.eval()(**sample["net_input"]).argmax(1)]
    (file,) = (checkpoints / "data" / "text").glob("*_test.txt")
    lines = []
    for line in file.read_text().splitlines():
        number, text = line.partition("\t")[0].split(" ", 1)
        lines += ["", text] if number == "1" else [text]
    status, out, _ = ask(checkpoints, name, "\n".join(lines), monkeypatch, capsys)
    assert status == 0
    answers = [line for line in out.splitlines() if line[0] != " "]
    assert [line.split()[0] for line in answers] == expected
    assert all(line.endswith("%)") for line in answers)


def test_a_story_goes_on_and_begins_anew(checkpoints, monkeypatch, capsys):
    status, out, _ = ask(checkpoints, "dot", DIALOGUE, monkeypatch, capsys)
    assert status == 0
    sentences = [line[8:].strip(" #") for line in out.splitlines() if line[0] == " "]
    first, second = "alice went to the cellar", "alice ran to the pantry"
    assert sentences == [first, first, second, "boris walked to the orchard"]
    _, out, _ = ask(checkpoints, "none", DIALOGUE, monkeypatch, capsys)
    assert len(out.splitlines()) == 3, "nothing but the answers"


def test_attention_is_shown_for_each_sentence(checkpoints, monkeypatch, capsys):
    text = "Alice went to the cellar.\nBoris ran to the pantry.\nWhere is Boris?\n"
    status, out, _ = ask(checkpoints, "dot", text, monkeypatch, capsys)
    assert status == 0
    answer, *sentences = out.splitlines()
    assert answer.split()[0] in PLACES
    assert [line[:2] for line in sentences] == ["  ", "  "]
    assert sentences[0].endswith(" alice went to the cellar")
    assert sentences[1].endswith(" boris ran to the pantry")
    assert sum(float(line.split()[0]) for line in sentences) == pytest.approx(1, abs=0.02)


def test_a_byte_order_mark(checkpoints, monkeypatch, capsys):
    text = "\ufeffAlice went to the cellar.\nWhere is Alice?\n"
    status, out, _ = ask(checkpoints, "dot", text, monkeypatch, capsys)
    assert status == 0 and out.splitlines()[1].endswith(" alice went to the cellar")


def test_an_empty_story(checkpoints, monkeypatch, capsys):
    for name in ("none", "dot"):
        status, out, _ = ask(checkpoints, name, "Where is Alice?\n", monkeypatch, capsys)
        assert status == 0 and len(out.splitlines()) == 1


def test_a_story_longer_than_any_in_training(checkpoints, monkeypatch, capsys):
    text = "Alice went to the cellar.\n" * 200 + "Where is Alice?\n"
    status, out, _ = ask(checkpoints, "dot", text, monkeypatch, capsys)
    assert status == 0 and len(out.splitlines()) == 201


def test_unknown_words(checkpoints, monkeypatch, capsys):
    text = "Alice went to the cellar.\nAlice phoned Zack.\nWhere is Alice?\n"
    status, out, err = ask(checkpoints, "none", text, monkeypatch, capsys)
    assert status == 2 and out == ""
    assert "line 2: not a word of the training data: 'phoned', 'zack'" in err
    # At a terminal the line is left out, and the story goes on.
    status, out, err = ask(checkpoints, "none", text, monkeypatch, capsys, terminal=True)
    assert status == 0 and err == ""
    lines = out.splitlines()
    assert lines[0].startswith('Sentences end with "."')
    assert lines[1] == "This model has no attention to show."
    assert lines[2] == "not a word of the training data: 'phoned', 'zack'"
    assert lines[3].endswith("%)")
    status, out, err = ask(checkpoints, "none", " . \n", monkeypatch, capsys)
    assert status == 2 and "line 1: there is no word in this line" in err


def test_another_model(checkpoints, recall_run, monkeypatch, capsys):
    folder = recall_run()
    status, _, err = ask(folder.parent, folder.name, "", monkeypatch, capsys)
    assert status == 2 and "no model of questions, which is --arch rum_qa" in err
    status, _, err = ask(checkpoints, "nowhere", "", monkeypatch, capsys)
    assert status == 2 and "no such checkpoint" in err


def test_a_data_directory_that_moved(checkpoints, monkeypatch, capsys):
    moved = checkpoints / "elsewhere"
    (checkpoints / "data").rename(moved)
    try:
        status, _, err = ask(checkpoints, "none", DIALOGUE, monkeypatch, capsys)
        assert status == 2 and "no data directory" in err
        monkeypatch.setattr("sys.stdin", io.StringIO(DIALOGUE))
        command = ["ask", "--checkpoint", str(checkpoints / "none"), "--data", str(moved / "qa1")]
        assert main(command) == 0
        assert len(capsys.readouterr().out.splitlines()) == 3
    finally:
        moved.rename(checkpoints / "data")
