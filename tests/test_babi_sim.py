"""Made-up stories: every answer is found again by a reader that knows nothing of the generator."""

import collections
import itertools
import re

import pytest

from fairseq_rum.cli.main import main
from fairseq_rum.data.babi import read_babi
from fairseq_rum.data.babi_sim import STORIES, generate


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """400 questions of each kind, through a file and the parser."""
    found = {}
    for task in STORIES:
        path = tmp_path_factory.mktemp("sim") / f"qa{task}.txt"
        path.write_text("".join(f"{line}\n" for line in generate(task, 400, seed=3)))
        found[task] = read_babi(path)
    return found


# --- the reader: sentences are strings here


def where_is(sentences, who):
    """The last place that a person went to."""
    places = [
        match[1]
        for sentence in sentences
        if (match := re.fullmatch(rf"{who} \w+ to the (\w+)", sentence))
    ]
    return places[-1] if places else None


def where_is_thing(sentences, thing):
    """At the last one to take it, up to the sentence in which that one left it."""
    for end in range(len(sentences), 0, -1):
        match = re.fullmatch(rf"(\w+) (took|left) the {thing}( there)?", sentences[end - 1])
        if match:
            return where_is(sentences if match[2] == "took" else sentences[:end], match[1])
    return None


def afraid_of(sentences, name):
    (kind,) = (s.split()[-1] for s in sentences if re.fullmatch(rf"{name} is an? \w+", s))
    feared = [s.split()[-1] for s in sentences if re.match(rf"{kind}(s|es) are afraid of", s)]
    (plural,) = feared
    return {"foxes": "fox"}.get(plural, plural.removesuffix("s"))


def shortest_ways(sentences, start, end):
    """All shortest ways by breadth-first search, over what the sentences say and its inverse."""
    step = {"north": "n", "south": "s", "east": "e", "west": "w"}
    back = {"n": "s", "s": "n", "e": "w", "w": "e"}
    edges = collections.defaultdict(list)
    for sentence in sentences:
        a, direction, b = re.fullmatch(r"the (\w+) is (\w+) of the (\w+)", sentence).groups()
        edges[b].append((step[direction], a))
        edges[a].append((back[step[direction]], b))
    ways = [([], start)]
    while ways:
        done = [",".join(path) for path, place in ways if place == end]
        if done:
            return done
        ways = [([*path, d], b) for path, a in ways for d, b in edges[a]]
    return []


def solve(question):
    sentences = [" ".join(sentence) for sentence in question.story]
    words = question.question
    text = question.question_text
    if text.startswith("where is the"):
        return where_is_thing(sentences, words[-1])
    if text.startswith("where is"):
        return where_is(sentences, words[-1])
    if text.startswith("is "):
        return "yes" if where_is(sentences, words[1]) == words[-1] else "no"
    if text.startswith("what is"):
        return afraid_of(sentences, words[2])
    match = re.fullmatch(r"how do you go from the (\w+) to the (\w+)", text)
    (way,) = shortest_ways(sentences, match[1], match[2])
    return way


@pytest.mark.parametrize("task", STORIES)
def test_answers(questions, task):
    assert len(questions[task]) == 400
    for question in questions[task]:
        assert solve(question) == question.answer, question


@pytest.mark.parametrize("task", STORIES)
def test_the_supporting_facts_are_enough(questions, task):
    """And each one is needed."""
    for question in questions[task]:
        facts = tuple(question.story[i] for i in sorted(question.supporting))
        assert len(facts) == (1 if task in (1, 6) else 2)
        assert solve(type(question)(facts, question.question, "")) == question.answer
        if task == 2:
            for fact in facts:
                assert solve(type(question)((fact,), question.question, "")) is None


@pytest.mark.parametrize("task", STORIES)
def test_no_answer_is_favoured(questions, task):
    counts = collections.Counter(question.answer for question in questions[task])
    assert len(counts) == {1: 6, 2: 6, 6: 2, 15: 4, 19: 12}[task]
    assert max(counts.values()) < 2 * 400 / len(counts)


def test_things_are_also_left(questions):
    left = [any(sentence[1] == "left" for sentence in question.story) for question in questions[2]]
    assert 50 < sum(left) < 350


def test_seeds():
    def lines(*arguments):
        return list(generate(1, 50, *arguments))

    assert lines(1) == lines(1)
    assert len({tuple(lines(*a)) for a in [(1,), (2,), (1, "test")]}) == 3
    assert sum("\t" in line for line in itertools.islice(generate(19, 7, 1), 100)) == 7
    with pytest.raises(ValueError, match="no stories for task 3, choose one of 1, 2, 6, 15, 19"):
        next(generate(3, 1, 1))


# --- fairseq-rum prepare babi-sim


def test_prepare(tmp_path, capsys):
    command = ["prepare", "babi-sim", "--train-questions", "40", "--test-questions", "12"]
    destination = tmp_path / "out"
    assert main([*command, "--tasks", "1,19", "--destdir", str(destination)]) == 0
    out = capsys.readouterr().out
    assert "qa1: 36 train, 4 valid, 12 test" in out and "qa19: 36 train" in out
    texts = sorted(path.name for path in (destination / "text").iterdir())
    assert texts == [f"qa{task}_{split}.txt" for task in ("19_path-finding", "1_single-supporting-"
                     "fact") for split in ("test", "train")]  # fmt: skip
    assert len(read_babi(destination / "text" / texts[0])) == 12
    assert (destination / "qa19" / "answer" / "test.bin").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--tasks", "3"], "--tasks 3: there are 1, 2, 6, 15, 19"),
        (["--train-questions", "9"], "--train-questions 9: must be at least 10"),
        (["--test-questions", "0"], "--test-questions 0: must be at least 1"),
    ],
)
def test_bad_options(tmp_path, capsys, arguments, message):
    command = ["prepare", "babi-sim", "--destdir", str(tmp_path / "out"), *arguments]
    assert main(command) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()
