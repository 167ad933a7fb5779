"""Speed and memory. ``make bench``: kernels.py, training.py, RESULTS.md; fast_slow.py alone."""
