"""What is run on the bAbI tasks: models, tasks, and their commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

from run_tools import shown  # the scripts of this folder have found it

ALL = tuple(range(1, 21))
# In en-10k, which has no training file of its own for task 3.
TASK_3 = ("en/qa3_three-supporting-facts_train.txt", "en-valid-10k/qa3_valid.txt")


@dataclass(frozen=True)
class Model:
    """One row of a table.

    Attributes:
        name: of its folder.
        label: in the table.
        options: of rum_qa.
        paper: the mean over all tasks in the paper, with 10,000 questions.
    """

    name: str
    label: str
    options: str
    paper: Optional[float] = None


@dataclass(frozen=True)
class Group:
    """One table: the same tasks and data for several models."""

    name: str
    title: str
    size: str
    tasks: Sequence[int]
    models: Sequence[Model]


RUM1 = "--rnn-unit rum --rum-lambda 1"
RUM0 = "--rnn-unit rum --rum-lambda 0"
GROUPS = (
    Group(
        "sentence",
        "Sentence level, 10,000 questions",
        "en-10k",
        ALL,
        (
            Model("rum1", "RUM lambda=1", RUM1, 79.0),
            Model("rum1-dot", "RUM lambda=1, attention", f"{RUM1} --attention dot", 80.1),
            Model("rum0", "RUM lambda=0", RUM0, 75.1),
            Model("lstm", "LSTM", "--rnn-unit lstm"),
            Model("gru", "GRU", "--rnn-unit gru"),
        ),
    ),
    Group(
        "tanh",
        "Sentence level, 10,000 questions, RUM with tanh",
        "en-10k",
        (1, 6, 15, 20),
        (Model("rum0-tanh", "RUM lambda=0, tanh", f"{RUM0} --rum-activation tanh", 70.5),),
    ),
    Group(
        "word",
        "Word level, 10,000 questions",
        "en-10k",
        (1, 6, 15, 20),
        (
            Model("word-rum1", "RUM lambda=1", f"--level word {RUM1}"),
            Model("word-rum0", "RUM lambda=0", f"--level word {RUM0}"),
            Model("word-lstm", "LSTM", "--level word --rnn-unit lstm", 56.0),
            Model("word-gru", "GRU", "--level word --rnn-unit gru", 58.2),
        ),
    ),
    Group(
        "position",
        "Sentence level, 10,000 questions, sentences with position encoding",
        "en-10k",
        ALL,
        tuple(
            Model(f"{name}-position", label, f"{options} --sentence-embedding position")
            for name, label, options in (
                ("rum1", "RUM lambda=1", RUM1),
                ("rum1-dot", "RUM lambda=1, attention", f"{RUM1} --attention dot"),
                ("lstm", "LSTM", "--rnn-unit lstm"),
            )
        ),
    ),
    Group(
        "small",
        "Sentence level, 1,000 questions: not to be compared with the paper's results",
        "en",
        (1, 2, 6, 15, 20),
        (
            Model("rum1", "RUM lambda=1", RUM1),
            Model("rum0", "RUM lambda=0", RUM0),
            *(
                Model(unit, label, f"--rnn-unit {unit}")
                for unit, label in (
                    ("lstm", "LSTM"),
                    ("gru", "GRU"),
                    ("goru", "GORU"),
                    ("eurnn", "EURNN"),
                    ("urnn", "uRNN"),
                    ("fast_weights", "FW-LN"),
                    ("weinet", "WeiNet"),
                )
            ),
        ),
    ),
)


BY_DEFAULT = ("sentence", "tanh", "word", "small")


@dataclass(frozen=True)
class Run:
    """One model on one task."""

    size: str
    model: Model
    task: int

    @property
    def name(self) -> str:
        """Of its folder and its record."""
        return f"{self.size}/{self.model.name}/qa{self.task}"


def all_runs(options: argparse.Namespace) -> List[Run]:
    """The runs that the options name; all models of a task before the next task."""
    return [
        Run(group.size, model, task)
        for group in GROUPS
        if group.name in (options.groups or BY_DEFAULT)
        for task in group.tasks
        if not options.tasks or task in options.tasks
        for model in group.models
        if not options.models or model.name in options.models
    ]


def data_folder(size: str, options: argparse.Namespace) -> Path:
    """The folder with a data directory for each task."""
    return options.work / "data" / size


def prepare_command(size: str, options: argparse.Namespace) -> List[str]:
    """The command that makes the data directories."""
    command = ["fairseq-rum", "prepare", "babi", "--path", str(options.babi), "--size", size]
    command += ["--destdir", str(shown(data_folder(size, options)))]
    own = list((options.babi / size).glob("qa3_*_train.txt"))
    others = [options.babi / name for name in TASK_3]
    if not own and all(path.exists() for path in others):
        command += ["--train-files", "3", *map(str, others)]
    return command


def train_command(run: Run, options: argparse.Namespace) -> List[str]:
    """The fairseq-train command of a run."""
    command = (
        f"fairseq-train {shown(data_folder(run.size, options) / f'qa{run.task}')} "
        f"--user-dir {options.user_dir} --task babi_qa --arch rum_qa {run.model.options} "
        f"--criterion answer_accuracy --optimizer adam --lr 0.001 --batch-size 32 "
        f"--max-epoch {options.max_epoch} --patience {options.patience} "
        f"--best-checkpoint-metric accuracy --maximize-best-checkpoint-metric "
        f"--seed {options.seed} --log-format json --log-interval 1000000 --num-workers 0 "
        f"--data-buffer-size 0 --no-epoch-checkpoints --save-dir {shown(options.work / run.name)}"
    ).split()
    return command + ([] if options.gpu else ["--cpu"])


def test_command(run: Run, options: argparse.Namespace) -> List[str]:
    """The fairseq-validate command for the test split."""
    command = (
        f"fairseq-validate {shown(data_folder(run.size, options) / f'qa{run.task}')} "
        f"--user-dir {options.user_dir} --task babi_qa --valid-subset test --batch-size 128 "
        f"--path {shown(options.work / run.name / 'checkpoint_best.pt')} --log-format json "
        f"--num-workers 0"
    ).split()
    return command + ([] if options.gpu else ["--cpu"])


def record_path(run: Run, options: argparse.Namespace) -> Path:
    """Where the record of a run is kept: one line, as fairseq-rum babi-table takes it."""
    return options.results / f"{run.name}.json"
