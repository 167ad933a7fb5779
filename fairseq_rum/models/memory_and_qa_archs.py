"""The paper's best RUM for tasks A, B and C (Table 5) as named architectures.

Those of D and E are ``fs_rum`` and ``pointer_gen_rum``; ``docs/ingredients.md`` has all five.
"""

from dataclasses import dataclass
from typing import Optional

from fairseq.models import register_model

from fairseq_rum.models.rum_memory import RumMemory, RumMemoryConfig
from fairseq_rum.models.rum_qa import RumQa, RumQaConfig


@dataclass
class RumCopyingConfig(RumMemoryConfig):
    """Associative memory, N = 100."""

    rum_lambda: Optional[int] = 1


@register_model("rum_copying", dataclass=RumCopyingConfig)
class RumCopying(RumMemory):
    """RUM 100 with lambda = 1, without time normalization, for copying memory."""


@dataclass
class RumRecallConfig(RumCopyingConfig):
    """Associative memory, N = 50."""

    hidden_size: int = 50


@register_model("rum_recall", dataclass=RumRecallConfig)
class RumRecall(RumMemory):
    """RUM 50 with lambda = 1, without time normalization, for associative recall."""


@dataclass
class RumBabiConfig(RumQaConfig):
    """Associative memory."""

    rum_lambda: Optional[int] = 1


@register_model("rum_babi", dataclass=RumBabiConfig)
class RumBabi(RumQa):
    """RUM with lambda = 1 and update gate, without time normalization, for bAbI questions."""
