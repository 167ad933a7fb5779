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
from pathlib import Path
from typing import Any, Dict, List, Optional

sys.path[:0] = map(str, Path(__file__).resolve().parents[:2])
from memory_experiments import TASKS, Run, Task  # noqa: E402, found by the line above
from memory_tables import figures, table  # noqa: E402
from run_tools import (  # noqa: E402
    EXAMPLES,
    ROOT,
    commit,
    diverged,
    execute,
    hardware,
    keep,
    last_line,
    load,
    locked,
    other_settings,
    parameters_in,
    read,
    shown,
    with_new,
    write,
)

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
    if status == 0 and accuracy and accuracy[-1] >= 100:
        result["status"] = "solved"
    elif status > 0:
        result["status"] = "diverged" if diverged(text) else "error"
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
    output = work / "fairseq.log"
    with locked(work) as lock:
        if lock is None:
            return "another process is at it"
        record = load(results / "run.json")
        other = other_settings(work, record, seed=options.seed, data_seed=options.data_seed)
        if other:
            return f"error: {other}"
        if is_done(record, max_update):
            return f"{record['status']} before"
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
        if record["status"] in ("solved", "finished"):
            output, before = work / "test.log", 0
            output.unlink(missing_ok=True)
            command = test_command(task, run, str(shown(work)), options)
            status = execute(command, output, options.threads, lock)
            record["test_command"] = shlex.join(command)
            record["test_accuracy"] = tested(read(output))
            if record["test_accuracy"] is None:
                record["status"] = "error"
        keep(text, record, results, SMALL_LOG)
    if record["status"] == "error":
        return f"error, see {output}: {last_line(output, before) or f'exit status {status}'}"
    return f"{record['status']} after {record['updates']:,} updates"


def refresh(task: Task, options: argparse.Namespace) -> None:
    """Write the results of all runs, as far as they are."""
    for run in task.runs:
        results, work = options.results / run.name, options.work / run.name
        output = work / "fairseq.log"
        if not output.exists() or load(results / "run.json").get("status") != "unfinished":
            continue
        with locked(work) as lock:
            record = load(results / "run.json")
            if lock is not None and record.get("status") == "unfinished":  # and nobody is at it
                text = read(output)
                record.update(outcome(text, 0, run.updates))
                keep(text, {**record, "status": "unfinished"}, results, SMALL_LOG)
    if any((options.results / run.name / "run.json").exists() for run in task.runs):
        write(options.results / "RESULTS.md", table(task, options.results))
        figures(task, options.results)


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
