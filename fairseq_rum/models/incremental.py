"""A decoder whose memory between tokens is one entry of fairseq's cache; it registers nothing."""

from __future__ import annotations

from typing import Dict, Optional

from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor

_ENTRY = "recurrent_state"

IncrementalState = Dict[str, Dict[str, Optional[Tensor]]]


class RecurrentIncrementalDecoder(FairseqIncrementalDecoder):
    """Keeps what the next token needs, batch in dimension 0, and reorders it."""

    def remembered(self, incremental_state: IncrementalState) -> Optional[Dict[str, Tensor]]:
        """What :meth:`remember` kept; None before the first token."""
        return self.get_incremental_state(incremental_state, _ENTRY) or None

    def remember(self, incremental_state: IncrementalState, parts: Dict[str, Tensor]) -> None:
        """Keep these for the next token."""
        self.set_incremental_state(incremental_state, _ENTRY, parts)

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder what is kept as beam search reorders its hypotheses."""
        parts = self.remembered(incremental_state)
        if parts is not None:
            moved = {key: part.index_select(0, new_order) for key, part in parts.items()}
            self.remember(incremental_state, moved)

    def max_positions(self) -> int:
        """A recurrent unit has no longest input."""
        return int(1e9)
