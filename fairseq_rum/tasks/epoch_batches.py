"""Batches that a task draws anew in every epoch; it registers nothing by itself."""

from typing import Any, Callable, Optional, Sequence

from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator

from fairseq_rum.data.epoch_iterators import EpochIterators


class DrawsBatchesByEpoch:
    """Mix-in for tasks: batches are a function of the split, the options and the epoch alone.

    So a resumed run sees the same ones, whatever epoch it was started in. Iterators are kept from
    epoch to epoch. The task's config has ``train_subset``.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._iterators = EpochIterators()

    def batch_sampler(
        self,
        dataset: FairseqDataset,
        max_tokens: Optional[int],
        max_sentences: Optional[int],
        seed: int,
    ) -> Callable[[int], Sequence[Any]]:
        """Epoch -> the indices of each batch.

        Raises:
            InputError: the sizes make no sense.
        """
        raise NotImplementedError

    def get_batch_iterator(
        self,
        dataset: FairseqDataset,
        max_tokens: Optional[int] = None,
        max_sentences: Optional[int] = None,
        seed: int = 1,
        num_shards: int = 1,
        shard_id: int = 0,
        num_workers: int = 0,
        epoch: int = 1,
        data_buffer_size: int = 0,
        skip_remainder_batch: bool = False,
        **kwargs: Any,
    ) -> EpochBatchIterator:
        """The batches of :meth:`batch_sampler`; every example is in one, whatever its length.

        Raises:
            InputError: as :meth:`batch_sampler`.
        """
        # Texts that are typed come as a data set a buffer: there is nothing to keep.
        is_split = any(dataset is split for split in self.datasets.values())
        return (self._iterators if is_split else EpochIterators()).get(
            dataset,
            self.batch_sampler(dataset, max_tokens, max_sentences, seed),
            (max_tokens, max_sentences),
            epoch,
            dataset is self.datasets.get(self.cfg.train_subset),
            seed=seed,
            num_shards=num_shards,
            shard_id=shard_id,
            num_workers=num_workers,
            buffer_size=data_buffer_size,
            skip_remainder_batch=skip_remainder_batch,
        )
