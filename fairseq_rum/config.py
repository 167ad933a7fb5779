"""The options of the units: one flat dataclass mixin that every model config inherits.

A field belongs to a unit by its metadata, ``unit`` and ``argument``: the value goes to that unit's
constructor under that name. None (or False for a switch) means "not given", so that an option
given for a unit that the model does not use can be refused instead of being ignored. What a unit
that is made of others is made of are fields with ``composite`` in the place of ``unit``.
"""

import dataclasses
import inspect
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Optional

from fairseq.dataclass import FairseqDataclass

from fairseq_rum.cells import RecurrentCell, build_cell, get_cell
from fairseq_rum.errors import InputError


def _option(
    unit: str, argument: str, help: str, default: Any = None, inverted: bool = False
) -> Any:
    """A field that holds one option of one unit; ``inverted`` for a switch that turns one off."""
    metadata = {"help": help, "unit": unit, "argument": argument, "inverted": inverted}
    return field(default=default, metadata=metadata)


def _composition(argument: str, help: str, names_unit: bool = False) -> Any:
    """A field that says what ``fast_slow`` is made of; ``names_unit`` where it names a unit."""
    metadata = {"help": help, "composite": "fast_slow", "argument": argument, "inverted": False}
    return field(default=None, metadata={**metadata, "names_unit": names_unit})


@dataclass
class UnitConfig(FairseqDataclass):
    """Options of all units, prefixed by the unit's name, and the backend of the loop."""

    rnn_backend: str = field(
        default="auto",
        metadata={
            "help": "version of the recurrent unit's loop: auto, naive, fused, cpp or triton; auto "
            "takes the fastest that covers the unit on this machine and logs its choice"
        },
    )
    rum_lambda: Optional[int] = _option(
        "rum",
        "lambda_",
        "RUM: 0 = rotation of the present step alone, 1 = rotations accumulated in the associative "
        "memory, an N x N matrix per example (default: 0)",
    )
    rum_eta: Optional[float] = _option(
        "rum",
        "eta",
        "RUM: norm that time normalization gives every hidden state, > 0 (default: none)",
    )
    rum_activation: Optional[str] = _option(
        "rum",
        "activation",
        "RUM: activation of the candidate: relu, tanh, sigmoid, softsign or none (default: relu)",
    )
    rum_no_update_gate: bool = _option(
        "rum",
        "update_gate",
        "RUM: drop the update gate, so that the new state is the candidate",
        default=False,
        inverted=True,
    )

    rum_constant_rotation: bool = _option(
        "rum",
        "rotation_trainable",
        "RUM': keep the kernels of the memory target and of the embedded input as initialized",
        default=False,
        inverted=True,
    )
    rum_layer_norm: bool = _option(
        "rum",
        "layer_norm",
        "RUM: layer normalization of the memory target, the update gate and the candidate",
        default=False,
    )
    rum_layer_norm_gate: Optional[str] = _option(
        "rum",
        "layer_norm_gate",
        "RUM: with --rum-layer-norm, normalize the update gate before its sigmoid or after it, as "
        "the authors' code does (default: before)",
    )
    rum_zoneout: Optional[float] = _option(
        "rum", "zoneout", "RUM: probability that a hidden unit keeps its old value (default: 0)"
    )
    rum_kernel_init: Optional[str] = _option(
        "rum",
        "kernel_init",
        "RUM: initial kernels: orthogonal, as in the paper, or uniform, as those of torch's LSTM "
        "(default: orthogonal)",
    )
    lstm_layer_norm: bool = _option(
        "lstm",
        "layer_norm",
        "LSTM: layer normalization of each gate and of the cell before its tanh",
        default=False,
    )
    lstm_zoneout: Optional[float] = _option(
        "lstm", "zoneout", "LSTM: probability that a hidden unit keeps its old value (default: 0)"
    )
    lstm_zoneout_cell: Optional[float] = _option(
        "lstm", "zoneout_cell", "LSTM: the same probability for the memory cell (default: 0)"
    )
    gru_layer_norm: bool = _option(
        "gru", "layer_norm", "GRU: layer normalization of the gates and candidate", default=False
    )
    gru_zoneout: Optional[float] = _option(
        "gru", "zoneout", "GRU: probability that a hidden unit keeps its old value (default: 0)"
    )
    eurnn_capacity: Optional[int] = _option(
        "eurnn", "capacity", "EURNN: layers of rotations, 2 to the hidden size (default: 2)"
    )
    eurnn_fft: bool = _option(
        "eurnn", "fft", "EURNN: rotations in the style of the FFT", default=False
    )
    eurnn_field: Optional[str] = _option(
        "eurnn", "field", "EURNN: real or complex (default: complex)"
    )
    goru_capacity: Optional[int] = _option(
        "goru", "capacity", "GORU: layers of rotations, 2 to the hidden size (default: 2)"
    )
    goru_fft: bool = _option(
        "goru", "fft", "GORU: rotations in the style of the FFT", default=False
    )
    fast_weights_decay: Optional[float] = _option(
        "fast_weights", "decay", "fast weights: decay of the memory in (0, 1] (default: 0.95)"
    )
    fast_weights_eta: Optional[float] = _option(
        "fast_weights", "eta", "fast weights: rate at which the memory learns (default: 0.5)"
    )
    fast_weights_inner_steps: Optional[int] = _option(
        "fast_weights", "inner_steps", "fast weights: steps of the inner loop (default: 1)"
    )
    fast_rnn_unit: Optional[str] = _composition(
        "fast_unit",
        "fast-slow RNN (unit fast_slow): unit of the fast cells, with the options of that unit; "
        "their hidden size is the model's (default: lstm)",
        names_unit=True,
    )
    slow_rnn_unit: Optional[str] = _composition(
        "slow_unit",
        "fast-slow RNN: unit of the slow cell, with the options of that unit (default: rum)",
        names_unit=True,
    )
    fast_cells: Optional[int] = _composition(
        "fast_cells", "fast-slow RNN: number k of fast cells, >= 2 (default: 2)"
    )
    slow_hidden_size: Optional[int] = _composition(
        "slow_size", "fast-slow RNN: hidden size of the slow cell (default: that of the fast ones)"
    )
    fast_slow_dropout: Optional[float] = _composition(
        "dropout", "fast-slow RNN: dropout between the fast and the slow cells (default: 0)"
    )


def unit_options(cfg: Any, unit: str) -> Dict[str, Any]:
    """The options in ``cfg`` that belong to a unit, by the names of its constructor."""
    return {
        entry.metadata["argument"]: (
            not getattr(cfg, entry.name) if entry.metadata["inverted"] else getattr(cfg, entry.name)
        )
        for entry in _given_options(cfg)
        if _owner(entry) == unit
    }


def part_units(cfg: Any, unit: str) -> List[str]:
    """The units that a unit is made of according to ``cfg``; none for most units.

    Raises:
        InputError: one of them is unknown.
    """
    defaults = inspect.signature(get_cell(unit).__init__).parameters
    parts = []
    for entry in dataclasses.fields(UnitConfig):
        if _owner(entry) == unit and entry.metadata.get("names_unit"):
            part = getattr(cfg, entry.name, None) or defaults[entry.metadata["argument"]].default
            get_cell(part, _flag(entry))
            parts.append(part)
    return parts


def check_units(cfg: Any, units: Iterable[str], preset: Any = None) -> None:
    """Refuse options of units that the model does not use.

    Args:
        cfg: the options.
        units: those that the model uses; what they are made of is used too.
        preset: the defaults of the architecture: what they set for a unit that another one has
            taken the place of was not given by the user, and is not refused.

    Raises:
        InputError: a unit is unknown, or an option of a unit that isn't used is given.
    """
    used = set(units)
    for unit in list(used):
        used.update(part_units(cfg, unit))
    for entry in _given_options(cfg):
        by_default = getattr(cfg, entry.name) == _default(preset, entry.name, cfg)
        if _owner(entry) not in used and not by_default:
            raise InputError(
                f"{_flag(entry)} is an option of unit {_owner(entry)!r}, "
                f"but this model uses {', '.join(sorted(used))}"
            )


def check_sizes(cfg: Any, names: Iterable[str]) -> None:
    """Refuse sizes below 1; an option that is None is not given.

    Raises:
        InputError: there is one.
    """
    for name in names:
        value = getattr(cfg, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, got {value}")


def build_unit(cfg: Any, unit: str, input_size: int, hidden_size: int) -> RecurrentCell:
    """Build a unit with its options from ``cfg``.

    Raises:
        InputError: the unit is unknown, or one of its options is out of range.
    """
    options = unit_options(cfg, unit)
    parts = part_units(cfg, unit)
    if parts:
        options["part_options"] = {part: unit_options(cfg, part) for part in parts}
    try:
        return build_cell(unit, input_size, hidden_size, **options)
    except InputError as error:
        raise InputError(_with_flags(str(error), cfg)) from error


def _with_flags(message: str, cfg: Any) -> str:
    """What a unit says of its arguments, with the flags that they were given by."""
    units = re.findall(r"unit '(\w+)'", message)
    for entry in _given_options(cfg):
        if units and _owner(entry) == units[-1]:
            name = re.escape(entry.metadata["argument"].rstrip("_"))
            message = re.sub(rf"(?<![\w'-]){name}(=\w+)?(?![\w'-])", _flag(entry), message)
    return message


def _default(preset: Any, name: str, cfg: Any) -> Any:
    """A default of an architecture; ``${model.x}`` stands for the model's option x."""
    default = getattr(preset, name, None)
    other = re.fullmatch(r"\$\{model\.(\w+)\}", str(default))
    return getattr(cfg, other[1]) if other else default


def _owner(entry: dataclasses.Field) -> Optional[str]:
    """The unit that a field belongs to."""
    return entry.metadata.get("unit", entry.metadata.get("composite"))


def _flag(entry: dataclasses.Field) -> str:
    return "--" + entry.name.replace("_", "-")


def _given_options(cfg: Any) -> Iterable[dataclasses.Field]:
    for entry in dataclasses.fields(UnitConfig):
        value = getattr(cfg, entry.name, None)
        if _owner(entry) is not None and value is not None and value is not False:
            yield entry
