"""The experiments on the memory tasks: what is run, and what the paper has beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

# Of the paper: batch 128, RMSProp with decay .9 and learning rate 1e-3 (EURNN on copying 1e-4).
PROTOCOL = "--optimizer rmsprop --rmsprop-decay 0.9 --lr 0.001"


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        name: unique within a task.
        group: runs that one figure shows.
        label: in the figure and in the table.
        unit: options of the model.
        updates: at most so many.
        protocol: optimizer and learning rate, and what else a study changes.
        paper: accuracy in the paper, in percent, where it has one.
        paper_parameters: the paper's count.
    """

    name: str
    group: str
    label: str
    unit: str
    updates: int
    protocol: str = PROTOCOL
    paper: Optional[float] = None
    paper_parameters: str = ""


@dataclass(frozen=True)
class Task:
    """A memory task: options by group, and the runs."""

    name: str
    groups: Dict[str, str]
    runs: List[Run] = field(default_factory=list)


RUM1 = "--rnn-unit rum --rum-lambda 1"
RUM0 = "--rnn-unit rum --rum-lambda 0"
UNIFORM = "--rum-kernel-init uniform"
# The protocol of no paper: how to get RUM to solve a task rather than how to compare it.
COSINE = "--optimizer adam --lr 0.002 --lr-scheduler cosine"
PRESET = f"{UNIFORM} {COSINE}"


def copying() -> Task:
    """Figure 4 and the studies around it; N = 250, and 100 where the memory is a matrix."""
    task = Task(
        "copying", {f"t{t}": f"--task copying_memory --delay {t}" for t in (50, 100, 200, 500)}
    )
    wide, narrow = "--hidden-size 250", "--hidden-size 100"
    slow = PROTOCOL.replace("0.001", "0.0001")
    units = {
        "rum1": ("RUM lambda=1", f"{RUM1} {narrow}"),
        "rum0": ("RUM lambda=0", f"{RUM0} {wide}"),
        "lstm": ("LSTM", f"--rnn-unit lstm {wide}"),
        "gru": ("GRU", f"--rnn-unit gru {wide}"),
        "goru": ("GORU", f"--rnn-unit goru {wide}"),
        "eurnn": ("EURNN", f"--rnn-unit eurnn {wide}"),
        "urnn": ("uRNN", f"--rnn-unit urnn {wide}"),
        "fast_weights": ("FW-LN", f"--rnn-unit fast_weights {narrow}"),
        "weinet": ("WeiNet", f"--rnn-unit weinet {narrow}"),
        "rum1-eta1": ("RUM lambda=1 eta=1", f"{RUM1} --rum-eta 1 {narrow}"),
        "rum0-eta1": ("RUM lambda=0 eta=1", f"{RUM0} --rum-eta 1 {wide}"),
        "rum1-constant": ("RUM' lambda=1", f"{RUM1} --rum-constant-rotation {narrow}"),
        "rum1-no-gate": ("RUM lambda=1, no gate", f"{RUM1} --rum-no-update-gate {narrow}"),
        "rum1-tanh": ("RUM lambda=1, tanh", f"{RUM1} --rum-activation tanh {narrow}"),
        "rum1-softsign": ("RUM lambda=1, softsign", f"{RUM1} --rum-activation softsign {narrow}"),
        "rum1-uniform": ("RUM lambda=1, uniform", f"{RUM1} {UNIFORM} {narrow}"),
    }

    def add(group: str, name: str, updates: int) -> None:
        label, unit = units[name]
        protocol = slow if name == "eurnn" else PROTOCOL
        task.runs.append(Run(f"{group}-{name}", group, label, unit, updates, protocol))

    def other(group: str, name: str, suffix: str, how: str, updates: int, protocol: str) -> None:
        label, unit = units[name]
        label = f"{label}, {how}"
        task.runs.append(Run(f"{group}-{name}-{suffix}", group, label, unit, updates, protocol))

    for name in units:
        add("t100", name, 8000)
    other("t100", "rum1", "preset", "preset", 8000, PRESET)
    for name in ("rum1", "rum0", "lstm", "gru", "goru", "eurnn"):
        add("t200", name, 8000)
    for name in ("rum1", "lstm"):
        add("t500", name, 12000)
    for name in ("rum1", "lstm", "gru"):
        for rate in ("0.01", "0.001", "0.0001"):
            protocol = PROTOCOL.replace("0.001", rate)
            other("t50", name, f"lr{rate}", f"lr {rate}", 4000, protocol)
    return task


def recall() -> Task:
    """Table 1, N = 50, and RUM with other optimizers."""
    task = Task(
        "recall",
        {f"t{t}": f"--task associative_recall --recall-length {t}" for t in (10, 30, 50)},
    )
    # name: label, options, parameters in the paper, accuracy in the paper at T = 30 and T = 50
    units: Dict[str, Tuple[str, str, str, float, float]] = {
        "rum1": ("RUM lambda=1", RUM1, "13k", 100.0, 100.0),
        "gru": ("GRU", "--rnn-unit gru", "14k", 21.5, 17.6),
        "goru": ("GORU", "--rnn-unit goru", "13k", 21.8, 18.9),
        "eurnn": ("EURNN", "--rnn-unit eurnn", "4k", 24.5, 18.5),
        "lstm": ("LSTM", "--rnn-unit lstm", "17k", 25.6, 20.5),
        "fast_weights": ("FW-LN", "--rnn-unit fast_weights", "9k", 100.0, 20.8),
        "weinet": ("WeiNet", "--rnn-unit weinet", "22k", 100.0, 100.0),
        "rum0": ("RUM lambda=0", RUM0, "13k", 25.0, 18.5),
        "rum1-eta1": ("RUM lambda=1 eta=1", f"{RUM1} --rum-eta 1", "13k", 100.0, 83.7),
    }

    def add(group: str, name: str, updates: int) -> None:
        label, unit, parameters, *accuracies = units[name]
        paper = {"t30": accuracies[0], "t50": accuracies[1]}.get(group)
        task.runs.append(
            Run(
                f"{group}-{name}",
                group,
                label,
                f"{unit} --hidden-size 50",
                updates,
                paper=paper,
                paper_parameters=parameters if paper else "",
            )
        )

    def other(group: str, suffix: str, how: str, updates: int, options: str) -> None:
        unit = f"{RUM1} --hidden-size 50"
        label = f"RUM lambda=1, {how}"
        task.runs.append(Run(f"{group}-rum1-{suffix}", group, label, unit, updates, options))

    adam = "--optimizer adam --lr 0.001"
    tensorflow = f"{PROTOCOL} --rmsprop-eps-inside-sqrt --rmsprop-start 1"
    compared = ("rum1", "lstm", "gru", "fast_weights", "weinet")
    for name in compared:
        add("t10", name, 10000)
    other("t10", "tf", "TensorFlow's RMSProp", 10000, tensorflow)
    for name in units:
        add("t30", name, 50000)
    other("t30", "adam", "Adam", 50000, adam)
    other("t30", "tf", "TensorFlow's RMSProp", 50000, tensorflow)
    other("t30", "uniform", "uniform kernels", 50000, f"{UNIFORM} {PROTOCOL}")
    other("t30", "cosine", "Adam, cosine", 16000, COSINE)
    other("t30", "cosine-fresh", "Adam, cosine, fresh data", 16000, f"{COSINE} --fresh-batches")
    other("t30", "preset", "preset", 16000, PRESET)
    for name in compared:
        add("t50", name, 100000)
    other("t50", "adam", "Adam", 100000, adam)
    other("t50", "preset", "preset", 16000, PRESET)
    return task


TASKS = {"copying": copying, "recall": recall}
