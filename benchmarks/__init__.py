"""Speed and memory. ``make bench`` runs kernels.py, training.py and writes RESULTS.md."""
