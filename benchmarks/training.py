"""Words per second of ``rum_lm`` with RUM and with an LSTM, through fairseq-train."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List

from benchmarks.measure import table

USER_DIR = Path(__file__).resolve().parent.parent / "fairseq_rum"
# RUM's options and the hidden size at which it is compared; R of lambda = 1 has N^2 numbers a row.
COMPARISONS = {
    "rum, lambda = 0, eta = 1": (["--rum-eta", "1"], 256),
    "rum, lambda = 1": (["--rum-lambda", "1"], 128),
}
INTERVAL = 5  # updates between two lines of the log


def _run(module: str, *arguments: object) -> str:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        raise RuntimeError(f"{module} failed: {(result.stderr or result.stdout)[-2000:]}")
    return result.stdout + result.stderr


def _corpus(folder: Path) -> Path:
    """A text that every Python carries, binarized by characters."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    parts = {"train": text[: int(len(text) * 0.95)], "valid": text[int(len(text) * 0.95) :]}
    arguments: List[object] = []
    for split, part in parts.items():
        (folder / split).write_text(part, encoding="utf-8")
        arguments += [f"--{split}pref", folder / split]
    _run("fairseq_rum.cli.main", "prepare", "chars", *arguments, "--destdir", folder / "data-bin")
    return folder / "data-bin"


def words_per_second(data: Path, unit: List[str], hidden: int, updates: int) -> float:
    """The median over a run of fairseq-train, without its first lines."""
    log = _run(
        "fairseq_cli.train", data, "--user-dir", USER_DIR,
        "--task", "stateful_language_modeling", "--tokens-per-sample", 100, "--batch-size", 32,
        "--arch", "rum_lm", "--decoder-embed-dim", 64, "--decoder-hidden-size", hidden,
        *unit, "--optimizer", "adam", "--lr", 0.001, "--clip-norm", 1,
        "--max-update", updates, "--disable-validation", "--no-save", "--log-format", "json",
        "--log-interval", INTERVAL, "--num-workers", 0, "--cpu", "--seed", 1,
    )  # fmt: skip
    rates = []
    for line in log.splitlines():
        if '"wps"' in line:
            rates.append(float(json.loads(line[line.index("{") :])["wps"]))
    if len(rates) < 4:
        raise RuntimeError(f"fairseq-train wrote only {len(rates)} lines with wps")
    return statistics.median(rates[2:])


def training(seconds: float = 4.0, rounds: int = 2) -> str:
    """Words (here: characters) per second, in alternation; ``seconds`` sets how many updates."""
    if importlib.util.find_spec("fairseq") is None:
        return "Not measured: fairseq is not installed."
    updates = max(4, int(1.5 * seconds)) * INTERVAL
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = _corpus(Path(folder))
        for name, (options, hidden) in COMPARISONS.items():
            rates: Dict[str, List[float]] = {"rum": [], "lstm": []}
            for _ in range(rounds):
                for unit, values in rates.items():
                    flags = ["--rnn-unit", unit, *(options if unit == "rum" else [])]
                    values.append(words_per_second(data, flags, hidden, updates))
            rum, lstm = (statistics.median(values) for values in rates.values())
            rows.append([name, hidden, f"{rum:.0f}", f"{lstm:.0f}", f"{rum / lstm:.2f}"])
            print(*rows[-1], flush=True)
    header = ["unit", "N", "words/s", "words/s of lstm", "ratio (more is faster)"]
    return table(header, rows) + (
        "\n\nOne layer, embeddings of 64, batches of 32 x 100 characters, Adam; the same model with"
        " the unit exchanged."
    )
