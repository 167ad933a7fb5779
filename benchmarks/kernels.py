"""RUM's loop against torch.nn.LSTM: time, memory, growth. ``python -m benchmarks.kernels``.

Every figure is forward + backward of one layer, gradients to the input and all weights included,
unless a table says otherwise. Ratios are medians over rounds in which all versions run once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Callable, Dict, List, Optional

import torch
from torch import nn

from benchmarks.measure import interleaved, machine, median_ratio, milliseconds, table, write_page
from benchmarks.training import training
from fairseq_rum.cells import build_cell
from fairseq_rum.kernels import backend_table
from fairseq_rum.layers import RUM, RecurrentLayer

# steps T, rows B, input features N_x, hidden size N, lambda, eta
SHAPES = [
    (520, 128, 10, 250, 0, None),
    (150, 128, 128, 1000, 0, None),
    (150, 128, 128, 1000, 0, 1.0),
    (100, 16, 128, 256, 0, None),
    (53, 128, 36, 50, 0, None),
    (53, 128, 36, 50, 1, None),
    (520, 128, 10, 100, 1, None),
]


def available() -> List[str]:
    """RUM's CPU backends that exist here, the readable loop first."""
    names = [b for unit, b, state in backend_table() if unit == "rum" and state == "available"]
    return ["naive", *(name for name in ("fused", "cpp") if name in names)]


def training_step(layer: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Forward and backward of a layer."""

    def call() -> None:
        layer.zero_grad()
        x.grad = None
        layer(x)[0].sum().backward()

    return call


def required(size: int, lambda_: int) -> float:
    """The time relative to nn.LSTM that the cpp backend must not exceed."""
    return 1.7 if lambda_ else 0.5 if size >= 1000 else 0.6


def multiply_adds(inputs: int, size: int) -> float:
    """Multiply-adds of RUM with lambda = 0 relative to an LSTM of the same size."""
    return (3 * inputs + 2 * size) / (4 * inputs + 4 * size)


def speed(seconds: float) -> str:
    """Times relative to nn.LSTM at the shapes of the paper's tasks."""
    rows, missed = [], []
    for steps, batch, inputs, size, lambda_, eta in SHAPES:
        # The readable loop stores R of every step: 2.7 GB and minutes at the last shape.
        names = [n for n in available() if n != "naive" or not (lambda_ and steps > 100)]
        if eta:
            names = names[-1:]  # what time normalization adds to the fastest loop
        x = torch.randn(steps, batch, inputs, requires_grad=True)
        layers = {n: RUM(inputs, size, backend=n, lambda_=lambda_, eta=eta) for n in names}
        calls = {n: training_step(layer, x) for n, layer in layers.items()}
        if not eta:
            calls["gru"] = training_step(nn.GRU(inputs, size), x)
        calls["lstm"] = training_step(nn.LSTM(inputs, size), x)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            times = interleaved(calls, seconds, rare=("naive", "fused"))
            row = [f"{steps}, {batch}, {inputs}, {size}", lambda_, eta or "none", threads]
            for name in ("naive", "fused", "cpp", "gru"):
                row.append(f"{median_ratio(times, name, 'lstm'):.2f}" if name in calls else "-")
            row.append(f"{required(size, lambda_):.2f}")
            row.append("-" if lambda_ else f"{multiply_adds(inputs, size):.2f}")
            row.append(f"{milliseconds(times, 'lstm'):.0f} ms")
            place = f"{row[0]} with {threads} thread{'s' * (threads > 1)}"
            if "cpp" in calls and median_ratio(times, "cpp", "lstm") > required(size, lambda_):
                missed.append(f"the time at {place}{', eta = 1' * bool(eta)}")
            if {"naive", "cpp"} <= calls.keys():
                gain = median_ratio(times, "naive", "cpp")
                row.append(f"{gain:.1f}")
                if gain < 5 and size <= 256:
                    missed.append(f"five times the speed of naive at {place}")
            else:
                row.append("-")
            rows.append(row)
            print(*row, flush=True)
    header = ["T, B, N_x, N", "lambda", "eta", "threads", "naive", "fused", "cpp", "nn.GRU"]
    header += ["required of cpp", "multiply-adds", "nn.LSTM", "naive / cpp"]
    notes = (
        "Multiply-adds: RUM's relative to the LSTM's; a time below that means that the loop "
        "wastes less than nn.LSTM does.\nRequired and not reached in this run: "
        f"{'; '.join(missed) or 'nothing'}."
    )
    return f"{table(header, rows)}\n\n{notes}"


def products_alone(steps: int, batch: int, inputs: int, size: int) -> Callable[[], None]:
    """The matrix products of a training step of the loop, and nothing else."""
    h, g = torch.randn(batch, size), torch.randn(batch, 2 * size)
    hs, gs = torch.randn(steps * batch, size), torch.randn(steps * batch, 2 * size)
    flat, es = torch.randn(steps * batch, inputs), torch.randn(steps * batch, 3 * size)
    w_hh, w_ih = torch.randn(2 * size, size), torch.randn(3 * size, inputs)
    out, back = torch.empty(batch, 2 * size), torch.empty(batch, size)

    def call() -> None:
        torch.mm(flat, w_ih.t())  # all inputs at once
        for _ in range(steps):
            torch.mm(h, w_hh.t(), out=out)
        for _ in range(steps):
            torch.mm(g, w_hh, out=back)
        torch.mm(gs.t(), hs)  # gradients of the weights and of the input
        torch.mm(es.t(), flat)
        torch.mm(es, w_ih)

    return call


def products(seconds: float) -> str:
    """How far the loop is from its matrix products alone."""
    rows = []
    torch.set_num_threads(1)
    for steps, batch, inputs, size, lambda_, eta in SHAPES:
        if lambda_ or eta:
            continue
        x = torch.randn(steps, batch, inputs, requires_grad=True)
        layer = RUM(inputs, size, backend=available()[-1])
        alone = products_alone(steps, batch, inputs, size)
        times = interleaved({"loop": training_step(layer, x), "products": alone}, seconds)
        flops = 2 * steps * batch * size * (3 * 3 * inputs + 3 * 2 * size)
        rate = flops / (milliseconds(times, "products") * 1e6)
        rows.append(
            [
                f"{steps}, {batch}, {inputs}, {size}",
                f"{milliseconds(times, 'loop'):.0f} ms",
                f"{milliseconds(times, 'products'):.0f} ms",
                f"{100 * median_ratio(times, 'products', 'loop'):.0f}%",
                f"{rate:.0f}",
            ]
        )
        print(*rows[-1], flush=True)
    header = ["T, B, N_x, N", f"{available()[-1]}", "products alone (torch.mm)"]
    return table([*header, "products / loop", "GFLOP/s of the products"], rows)


def peak_memory(name: str, steps: int) -> float:
    """Extra peak memory in MB of one training step at B=128, N=100, lambda = 1."""
    x = torch.randn(steps, 128, 10, requires_grad=True)
    layer = nn.LSTM(10, 100) if name == "lstm" else RUM(10, 100, backend=name, lambda_=1)
    warm = nn.LSTM(10, 4) if name == "lstm" else RUM(10, 4, backend=name, lambda_=1)
    training_step(warm, torch.randn(2, 2, 10, requires_grad=True))()
    before = high_water_mark()
    training_step(layer, x)()
    return high_water_mark() - before


def high_water_mark() -> float:
    """Peak resident memory of this process in MB (Linux). getrusage would give the parent's too."""
    with open("/proc/self/status", encoding="utf-8") as status:
        (line,) = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def memory() -> str:
    """Peak memory, each version in a process of its own."""
    rows = []
    for name in [*available(), "lstm"]:
        # The readable loop stores several R of every step: an eighth of the steps, times eight.
        steps = 65 if name == "naive" else 520
        command = [sys.executable, "-m", "benchmarks.kernels", "--peak", name, str(steps)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        megabytes = json.loads(result.stdout) * 520 / steps
        note = f" (from T = {steps})" if steps != 520 else ""
        rows.append([name if name != "lstm" else "nn.LSTM", f"{megabytes:,.0f} MB{note}"])
        print(*rows[-1], flush=True)
    return table(["version", "extra peak memory"], rows)


def growth(seconds: float) -> str:
    """Cost as T and as N grow."""
    rows = []
    torch.set_num_threads(1)
    backend = available()[-1]
    for lambda_ in (0, 1):
        for steps in (100, 200, 500, 1000, 2000, 5000):
            x = torch.randn(steps, 16, 32, requires_grad=True)
            layer = RUM(32, 64, backend=backend, lambda_=lambda_)
            times = interleaved({"loop": training_step(layer, x)}, seconds)
            per_step = 1000 * milliseconds(times, "loop") / steps
            rows.append([f"T = {steps}, N = 64", lambda_, f"{per_step:.1f}", "-"])
    for size in (64, 128, 256, 512, 1024, 2048):
        x = torch.randn(20, 32, 64, requires_grad=True)
        layer = RUM(64, size, backend=backend)
        times = interleaved({"loop": training_step(layer, x)}, seconds)
        flops = 2 * 20 * 32 * size * (3 * 3 * 64 + 3 * 2 * size)
        per_step = 1000 * milliseconds(times, "loop") / 20
        rate = flops / (milliseconds(times, "loop") * 1e6)
        rows.append([f"T = 20, N = {size}", 0, f"{per_step:.0f}", f"{rate:.1f}"])
    return table(["shape", "lambda", "microseconds a step", "GFLOP/s of the whole loop"], rows)


def _without_gradients(call: Callable[..., object], *arguments: object) -> Callable[[], None]:
    def repeated() -> None:
        with torch.no_grad():
            for _ in range(100):
                call(*arguments)

    return repeated


def one_step(seconds: float) -> str:
    """A single step without gradients, as in beam search: the layer that a decoder calls."""
    rows = []
    torch.set_num_threads(1)
    for batch in (4, 16, 64):
        for size in (64, 256):
            x, h, c = torch.randn(1, batch, size), *torch.zeros(2, 1, batch, size)
            layer = RecurrentLayer(build_cell("rum", size, size))
            calls = {
                "rum": _without_gradients(layer, x.transpose(0, 1), (h[0],)),
                "cell": _without_gradients(nn.LSTMCell(size, size), x[0], (h[0], c[0])),
                "drop-in": _without_gradients(RUM(size, size), x, h),
                "lstm": _without_gradients(nn.LSTM(size, size), x, (h, c)),
            }
            times = interleaved(calls, seconds)
            rows.append(
                [f"B = {batch}, N = {size}"]
                + [f"{10 * milliseconds(times, name):.0f}" for name in calls]
                + [f"{median_ratio(times, 'rum', 'cell'):.2f}"]
            )
            print(*rows[-1], flush=True)
    header = ["shape", "RecurrentLayer of rum", "nn.LSTMCell", "RUM", "nn.LSTM"]
    return table([*header, "RecurrentLayer / nn.LSTMCell"], rows)


def main(argv: Optional[List[str]] = None) -> int:
    """Run all sections, print them, and write RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="for each comparison (default: 4)"
    )
    parser.add_argument("--out", default="benchmarks/RESULTS.md")
    parser.add_argument("--only", help="only the sections whose titles contain this")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.peak:
        print(peak_memory(args.peak[0], int(args.peak[1])))
        return 0
    sections: Dict[str, Callable[[], str]] = {
        "Time relative to nn.LSTM of the same hidden size (forward + backward)": lambda: speed(
            args.seconds
        ),
        "The matrix products alone (1 thread)": lambda: products(args.seconds / 2),
        "Memory of a training step at T = 520, B = 128, N = 100, lambda = 1": memory,
        "Growth with T (B = 16) and with N (B = 32), 1 thread": lambda: growth(args.seconds / 20),
        "One step without gradients, microseconds, 1 thread": lambda: one_step(args.seconds / 6),
        "Training end to end: rum_lm through fairseq-train": lambda: training(args.seconds),
    }
    if args.only:
        sections = {k: v for k, v in sections.items() if args.only.lower() in k.lower()}
    text = [
        "# Speed and memory of the kernels",
        "",
        "Made by `make bench`: all versions in alternation in one process, medians of the ratios.",
        f"Machine: {machine()}.",
        "Backends: "
        + "; ".join(f"{u} {b}: {s}" for u, b, s in backend_table() if u == "rum")
        + ".",
        "GPU: not measured (`benchmarks/gpu.sh` measures one).",
    ]
    for title, section in sections.items():
        print(f"== {title}", flush=True)
        result = section()
        print(result, flush=True)
        text += ["", f"## {title}", "", result]
    write_page(args.out, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
