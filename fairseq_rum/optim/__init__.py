"""fairseq optimizers and learning-rate schedulers."""

from fairseq_rum.compat import require_fairseq

require_fairseq()

from fairseq_rum.optim.adagrad import FairseqAdagrad  # noqa: E402
from fairseq_rum.optim.phases import Phases  # noqa: E402
from fairseq_rum.optim.rmsprop import FairseqRMSprop, RMSprop  # noqa: E402

__all__ = ["FairseqAdagrad", "FairseqRMSprop", "Phases", "RMSprop"]
