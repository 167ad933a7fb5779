"""``pointer_coverage_loss``: what the pointer-generator network is trained on."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Tuple

import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn

from fairseq_rum.errors import InputError
from fairseq_rum.models.pointer_gen_rum import PointerGenerator
from fairseq_rum.modules.coverage_attention import coverage_penalty

_LN2 = 0.6931471805599453


@dataclass
class PointerCoverageLossConfig(FairseqDataclass):
    """Options of ``pointer_coverage_loss``."""

    coverage_loss_weight: float = field(
        default=1.0, metadata={"help": "weight of the coverage loss, >= 0, with --coverage"}
    )


@register_criterion("pointer_coverage_loss", dataclass=PointerCoverageLossConfig)
class PointerCoverageLoss(FairseqCriterion):
    r"""See et al. 2017, equations 6, 7, 12 and 13, averaged over the batch.

    .. math::
        \mathrm{loss} = \frac{1}{T} \sum_t \left(-\log P(w_t^*) + \lambda \sum_i \min(a_i^t, c_i^t)
        \right)

    Both terms are averaged over the T steps of an example, and then over the examples: a word of a
    short summary counts more than one of a long summary. The second term exists with ``--coverage``
    alone.

    Logs ``loss`` and, with coverage, ``coverage_loss``: such averages, in nats; ``nll_loss`` and
    ``ppl``: over all words, with fairseq's base 2; ``copied``: the mean of 1 - p_gen in percent.

    Args:
        task: any with pairs of source and target.
        coverage_loss_weight: lambda.

    Raises:
        InputError: the weight is negative.
    """

    def __init__(self, task: Any, coverage_loss_weight: float) -> None:
        super().__init__(task)
        if not coverage_loss_weight >= 0.0:
            raise InputError(
                f"--coverage-loss-weight must be at least 0, got {coverage_loss_weight}"
            )
        self.coverage_loss_weight = coverage_loss_weight

    def forward(
        self, model: nn.Module, sample: Dict[str, Any], reduce: bool = True
    ) -> Tuple[Tensor, int, Dict[str, Any]]:
        """Loss summed over the examples, their number, and what is logged.

        Raises:
            InputError: the model is no pointer-generator network.
        """
        target = sample["target"]
        log_probs, extra = _checked(model)(**sample["net_input"], target=target)
        is_target = target.ne(self.padding_idx)
        lengths = is_target.sum(1).clamp_min(1)
        losses = -log_probs.sum(1) / lengths
        examples = len(target)
        with torch.no_grad():
            log = {
                "nll_loss": -log_probs.sum(),
                "copied": (torch.sigmoid(-extra["gate"].float()) * is_target).sum(),
                "ntokens": sample["ntokens"],
                "nsentences": examples,
                "sample_size": examples,
            }
        if extra["coverage"]:
            penalty = (coverage_penalty(extra["attn"][0]) * is_target).sum(1) / lengths
            log["coverage_loss"] = penalty.detach().sum()
            losses = losses + self.coverage_loss_weight * penalty
        log["loss"] = losses.detach().sum()
        return losses.sum() if reduce else losses, examples, log

    @staticmethod
    def reduce_metrics(logging_outputs: List[Dict[str, Any]]) -> None:
        """Aggregate the logging outputs of data-parallel training."""

        def total(name: str) -> float:
            return sum(float(log.get(name, 0)) for log in logging_outputs)

        examples, tokens = total("sample_size"), total("ntokens")
        if not examples:
            return
        metrics.log_scalar("loss", total("loss") / examples, examples, priority=10, round=4)
        metrics.log_scalar("nll_loss", total("nll_loss") / tokens / _LN2, tokens, round=3)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))
        if any("coverage_loss" in log for log in logging_outputs):
            value = total("coverage_loss") / examples
            metrics.log_scalar("coverage_loss", value, examples, priority=20, round=4)
        metrics.log_scalar("copied", 100 * total("copied") / tokens, tokens, priority=30, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Yes: all that is logged are sums."""
        return True


def _checked(model: nn.Module) -> nn.Module:
    inner = model
    while hasattr(inner, "module"):  # of data-parallel training
        inner = inner.module
    if not isinstance(inner, PointerGenerator):
        raise InputError("--criterion pointer_coverage_loss needs --arch pointer_gen_rum")
    return model
