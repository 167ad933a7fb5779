"""The error of a user's input, and how a command shows it."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Optional, Type


class InputError(ValueError):
    """Bad input by the user; the text is one sentence that names the option, file or line."""


def show_input_errors_as_sentences() -> None:
    """Let fairseq's commands end an :class:`InputError` with its sentence instead of a traceback.

    Every other exception is shown as before; FAIRSEQ_RUM_TRACEBACK=1 shows all.
    """
    previous = sys.excepthook

    def hook(
        kind: Type[BaseException], error: BaseException, traceback: Optional[TracebackType]
    ) -> None:
        if issubclass(kind, InputError) and not os.environ.get("FAIRSEQ_RUM_TRACEBACK"):
            print(f"fairseq_rum: error: {error}", file=sys.stderr)
        else:
            previous(kind, error, traceback)

    sys.excepthook = hook
