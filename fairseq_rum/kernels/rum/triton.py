"""RUM's loop on CUDA GPUs: per step the library's matrix product and fused Triton kernels.

lambda = 0 takes one kernel a step forward and one backward. lambda = 1 takes one forward (it reads
and writes R once; time normalization is a second one) and four backward, since y = R' rho has to be
complete before K (p, q), and that before K is updated; one more where R_0 needs a gradient.

The loop runs in blocks of at most 32 steps over buffers that stay in place, so that a block can be
captured in a CUDA graph once for a batch size and replayed for any number of steps: launching is
what a step costs otherwise. Where capturing fails, the block is launched kernel by kernel, and a
message says so once.

With ``TRITON_INTERPRET=1`` all but the graph runs on the CPU in Triton's interpreter, for tests.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import threading
from types import ModuleType
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch
from torch import Tensor

from fairseq_rum.cells.base import RecurrentCell, State
from fairseq_rum.compat import autocast_dtype, is_tracing
from fairseq_rum.functional.first_order import first_order_only
from fairseq_rum.kernels.rum.base import RumKernel, RumSettings
from fairseq_rum.kernels.rum.common import accumulation_dtype

logger = logging.getLogger(__name__)

BLOCK = 32  # steps of a graph
MAX_HIDDEN = 4096  # a row of the batch lies in the registers of one program
MAX_GRAPHS = 64  # of one kernel object; a batch size and block length more starts anew
TILE = 8192  # elements of R that a program holds


_SAID: Set[str] = set()


def _say_once(message: str) -> None:
    if message not in _SAID:
        _SAID.add(message)
        logger.warning(message)


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None  # searches the disk: once


def _kernels() -> ModuleType:
    return importlib.import_module("fairseq_rum.kernels.rum.triton_kernels")


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


class TritonKernel(RumKernel):
    """Triton, on CUDA GPUs.

    Args:
        graphs: capture blocks of steps in CUDA graphs.
        interpreted: run on the CPU in Triton's interpreter, whatever ``TRITON_INTERPRET`` says now;
            it must have said 1 when triton was imported first.
    """

    def __init__(self, graphs: bool = True, interpreted: bool = False) -> None:
        self.graphs = graphs
        self.interpreted = interpreted
        self._blocks: Dict[Tuple, _Block] = {}
        self.lock = threading.RLock()

    def unavailable(self) -> Optional[str]:
        """Why Triton does not run on this machine; None when it does."""
        if not _installed():
            return "triton is not installed"
        if self.interpreted or _interpreted() or torch.cuda.is_available():
            return None
        return "no CUDA GPU"

    def unsupported(
        self, cell: RecurrentCell, x: Tensor, state: State, padding_mask: Optional[Tensor]
    ) -> Optional[str]:
        """Why the loop does not cover this call; None when it does."""
        if x.shape[1] == 0 or x.shape[0] == 0:
            return "no empty sequence or batch"
        if x.device.type != "cuda" and not (self.interpreted or _interpreted()):
            return f"tensors on a CUDA GPU only, not {x.device.type}"
        if cell.hidden_size > MAX_HIDDEN:
            return f"hidden sizes up to {MAX_HIDDEN} only"
        if is_tracing():
            return "no tracing by torch.compile or torch.jit"
        return super().unsupported(cell, x, state, padding_mask)

    def sequence(
        self,
        projected: Tensor,
        h: Tensor,
        memory: Optional[Tensor],
        weight_hh: Tensor,
        padded: Optional[Tensor],
        reverse: bool,
        settings: RumSettings,
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """The loop; arguments and results as :meth:`RumKernel.sequence`; dtypes as ``fused``."""
        dtype = autocast_dtype(projected.device)
        if dtype is not None and projected.dtype != torch.float64:
            projected, weight_hh = projected.to(dtype), weight_hh.to(dtype)
        with torch.autocast(projected.device.type, enabled=False):
            inputs = (projected, h, memory, weight_hh)
            if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
                return _Loop.apply(projected, h, memory, weight_hh, padded, reverse, settings, self)
            with torch.no_grad():
                return _forward(self, *inputs, padded, reverse, settings, keep=False)[0]

    def block(self, kind: type, key: _Key) -> _Block:
        """The buffers, and with them the graph, of that kind of block; under :attr:`lock`."""
        found = self._blocks.get((kind, key))
        if found is None:
            if len(self._blocks) >= MAX_GRAPHS:
                self._blocks.clear()
            found = self._blocks[kind, key] = kind(key, self.graphs)
        return found


class _Key(NamedTuple):
    """What buffers and graphs depend on."""

    steps: int
    batch: int
    n: int
    device: torch.device
    io: torch.dtype  # of projected, weights and matrix products
    state: torch.dtype
    masked: bool
    g_memory: bool  # a gradient to R_0 is asked for
    settings: RumSettings
    stream: int  # another one would run beside it, on the same buffers

    @property
    def dtype(self) -> torch.dtype:
        return accumulation_dtype(self.state)

    @property
    def width(self) -> int:
        return (3 if self.settings.update_gate else 2) * self.n


def _stream(device: torch.device) -> int:
    """The CUDA stream that kernels are launched on; 0 elsewhere."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


class _Block:
    """Buffers of a block of steps, in the order in which they run, and what is launched on them."""

    def __init__(self, key: _Key, graphs: bool) -> None:
        import triton.language as tl

        self.key = key
        self.functions = _kernels()
        steps, batch, n, width = key.steps, key.batch, key.n, key.width
        self.projected = self.new(steps, batch, width, dtype=key.io)
        self.pre = self.new(steps, batch, width - n, dtype=key.io)
        self.states = self.new(steps + 1, batch, n, dtype=key.state)
        self.numbers = self.new(steps, batch, self.functions.NUMBERS)
        self.padded = self.new(steps, batch, dtype=torch.int8)
        self.weight = self.new(width - n, n, dtype=key.io)
        self.memory = self.candidates = self.factors = None
        if key.settings.lambda_:
            self.memory = self.new(batch, n, n)
            self.candidates = self.new(steps, batch, n)
            self.factors = self.new(steps, batch, 2, n)

        acc = tl.float64 if key.dtype == torch.float64 else tl.float32
        columns = _power_of_two(n)
        # Small rows share a program. In the interpreter all do: there programs cost, not rows.
        rows = _power_of_two(batch) if key.device.type != "cuda" else max(1, 256 // columns)
        lines = max(1, min(columns, TILE // columns))
        self.sizes = {"N": n, "W": width}
        self.options = {
            "GATED": key.settings.update_gate,
            "ACTIVATION": key.settings.activation,
            "ETA": float(key.settings.eta or 0.0),
            "MASKED": key.masked,
        }
        warps = 1 if columns <= 128 else 4 if columns <= 1024 else 8
        launch = {} if key.device.type != "cuda" else {"num_warps": warps}
        self.row_shape = {"ACC": acc, "ROWS": rows, "COLUMNS": columns, **launch}
        self.row_grid = (-(-batch // rows),)
        launch = {} if key.device.type != "cuda" else {"num_warps": 4}
        self.line_shape = {"ACC": acc, "LINES": lines, "COLUMNS": columns, **launch}
        self.line_grid = (batch, -(-n // lines))
        self.use_graph = graphs and key.device.type == "cuda"
        self.graph: Optional[torch.cuda.CUDAGraph] = None

    def new(self, *shape: int, dtype: Optional[torch.dtype] = None) -> Tensor:
        """A buffer."""
        return torch.empty(shape, dtype=dtype or self.key.dtype, device=self.key.device)

    def launch(self) -> None:
        """Launch all kernels of the block; it may change nothing but its outputs."""
        raise NotImplementedError

    def inputs_that_change(self) -> List[Tensor]:
        """Buffers that :meth:`launch` reads and overwrites."""
        return []

    def run(self) -> None:
        """Replay the graph, capturing it first; without one launch the kernels."""
        if not self.use_graph or torch.cuda.is_current_stream_capturing():
            self.launch()
            return
        if self.graph is None:
            try:
                self._capture()
            except Exception as error:  # whatever the driver, cuBLAS or Triton says
                self.use_graph = False
                _say_once(f"unit rum: no CUDA graph, every kernel is launched: {error}")
                torch.cuda.synchronize(self.key.device)
                self.launch()
                return
        self.graph.replay()

    def _capture(self) -> None:
        saved = [buffer.clone() for buffer in self.inputs_that_change()]
        stream = torch.cuda.Stream(self.key.device)
        stream.wait_stream(torch.cuda.current_stream(self.key.device))
        graph = torch.cuda.CUDAGraph()
        try:
            # Compiling and the libraries' first calls cannot be captured: a run before takes them.
            with torch.cuda.stream(stream):
                self.launch()
            torch.cuda.current_stream(self.key.device).wait_stream(stream)
            with torch.cuda.graph(graph, stream=stream):
                self.launch()
        finally:
            torch.cuda.current_stream(self.key.device).wait_stream(stream)
            for buffer, value in zip(self.inputs_that_change(), saved):
                buffer.copy_(value)
        self.graph = graph


class _ForwardBlock(_Block):
    def __init__(self, key: _Key, graphs: bool) -> None:
        super().__init__(key, graphs)
        self.recurrent = self.new(key.batch, key.width - key.n, dtype=key.io)
        self.dual = key.state != key.io
        self.states_io = self.states
        if self.dual:
            self.states_io = self.new(key.steps + 1, key.batch, key.n, dtype=key.io)

    def inputs_that_change(self) -> List[Tensor]:
        return [] if self.memory is None else [self.memory]

    def launch(self) -> None:
        functions, weight, settings = self.functions, self.weight.t(), self.key.settings
        eps = float(torch.finfo(self.key.dtype).eps)
        options = {**self.sizes, **self.options, "DUAL": self.dual, "EPS": eps}
        for t in range(self.key.steps):
            torch.mm(self.states_io[t], weight, out=self.recurrent)
            pointers = (
                self.projected[t],
                self.recurrent,
                self.pre[t],
                self.states[t],
                self.states[t + 1],
                self.states_io[t + 1],
                self.numbers[t],
                self.padded[t],
            )
            if self.memory is None:
                functions.forward_step[self.row_grid](
                    *pointers, self.key.batch, **options, **self.row_shape
                )
                continue
            functions.forward_memory_step[self.line_grid](
                *pointers,
                self.memory,
                self.factors[t],
                self.candidates[t],
                **options,
                **self.line_shape,
            )
            if settings.eta is not None:
                functions.normalize_step[self.row_grid](
                    self.states[t + 1],
                    self.states_io[t + 1],
                    self.numbers[t],
                    self.padded[t],
                    self.key.batch,
                    N=self.key.n,
                    ETA=self.options["ETA"],
                    MASKED=self.key.masked,
                    DUAL=self.dual,
                    **self.row_shape,
                )


class _BackwardBlock(_Block):
    def __init__(self, key: _Key, graphs: bool) -> None:
        super().__init__(key, graphs)
        batch, n = key.batch, key.n
        self.g_out = self.new(key.steps, batch, n)
        self.g_part = self.new(batch, n)
        self.g_product = self.new(batch, n, dtype=key.io)
        self.g_projected = self.new(key.steps, batch, key.width, dtype=key.io)
        self.skew = self.g_memory = None
        if key.settings.lambda_:
            self.skew = self.new(batch, n, n)
            self.rhos, self.ys = self.new(2, batch, n).unbind(0)
            self.images = self.new(batch, 2, n)
            if key.g_memory:
                self.g_memory = self.new(batch, n, n)

    def inputs_that_change(self) -> List[Tensor]:
        buffers = (self.g_part, self.g_product, self.memory, self.skew, self.g_memory)
        return [buffer for buffer in buffers if buffer is not None]

    def launch(self) -> None:
        for t in reversed(range(self.key.steps)):
            if self.memory is None:
                self._step(t)
            else:
                self._memory_step(t)
            lines = self.g_projected[t, :, : self.key.width - self.key.n]
            torch.mm(lines, self.weight, out=self.g_product)

    def _step(self, t: int) -> None:
        self.functions.backward_step[self.row_grid](
            self.projected[t],
            self.pre[t],
            self.states[t],
            self.states[t + 1],
            self.numbers[t],
            self.padded[t],
            self.g_out[t],
            self.g_part,
            self.g_product,
            self.g_projected[t],
            self.key.batch,
            **self.sizes,
            **self.options,
            **self.row_shape,
        )

    def _memory_step(self, t: int) -> None:
        functions, grid = self.functions, self.line_grid
        shape = {**self.sizes, "MASKED": self.key.masked, **self.line_shape}
        functions.backward_state_step[self.row_grid](
            self.pre[t],
            self.states[t],
            self.states[t + 1],
            self.numbers[t],
            self.padded[t],
            self.candidates[t],
            self.g_out[t],
            self.g_part,
            self.g_product,
            self.g_projected[t],
            self.rhos,
            self.key.batch,
            **self.sizes,
            **self.options,
            **self.row_shape,
        )
        vectors = (
            self.projected[t],
            self.pre[t],
            self.states[t],
            self.numbers[t],
            self.padded[t],
        )
        if self.g_memory is not None:
            functions.backward_memory_gradient[grid](*vectors, self.rhos, self.g_memory, **shape)
        functions.backward_memory_step[grid](
            *vectors, self.rhos, self.memory, self.factors[t], self.ys, **shape
        )
        functions.backward_skew_product[grid](*vectors, self.ys, self.skew, self.images, **shape)
        functions.backward_skew_step[grid](
            *vectors,
            self.rhos,
            self.ys,
            self.images,
            self.skew,
            self.g_part,
            self.g_projected[t],
            **shape,
        )


class _Kept(NamedTuple):
    """What the forward pass leaves for the backward pass, in the order in which steps ran."""

    projected: Tensor
    weight: Tensor
    padded: Optional[Tensor]
    pre: Tensor
    states: Tensor
    numbers: Tensor
    memory: Optional[Tensor]
    candidates: Optional[Tensor]
    factors: Optional[Tensor]


def _in_order(x: Tensor, reverse: bool) -> Tensor:
    return x.flip(0) if reverse else x


def _forward(
    kernel: TritonKernel,
    projected: Tensor,
    h: Tensor,
    memory: Optional[Tensor],
    weight: Tensor,
    padded: Optional[Tensor],
    reverse: bool,
    settings: RumSettings,
    keep: bool,
) -> Tuple[Tuple[Tensor, Tensor, Optional[Tensor]], Optional[_Kept]]:
    steps, batch, _ = projected.shape
    n = weight.shape[1]
    projected = _in_order(projected, reverse)
    run_padded = None if padded is None else _in_order(padded, reverse)
    state_dtype = torch.promote_types(projected.dtype, h.dtype)
    states = projected.new_empty((steps + 1, batch, n), dtype=state_dtype)
    states[0] = h
    kept: Dict[str, Tensor] = {}
    memory_dtype = None if memory is None else memory.dtype
    for low in range(0, steps, BLOCK):
        with kernel.lock:
            high = min(low + BLOCK, steps)
            block = kernel.block(
                _ForwardBlock,
                _Key(high - low, batch, n, projected.device, projected.dtype, state_dtype,
                     padded is not None, False, settings, _stream(projected.device)),
            )  # fmt: skip
            block.weight.copy_(weight)
            block.projected.copy_(projected[low:high])
            block.states[0] = states[low]
            if block.dual:
                block.states_io[0] = states[low]
            if run_padded is not None:
                block.padded.copy_(run_padded[low:high])
            if memory is not None:
                block.memory.copy_(memory)
            block.run()
            states[low + 1 : high + 1] = block.states[1:]
            if memory is not None:
                memory = block.memory.to(block.memory.dtype, copy=True)
            if not keep:
                continue
            for name in ("pre", "numbers", "candidates", "factors"):
                buffer = getattr(block, name)
                if buffer is not None:
                    if name not in kept:
                        kept[name] = buffer.new_empty((steps, *buffer.shape[1:]))
                    kept[name][low:high] = buffer
    outputs = _in_order(states[1:], reverse)
    if padded is not None:
        outputs = outputs.masked_fill(padded.unsqueeze(-1), 0.0)
    final = None if memory is None else memory.to(memory_dtype)
    results = (outputs.detach(), states[steps].clone(), final)
    if not keep:
        return results, None
    return results, _Kept(
        projected=projected,
        weight=weight,
        padded=run_padded,
        states=states,
        memory=memory,
        pre=kept["pre"],
        numbers=kept["numbers"],
        candidates=kept.get("candidates"),
        factors=kept.get("factors"),
    )


class _Loop(torch.autograd.Function):
    """Autograd's view of the loop."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        projected: Tensor,
        h: Tensor,
        memory: Optional[Tensor],
        weight: Tensor,
        padded: Optional[Tensor],
        reverse: bool,
        settings: RumSettings,
        kernel: TritonKernel,
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        (outputs, last, final), kept = _forward(
            kernel, projected, h, memory, weight, padded, reverse, settings, keep=True
        )
        ctx.save_for_backward(*kept)
        ctx.options = (reverse, settings, kernel)
        ctx.dtypes = (projected.dtype, h.dtype, None if memory is None else memory.dtype)
        ctx.set_materialize_grads(False)
        return outputs, last, final

    @staticmethod
    @first_order_only("the backend naive")
    def backward(  # type: ignore[override]
        ctx: Any, *gradients: Optional[Tensor]
    ) -> Tuple[Optional[Tensor], ...]:
        if all(gradient is None for gradient in gradients):
            return (None,) * 8
        kept = _Kept(*ctx.saved_tensors)
        results = _backward(kept, *ctx.options, ctx.needs_input_grad, *gradients)
        results = tuple(
            None if result is None or not needed else result.to(dtype)
            for result, needed, dtype in zip(
                results, ctx.needs_input_grad, (*ctx.dtypes, kept.weight.dtype)
            )
        )
        return (*results, None, None, None, None)


def _backward(
    kept: _Kept,
    reverse: bool,
    settings: RumSettings,
    kernel: TritonKernel,
    needed: Tuple[bool, ...],
    g_out: Optional[Tensor],
    g_last: Optional[Tensor],
    g_memory: Optional[Tensor],
) -> Tuple[Optional[Tensor], ...]:
    steps, batch, width = kept.projected.shape
    n = kept.weight.shape[1]
    dtype = kept.numbers.dtype
    g_projected = torch.empty_like(kept.projected)
    g_part = kept.numbers.new_zeros((batch, n))
    if g_last is not None:
        g_part.copy_(g_last)
    g_product = g_part.new_zeros((batch, n), dtype=kept.projected.dtype)
    if g_out is not None:
        g_out = _in_order(g_out, reverse)
    memory = skew = total = None
    if kept.memory is not None:
        memory = kept.memory
        skew = torch.zeros_like(memory)
        total = torch.zeros_like(memory) if needed[2] else None
        if g_memory is not None:
            product = torch.bmm(memory.transpose(1, 2), g_memory.to(dtype))
            skew = product - product.transpose(1, 2)
            if total is not None:
                total.copy_(g_memory)
    for low in reversed(range(0, steps, BLOCK)):
        with kernel.lock:
            high = min(low + BLOCK, steps)
            block = kernel.block(
                _BackwardBlock,
                _Key(high - low, batch, n, kept.projected.device, kept.projected.dtype,
                     kept.states.dtype, kept.padded is not None, total is not None, settings,
                     _stream(kept.projected.device)),
            )  # fmt: skip
            block.weight.copy_(kept.weight)
            block.states.copy_(kept.states[low : high + 1])
            for name in ("projected", "padded", "pre", "numbers", "candidates", "factors"):
                value = getattr(kept, name)
                if value is not None:
                    getattr(block, name).copy_(value[low:high])
            if g_out is None:
                block.g_out.zero_()
            else:
                block.g_out.copy_(g_out[low:high])
            carried = {"g_part": g_part, "g_product": g_product, "memory": memory, "skew": skew}
            carried["g_memory"] = total
            for name, value in carried.items():
                if value is not None:
                    getattr(block, name).copy_(value)
            block.run()
            g_projected[low:high] = block.g_projected
            g_part, g_product = block.g_part.clone(), block.g_product.clone()
            if memory is not None:
                memory, skew = block.memory.clone(), block.skew.clone()
                total = None if total is None else block.g_memory.clone()
    g_weight = None
    if needed[3]:
        flat = g_projected[..., : width - n].reshape(-1, width - n)
        g_weight = torch.mm(flat.t(), kept.states[:-1].reshape(-1, n).to(flat.dtype))
    return _in_order(g_projected, reverse), g_part + g_product, total, g_weight
