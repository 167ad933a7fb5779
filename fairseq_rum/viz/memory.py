"""A string, a question about it, and what models answer (Figure 1a)."""

from __future__ import annotations

import string as characters
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

EMOJI = "🐵☂🐱★😎☕☃🐭♫☠⚡🐮✈♥😱☎⚓😴☀♞😡✂☯😍❄⚖😭☘♻😀✉☾✿♨⚙⚗☮✌⚑😈⚛⚅✏❀"
"""Symbols that look different in DejaVu Sans, the font that comes with matplotlib."""

_RIGHT, _WRONG, _OTHER = "tab:green", "tab:red", "0.75"


@dataclass(frozen=True)
class Answer:
    """What a model says: its label, and the probability of each symbol, ``(symbols,)``."""

    label: str
    probabilities: np.ndarray


def symbol_names(letters: int, emoji: bool) -> list[str]:
    """How letters and the ten digits after them are shown: as emoji, or as themselves.

    There are not enough emoji for more than 34 letters: then it's letters whatever ``emoji`` says.
    """
    if emoji and letters + 10 <= len(EMOJI):
        return list(EMOJI[: letters + 10])
    known = characters.ascii_letters
    names = list(known[:letters]) + [f"{known[i % 52]}{i // 52}" for i in range(52, letters)]
    return names + list(characters.digits)


def plot_memory(
    string: Sequence[str],
    question: str,
    asked: int,
    names: Sequence[str],
    right: int,
    answers: Sequence[Answer],
    top: int = 4,
) -> Figure:
    """Draw the string with the place that is asked for, and each model's most likely answers.

    Args:
        string: what was to be remembered.
        question: in words.
        asked: the place of the answer in the string.
        names: of all symbols that can be answered.
        right: the answer, one of them.
        answers: what the models say.
        top: how many of the most likely symbols are shown.
    """
    columns = len(answers)
    figure = Figure(figsize=(max(3.3 * columns, 0.42 * len(string) + 0.6), 3.1))
    figure.set_layout_engine("constrained")
    grid = figure.add_gridspec(2, columns, height_ratios=(1, 2.2))
    _draw_string(figure.add_subplot(grid[0, :]), string, question, asked)
    for column, answer in enumerate(answers):
        _draw_answer(figure.add_subplot(grid[1, column]), answer, names, right, top)
    return figure


def _draw_string(axes: Axes, string: Sequence[str], question: str, asked: int) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, len(string))
    axes.set_ylim(-0.9, 1.3)
    axes.axvspan(asked, asked + 1, 0.25, 0.98, color="gold", alpha=0.6, linewidth=0)
    for place, symbol in enumerate(string):
        middle = {"ha": "center", "va": "center"}
        axes.text(place + 0.5, 0.6, symbol, fontsize=17, **middle)
        axes.text(place + 0.5, -0.15, str(place + 1), fontsize=6, color="0.4", **middle)
    axes.text(len(string) / 2, -0.75, question, fontsize=9, ha="center", va="center")


def _draw_answer(axes: Axes, answer: Answer, names: Sequence[str], right: int, top: int) -> None:
    order = np.argsort(-answer.probabilities, kind="stable")[:top]
    shown = answer.probabilities[order]
    best = int(order[0])
    colors = [_RIGHT if i == right else _WRONG if i == best else _OTHER for i in order]
    places = np.arange(len(order))
    axes.barh(places, shown, color=colors)
    axes.set_yticks(places, [names[i] for i in order], fontsize=14)
    for place, value in zip(places, shown):
        axes.text(value + 0.02, place, f"{100 * value:.1f}%", va="center", fontsize=8)
    axes.set_xlim(0, 1.25)
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    verdict = "right" if best == right else f"wrong, {names[right]} would be right"
    axes.set_title(f"{answer.label}: {verdict}", fontsize=10)
