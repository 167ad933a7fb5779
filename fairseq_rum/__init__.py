"""fairseq_rum: the Rotational Unit of Memory, and the units it is compared with, for fairseq.

The layers need torch alone: ``from fairseq_rum.layers import RUM``. Where fairseq is installed,
importing the package (as ``--user-dir`` does) registers its models, tasks, criterions, scorers and
optimizers.
"""

__version__ = "0.1.0"

import warnings as _warnings

from fairseq_rum import compat as _compat

if _compat.fairseq_installed():
    try:
        _compat.require_fairseq()
    except ImportError as _error:  # the layers still work; what needs fairseq says so again
        _warnings.warn(str(_error), stacklevel=2)
    else:
        from fairseq_rum.errors import show_input_errors_as_sentences as _show_sentences

        _compat.apply()
        _show_sentences()
        from fairseq_rum import criterions, models, optim, scoring, tasks  # noqa: F401
        from fairseq_rum.data import encoders  # noqa: F401
        from fairseq_rum.data.checkpoints import protect_checkpoints as _protect_checkpoints

        _protect_checkpoints()
