"""RUM's loop: ``triton`` (CUDA), ``cpp`` (CPU), ``fused`` (PyTorch, everywhere), best first."""

from fairseq_rum.kernels.dispatch import register_kernel
from fairseq_rum.kernels.rum.fused import FusedKernel

register_kernel("rum", "fused", FusedKernel())
