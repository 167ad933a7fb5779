"""The summarization models of RUM's paper (Table 4) as named architectures.

``pointer_gen_rum`` itself is decRUM with 256 hidden units, the paper's best. See et al.'s network,
with LSTM on both sides, is the paper's LEAD.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.models import register_model

from fairseq_rum.models.pointer_gen_rum import PointerGenerator, PointerGeneratorConfig


def _default(name: str, value: Any) -> Any:
    """A field of ``pointer_gen_rum`` with another default; its help text stays."""
    (entry,) = [e for e in dataclasses.fields(PointerGeneratorConfig) if e.name == name]
    return dataclasses.field(default=value, metadata=entry.metadata)


@dataclass
class PointerGenDecRum360Config(PointerGeneratorConfig):
    """A decoder of 360."""

    decoder_hidden_size: int = _default("decoder_hidden_size", 360)


@register_model("pointer_gen_dec_rum_360", dataclass=PointerGenDecRum360Config)
class PointerGenDecRum360(PointerGenerator):
    """decRUM with 360 hidden units.

    In the decoder alone (our reading): with 360 units a RUM has 397,000 weights there, about as
    many as the LSTM of 256 in its place, 393,000.
    """


@dataclass
class PointerGenEncRumConfig(PointerGeneratorConfig):
    """RUM in the encoder."""

    encoder_rnn_unit: str = _default("encoder_rnn_unit", "rum")
    decoder_rnn_unit: str = _default("decoder_rnn_unit", "lstm")


@register_model("pointer_gen_enc_rum", dataclass=PointerGenEncRumConfig)
class PointerGenEncRum(PointerGenerator):
    """encRUM: RUM encoder, LSTM decoder."""


@dataclass
class PointerGenAllRumConfig(PointerGeneratorConfig):
    """RUM on both sides."""

    encoder_rnn_unit: str = _default("encoder_rnn_unit", "rum")


@register_model("pointer_gen_all_rum", dataclass=PointerGenAllRumConfig)
class PointerGenAllRum(PointerGenerator):
    """allRUM: RUM encoder and decoder."""


@dataclass
class PointerGenLstmConfig(PointerGeneratorConfig):
    """LSTM on both sides."""

    decoder_rnn_unit: str = _default("decoder_rnn_unit", "lstm")


@register_model("pointer_gen_lstm", dataclass=PointerGenLstmConfig)
class PointerGenLstm(PointerGenerator):
    """LEAD: the network of See et al. 2017."""


@dataclass
class PointerGenRumTanhConfig(PointerGeneratorConfig):
    """tanh in RUM."""

    rum_activation: Optional[str] = _default("rum_activation", "tanh")


@register_model("pointer_gen_rum_tanh", dataclass=PointerGenRumTanhConfig)
class PointerGenRumTanh(PointerGenerator):
    """Ablation of decRUM: tanh instead of relu as RUM's activation."""


@dataclass
class PointerGenRumNoGateConfig(PointerGeneratorConfig):
    """RUM without update gate."""

    rum_no_update_gate: bool = _default("rum_no_update_gate", True)


@register_model("pointer_gen_rum_no_gate", dataclass=PointerGenRumNoGateConfig)
class PointerGenRumNoGate(PointerGenerator):
    """Ablation of decRUM: without RUM's update gate."""


@dataclass
class PointerGenRumTinyConfig(PointerGeneratorConfig):
    """Small sizes."""

    embed_dim: int = _default("embed_dim", 32)
    encoder_hidden_size: int = _default("encoder_hidden_size", 64)
    decoder_hidden_size: int = _default("decoder_hidden_size", 64)


@register_model("pointer_gen_rum_tiny", dataclass=PointerGenRumTinyConfig)
class PointerGenRumTiny(PointerGenerator):
    """decRUM for tests and laptops."""
