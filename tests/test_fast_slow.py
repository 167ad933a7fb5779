"""The Fast-Slow RNN: the contract of all units, and its equations stated independently."""

import functools

import pytest
import test_cells as contract
import torch
from test_cells import close, make

from fairseq_rum.cells import build_cell, registered_cells
from fairseq_rum.config import UnitConfig, build_unit, check_units
from fairseq_rum.errors import InputError
from fairseq_rum.kernels import run_sequence

N_X, N, B, T = contract.N_X, contract.N, contract.B, contract.T
UNITS = sorted(set(registered_cells()) - {"fast_slow"})


def lstm(x, n):
    return 4 * n * x + 4 * n * n + 8 * n


def rum(x, n):
    return 3 * n * x + 2 * n * n + 3 * n


# Options and the number of parameters; the slow cell has 9 units where a size is given.
LAYER_NORM = {"lstm": {"layer_norm": True}, "rum": {"layer_norm": True, "eta": 1.0}}
CASES = {
    "lstm-rum": ({}, lambda x, n: lstm(x, n) + rum(n, n) + lstm(n, n)),
    "layer-norm": (
        {"slow_size": 9, "part_options": LAYER_NORM},
        lambda x, n: lstm(x, n) + rum(n, 9) + lstm(9, n) + 20 * n + 6 * 9,
    ),
    "k=4": (
        {"slow_unit": "lstm", "fast_cells": 4, "slow_size": 9},
        lambda x, n: lstm(x, n) + lstm(n, 9) + lstm(9, n) + 2 * lstm(0, n),
    ),
    "lambda=1": (
        {"fast_unit": "rum", "fast_cells": 3, "part_options": {"rum": {"lambda_": 1}}},
        lambda x, n: rum(x, n) + 2 * rum(n, n) + rum(0, n),
    ),
}
CHECKS = {
    "count": contract.test_parameter_count,
    "shapes": contract.test_shapes,
    "steps": contract.test_the_loop_is_the_steps,
    "rows": contract.test_rows_are_independent,
    "padding": functools.partial(contract.test_padding, reverse=False),
    "padding-reverse": functools.partial(contract.test_padding, reverse=True),
    "carry": contract.test_state_carry,
    "reverse": contract.test_reverse,
    "precision": contract.test_single_and_half_precision,
    "autocast": functools.partial(contract.test_autocast, backend="auto"),
    "autocast-naive": functools.partial(contract.test_autocast, backend="naive"),
    "pickle": contract.test_pickle_and_deepcopy,
    "layer": contract.test_as_a_layer_and_as_a_drop_in,
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", CASES)
def test_contract(case, check):
    options, count = CASES[case]
    CHECKS[check](unit="fast_slow", options=options, count=count)


@pytest.mark.parametrize("case", ["layer-norm", "k=4"])
def test_gradients(case):
    options = {**CASES[case][0], "slow_size": 3, "fast_cells": 3 if case == "k=4" else 2}
    contract.test_gradients("fast_slow", options, None)


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_is_slow_and_fast(unit):
    """As slow cell of two fast ones, as fast cells too, and with four: it runs and learns."""
    for options in ({"slow_unit": unit}, {"fast_unit": unit, "slow_unit": unit, "fast_cells": 4}):
        cell = make("fast_slow", {"slow_size": 8, **options}, torch.float32)
        state = cell.init_state(B)
        assert [s.shape[1:] for s in state] == list(cell.state_shapes.values())
        outputs, final = run_sequence(cell, torch.randn(B, T, N_X), state)
        assert outputs.shape == (B, T, N)
        assert [s.shape for s in final] == [s.shape for s in state]
        outputs.square().sum().backward()
        learning = {name: p for name, p in cell.named_parameters() if p.numel()}
        for i in range(1, len(cell.fast)):  # uRNN's initial state is F1's
            learning.pop(f"fast.{i}.initial", None)
        for name, parameter in learning.items():
            assert parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_the_associative_memory_of_the_slow_cell_starts_at_the_identity():
    cell = build_cell("fast_slow", N_X, N, slow_size=4, part_options={"rum": {"lambda_": 1}})
    assert list(cell.state_shapes) == ["h", "c", "slow_h", "slow_R"]
    assert torch.equal(cell.init_state(2)[3], torch.eye(4).expand(2, 4, 4))


@pytest.mark.parametrize("fast_cells", [2, 4])
def test_equals_torchs_cells(fast_cells):
    """Equations 1 to 4 with torch.nn.LSTMCell; F3 and on get one zero, as in the reference."""
    cell = make("fast_slow", {"slow_unit": "lstm", "slow_size": 9, "fast_cells": fast_cells})
    fast = [torch.nn.LSTMCell(size, N).double() for size in (N_X, 9, 1, 1)[:fast_cells]]
    slow = torch.nn.LSTMCell(N, 9).double()
    for theirs, ours in zip((*fast, slow), (*cell.fast, cell.slow)):
        for name, value in ours.named_parameters():
            if value.numel():
                getattr(theirs, name).data.copy_(value.data)
    x = torch.randn(B, T, N_X, dtype=torch.float64)
    shared, slow_state, expected = (x.new_zeros(B, N),) * 2, (x.new_zeros(B, 9),) * 2, []
    for t in range(T):
        shared = fast[0](x[:, t], shared)
        slow_state = slow(shared[0], slow_state)
        shared = fast[1](slow_state[0], shared)
        for following in fast[2:]:
            shared = following(x.new_zeros(B, 1), shared)
        expected.append(shared[0])
    outputs, final = run_sequence(cell, x, cell.init_state(B))
    close(outputs, torch.stack(expected, 1))
    for got, want in zip(final, (*shared, *slow_state)):
        close(got, want)


def test_a_cell_without_input_costs_no_product():
    cell = make("fast_slow", {"fast_cells": 4})
    assert [c.weight_ih.numel() for c in cell.fast[2:]] == [0, 0]
    assert [c.input_size for c in cell.fast] == [N_X, N, 0, 0]
    calls = []
    cell.fast[3].project_input = lambda x: calls.append(x.shape) or torch.zeros(1, 4 * N).double()
    run_sequence(cell, torch.randn(B, T, N_X).double(), cell.init_state(B), backend="naive")
    assert calls == [(1, 0)], "once a sequence, of nothing"


def test_dropout_is_between_the_cells_and_nowhere_else():
    """At probability 1 the slow cell and F2 see zeros, and all that recurs is as it was."""
    cell = make("fast_slow", {"slow_size": 9, "dropout": 1.0})
    x = torch.randn(B, T, N_X, dtype=torch.float64)
    outputs, _ = run_sequence(cell, x, cell.init_state(B), backend="naive")
    shared, slow = cell.fast[0].init_state(B), cell.slow.init_state(B)
    for t in range(T):
        _, shared = cell.fast[0](x[:, t], shared)
        _, slow = cell.slow(x.new_zeros(B, N), slow)
        output, shared = cell.fast[1](x.new_zeros(B, 9), shared)
        close(outputs[:, t], output)


def test_dropout_masks_differ_by_step_and_row():
    cell = make("fast_slow", {"dropout": 0.35}, n=200)
    seen, project = [], cell.slow.project_input
    cell.slow.project_input = lambda x: seen.append(x == 0) or project(x)
    x = torch.randn(B, 1, N_X, dtype=torch.float64).expand(B, T, N_X)
    run_sequence(cell, x, cell.init_state(B), backend="naive")
    masks = torch.stack(seen)
    assert masks.double().mean() == pytest.approx(0.35, abs=0.03)
    assert len({mask.numpy().tobytes() for step in masks for mask in step}) == T * B
    cell.eval()
    seen.clear()
    run_sequence(cell, x, cell.init_state(B), backend="naive")
    assert not torch.stack(seen).any()


NOISE = {
    "dropout": 0.35,
    "part_options": {
        "lstm": {"layer_norm": True, "zoneout": 0.1, "zoneout_cell": 0.5},
        "rum": {"layer_norm": True, "zoneout": 0.1, "eta": 1.5},
    },
}


@pytest.mark.parametrize("training", [True, False])
def test_time_normalization_holds_with_zoneout(training):
    cell = make("fast_slow", NOISE).train(training)
    state = cell.init_state(B)
    for _ in range(5):
        _, state = cell(torch.randn(B, N_X, dtype=torch.float64), state)
        close(state[2].norm(dim=-1), torch.full((B,), 1.5, dtype=torch.float64))


def test_evaluation_has_no_noise():
    cell = make("fast_slow", NOISE)
    x = torch.randn(B, T, N_X, dtype=torch.float64)
    assert not torch.equal(*(run_sequence(cell, x, cell.init_state(B))[0] for _ in range(2)))
    cell.eval()
    assert torch.equal(*(run_sequence(cell, x, cell.init_state(B))[0] for _ in range(2)))


def test_what_its_cells_derive_is_computed_once_a_sequence(monkeypatch):
    cell = build_cell("fast_slow", N_X, N, slow_unit="urnn")
    calls, derive = [], type(cell.slow).derive
    monkeypatch.setattr(type(cell.slow), "derive", lambda self: calls.append(1) or derive(self))
    run_sequence(cell, torch.randn(B, T, N_X), cell.init_state(B))
    assert len(calls) == 1 and not cell.slow._derived


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fast_cells": 1}, "fast_cells must be at least 2, got 1"),
        ({"slow_size": 0}, "slow_size must be at least 1, got 0"),
        ({"dropout": 1.5}, r"dropout must lie in \[0, 1\]"),
        ({"slow_unit": "fast_slow"}, "cannot be made of itself"),
        ({"fast_unit": "tree"}, "--fast-rnn-unit: unknown unit 'tree', choose one of"),
        ({"slow_unit": "tree"}, "--slow-rnn-unit: unknown unit 'tree', choose one of"),
        ({"part_options": {"gru": {}}}, "options of 'gru', but it is made of 'lstm' and 'rum'"),
        ({"part_options": {"rum": {"eta": -1.0}}}, "unit 'rum': eta must be positive"),
        ({"part_options": {"rum": {"colour": 1}}}, "unit 'rum' has no option 'colour'"),
        ({"colour": "red"}, "unit 'fast_slow' has no option 'colour'"),
    ],
)
def test_bad_options_get_one_sentence(options, message):
    with pytest.raises(InputError, match=message):
        build_cell("fast_slow", N_X, N, **options)


def test_flags_reach_the_cells():
    cfg = UnitConfig(
        fast_rnn_unit="gru", slow_rnn_unit="lstm", fast_cells=3, slow_hidden_size=5,
        fast_slow_dropout=0.2, gru_layer_norm=True, lstm_zoneout=0.3,
    )  # fmt: skip
    check_units(cfg, ["fast_slow"])
    cell = build_unit(cfg, "fast_slow", 4, 8)
    assert [c.unit for c in (*cell.fast, cell.slow)] == ["gru"] * 3 + ["lstm"]
    assert (cell.slow.hidden_size, cell.dropout) == (5, 0.2)
    assert cell.fast[2].layer_norm and cell.slow.zoneout == 0.3
    both = UnitConfig(slow_rnn_unit="lstm", lstm_layer_norm=True)
    cell = build_unit(both, "fast_slow", 4, 8)
    assert cell.fast[0].layer_norm and cell.slow.layer_norm, "cells of one unit share its options"


@pytest.mark.parametrize(
    "option",
    [{"fast_rnn_unit": "gru"}, {"slow_rnn_unit": "gru"}, {"fast_cells": 2}, {"slow_hidden_size": 5},
     {"fast_slow_dropout": 0.0}],
)  # fmt: skip
def test_flags_are_refused_without_the_unit(option):
    (name,) = option
    with pytest.raises(InputError, match=f"^--{name.replace('_', '-')} is an option of unit 'fas"):
        check_units(UnitConfig(**option), ["rum"])


def test_options_of_units_it_is_not_made_of_are_refused():
    cfg = UnitConfig(slow_rnn_unit="lstm", rum_eta=1.0)
    with pytest.raises(InputError, match="--rum-eta is an .* this model uses fast_slow, lstm$"):
        check_units(cfg, ["fast_slow"])
    check_units(cfg, ["fast_slow"], preset=UnitConfig(rum_eta=1.0))
    with pytest.raises(InputError, match="--rum-eta is an option"):
        check_units(cfg, ["fast_slow"], preset=UnitConfig(rum_eta=2.0))
    with pytest.raises(InputError, match="--slow-rnn-unit: unknown unit 'tree'"):
        check_units(UnitConfig(slow_rnn_unit="tree"), ["fast_slow"])
