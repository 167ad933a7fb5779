"""Which backend runs a unit, and what is said about it."""

import logging
from typing import Optional

import pytest
import torch

from fairseq_rum.cells import build_cell, get_cell
from fairseq_rum.errors import InputError
from fairseq_rum.kernels import (
    backend_table,
    check_backend,
    dispatch,
    register_kernel,
    run_sequence,
)
from fairseq_rum.kernels.dispatch import Kernel
from fairseq_rum.layers import RecurrentLayer


class Fake(Kernel):
    def __init__(self, missing: Optional[str] = None, refuses: Optional[str] = None):
        self.missing, self.refuses, self.calls = missing, refuses, 0

    def unavailable(self):
        return self.missing

    def unsupported(self, cell, x, state, padding_mask):
        return self.refuses

    def __call__(self, cell, x, state, padding_mask, reverse):
        self.calls += 1
        return x.new_full((x.shape[0], x.shape[1], cell.hidden_size), 7.0), state


@pytest.fixture
def kernels(monkeypatch, caplog):
    """An empty registry, and the log."""
    monkeypatch.setattr(dispatch, "_KERNELS", {})
    monkeypatch.setattr(dispatch, "_LOGGED", set())
    caplog.set_level(logging.INFO)

    def register(**backends):
        for backend, kernel in backends.items():
            register_kernel("rum", backend, kernel)

    return register


def call(backend="auto", times=1):
    cell = build_cell("rum", 3, 4)
    for _ in range(times):
        outputs, _ = run_sequence(cell, torch.ones(2, 5, 3), cell.init_state(2), backend=backend)
    return outputs


def test_auto_takes_the_first_that_can_and_says_so_once(kernels, caplog):
    triton, cpp, fused = Fake(missing="no GPU"), Fake(), Fake()
    kernels(triton=triton, cpp=cpp, fused=fused)
    assert (call(times=3) == 7).all()
    assert (triton.calls, cpp.calls, fused.calls) == (0, 3, 0)
    assert caplog.messages == ["unit rum: backend auto takes cpp (triton: no GPU)"]


def test_a_call_that_is_not_covered_goes_to_the_next_and_that_is_said_once(kernels, caplog):
    cpp, fused = Fake(refuses="no zoneout"), Fake()
    kernels(cpp=cpp, fused=fused)
    call("cpp", times=3)
    assert (cpp.calls, fused.calls) == (0, 3)
    assert caplog.messages == ["unit rum: backend cpp takes fused (cpp: no zoneout)"]
    fused.refuses = "no empty sequence"
    assert not (call("cpp") == 7).all()
    assert caplog.messages[1:] == [
        "unit rum: backend cpp takes naive (cpp: no zoneout; fused: no empty sequence)"
    ]


def test_a_named_backend_never_takes_one_that_is_better_liked(kernels):
    cpp, fused = Fake(), Fake(refuses="not today")
    kernels(cpp=cpp, fused=fused)
    call("fused")
    assert cpp.calls == 0


def test_naive_is_always_there_and_silent(kernels, caplog):
    kernels(fused=Fake())
    assert not (call("naive") == 7).all()
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("cuda", "unknown 'cuda', choose one of auto, naive, fused, cpp, triton"),
        ("triton", "cannot run here: no GPU"),
        ("cpp", "unit 'rum' has none, choose one of auto, naive, triton, fused"),
    ],
)
def test_a_named_backend_that_is_not_there_raises(kernels, backend, message):
    kernels(triton=Fake(missing="no GPU"), fused=Fake())
    for attempt in (
        lambda: check_backend("rum", backend),
        lambda: call(backend),
        lambda: RecurrentLayer(build_cell("rum", 3, 4), backend=backend),
    ):
        with pytest.raises(InputError, match=message):
            attempt()


def test_registration_is_checked(kernels):
    kernels(fused=Fake())
    with pytest.raises(ValueError, match="already has"):
        kernels(fused=Fake())
    for name in ("auto", "naive", "cuda"):
        with pytest.raises(ValueError, match="not a backend"):
            register_kernel("rum", name, Fake())


def test_table(kernels):
    kernels(triton=Fake(missing="no GPU"), fused=Fake())
    assert backend_table() == [("rum", "triton", "no GPU"), ("rum", "fused", "available")]


def test_what_is_registered():
    rows = {(unit, backend): state for unit, backend, state in backend_table()}
    assert rows["rum", "fused"] == "available"
    assert rows["lstm", "fused"] == rows["gru", "fused"] == "available"
    order = [backend for unit, backend, _ in backend_table() if unit == "rum"]
    assert order == ["triton", "cpp", "fused"]


def test_what_no_fused_loop_covers_runs_and_is_logged(caplog, monkeypatch):
    monkeypatch.setattr(dispatch, "_LOGGED", set())
    caplog.set_level(logging.INFO)
    cell = build_cell("rum", 3, 4, zoneout=0.1)
    x = torch.randn(2, 5, 3)
    for _ in range(2):
        outputs, _ = run_sequence(cell, x, cell.init_state(2))
    assert outputs.shape == (2, 5, 4)
    assert len(caplog.messages) == 1
    assert "takes naive" in caplog.messages[0] and "zoneout" in caplog.messages[0]
    half = build_cell("rum", 3, 4).to(torch.bfloat16)
    run_sequence(half, x.to(torch.bfloat16), half.init_state(2))
    assert len(caplog.messages) == 2 and "takes fused" in caplog.messages[1]


UNITS = [
    ("rum", {}),
    ("rum", {"lambda_": 1}),
    ("lstm", {}),
    ("gru", {}),
    ("fast_weights", {}),
    ("weinet", {}),
]


@pytest.mark.parametrize(("unit", "options"), UNITS)
def test_a_step_of_ones_own_is_run(unit, options):
    """A subclass of a registered unit, which no fused loop knows of."""

    class Own(get_cell(unit)):
        def step(self, projected, state):
            output, state = super().step(projected, state)
            return torch.full_like(output, 7.0), state

    cell = Own(3, 4, **options)
    for backend in ("auto", "fused"):
        outputs, _ = run_sequence(cell, torch.randn(2, 5, 3), cell.init_state(2), backend=backend)
        assert (outputs == 7.0).all()


@pytest.mark.parametrize("unit", ["rum", "lstm", "gru", "fast_weights"])
def test_a_projection_of_ones_own_is_taken(unit):
    class Own(get_cell(unit)):
        def project_input(self, x):
            return super().project_input(2.0 * x)

    cell, x = Own(3, 4), torch.randn(2, 5, 3)
    outputs, _ = run_sequence(cell, x, cell.init_state(2))
    expected, _ = run_sequence(cell, x, cell.init_state(2), backend="naive")
    torch.testing.assert_close(outputs, expected)


@pytest.mark.parametrize(("unit", "options"), UNITS)
def test_forward_mode(unit, options):
    """Fused loops have no rule for it; the naive loop is taken."""
    cell = build_cell(unit, 3, 4, **options).double().requires_grad_(False)
    x, tangent = torch.randn(2, 2, 5, 3, dtype=torch.float64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        outputs, _ = run_sequence(cell, dual, cell.init_state(2))
        found = torch.autograd.forward_ad.unpack_dual(outputs).tangent
    step = 1e-6 * tangent
    above, below = (run_sequence(cell, x + s, cell.init_state(2))[0] for s in (step, -step))
    torch.testing.assert_close(found, (above - below) / 2e-6, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("unit", "options"), UNITS)
@pytest.mark.parametrize("backend", ["auto", "fused", "naive"])
def test_nan_at_padded_steps_counts_nowhere(unit, options, backend):
    cell = build_cell(unit, 3, 4, **options)
    x = torch.randn(2, 5, 3)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    x[mask] = float("nan")
    x.requires_grad_()
    outputs, _ = run_sequence(cell, x, cell.init_state(2), mask, backend=backend)
    outputs.square().sum().backward()
    assert (x.grad[mask] == 0).all() and x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in cell.parameters())


@pytest.mark.filterwarnings("ignore")  # tracing warns of branches
@pytest.mark.parametrize("lambda_", [0, 1])
def test_tracing_records_the_numbers(lambda_):
    cell = build_cell("rum", 3, 4, lambda_=lambda_).requires_grad_(False)
    x = torch.randn(2, 5, 3)
    with torch.no_grad():
        traced = torch.jit.trace(lambda x: run_sequence(cell, x, cell.init_state(2))[0], x)
        for other in (x, torch.randn(2, 5, 3)):
            expected, _ = run_sequence(cell, other, cell.init_state(2))
            torch.testing.assert_close(traced(other), expected)


@pytest.mark.parametrize("unit", ["lstm", "gru"])
def test_torchs_loops_are_asked_for_gradients(unit, monkeypatch):
    """cuDNN's have a backward pass in training mode alone, which their argument is, not the
    module's; on CPUs it has no effect."""
    kernel, said = dispatch._KERNELS[unit]["fused"], []

    def spy(*arguments, plain=kernel.function):
        said.append((arguments[6], [h.is_contiguous() for h in arguments[1]]))
        return plain(*arguments)

    monkeypatch.setattr(kernel, "function", spy)
    cell = build_cell(unit, 3, 4).eval()
    state = tuple(torch.zeros(1, 4).expand(2, 4) for _ in cell.state_shapes)
    run_sequence(cell, torch.randn(2, 5, 3), state)
    with torch.no_grad():
        run_sequence(cell, torch.randn(2, 5, 3), state)
    assert [train for train, _ in said] == [True, False]
    assert all(all(contiguous) for _, contiguous in said)


def test_half_precision_on_cpus_is_not_for_torchs_own_loops(caplog, monkeypatch):
    monkeypatch.setattr(dispatch, "_LOGGED", set())
    caplog.set_level(logging.INFO)
    for unit in ("lstm", "gru"):
        cell = build_cell(unit, 3, 4)
        x = torch.randn(2, 5, 3)
        exact, _ = run_sequence(cell, x, cell.init_state(2))
        cell.to(torch.bfloat16)
        half, _ = run_sequence(cell, x.to(torch.bfloat16), cell.init_state(2))
        torch.testing.assert_close(half.float(), exact, atol=0.03, rtol=0)  # 8 bits, 5 steps
    taken = [message.partition("takes ")[2].split()[0] for message in caplog.messages]
    assert taken == ["fused", "naive"] * 2
