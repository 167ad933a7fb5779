"""fairseq tasks."""

from fairseq_rum.compat import require_fairseq

require_fairseq()

from fairseq_rum.tasks.associative_recall import AssociativeRecallTask  # noqa: E402
from fairseq_rum.tasks.babi_qa import BabiQaTask  # noqa: E402
from fairseq_rum.tasks.copying_memory import CopyingMemoryTask  # noqa: E402
from fairseq_rum.tasks.rum_summarization import RumSummarizationTask  # noqa: E402
from fairseq_rum.tasks.stateful_language_modeling import (  # noqa: E402
    StatefulLanguageModelingTask,
)

__all__ = [
    "AssociativeRecallTask",
    "BabiQaTask",
    "CopyingMemoryTask",
    "RumSummarizationTask",
    "StatefulLanguageModelingTask",
]
