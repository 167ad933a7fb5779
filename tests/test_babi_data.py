"""The bAbI files: the parser, ``fairseq-rum prepare babi``, and the dataset made of them."""

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from fairseq_rum.cli.main import main
from fairseq_rum.data.babi import Question, read_babi, split_words
from fairseq_rum.data.question_answering import UNSEEN, load_dictionaries, load_questions
from fairseq_rum.errors import InputError

STORY = (
    "1 Mary moved to the bathroom.\n"
    "2 John went to the hallway.\n"
    "3 Where is Mary? \tbathroom\t1\n"
    "4 Mary took the milk there.\n"
    "5 What is Mary carrying?\tmilk,football\t1 4\n"
    "1 The hallway is east of the office.\n"
    "2 How do you go? \tn,s\n"
)
MARY, JOHN = ("mary", "moved", "to", "the", "bathroom"), ("john", "went", "to", "the", "hallway")


def parse(tmp_path, text):
    path = tmp_path / "qa1_some_train.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return read_babi(path)


def test_read(tmp_path):
    questions = parse(tmp_path, STORY)
    took = ("mary", "took", "the", "milk", "there")
    assert questions == [
        Question((MARY, JOHN), ("where", "is", "mary"), "bathroom"),
        Question((MARY, JOHN, took), ("what", "is", "mary", "carrying"), "milk,football"),
        Question(
            (("the", "hallway", "is", "east", "of", "the", "office"),),
            ("how", "do", "you", "go"),
            "n,s",
        ),
    ]
    assert [question.supporting for question in questions] == [(0,), (0, 2), ()]
    assert [question.where.rpartition(", ")[2] for question in questions] == [
        "line 3", "line 5", "line 7",
    ]  # fmt: skip
    assert questions[0].story_text == " </s> ".join((" ".join(MARY), " ".join(JOHN)))
    assert questions[0].question_text == "where is mary"


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + STORY.encode(),
        STORY.replace("\n", "\r\n").encode(),
        STORY.replace("\n", "\r").encode(),
        STORY.replace("\n", "\r\n", 3).encode(),
        STORY.replace("\n", "\n\n").encode(),
        STORY.rstrip("\n").encode(),
        STORY.replace("\t1 4\n", "\t1 4  \n").encode(),
    ],
    ids=["byte-order mark", "CRLF", "CR", "mixed", "empty lines", "no last line end", "space"],
)
def test_what_files_may_look_like(tmp_path, data):
    assert parse(tmp_path, data) == parse(tmp_path, STORY)


def test_empty_story(tmp_path):
    (question,) = parse(tmp_path, "1 Is it so?\tyes\n")
    assert question.story == () and question.story_text == ""


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "no question in it"),
        ("1 Mary moved.\n", "no question in it"),
        ("Mary moved to the bathroom.\n", "line 1: not a line of a bAbI file"),
        ('{"story": ["Mary moved."]}\n', "line 1: not a line of a bAbI file"),
        ("1\n", "line 1: not a line of a bAbI file"),
        ("1 A b.\n2 Is it?\n", "line 2: a question without an answer"),
        ("1 A b.\n2 Is it?\t\t1\n", "line 2: a question without an answer"),
        ("1 A b.\n2 Is it?\t", "line 2: a question without an answer"),
        ("1 A b.\n3 Is it?\tyes\n", "line 2: has number 3 where 2, or 1 .* was expected"),
        ("2 A b.\n", "line 1: has number 2 where 1 was expected"),
        ("1 A b.\n2 C d.\n2 E f.\n", "line 3: has number 2 where 3, or 1 .* was expected"),
        ("1 A b.\n2 Is it?\tyes\t3\n", "line 2: supporting fact 3 is no earlier sentence"),
        ("1 A b.\n2 Is it?\tyes\tb\n", "line 2: supporting fact b is no earlier"),
        ("1 Is it?\tyes\n2 Is it?\tno\t1\n", "line 2: supporting fact 1 is no earlier"),
        ("1 A b.\n2 Is it?\tyes\t1\t2\n", "line 2: more than question, answer and"),
        ("1 A b.\n2 Is it?\tnot so\t1\n", "line 2: 'not so' is no answer"),
        ("1 A b.\n2 Is it?\t<unk>\n", "line 2: '<unk>' is no answer"),
        ("1 .\n", "line 1: a sentence without words"),
        ("1 A b.\n2 ?\tyes\n", "line 2: a sentence without words"),
        (b"1 A b.\n2 \xff\xfe.\n", "line 2: not UTF-8"),
    ],
)
def test_bad_files(tmp_path, text, message):
    with pytest.raises(InputError, match=f"qa1_some_train.txt(, |: ){message}"):
        parse(tmp_path, text)


def test_words():
    assert split_words("Where is the Mother-in-law's  key ?") == (
        "where", "is", "the", "mother-in-law's", "key",
    )  # fmt: skip
    assert split_words("Mr. X left.") == ("mr", ".", "x", "left")
    # Nothing in a text is taken for a symbol of fairseq's.
    assert "</s>" not in split_words("a </s> b <unk>.")
    assert split_words("Élan 42!") == ("élan", "42", "!")


# --- fairseq-rum prepare babi


def story(name, place, other, answer=None):
    """Two questions, the first one about one sentence and the second about three."""
    return (
        f"1 {name} went to the {place}.\n2 Where is {name}?\t{answer or place}\t1\n"
        f"3 Bob went to the {other}.\n4 {name} slept.\n5 Where is Bob?\t{other}\t3\n"
    )


NAMES = ["Ann", "Carl", "Dora", "Emil", "Flo"]
PLACES = ["attic", "barn", "cellar", "den"]


def write_task(folder, task, times=6, test=None, extra=""):
    """20 questions and more to train on, and 4 to test on."""
    folder.mkdir(parents=True, exist_ok=True)
    stories = [story(NAMES[i % 5], PLACES[i % 4], PLACES[(i + 1) % 4]) for i in range(5 * times)]
    train = folder / f"qa{task}_any-name_train.txt"
    train.write_text("".join(stories) + extra, encoding="utf-8")
    (folder / f"qa{task}_any-name_test.txt").write_text(
        test or "".join(stories[:2]), encoding="utf-8"
    )
    return train


def prepare(tmp_path, *arguments, path=None):
    return main(
        ["prepare", "babi", "--path", str(path or tmp_path / "babi"), "--destdir",
         str(tmp_path / "out"), *map(str, arguments)]
    )  # fmt: skip


def dataset(folder, split, shuffle=False):
    return load_questions(str(folder), split, *load_dictionaries(str(folder)), shuffle)


def as_text(folder, split):
    """Everything that the dataset gives, as text again, in the order of the file."""
    words, answers = load_dictionaries(str(folder))
    data = dataset(folder, split)
    sample = data.collater(range(len(data)))
    rows = []
    for tokens, length, answer in zip(
        sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"], sample["target"]
    ):
        assert (tokens[length:] == words.pad()).all() and (tokens[:length] != words.pad()).all()
        text = " ".join(words[token] for token in tokens[:length])
        name = "?" if answer == UNSEEN else answers[int(answer) + answers.nspecial]
        rows.append((text, name))
    return rows


def expected(questions):
    return [
        (" </s> ".join((*map(" ".join, q.story), q.question_text)) + " </s>", q.answer)
        for q in questions
    ]


def test_prepare_and_load(tmp_path, capsys):
    train = write_task(tmp_path / "babi" / "en-10k", 1)
    write_task(tmp_path / "babi" / "en-10k", 7, times=3)
    assert prepare(tmp_path, "--tasks", "1,7") == 0
    out = capsys.readouterr().out
    assert "qa1: 54 train, 6 valid, 4 test; 4 answers; the longest story has 3 sentences" in out
    assert "qa7: 27 train, 3 valid, 4 test" in out and "next: fairseq-train" in out
    questions = read_babi(train)
    folder = tmp_path / "out" / "qa1"
    assert as_text(folder, "train") == expected(questions[:54])
    assert as_text(folder, "valid") == expected(questions[54:]), "the last tenth"
    assert as_text(folder, "test") == expected(questions[:4])
    assert sorted(path.name for path in folder.iterdir()) == ["answer", "question", "story"]
    symbols = Dictionary.load(str(folder / "answer" / "dict.txt"))
    assert sorted(symbols.symbols[symbols.nspecial :]) == PLACES
    # Nothing is overwritten.
    assert prepare(tmp_path, "--tasks", "1") == 2
    assert "is not empty, and nothing is overwritten" in capsys.readouterr().err


def test_joint(tmp_path):
    write_task(tmp_path / "babi" / "en", 2)
    other = "1 Eve is old.\n2 Is Eve old?\tyes\t1\n"
    write_task(tmp_path / "babi" / "en", 15, times=1, test=other, extra=20 * other)
    assert prepare(tmp_path, "--tasks", "2,15", "--size", "en", "--joint") == 0
    folder = tmp_path / "out"
    assert len(dataset(folder, "train")) == 54 + 27
    assert len(dataset(folder, "valid")) == 6 + 3
    assert as_text(folder, "test15") == [("eve is old </s> is eve old </s>", "yes")]
    assert as_text(folder, "test") == as_text(folder, "test2") + as_text(folder, "test15")
    assert not (folder / "story" / "test1.bin").exists()


def test_files_of_another_place_for_training(tmp_path, capsys):
    first = write_task(tmp_path / "babi" / "en", 3)
    second = tmp_path / "more.txt"
    second.write_text(story("Ann", "attic", "barn") + story("Zoe", "attic", "barn"))
    write_task(tmp_path / "babi" / "en-10k", 3).unlink()
    assert prepare(tmp_path, "--tasks", 3) == 2
    error = capsys.readouterr().err
    assert "no file qa3_..._train.txt" in error and "--train-files 3 FILE takes others" in error
    assert prepare(tmp_path, "--tasks", 3, "--train-files", 3, first, second) == 0
    # 5 * 4 different stories, of two questions; the questions of two are about Bob alike.
    assert "qa3: 42 questions to train on from 2 files, after 22 that occur twice" in (
        capsys.readouterr().out
    )
    assert len(dataset(tmp_path / "out" / "qa3", "train")) == 38


def test_words_and_answers_that_training_lacks(tmp_path, capsys):
    test = story("Quentin", "attic", "barn") + story("Ann", "moon", "den")
    write_task(tmp_path / "babi" / "en-10k", 1, test=test)
    assert prepare(tmp_path, "--tasks", 1) == 0
    error = capsys.readouterr().err
    assert "task 1, test: 4 of 4 questions have words that no training question has, first" in error
    assert "'quentin' (" in error and "qa1_any-name_test.txt, line 2)" in error
    assert "1 of 4 questions have an answer that no training question has, first 'moon'" in error
    rows = as_text(tmp_path / "out" / "qa1", "test")
    assert rows[0] == ("<unk> went to the attic </s> where is <unk> </s>", "attic")
    assert rows[2][1] == "?"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--tasks", "0"], "--tasks 0: there are tasks 1 to 20"),
        (["--tasks", "3-21"], "--tasks 3-21: there are tasks 1 to 20"),
        (["--tasks", "5-2"], "--tasks 5-2: there are tasks 1 to 20"),
        (["--tasks", "one"], "--tasks one: expected numbers"),
        (["--tasks", "2"], "no file qa2_..._test.txt|no file qa2_..._train.txt"),
        (["--size", "en"], "has no folder en with bAbI tasks, which are published at https://"),
        (["--workers", "0"], "--workers 0: must be at least 1"),
        (["--train-files", "1"], "--train-files 1: expected one of --tasks, and files"),
        (["--train-files", "2", "f"], "--train-files 2 f: expected one of --tasks, and files"),
        (["--train-files", "1", "/no"], "/no: No such file or directory"),
    ],
)
def test_bad_options(tmp_path, capsys, arguments, message):
    import re

    write_task(tmp_path / "babi" / "en-10k", 1)
    tasks = [] if "--tasks" in arguments else ["--tasks", "1"]
    assert prepare(tmp_path, *tasks, *arguments) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists(), "nothing is written"


def test_no_folder_and_too_few_questions(tmp_path, capsys):
    assert prepare(tmp_path) == 2
    assert "no such folder; the tasks are published at https://" in capsys.readouterr().err
    (write_task(tmp_path / "babi" / "en-10k", 1)).write_text(story("Ann", "attic", "den"))
    assert prepare(tmp_path, "--tasks", 1) == 2
    assert "train.txt: has 2 questions, fewer than ten" in capsys.readouterr().err


def test_the_folder_as_it_is_unpacked(tmp_path):
    write_task(tmp_path / "babi" / "tasks_1-20_v1-2" / "en-10k", 1)
    assert prepare(tmp_path, "--tasks", 1) == 0


# --- the dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data directory with stories of one and three sentences, and without."""
    folder = tmp_path_factory.mktemp("qa")
    write_task(folder / "babi" / "en-10k", 1, extra="1 Is it Ann?\tattic\n" * 7)
    assert prepare(folder, "--tasks", "1") == 0
    return folder / "out" / "qa1"


def test_batches(data):
    train, plain = dataset(data, "train", shuffle=True), dataset(data, "train")
    assert len(train) == 61 and sorted(set(train.sentences)) == [1, 2, 4]
    batches = train.batches(8, None, seed=1, epoch=1)
    assert sorted(np.concatenate(batches)) == list(range(61)), "each example once"
    assert [len(batch) for batch in batches] == [8] * 7 + [5]
    lengths = [train.sentences[batch] for batch in batches]
    assert (np.diff(np.concatenate(lengths)) >= 0).all()
    again, other = (train.batches(8, None, seed=1, epoch=epoch) for epoch in (1, 2))
    assert all((a == b).all() for a, b in zip(batches, again))
    assert any((a != b).any() for a, b in zip(batches, other))
    assert (plain.ordered_indices() == np.argsort(plain.sentences, kind="stable")).all()
    small = train.batches(None, 60, seed=1, epoch=1)
    assert sorted(np.concatenate(small)) == list(range(61))
    assert max(max(map(train.num_tokens, batch)) * len(batch) for batch in small) <= 60
    with pytest.raises(InputError, match="--max-tokens 5: there is a story of"):
        train.batches(None, 5, seed=1, epoch=1)


def test_empty_stories(data):
    rows = as_text(data, "valid")
    assert rows[-1] == ("is it ann </s>", "attic")
    valid = dataset(data, "valid")
    assert valid.sentences[-1] == 1 and valid.collater([]) == {}


def test_a_batch_does_not_depend_on_the_others(data):
    train = dataset(data, "train")
    alone, together = train.collater([2]), train.collater([3, 2, 1])
    length = int(alone["net_input"]["src_lengths"])
    tokens = together["net_input"]["src_tokens"][1]
    assert torch.equal(tokens[:length], alone["net_input"]["src_tokens"][0])
    assert together["target"][1] == alone["target"][0]
    assert together["ntokens"] == int(together["net_input"]["src_lengths"].sum())


@pytest.mark.parametrize("part", ["story", "question", "answer"])
def test_incomplete_data_directory(data, tmp_path, part):
    import shutil

    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / part / "valid.bin").unlink()
    with pytest.raises(InputError, match=f"{part}/valid.bin: no such file"):
        dataset(tmp_path / "data", "valid")
    (tmp_path / "data" / part / "valid.idx").unlink()
    with pytest.raises(InputError, match=f"no split 'valid' .*{part}/valid.bin"):
        dataset(tmp_path / "data", "valid")
    (tmp_path / "data" / part / "dict.txt").unlink()
    with pytest.raises(InputError, match=f"no dictionary .*{part}/dict.txt"):
        dataset(tmp_path / "data", "train")


def test_parts_that_do_not_belong_together(data, tmp_path):
    import shutil

    shutil.copytree(data, tmp_path / "data")
    for suffix in ("bin", "idx"):
        folder = tmp_path / "data" / "question"
        shutil.copy(folder / f"valid.{suffix}", folder / f"train.{suffix}")
    with pytest.raises(InputError, match="its parts differ in length, 61 of story, 6 of question"):
        dataset(tmp_path / "data", "train")


def test_real_files(shared_data, tmp_path):
    """Task 3 of the 10k set as its README says, and the multi-word answers of task 8."""
    babi = shared_data / "babi"
    files = [babi / "en/qa3_three-supporting-facts_train.txt", babi / "en-valid-10k/qa3_valid.txt"]
    assert prepare(tmp_path, "--tasks", "3", "--train-files", 3, *files, path=babi) == 0
    assert len(dataset(tmp_path / "out" / "qa3", "train")) == 1733
    answers = {question.answer for question in read_babi(babi / "en/qa8_lists-sets_train.txt")}
    assert "milk,football" in answers or "football,milk" in answers
