"""Reads the metrics of a training run from what fairseq printed.

Takes the output of ``--log-format json`` or ``simple``, from ``--log-file`` or standard output, and
the files of ``--tensorboard-logdir``. A ``--log-file`` has every line as many times as fairseq
began an epoch or a validation before it, and a run that was killed and resumed has some updates
twice: each update counts once here, and the later one is kept. A line that was cut off is left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Tuple, Union

from fairseq_rum.data.event_files import has_events, read_scalars
from fairseq_rum.errors import InputError

TRAIN = "train_inner"  # fairseq's name for the averages over --log-interval updates
_PATTERNS = ("*.jsonl", "*.log", "*.json", "*.txt")
_SIMPLE_INNER = re.compile(r"epoch (\d+):\s+\d+ / \d+ (.*)$")
_SIMPLE_SUMMARY = re.compile(r"epoch (\d+) \| (?:valid on '([^']+)' subset \| )?(.*)$")

Point = Dict[str, float]


@dataclass
class TrainingLog:
    """The metrics of a run.

    Attributes:
        points: by split (``train_inner``, ``train``, ``valid`` ...), in the order of updates. A
            point has ``num_updates``, ``minutes`` since the start, and the metrics by fairseq's
            names without prefix. Where a run was resumed the minutes go on; work that was lost
            isn't counted.
    """

    points: Dict[str, List[Point]] = field(default_factory=dict)

    def series(
        self, split: str, metric: str, x: str = "num_updates"
    ) -> Tuple[List[float], List[float]]:
        """Values of ``x`` and ``metric`` at the points that have both; empty if there are none."""
        points = [p for p in self.points.get(split, []) if x in p and metric in p]
        return [p[x] for p in points], [p[metric] for p in points]

    def last(self, metric: str) -> Optional[float]:
        """The latest value of a metric in whatever split has it; None if none has."""
        found = [p for points in self.points.values() for p in points if metric in p]
        return max(found, key=lambda p: p["num_updates"])[metric] if found else None

    def metrics(self, split: str) -> List[str]:
        """The names of the metrics of a split, sorted."""
        return sorted({name for point in self.points.get(split, []) for name in point})

    def add(self, split: str, point: Point) -> None:
        """Add a point, with ``minutes``; if it isn't after the last of its split, in its place.

        Where training goes back, what came of the updates that were lost is left out too.
        """
        point["minutes"] = _minutes(self, split, point)
        own, updates = self.points.setdefault(split, []), point["num_updates"]
        goes_back = split == TRAIN and own and own[-1]["num_updates"] > updates
        for points in self.points.values() if goes_back else [own]:
            while points and points[-1]["num_updates"] >= updates:
                points.pop()
        own.append(point)


def find_log(path: Union[str, Path]) -> Path:
    """The log of a run: the file itself, or in a folder the first file that holds metrics.

    A folder that has none but TensorBoard's files in it is itself the log.

    Raises:
        InputError: there is no such path, or no file with metrics in the folder.
    """
    path = Path(path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(f"{path}: no such file or folder")
    for pattern in _PATTERNS:
        for candidate in sorted(path.glob(pattern)):
            if candidate.is_file() and parse_log(_read(candidate)).points:
                return candidate
    if has_events(path):
        return path
    raise InputError(
        f"{path}: no file with fairseq's metrics in it ({', '.join(_PATTERNS)}); "
        "train with --log-format json --log-file FILE"
    )


def read_log(path: Union[str, Path]) -> TrainingLog:
    """Read the log of a run, a file or the folder it is in.

    Raises:
        InputError: there is no such path, or no metrics in it.
    """
    found = find_log(path)
    if found.is_dir():
        log = TrainingLog()
        for split, point in read_scalars(found):
            log.add(split, point)
    else:
        log = parse_log(_read(found))
    if not log.points:
        raise InputError(f"{found}: no metrics of fairseq in it; train with --log-format json")
    return log


def parse_log(text: str) -> TrainingLog:
    """The metrics in the output of fairseq-train."""
    log = TrainingLog()
    for line in text.splitlines():
        parsed = parse_line(line)
        if parsed is not None:
            log.add(*parsed)
    return log


def write_log(log: TrainingLog, path: Union[str, Path], leave_out: Iterable[str] = ()) -> None:
    """Write the points as JSON lines in fairseq's form, which :func:`read_log` takes again.

    Args:
        log: the points; ``minutes`` becomes ``wall``, in seconds.
        path: the file, which is replaced.
        leave_out: names of metrics that aren't worth keeping.
    """
    skipped = {"minutes", "wall", *leave_out}
    lines = []
    for split, points in log.points.items():
        prefix = "" if split == TRAIN else f"{split}_"
        for point in points:
            values = {f"{prefix}{k}": v for k, v in point.items() if k not in skipped}
            if split == TRAIN:
                values["wall"] = round(60 * point["minutes"], 1)
            # After the training that came before it, whose clock tells its time.
            lines.append((point["num_updates"], split != TRAIN, json.dumps(values)))
    lines.sort(key=lambda line: line[:2])
    Path(path).write_text("".join(f"{line}\n" for _, _, line in lines), encoding="utf-8")


def parse_line(line: str) -> Optional[Tuple[str, Point]]:
    """Split and metrics of one line; None for a line without a number of updates."""
    start = line.find("{")
    if start >= 0:
        try:
            values = json.loads(line[start:])
        except (ValueError, RecursionError):
            return None
        if isinstance(values, dict):
            return _split_of(_numbers(values.items()))
        return None
    match = _SIMPLE_INNER.search(line)
    if match is not None:
        pairs = (part.partition("=")[::2] for part in match[2].split(", "))
        return _split_of(_numbers([("epoch", match[1]), *pairs]))
    match = _SIMPLE_SUMMARY.search(line)
    if match is not None:
        pairs = (part.strip().partition(" ")[::2] for part in match[3].split(" | "))
        point = _numbers([("epoch", match[1]), *pairs])
        if "num_updates" in point:
            return match[2] or "train", point
    return None


def _minutes(log: TrainingLog, split: str, point: Point) -> float:
    """Minutes since the start of the run at a point that is about to be added to the log.

    fairseq's ``wall``, seconds since the start of the process, is 0 for good in a process that
    resumed a run within an epoch. The speed since the last line, in words or tokens a second,
    tells the time as well, that of validation in between included.
    """
    before: Point = {"minutes": 0.0, "num_updates": 0.0, "wall": 0.0}
    for earlier in reversed(log.points.get(TRAIN, [])):
        if earlier["num_updates"] < point["num_updates"] or split != TRAIN:
            before = earlier
            break
    if split != TRAIN:
        return before["minutes"]
    seconds = point.get("wall", 0.0) - before.get("wall", 0.0)
    if before["num_updates"] > 0 and point.get("wps") and "wpb" in point:
        updates = point["num_updates"] - before["num_updates"]
        seconds = updates * point["wpb"] / point["wps"]
    return before["minutes"] + max(seconds, 0.0) / 60


def _split_of(point: Point) -> Optional[Tuple[str, Point]]:
    if "num_updates" in point:
        return TRAIN, point
    for name in point:
        if name.endswith("_num_updates"):
            prefix = name[: -len("num_updates")]
            plain = {
                key[len(prefix) :] if key.startswith(prefix) else key: value
                for key, value in point.items()
            }
            return prefix[:-1], plain
    return None


def _numbers(pairs: Iterable[Tuple[str, object]]) -> Point:
    numbers: Point = {}
    for name, value in pairs:
        try:
            numbers[name] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
    return numbers


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
