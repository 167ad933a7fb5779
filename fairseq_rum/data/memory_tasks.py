"""The two synthetic memory tasks, copying and associative recall, generated on the fly.

An example is a function of the seed, the split and its index alone, so that every unit sees the
same data whatever the batch size and the number of workers and processes. The random numbers are
therefore addressed by index instead of drawn in order, a whole batch at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Protocol, Sequence, Tuple

import numpy as np
import torch
from fairseq.data import FairseqDataset

from fairseq_rum.errors import InputError

SPLITS = ("train", "valid", "test")
QUERIES = ("letter", "position")


class RandomNumbers:
    """Uniform 64-bit numbers by index: the SplitMix64 sequence, which any part can be had from.

    Args:
        key: numbers >= 0 that tell this sequence from others.
    """

    def __init__(self, *key: int) -> None:
        self._start = np.random.SeedSequence(key).generate_state(1, np.uint64)

    def __call__(self, items: np.ndarray, count: int) -> np.ndarray:
        """The ``count`` numbers that belong to each item: ``(len(items), count)``."""
        z = items.astype(np.uint64)[:, None] * np.uint64(count)
        z = z + np.arange(1, count + 1, dtype=np.uint64)
        z *= np.uint64(0x9E3779B97F4A7C15)
        z += self._start
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        return z


def _below(numbers: np.ndarray, n: int) -> np.ndarray:
    """Uniform integers 0 .. n-1 out of uniform 64-bit numbers."""
    return ((numbers >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)).astype(np.int64)


class MemoryProblem(Protocol):
    """What models, criterions and tasks need to know about a memory task.

    Attributes:
        input_symbols: size of the one-hot input.
        output_symbols: number of classes of a target.
        steps: length of a sequence.
        answer_steps: the last so many steps have a target.
        scored_steps: accuracy counts the last so many.
        baseline: mean cross-entropy in nats, over all targets, of the best guess without memory;
            None where accuracy is what counts.
        numbers: random numbers that an example takes.
    """

    input_symbols: int
    output_symbols: int
    steps: int
    answer_steps: int
    scored_steps: int
    baseline: Optional[float]
    numbers: int

    def examples(self, numbers: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Numbers ``(B, numbers)`` -> inputs ``(B, steps)`` and targets ``(B, answer_steps)``."""
        ...


@dataclass(frozen=True)
class CopyingMemory:
    """Copying: repeat symbols after a delay (Hochreiter & Schmidhuber 1997; Arjovsky et al. 2016).

    ``length`` symbols, uniform among n, T - 1 blanks, a marker, ``length`` blanks, T + 2 length
    steps in all. The target is blank but at the last ``length`` steps, where it is the symbols in
    their order. Without memory the best is to know when to answer and to guess what: a mean loss
    of length ln n / (T + 2 length) nats.

    Symbols: 0 .. n-1 to copy, n the blank, n+1 the marker, which is never a target.

    Args:
        delay: T, from the last symbol to the marker.
        symbols: n.
        length: number of symbols to copy.

    Raises:
        InputError: one of them is below 1.
    """

    delay: int
    symbols: int = 8
    length: int = 10

    def __post_init__(self) -> None:
        for flag, value in (
            ("--delay", self.delay),
            ("--copy-symbols", self.symbols),
            ("--copy-length", self.length),
        ):
            if value < 1:
                raise InputError(f"{flag} must be at least 1, got {value}")

    @property
    def input_symbols(self) -> int:
        """The symbols to copy, blank and marker."""
        return self.symbols + 2

    @property
    def output_symbols(self) -> int:
        """The symbols to copy and blank."""
        return self.symbols + 1

    @property
    def steps(self) -> int:
        """T + 2 length."""
        return self.delay + 2 * self.length

    @property
    def answer_steps(self) -> int:
        """Every step has a target."""
        return self.steps

    @property
    def scored_steps(self) -> int:
        """The copied symbols."""
        return self.length

    @property
    def baseline(self) -> float:
        """length ln n / (T + 2 length) nats."""
        return self.length * math.log(self.symbols) / self.steps

    @property
    def numbers(self) -> int:
        """One for each symbol to copy."""
        return self.length

    def examples(self, numbers: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, both ``(B, T + 2 length)``."""
        symbols = _below(numbers, self.symbols)
        inputs = np.full((len(numbers), self.steps), self.symbols)
        targets = inputs.copy()
        inputs[:, : self.length] = symbols
        inputs[:, -self.length - 1] = self.symbols + 1
        targets[:, -self.length :] = symbols
        return inputs, targets


@dataclass(frozen=True)
class AssociativeRecall:
    """Associative recall: which digit came after this letter? (Ba et al. 2016, as in RUM's paper.)

    Letters and digits in turn, T characters: the letters are a permutation of all T/2, so that none
    is repeated, the digits uniform among 10. Then ``??`` and a letter of them, T + 3 steps in all;
    the answer, read at the last step, is the digit after that letter: ``c9k8j3f1??c`` -> 9.

    With ``query="position"`` the last symbol names one of the T positions instead and the answer is
    the letter or digit there: there are T more input symbols and T/2 more answers.

    Symbols: 0 .. T/2-1 letters, then ten digits, ``?``, and the positions if they are asked for.
    Answers: the digits, 0 .. 9; letters, 0 .. T/2-1, and then digits if positions are asked for.

    Args:
        length: T.
        query: ``letter`` or ``position``.

    Raises:
        InputError: T is odd or below 2, or the query is neither.
    """

    length: int
    query: str = "letter"

    def __post_init__(self) -> None:
        if self.length < 2:
            raise InputError(f"--recall-length must be at least 2, got {self.length}")
        if self.length % 2:
            raise InputError(
                f"--recall-length must be even, a digit for each letter, got {self.length}"
            )
        if self.query not in QUERIES:
            raise InputError(f"--query must be {' or '.join(QUERIES)}, got {self.query!r}")

    @property
    def letters(self) -> int:
        """How many letters there are, T/2."""
        return self.length // 2

    @property
    def input_symbols(self) -> int:
        """T/2 + 11, and T more to name positions."""
        return self.letters + 11 + (self.length if self.query == "position" else 0)

    @property
    def output_symbols(self) -> int:
        """The digits; letters and digits where positions are asked for."""
        return 10 if self.query == "letter" else self.letters + 10

    @property
    def steps(self) -> int:
        """T + 3."""
        return self.length + 3

    @property
    def answer_steps(self) -> int:
        """The last step alone has a target."""
        return 1

    @property
    def scored_steps(self) -> int:
        """The answer."""
        return 1

    @property
    def baseline(self) -> None:
        """None: accuracy is what counts."""
        return None

    @property
    def numbers(self) -> int:
        """For the permutation, the digits, and the query."""
        return self.length + 1

    def examples(self, numbers: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Inputs ``(B, T + 3)`` and answers ``(B, 1)``."""
        half = self.letters
        inputs = np.full((len(numbers), self.steps), half + 10)
        sequence = inputs[:, : self.length]
        sequence[:, 0::2] = np.argsort(numbers[:, :half], axis=1)
        sequence[:, 1::2] = half + _below(numbers[:, half : 2 * half], 10)
        rows = np.arange(len(numbers))
        if self.query == "letter":
            asked = 2 * _below(numbers[:, -1], half)
            inputs[:, -1] = sequence[rows, asked]
            answers = sequence[rows, asked + 1] - half
        else:
            asked = _below(numbers[:, -1], self.length)
            inputs[:, -1] = half + 11 + asked
            answers = sequence[rows, asked]
        return inputs, answers[:, None]

    def question(self, inputs: Sequence[int]) -> Tuple[List[int], int, int]:
        """One example taken apart.

        Args:
            inputs: the T + 3 symbols of an example.

        Returns:
            the T symbols to remember, the place among them of the one asked for, and the answer.
        """
        string = list(inputs[: self.length])
        if self.query == "position":
            asked = inputs[-1] - self.letters - 11
            return string, asked, string[asked]
        asked = string.index(inputs[-1]) + 1
        return string, asked, string[asked] - self.letters


class MemoryDataset(FairseqDataset):
    """A split of a memory task. An item is its own index: the collater makes the batch, at once.

    Args:
        problem: the task.
        split: train, valid or test.
        size: number of examples, of an epoch if they are fresh.
        seed: of the data, >= 0.
        fresh: other examples in every epoch: epoch 2 goes on where epoch 1 ended.

    Raises:
        InputError: an unknown split, or a size or seed out of range.
    """

    def __init__(
        self, problem: MemoryProblem, split: str, size: int, seed: int = 1, fresh: bool = False
    ) -> None:
        if split not in SPLITS:
            raise InputError(f"no split {split!r}, a memory task has {', '.join(SPLITS)}")
        if size < 1:
            raise InputError(f"--{split}-examples must be at least 1, got {size}")
        if seed < 0:
            raise InputError(f"--data-seed must be at least 0, got {seed}")
        self.problem = problem
        self.split = split
        self.fresh = fresh
        self._size = size
        self._numbers = RandomNumbers(seed, SPLITS.index(split))

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        if index < 0 or (index >= self._size and not self.fresh):
            raise IndexError(f"example {index} of {self._size}")
        return index

    def collater(self, samples: Sequence[int]) -> Dict[str, Any]:
        """The batch of these examples."""
        if not len(samples):
            return {}  # fairseq's sign that a process has no batch left
        items = np.asarray(samples, dtype=np.int64)
        inputs, targets = self.problem.examples(self._numbers(items, self.problem.numbers))
        return {
            "id": torch.from_numpy(items),
            "nsentences": len(items),
            "ntokens": targets.size,
            "net_input": {"src_tokens": torch.from_numpy(inputs)},
            "target": torch.from_numpy(targets),
        }

    def batches(self, batch_size: int, epoch: int = 1) -> List[range]:
        """The split in order, cut into batches; the last one may be smaller.

        The epoch is in the indices, where workers that were started in another one hear of it.
        """
        start = (epoch - 1) * self._size if self.fresh else 0
        end = start + self._size
        return [range(i, min(i + batch_size, end)) for i in range(start, end, batch_size)]

    def num_tokens(self, index: int) -> int:
        """Steps of an example."""
        return self.problem.steps

    def size(self, index: int) -> int:
        """Steps of an example."""
        return self.problem.steps

    def ordered_indices(self) -> np.ndarray:
        """All examples in their order."""
        return np.arange(self._size)
