"""``bits_per_token``: cross-entropy that also logs bits per target (BPC for characters)."""

from __future__ import annotations

import math
from typing import Any, Dict, List

from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from fairseq.logging import metrics


@register_criterion("bits_per_token", dataclass=CrossEntropyCriterionConfig)
class BitsPerTokenCriterion(CrossEntropyCriterion):
    """Cross-entropy, with ``bpc``: the mean over all targets of ``-log2 p(target)``.

    ``bpc`` does not depend on ``--sentence-avg``, which divides the loss by the number of rows of
    the batch instead of the number of targets: the sum over the window, averaged over the batch.
    """

    @staticmethod
    def reduce_metrics(logging_outputs: List[Dict[str, Any]]) -> None:
        """Aggregate the logging outputs of data-parallel training."""
        CrossEntropyCriterion.reduce_metrics(logging_outputs)
        loss = sum(log.get("loss", 0) for log in logging_outputs)
        ntokens = sum(log.get("ntokens", 0) for log in logging_outputs)
        metrics.log_scalar("bpc", loss / ntokens / math.log(2), ntokens, round=4)
