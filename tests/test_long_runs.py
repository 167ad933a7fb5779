"""Long runs in one process: resident memory stays where it was after the first thousand."""

import os
import subprocess
import sys

import pytest
import summary_corpus
from conftest import ROOT, USER_DIR, run_fairseq

# oneDNN keeps what it compiled for up to 1,024 shapes, about 5 MB that fill slowly where batches
# differ: the 2% are for what is never given back.
ENVIRONMENT = {**os.environ, "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8"}
# The method of a class that is called for every update (or batch) notes memory and time.
PROGRAM = """
import importlib, os, subprocess, sys, time

module, owner, method, every, command, *sys.argv[1:] = sys.argv[1:]
owner = getattr(importlib.import_module(module), owner)
plain, calls = getattr(owner, method), [0]

def counted(*args, **kwargs):
    if calls[0] % int(every) == 0:
        rss = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], stdout=subprocess.PIPE)
        print("noted", calls[0], int(rss.stdout), time.monotonic(), flush=True)
    calls[0] += 1
    return plain(*args, **kwargs)

setattr(owner, method, counted)
sys.argv[0] = f"fairseq-{command}"
importlib.import_module(f"fairseq_cli.{command}").cli_main()
"""


def noted(where, every, command, *arguments, seconds=560):
    """Run a command; (call, kilobytes, second) at every so many calls of a method."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *where, *map(str, (every, command, *arguments))],
        capture_output=True, text=True, cwd=ROOT, timeout=seconds, env=ENVIRONMENT,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("noted")]
    return [(int(call), int(size), float(second)) for _, call, size, second in lines]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_fifty_thousand_updates_of_recall(record_property, capsys):
    notes = noted(
        ("fairseq.trainer", "Trainer", "train_step"), 1000, "train", "--user-dir", USER_DIR,
        "--task", "associative_recall", "--recall-length", 4, "--arch", "rum_memory",
        "--rum-lambda", 1, "--rum-eta", 1, "--hidden-size", 8, "--criterion", "memory_accuracy",
        "--optimizer", "rmsprop", "--lr", 0.001, "--batch-size", 8, "--train-examples", 8000,
        "--fresh-batches", "--valid-examples", 8, "--cpu", "--num-workers", 0, "--no-save",
        "--max-update", 50001, "--log-interval", 1000, "--log-format", "json", seconds=1700,
    )  # fmt: skip
    sizes, seconds = [size for _, size, _ in notes], [second for _, _, second in notes]
    assert len(notes) == 51
    assert max(sizes[1:]) < 1.02 * sizes[1]
    first, last = (1000 / (seconds[i + 1] - seconds[i]) for i in (0, -2))
    record_property("updates per second", f"first 1,000: {first:.0f}, last 1,000: {last:.0f}")
    with capsys.disabled():
        print(f"\nrecall: {first:.0f} updates/s in the first 1,000, {last:.0f} in the last; "
              f"{sizes[1]:,} kB then, {sizes[-1]:,} kB at the end")  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_ten_thousand_summaries(tmp_path, capsys):
    """Every summary has two words that no other has: 20,000 unknown words pass through."""
    data = summary_corpus.prepare(
        tmp_path, summary_corpus.make_pairs(20), "--vocabulary", 24,
        test=summary_corpus.make_pairs(10000, seed=2),
    )  # fmt: skip
    run_fairseq("train", *summary_corpus.train_arguments(
        data, tmp_path, "--max-update", 1, "--disable-validation"))  # fmt: skip
    notes = noted(
        ("fairseq_rum.tasks", "RumSummarizationTask", "inference_step"), 25, "generate", data,
        "--user-dir", USER_DIR, "--task", "rum_summarization", "--path",
        tmp_path / "checkpoint_last.pt", "--cpu", "--beam", 2, "--max-len-b", 8, "--batch-size",
        20, "--num-workers", 0, "--no-progress-bar", seconds=1100,
    )  # fmt: skip
    sizes = [size for _, size, _ in notes]
    assert notes[-1][0] == 475
    after_a_thousand = sizes[2]
    with capsys.disabled():
        print(f"\nsummaries: {after_a_thousand:,} kB after 1,000, {sizes[-1]:,} kB after 9,500")
    assert max(sizes[2:]) < 1.02 * after_a_thousand
