"""fairseq models and named architectures."""

from fairseq_rum.compat import require_fairseq

require_fairseq()

from fairseq_rum.models import (  # noqa: E402, which register architectures
    language_model_archs,  # noqa: F401
    memory_and_qa_archs,  # noqa: F401
    pointer_gen_archs,  # noqa: F401
)
from fairseq_rum.models.fs_rum import FastSlowLanguageModel  # noqa: E402
from fairseq_rum.models.pointer_gen_rum import PointerGenerator  # noqa: E402
from fairseq_rum.models.rum_lm import RumLanguageModel  # noqa: E402
from fairseq_rum.models.rum_memory import RumMemory  # noqa: E402
from fairseq_rum.models.rum_qa import RumQa  # noqa: E402

__all__ = ["FastSlowLanguageModel", "PointerGenerator", "RumLanguageModel", "RumMemory", "RumQa"]
