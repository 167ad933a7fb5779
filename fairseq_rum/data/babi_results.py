"""Test accuracies of many runs on the bAbI tasks, from what fairseq-validate printed."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

from fairseq_rum.errors import InputError

FAILED_BELOW = 95.0
"""A task with a lower test accuracy, in percent, counts as failed."""

Accuracies = Dict[int, float]
_TASK = re.compile(r"qa(\d+)")
_ACCURACY = re.compile(r"test(\d*)_accuracy")
_SUFFIXES = (".log", ".json", ".jsonl", ".txt")


def read_results(runs: Union[str, Path]) -> Dict[str, Accuracies]:
    """Accuracies in percent, by run and number of the task.

    The output of ``fairseq-validate --valid-subset test --log-format json`` is looked for in files
    like ``RUNS/NAME/qa7/test.log``, where NAME is what a run is called (that of RUNS where there is
    none) and a folder or file called qa7 tells the task. Split ``test7`` of a joint data directory
    tells it as well. The last line of a file counts.

    Raises:
        InputError: there is no such folder or no such file in it, or two files have a task.
    """
    runs = Path(runs)
    if not runs.is_dir():
        raise InputError(f"--runs {runs}: no such folder")
    results: Dict[str, Accuracies] = {}
    origin: Dict[Tuple[str, int], Path] = {}
    for path in sorted(runs.rglob("*")):
        if path.suffix not in _SUFFIXES or not path.is_file():
            continue
        parts = path.relative_to(runs).parts
        name = parts[0] if len(parts) > 1 and not _TASK.match(parts[0]) else runs.resolve().name
        for task, accuracy in _read(path, parts).items():
            before = origin.setdefault((name, task), path)
            if before != path:
                raise InputError(f"--runs {runs}: both {before} and {path} are of task {task}")
            results.setdefault(name, {})[task] = accuracy
    if not results:
        raise InputError(
            f"--runs {runs}: no test accuracy of a task in it, from fairseq-validate "
            "--valid-subset test --log-format json in NAME/qa1/test.log and so on"
        )
    return results


def summary(accuracies: Mapping[int, float], tasks: Iterable[int]) -> Tuple[Optional[float], int]:
    """The mean over those of the tasks that were run (None if none was), and how many failed."""
    values = [accuracies[task] for task in tasks if task in accuracies]
    failed = sum(value < FAILED_BELOW for value in values)
    return (sum(values) / len(values) if values else None), failed


def _read(path: Path, parts: Tuple[str, ...]) -> Accuracies:
    """The last accuracy of each task in a file."""
    of_folder = [int(match[1]) for part in parts if (match := _TASK.match(part))]
    found: Accuracies = {}
    for point in _points(path.read_text(encoding="utf-8", errors="replace").splitlines()):
        if any(key.endswith("num_updates") for key in point):
            continue  # of a test split that was validated on while training: not of a checkpoint
        for key, value in point.items():
            match = _ACCURACY.fullmatch(key)
            task = int(match[1]) if match and match[1] else (of_folder or [None])[-1]
            if match and task is not None and _is_number(value):
                found[task] = float(value)
    return found


def _is_number(value: object) -> bool:
    try:
        return math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def _points(lines: List[str]) -> Iterator[Dict[str, str]]:
    for line in lines:
        start = line.find("{")
        if start < 0 or "_accuracy" not in line:
            continue
        try:
            point = json.loads(line[start:])
        except (ValueError, RecursionError):
            continue  # a line that was cut off
        if isinstance(point, dict):
            yield point
