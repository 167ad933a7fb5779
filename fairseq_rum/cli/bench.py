"""Show which backends of the units' loops run here, and measure them.

Every unit also has the backend naive, the loop as its equations define it, which covers everything.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

# What a backend of RUM does with a call; "no" makes the next one in this order take it.
COVERAGE = (
    ("call", "triton", "cpp", "fused", "naive"),
    ("device", "CUDA", "CPU", "any", "any"),
    ("float32, float64", "yes", "yes", "yes", "yes"),
    ("bfloat16, float16, autocast", "yes", "no", "yes", "yes"),
    ("lambda 0 and 1, eta, every activation", "yes", "yes", "yes", "yes"),
    ("without update gate, without biases", "yes", "yes", "yes", "yes"),
    ("constant rotation", "yes", "yes", "yes", "yes"),
    ("padding mask, initial state, both directions", "yes", "yes", "yes", "yes"),
    ("layer normalization, zoneout", "no", "no", "no", "yes"),
    ("hidden size above 4096", "no", "yes", "yes", "yes"),
    ("second derivatives", "raises", "raises", "raises", "yes"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``fairseq-rum bench``."""
    parser.add_argument(
        "--backends",
        action="store_true",
        help="only show which backends run here, why others do not, and what each one covers",
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="for each measurement (default: 2)"
    )
    parser.add_argument("--steps", type=int, default=100, help="T (default: 100)")
    parser.add_argument("--batch-size", type=int, default=32, help="B (default: 32)")
    parser.add_argument("--hidden-size", type=int, default=256, help="N (default: 256)")
    parser.add_argument("--rum-lambda", type=int, default=0, choices=(0, 1), help="0 or 1")


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def _measure(args: argparse.Namespace) -> None:
    """Forward and backward of one layer, the backends of RUM and nn.LSTM in alternation."""
    import statistics
    import time

    import torch
    from torch import nn

    from fairseq_rum.errors import InputError
    from fairseq_rum.kernels import backend_table
    from fairseq_rum.layers import RUM

    for name in ("steps", "batch_size", "hidden_size"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1")
    if not args.seconds > 0:
        raise InputError("--seconds must be positive")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    n = args.hidden_size
    x = torch.randn(args.steps, args.batch_size, n, device=device)
    layers: dict[str, nn.Module] = {"nn.LSTM": nn.LSTM(n, n, device=device)}
    names = [name for unit, name, state in backend_table() if (unit, state) == ("rum", "available")]
    if device == "cuda" and "cpp" in names:
        names.remove("cpp")
    for name in (*names, "naive"):
        layers[f"rum {name}"] = RUM(n, n, lambda_=args.rum_lambda, backend=name, device=device)
    times: dict[str, list[float]] = {name: [] for name in layers}
    end = None
    while end is None or time.perf_counter() < end:
        for name, layer in layers.items():
            begin = time.perf_counter()
            layer(x)[0].sum().backward()
            if device == "cuda":
                torch.cuda.synchronize()
            if end is not None:  # the first round warms up
                times[name].append(time.perf_counter() - begin)
        end = end or time.perf_counter() + args.seconds * len(layers)
    print(f"\nforward + backward, T = {args.steps}, B = {args.batch_size}, N_x = N = {n}, {device}")
    lstm = statistics.median(times["nn.LSTM"])
    rows = [("", "ms", "of nn.LSTM")]
    for name, values in times.items():
        median = statistics.median(values)
        rows.append((name, f"{1000 * median:.1f}", f"{median / lstm:.2f}"))
    _print_table(rows)


def run(args: argparse.Namespace) -> int:
    """Print the tables and return the exit status."""
    from fairseq_rum.kernels import backend_table

    _print_table([("unit", "backend", "here"), *backend_table()])
    print()
    _print_table(COVERAGE)
    if not args.backends:
        _measure(args)
    return 0
