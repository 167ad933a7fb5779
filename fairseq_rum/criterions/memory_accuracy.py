"""``memory_accuracy``: cross-entropy and accuracy on a memory task."""

from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

from fairseq.criterions import register_criterion
from fairseq.logging import metrics
from torch import Tensor, nn

from fairseq_rum.criterions.answer_accuracy import (
    AnswerAccuracyConfig,
    AnswerAccuracyCriterion,
    total,
)
from fairseq_rum.errors import InputError


@dataclass
class MemoryAccuracyConfig(AnswerAccuracyConfig):
    """``memory_accuracy`` has no options."""


@register_criterion("memory_accuracy", dataclass=MemoryAccuracyConfig)
class MemoryAccuracyCriterion(AnswerAccuracyCriterion):
    """``answer_accuracy`` over all steps, with the accuracy on those that take memory.

    Logs ``baseline`` as well, the loss in nats of the best guess without memory, where the task has
    one.

    Args:
        task: a memory task.

    Raises:
        InputError: the task is no memory task.
    """

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        problem = getattr(task, "problem", None)
        if problem is None:
            raise InputError(
                "--criterion memory_accuracy needs --task copying_memory or --task "
                "associative_recall"
            )
        self.scored_steps = problem.scored_steps
        self.baseline = problem.baseline

    def forward(
        self, model: nn.Module, sample: Dict[str, Any], reduce: bool = True
    ) -> Tuple[Tensor, int, Dict[str, Any]]:
        """Loss summed over the targets, their number, and what is logged."""
        loss, targets, log = super().forward(model, sample, reduce)
        if self.baseline is not None:
            log["baseline"] = self.baseline * targets
        return loss, targets, log

    def scored(self, right: Tensor) -> Tensor:
        """The last so many steps of each sequence."""
        return right[:, right.shape[1] - self.scored_steps :]

    @staticmethod
    def reduce_metrics(logging_outputs: List[Dict[str, Any]]) -> None:
        """Aggregate the logging outputs of data-parallel training."""
        AnswerAccuracyCriterion.reduce_metrics(logging_outputs)
        targets = total(logging_outputs, "sample_size")
        if targets and any("baseline" in log for log in logging_outputs):
            value = total(logging_outputs, "baseline") / targets
            metrics.log_scalar("baseline", value, targets, priority=30, round=6)
