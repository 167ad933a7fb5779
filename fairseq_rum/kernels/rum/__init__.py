"""RUM's loop: ``fused`` (PyTorch, everywhere), ``cpp`` (CPU), ``triton`` (CUDA)."""
