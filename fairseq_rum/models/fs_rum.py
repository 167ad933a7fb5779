"""``fs_rum``: the Fast-Slow RNN language model, by default the paper's FS-RUM-2."""

from dataclasses import dataclass
from typing import Optional

from fairseq.models import register_model
from omegaconf import II

from fairseq_rum.models.rum_lm import RumLanguageModel, RumLanguageModelConfig


@dataclass
class FastSlowLanguageModelConfig(RumLanguageModelConfig):
    """Options of ``fs_rum``: those of ``rum_lm``, with the values of FS-RUM-2."""

    rnn_unit: str = "fast_slow"
    decoder_hidden_size: int = 700
    dropout: float = 0.35
    orthogonal_kernels: bool = True
    fast_rnn_unit: Optional[str] = "lstm"
    slow_rnn_unit: Optional[str] = "rum"
    fast_cells: Optional[int] = 2
    slow_hidden_size: Optional[int] = 1000
    fast_slow_dropout: Optional[float] = II("model.dropout")
    lstm_layer_norm: bool = True
    lstm_zoneout: Optional[float] = 0.1
    lstm_zoneout_cell: Optional[float] = 0.5
    rum_lambda: Optional[int] = 0
    rum_eta: Optional[float] = 1.0
    rum_layer_norm: bool = True
    rum_zoneout: Optional[float] = 0.1


@register_model("fs_rum", dataclass=FastSlowLanguageModelConfig)
class FastSlowLanguageModel(RumLanguageModel):
    """FS-RUM-2, Table 3 of Dangovski et al., TACL 7, 2019: embedding, fast-slow RNN, softmax.

    ``rum_lm`` with the unit ``fast_slow`` (:class:`fairseq_rum.cells.FastSlowCell`): two fast LSTM
    of 700 and a slow RUM of 1000. ``--dropout`` is on the embeddings, between the fast and the slow
    cells and on the output, never on what recurs.
    """
