"""Batch iterators that make other batches in every epoch and are kept from epoch to epoch."""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence, Tuple

from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator

from fairseq_rum.errors import InputError


class ShardedBatchIterator(EpochBatchIterator):
    """Continues an epoch with another number of data-parallel processes, too.

    fairseq counts the batches of one process: resumed with fewer or more of them it would train on
    batches twice, or leave some out.
    """

    def state_dict(self) -> Dict[str, Any]:
        """fairseq's position within the epoch, and of how many processes it is one's."""
        return {**super().state_dict(), "num_shards": self.num_shards}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Continue after the batches that all processes together have seen.

        Raises:
            InputError: the present processes cannot share what is left equally.
        """
        processes = state_dict.get("num_shards", self.num_shards)
        each = state_dict["iterations_in_epoch"]
        done, rest = divmod(each * processes, self.num_shards)
        if rest:
            raise InputError(
                f"the checkpoint was saved within an epoch, after {each} batches in each of "
                f"{processes} processes, which {self.num_shards} processes cannot go on from: use "
                "as many as then, or --reset-dataloader to start the epoch anew"
            )
        super().load_state_dict({**state_dict, "iterations_in_epoch": done})


class EpochIterators:
    """The iterators of a task, one for each dataset and each way to cut it into batches.

    Epochs share an iterator and its workers, as they do by fairseq's default: workers of an
    iterator that is given up take five seconds to end, since it is part of a cycle.
    """

    def __init__(self) -> None:
        self._known: Dict[Tuple[Any, ...], EpochBatchIterator] = {}

    def get(
        self,
        dataset: FairseqDataset,
        batches: Callable[[int], Sequence[Any]],
        sizes: Tuple[Any, ...],
        epoch: int,
        training: bool,
        **options: Any,
    ) -> EpochBatchIterator:
        """The iterator that is at this epoch.

        Args:
            dataset: a split.
            batches: the batches of an epoch; a function of what is in ``sizes`` and ``options``.
            sizes: of the batches.
            epoch: to start from; evaluation is the same in every epoch, and fairseq asks for
                epoch 1 each time.
            training: the split is trained on.
            **options: of fairseq's iterator.
        """
        key = (dataset, *sizes, *options.values())
        known = self._known.get(key)
        if known is None or (training and known.next_epoch_idx != epoch):
            known = self._known[key] = ShardedBatchIterator(
                dataset=dataset,
                collate_fn=dataset.collater,
                batch_sampler=lambda dataset, epoch: batches(epoch),
                epoch=epoch,
                reuse_dataloader=True,
                **options,
            )
        return known
