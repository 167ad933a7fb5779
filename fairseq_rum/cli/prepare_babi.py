"""Turn the bAbI question-answering tasks into fairseq's binary form, a data directory for each.

Reads the official text files: DIR/en/qa1_single-supporting-fact_train.txt and so on. The last tenth
of the training questions becomes the validation split. A data directory has a folder for stories,
questions and answers, each with the files of fairseq-preprocess. Stories and questions share a
dictionary, and every answer is a class of its own, also one of several words.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from fairseq_rum.cli.binarize import (
    add_destination,
    all_or_nothing,
    check_destination,
    prefixes,
    run_preprocess,
)
from fairseq_rum.data.babi import PUBLISHED, TASK_NAMES, Question, read_babi
from fairseq_rum.errors import InputError

SIZES = ("en", "en-10k")
Splits = dict[str, list[Question]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fairseq-rum prepare babi``."""
    parser.add_argument(
        "--path", metavar="DIR", required=True, help=f"with the folders of {PUBLISHED}"
    )
    parser.add_argument(
        "--tasks",
        default="1-20",
        metavar="LIST",
        help="such as 3, 1-20 or 1,6,15-20 (default: all)",
    )
    parser.add_argument(
        "--size", choices=SIZES, default=SIZES[1], help="1,000 or 10,000 questions a task"
    )
    add_joint(parser)
    parser.add_argument(
        "--train-files",
        action="append",
        nargs="+",
        default=[],
        metavar="N FILE",
        help="train task N on these files instead of its own; questions that occur twice are "
        "taken once",
    )
    add_destination(parser)


def add_joint(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--joint``."""
    parser.add_argument(
        "--joint",
        action="store_true",
        help="one data directory for all tasks at once, DESTDIR itself, with a test split for each "
        "(test3 is task 3); otherwise DESTDIR/qa1 and so on are one each",
    )


def run(args: argparse.Namespace) -> int:
    """Do what the options say.

    Raises:
        InputError: bad input. Nothing is written then.
    """
    check_destination(args.destdir, args.workers)
    tasks = parse_tasks(args.tasks)
    replaced = _replaced(args.train_files, tasks)
    folder = _folder(args.path, args.size)
    corpora = {}
    for task in tasks:
        train = replaced.get(task) or [_find(folder, task, "train")]
        corpora[task] = split_questions(_read_all(task, train), read_babi(_find(folder, task)))
    with all_or_nothing(args.destdir) as (data, scratch):
        binarize_tasks(corpora, data, scratch, args.joint, args.workers)
    print_summary(corpora, args.destdir, args.joint)
    return 0


def parse_tasks(text: str, option: str = "--tasks") -> list[int]:
    """The task numbers of a list such as ``1,6,15-20``, sorted.

    Raises:
        InputError: it isn't one, or names a task that does not exist.
    """
    tasks: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if found is None:
            raise InputError(f"{option} {text}: expected numbers, such as 1,6,15-20")
        first, last = int(found[1]), int(found[2] or found[1])
        if not 1 <= first <= last <= len(TASK_NAMES):
            raise InputError(f"{option} {text}: there are tasks 1 to {len(TASK_NAMES)}")
        tasks.update(range(first, last + 1))
    return sorted(tasks)


def split_questions(train: Sequence[Question], test: Sequence[Question]) -> Splits:
    """Train, valid (the last tenth of what is for training) and test.

    Raises:
        InputError: fewer than ten questions for training.
    """
    valid = len(train) // 10
    if not valid:
        raise InputError(
            f"{train[0].where.rpartition(',')[0]}: has {len(train)} questions, fewer than ten: a "
            "tenth is for validation"
        )
    return {"train": list(train[:-valid]), "valid": list(train[-valid:]), "test": list(test)}


def binarize_tasks(
    corpora: Mapping[int, Splits], data: Path, scratch: Path, joint: bool, workers: int
) -> None:
    """Write the data directories of some tasks, or the one of all of them.

    Args:
        corpora: by number of the task.
        data: an empty folder, for ``qa1`` and so on, or for the one that all share.
        scratch: an empty folder for what nobody needs afterwards.
        joint: one for all.
        workers: processes of fairseq-preprocess.
    """
    for task, splits in corpora.items():
        for message in _unseen(task, splits):
            print(f"fairseq-rum: warning: {message}", file=sys.stderr)
        if not joint:
            _binarize(splits, data / f"qa{task}", scratch / f"qa{task}", workers)
    if joint:
        splits = {
            split: list(chain.from_iterable(each[split] for each in corpora.values()))
            for split in ("train", "valid", "test")
        }
        splits.update({f"test{task}": each["test"] for task, each in corpora.items()})
        _binarize(splits, data, scratch, workers)


def print_summary(corpora: Mapping[int, Splits], destdir: str, joint: bool) -> None:
    """Print what was written, and the command to go on with."""
    for task, splits in corpora.items():
        questions = list(chain.from_iterable(splits.values()))
        sizes = ", ".join(f"{len(part):,} {split}" for split, part in splits.items())
        answers = len({question.answer for question in splits["train"]})
        longest = max(len(question.story) for question in questions)
        symbols = max(sum(len(s) + 1 for s in question.story) for question in questions)
        print(
            f"qa{task}: {sizes}; {answers} answers; the longest story has {longest} sentences, "
            f"{symbols} symbols"
        )
    first = destdir if joint else str(Path(destdir, f"qa{min(corpora)}"))
    print(
        f'next: fairseq-train {shlex.quote(first)} --user-dir "$(fairseq-rum user-dir)" '
        "--task babi_qa --arch rum_qa --criterion answer_accuracy --optimizer adam --lr 0.001 "
        "--batch-size 32 --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric "
        "--patience 10"
    )


def _folder(path: str, size: str) -> Path:
    if not Path(path).is_dir():
        raise InputError(f"--path {path}: no such folder; the tasks are published at {PUBLISHED}")
    for folder in (Path(path, size), Path(path, "tasks_1-20_v1-2", size)):
        if any(folder.glob("qa*_*.txt")):
            return folder
    raise InputError(
        f"--path {path}: has no folder {size} with bAbI tasks, which are published at {PUBLISHED}"
    )


def _find(folder: Path, task: int, split: str = "test") -> Path:
    found = sorted(folder.glob(f"qa{task}_*_{split}.txt"))
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{folder}: several files of task {task}: {found[0].name}, ...")
    other = f"; --train-files {task} FILE takes others" if split == "train" else ""
    raise InputError(
        f"{folder}: no file qa{task}_..._{split}.txt, it is published at {PUBLISHED}{other}"
    )


def _replaced(options: Sequence[Sequence[str]], tasks: Sequence[int]) -> dict[int, list[Path]]:
    replaced: dict[int, list[Path]] = {}
    for task, *files in options:
        option = f"--train-files {' '.join([task, *files])}"
        if not task.isdecimal() or int(task) not in tasks or not files:
            raise InputError(f"{option}: expected one of --tasks, and files")
        if int(task) in replaced:
            raise InputError(f"{option}: task {task} has such files already")
        replaced[int(task)] = [Path(file) for file in files]
    return replaced


def _read_all(task: int, files: Sequence[Path]) -> list[Question]:
    questions = list(chain.from_iterable(map(read_babi, files)))
    if len(files) == 1:
        return questions
    different = list(dict.fromkeys(questions))
    print(
        f"qa{task}: {len(different):,} questions to train on from {len(files)} files, after "
        f"{len(questions) - len(different):,} that occur twice were removed"
    )
    return different


def _unseen(task: int, splits: Splits) -> list[str]:
    """What the other splits have that training lacks, as messages; it becomes ``<unk>``."""

    def words(question: Question) -> set[str]:
        return set(chain(question.question, *question.story))

    known_words = set().union(*map(words, splits["train"]))
    known_answers = {question.answer for question in splits["train"]}
    messages = []
    for split in ("valid", "test"):
        for kind, unseen in (
            ("words", [(q, words(q) - known_words) for q in splits[split]]),
            ("an answer", [(q, {q.answer} - known_answers) for q in splits[split]]),
        ):
            found = [(question, names) for question, names in unseen if names]
            if found:
                question, names = found[0]
                messages.append(
                    f"task {task}, {split}: {len(found)} of {len(splits[split])} questions have "
                    f"{kind} that no training question has, first {min(names)!r} "
                    f"({question.where})"
                )
    return messages


def _binarize(splits: Splits, data: Path, scratch: Path, workers: int) -> None:
    """Text files in `scratch`, and from them a data directory."""
    texts = {
        "story": lambda question: question.story_text,
        "question": lambda question: question.question_text,
        "answer": lambda question: question.answer,
    }
    for part, text in texts.items():
        for split, questions in splits.items():
            _write_lines(scratch / part / split, map(text, questions))
    # Stories and questions have one dictionary, of the words of both.
    both = [str(scratch / part / "train") for part in ("story", "question")]
    words = scratch / "words"
    _write_lines(words / "train", (Path(p).read_text(encoding="utf-8").rstrip("\n") for p in both))
    common = ["--only-source", "--padding-factor", "1", "--workers", str(workers)]
    run_preprocess(
        [*common, "--dict-only", "--trainpref", str(words / "train"), "--destdir", str(words)]
    )
    for part in texts:
        dictionary = ["--srcdict", str(words / "dict.txt")] if part != "answer" else []
        folder = data / part
        run_preprocess(
            [*common, *dictionary, "--destdir", str(folder)]
            + prefixes(list(splits), scratch / part)
        )
        _name_test_splits(folder, [name for name in splits if name.startswith("test")])


def _name_test_splits(folder: Path, names: Sequence[str]) -> None:
    """Name what fairseq-preprocess has counted, test, test1, test2 ...."""
    # From the last: a task has at least the number of its position.
    for position, name in reversed(list(enumerate(names))):
        counted = f"test{position or ''}"
        if name != counted:
            for suffix in ("bin", "idx"):
                (folder / f"{counted}.{suffix}").rename(folder / f"{name}.{suffix}")


def _write_lines(path: Path, lines: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)
