"""What the tasks on generated memory problems share; it registers nothing by itself."""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from omegaconf import II
from torch import nn

from fairseq_rum.data.memory_tasks import MemoryDataset, MemoryProblem
from fairseq_rum.errors import InputError
from fairseq_rum.tasks.divergence import StopsWhenDiverging
from fairseq_rum.tasks.dynamics import DynamicsConfig, LogsDynamics
from fairseq_rum.tasks.epoch_batches import DrawsBatchesByEpoch

_STOP_METRIC = "unsolved"


@dataclass
class MemoryTaskConfig(DynamicsConfig):
    """Options of both memory tasks; each has its own number of examples."""

    train_examples: int = field(default=50000, metadata={"help": "training sequences of an epoch"})
    valid_examples: int = field(default=500, metadata={"help": "sequences of the validation split"})
    test_examples: int = field(default=500, metadata={"help": "sequences of the test split"})
    fresh_batches: bool = field(
        default=False,
        metadata={"help": "new training sequences in every epoch (validation and test stay)"},
    )
    data_seed: int = field(
        default=1, metadata={"help": "seed of the data, apart from --seed, that of the model"}
    )
    stop_at_accuracy: Optional[float] = field(
        default=None,
        metadata={
            "help": "stop after the validation that reaches this accuracy in percent (where it is "
            "the first of a run or a resumed run, after the next), through fairseq's early "
            f"stopping: needs --patience 1 --best-checkpoint-metric {_STOP_METRIC} "
            "--maximize-best-checkpoint-metric; the model that reached it is checkpoint_last.pt"
        },
    )
    train_subset: str = II("dataset.train_subset")
    patience: int = II("checkpoint.patience")
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")
    maximize_best_checkpoint_metric: bool = II("checkpoint.maximize_best_checkpoint_metric")


class MemoryTask(DrawsBatchesByEpoch, LogsDynamics, StopsWhenDiverging, FairseqTask):
    """A task whose data are generated: no data directory, no dictionary.

    An example depends on ``--data-seed``, the split and its index alone (with ``--fresh-batches``
    on the epoch too), so that all units are trained on the same batches in the same order.

    Args:
        cfg: the options.
        problem: what is to be learnt.

    Raises:
        InputError: an option is out of its range, or ``--stop-at-accuracy`` lacks what it needs.
    """

    def __init__(self, cfg: MemoryTaskConfig, problem: MemoryProblem) -> None:
        super().__init__(cfg)
        self.problem = problem
        self._updates = 0
        _check_stop(cfg)
        self._stop_at = cfg.stop_at_accuracy  # read at every update, which omegaconf makes slow

    @classmethod
    def make_problem(cls, cfg: MemoryTaskConfig) -> MemoryProblem:
        """The problem that the options describe."""
        raise NotImplementedError

    @classmethod
    def setup_task(cls, cfg: MemoryTaskConfig, **kwargs: Any) -> "MemoryTask":
        """Called by fairseq; there is nothing to load."""
        return cls(cfg, cls.make_problem(cfg))

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Make a split.

        Raises:
            InputError: it is none of train, valid and test, or its size or seed is out of range.
        """
        self.datasets[split] = MemoryDataset(
            self.problem,
            split,
            getattr(self.cfg, f"{split}_examples", 1),
            self.cfg.data_seed,
            fresh=self.cfg.fresh_batches and split == "train",
        )

    def batch_sampler(
        self,
        dataset: MemoryDataset,
        max_tokens: Optional[int],
        max_sentences: Optional[int],
        seed: int,
    ) -> Callable[[int], Sequence[Any]]:
        """Batches of consecutive examples, all of one length.

        Raises:
            InputError: a batch has no room for one example.
        """
        steps = self.problem.steps
        sizes = [max_sentences] if max_sentences is not None else []
        if max_tokens is not None:
            if max_tokens < steps:
                raise InputError(f"--max-tokens {max_tokens} is less than one sequence, {steps}")
            sizes.append(max_tokens // steps)
        if not sizes or min(sizes) < 1:
            raise InputError("give --batch-size, at least 1")
        return lambda epoch: dataset.batches(min(sizes), epoch)

    def train_step(
        self,
        sample: Dict[str, Any],
        model: nn.Module,
        criterion: nn.Module,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> Tuple[torch.Tensor, int, Dict[str, Any]]:
        """fairseq's step; the number of updates is what the stopping criterion counts with."""
        self._updates = update_num + 1
        return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def reduce_metrics(self, logging_outputs: List[Dict[str, Any]], criterion: nn.Module) -> None:
        """Log the criterion's metrics, and in validation what ``--stop-at-accuracy`` goes by.

        fairseq stops when its metric has not become better for ``--patience`` validations. So this
        one is the number of updates, which always grows, until the accuracy is reached.
        """
        super().reduce_metrics(logging_outputs, criterion)
        target, updates = self._stop_at, self._updates
        if target is not None and not criterion.training:
            metrics.log_derived(
                _STOP_METRIC, lambda meters: 0 if meters["accuracy"].avg >= target else updates
            )


def _check_stop(cfg: MemoryTaskConfig) -> None:
    target = cfg.stop_at_accuracy
    if target is None:
        return
    if not 0 < target <= 100:
        raise InputError(f"--stop-at-accuracy must lie in (0, 100], got {target}")
    if (
        cfg.patience != 1
        or cfg.best_checkpoint_metric != _STOP_METRIC
        or not cfg.maximize_best_checkpoint_metric
    ):
        raise InputError(
            f"--stop-at-accuracy needs --patience 1 --best-checkpoint-metric {_STOP_METRIC} "
            "--maximize-best-checkpoint-metric"
        )
