"""The tables and figures of the runs on the bAbI tasks, from their records."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Dict, Iterator, List

from babi_matrix import ALL, GROUPS, Group, Model, Run, record_path
from run_tools import load, write_results

Records = Dict[int, Dict[str, Any]]  # by number of the task

INTRODUCTION = (
    "Test accuracies in percent, one run a task, of the checkpoint that was best on the validation "
    "split; a dash is what was not run. Minutes include the start of the programs; the machine had "
    "other work as well.\n"
)
TASK_3 = (
    "Task 3 has no training file in en-10k: it is trained on en's and en-valid-10k's, without the "
    "questions that occur twice.\n"
)


def refresh(options: argparse.Namespace) -> None:
    """Write the results of all runs, as far as they are, into the README beside their folder."""
    from fairseq_rum.cli import figures

    found = {group: records_of(group, options) for group in GROUPS}
    found = {group: models for group, models in found.items() if models}
    if not found:
        return
    write_results(options.results.parent / "README.md", tables(found, options.results))
    for group, models in found.items():
        results = {model.label: accuracies(records) for model, records in models.items()}
        results = {label: values for label, values in results.items() if values}
        if results:
            out = str(options.results / f"{group.name}.png")
            figures.prepare(argparse.Namespace(out=out))
            from fairseq_rum.viz.babi_table import plot_tasks

            figures.save(plot_tasks(results, group.tasks, group.title), out)


def records_of(group: Group, options: argparse.Namespace) -> Dict[Model, Records]:
    """The records of all runs that were begun."""
    found = {}
    for model in group.models:
        records = {
            task: load(record_path(Run(group.size, model, task), options)) for task in group.tasks
        }
        records = {task: record for task, record in records.items() if record}
        if records:
            found[model] = records
    return found


def accuracies(records: Records) -> Dict[int, float]:
    """On the test split, of the runs that have one."""
    found = {task: record.get("test_accuracy") for task, record in records.items()}
    return {task: accuracy for task, accuracy in found.items() if accuracy is not None}


def tables(found: Dict[Group, Dict[Model, Records]], results: Path) -> str:
    """Markdown: tables of each group, then seeds and hardware, then commands."""
    from fairseq_rum.cli.babi_table import table

    parts = [INTRODUCTION]
    for group, models in found.items():
        labelled = {
            model.label + _paper(model, group): accuracies(records)
            for model, records in models.items()
        }
        without = [3] if group.size == "en-10k" and 3 in group.tasks else []
        parts.append(f"### {group.title}\n")
        parts += [TASK_3] if without else []
        parts.append(table(labelled, group.tasks, without) + "\n")
        if any(labelled.values()):
            parts.append(f"![accuracies]({results.name}/{group.name}.png)\n")
        parts.append(_effort(models))
    parts.append("### Seeds and hardware\n")
    parts.append("\n".join(_machines(found)) + "\n")
    parts.append("### Commands\n\nOf the first task of each model; each record has its own.\n")
    parts.append("\n".join(["```", *_commands(found), "```"]))
    return "\n".join(parts)


def _paper(model: Model, group: Group) -> str:
    if model.paper is None:
        return ""
    tasks = "" if tuple(group.tasks) == ALL else ", all tasks"
    return f" (paper{tasks}: {model.paper:.1f})"


def _effort(models: Dict[Model, Records]) -> str:
    """Epochs and minutes of each model, as a table."""
    lines = [
        "| run | tasks | parameters | epochs | minutes | unfinished or diverged |",
        "|---|---|---|---|---|---|",
    ]
    for model, by_task in models.items():
        records = list(by_task.values())
        parameters = [record["parameters"] for record in records if record.get("parameters")]
        epochs = [record.get("epochs", 0) for record in records]
        minutes = sum(record["minutes"] for record in records)
        other = [str(task) for task, record in by_task.items() if record["status"] != "finished"]
        lines.append(
            f"| {model.label} | {len(records)} | {_span(parameters)} | {_span(epochs)} | "
            f"{minutes:.0f} | {', '.join(other) or '-'} |"
        )
    return "\n".join(lines) + "\n"


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return "-"
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _machines(found: Dict[Group, Dict[Model, Records]]) -> List[str]:
    """Seeds and hardware, and what ran with which."""
    names: Dict[str, Dict[str, None]] = {}
    commits: Dict[str, Dict[str, None]] = {}
    for group, models in found.items():
        for model, records in models.items():
            for record in records.values():
                machine = f"seed {record['seed']}; {'; '.join(record['hardware'])}"
                names.setdefault(machine, {})[f"{group.size}/{model.name}"] = None
                commits.setdefault(machine, {}).update(dict.fromkeys(record["commit"]))
    return [
        f"- {machine}; commits {', '.join(commits[machine])}: {', '.join(names[machine])}"
        for machine in names
    ]


def _commands(found: Dict[Group, Dict[Model, Records]]) -> Iterator[str]:
    for group, models in found.items():
        for model, records in models.items():
            task, record = next(iter(records.items()))
            yield f"# {group.size}/{model.name}, task {task}"
            yield record["command"]
            if "test_command" in record:
                yield record["test_command"]
