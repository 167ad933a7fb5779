"""Correctness and speed of RUM's kernels on one CUDA GPU. ``benchmarks/gpu.sh`` runs it.

Correctness: triton (with and without CUDA graphs) and fused against the plain loop: outputs, states
and all gradients. Speed: forward + backward against cuDNN's nn.LSTM and nn.GRU, the plain loop, and
the plain loop under torch.compile, in float32, bfloat16 and autocast.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from benchmarks.measure import machine, table, write_page
from fairseq_rum.cells import RUMCell
from fairseq_rum.kernels.naive import run_naive
from fairseq_rum.kernels.rum import KERNELS
from fairseq_rum.kernels.rum.base import RumKernel
from fairseq_rum.kernels.rum.triton import TritonKernel
from fairseq_rum.layers import RUM

DEVICE = "cuda"
BUDGET = 270.0  # seconds in all

# steps T, rows B, N_x, N, lambda
SHAPES = [
    (520, 128, 10, 250, 0),
    (150, 128, 128, 1000, 0),
    (100, 16, 128, 256, 0),
    (53, 128, 36, 50, 0),
    (53, 128, 36, 50, 1),
    (520, 128, 10, 100, 1),
]
MODES = ("float32", "bfloat16", "autocast")


def _results(
    function: Callable, cell: RUMCell, x: Tensor, state: Tuple[Tensor, ...], mask: Optional[Tensor]
) -> Dict[str, Tensor]:
    x = x.clone().requires_grad_()
    state = tuple(part.clone().requires_grad_() for part in state)
    outputs, final = function(cell, x, state, mask, False)
    generator = torch.Generator().manual_seed(3)
    loss = torch.zeros((), device=x.device)
    for value in (outputs, *final):
        factor = torch.randn(value.shape, generator=generator).to(x.device, value.dtype)
        loss = loss + (value * factor).sum().float()
    inputs = {"x": x, "h0": state[0], "R0": state[-1], **dict(cell.named_parameters())}
    gradients = torch.autograd.grad(loss, list(inputs.values()))
    results = dict(zip(("outputs", "h", "R"), (outputs, *final)))
    results.update({f"gradient of {name}": g for name, g in zip(inputs, gradients)})
    return {name: value.detach() for name, value in results.items()}


def correctness() -> Tuple[str, bool]:
    """The largest deviation of every kernel from the plain loop in float64."""
    kernels: Dict[str, RumKernel] = {
        "triton, CUDA graph": KERNELS["triton"],
        "triton, no graph": TritonKernel(graphs=False),
        "fused": KERNELS["fused"],
        "naive": None,  # type: ignore[dict-item]
    }
    rows, good = [], True
    for lambda_, masked, mode in itertools.product((0, 1), (False, True), MODES):
        torch.manual_seed(1)
        # tanh: no gradient jumps where an input of ReLU is 1e-7 here and -1e-7 there.
        cell = RUMCell(7, 50, lambda_=lambda_, eta=1.0, activation="tanh").to(DEVICE)
        x = torch.randn(5, 40, 7, device=DEVICE)  # more steps than a graph has
        state = cell.init_state(5)
        mask = torch.rand(5, 40, device=DEVICE) < 0.3 if masked else None
        exact_state = tuple(part.double() for part in state)
        exact = _results(run_naive, cell.double(), x.double(), exact_state, mask)
        cell.float()
        if mode == "bfloat16":
            cell, x = cell.bfloat16(), x.bfloat16()
            state = tuple(part.bfloat16() for part in state)
        deviations = []
        for kernel in kernels.values():
            reason = None if kernel is None else kernel.unavailable()
            if reason is not None:
                deviations.append(reason)
                continue
            context: AbstractContextManager = nullcontext()
            if mode == "autocast":
                context = torch.autocast(DEVICE, dtype=torch.bfloat16)
            with context:
                results = _results(kernel or run_naive, cell, x, state, mask)
            worst = max(
                ((results[k].double() - want).norm() / want.norm()).item()
                for k, want in exact.items()
            )
            # TF32 is off; bfloat16 has 8 bits, and errors grow along 40 steps.
            good = good and worst < (1e-3 if mode == "float32" else 0.5)
            deviations.append(f"{worst:.1e}")
        rows.append([lambda_, "yes" if masked else "no", mode, *deviations])
        print(*rows[-1], flush=True)
    return table(["lambda", "mask", "mode", *kernels], rows), good


def _training_step(layer: nn.Module, x: Tensor, mode: str) -> Callable[[], None]:
    def call() -> None:
        context: AbstractContextManager = nullcontext()
        if mode == "autocast":
            context = torch.autocast(DEVICE, dtype=torch.bfloat16)
        with context:
            outputs = layer(x)[0]
        outputs.sum().backward()
        torch.cuda.synchronize()

    return call


def speed(seconds: float, end: float) -> str:
    """Milliseconds of forward + backward, and relative to cuDNN's nn.LSTM."""
    rows: List[List[object]] = []
    for mode, (steps, batch, inputs, size, lambda_) in itertools.product(MODES, SHAPES):
        dtype = torch.bfloat16 if mode == "bfloat16" else torch.float32
        options = {"device": DEVICE, "dtype": dtype}
        x = torch.randn(steps, batch, inputs, **options).requires_grad_()
        layers: Dict[str, nn.Module] = {
            "nn.LSTM": nn.LSTM(inputs, size, **options),
            "nn.GRU": nn.GRU(inputs, size, **options),
        }
        for name in ("triton", "fused", "naive"):
            if name == "naive" or KERNELS[name].unavailable() is None:
                layers[name] = RUM(inputs, size, lambda_=lambda_, backend=name, **options)
        if steps <= 60:  # the compiler unrolls the loop: minutes at 500 steps
            compiled = RUM(inputs, size, lambda_=lambda_, backend="naive", **options)
            layers["compile"] = torch.compile(compiled)
        row: List[object] = [mode, f"{steps}, {batch}, {inputs}, {size}", lambda_]
        times: Dict[str, List[float]] = {}
        if time.perf_counter() > end:
            rows.append([*row, *["not measured"] * 6])
            continue
        calls = {}
        for name, layer in layers.items():
            if name == "compile" and time.perf_counter() > end - 60:
                continue
            call = _training_step(layer, x, mode)
            try:
                call()
                calls[name] = call
            except Exception as error:  # torch.compile has many ways to fail
                print(f"{name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        stop = time.perf_counter() + seconds
        rounds = 0
        while rounds < 2 or time.perf_counter() < stop:
            for name, call in calls.items():
                begin = time.perf_counter()
                call()
                times.setdefault(name, []).append(time.perf_counter() - begin)
            rounds += 1
        medians = {name: statistics.median(values) for name, values in times.items()}
        lstm = medians.get("nn.LSTM")
        row.append(f"{1000 * lstm:.2f} ms" if lstm else "not measured")
        for name in ("nn.GRU", "triton", "fused", "naive", "compile"):
            measured = lstm and name in medians
            row.append(f"{medians[name] / lstm:.2f}" if measured else "not measured")
        rows.append(row)
        print(*row, flush=True)
    header = ["mode", "T, B, N_x, N", "lambda", "nn.LSTM", "nn.GRU"]
    return table([*header, "triton", "fused", "naive", "torch.compile of naive"], rows)


def main(argv: Optional[List[str]] = None) -> int:
    """Run both, print them, and write GPU.md; the status is 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5, help="for each row (default: 1.5)")
    parser.add_argument("--out", default="benchmarks/GPU.md")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("benchmarks/gpu.sh: no CUDA GPU is available here, nothing measured", file=sys.stderr)
        return 1
    end = time.perf_counter() + BUDGET
    torch.backends.cuda.matmul.allow_tf32 = False
    print("== correctness: the largest relative deviation from float64", flush=True)
    deviations, good = correctness()
    print("== speed", flush=True)
    times = speed(args.seconds, end)
    text = [
        "# RUM's kernels on a GPU",
        "",
        "Made by `benchmarks/gpu.sh`.",
        f"GPU: {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}. Machine: {machine()}.",
        "",
        "## The largest relative deviation of outputs, states and gradients from float64",
        "",
        deviations,
        "",
        "## Forward + backward; times relative to nn.LSTM (cuDNN)",
        "",
        times,
    ]
    write_page(args.out, text)
    print("\n".join(text))
    if not good:
        print("benchmarks/gpu.sh: a deviation is too large", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
