"""Runs the experiments on summarization one after the other, and writes their results.

Every run trains for the same --minutes, each validation included (a quarter of them to overfit 50
pairs), then writes summaries of the test split with beam search and scores them; the first sentence
of each text is scored beside them. A run that was interrupted is resumed from its last checkpoint,
one that is finished is skipped, and one that another process is at is left to it: to use two cores,
start this twice.

Corpora, checkpoints and fairseq's output go to --work, what is kept to --results: for each run its
commands, seed, hardware, metrics and scores. The tables are written into README.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Optional

sys.path[:0] = map(str, Path(__file__).resolve().parents[:3])
from run_tools import (  # noqa: E402
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
from summary_corpora import CORPORA, Corpus, prepare  # noqa: E402, found by the line above
from summary_tables import write_tables  # noqa: E402

# See et al. 2017: Adagrad with learning rate .15 and accumulators from .1, clipping at 2, batch 16.
PROTOCOL = "--optimizer rum_adagrad --lr 0.15 --clip-norm 2.0 --batch-size 16"
EVERY = 100  # updates between validations
ARCHS = {
    "lead": ("LSTM (LEAD)", "pointer_gen_lstm"),
    "encrum": ("encRUM", "pointer_gen_enc_rum"),
    "decrum": ("decRUM", "pointer_gen_rum"),
    "allrum": ("allRUM", "pointer_gen_all_rum"),
}


@dataclass(frozen=True)
class Run:
    """One model on one corpus.

    Attributes:
        name: unique.
        corpus: of its training, or with ``base`` and without ``coverage`` of its test alone.
        model: a key of :data:`ARCHS`.
        base: the run whose checkpoint it starts from.
        coverage: train on with coverage.
        share: of --minutes.
    """

    name: str
    corpus: str
    model: str
    base: str = ""
    coverage: bool = False
    share: float = 1.0

    @property
    def label(self) -> str:
        """The model in a table."""
        return ARCHS[self.model][0] + (", coverage" if self.coverage else "")


def all_runs() -> List[Run]:
    """The runs whose settings do not depend on the results of others, in their order."""
    runs = [Run("names-decrum", "names", "decrum", share=1 / 4)]
    runs += [Run(f"gigaword10k-{model}", "gigaword10k", model) for model in ARCHS]
    for corpus in ("docstrings", "scitldr-s2s", "scitldr-sh2s", "scitldr-s2t"):
        runs += [Run(f"{corpus}-{model}", corpus, model) for model in ("lead", "decrum")]
    for model in ("lead", "decrum"):
        runs.append(Run(f"scitldr-ood-{model}", "scitldr-ood", model, f"gigaword10k-{model}"))
    return runs


def coverage_runs(options: argparse.Namespace) -> List[Run]:
    """The two best of gigaword10k, by validation loss, once all four are finished."""
    bases = [run for run in all_runs() if run.corpus == "gigaword10k"]
    records = {run: load(options.results / run.name / "run.json") for run in bases}
    if any(record.get("status") != "finished" for record in records.values()):
        return []
    best = sorted(bases, key=lambda run: records[run]["valid_loss"])[:2]
    return [
        replace(run, name=f"{run.name}-cov", base=run.name, coverage=True, share=1 / 3)
        for run in best
    ]


def train_command(run: Run, data: str, save_dir: str, options: argparse.Namespace) -> List[str]:
    """The fairseq-train command of a run."""
    hours = run.share * options.minutes / 60
    start = []
    if run.coverage:
        base = options.work / run.base / "checkpoint_best.pt"
        # fairseq goes on counting from the time that the checkpoint took.
        hours += training_seconds(base) / 3600
        start = ["--coverage", "--finetune-from-model", str(shown(base))]
    command = (
        f"fairseq-train {data} --user-dir {options.user_dir} --task rum_summarization "
        f"--criterion pointer_coverage_loss --arch {ARCHS[run.model][1]} {PROTOCOL} "
        f"--seed {options.seed} --stop-time-hours {hours:.4f} --log-format json "
        f"--log-interval 20 --num-workers 0 --validate-interval 1000000 --save-interval 1000000 "
        f"--validate-interval-updates {EVERY} --save-interval-updates {EVERY} "
        f"--keep-interval-updates 1 --no-epoch-checkpoints"
    ).split()
    return [*command, *start, "--save-dir", save_dir, *([] if options.gpu else ["--cpu"])]


def training_seconds(checkpoint: Path) -> float:
    """The time of training that a checkpoint states; 0 if there is no checkpoint."""
    import torch

    import fairseq_rum  # noqa: F401, allows what fairseq writes into checkpoints

    if not checkpoint.exists():
        return 0.0
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    return state["extra_state"]["previous_training_time"]


def generate_command(
    run: Run, data: str, checkpoint: str, work: str, options: argparse.Namespace
) -> List[str]:
    """The fairseq-generate command of a run."""
    command = (
        f"fairseq-generate {data} --user-dir {options.user_dir} --task rum_summarization "
        f"--path {checkpoint} --gen-subset test --beam 4 {CORPORA[run.corpus].decode} "
        f"--batch-size 16 --scoring rouge --results-path {work} --p-gen-path {work}/p_gen.txt"
    ).split()
    return command + ([] if options.gpu else ["--cpu"])


def score_command(data: Path, summaries: Sequence[str]) -> List[str]:
    """The fairseq-rum score command for summaries of the test split."""
    references = sorted(data.glob("test.target*.txt"), key=lambda path: (len(path.name), path.name))
    files = [str(shown(path)) for path in [data / "test.source.txt", *references]]
    return ["fairseq-rum", "score", *summaries, "--src", files[0], "--ref", *files[1:]]


def score(command: Sequence[str]) -> Dict[str, Any]:
    """The result of a fairseq-rum score command."""
    module = [sys.executable, "-m", "fairseq_rum.cli.main"]
    result = subprocess.run(
        [*module, *command[1:], "--json"], cwd=ROOT, capture_output=True, text=True
    )
    if result.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def do_baseline(corpus: Corpus, options: argparse.Namespace) -> None:
    """Score the first sentences of a corpus."""
    data = prepare(corpus, options)
    results = options.results / f"{corpus.name}-baseline"
    if load(results / "run.json"):
        return
    command = score_command(data, ["--lead", "1"])
    record = {"scores": score(command), "commands": [shlex.join(command)]}
    keep("", record, results)


def do_run(run: Run, options: argparse.Namespace) -> str:
    """Train, generate and score one run, unless it is done; what happened."""
    work, results = options.work / run.name, options.results / run.name
    corpus = CORPORA[run.corpus]
    is_trained_here = run.coverage or not run.base
    with locked(work) as lock:
        if lock is None:
            return "another process is at it"
        record = load(results / "run.json")
        other = other_settings(work, record, seed=options.seed)
        if other:
            return f"error: {other}"
        if record.get("status") == "diverged" or (
            record.get("status") == "finished" and record["minutes_asked"] >= options.minutes
        ):
            return f"{record['status']} before"
        do_baseline(corpus, options)
        data = prepare(corpus, options)
        record = {
            "commands": [read(options.work / "data" / corpus.name / "command").strip()],
            "seed": options.seed,
            "minutes_asked": options.minutes,
            # Of all that a resumed run was trained on and with.
            "hardware": with_new(
                record.get("hardware", []), hardware(options.threads, options.gpu)
            ),
            "commit": with_new(record.get("commit", []), commit()),
            "status": "unfinished",
        }
        text = ""
        if is_trained_here:
            text = train(run, data, work, record, options, lock)
            if record["status"] != "finished":
                return f"{record['status']} after {record['updates']:,} updates"
        elif load(options.results / run.base / "run.json").get("status") != "finished":
            return f"waits for {run.base}"
        checkpoint = (work if is_trained_here else options.work / run.base) / "checkpoint_best.pt"
        generate(run, data, checkpoint, work, record, options, lock)
        record["status"] = "finished"
        keep(text, record, results)
    return "finished"


def train(
    run: Run,
    data: Path,
    work: Path,
    record: Dict[str, Any],
    options: argparse.Namespace,
    lock: int,
) -> str:
    """Train; the record gets what became of it, and is written. Returns fairseq's output."""
    output = work / "fairseq.log"
    command = train_command(run, str(shown(data)), str(shown(work)), options)
    record["commands"].append(shlex.join(command))
    record.update(outcome(read(output), 0))
    keep(read(output), {**record, "status": "unfinished"}, options.results / run.name)
    before = output.stat().st_size if output.exists() else 0
    status = execute(command, output, options.threads, lock)
    text = read(output)
    record.update(outcome(text, status))
    keep(text, {**record, "status": "unfinished"}, options.results / run.name)
    if record["status"] == "error":
        print(f"see {output}: {last_line(output, before) or status}", end=": ")
    return text


def outcome(text: str, status: int) -> Dict[str, Any]:
    """What became of a training, from fairseq's output and exit status."""
    from fairseq_rum.data.training_log import TRAIN, parse_log

    log = parse_log(text)
    updates, minutes = log.series(TRAIN, "minutes")
    _, losses = log.series("valid", "loss")
    stops = re.findall(r"cumulative_training_time: ([\d.]+) > stop_time_hours", text)
    result: Dict[str, Any] = {
        "updates": int(max([0, *updates, *log.series("valid", "loss")[0]])),
        "minutes": round(60 * float(stops[-1]) if stops else max([0.0, *minutes]), 2),
        "valid_loss": min(losses) if losses else None,
    }
    parameters = parameters_in(text)
    if parameters is not None:
        result["parameters"] = parameters
    if status > 0:
        result["status"] = "diverged" if diverged(text) else "error"
    else:
        result["status"] = "finished" if stops and status == 0 else "unfinished"
    return result


def generate(
    run: Run,
    data: Path,
    checkpoint: Path,
    work: Path,
    record: Dict[str, Any],
    options: argparse.Namespace,
    lock: int,
) -> None:
    """Write summaries of the test split and score them; the record gets the scores."""
    paths = [str(shown(path)) for path in (data, checkpoint, work)]
    command = generate_command(run, *paths, options)
    output = work / "generate.log"
    output.unlink(missing_ok=True)
    status = execute(command, output, options.threads, lock)
    if status:
        raise RuntimeError(f"{output}: {last_line(output, 0) or status}")
    summaries = ["--generated", f"{paths[2]}/generate-test.txt", "--p-gen", f"{paths[2]}/p_gen.txt"]
    scoring = score_command(data, summaries)
    record["commands"] += [shlex.join(command), shlex.join(scoring)]
    record["scores"] = score(scoring)
    record["exact"] = exact(work / "generate-test.txt", data / "test.target.txt")


def exact(generated: Path, references: Path) -> float:
    """The percentage of summaries that are their reference, word for word."""
    from fairseq_rum.data.generated import read_generated

    pairs = list(zip(read_generated(str(generated)).hypotheses, read(references).split("\n")))
    return 100 * sum(ours == theirs for ours, theirs in pairs) / len(pairs)


def parse_arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """The options of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=12, metavar="M", help="default: 12")
    parser.add_argument("--corpus", action="append", choices=CORPORA, help="all by default")
    parser.add_argument("--only", action="append", metavar="NAME", help="these runs alone")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--table", action="store_true", help="write the results, run nothing")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--gpu", action="store_true", help="use a CUDA GPU")
    parser.add_argument("--user-dir", default="fairseq_rum", metavar="DIR")
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data", metavar="DIR",
        help="folder with gigaword10k and scitldr (default: ../shared/data)",
    )  # fmt: skip
    parser.add_argument(
        "--work", type=Path, default=ROOT / "checkpoints" / "summarization", metavar="DIR"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(__file__).resolve().parent / "results",
        metavar="DIR",
        help="the tables go into README.md beside it",
    )
    return parser.parse_args(argv)


def chosen(options: argparse.Namespace) -> List[Run]:
    """The runs that the options name.

    Raises:
        SystemExit: there is no such run.
    """
    runs = [*all_runs(), *coverage_runs(options)]
    for name in options.only or []:
        if name not in {run.name for run in runs}:
            known = ", ".join(run.name for run in runs)
            sys.exit(f"--only {name}: no such run, or not yet; there are {known}")
    return [
        run
        for run in runs
        if (not options.corpus or run.corpus in options.corpus)
        and (not options.only or run.name in options.only)
    ]


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Do what the options say; 1 if a run ended with an error, 0 otherwise."""
    options = parse_arguments(argv)
    if options.list:
        for run in chosen(options):
            data, work = (
                str(shown(options.work / path))
                for path in (f"data/{run.corpus}/data-bin", run.name)
            )
            print(f"# {run.name}")
            if run.coverage or not run.base:
                print(shlex.join(train_command(run, data, work, options)))
            start = run.name if run.coverage or not run.base else run.base
            checkpoint = str(shown(options.work / start / "checkpoint_best.pt"))
            print(shlex.join(generate_command(run, data, checkpoint, work, options)))
        return 0
    # A polite end of this process ends the training too, which then resumes where it saved last.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed, done = 0, set()
    # Coverage runs come to be when others are finished.
    while not options.table and (waiting := [r for r in chosen(options) if r not in done]):
        print(f"{waiting[0].name}: ", end="", flush=True)
        try:
            happened = do_run(waiting[0], options)
        except RuntimeError as error:
            happened = f"error: {error}"
        done.add(waiting[0])
        failed += happened.startswith("error")
        print(happened, flush=True)
    runs = [*all_runs(), *coverage_runs(options)]
    write_tables(CORPORA.values(), runs, options.results)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
