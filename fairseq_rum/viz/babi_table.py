"""Bars of the accuracies of several runs on the bAbI tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import colormaps
from matplotlib.figure import Figure

from fairseq_rum.data.babi_results import FAILED_BELOW


def plot_tasks(
    results: Mapping[str, Mapping[int, float]], tasks: Sequence[int], title: str = ""
) -> Figure:
    """Draw a group of bars for each task, one bar for each run; no bar for what was not run.

    Args:
        results: accuracies in percent, by label of the run and number of the task; in the order of
            the legend.
        tasks: from left to right.
        title: above the figure.

    Returns:
        a figure that belongs to no window; ``figure.savefig`` writes it.
    """
    figure = Figure(figsize=(max(5.0, 2.5 + 0.5 * len(tasks)), 4.2), layout="constrained")
    axes = figure.add_subplot()
    colors = colormaps["tab10"].colors
    width = 0.85 / len(results)
    for index, (label, accuracies) in enumerate(results.items()):
        offset = (index - (len(results) - 1) / 2) * width
        places = [place + offset for place, task in enumerate(tasks) if task in accuracies]
        heights = [accuracies[task] for task in tasks if task in accuracies]
        axes.bar(places, heights, width, color=colors[index % len(colors)], label=label)
    axes.axhline(FAILED_BELOW, color="0.45", linestyle=(0, (6, 3)), linewidth=1.0)
    axes.set_xticks(range(len(tasks)), [str(task) for task in tasks])
    axes.set_xlim(-0.6, len(tasks) - 0.4)
    axes.set_ylim(0, 102)
    axes.set_xlabel("task")
    axes.set_ylabel("test accuracy, %")
    if title:
        axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    # Beside the axes, so that it hides no bar however many there are.
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    return figure
