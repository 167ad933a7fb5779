"""fairseq criterions."""

from fairseq_rum.compat import require_fairseq

require_fairseq()

from fairseq_rum.criterions.answer_accuracy import AnswerAccuracyCriterion  # noqa: E402
from fairseq_rum.criterions.bits_per_token import BitsPerTokenCriterion  # noqa: E402
from fairseq_rum.criterions.memory_accuracy import MemoryAccuracyCriterion  # noqa: E402
from fairseq_rum.criterions.pointer_coverage_loss import PointerCoverageLoss  # noqa: E402

__all__ = [
    "AnswerAccuracyCriterion",
    "BitsPerTokenCriterion",
    "MemoryAccuracyCriterion",
    "PointerCoverageLoss",
]
