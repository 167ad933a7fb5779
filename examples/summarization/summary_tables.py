"""The tables of the experiments on summarization, made from the records of the runs alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Dict, List

from run_tools import load, where_made, write_results

ROUGE = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}
STATISTICS = {
    "length": "words",
    "copied": "copied",
    "novel 2-grams": "new 2-grams",
    "repeated trigrams": "repeated 3-grams",
}
COLUMNS = ["model", "parameters", "updates", "minutes", "valid loss", *ROUGE.values()]
COLUMNS += STATISTICS.values()


def write_tables(corpora: Iterable[Any], runs: Sequence[Any], results: Path) -> None:
    """Write the tables of all runs into the README beside their results, between two marks."""
    found = tables(corpora, runs, results)
    if found:
        write_results(results.parent / "README.md", found)


def tables(corpora: Iterable[Any], runs: Sequence[Any], results: Path) -> str:
    """Markdown: a table for each corpus with a run, then seeds and hardware, then commands."""
    parts: List[str] = []
    made: Dict[str, Dict[str, Any]] = {}
    commands: List[str] = []
    for corpus in corpora:
        records = {run: load(results / run.name / "run.json") for run in runs}
        records = {run: r for run, r in records.items() if r and run.corpus == corpus.name}
        if not records:
            continue
        baseline = load(results / f"{corpus.name}-baseline" / "run.json")
        rows = [_row("first sentence", baseline)] if baseline else []
        rows += [_row(run.label, record) for run, record in records.items()]
        header = "| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS)
        parts.append("\n".join([f"### {corpus.title}\n", header, *rows, ""]))
        for run, record in records.items():
            if run.corpus == "names" and "exact" in record:
                parts.append(
                    f"{record['exact']:.0f}% of the summaries are the reference, word for word: "
                    "both names, in the right places.\n"
                )
            made[run.name] = record
            commands.append("\n".join([f"# {run.name}", *record["commands"]]))
        if baseline:
            commands.append("\n".join([f"# {corpus.name}, first sentence", *baseline["commands"]]))
    if not parts:
        return ""
    long_input = load(results / "long_input.json")
    if long_input:
        parts.append(_long_input(long_input))
    parts.append("### Seeds and hardware\n\n" + "\n".join(where_made(made)) + "\n")
    block = "\n".join(commands)
    parts.append(f"<details><summary>Commands</summary>\n\n```\n{block}\n```\n\n</details>\n")
    return "\n".join(parts)


def _row(label: str, record: Dict[str, Any]) -> str:
    scores = record.get("scores", {"rouge": {}, "statistics": {}})
    status = record.get("status", "finished")
    loss, updates = record.get("valid_loss"), record.get("updates")
    cells = [
        label if status == "finished" else f"{label} ({status})",
        _number(record.get("parameters"), ",d"),
        _number(updates, ",d"),
        _number(record.get("minutes"), ".1f"),
        _number(loss, ".3f"),
    ]
    for kind in ROUGE:
        value = scores["rouge"].get(kind, {}).get("fmeasure")
        cells.append(
            f"{value['mean']:.2f} [{value['low']:.2f}, {value['high']:.2f}]" if value else "-"
        )
    for name in STATISTICS:
        ours, _ = scores["statistics"].get(name, [None, None])
        cells.append(_number(ours, ".1f") + ("" if ours is None or name == "length" else "%"))
    return "| " + " | ".join(cells) + " |"


def _number(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)


def _long_input(record: Dict[str, Any]) -> str:
    steps, outputs = record["steps"]
    return (
        "### One update at the size of research papers\n\n"
        f"`{record['arch']}`, a batch of {record['batch']} texts of {steps:,} words and summaries "
        f"of {outputs}: forward {record['forward_seconds']} s, backward "
        f"{record['backward_seconds']} s ({record['processor_seconds']} s of processor time for "
        f"both), at most {record['memory_gib']} GiB of memory. {record['hardware']}, commit "
        f"{record['commit']}; `python examples/summarization/long_input.py`.\n"
    )
