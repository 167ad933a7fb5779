"""``copying_memory``: repeat ten symbols after a long delay."""

from dataclasses import dataclass, field

from fairseq.tasks import register_task

from fairseq_rum.data.memory_tasks import CopyingMemory
from fairseq_rum.tasks.memory_task import MemoryTask, MemoryTaskConfig


@dataclass
class CopyingMemoryConfig(MemoryTaskConfig):
    """Options of ``copying_memory``."""

    delay: int = field(
        default=500, metadata={"help": "T, steps from the last symbol to the marker"}
    )
    copy_symbols: int = field(
        default=8, metadata={"help": "n, how many different symbols there are"}
    )
    copy_length: int = field(default=10, metadata={"help": "number of symbols to copy"})


@register_task("copying_memory", dataclass=CopyingMemoryConfig)
class CopyingMemoryTask(MemoryTask):
    """The copying task of RUM's paper (Section 4.1), see :class:`CopyingMemory`.

    With ``--criterion memory_accuracy``: the loss over all T + 20 steps in nats, the loss of the
    best guess without memory beside it, and the accuracy on the copied symbols.
    """

    @classmethod
    def make_problem(cls, cfg: CopyingMemoryConfig) -> CopyingMemory:
        """The problem that the options describe.

        Raises:
            InputError: an option is out of its range.
        """
        return CopyingMemory(cfg.delay, cfg.copy_symbols, cfg.copy_length)
