"""A look into the units of a model while it runs, which changes nothing of what comes out."""

from __future__ import annotations

import inspect
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq_rum.cells import RecurrentCell, State
from fairseq_rum.layers.recurrent import RecurrentLayer

# Parts of module names that tell nothing about which unit of a model it is.
_PLAIN = {"rnn", "stack", "layers", "cell", "unit"}


class _Pass(NamedTuple):
    """One call of a layer: where its steps begin, their direction, and which are padding."""

    start: int
    reverse: bool = False
    padding_mask: Optional[Tensor] = None


class _Trace:
    """The steps of one unit, in the order in which they were taken."""

    def __init__(self) -> None:
        self.steps: List[Dict[str, Tensor]] = []
        self.states: List[Tensor] = []
        self.passes: List[_Pass] = [_Pass(0)]

    def series(self, name: str) -> Tensor:
        """``(B, T)`` in the order of time, nan where padded."""
        parts = []
        ends = [*(one.start for one in self.passes[1:]), len(self.steps)]
        for one, end in zip(self.passes, ends):
            if end == one.start:
                continue
            values = torch.stack([step[name] for step in self.steps[one.start : end]], dim=1)
            if one.reverse:
                values = values.flip(1)
            if one.padding_mask is not None:
                values = values.masked_fill(one.padding_mask, float("nan"))
            parts.append(values)
        return torch.cat(parts, dim=1)


class Probe:
    """What the units of a model did inside :func:`probe`.

    Attributes:
        traces: what was recorded, by the module name of the unit.
        reported: what the model added of its own, name -> ``(B, T)``, nan where padded.
    """

    def __init__(self) -> None:
        self.traces: Dict[str, _Trace] = {}
        self.reported: Dict[str, Tensor] = {}

    def pad(self, unit: str, padding_mask: Tensor) -> None:
        """Tell which steps of the last pass of a unit, and those in it, are padding: ``(B, T)``."""
        for name, trace in self.traces.items():
            if name == unit or _is_inside(name, unit):
                trace.passes[-1] = trace.passes[-1]._replace(padding_mask=padding_mask)

    def series(self) -> Dict[str, Dict[str, Tensor]]:
        """What was seen, step by step.

        Returns:
            module name of a unit -> name of a quantity -> ``(B, T)``, at least in float32, in the
            order of time whatever the direction, nan at padded steps. Passes one after the other,
            as in decoding, make one sequence. Every unit has ``h_norm``, the norm of h_t; the rest
            is what :meth:`RecurrentCell.observe` gives. After :meth:`differentiate` there is
            ``gradient``.
        """
        return {
            unit: {name: trace.series(name) for name in trace.steps[0]}
            for unit, trace in self.traces.items()
            if trace.steps
        }

    def final_norms(self) -> Dict[str, Tensor]:
        """Module name of a unit -> norm of its state after the last step that it took, ``(B,)``."""
        norms = {}
        for unit, trace in self.traces.items():
            if trace.steps:
                values = trace.series("h_norm")
                norms[unit] = _last(values.flip(1) if trace.passes[-1].reverse else values)
        return norms

    def differentiate(self, loss: Tensor) -> None:
        """Add ``gradient``, the norm of d loss / d h_t, without adding to any ``.grad``.

        It is the whole derivative, that through all later states included. It frees the graph.

        Raises:
            ValueError: the probe was not made with ``gradients``, or the pass had no gradient.
        """
        states = [h for trace in self.traces.values() for h in trace.states]
        if not states or not all(h.requires_grad for h in states):
            raise ValueError("the states need gradients=True, and a pass with gradient")
        found = iter(torch.autograd.grad(loss, states, allow_unused=True))
        for trace in self.traces.values():
            for step, h in zip(trace.steps, trace.states):
                gradient = next(found)
                step["gradient"] = _norm(torch.zeros_like(h) if gradient is None else gradient)


@contextmanager
def probe(model: nn.Module, gradients: bool = False) -> Iterator[Probe]:
    """Record what the units of a model do inside this context.

    Every layer runs the readable loop, of which any unit's steps can be seen; a unit that a model
    steps by itself is seen too. Nothing is left in the model afterwards, and a model that isn't
    probed does no work for it.

    A model with a method ``report_to(probe, inputs, output)`` is asked after each of its passes,
    ``inputs`` being its arguments by name. There it says by :meth:`Probe.pad` what only it knows to
    be padding, and adds to :attr:`Probe.reported`.

    Args:
        model: any module with recurrent units in it.
        gradients: keep the states, for :meth:`Probe.differentiate`.

    Yields:
        the :class:`Probe`, which fills up as the model runs.

    Raises:
        RuntimeError: the model is being probed already.
    """
    found = Probe()
    modules = list(model.named_modules())
    with ExitStack() as undo:
        for name, module in modules:
            if isinstance(module, RecurrentCell):
                if "step" in vars(module):
                    raise RuntimeError("a model can be probed once at a time")
                trace = found.traces[name] = _Trace()
                module.step = _watched(module, trace, gradients)
                undo.callback(delattr, module, "step")
            elif hasattr(module, "report_to"):
                hook = module.register_forward_hook(_report(found), with_kwargs=True)
                undo.callback(hook.remove)
        for name, module in modules:
            if isinstance(module, RecurrentLayer):
                inside = [t for unit, t in found.traces.items() if _is_inside(unit, name)]
                hook = module.register_forward_pre_hook(_begin(inside), with_kwargs=True)
                undo.callback(hook.remove)
                undo.callback(setattr, module, "backend", module.backend)
                module.backend = "naive"
        yield found


def unit_labels(names: Iterable[str]) -> Dict[str, str]:
    """Short names of a model's units: "" for a single one, else as in "encoder.1", "decoder"."""
    names = list(names)
    if len(names) == 1:
        return {names[0]: ""}
    short = {name: ".".join(p for p in name.split(".") if p not in _PLAIN) for name in names}
    return short if len(set(short.values())) == len(names) else {name: name for name in names}


def _is_inside(name: str, module: str) -> bool:
    """Whether a module name is that of a part of a module; the model itself is called ""."""
    return not module or name.startswith(f"{module}.")


def _last(values: Tensor) -> Tensor:
    """The last value of each row that isn't nan: ``(B, T) -> (B,)``; nan if all are."""
    steps = torch.arange(values.shape[1], device=values.device)
    last = torch.where(values.isnan(), -1, steps).amax(1, keepdim=True).clamp_min(0)
    return values.gather(1, last).squeeze(1)


def _at_least_float32(values: Tensor) -> Tensor:
    return values.detach().to(torch.promote_types(values.dtype, torch.float32))


def _norm(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(_at_least_float32(vectors), dim=-1)


def _watched(cell: RecurrentCell, trace: _Trace, gradients: bool) -> Callable:
    """The unit's step, with a record of it."""
    step = cell.step

    def watched(projected: Tensor, state: State) -> Tuple[Tensor, State]:
        with torch.no_grad():
            seen = cell.observe(projected, state)
        output, new_state = step(projected, state)
        seen = {name: _at_least_float32(value) for name, value in seen.items()}
        trace.steps.append({**seen, "h_norm": _norm(new_state[0])})
        if gradients:
            trace.states.append(new_state[0])
        return output, new_state

    return watched


def _begin(traces: List[_Trace]) -> Callable:
    """A hook for the beginning of a layer's call."""

    def begin(layer: RecurrentLayer, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        mask = kwargs.get("padding_mask", args[2] if len(args) > 2 else None)
        for trace in traces:
            trace.passes.append(_Pass(len(trace.steps), layer.reverse, mask))

    return begin


def _report(found: Probe) -> Callable:
    """A hook for the end of a model's pass."""

    def report(module: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any], out: Any) -> None:
        inputs = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        with torch.no_grad():
            module.report_to(found, inputs, out)

    return report
