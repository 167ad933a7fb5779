"""``memory_accuracy``: cross-entropy and accuracy on a memory task."""

from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn

from fairseq_rum.errors import InputError


@dataclass
class MemoryAccuracyConfig(FairseqDataclass):
    """``memory_accuracy`` has no options."""


@register_criterion("memory_accuracy", dataclass=MemoryAccuracyConfig)
class MemoryAccuracyCriterion(FairseqCriterion):
    """Mean cross-entropy over all targets, and accuracy on those that take memory.

    Logs ``loss``, in nats (fairseq's own criterions log bits), ``accuracy`` in percent, and
    ``baseline``, the loss in nats of the best guess without memory, where the task has one.

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
        logits, target = model(**sample["net_input"]).float(), sample["target"]
        loss = F.cross_entropy(
            logits.flatten(0, 1), target.flatten(), reduction="sum" if reduce else "none"
        )
        scored = slice(target.shape[1] - self.scored_steps, None)
        right = logits.detach()[:, scored].argmax(-1).eq(target[:, scored])
        log = {
            "loss": loss.detach().sum(),
            "right": right.sum(),
            "scored": right.numel(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample["ntokens"],
        }
        if self.baseline is not None:
            log["baseline"] = self.baseline * sample["ntokens"]
        return loss, sample["ntokens"], log

    @staticmethod
    def reduce_metrics(logging_outputs: List[Dict[str, Any]]) -> None:
        """Aggregate the logging outputs of data-parallel training."""

        def total(name: str) -> float:
            # One number here is cheaper than a tensor in each of fairseq's meters.
            return sum(float(log.get(name, 0)) for log in logging_outputs)

        targets, scored = total("ntokens"), total("scored")
        if not targets:
            return
        metrics.log_scalar("loss", total("loss") / targets, targets, priority=10, round=6)
        metrics.log_scalar("accuracy", 100 * total("right") / scored, scored, priority=20, round=3)
        if any("baseline" in log for log in logging_outputs):
            value = total("baseline") / targets
            metrics.log_scalar("baseline", value, targets, priority=30, round=6)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Yes: all that is logged are sums."""
        return True
