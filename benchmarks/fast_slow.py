"""Speed of the fast-slow RNN: ``python -m benchmarks.fast_slow``, a minute; writes FAST_SLOW.md.

A training step, forward and backward, of the recurrent part of ``fs_rum`` and ``fs_lstm_2`` at full
size and batch 128. How much of it are matrix products is told in two ways: the time of the same
products alone, with nothing in between, and what torch's profiler counts within the loop. The
cost of a character is compared per multiply-add, of which the two models have different numbers.
"""

from __future__ import annotations

import argparse
from typing import Any, Callable, Dict, List, Optional

import torch
from omegaconf import OmegaConf
from torch.profiler import ProfilerActivity, profile

import fairseq_rum  # noqa: F401, registers the models
from benchmarks.kernels import training_step
from benchmarks.measure import interleaved, machine, median_ratio, milliseconds, table, write_page
from fairseq_rum.cells import FastSlowCell
from fairseq_rum.config import build_unit
from fairseq_rum.layers import RecurrentLayer

MODELS = ("fs_rum", "fs_lstm_2")
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
REQUIRED_COST = 1.25  # of fs_rum relative to fs_lstm_2, per multiply-add
REQUIRED_SHARE = 0.6


def recurrent_layer(arch: str) -> RecurrentLayer:
    """The recurrent part of a named architecture."""
    from fairseq.models import MODEL_DATACLASS_REGISTRY

    # In a tree of its own, since one of the defaults refers to another one through it.
    model: Any = OmegaConf.create({"model": vars(MODEL_DATACLASS_REGISTRY[arch]())}).model
    cell = build_unit(model, "fast_slow", model.decoder_embed_dim, model.decoder_hidden_size)
    return RecurrentLayer(cell)


def kernels(cell: FastSlowCell) -> Dict[str, List[torch.Tensor]]:
    """The weights that a step multiplies by, and those that need no step: F1's input's."""
    inputs = cell.fast[0].weight_ih
    weights = [w for c in (*cell.fast, cell.slow) for w in (c.weight_ih, c.weight_hh) if w.numel()]
    return {"once": [inputs], "steps": [w for w in weights if w is not inputs]}


def multiply_adds(cell: FastSlowCell) -> int:
    """Of one character, forward."""
    return sum(weight.numel() for group in kernels(cell).values() for weight in group)


def products_alone(cell: FastSlowCell, batch: int, steps: int) -> Callable[[], None]:
    """The products of a training step: those of the weights' gradients once for all steps."""
    parts = {}
    for when, weights in kernels(cell).items():
        rows = batch if when == "steps" else batch * steps
        parts[when] = [
            (
                w.detach(),
                torch.randn(rows, w.shape[1]),
                torch.randn(rows, w.shape[0]),
                torch.randn(batch * steps, w.shape[1]),
                torch.randn(batch * steps, w.shape[0]),
            )
            for w in weights
        ]

    def call() -> None:
        for when, times in (("once", 1), ("steps", steps)):
            for _ in range(times):
                for w, x, *_ in parts[when]:
                    torch.mm(x, w.t())
            for _ in range(times):
                for w, _, g, *_ in parts[when]:
                    torch.mm(g, w)
            for _, _, _, xs, gs in parts[when]:
                torch.mm(gs.t(), xs)

    return call


def profiled_share(call: Callable[[], None]) -> float:
    """The share of matrix products in the time of all operators, by torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    events = profiler.key_averages()
    own = sum(event.self_cpu_time_total for event in events)
    return sum(e.self_cpu_time_total for e in events if e.key in PRODUCTS) / own


def main(argv: Optional[List[str]] = None) -> int:
    """Measure, print, and write FAST_SLOW.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20, help="of a sequence (default: 20)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of measuring (default: 20)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", default="benchmarks/FAST_SLOW.md")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)

    layers = {arch: recurrent_layer(arch) for arch in MODELS}
    calls: Dict[str, Callable[[], None]] = {}
    for arch, layer in layers.items():
        inputs = layer.cell.input_size
        x = torch.randn(args.batch, args.steps, inputs, requires_grad=True)
        calls[arch] = training_step(layer, x)
        calls[f"{arch} products"] = products_alone(layer.cell, args.batch, args.steps)
    times = interleaved(calls, args.seconds)

    rows, cost = [], {}
    for arch, layer in layers.items():
        characters = args.batch * args.steps
        count = multiply_adds(layer.cell)
        microseconds = 1000 * milliseconds(times, arch) / characters
        cost[arch] = microseconds / count
        alone = median_ratio(times, f"{arch} products", arch)
        rate = 6 * count * characters / (milliseconds(times, f"{arch} products") * 1e6)
        rows.append(
            [
                arch,
                f"{count / 1e6:.2f}M",
                f"{microseconds:.0f}",
                f"{1e6 * cost[arch]:.1f}",
                f"{100 * alone:.0f}%",
                f"{100 * profiled_share(calls[arch]):.0f}%",
                f"{rate:.0f}",
            ]
        )
    header = ["model", "multiply-adds a character, forward", "microseconds a character"]
    header += ["picoseconds a multiply-add", "products alone / loop", "products in the loop"]
    ratio = cost["fs_rum"] / cost["fs_lstm_2"]
    text = [
        "# Speed of the fast-slow RNN",
        "",
        "Made by `python -m benchmarks.fast_slow`: forward and backward of the recurrent part, "
        f"B = {args.batch}, T = {args.steps}.",
        f"Machine: {machine()}; {args.threads} thread(s).",
        "",
        table([*header, "GFLOP/s of the products alone"], rows),
        "",
        "A training step has three times the forward pass's multiply-adds. How much of its time "
        f"matrix products take (the aim: at least {REQUIRED_SHARE:.0%}):",
        "`products alone / loop` has the same products with nothing in between, `products in the "
        "loop` is what torch's profiler counts.",
        "",
        f"fs_rum / fs_lstm_2, per multiply-add: {ratio:.2f} (required: at most {REQUIRED_COST}).",
    ]
    write_page(args.out, text)
    print("\n".join(text))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
