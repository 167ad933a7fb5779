"""fairseq optimizers."""

from fairseq_rum.compat import require_fairseq

require_fairseq()

from fairseq_rum.optim.rmsprop import FairseqRMSprop, RMSprop  # noqa: E402

__all__ = ["FairseqRMSprop", "RMSprop"]
