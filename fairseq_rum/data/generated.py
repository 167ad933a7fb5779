"""Reads what fairseq-generate and fairseq-interactive print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from fairseq_rum.data.summaries import read_lines
from fairseq_rum.errors import InputError

_LINE = re.compile(r"([SHDT])-(\d{1,9})(?:\t(.*))?")


@dataclass(frozen=True)
class Generated:
    """The best hypothesis for each example, in the order of the data set.

    Args:
        hypotheses: detokenized where fairseq did so.
        references: None if the output has none.
        sources: None if the output has none.
    """

    hypotheses: Sequence[str]
    references: Optional[Sequence[str]]
    sources: Optional[Sequence[str]]


def read_generated(path: str) -> Generated:
    """Read the output of fairseq-generate or fairseq-interactive; other lines are passed over.

    Raises:
        InputError: there are no hypotheses, or lines of some examples are missing.
    """
    texts: dict[str, dict[int, str]] = {letter: {} for letter in "SHDT"}
    for _, line in read_lines(path):
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        letter, example, text = found[1], int(found[2]), found[3] or ""
        if letter in "HD":
            text = text.partition("\t")[2]  # the score comes first
        # With --nbest the best hypothesis comes first.
        texts[letter].setdefault(example, text)
    hypotheses = texts["D"] or texts["H"]
    if not hypotheses:
        raise InputError(f"{path}: no hypotheses (H-0 ...), is it the output of fairseq-generate?")
    for letter in "ST":
        if texts[letter] and texts[letter].keys() != hypotheses.keys():
            example = min(texts[letter].keys() ^ hypotheses.keys())
            raise InputError(
                f"{path}: example {example} lacks its hypothesis or its {letter}- line"
            )
    if sorted(hypotheses) != list(range(len(hypotheses))):
        missing = min(set(range(len(hypotheses))) - hypotheses.keys())
        raise InputError(
            f"{path}: there is no example {missing}; fairseq leaves out a small last batch unless "
            "it gets --required-batch-size-multiple 1"
        )
    ordered = {letter: [by_id[i] for i in sorted(by_id)] for letter, by_id in texts.items()}
    return Generated(ordered["D"] or ordered["H"], ordered["T"] or None, ordered["S"] or None)
