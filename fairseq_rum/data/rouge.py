"""ROUGE of a corpus with bootstrap intervals, through the package rouge-score."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_rum.data.sentences import split_sentences
from fairseq_rum.errors import InputError

TYPES = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
}
MEASURES = ("fmeasure", "precision", "recall")
COMBINATIONS = ("max", "mean")


@dataclass(frozen=True)
class Estimate:
    """A mean over summaries in percent, with its 95% bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Rouge:
    """ROUGE-1, ROUGE-2, ROUGE-L and summary-level ROUGE-L (Lin 2004).

    Words are what rouge-score takes for words, as the original script does: lower case, ASCII
    letters and digits, all else is a gap. ROUGE-L takes a text as one sentence; ROUGE-Lsum takes
    the sentences that :func:`~fairseq_rum.data.sentences.split_sentences` finds.

    Args:
        stem: compare the stems of words (Porter), as ``-m`` of the original script.
        combine: of several references, take for each ROUGE the one with the highest F1 (``max``) or
            the mean over all (``mean``).

    Raises:
        InputError: rouge-score is not installed.
    """

    def __init__(self, stem: bool = True, combine: str = "max") -> None:
        if combine not in COMBINATIONS:
            raise ValueError(f"combine {combine!r} is none of {', '.join(COMBINATIONS)}")
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError as error:
            raise InputError("ROUGE needs rouge-score: pip install rouge-score") from error
        self.combine = combine
        self._scorer = RougeScorer(list(TYPES), tokenizer=_Tokenizer(stem))

    def of_pair(self, references: Sequence[str], hypothesis: str) -> np.ndarray:
        """The scores of one summary, in percent: types x measures.

        References that are empty count only where there are no others.
        """
        hypothesis = "\n".join(split_sentences(hypothesis))
        scores = []
        for reference in [text for text in references if text.strip()] or [""]:
            reference = "\n".join(split_sentences(reference))
            score = self._scorer.score(reference, hypothesis)
            scores.append([[getattr(score[t], measure) for measure in MEASURES] for t in TYPES])
        table = 100 * np.array(scores)
        if self.combine == "mean":
            return table.mean(axis=0)
        best = table[:, :, 0].argmax(axis=0)
        return table[best, np.arange(len(TYPES))]


class _Tokenizer:
    """rouge-score's tokenizer, which stems each word once."""

    def __init__(self, stem: bool) -> None:
        self._stemmer = None
        if stem:
            from nltk.stem.porter import PorterStemmer

            self.stem = functools.lru_cache(maxsize=1 << 16)(PorterStemmer().stem)
            self._stemmer = self

    def tokenize(self, text: str) -> list[str]:
        from rouge_score import tokenize

        return tokenize.tokenize(text, self._stemmer)


def words_of(text: str) -> list[str]:
    """The words of a text as ROUGE counts them, not stemmed."""
    return _Tokenizer(stem=False).tokenize(text)


def bootstrap(
    values: np.ndarray, samples: int = 1000, seed: int = 1, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over the rows, and the bounds of its percentile bootstrap interval.

    Args:
        values: rows x columns; rows are drawn together.
        samples: how often as many rows as there are get drawn.
        seed: of the draws.
        confidence: the share of the samples within the bounds.

    Returns:
        Mean, lower bound and upper bound, each of as many values as columns.
    """
    generator = np.random.default_rng(seed)
    rows = len(values)
    means = np.empty((samples, values.shape[1]))
    for sample in range(samples):
        times = np.bincount(generator.integers(rows, size=rows), minlength=rows)
        means[sample] = times @ values / rows
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(means, [tail, 100 - tail], axis=0)
    return values.mean(axis=0), low, high


def score_corpus(
    rouge: Rouge,
    references: Sequence[Sequence[str]],
    hypotheses: Sequence[str],
    samples: int = 1000,
    seed: int = 1,
) -> dict[str, dict[str, Estimate]]:
    """ROUGE of all summaries: type -> measure -> estimate.

    Args:
        rouge: see :class:`Rouge`.
        references: for each summary its references.
        hypotheses: the summaries, at least one.
        samples, seed: see :func:`bootstrap`.
    """
    table = np.stack([rouge.of_pair(*pair) for pair in zip(references, hypotheses)])
    estimates: list[Any] = [
        Estimate(*map(float, each))
        for each in zip(*bootstrap(table.reshape(len(table), -1), samples, seed))
    ]
    width = len(MEASURES)
    return {
        kind: dict(zip(MEASURES, estimates[i * width : (i + 1) * width]))
        for i, kind in enumerate(TYPES)
    }
