"""What scripts that run experiments share: commands as child processes, and records of them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Dict, List, Optional

EXAMPLES = Path(__file__).resolve().parent
ROOT = EXAMPLES.parent
# What runs write, in git's words for files that are not meant.
WRITTEN = [f":(exclude,top,glob)examples/*/{name}" for name in ("results/**", "README.md", "*.png")]


def execute(command: Sequence[str], output: Path, threads: int, lock: Optional[int] = None) -> int:
    """Run a command of fairseq's or fairseq-rum with its output at the end of a file; its status.

    The child inherits the lock: it is held as long as either of the two lives.
    """
    module = command[0].replace("fairseq-", "fairseq_cli.").replace("-", "_")
    module = "fairseq_rum.cli.main" if command[0] == "fairseq-rum" else module
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    with open(output, "a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command)}\n")
        file.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", module, *command[1:]],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            pass_fds=[] if lock is None else [lock],
        )
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise


def hardware(threads: int, gpu: bool) -> str:
    """Processor, threads and versions, in words."""
    import torch

    name = platform.processor() or platform.machine()
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = re.search(r"model name\s*:\s*(.*)", cpuinfo)[1]  # type: ignore[index]
    except (OSError, TypeError):
        pass
    where = f"{name}, {threads} of {os.cpu_count()} cores"
    if gpu and torch.cuda.is_available():
        where = f"{torch.cuda.get_device_name()}, {where}"
    return f"{where}, torch {torch.__version__}, Python {platform.python_version()}"


def commit() -> str:
    """The commit of this repository, with a + where code differs from it; empty without git.

    What runs write, results and READMEs, does not count.
    """
    try:
        git = ["git", "-C", str(ROOT)]
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        )
        dirty = subprocess.run(
            [*git, "status", "--porcelain", "-uno", "--", ".", *WRITTEN],
            capture_output=True,
            text=True,
        )
    except OSError:
        return ""
    if head.returncode:
        return ""
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def load(path: Path) -> Dict[str, Any]:
    """A run's record; empty if there is none.

    Raises:
        ValueError: it is no JSON.
    """
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: no record of a run ({error})") from error


def write(path: Path, text: str) -> None:
    """Replace a file as a whole: whoever stops this leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def other_settings(work: Path, record: Mapping[str, Any], **settings: Any) -> str:
    """What a run was begun with that is not so now, in a sentence; empty where all is the same.

    The settings are put into the work folder by the first call, since a record may be elsewhere.

    Args:
        work: the folder of the run, which is locked.
        record: of the run, as far as it is.
        settings: by their options' names.
    """
    path = work / "settings.json"
    before = {**{k: record[k] for k in settings if k in record}, **load(path)}
    for name, value in settings.items():
        if before.get(name, value) != value:
            option = f"--{name.replace('_', '-')}"
            return (
                f"begun with {option} {before[name]}, not {value}: give another --work and "
                "--results for that"
            )
    if before != settings:
        write(path, json.dumps(settings) + "\n")
    return ""


def with_new(before: List[str], now: str) -> List[str]:
    """A list with an entry that it may have already."""
    return before if now in before else [*before, now]


def read(path: Path) -> str:
    """The text of a file; empty if there is none."""
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def shown(path: Path) -> Path:
    """The path as commands show it: from the repository's root, where they are run."""
    try:
        return path.resolve().relative_to(ROOT)
    except ValueError:
        return path.resolve()


@contextlib.contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[Optional[int]]:
    """Make a folder, and yield its lock; None if another process has it and none waits for it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            yield None
        else:
            yield lock.fileno()


def keep(text: str, record: Dict[str, Any], results: Path, leave_out: Iterable[str] = ()) -> None:
    """Write what is kept of a run: its record, and the metrics in fairseq's output.

    Args:
        text: fairseq's output.
        record: what can be written as JSON.
        results: the folder of the run.
        leave_out: names of metrics that aren't worth keeping.
    """
    from fairseq_rum.data.training_log import parse_log, write_log

    results.mkdir(parents=True, exist_ok=True)
    log = parse_log(text)
    log.points.pop("train", None)  # averages over epochs
    write_log(log, results / "log.jsonl", leave_out)
    write(results / "run.json", json.dumps(record, indent=1) + "\n")


def parameters_in(text: str) -> Optional[int]:
    """The number of trained parameters in the output of fairseq-train."""
    found = re.findall(r"num\. shared model params: [\d,]+ \(num\. trained: ([\d,]+)\)", text)
    return int(found[-1].replace(",", "")) if found else None


def diverged(text: str) -> bool:
    """Whether fairseq-train says that loss or gradients were no numbers any more: a result.

    Any other error is a fault of a program or of a machine.
    """
    return bool(re.search(r"^FloatingPointError: |: training diverged", text, re.MULTILINE))


def where_made(records: Mapping[str, Dict[str, Any]]) -> List[str]:
    """A line for each seed, hardware and commit, with the names of the runs made so."""
    names: Dict[str, List[str]] = {}
    for name, record in records.items():
        data_seed = f", data seed {record['data_seed']}" if "data_seed" in record else ""
        where = (
            f"- seed {record['seed']}{data_seed}; {'; '.join(record['hardware'])}; "
            f"commit {', '.join(record['commit'])}"
        )
        names.setdefault(where, []).append(name)
    return [f"{where}: {', '.join(runs)}" for where, runs in names.items()]


def last_line(path: Path, before: int) -> str:
    """The last line that a file got after it had a number of bytes."""
    lines = path.read_bytes()[before:].decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


RESULTS_BEGIN, RESULTS_END = "<!-- results: written by the script -->", "<!-- end of results -->"


def write_results(readme: Path, text: str) -> None:
    """Put results between the two marks of a README, at its end where it has none yet.

    Raises:
        ValueError: it has the first mark alone.
    """
    before, begin, rest = read(readme).partition(RESULTS_BEGIN)
    _, end, after = rest.partition(RESULTS_END)
    if begin and not end:
        raise ValueError(f"{readme}: {RESULTS_BEGIN!r} without {RESULTS_END!r}")
    write(readme, f"{before}{RESULTS_BEGIN}\n\n{text}\n{RESULTS_END}{after or chr(10)}")
