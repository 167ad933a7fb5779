"""RUM's loop: ``triton`` (CUDA), ``cpp`` (CPU), ``fused`` (PyTorch, everywhere), best first."""

from typing import Dict

from fairseq_rum.kernels.dispatch import register_kernel
from fairseq_rum.kernels.rum.base import RumKernel
from fairseq_rum.kernels.rum.cpp import CppKernel
from fairseq_rum.kernels.rum.fused import FusedKernel
from fairseq_rum.kernels.rum.triton import TritonKernel

KERNELS: Dict[str, RumKernel] = {
    "triton": TritonKernel(),
    "cpp": CppKernel(),
    "fused": FusedKernel(),
}

for _name, _kernel in KERNELS.items():
    register_kernel("rum", _name, _kernel)
