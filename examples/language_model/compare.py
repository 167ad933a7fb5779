"""Trains language models of about a million parameters for the same minutes, and compares them.

Each run is a fairseq-train command, in one thread. The five of the comparison train for MINUTES and
are then evaluated on the test split; the others are short ones of the fast-slow model: at full size
for speed and memory, and with and without time normalization and associative memory. A run that was
stopped goes on from its last checkpoint, one that is finished is skipped unless MINUTES has grown,
and one that another process is at is left to it.

Checkpoints and fairseq's output go to --work, what is kept to --results: for each run its command,
seed, hardware, log and numbers. The tables of README.md and the figure are made from those.
"""

from __future__ import annotations

import argparse
import re
import resource
import shlex
import signal
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Dict, List, Optional

sys.path[:0] = map(str, Path(__file__).resolve().parents[:3])
from compare_tables import COMPARISON, FULL, SHORT, Run, write_page  # noqa: E402
from run_tools import (  # noqa: E402, found by the line above
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
)

HERE = Path(__file__).resolve().parent
SMALL_LOG = ("epoch", "update", "ups", "wpb", "bsz", "train_wall", "loss", "ppl", "best_bpc")
RECIPE = (
    "--task stateful_language_modeling --tokens-per-sample 150 --criterion bits_per_token "
    "--sentence-avg --optimizer adam --lr 0.002 --clip-norm 1.0 --log-format json --num-workers 0 "
    "--cpu --no-epoch-checkpoints"
)
# Within the minutes that this is for a text is hardly seen twice: nothing to regularize.
CALM_LSTM = "--lstm-zoneout 0 --lstm-zoneout-cell 0"
CALM_FAST_SLOW = f"--dropout 0 {CALM_LSTM}"
# What --arch fs_rum is, without dropout and zoneout, and with eta left open.
FAST_SLOW = (
    "--arch rum_lm --rnn-unit fast_slow --decoder-hidden-size 199 --slow-hidden-size 284 "
    "--orthogonal-kernels --lstm-layer-norm --rum-layer-norm"
)


def compared(label: str, model: str) -> Run:
    """A run of the comparison."""
    return Run(COMPARISON, label, model)


def short(label: str, options: str) -> Run:
    """A short run of the fast-slow model; 16 streams, since R has 284 x 284 numbers for each."""
    return Run(SHORT, label, f"{FAST_SLOW} {options}".strip(), batch=16, updates=100, every=5)


RUNS = {
    "fs_rum": compared(
        "FS-RUM, 199 / 284",
        "--arch fs_rum --decoder-hidden-size 199 --slow-hidden-size 284 "
        f"{CALM_FAST_SLOW} --rum-zoneout 0",
    ),
    "fs_lstm": compared(
        "FS-LSTM, 246 / 141",
        f"--arch fs_lstm_2 --decoder-hidden-size 246 --slow-hidden-size 141 {CALM_FAST_SLOW}",
    ),
    "rum": compared(
        "RUM, 602", "--arch rum_lm_1000 --decoder-hidden-size 602 --rum-zoneout 0"
    ),
    "lstm": compared(
        "LSTM, 431", f"--arch lstm_lm_1000 --decoder-hidden-size 431 {CALM_LSTM}"
    ),
    "gru": compared(
        "GRU, 505",
        "--arch rum_lm --rnn-unit gru --decoder-hidden-size 505 --gru-layer-norm "
        "--orthogonal-kernels",
    ),
    "full": Run(FULL, "FS-RUM-2 at full size", "--arch fs_rum", updates=20, every=1),
    "eta": short("lambda = 0, eta = 1", "--rum-eta 1"),
    "no_eta": short("lambda = 0, no eta", ""),
    "lambda_eta": short("lambda = 1, eta = 1", "--rum-lambda 1 --rum-eta 1"),
    "lambda_no_eta": short("lambda = 1, no eta", "--rum-lambda 1"),
}  # fmt: skip


def train_command(run: Run, work: str, options: argparse.Namespace) -> List[str]:
    """The fairseq-train command of a run."""
    command = [
        "fairseq-train", str(options.data), "--user-dir", options.user_dir, *RECIPE.split(),
        *run.model.split(), "--batch-size", str(run.batch), "--log-interval", str(run.every),
        "--seed", str(options.seed), "--save-dir", work,
    ]  # fmt: skip
    if run.group == COMPARISON:
        # An hour to four digits; validation and the best checkpoint count as time of the run.
        return (
            command
            + (
                f"--stop-time-hours {options.minutes / 60:.4f} --validate-interval-updates 100 "
                "--save-interval-updates 100 --keep-interval-updates 1 --best-checkpoint-metric bpc"
            ).split()
        )
    return command + f"--max-update {run.updates} --disable-validation --no-save".split()


def test_command(work: str, options: argparse.Namespace) -> List[str]:
    """The fairseq-eval-lm command for the test split."""
    return [
        "fairseq-eval-lm", str(options.data), "--user-dir", options.user_dir,
        "--task", "stateful_language_modeling", "--path", f"{work}/checkpoint_last.pt",
        "--gen-subset", "test", "--batch-size", str(options.test_streams), "--cpu",
        "--no-progress-bar",
    ]  # fmt: skip


def is_done(run: Run, record: Dict[str, Any], options: argparse.Namespace) -> bool:
    """Whether there is nothing left to do for a run."""
    if record.get("status") == "diverged":
        return True
    enough = run.group != COMPARISON or record.get("budget", 0) >= options.minutes
    return record.get("status") == "finished" and enough


def numbers(text: str, status: int, run: Run) -> Dict[str, Any]:
    """What became of a run, from fairseq's output and exit status."""
    from fairseq_rum.data.training_log import TRAIN, parse_log

    log = parse_log(text)
    updates, minutes = log.series(TRAIN, "minutes")
    validated, valid = log.series("valid", "bpc")
    _, speed = log.series(TRAIN, "wps")
    done = int(max([0, *updates, *validated]))
    found: Dict[str, Any] = {
        "updates": done,
        "minutes": round(minutes[-1], 2) if minutes else 0,
        "parameters": parameters_in(text),
    }
    if valid:
        found["valid_bpc"] = valid[-1]
    if len(speed) > 2:
        found["characters_per_second"] = round(statistics.median(speed[1:]))
    if status == 0:
        found["status"] = "finished" if done >= run.updates else "unfinished"
    else:
        found["status"] = "diverged" if diverged(text) else "error" if status > 0 else "unfinished"
    return found


def do_run(name: str, options: argparse.Namespace) -> str:
    """Train and test one run, unless it is done or another process is at it; what happened."""
    run, work, results = RUNS[name], options.work / name, options.results / name
    output = work / "fairseq.log"
    with locked(work) as lock:
        if lock is None:
            return "another process is at it"
        record = load(results / "run.json")
        other = other_settings(work, record, seed=options.seed, data=str(options.data))
        if other:
            return f"error: {other}"
        if is_done(run, record, options):
            return f"{record['status']} before"
        if run.group != COMPARISON:  # these save nothing to go on from
            output.unlink(missing_ok=True)
        before = output.stat().st_size if output.exists() else 0
        largest = peak_memory_of_children()
        command = train_command(run, str(shown(work)), options)
        record = {
            "command": shlex.join(command),
            "seed": options.seed,
            # Of all that a resumed run was trained on and with.
            "hardware": with_new(record.get("hardware", []), hardware(options.threads, False)),
            "commit": with_new(record.get("commit", []), commit()),
            **numbers(read(output), 0, run),
            "status": "unfinished",
        }
        keep(read(output), record, results, SMALL_LOG)
        status = execute(command, output, options.threads, lock)
        record.update(numbers(read(output), status, run))
        if run.group == FULL and peak_memory_of_children() > largest:
            record["peak_memory_mb"] = peak_memory_of_children()
        if run.group == COMPARISON and record["status"] == "finished":
            record["budget"] = options.minutes
            record.update(test(work, options, lock))
            if record["test_bpc"] is None:
                record["status"], output, before = "error", work / "test.log", 0
        keep(read(work / "fairseq.log"), record, results, SMALL_LOG)
    if record["status"] == "error":
        return f"error, see {output}: {last_line(output, before) or f'exit status {status}'}"
    return f"{record['status']} after {record['updates']:,} updates"


def peak_memory_of_children() -> int:
    """The largest resident memory that a child process had so far, in MB (Linux)."""
    return round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)


def test(work: Path, options: argparse.Namespace, lock: int) -> Dict[str, Any]:
    """Evaluate the last checkpoint on the test split."""
    output = work / "test.log"
    output.unlink(missing_ok=True)
    command = test_command(str(shown(work)), options)
    execute(command, output, options.threads, lock)
    found = re.search(r"Loss \(base 2\): ([\d.]+)", read(output))
    return {
        "test_command": shlex.join(command),
        "test_bpc": float(found[1]) if found else None,
    }


def parse_arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """The options of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="runs: " + ", ".join(f"{name} ({run.label})" for name, run in RUNS.items()),
    )
    parser.add_argument("data", help="data directory of fairseq-rum prepare chars --unit bytes")
    parser.add_argument("minutes", type=float, help="of training for each run of the comparison")
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="which; the five of the comparison by default"
    )
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--table", action="store_true", help="write the results, run nothing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--test-streams", type=int, default=1, metavar="N", help="1 (the default) is the protocol"
    )
    parser.add_argument("--user-dir", default="fairseq_rum", metavar="DIR")
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "compare")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--page", type=Path, default=HERE / "README.md", help="with the tables")
    options = parser.parse_args(argv)
    options.data = shown(Path(options.data))
    for name in options.runs:
        if name not in RUNS:
            parser.error(f"no run {name!r}, there are {', '.join(RUNS)}")
    options.runs = options.runs or [n for n, run in RUNS.items() if run.group == COMPARISON]
    return options


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Do what the options say; 1 if a run ended with an error, 0 otherwise."""
    options = parse_arguments(argv)
    if options.list:
        for name in options.runs:
            command = train_command(RUNS[name], str(shown(options.work / name)), options)
            print(f"# {name}\n{shlex.join(command)}")
        return 0
    # A polite end of this process ends the training too, which then resumes where it saved last.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = 0
    for name in [] if options.table else options.runs:
        print(f"{name}: ", end="", flush=True)
        happened = do_run(name, options)
        failed += happened.startswith("error")
        print(happened, flush=True)
    write_page(RUNS, options.results, options.page)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
