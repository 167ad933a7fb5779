"""``--scoring rouge``: ROUGE at the end of fairseq-generate."""

from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass
from fairseq.scoring import BaseScorer, register_scorer

from fairseq_rum.data.rouge import TYPES, Rouge, score_corpus


@dataclass
class RougeScorerConfig(FairseqDataclass):
    """Options of ``--scoring rouge``."""

    rouge_no_stemming: bool = field(
        default=False, metadata={"help": "compare words as they are, not their stems (Porter)"}
    )


@register_scorer("rouge", dataclass=RougeScorerConfig)
class RougeScorer(BaseScorer):
    """F1 of ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum, with 95% bootstrap intervals.

    The numbers are those of ``fairseq-rum score``, which takes several references and tells more.

    Args:
        cfg: see :class:`RougeScorerConfig`.

    Raises:
        InputError: rouge-score is not installed.
    """

    def __init__(self, cfg: RougeScorerConfig) -> None:
        super().__init__(cfg)
        self._rouge = Rouge(stem=not cfg.rouge_no_stemming)

    def score(self) -> float:
        """F1 of ROUGE-L, in percent; 0 without summaries."""
        if not self.pred:
            return 0.0
        return self._estimates()["rougeL"]["fmeasure"].mean

    def result_string(self) -> str:
        """All scores in a line."""
        if not self.pred:
            return "ROUGE: no summaries"
        scores = self._estimates()
        numbers = (f"{name} {scores[kind]['fmeasure']}" for kind, name in TYPES.items())
        return f"{', '.join(numbers)} (F1 and 95% interval, {len(self.pred):,} summaries)"

    def _estimates(self) -> dict:
        return score_corpus(self._rouge, [[reference] for reference in self.ref], self.pred)
