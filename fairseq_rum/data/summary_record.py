"""What generation knows and fairseq does not print: p_gen and attention of summaries, in files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Optional, TextIO

from torch import Tensor

from fairseq_rum.errors import InputError

_DIGITS = 4


class SummaryRecord:
    """Writes two files, a line for each summary in the order of generation.

    Args:
        p_gen_path: for p_gen of each word, numbers with spaces between them; None for no file.
        attention_path: for JSON objects with ``id`` (null for text that was typed), ``source`` and
            ``summary`` (lists of words), ``p_gen`` (a number for each word of the summary) and
            ``attention`` (for each word of the summary a number for each of the source).

    The files are made when the first summary is written.

    Raises:
        InputError: the two are one file.
    """

    def __init__(self, p_gen_path: Optional[str], attention_path: Optional[str]) -> None:
        self._paths = {"--p-gen-path": p_gen_path, "--attention-path": attention_path}
        if p_gen_path and attention_path:
            if os.path.realpath(p_gen_path) == os.path.realpath(attention_path):
                raise InputError(f"--p-gen-path and --attention-path are one file, {p_gen_path}")
        self._files: dict[str, TextIO] = {}

    @property
    def is_on(self) -> bool:
        """Whether there is anything to write."""
        return any(path is not None for path in self._paths.values())

    def write(
        self,
        index: Optional[int],
        source: Sequence[str],
        summary: Sequence[str],
        p_gen: Tensor,
        attention: Tensor,
    ) -> None:
        """Write one summary.

        Args:
            index: of the example; None for text that was typed.
            source, summary: words.
            p_gen: ``(T,)``.
            attention: ``(T, S)``.

        Raises:
            InputError: a file cannot be written.
        """
        numbers = [round(value, _DIGITS) for value in p_gen.tolist()]
        self._line("--p-gen-path", lambda: " ".join(map(str, numbers)))

        def description() -> str:
            rows = [[round(value, _DIGITS) for value in row] for row in attention.tolist()]
            result = {
                "id": index,
                "source": list(source),
                "summary": list(summary),
                "p_gen": numbers,
                "attention": rows,
            }
            return json.dumps(result, ensure_ascii=False)

        self._line("--attention-path", description)

    def _line(self, option: str, text: object) -> None:
        path = self._paths[option]
        if path is None:
            return
        try:
            if option not in self._files:
                # Buffered by lines: generation has no end at which a task could close a file.
                self._files[option] = open(path, "w", buffering=1, encoding="utf-8")
            self._files[option].write(text() + "\n")
        except OSError as error:
            raise InputError(f"{option} {path}: cannot be written ({error.strerror})") from error
