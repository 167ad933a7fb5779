"""``babi_qa``: questions about stories, answered with one of a fixed set of answers."""

from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence

from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II

from fairseq_rum.data.question_answering import (
    QuestionDataset,
    load_dictionaries,
    load_questions,
)
from fairseq_rum.errors import InputError
from fairseq_rum.tasks.divergence import StopsWhenDiverging
from fairseq_rum.tasks.dynamics import DynamicsConfig, LogsDynamics
from fairseq_rum.tasks.epoch_batches import DrawsBatchesByEpoch


@dataclass
class BabiQaConfig(DynamicsConfig):
    """Options of ``babi_qa``."""

    data: Optional[str] = field(
        default=None, metadata={"help": "data directory of fairseq-rum prepare babi"}
    )
    train_subset: str = II("dataset.train_subset")


@register_task("babi_qa", dataclass=BabiQaConfig)
class BabiQaTask(DrawsBatchesByEpoch, LogsDynamics, StopsWhenDiverging, FairseqTask):
    """Answer questions about stories, as the bAbI tasks ask them.

    An example is a story and its question as one sequence of words, with an end to each sentence:
    models may read it word by word or sentence by sentence. The target is the number of the answer.
    Batches are of stories with similar numbers of sentences, drawn anew in every epoch.

    Args:
        cfg: the options.
        words: dictionary of stories and questions.
        answers: dictionary of the answers; each but fairseq's special symbols is a class.
    """

    def __init__(self, cfg: BabiQaConfig, words: Dictionary, answers: Dictionary) -> None:
        super().__init__(cfg)
        self.words = words
        self.answers = answers

    @classmethod
    def setup_task(cls, cfg: BabiQaConfig, **kwargs: Any) -> "BabiQaTask":
        """Load the dictionaries.

        Raises:
            InputError: the data directory or one of its dictionaries is missing.
        """
        if not cfg.data:
            raise InputError("give the data directory that fairseq-rum prepare babi wrote")
        return cls(cfg, *load_dictionaries(cfg.data))

    @property
    def source_dictionary(self) -> Dictionary:
        """Words of stories and questions."""
        return self.words

    @property
    def target_dictionary(self) -> None:
        """None: a target is the number of an answer, none of which is padding to a criterion."""
        return None

    @property
    def num_answers(self) -> int:
        """The number of classes."""
        return len(self.answers) - self.answers.nspecial

    def answer(self, number: int) -> str:
        """The answer that is a class."""
        return self.answers[number + self.answers.nspecial]

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split.

        Raises:
            InputError: it is missing, empty or malformed.
        """
        self.datasets[split] = load_questions(
            self.cfg.data, split, self.words, self.answers, split == self.cfg.train_subset
        )

    def batch_sampler(
        self,
        dataset: QuestionDataset,
        max_tokens: Optional[int],
        max_sentences: Optional[int],
        seed: int,
    ) -> Callable[[int], Sequence[Any]]:
        """Batches of similar lengths.

        Raises:
            InputError: no size is given, or a batch has no room for one example.
        """
        if max_sentences is None and max_tokens is None:
            raise InputError("give --batch-size, the number of questions")
        return lambda epoch: dataset.batches(max_sentences, max_tokens, seed, epoch)

    def max_positions(self) -> None:
        """A recurrent unit has no longest input."""
        return None
