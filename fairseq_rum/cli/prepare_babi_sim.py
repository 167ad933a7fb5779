"""Make up stories in the form of five bAbI tasks, with people and places of their own.

For examples that run without a download: one and two supporting facts, yes/no questions, deduction
and path finding, numbered as bAbI's tasks 1, 2, 6, 15 and 19. DESTDIR/text has them as bAbI files.
"""

from __future__ import annotations

import argparse

from fairseq_rum.cli.binarize import add_destination, all_or_nothing, check_destination
from fairseq_rum.cli.prepare_babi import (
    add_joint,
    binarize_tasks,
    parse_tasks,
    print_summary,
    split_questions,
)
from fairseq_rum.data.babi import TASK_NAMES, read_babi
from fairseq_rum.data.babi_sim import STORIES, generate
from fairseq_rum.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fairseq-rum prepare babi-sim``."""
    known = ",".join(map(str, STORIES))
    parser.add_argument("--tasks", default=known, metavar="LIST", help=f"of {known} (default: all)")
    parser.add_argument(
        "--train-questions",
        type=int,
        default=10000,
        metavar="N",
        help="of a task; the last tenth is for validation (default: %(default)s)",
    )
    parser.add_argument(
        "--test-questions", type=int, default=1000, metavar="N", help="default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: %(default)s")
    add_joint(parser)
    add_destination(parser)


def run(args: argparse.Namespace) -> int:
    """Do what the options say.

    Raises:
        InputError: bad input. Nothing is written then.
    """
    check_destination(args.destdir, args.workers)
    tasks = parse_tasks(args.tasks)
    if not STORIES.keys() >= set(tasks):
        raise InputError(f"--tasks {args.tasks}: there are {', '.join(map(str, STORIES))}")
    sizes = {"train": args.train_questions, "test": args.test_questions}
    for split, least in (("train", 10), ("test", 1)):
        if sizes[split] < least:
            raise InputError(f"--{split}-questions {sizes[split]}: must be at least {least}")
    corpora = {}
    with all_or_nothing(args.destdir) as (data, scratch):
        (data / "text").mkdir()
        for task in tasks:
            questions = {}
            for split, size in sizes.items():
                name = TASK_NAMES[task - 1].replace(" ", "-").replace("/", "-")
                path = data / "text" / f"qa{task}_{name}_{split}.txt"
                lines = generate(task, size, args.seed, split)
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
                questions[split] = read_babi(path)
            corpora[task] = split_questions(questions["train"], questions["test"])
        binarize_tasks(corpora, data, scratch, args.joint, args.workers)
    print_summary(corpora, args.destdir, args.joint)
    return 0
