"""Scorers for ``--scoring``."""

from fairseq_rum.scoring.rouge import RougeScorer

__all__ = ["RougeScorer"]
