"""Pure functions on tensors: rotations, activations, norms (torch only, usable without fairseq)."""

from fairseq_rum.functional.activations import ACTIVATIONS, get_activation
from fairseq_rum.functional.eunn import (
    eunn_coefficients,
    eunn_layout,
    eunn_matrix,
    eunn_rotate,
)
from fairseq_rum.functional.modrelu import modrelu, modrelu_pairs
from fairseq_rum.functional.norms import block_layer_norm, flush_denormals, time_normalize
from fairseq_rum.functional.rotation import compose_rotation, rotate, rotation

__all__ = [
    "ACTIVATIONS",
    "block_layer_norm",
    "compose_rotation",
    "eunn_coefficients",
    "eunn_layout",
    "eunn_matrix",
    "eunn_rotate",
    "flush_denormals",
    "get_activation",
    "modrelu",
    "modrelu_pairs",
    "rotate",
    "rotation",
    "time_normalize",
]
