"""The flags of the units and the options of their constructors are the same set."""

import dataclasses
import inspect

import pytest

from fairseq_rum.cells import get_cell, registered_cells
from fairseq_rum.config import UnitConfig, build_unit, check_units, unit_options
from fairseq_rum.errors import InputError

FIELDS = [entry for entry in dataclasses.fields(UnitConfig) if "unit" in entry.metadata]

# A value that is allowed and differs from the default, for each flag.
VALUES = {
    "rum_lambda": 1,
    "rum_eta": 0.5,
    "rum_activation": "tanh",
    "rum_layer_norm_gate": "after",
    "eurnn_capacity": 4,
    "eurnn_field": "real",
    "goru_capacity": 4,
    "fast_weights_decay": 0.9,
    "fast_weights_eta": 0.3,
    "fast_weights_inner_steps": 2,
    "rum_zoneout": 0.2,
    "lstm_zoneout": 0.2,
    "lstm_zoneout_cell": 0.3,
    "gru_zoneout": 0.2,
}
NEEDS = {"rum_layer_norm_gate": {"rum_layer_norm": True}}


def test_every_option_of_every_unit_has_a_flag():
    for unit in registered_cells():
        flags = {entry.metadata["argument"] for entry in FIELDS if entry.metadata["unit"] == unit}
        parameters = inspect.signature(get_cell(unit).__init__).parameters.values()
        options = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        assert flags == options - {"bias"}, unit


def test_flags_are_prefixed_with_their_unit():
    for entry in FIELDS:
        assert entry.name.startswith(entry.metadata["unit"] + "_")
        assert entry.metadata["help"]


@pytest.mark.parametrize("entry", FIELDS, ids=lambda entry: entry.name)
def test_every_flag_takes_effect_or_raises(entry):
    unit, value = entry.metadata["unit"], VALUES.get(entry.name, True)
    plain = build_unit(UnitConfig(), unit, 4, 8)
    cfg = UnitConfig(**{entry.name: value, **NEEDS.get(entry.name, {})})
    cell = build_unit(cfg, unit, 4, 8)
    assert (
        repr(cell) != repr(plain)
        or [p.requires_grad for p in cell.parameters()]
        != [p.requires_grad for p in plain.parameters()]
        or [p.shape for p in cell.parameters()] != [p.shape for p in plain.parameters()]
    )
    check_units(cfg, [unit])
    other = "lstm" if unit != "lstm" else "gru"
    with pytest.raises(InputError, match="is an option of unit"):
        check_units(cfg, [other])


def test_zero_is_a_value():
    assert unit_options(UnitConfig(rum_lambda=0), "rum") == {"lambda_": 0}
    with pytest.raises(InputError, match="--rum-lambda"):
        check_units(UnitConfig(rum_lambda=0), ["gru"])
