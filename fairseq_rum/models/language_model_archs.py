"""The language models of the paper's Table 3 as named architectures.

Sizes that the RUM paper takes over from Mujika et al. (NIPS 2017) are theirs. The parameters are
counted in ``docs/ingredients.md``. In the models of a single unit there is no dropout, as in the
authors' code.
"""

from dataclasses import dataclass
from typing import Optional

from fairseq.models import register_model

from fairseq_rum.models.fs_rum import FastSlowLanguageModel, FastSlowLanguageModelConfig
from fairseq_rum.models.rum_lm import RumLanguageModel, RumLanguageModelConfig


@dataclass
class FsRumTinyConfig(FastSlowLanguageModelConfig):
    """For tests and laptops."""

    decoder_embed_dim: int = 32
    decoder_hidden_size: int = 64
    slow_hidden_size: Optional[int] = 96


@register_model("fs_rum_tiny", dataclass=FsRumTinyConfig)
class FsRumTiny(FastSlowLanguageModel):
    """FS-RUM-2 at a tenth of its size."""


@dataclass
class FsRumLargeConfig(FastSlowLanguageModelConfig):
    """The better validation run."""

    decoder_hidden_size: int = 1100
    slow_hidden_size: Optional[int] = 800


@register_model("fs_rum_large", dataclass=FsRumLargeConfig)
class FsRumLarge(FastSlowLanguageModel):
    """FS-RUM-2 with fast cells of 1100 and a slow one of 800."""


@dataclass
class FsLstm2Config(FastSlowLanguageModelConfig):
    """LSTM all through."""

    slow_rnn_unit: Optional[str] = "lstm"
    slow_hidden_size: Optional[int] = 400


@register_model("fs_lstm_2", dataclass=FsLstm2Config)
class FsLstm2(FastSlowLanguageModel):
    """FS-LSTM-2 of Mujika et al.: fast cells of 700, a slow one of 400."""


@dataclass
class FsLstm4Config(FsLstm2Config):
    """Four fast cells."""

    decoder_hidden_size: int = 500
    fast_cells: Optional[int] = 4


@register_model("fs_lstm_4", dataclass=FsLstm4Config)
class FsLstm4(FastSlowLanguageModel):
    """FS-LSTM-4 of Mujika et al.: fast cells of 500, a slow one of 400."""


@dataclass
class FsEurnn2Config(FastSlowLanguageModelConfig):
    """A slow EURNN."""

    slow_rnn_unit: Optional[str] = "eurnn"
    slow_hidden_size: Optional[int] = 2000


@register_model("fs_eurnn_2", dataclass=FsEurnn2Config)
class FsEurnn2(FastSlowLanguageModel):
    """FS-EURNN-2: fast LSTM of 700, a slow EURNN of 2000."""


@dataclass
class FsGoru2Config(FastSlowLanguageModelConfig):
    """A slow GORU."""

    slow_rnn_unit: Optional[str] = "goru"
    slow_hidden_size: Optional[int] = 800


@register_model("fs_goru_2", dataclass=FsGoru2Config)
class FsGoru2(FastSlowLanguageModel):
    """FS-GORU-2: fast LSTM of 700, a slow GORU of 800."""


@dataclass
class RumLm1000Config(RumLanguageModelConfig):
    """A single RUM with layer normalization, zoneout and time normalization."""

    decoder_hidden_size: int = 1000
    rum_lambda: Optional[int] = 0
    rum_eta: Optional[float] = 1.0
    rum_layer_norm: bool = True
    rum_zoneout: Optional[float] = 0.1


@register_model("rum_lm_1000", dataclass=RumLm1000Config)
class RumLm1000(RumLanguageModel):
    """RUM 1000."""


@dataclass
class RumLm1000TanhConfig(RumLm1000Config):
    """Another activation."""

    rum_activation: Optional[str] = "tanh"


@register_model("rum_lm_1000_tanh", dataclass=RumLm1000TanhConfig)
class RumLm1000Tanh(RumLanguageModel):
    """RUM 1000 with tanh in the place of ReLU."""


@dataclass
class RumLm1400Config(RumLm1000Config):
    """Another size."""

    decoder_hidden_size: int = 1400


@register_model("rum_lm_1400", dataclass=RumLm1400Config)
class RumLm1400(RumLanguageModel):
    """RUM 1400."""


@dataclass
class RumLm1400NoGateConfig(RumLm1400Config):
    """No update gate."""

    rum_no_update_gate: bool = True


@register_model("rum_lm_1400_no_gate", dataclass=RumLm1400NoGateConfig)
class RumLm1400NoGate(RumLanguageModel):
    """RUM 1400 without update gate."""


@dataclass
class RumLm2000Config(RumLm1000Config):
    """Another size."""

    decoder_hidden_size: int = 2000


@register_model("rum_lm_2000", dataclass=RumLm2000Config)
class RumLm2000(RumLanguageModel):
    """RUM 2000."""


@dataclass
class RumLm2x1500Config(RumLm1000Config):
    """Two layers, a smaller norm."""

    decoder_layers: int = 2
    decoder_hidden_size: int = 1500
    rum_eta: Optional[float] = 0.3


@register_model("rum_lm_2x1500", dataclass=RumLm2x1500Config)
class RumLm2x1500(RumLanguageModel):
    """Two layers of RUM 1500, eta = 0.3."""


@dataclass
class LstmLm1000Config(RumLanguageModelConfig):
    """A single LSTM with layer normalization and zoneout."""

    rnn_unit: str = "lstm"
    decoder_hidden_size: int = 1000
    orthogonal_kernels: bool = True
    lstm_layer_norm: bool = True
    lstm_zoneout: Optional[float] = 0.1
    lstm_zoneout_cell: Optional[float] = 0.5


@register_model("lstm_lm_1000", dataclass=LstmLm1000Config)
class LstmLm1000(RumLanguageModel):
    """LSTM 1000."""
