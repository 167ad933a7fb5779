"""``phases``: one learning rate after the other, each for a number of epochs."""

from dataclasses import dataclass, field
from itertools import accumulate
from typing import List, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from fairseq_rum.errors import InputError


@dataclass
class PhasesConfig(FairseqDataclass):
    """Options of ``phases``."""

    phase_epochs: Optional[List[int]] = field(
        default=None,
        metadata={"help": "epochs of each learning rate of --lr, e.g. 180,60,120; the last one "
                  "stays for whatever comes after"},
    )  # fmt: skip
    lr: List[float] = II("optimization.lr")


@register_lr_scheduler("phases", dataclass=PhasesConfig)
class Phases(FairseqLRScheduler):
    """The learning rates of ``--lr``, each for its number of ``--phase-epochs``.

    For ``--lr 0.002,0.0001 --phase-epochs 180,60`` fairseq's ``fixed`` needs a list of 181 rates.

    Raises:
        InputError: not as many numbers of epochs as learning rates, or one below 1.
    """

    def __init__(self, cfg: PhasesConfig, optimizer: FairseqOptimizer) -> None:
        super().__init__(cfg, optimizer)
        epochs = list(cfg.phase_epochs or [])
        if len(epochs) != len(cfg.lr):
            raise InputError(
                f"--phase-epochs has to give as many numbers as --lr, got {len(epochs)} and "
                f"{len(cfg.lr)}"
            )
        if min(epochs) < 1:
            raise InputError(f"--phase-epochs must be at least 1, got {min(epochs)}")
        self.ends = list(accumulate(epochs))

    def step_begin_epoch(self, epoch: int) -> float:
        """The learning rate of an epoch; the first one is 1."""
        phase = sum(epoch > end for end in self.ends[:-1])
        self.optimizer.set_lr(self.cfg.lr[phase])
        return self.optimizer.get_lr()
