"""Runs the experiments on the bAbI tasks, on several cores, and writes their results.

Each run is a fairseq-train command for one model and one task. It stops when the accuracy on the
validation split has not become better for --patience epochs; fairseq-validate then takes the best
checkpoint's accuracy on the test split. A run that was interrupted is resumed from its last
checkpoint, and one that is finished is skipped.

Data directories, checkpoints and fairseq's output go to --work, and to --results what is kept: a
record of each run with its command, seed, hardware and accuracies, and figures. The tables are in
the README.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Dict, Optional

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

from babi_matrix import (  # noqa: E402, found by the line above, as all of this block
    ALL,
    GROUPS,
    Run,
    all_runs,
    data_folder,
    prepare_command,
    record_path,
    test_command,
    train_command,
)
from babi_tables import refresh  # noqa: E402
from run_tools import (  # noqa: E402
    ROOT,
    commit,
    diverged,
    execute,
    hardware,
    last_line,
    load,
    locked,
    other_settings,
    parameters_in,
    read,
    with_new,
    write,
)


def outcome(text: str, status: int, max_epoch: int) -> Dict[str, Any]:
    """What became of a run, from fairseq's output and exit status."""
    from fairseq_rum.data.training_log import parse_log

    epochs, accuracy = parse_log(text).series("valid", "accuracy", "epoch")
    done = int(max(epochs, default=0))
    result: Dict[str, Any] = {"epochs": done, "valid_accuracy": accuracy}
    if status > 0:
        result["status"] = "diverged" if diverged(text) else "error"
    elif status == 0 and ("early stop since" in text or done >= max_epoch):
        result["status"] = "finished"
    else:
        result["status"] = "unfinished"
    return result


def tested(text: str) -> Optional[float]:
    """The accuracy on the test split in the output of fairseq-validate."""
    found = re.findall(r'"test_accuracy": "([\d.]+)"', text)
    return float(found[-1]) if found else None


def keep(run: Run, record: Dict[str, Any], options: argparse.Namespace) -> None:
    """Write the record of a run."""
    write(record_path(run, options), json.dumps(record) + "\n")


def do_run(run: Run, options: argparse.Namespace) -> str:
    """Train and test one run, unless it is done or another process is at it; what happened."""
    work = options.work / run.name
    output = work / "fairseq.log"
    with locked(work) as lock:
        if lock is None:
            return "another process is at it"
        record = load(record_path(run, options))
        other = other_settings(
            work,
            record,
            seed=options.seed,
            max_epoch=options.max_epoch,
            patience=options.patience,
        )
        if other:
            return f"error: {other}"
        if record.get("status") in ("finished", "diverged"):
            return f"{record['status']} before"
        command = train_command(run, options)
        record = {
            "label": run.model.label,
            "task": run.task,
            "seed": options.seed,
            "command": shlex.join(command),
            # Of all that a resumed run was trained on and with.
            "hardware": with_new(record.get("hardware", []), hardware(1, options.gpu)),
            "commit": with_new(record.get("commit", []), commit()),
            "minutes": record.get("minutes", 0.0),
            "status": "unfinished",
        }
        keep(run, record, options)
        before = output.stat().st_size if output.exists() else 0
        begin = time.monotonic()
        status = -1
        try:
            status = execute(command, output, 1, lock)
        finally:
            text = read(output)
            record["minutes"] = round(record["minutes"] + (time.monotonic() - begin) / 60, 2)
            record["parameters"] = parameters_in(text)
            record.update(outcome(text, status, options.max_epoch))
            keep(run, record, options)
        if record["status"] == "error":
            return f"error, see {output}: {last_line(output, before) or f'status {status}'}"
        if record["status"] == "finished":
            test_output = work / "test.log"
            test_output.unlink(missing_ok=True)
            command = test_command(run, options)
            execute(command, test_output, 1, lock)
            record["test_command"] = shlex.join(command)
            record["test_accuracy"] = tested(read(test_output))
            if record["test_accuracy"] is None:
                record["status"] = "error"
                keep(run, record, options)
                return f"error, see {test_output}: {last_line(test_output, 0)}"
            keep(run, record, options)
    accuracy = f", {record['test_accuracy']:.1f}%" if "test_accuracy" in record else ""
    return f"{record['status']} after {record['epochs']} epochs{accuracy}"


def prepare(options: argparse.Namespace, sizes: Sequence[str]) -> Optional[str]:
    """Make the data directories that are missing; what went wrong, if anything did."""
    for size in sizes:
        with locked(options.work / "data" / f"{size}.lock", wait=True) as lock:
            if data_folder(size, options).exists():
                continue
            if options.babi is None:
                return "give --babi, the folder with en and en-10k"
            output = options.work / "data" / f"{size}.log"
            output.unlink(missing_ok=True)
            if execute(prepare_command(size, options), output, 1, lock):
                return f"see {output}: {last_line(output, 0)}"
    return None


def parse_arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """The options of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted({model.name for group in GROUPS for model in group.models})
    groups = [group.name for group in GROUPS]
    parser.add_argument("--babi", type=Path, metavar="DIR", help="with the folders en and en-10k")
    parser.add_argument(
        "--groups", nargs="+", choices=groups, help="these tables (default: all but position)"
    )
    parser.add_argument("--models", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--tasks", nargs="+", type=int, choices=ALL, metavar="N", help="1 to 20")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--table", action="store_true", help="write the results, run nothing")
    parser.add_argument(
        "--hours", type=float, metavar="H", help="begin no other run after so many hours"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count(),
        metavar="N",
        help="runs at a time, of one thread each (default: one for each core)",
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--max-epoch", type=int, default=100, metavar="N", help="default: 100")
    parser.add_argument("--patience", type=int, default=10, metavar="N", help="default: 10")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--gpu", action="store_true", help="use a CUDA GPU")
    parser.add_argument("--user-dir", default="fairseq_rum", metavar="DIR")
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "babi", metavar="DIR")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR")
    options = parser.parse_args(argv)
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options


def work_through(runs: Sequence[Run], options: argparse.Namespace) -> int:
    """Do the runs one after the other; how many ended with an error."""
    end = None if options.hours is None else time.monotonic() + 3600 * options.hours
    failed = 0
    for run in runs:
        if end is not None and time.monotonic() > end:
            break
        happened = do_run(run, options)
        failed += happened.startswith("error")
        print(f"{run.name}: {happened}", flush=True)
    return failed


def share(argv: Sequence[str], jobs: int) -> int:
    """Run this script so many times at once, each taking runs that the others are not at."""
    command = [sys.executable, __file__, *argv, "--worker"]
    workers = [subprocess.Popen(command) for _ in range(jobs)]
    try:
        return sum(worker.wait() != 0 for worker in workers)
    except BaseException:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
        raise


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Do what the options say; 1 if a run ended with an error, 0 otherwise."""
    argv = sys.argv[1:] if argv is None else argv
    options = parse_arguments(argv)
    runs = all_runs(options)
    if options.list:
        for run in runs:
            print(f"# {run.name}\n{shlex.join(train_command(run, options))}")
        return 0
    # A polite end of this process ends the training too, which then resumes where it saved last.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.worker:
        return min(work_through(runs, options), 1)
    failed = 0
    if not options.table:
        problem = prepare(options, sorted({run.size for run in runs}))
        if problem is not None:
            print(f"error: {problem}", file=sys.stderr)
            return 1
        jobs = min(options.jobs, len(runs))
        failed = work_through(runs, options) if jobs <= 1 else share(argv, jobs)
    refresh(options)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
