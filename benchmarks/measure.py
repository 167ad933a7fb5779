"""Timing in pairs, and where the results go."""

from __future__ import annotations

import os
import platform
import statistics
import time
from typing import Callable, Dict, Iterable, List, Sequence

import torch


def machine() -> str:
    """Processor, cores, vector instructions and versions, in one line."""
    model, flags = platform.processor() or platform.machine(), ""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for line in info:
                if line.startswith("model name"):
                    model = line.split(":", 1)[1].strip()
                elif line.startswith("flags"):
                    flags = line
    vector = next((f for f in ("avx512f", "avx2", "avx") if f" {f} " in flags + " "), "no AVX")
    return (
        f"{model}, {os.cpu_count()} cores, {vector}; torch {torch.__version__}, "
        f"Python {platform.python_version()}"
    )


def interleaved(
    calls: Dict[str, Callable[[], None]],
    seconds: float,
    least: int = 3,
    rare: Sequence[str] = (),
) -> Dict[str, List[float]]:
    """Run the calls in alternation, each round all of them, and collect their times in seconds.

    Alternation in one process makes the ratios hold when the machine's speed drifts. One round
    that is not counted comes first; then rounds until the seconds are over, at least ``least``.
    The ``rare`` calls, slow versions that are there for comparison, take part in the first counted
    round alone where that one takes them more than a second.
    """
    times: Dict[str, List[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        if name not in rare:
            call()
    start = time.perf_counter()
    rounds = 0
    while rounds < least or time.perf_counter() - start < seconds:
        for name, call in calls.items():
            if name in rare and times[name] and times[name][0] > 1.0:
                continue
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
        rounds += 1
    return times


def median_ratio(times: Dict[str, List[float]], name: str, to: str) -> float:
    """The median over the rounds of one call's time relative to another's of the same round."""
    return statistics.median(a / b for a, b in zip(times[name], times[to]))


def milliseconds(times: Dict[str, List[float]], name: str) -> float:
    """The median time of a call."""
    return 1000 * statistics.median(times[name])


def write_page(path: str, lines: Iterable[str]) -> None:
    """Write a page of results."""
    with open(path, "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)
