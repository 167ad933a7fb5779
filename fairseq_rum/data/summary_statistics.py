"""What ROUGE does not tell about summaries: how much is copied, repeated, and how long they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fairseq_rum.data.rouge import words_of

NGRAMS = (1, 2, 3, 4)


def ngrams(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    """All sequences of n words in a row."""
    return zip(*(words[start:] for start in range(n)))


def novel_ngrams(texts: Iterable[str], sources: Iterable[str]) -> dict[int, float]:
    """n -> the percentage of the n-grams of all texts that do not occur in their source.

    Words are those of ROUGE, so that it makes no difference how texts are tokenized.
    """
    novel, total = dict.fromkeys(NGRAMS, 0), dict.fromkeys(NGRAMS, 0)
    for text, source in zip(texts, sources):
        words, source_words = words_of(text), words_of(source)
        for n in NGRAMS:
            in_source = set(ngrams(source_words, n))
            for ngram in ngrams(words, n):
                total[n] += 1
                novel[n] += ngram not in in_source
    return {n: _percent(novel[n], total[n]) for n in NGRAMS}


def repeated_trigrams(texts: Iterable[str]) -> float:
    """The percentage of trigrams that occur earlier in the same text."""
    repeated = total = 0
    for text in texts:
        found = list(ngrams(words_of(text), 3))
        total += len(found)
        repeated += len(found) - len(set(found))
    return _percent(repeated, total)


def mean_length(texts: Sequence[str]) -> float:
    """The mean number of words, which white space separates."""
    return sum(len(text.split()) for text in texts) / max(len(texts), 1)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
