"""The flags of the units and the options of their constructors are the same set."""

import dataclasses
import inspect
import re

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
    "rum_kernel_init": "uniform",
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


@pytest.mark.parametrize(
    "unit, options, message",
    [
        ("rum", {"rum_eta": -1.0}, "unit 'rum': --rum-eta must be positive, got -1.0"),
        ("rum", {"rum_lambda": 2}, "unit 'rum': --rum-lambda must be 0 or 1, got 2"),
        ("rum", {"rum_layer_norm_gate": "before"}, "--rum-layer-norm-gate needs layer norm"),
        (
            "rum",
            {"rum_constant_rotation": True, "rum_no_update_gate": True},
            "unit 'rum': --rum-constant-rotation without the update gate leaves nothing",
        ),
        ("fast_slow", {"slow_hidden_size": 0}, "--slow-hidden-size must be at least 1, got 0"),
        ("fast_slow", {"fast_cells": 1}, "--fast-cells must be at least 2, got 1"),
        ("fast_slow", {"slow_rnn_unit": "fast_slow"}, "--slow-rnn-unit fast_slow: it cannot be"),
        (
            "fast_slow",
            {"lstm_zoneout": 2.0, "rum_zoneout": 0.1},
            "unit 'fast_slow': unit 'lstm': --lstm-zoneout must lie in",
        ),
        ("goru", {"goru_capacity": 99}, "--goru-capacity"),
    ],
)
def test_what_a_unit_refuses_is_told_by_its_flag(unit, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        build_unit(UnitConfig(**options), unit, 4, 8)


def test_zero_is_a_value():
    assert unit_options(UnitConfig(rum_lambda=0), "rum") == {"lambda_": 0}
    with pytest.raises(InputError, match="--rum-lambda"):
        check_units(UnitConfig(rum_lambda=0), ["gru"])
