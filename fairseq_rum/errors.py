"""The errors that are told in one sentence, and how a command shows them."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Optional, Type


class InputError(ValueError):
    """Bad input by the user; the text is one sentence that names the option, file or line."""


class DivergenceError(FloatingPointError):
    """Training cannot go on; the text is one sentence: when, what, and what may help."""


def show_input_errors_as_sentences() -> None:
    """Let fairseq's commands end one of these errors with its sentence instead of a traceback.

    Every other exception is shown as before; FAIRSEQ_RUM_TRACEBACK=1 shows all.
    """
    previous = sys.excepthook

    def hook(
        kind: Type[BaseException], error: BaseException, traceback: Optional[TracebackType]
    ) -> None:
        told = issubclass(kind, (InputError, DivergenceError))
        if told and not os.environ.get("FAIRSEQ_RUM_TRACEBACK"):
            print(f"fairseq_rum: error: {error}", file=sys.stderr)
        else:
            previous(kind, error, traceback)

    sys.excepthook = hook
