"""RUM's loop in C++ for the CPU: backend ``cpp``, extension ``fairseq_rum._C``, from csrc/."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Optional, Tuple

import torch
from torch import Tensor

from fairseq_rum.cells.base import RecurrentCell, State
from fairseq_rum.cells.rum import RUMCell
from fairseq_rum.compat import autocast_dtype, is_tracing
from fairseq_rum.functional.first_order import first_order_only
from fairseq_rum.kernels.rum.base import RumKernel, RumSettings

EXTENSION = "fairseq_rum._C"
BUILD_NOTE = Path(__file__).resolve().parents[2] / "_C.not_built.txt"
"""Where setup.py writes why it went on without the extension."""

_ACTIVATIONS = {"relu": 0, "tanh": 1, "sigmoid": 2, "softsign": 3, "none": 4}
_DTYPES = (torch.float32, torch.float64)

_module: Optional[ModuleType] = None
_reason: Optional[str] = None


def _load() -> Optional[str]:
    """Import the extension once; None, or why it is not there."""
    global _module, _reason
    if _module is None and _reason is None:
        try:
            _module = importlib.import_module(EXTENSION)
        except ModuleNotFoundError as error:
            if error.name != EXTENSION:
                _reason = f"the extension {EXTENSION} failed to import ({error})"
            else:
                why = "this installation never built it"
                if BUILD_NOTE.exists():
                    why = BUILD_NOTE.read_text(encoding="utf-8").strip()
                _reason = f"the extension {EXTENSION} is not built: {why}"
        except ImportError as error:
            _reason = f"the extension {EXTENSION} failed to import ({error})"
    return _reason


class _Loop(torch.autograd.Function):
    """``forward(ctx, x, weight_ih, bias, weight_hh, h, memory, padded, options)``, weight_ih None
    for an x that is projected already."""

    @staticmethod
    def forward(  # type: ignore[override]  # noqa: ANN205
        ctx,  # noqa: ANN001
        x: Tensor,
        weight_ih: Optional[Tensor],
        bias: Optional[Tensor],
        weight_hh: Tensor,
        h: Tensor,
        memory: Optional[Tensor],
        padded: Optional[Tensor],
        options: Tuple,
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        outputs, last, final_memory, *kept = _module.forward(
            x, weight_ih, bias, weight_hh, h, memory, padded, *options, True
        )
        frame, states, sums, embedded, scalars, updates = kept
        ctx.options = options
        ctx.save_for_backward(
            x, weight_ih, bias, weight_hh, h, memory, padded, frame,
            outputs if padded is None else states, sums, embedded, scalars, updates,
        )  # fmt: skip
        ctx.set_materialize_grads(False)
        return outputs, last, final_memory

    @staticmethod
    @first_order_only("the backend naive")
    def backward(  # type: ignore[override]
        ctx,  # noqa: ANN001
        *grads: Optional[Tensor],
    ) -> Tuple[Optional[Tensor], ...]:
        tensors = ctx.saved_tensors
        result = _module.backward(
            list(grads), list(ctx.needs_input_grad[:6]), *tensors, *ctx.options
        )
        return (*result, None, None)


def _run(
    x: Tensor,
    weight_ih: Optional[Tensor],
    bias: Optional[Tensor],
    weight_hh: Tensor,
    h: Tensor,
    memory: Optional[Tensor],
    padded: Optional[Tensor],
    options: Tuple,
) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    if torch.is_grad_enabled() and any(
        part is not None and part.requires_grad
        for part in (x, weight_ih, bias, weight_hh, h, memory)
    ):
        return _Loop.apply(x, weight_ih, bias, weight_hh, h, memory, padded, options)
    return tuple(
        _module.forward(x, weight_ih, bias, weight_hh, h, memory, padded, *options, False)[:3]
    )


class CppKernel(RumKernel):
    """C++, vectorized for the machine it runs on, blocks of the batch in torch's threads.

    float32 and float64. The input projection is part of the loop.
    """

    def unavailable(self) -> Optional[str]:
        """Why the extension is not there; None when it is."""
        return _load()

    def unsupported(
        self, cell: RecurrentCell, x: Tensor, state: State, padding_mask: Optional[Tensor]
    ) -> Optional[str]:
        """Why the loop does not cover this call; None when it does."""
        if cell.step_extras:
            return f"no {' and no '.join(cell.step_extras)}"
        if x.shape[1] == 0:
            return "no empty sequence"
        weight = cell.weight_hh
        for tensor in (x, weight, *state):
            if tensor.device.type != "cpu":
                return f"tensors on the CPU only, not {tensor.device.type}"
            if tensor.dtype not in _DTYPES:
                return f"float32 and float64 only, not {str(tensor.dtype)[6:]}"
            if tensor.dtype != x.dtype:
                return f"one dtype only, not {str(x.dtype)[6:]} with {str(tensor.dtype)[6:]}"
        if autocast_dtype(x.device) is not None:
            return "no autocast"
        if is_tracing():
            return "no tracing by torch.compile or torch.jit"
        return None

    def __call__(
        self,
        cell: RecurrentCell,
        x: Tensor,
        state: State,
        padding_mask: Optional[Tensor],
        reverse: bool,
    ) -> Tuple[Tensor, State]:
        """Run the unit; the input projection is a part of the loop, unless the cell has its own."""
        if type(cell).project_input is not RUMCell.project_input:
            return super().__call__(cell, x, state, padding_mask, reverse)
        outputs, h, memory = _run(
            x.transpose(0, 1),
            cell.weight_ih,
            cell.bias,
            cell.weight_hh,
            state[0],
            state[1] if cell.lambda_ else None,
            None if padding_mask is None else padding_mask.t(),
            (reverse, cell.lambda_, cell.eta or 0.0, _ACTIVATIONS[cell.activation],
             cell.update_gate),
        )  # fmt: skip
        return outputs.transpose(0, 1), (h,) if memory is None else (h, memory)

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
        """The loop over inputs that are projected already."""
        options = (
            reverse,
            settings.lambda_,
            settings.eta or 0.0,
            _ACTIVATIONS[settings.activation],
            settings.update_gate,
        )
        return _run(projected, None, None, weight_hh, h, memory, padded, options)
