"""A split of a corpus as one stream of tokens, cut into parallel streams and windows."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator
from torch import Tensor

from fairseq_rum.errors import InputError


class TokenStream(FairseqDataset):
    """The tokens of an indexed dataset, line after line, as one sequence.

    Args:
        lines: an indexed dataset of fairseq; it stays on disk where fairseq maps it.
        name: the split and its path, for messages.
        drop_last: leave out the last token: the end-of-sentence symbol that fairseq-preprocess
            adds to a text without a final newline.

    Raises:
        InputError: the split is empty.
    """

    def __init__(self, lines: Any, name: str, drop_last: bool = False) -> None:
        self.lines = lines
        self.name = name
        self._ends = np.cumsum(np.asarray(lines.sizes, dtype=np.int64))
        self.total = (int(self._ends[-1]) if len(self._ends) else 0) - int(drop_last)
        if self.total <= 0:
            raise InputError(f"split {name} is empty")

    def __len__(self) -> int:
        return self.total

    def tokens(self, start: int, end: int) -> Tensor:
        """Tokens ``start`` to ``end``, without the last."""
        if not 0 <= start <= end <= self.total:
            raise IndexError(f"tokens {start} to {end} of a stream of {self.total}")
        line = int(np.searchsorted(self._ends, start, side="right"))
        begin = int(self._ends[line - 1]) if line else 0
        parts = []
        while begin < end:
            parts.append(self.lines[line][max(start - begin, 0) : end - begin])
            begin = int(self._ends[line])
            line += 1
        return torch.cat(parts).long() if parts else torch.empty(0, dtype=torch.long)


class StreamWindows(FairseqDataset):
    """Windows over parallel streams: item k is window k of every stream of this shard.

    The n tokens of a split are cut into ``batch_size * num_shards`` contiguous streams whose
    lengths differ by one at most; shard r owns rows ``r * batch_size`` and on. Every token is the
    target of exactly one position, the first one too: it is predicted from the start-of-line
    symbol, and the first token of another stream from the token before it. The last window is
    shorter, and padded where a stream ends a token before the others.

    Args:
        stream: the tokens.
        batch_size: streams of this shard, rows of a batch.
        window: steps of a window.
        pad: index of the padding symbol.
        eos: index of the end-of-sentence symbol, the input before the first token.
        num_shards: data-parallel processes.
        shard_id: which of them this is.

    Raises:
        InputError: the split has fewer tokens than streams x window.
    """

    def __init__(
        self,
        stream: TokenStream,
        batch_size: int,
        window: int,
        pad: int,
        eos: int,
        num_shards: int = 1,
        shard_id: int = 0,
    ) -> None:
        self.streams = batch_size * num_shards
        if len(stream) < self.streams * window:
            processes = f" x {num_shards} processes" if num_shards > 1 else ""
            raise InputError(
                f"split {stream.name} has {len(stream):,} tokens, fewer than --batch-size "
                f"{batch_size}{processes} x --tokens-per-sample {window} = "
                f"{self.streams * window:,}: lower one of them"
            )
        self.stream = stream
        self.batch_size = batch_size
        self.window = window
        self.pad = pad
        self.eos = eos
        self.first_row = shard_id * batch_size
        length, longer = divmod(len(stream), self.streams)
        rows = np.arange(self.streams + 1)
        self._bounds = rows * length + np.minimum(rows, longer)
        self._windows = -(-(length + (longer > 0)) // window)

    @property
    def layout(self) -> Dict[str, int]:
        """What has to agree for a run to continue within an epoch."""
        return {"tokens": len(self.stream), "streams": self.streams, "window": self.window}

    def __len__(self) -> int:
        return self._windows

    def __getitem__(self, index: int) -> Dict[str, Any]:
        rows = range(self.first_row, self.first_row + self.batch_size)
        offset = index * self.window
        steps = min(self.window, int(self._bounds[1]) - offset)  # stream 0 is among the longest
        inputs = torch.full((self.batch_size, steps), self.pad)
        target = torch.full((self.batch_size, steps), self.pad)
        for position, row in enumerate(rows):
            start = int(self._bounds[row]) + offset
            end = min(start + steps, int(self._bounds[row + 1]))
            tokens = self.stream.tokens(max(start - 1, 0), end)
            if start == 0:
                tokens = torch.cat([tokens.new_tensor([self.eos]), tokens])
            inputs[position, : end - start] = tokens[:-1]
            target[position, : end - start] = tokens[1:]
        lengths = target.ne(self.pad).sum(1)
        return {
            "id": torch.tensor(rows),
            "window": index,
            "nsentences": self.batch_size,
            "ntokens": int(lengths.sum()),
            "net_input": {"src_tokens": inputs, "src_lengths": lengths},
            "target": target,
        }

    def collater(self, samples: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
        """A batch is one window of all streams, which an item already holds."""
        (sample,) = samples
        return sample

    def num_tokens(self, index: int) -> int:
        """Tokens of a window."""
        return self.batch_size * self.window

    def size(self, index: int) -> int:
        """Steps of a window."""
        return self.window

    def ordered_indices(self) -> np.ndarray:
        """Windows in the order of the text, the only one in which state can be carried."""
        return np.arange(len(self))

    def batches(self) -> List[List[int]]:
        """One window a batch."""
        return [[index] for index in range(len(self))]


class WindowIterator(EpochBatchIterator):
    """Windows in the order of the text; a position within an epoch is of a way to cut it.

    Args:
        windows: the data set.
        **options: of fairseq's iterator.
    """

    def __init__(self, windows: StreamWindows, **options: Any) -> None:
        super().__init__(
            dataset=windows,
            collate_fn=windows.collater,
            batch_sampler=windows.batches(),
            disable_shuffling=True,  # a shuffled window would continue another one's state
            persistent_workers=False,  # those of a dropped iterator take seconds to die
            **options,
        )

    def state_dict(self) -> Dict[str, Any]:
        """fairseq's position within the epoch, and how the text is cut."""
        return {**super().state_dict(), "layout": self.dataset.layout}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Continue within an epoch.

        Raises:
            InputError: this run is cut into streams and windows in another way than the saved one.
        """
        now = self.dataset.layout
        then = state_dict.get("layout", now)  # fairseq's own task has none
        if state_dict["iterations_in_epoch"] > 0 and then != now:
            raise InputError(
                "the checkpoint was saved within an epoch of "
                f"{then['tokens']:,} tokens in {then['streams']} streams (--batch-size x processes)"
                f" and windows of {then['window']} (--tokens-per-sample), this run has "
                f"{now['tokens']:,}, {now['streams']} and {now['window']}: use the same, or "
                "--reset-dataloader to start the epoch anew"
            )
        super().load_state_dict(state_dict)
