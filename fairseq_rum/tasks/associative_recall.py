"""``associative_recall``: which digit came after this letter?"""

from dataclasses import dataclass, field

from fairseq.tasks import register_task

from fairseq_rum.data.memory_tasks import AssociativeRecall
from fairseq_rum.tasks.memory_task import MemoryTask, MemoryTaskConfig


@dataclass
class AssociativeRecallConfig(MemoryTaskConfig):
    """Options of ``associative_recall``."""

    train_examples: int = field(default=100000, metadata={"help": "training sequences of an epoch"})
    valid_examples: int = field(
        default=10000, metadata={"help": "sequences of the validation split"}
    )
    test_examples: int = field(default=20000, metadata={"help": "sequences of the test split"})
    recall_length: int = field(
        default=30, metadata={"help": "T, letters and digits before the question, even"}
    )
    query: str = field(
        default="letter",
        metadata={
            "help": "what is asked for: letter, the digit after a letter; position, the letter or "
            "digit at a position"
        },
    )


@register_task("associative_recall", dataclass=AssociativeRecallConfig)
class AssociativeRecallTask(MemoryTask):
    """The associative recall of RUM's paper (Section 4.2), see :class:`AssociativeRecall`.

    With ``--criterion memory_accuracy``: the loss of the answer in nats, and its accuracy.
    """

    @classmethod
    def make_problem(cls, cfg: AssociativeRecallConfig) -> AssociativeRecall:
        """The problem that the options describe.

        Raises:
            InputError: an option is out of its range.
        """
        return AssociativeRecall(cfg.recall_length, cfg.query)
