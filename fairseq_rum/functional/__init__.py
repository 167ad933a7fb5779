"""Pure functions on tensors: rotations, activations, norms (torch only, usable without fairseq)."""

from fairseq_rum.functional.activations import ACTIVATIONS, get_activation
from fairseq_rum.functional.norms import block_layer_norm, flush_denormals, time_normalize
from fairseq_rum.functional.rotation import compose_rotation, rotate, rotation

__all__ = [
    "ACTIVATIONS",
    "block_layer_norm",
    "compose_rotation",
    "flush_denormals",
    "get_activation",
    "rotate",
    "rotation",
    "time_normalize",
]
