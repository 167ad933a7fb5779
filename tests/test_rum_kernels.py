"""Every backend of RUM against the plain loop: outputs, final states, all gradients.

Without a GPU, Triton runs in its interpreter, where triton is installed (``pip install triton``).
"""

import contextlib
import importlib.util
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import skip_without_products

from fairseq_rum.cells import RUMCell
from fairseq_rum.kernels.naive import run_naive
from fairseq_rum.kernels.rum import KERNELS
from fairseq_rum.kernels.rum import triton as triton_backend
from fairseq_rum.kernels.rum.fused import _BackwardPass, _ForwardPass
from fairseq_rum.kernels.rum.triton import TritonKernel
from fairseq_rum.layers import RUM

N_X = 3
# lambda, eta, activation, update gate, which steps
SETTINGS = [
    *itertools.product((0, 1), (None, 0.7), ("relu",), (True, False), ("all", "both")),
    *itertools.product((0, 1), (None, 0.7), ("tanh",), (True, False), ("mask", "reverse")),
    *itertools.product((0, 1), (None,), ("sigmoid", "softsign", "none"), (True, False), ("all",)),
]
SIZES = [(1, 1, 1), (1, 2, 2), (4, 1, 3), (5, 3, 1), (3, 2, 17), (2, 3, 250), (37, 2, 5)]  # T, B, N
# Relative to the largest entry of a tensor. float32: rounding of sums in another order; the
# gradients go through T steps, and through 1 / |p + q|.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}


def settings_id(settings):
    return "-".join(str(part) for part in settings)


def interpreted_triton():
    """The Triton backend on the CPU; the interpreter is chosen when triton is imported."""
    if importlib.util.find_spec("triton") is None or torch.cuda.is_available():
        return None
    kernel = TritonKernel(interpreted=True)
    cell = RUMCell(1, 1)
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:  # the first call imports the rest of triton
        kernel(cell, torch.zeros(1, 1, 1), cell.init_state(1), None, False)[0].sum().backward()
    finally:  # the other tests' "auto" is not to take it
        if before is None:
            del os.environ["TRITON_INTERPRET"]
    return kernel


INTERPRETED = interpreted_triton()


@pytest.fixture(params=sorted(KERNELS))
def backend(request):
    kernel = KERNELS[request.param]
    if request.param == "triton" and INTERPRETED is not None:
        kernel = INTERPRETED
    reason = kernel.unavailable()
    if reason is not None:
        pytest.skip(f"{request.param}: {reason}")
    return kernel


def skip_if_interpreted(backend):
    if backend is INTERPRETED:
        pytest.skip("too much for Triton's interpreter")


def make_case(steps, batch, n, dtype=torch.float64, masked=False, n_x=N_X, **options):
    """A cell, and inputs of which every tensor needs a gradient."""
    cell = RUMCell(n_x, n, **options).to(dtype)
    with torch.no_grad():  # no special values, such as the zeros of the biases
        for parameter in cell.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x = torch.randn(batch, steps, n_x, dtype=dtype)
    state = [torch.randn(batch, n, dtype=dtype)]
    if cell.lambda_:
        # Not orthogonal: what is undone and the gradient to R_0 must not depend on that.
        state.append(torch.eye(n, dtype=dtype) + 0.2 * torch.randn(batch, n, n, dtype=dtype))
    mask = None
    if masked:
        mask = torch.rand(batch, steps) < 0.4
        mask[0, 0] = True  # a row that starts with padding
        mask[-1] = True  # a row of padding alone
    return SimpleNamespace(cell=cell, x=x, state=tuple(state), mask=mask)


def run(function, case, reverse=False, weights=None, losses=None):
    """Outputs, states and gradients, by name."""
    x = case.x.detach().clone().requires_grad_()
    state = tuple(part.detach().clone().requires_grad_() for part in case.state)
    outputs, final = function(case.cell, x, state, case.mask, reverse)
    results = dict(zip(("outputs", "h", "R"), (outputs, *final)))
    generator = torch.Generator().manual_seed(5)
    loss = 0.0
    for name, value in results.items():
        factor = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        if losses is None or name in losses:
            loss = loss + (value * factor.to(value.dtype)).sum()
    inputs = {"x": x, "h0": state[0], "R0": state[-1], **dict(case.cell.named_parameters())}
    if len(state) == 1:
        del inputs["R0"]
    gradients = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
    for name, gradient in zip(inputs, gradients):
        results[f"gradient of {name}"] = gradient
    return {name: None if value is None else value.detach() for name, value in results.items()}


def assert_same(result, expected, tolerance):
    assert list(result) == list(expected)
    for name, want in expected.items():
        have = result[name]
        if want is None or have is None:
            for value in (want, have):
                assert value is None or not value.any(), name
            continue
        assert have.shape == want.shape and have.dtype == want.dtype, name
        error = (have.double() - want.double()).abs().max().item() if want.numel() else 0.0
        scale = max(1.0, want.double().abs().max().item()) if want.numel() else 1.0
        assert error <= tolerance * scale, f"{name}: off by {error:.1e} of {scale:.1e}"


@pytest.mark.parametrize("settings", SETTINGS, ids=settings_id)
def test_settings(backend, settings):
    lambda_, eta, activation, update_gate, steps = settings
    size = (2, 2, 3) if backend is INTERPRETED else (6, 3, 4)
    case = make_case(
        *size, masked=steps in ("mask", "both"),
        lambda_=lambda_, eta=eta, activation=activation, update_gate=update_gate,
    )  # fmt: skip
    reverse = steps in ("reverse", "both")
    expected = run(run_naive, case, reverse)
    assert_same(run(backend, case, reverse), expected, TOLERANCE[torch.float64])
    with torch.no_grad():
        outputs, final = backend(case.cell, case.x, case.state, case.mask, reverse)
    plain = dict(zip(("outputs", "h", "R"), (outputs, *final)))
    assert_same(plain, {name: expected[name] for name in plain}, TOLERANCE[torch.float64])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("lambda_", [0, 1])
@pytest.mark.parametrize("size", SIZES, ids=settings_id)
def test_sizes(backend, size, lambda_, dtype):
    if size[0] * size[2] > 100 or size[0] > 5:
        skip_if_interpreted(backend)
    for masked, reverse, eta in ((False, False, None), (True, True, 1.0)):
        case = make_case(*size, dtype=dtype, masked=masked, lambda_=lambda_, eta=eta)
        assert_same(run(backend, case, reverse), run(run_naive, case, reverse), TOLERANCE[dtype])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lambda_", [0, 1])
def test_initial_state_and_no_bias(backend, lambda_, bias):
    case = make_case(5, 4, 6, lambda_=lambda_, bias=bias)
    case.state = case.cell.init_state(4)
    case.x[1] = 0  # without bias: tau = 0 and e = 0 exactly
    case.x[2, 2] = 0
    assert_same(run(backend, case), run(run_naive, case), TOLERANCE[torch.float64])


def special_vectors(dtype, n=6):
    """Rows of (tau, e), every one with a name."""
    eps = torch.finfo(dtype).eps
    a = torch.tensor([0.3, -1.2, 0.5, 0.9, -0.1, 0.7], dtype=dtype)[:n]
    b = torch.tensor([1.1, 0.4, -0.8, 0.2, 0.6, -0.5], dtype=dtype)[:n]
    unit = a / a.norm()
    across = b - (b @ unit) * unit
    zero = torch.zeros_like(a)
    rows = {
        "usual": (a, b),
        "equal": (a, a),
        "parallel": (3.7 * a, a),
        "antiparallel": (-a, a),
        "antiparallel, lengths": (-0.3 * a, a),
        "tau zero": (zero, a),
        "e zero": (a, zero),
        "both zero": (zero, zero),
        "tau tiny": (0.5 * eps**2 * unit, a),
        "e tiny": (a, 0.5 * eps**2 * unit),
        "tau small": (4 * eps**2 * unit, b),
        "e small": (b, 4 * eps**2 * unit),
        "one axis": (torch.eye(n, dtype=dtype)[1], torch.eye(n, dtype=dtype)[0]),
        "opposite axis": (-torch.eye(n, dtype=dtype)[0], torch.eye(n, dtype=dtype)[0]),
        "inside the zone": (-a + 0.3 * eps**0.5 * across, a),
    }
    for angle in (0.5, 0.1, 1e-2, 1e-3):
        rows[f"angle pi - {angle}"] = (-a + angle * across, a)
        rows[f"angle {angle}"] = (a + angle * across, a)
    return rows


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("lambda_", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
def test_special_vectors(backend, dtype, lambda_, masked):
    rows = special_vectors(dtype)
    n = 6
    cell = RUMCell(3 * n, n, lambda_=lambda_).to(dtype)
    with torch.no_grad():  # the inputs are tau, u, e as they stand; only u takes in h
        cell.weight_ih.copy_(torch.eye(3 * n))
        cell.bias.zero_()
        cell.weight_hh[:n].zero_()
    names = list(rows)
    steps = 4
    x = torch.randn(len(names), steps, 3 * n, dtype=dtype)
    for row, name in enumerate(names):  # special at steps 1 and 3
        for t in (1, 3):
            x[row, t, :n], x[row, t, 2 * n :] = rows[name]
    state = [torch.randn(len(names), n, dtype=dtype)]
    if lambda_:
        state.append(torch.linalg.qr(torch.randn(len(names), n, n, dtype=dtype))[0])
    mask = torch.rand(len(names), steps) < 0.3 if masked else None
    case = SimpleNamespace(cell=cell, x=x, state=tuple(state), mask=mask)
    result, expected = run(backend, case), run(run_naive, case)
    for name in ("outputs", "h", "R"):
        if name in expected:
            # A rotation by almost pi is known to eps / |p + q|.
            tolerance = 1e-11 if dtype == torch.float64 else 1e-3
            for row, label in enumerate(names):
                dim = (result[name][row] - expected[name][row]).abs().max()
                assert dim <= tolerance, f"{label}: {name} off by {dim:.1e}"
    for name in ("x", "h0", "R0", "weight_hh"):
        name = f"gradient of {name}"
        if name not in expected:
            continue
        assert torch.isfinite(result[name]).all()
        if dtype == torch.float64 and name != "gradient of weight_hh":
            for row, label in enumerate(names):
                # e or tau of length eps^2: their gradient is 1 / eps^2.
                scale = expected[name][row].abs().max().clamp_min(1.0)
                error = (result[name][row] - expected[name][row]).abs().max() / scale
                assert error <= 1e-8, f"{label}: {name} off by {error:.1e}"


@pytest.mark.parametrize("losses", [("outputs",), ("h",), ("R",)])
def test_part_of_the_results_in_the_loss(backend, losses):
    case = make_case(5, 3, 4, lambda_=1)
    expected = run(run_naive, case, losses=losses)
    assert_same(run(backend, case, losses=losses), expected, TOLERANCE[torch.float64])


@pytest.mark.parametrize("lambda_", [0, 1])
def test_frozen_parts(backend, lambda_):
    case = make_case(4, 2, 5, lambda_=lambda_)
    wanted = run(run_naive, case)
    case.cell.weight_hh.requires_grad_(False)
    outputs, _ = backend(case.cell, case.x, case.state, None, False)
    generator = torch.Generator().manual_seed(5)
    factor = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    (outputs * factor).sum().backward()
    assert case.cell.weight_hh.grad is None
    assert case.cell.weight_ih.grad.abs().sum() > 0
    case.cell.requires_grad_(False)
    x = case.x.requires_grad_()
    backend(case.cell, x, case.state, None, False)[0].sum().backward()
    assert x.grad.shape == wanted["gradient of x"].shape


def test_backward_twice(backend):
    case = make_case(5, 3, 4, lambda_=1)
    x = case.x.requires_grad_()
    outputs, _ = backend(case.cell, x, case.state, None, False)
    first = torch.autograd.grad(outputs.sum(), [x, *case.cell.parameters()], retain_graph=True)
    second = torch.autograd.grad(outputs.sum(), [x, *case.cell.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_second_derivative_is_refused(backend):
    case = make_case(3, 2, 4)
    x = case.x.requires_grad_()
    outputs, _ = backend(case.cell, x, case.state, None, False)
    (gradient,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="naive"):
        gradient.square().sum().backward()


def test_changed_outputs_are_noticed(backend):
    case = make_case(3, 2, 4, activation="tanh")
    outputs, _ = backend(case.cell, case.x, case.state, None, False)
    try:
        with torch.no_grad():
            outputs.mul_(2.0)
        outputs.sum().backward()
    except RuntimeError as error:
        assert "modified" in str(error)
    else:  # a backend may keep states of its own: then nothing has changed
        doubled = {k: p.grad for k, p in case.cell.named_parameters()}
        case.cell.zero_grad()
        run_naive(case.cell, case.x, case.state)[0].sum().backward()
        for name, parameter in case.cell.named_parameters():
            torch.testing.assert_close(doubled[name], parameter.grad)


@pytest.mark.parametrize("lambda_", [0, 1])
def test_poisoned_memory(backend, lambda_):
    """Memory that is not initialized must not show: it is filled with NaN here."""
    steps = 1 if backend is INTERPRETED else 5
    cases = [
        make_case(steps, 3, 4, masked=masked, lambda_=lambda_, eta=eta, update_gate=gate)
        for masked, eta, gate in itertools.product((False, True), (None, 1.0), (True, False))
    ]
    expected = [run(run_naive, case) for case in cases]
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        for case, want in zip(cases, expected):
            assert_same(run(backend, case), want, TOLERANCE[torch.float64])
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("lambda_", [0, 1])
def test_threads(backend, lambda_):
    skip_if_interpreted(backend)
    case = make_case(6, 33, 40, dtype=torch.float32, lambda_=lambda_)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(run(backend, case))
    finally:
        torch.set_num_threads(threads)
    assert_same(results[1], results[0], 2e-5)


LONG, LONG_N = 2000, 16


@pytest.fixture(scope="module")
def long_case():
    """2,000 steps with lambda = 1: in float32, and what comes out in float64."""
    torch.manual_seed(1)
    # tanh: a ReLU whose input is 1e-7 here and -1e-7 there would change the gradient.
    cell = RUMCell(N_X, LONG_N, lambda_=1, eta=1.0, activation="tanh")
    x = torch.randn(2, LONG, N_X)
    case = SimpleNamespace(cell=cell, x=x, state=cell.init_state(2), mask=None)
    exact = SimpleNamespace(
        cell=RUMCell(N_X, LONG_N, lambda_=1, eta=1.0, activation="tanh").double(),
        x=x.double(),
        state=tuple(part.double() for part in case.state),
        mask=None,
    )
    exact.cell.load_state_dict(cell.state_dict())
    return case, run(KERNELS["fused"], exact)


def distance_from_identity(memory):
    return (memory - torch.eye(memory.shape[-1])).abs().max().item()


def test_long_sequence(backend, long_case):
    skip_if_interpreted(backend)
    case, expected = long_case
    result = run(backend, case)
    memory = result["R"]
    assert distance_from_identity(memory.transpose(1, 2) @ memory) < 1e-5  # measured: 2e-6
    for name, want in expected.items():
        error = ((result[name].double() - want).abs().max() / want.abs().max()).item()
        # Rounding grows along 2,000 steps: measured 3e-4 for fused, 6e-4 for naive itself.
        assert error < 2e-3, f"{name}: off by {error:.1e}"


def test_drift_of_naive_and_of_the_memory_that_is_undone(long_case):
    case, _ = long_case
    cell, state, kernel = case.cell, case.state, KERNELS["fused"]
    with torch.no_grad():
        _, (_, memory) = run_naive(cell, case.x, state)
        assert distance_from_identity(memory.transpose(1, 2) @ memory) < 1e-5  # measured: 2e-6
        projected = cell.project_input(case.x.transpose(0, 1))
        options = (None, False, kernel.settings(cell))
        forward = _ForwardPass(projected, *state, cell.weight_hh, *options, keep=True)
        outputs, _, _ = forward()
        backward = _BackwardPass(
            forward.kept(), forward.half_turns, cell.weight_hh, *options, (True,) * 4
        )
        backward(torch.ones_like(outputs), None, None)
        assert distance_from_identity(backward.memory) < 1e-5  # measured: 1e-6


def test_dead_units_are_flushed(backend):
    skip_if_interpreted(backend)
    case = make_case(40, 2, 8, dtype=torch.float32)
    with torch.no_grad():
        case.cell.weight_ih.zero_()
        case.cell.weight_hh.zero_()
        case.cell.bias.fill_(-3.0)  # u = 0.05, e < 0: the state decays by 0.05 a step
        case.cell.bias[: case.cell.hidden_size] = -3.0
    outputs, (h,) = backend(case.cell, case.x, case.state, None, False)
    tiny = torch.finfo(torch.float32).tiny
    assert ((outputs == 0) | (outputs.abs() >= tiny)).all()
    assert not h.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lambda_", [0, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_half_precision(backend, dtype, lambda_, masked):
    skip_without_products(dtype)
    steps = 3 if backend is INTERPRETED else 12
    case = make_case(steps, 4, 16, torch.float32, masked, lambda_=lambda_, eta=1.0)
    if lambda_:
        case.state = (case.state[0], torch.eye(16).repeat(4, 1, 1))
    expected = run(KERNELS["fused"], case)
    half = SimpleNamespace(
        cell=case.cell.to(dtype),
        x=case.x.to(dtype),
        state=tuple(part.to(dtype) for part in case.state),
        mask=case.mask,
    )
    reason = backend.unsupported(half.cell, half.x, half.state, half.mask)
    if reason is not None:
        pytest.skip(reason)
    result = run(backend, half)
    for name, want in expected.items():
        assert result[name].dtype == dtype and torch.isfinite(result[name]).all(), name
        error = (result[name].float() - want).norm() / want.norm()
        # 12 steps of rounding to 8 or 11 bits
        assert error < (0.1 if dtype == torch.bfloat16 else 0.02), f"{name}: off by {error:.1e}"


@pytest.mark.parametrize("lambda_", [0, 1])
def test_autocast(backend, lambda_):
    skip_without_products(torch.bfloat16)
    steps = 3 if backend is INTERPRETED else 10
    case = make_case(steps, 4, 16, torch.float32, lambda_=lambda_, eta=1.0)
    if lambda_:
        case.state = (case.state[0], torch.eye(16).repeat(4, 1, 1))
    expected = run(KERNELS["fused"], case)

    def autocast(function):
        def call(*arguments):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return function(*arguments)

        return call

    with torch.autocast("cpu", dtype=torch.bfloat16):
        reason = backend.unsupported(case.cell, case.x, case.state, None)
    if reason is not None:
        pytest.skip(reason)
    result, plain = run(autocast(backend), case), run(autocast(run_naive), case)
    for name, want in expected.items():
        assert result[name].dtype == plain[name].dtype == torch.float32, name
        error, own = ((value[name] - want).norm() / want.norm() for value in (result, plain))
        assert error < max(0.02, 1.5 * own), f"{name}: off by {error:.1e}, naive by {own:.1e}"


def test_gradcheck_of_fused():
    for lambda_, masked in ((0, True), (1, False)):
        case = make_case(3, 2, 4, masked=masked, lambda_=lambda_, eta=1.0, activation="tanh")
        x = case.x.requires_grad_()
        state = tuple(part.requires_grad_() for part in case.state)

        def function(x, *state, case=case):
            outputs, final = KERNELS["fused"](case.cell, x, state, case.mask, False)
            return (outputs, *final)

        assert torch.autograd.gradcheck(function, (x, *state))


def test_padded_inputs_do_not_get_anywhere():
    case = make_case(5, 3, 4, masked=True, lambda_=1)
    outputs, final = run_naive(case.cell, case.x, case.state, case.mask)
    x = case.x.masked_fill(case.mask.unsqueeze(-1), float("nan"))
    result, result_final = KERNELS["fused"](case.cell, x, case.state, case.mask, False)
    torch.testing.assert_close(result, outputs)
    torch.testing.assert_close(result_final, final)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
@pytest.mark.parametrize("lambda_", [0, 1])
def test_nan_is_not_hidden(backend, lambda_, activation):
    for dtype in (torch.float64, torch.float32):
        case = make_case(3, 2, 4, dtype, lambda_=lambda_, activation=activation)
        # Not the one that operations make, but with bits of its own.
        case.x[0, 1, 0] = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32).item()
        expected, _ = run_naive(case.cell, case.x, case.state)
        outputs, _ = backend(case.cell, case.x, case.state, None, False)
        assert expected.isnan().any() and not expected[1].isnan().any()
        assert torch.equal(outputs.isnan(), expected.isnan())


def test_autocast_around_the_backward_pass_changes_nothing(backend):
    """Of the loop: the projection of the inputs before it may be one of torch's."""
    case = make_case(4, 2, 4, torch.float32, lambda_=1)
    inputs = [case.cell.weight_hh, case.cell.bias]
    loss = backend(case.cell, case.x, case.state, None, False)[0].square().sum()
    expected = torch.autograd.grad(loss, inputs, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(loss, inputs)
    assert all(torch.equal(a, b) for a, b in zip(expected, found))


def test_no_empty_sequence(backend):
    case = make_case(1, 2, 4)
    assert "empty" in backend.unsupported(case.cell, case.x[:, :0], case.state, None)


def test_tracing_is_refused(backend, monkeypatch):
    case = make_case(1, 2, 4)
    assert backend.unsupported(case.cell, case.x, case.state, None) is None
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True, raising=False)
    assert "compile" in backend.unsupported(case.cell, case.x, case.state, None)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False, raising=False)
    monkeypatch.setattr(torch._C, "_get_tracing_state", lambda: object())
    assert "torch.jit" in backend.unsupported(case.cell, case.x, case.state, None)


def test_layer_norm_and_zoneout_are_refused(backend):
    for options in ({"layer_norm": True}, {"zoneout": 0.1}):
        case = make_case(2, 2, 4, **options)
        assert backend.unsupported(case.cell, case.x, case.state, None)


def test_constant_rotation(backend):
    case = make_case(4, 3, 5, rotation_trainable=False)
    assert_same(run(backend, case), run(run_naive, case), TOLERANCE[torch.float64])


def test_layers_in_both_directions(backend):
    skip_if_interpreted(backend)
    name = next(key for key, kernel in KERNELS.items() if kernel is backend)
    rum = RUM(N_X, 6, num_layers=2, bidirectional=True, lambda_=1, backend=name)
    plain = RUM(N_X, 6, num_layers=2, bidirectional=True, lambda_=1, backend="naive")
    plain.load_state_dict(rum.state_dict())
    x = torch.randn(5, 3, N_X)
    for have, want in zip(rum(x)[1], plain(x)[1]):
        torch.testing.assert_close(have, want)


def test_triton_kernels_compile():
    """For a GPU that need not be there: the compiler accepts less than the interpreter."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    script = Path(__file__).with_name("compile_triton.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(script.parent.parent)
    result = subprocess.run(
        [sys.executable, str(script), "90"], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "compiled" in result.stdout


def test_triton_is_taken_for_gpus_alone(monkeypatch):
    if importlib.util.find_spec("triton") is None:
        assert TritonKernel().unavailable() == "triton is not installed"
        return
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    case = make_case(2, 2, 3)
    assert "GPU" in TritonKernel().unsupported(case.cell, case.x, case.state, None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert TritonKernel().unavailable() == "no CUDA GPU"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert TritonKernel().unavailable() is None


class FakeGraph:
    """A CUDA graph on the CPU: capturing runs the block, and so does replaying."""

    block = None

    def replay(self):
        self.block.launch()


@pytest.fixture
def fake_cuda(monkeypatch):
    """The Triton backend in its interpreter, which takes CUDA graphs to be there."""
    if INTERPRETED is None:
        pytest.skip("needs Triton's interpreter")
    kernel = TritonKernel(interpreted=True)
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, value in {
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda device=None: None,
        "Stream": lambda device=None: stream,
        "current_stream": lambda device=None: stream,
        "stream": lambda _: contextlib.nullcontext(),
        "CUDAGraph": FakeGraph,
        "graph": lambda graph, stream: contextlib.nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    make = kernel.block

    def block(kind, key):
        made = make(kind, key)
        made.use_graph = True
        return made

    monkeypatch.setattr(kernel, "block", block)
    return kernel


@pytest.mark.parametrize("lambda_", [0, 1])
def test_capturing_changes_nothing(fake_cuda, monkeypatch, lambda_):
    """The runs that come with capturing leave no trace in what the graph starts from."""
    capture = triton_backend._Block._capture

    def capture_and_aim(block):
        capture(block)
        block.graph.block = block

    monkeypatch.setattr(triton_backend._Block, "_capture", capture_and_aim)
    monkeypatch.setattr(triton_backend, "BLOCK", 2)
    case = make_case(3, 2, 3, lambda_=lambda_, eta=1.0)
    expected = run(run_naive, case)
    for _ in range(2):  # captured, then replayed
        assert_same(run(fake_cuda, case), expected, TOLERANCE[torch.float64])
    assert all(block.graph is not None for block in fake_cuda._blocks.values())


@pytest.mark.parametrize("lambda_", [0, 1])
def test_a_run_before_the_capture_that_fails_leaves_no_trace(fake_cuda, monkeypatch, lambda_):
    launched = []

    def stream(_):  # of the run that takes compiling and the libraries' first calls
        @contextlib.contextmanager
        def fails_at_its_end():
            yield
            launched.append(1)
            raise RuntimeError("out of memory")

        return fails_at_its_end()

    monkeypatch.setattr(torch.cuda, "stream", stream)
    case = make_case(3, 2, 3, lambda_=lambda_, eta=1.0)
    assert_same(run(fake_cuda, case), run(run_naive, case), TOLERANCE[torch.float64])
    assert len(launched) == 2, "forward and backward"


def test_threads_wait_for_each_other(monkeypatch):
    """Blocks of one shape have one set of buffers."""
    if INTERPRETED is None:
        pytest.skip("needs Triton's interpreter")
    kernel, cases = TritonKernel(interpreted=True), [make_case(3, 2, 3) for _ in range(2)]
    cases[1].x = cases[1].x + 1
    results = {}

    def forward(number):
        case = cases[number]
        results[number], _ = kernel(case.cell, case.x, case.state, None, False)

    other = threading.Thread(target=forward, args=(1,))
    plain_run = triton_backend._Block.run

    def run_block(block):
        if threading.current_thread() is not other:
            other.start()
            other.join(0.5)
            assert other.is_alive()
        plain_run(block)

    monkeypatch.setattr(triton_backend._Block, "run", run_block)
    with torch.no_grad():
        forward(0)
    other.join()
    for number, case in enumerate(cases):
        expected, _ = run_naive(case.cell, case.x, case.state)
        torch.testing.assert_close(results[number], expected)


def test_a_failed_capture_is_said_and_done_without(fake_cuda, monkeypatch, caplog):
    def fail(block):
        raise RuntimeError("capturing is not permitted")

    monkeypatch.setattr(triton_backend._Block, "_capture", fail)
    monkeypatch.setattr(triton_backend, "_SAID", set())
    case = make_case(2, 2, 3)
    for _ in range(2):
        expected = run(run_naive, case)
        assert_same(run(fake_cuda, case), expected, TOLERANCE[torch.float64])
    said = [message for message in caplog.messages if "capturing is not permitted" in message]
    assert len(said) == 1
