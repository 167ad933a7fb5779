"""Batch iterators that make other batches in every epoch and are kept from epoch to epoch."""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence, Tuple

from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator


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
            known = self._known[key] = EpochBatchIterator(
                dataset=dataset,
                collate_fn=dataset.collater,
                batch_sampler=lambda dataset, epoch: batches(epoch),
                epoch=epoch,
                reuse_dataloader=True,
                **options,
            )
        return known
