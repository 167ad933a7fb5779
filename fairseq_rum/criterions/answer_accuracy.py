"""``answer_accuracy``: cross-entropy and accuracy of classifications."""

from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn


@dataclass
class AnswerAccuracyConfig(FairseqDataclass):
    """``answer_accuracy`` has no options."""


@register_criterion("answer_accuracy", dataclass=AnswerAccuracyConfig)
class AnswerAccuracyCriterion(FairseqCriterion):
    """Mean cross-entropy over all targets, and how many of them have the largest logit.

    Logs ``loss``, in nats (fairseq's own criterions log bits), and ``accuracy`` in percent. Every
    target counts the same, whatever the batches are. One that the model has no class for,
    -100 as everywhere in torch, is no part of the mean loss, and never right.

    Shapes: the model gives logits ``(B, ..., classes)`` for targets ``(B, ...)``.
    """

    def forward(
        self, model: nn.Module, sample: Dict[str, Any], reduce: bool = True
    ) -> Tuple[Tensor, int, Dict[str, Any]]:
        """Loss summed over the targets that have a class, their number, and what is logged."""
        logits, target = model(**sample["net_input"]).float(), sample["target"]
        loss = F.cross_entropy(
            logits.flatten(0, -2),
            target.flatten(),
            reduction="sum" if reduce else "none",
        )
        right = self.scored(logits.detach().argmax(-1).eq(target))
        known = int(target.ge(0).sum())
        log = {
            "loss": loss.detach().sum(),
            "right": right.sum(),
            "scored": right.numel(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": known,
        }
        return loss, known, log

    def scored(self, right: Tensor) -> Tensor:
        """Those of the targets that count for the accuracy."""
        return right

    @staticmethod
    def reduce_metrics(logging_outputs: List[Dict[str, Any]]) -> None:
        """Aggregate the logging outputs of data-parallel training."""
        targets, scored = total(logging_outputs, "sample_size"), total(logging_outputs, "scored")
        if targets:
            loss = total(logging_outputs, "loss") / targets
            metrics.log_scalar("loss", loss, targets, priority=10, round=6)
        if scored:
            accuracy = 100 * total(logging_outputs, "right") / scored
            metrics.log_scalar("accuracy", accuracy, scored, priority=20, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Yes: all that is logged are sums."""
        return True


def total(logging_outputs: List[Dict[str, Any]], name: str) -> float:
    """The sum of what was logged under a name."""
    # One number here is cheaper than a tensor in each of fairseq's meters.
    return sum(float(log.get(name, 0)) for log in logging_outputs)
