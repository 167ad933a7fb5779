"""Runs the experiments on the memory tasks one after the other, and writes their results.

Each run is a fairseq-train command. It stops at --max-update or when a validation reaches 100%;
fairseq-validate then takes its accuracy on the test split. A run that was interrupted is resumed
from its last checkpoint, one that is finished is skipped, and one that another process is at is
left to it: to use two cores, start this twice with --threads 1.

Checkpoints and fairseq's output go to --work, what is kept to --results: for each run its command,
seed, hardware and metrics, and for all of them RESULTS.md and a figure for each group.
"""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

sys.path[:0] = map(str, Path(__file__).resolve().parents[:2])
from run_tools import (  # noqa: E402, found by the line above
    EXAMPLES,
    ROOT,
    commit,
    execute,
    hardware,
    keep,
    last_line,
    load,
    locked,
    parameters_in,
    read,
    shown,
    with_new,
)

# Of the paper: batch 128, RMSProp with decay .9 and learning rate 1e-3 (EURNN on copying 1e-4).
PROTOCOL = "--optimizer rmsprop --rmsprop-decay 0.9 --lr 0.001"
STOP = (
    "--stop-at-accuracy 100 --patience 1 --best-checkpoint-metric unsolved "
    "--maximize-best-checkpoint-metric"
)
LOGGED = 80  # points of a curve: few enough to keep the logs
SMALL_LOG = (
    "epoch",
    "update",
    "ups",
    "wps",
    "wpb",
    "bsz",
    "train_wall",
    "unsolved",
    "best_unsolved",
)


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        name: unique within a task.
        group: runs that one figure shows.
        label: in the figure and in the table.
        unit: options of the model.
        updates: at most so many.
        protocol: optimizer and learning rate.
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
    }

    def add(group: str, name: str, updates: int) -> None:
        label, unit = units[name]
        protocol = slow if name == "eurnn" else PROTOCOL
        task.runs.append(Run(f"{group}-{name}", group, label, unit, updates, protocol))

    for name in units:
        add("t100", name, 8000)
    for name in ("rum1", "rum0", "lstm", "gru", "goru", "eurnn"):
        add("t200", name, 8000)
    for name in ("rum1", "lstm"):
        add("t500", name, 12000)
    for name in ("rum1", "lstm", "gru"):
        for rate in ("0.01", "0.001", "0.0001"):
            label, unit = units[name]
            protocol = PROTOCOL.replace("0.001", rate)
            run = Run(f"t50-{name}-lr{rate}", "t50", f"{label}, lr {rate}", unit, 4000, protocol)
            task.runs.append(run)
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

    def other(group: str, suffix: str, how: str, updates: int, protocol: str) -> None:
        unit = f"{RUM1} --hidden-size 50"
        label = f"RUM lambda=1, {how}"
        task.runs.append(Run(f"{group}-rum1-{suffix}", group, label, unit, updates, protocol))

    adam = "--optimizer adam --lr 0.001"
    tensorflow = f"{PROTOCOL} --rmsprop-eps-inside-sqrt --rmsprop-start 1"
    preset = "--optimizer adam --lr 0.002 --lr-scheduler cosine"
    for name in ("rum1", "lstm"):
        add("t10", name, 10000)
    other("t10", "tf", "TensorFlow's RMSProp", 10000, tensorflow)
    for name in units:
        add("t30", name, 50000)
    other("t30", "adam", "Adam", 50000, adam)
    other("t30", "tf", "TensorFlow's RMSProp", 50000, tensorflow)
    other("t30", "preset", "Adam, cosine", 16000, preset)
    for name in ("rum1", "lstm", "gru", "fast_weights", "weinet"):
        add("t50", name, 100000)
    other("t50", "adam", "Adam", 100000, adam)
    return task


TASKS = {"copying": copying, "recall": recall}


def interval(updates: int) -> int:
    """Updates between two points of a log."""
    return max(1, updates // LOGGED)


def train_command(task: Task, run: Run, save_dir: str, options: argparse.Namespace) -> List[str]:
    """The fairseq-train command of a run."""
    updates = min(run.updates, options.max_update or run.updates)
    every = interval(run.updates)
    command = (
        f"fairseq-train --user-dir {options.user_dir} {task.groups[run.group]} "
        f"--arch rum_memory {run.unit} --criterion memory_accuracy --batch-size 128 {run.protocol} "
        f"--max-update {updates} {STOP} --seed {options.seed} --data-seed {options.data_seed} "
        f"--log-format json --log-interval {every} --num-workers 0 --data-buffer-size 0 "
        # Epochs are no unit here: validate and save at updates alone.
        f"--validate-interval 1000000 --save-interval 1000000 --no-epoch-checkpoints "
        f"--validate-interval-updates {every} --save-interval-updates {every} "
        f"--keep-interval-updates 1"
    ).split()
    command += ["--save-dir", save_dir]
    command += [] if options.gpu else ["--cpu"]
    command += ["--stop-time-hours", f"{options.hours:g}"] if options.hours else []
    return command


def test_command(task: Task, run: Run, save_dir: str, options: argparse.Namespace) -> List[str]:
    """The fairseq-validate command for the test split."""
    command = (
        f"fairseq-validate --user-dir {options.user_dir} {task.groups[run.group]} "
        f"--valid-subset test --batch-size 128 --log-format json --num-workers 0"
    ).split()
    command += ["--path", str(Path(save_dir) / "checkpoint_last.pt")]
    return command + ([] if options.gpu else ["--cpu"])


def outcome(text: str, status: int, max_update: int) -> Dict[str, Any]:
    """What became of a run, from fairseq's output and exit status."""
    from fairseq_rum.data.training_log import TRAIN, parse_log

    log = parse_log(text)
    updates, minutes = log.series(TRAIN, "minutes")
    valid_updates, accuracy = log.series("valid", "accuracy")
    done = int(max([0, *updates, *valid_updates]))
    result: Dict[str, Any] = {"updates": done, "minutes": round(minutes[-1], 2) if minutes else 0}
    if accuracy and accuracy[-1] >= 100:
        result["status"] = "solved"
    elif status > 0:
        # The first is a result, the second a fault of a program or a machine.
        diverged = re.search(r"^FloatingPointError: |: training diverged", text, re.MULTILINE)
        result["status"] = "diverged" if diverged else "error"
    else:
        result["status"] = "finished" if done >= max_update else "unfinished"
    parameters = parameters_in(text)
    if parameters is not None:
        result["parameters"] = parameters
    backend = re.findall(r"unit \w+: backend auto takes (\w+)", text)
    if backend:
        result["backend"] = backend[-1]
    return result


def tested(text: str) -> Optional[float]:
    """The accuracy on the test split in the output of fairseq-validate."""
    found = re.findall(r'"test_accuracy": "([\d.]+)"', text)
    return float(found[-1]) if found else None


def is_done(record: Dict[str, Any], max_update: int) -> bool:
    """Whether there is nothing left to do for a run."""
    if record.get("status") in ("solved", "diverged"):
        return True
    return record.get("status") == "finished" and record["updates"] >= max_update


def do_run(task: Task, run: Run, options: argparse.Namespace) -> str:
    """Train and test one run, unless it is done or another process is at it; what happened."""
    work, results = options.work / run.name, options.results / run.name
    max_update = min(run.updates, options.max_update or run.updates)
    record = load(results / "run.json")
    if is_done(record, max_update):
        return f"{record['status']} before"
    output = work / "fairseq.log"
    with locked(work) as lock:
        if lock is None:
            return "another process is at it"
        command = train_command(task, run, str(shown(work)), options)
        record = {
            "command": shlex.join(command),
            "seed": options.seed,
            "data_seed": options.data_seed,
            # Of all that a resumed run was trained on and with.
            "hardware": with_new(
                record.get("hardware", []), hardware(options.threads, options.gpu)
            ),
            "commit": with_new(record.get("commit", []), commit()),
            **outcome(read(output), 0, max_update),
            "status": "unfinished",
        }
        keep(read(output), record, results, SMALL_LOG)
        before = output.stat().st_size if output.exists() else 0
        status = execute(command, output, options.threads, lock)
        text = read(output)
        record.update(outcome(text, status, max_update))
        if record["status"] == "error":
            print(f"see {output}: ", end="")
            print(last_line(output, before) or f"exit status {status}", end=": ")
        if record["status"] in ("solved", "finished"):
            test_output = work / "test.log"
            test_output.unlink(missing_ok=True)
            command = test_command(task, run, str(shown(work)), options)
            execute(command, test_output, options.threads, lock)
            record["test_command"] = shlex.join(command)
            record["test_accuracy"] = tested(read(test_output))
        keep(text, record, results, SMALL_LOG)
    return f"{record['status']} after {record['updates']:,} updates"


def _hardware(options: argparse.Namespace) -> str:
    return hardware(options.threads, options.gpu)


def reached(updates: Sequence[float], values: Sequence[float], level: float) -> str:
    """The first update with at least that value."""
    found = [u for u, v in zip(updates, values) if v >= level]
    return f"{int(found[0]):,}" if found else "-"


def table(task: Task, options: argparse.Namespace) -> str:
    """The results of all runs that were begun, as Markdown; all numbers come from the logs."""
    from fairseq_rum.data.training_log import read_log

    columns = ["run", "parameters", "updates", "minutes", "accuracy (test)"]
    if task.name == "recall":
        columns[2:2] = ["paper's"]
        columns.append("paper's")
    else:
        columns += ["loss / baseline", "tenth at"]
    columns += ["50% at", "90% at", "99% at", "100% at"]
    parts = [
        f"# {task.name}: results\n\n"
        "Written by `examples/memory_runs.py` from the logs beside this file. Accuracies are in "
        "percent, of the test split where a run has ended and of the last validation where not. "
        '"50% at" and so on: the first validation, in updates, that reached it; "tenth at": a '
        "tenth of the baseline. Minutes are of training and validation, on a machine that may "
        "have had other work.\n"
    ]
    commands, machines = [], {}
    for group, title in task.groups.items():
        rows = []
        for run in task.runs:
            folder = options.results / run.name
            record = load(folder / "run.json")
            if run.group != group or not record:
                continue
            commands.append(f"# {run.name}\n{record['command']}")
            machine = (
                f"seed {record['seed']}, data seed {record['data_seed']}; "
                f"{'; '.join(record['hardware'])}; commit {', '.join(record['commit'])}"
            )
            machines.setdefault(machine, []).append(run.name)
            log = read_log(folder) if (folder / "log.jsonl").stat().st_size else None
            row = _row(task, run, record, log)
            rows.append("| " + " | ".join(row) + " |")
        if rows:
            header = "| " + " | ".join(columns) + " |\n|" + "---|" * len(columns)
            pictures = [f"![{m}]({group}-{m}.png)" for m in metrics_of(task)]
            parts.append(f"## `{title}`\n\n{header}\n" + "\n".join(rows) + "\n")
            parts.append(_fairness(task, group, options.results))
            parts.append("\n".join(pictures) + "\n")
    where = [f"- {machine}: {', '.join(names)}" for machine, names in machines.items()]
    parts.append("## Seeds and hardware\n\n" + "\n".join(where) + "\n")
    parts.append("## Commands\n\n```\n" + "\n".join(commands) + "\n```\n")
    return "\n".join(parts)


def _fairness(task: Task, group: str, results: Path) -> str:
    """Which baselines had fewer updates than the comparison asks for."""
    rum = load(results / f"{group}-rum1" / "run.json")
    if rum.get("status") != "solved":
        return ""
    least = max(2000, 3 * rum["updates"])
    short = []
    for run in task.runs:
        record = load(results / run.name / "run.json") if run.group == group else {}
        if not run.label.startswith("RUM") and record.get("status") in ("finished", "unfinished"):
            if record["updates"] < least:
                short.append(f"{run.label} ({record['updates']:,})")
    return (
        f"RUM lambda=1 solved it after {rum['updates']:,} updates; a baseline should have had at "
        f"least {least:,}. With fewer: {', '.join(short) or 'none'}.\n"
    )


def _row(task: Task, run: Run, record: Dict[str, Any], log: Any) -> List[str]:
    updates, accuracy = log.series("valid", "accuracy") if log else ([], [])
    final = record.get("test_accuracy")
    if final is None:
        final = accuracy[-1] if accuracy else None
    status = record["status"]
    done = f"{record['updates']:,}" + ("" if status in ("solved", "finished") else f" ({status})")
    row = [
        run.label,
        f"{record['parameters']:,}" if "parameters" in record else "-",
        done,
        f"{record['minutes']:.1f}",
        "-" if final is None else f"{final:.1f}",
    ]
    if task.name == "recall":
        row[2:2] = [run.paper_parameters or "-"]
        row.append("-" if run.paper is None else f"{run.paper:g}")
    else:
        at, loss = log.series("valid", "loss") if log else ([], [])
        _, baseline = log.series("valid", "baseline") if log else ([], [])
        ratio = [a / b for a, b in zip(loss, baseline)]
        row.append(f"{ratio[-1]:.3f}" if ratio else "-")
        row.append(reached(at, [-r for r in ratio], -0.1))
    return row + [reached(updates, accuracy, level) for level in (50, 90, 99, 100)]


def metrics_of(task: Task) -> List[str]:
    """What the figures of a task show."""
    return ["accuracy", "loss"] if task.name == "copying" else ["accuracy"]


def figures(task: Task, options: argparse.Namespace) -> None:
    """A figure of the accuracy for each group, and for copying one of the loss."""
    from fairseq_rum.cli.main import main as fairseq_rum

    for group in task.groups:
        runs = [
            f"{run.label}={options.results / run.name}"
            for run in task.runs
            if run.group == group and _has_points(options.results / run.name)
        ]
        if not runs:
            continue
        for metric in metrics_of(task):
            out = options.results / f"{group}-{metric}.png"
            extra = ["--baseline", "baseline:without memory"] if metric == "loss" else []
            fairseq_rum(
                ["plot", "curves", "--runs", *runs, "--metric", metric, "--out", str(out), *extra]
            )


def _has_points(folder: Path) -> bool:
    from fairseq_rum.data.training_log import TRAIN, read_log

    log = folder / "log.jsonl"
    return log.exists() and log.stat().st_size > 0 and TRAIN in read_log(log).points


def refresh(task: Task, options: argparse.Namespace) -> None:
    """Write the results of all runs, as far as they are."""
    for run in task.runs:
        results, output = options.results / run.name, options.work / run.name / "fairseq.log"
        record = load(results / "run.json")
        if output.exists() and record.get("status") == "unfinished":
            text = read(output)
            record.update(outcome(text, 0, run.updates))
            keep(text, {**record, "status": "unfinished"}, results, SMALL_LOG)
    if any((options.results / run.name / "run.json").exists() for run in task.runs):
        (options.results / "RESULTS.md").write_text(table(task, options), encoding="utf-8")
        figures(task, options)


def parse_arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """The options of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--group", action="append", metavar="T", help="t100, ...; all by default")
    parser.add_argument("--only", action="append", metavar="NAME", help="these runs alone")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--table", action="store_true", help="write the results, run nothing")
    parser.add_argument("--max-update", type=int, metavar="N", help="at most N updates a run")
    parser.add_argument("--hours", type=float, metavar="H", help="at most H hours a run")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--seed", type=int, default=1, help="of the model (default: 1)")
    parser.add_argument("--data-seed", type=int, default=1, help="of the data (default: 1)")
    parser.add_argument("--gpu", action="store_true", help="use a CUDA GPU")
    parser.add_argument("--user-dir", default="fairseq_rum", metavar="DIR")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="default: checkpoints/TASK in the repository"
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="default: examples/TASK/results"
    )
    options = parser.parse_args(argv)
    options.work = options.work or ROOT / "checkpoints" / options.task
    options.results = options.results or EXAMPLES / options.task / "results"
    task = TASKS[options.task]()
    known = {run.name for run in task.runs}
    for name in options.only or []:
        if name not in known:
            parser.error(f"--only {name}: no such run, there are {', '.join(sorted(known))}")
    for name in options.group or []:
        if name not in task.groups:
            parser.error(f"--group {name}: no such group, there are {', '.join(task.groups)}")
    return options


def main(argv: Optional[Sequence[str]] = None, task: Optional[Task] = None) -> int:
    """Do what the options say; 1 if a run ended with an error, 0 otherwise."""
    options = parse_arguments(argv)
    task = task or TASKS[options.task]()
    chosen = [
        run
        for run in task.runs
        if (not options.group or run.group in options.group)
        and (not options.only or run.name in options.only)
    ]
    if options.list:
        for run in chosen:
            work = shown(options.work / run.name)
            print(f"# {run.name}\n{shlex.join(train_command(task, run, str(work), options))}")
        return 0
    # A polite end of this process ends the training too, which then resumes where it saved last.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = 0
    for run in [] if options.table else chosen:
        print(f"{run.name}: ", end="", flush=True)
        happened = do_run(task, run, options)
        failed += happened.startswith("error")
        print(happened, flush=True)
    refresh(task, options)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
