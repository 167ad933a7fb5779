"""What only the C++ backend has: instruction sets, chunks, threads, a build that may fail.

What it shares with the other backends is in test_rum_kernels.py.
"""

import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from fairseq_rum.cells import RUMCell
from fairseq_rum.errors import InputError
from fairseq_rum.kernels import check_backend, run_sequence
from fairseq_rum.kernels.naive import run_naive
from fairseq_rum.kernels.rum import KERNELS, cpp
from fairseq_rum.kernels.rum.base import RumKernel, RumSettings

ROOT = Path(__file__).resolve().parent.parent
KERNEL = KERNELS["cpp"]
needs_extension = pytest.mark.skipif(
    KERNEL.unavailable() is not None, reason=str(KERNEL.unavailable())
)


def extension():
    return cpp._module


def instruction_sets():
    if KERNEL.unavailable() is not None:
        return ["none"]
    best = extension().instruction_set()
    return ["baseline", "avx2", "avx512"][: ["baseline", "avx2", "avx512"].index(best) + 1]


@pytest.fixture
def instruction_set(request):
    before = extension().instruction_set()
    extension().set_instruction_set(request.param)
    yield request.param
    extension().set_instruction_set(before)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def projected_first(cell, x, state, mask, reverse):
    """Through ``sequence``, as a cell with a projection of its own would."""
    return RumKernel.__call__(KERNEL, cell, x, state, mask, reverse)


def make_case(steps, batch, n, n_x=3, dtype=torch.float64, masked=False, **options):
    cell = RUMCell(n_x, n, **options).to(dtype)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x = torch.randn(batch, steps, n_x, dtype=dtype)
    state = [torch.randn(batch, n, dtype=dtype)]
    if cell.lambda_:
        state.append(torch.eye(n, dtype=dtype) + 0.2 * torch.randn(batch, n, n, dtype=dtype))
    return cell, x, tuple(state), torch.rand(batch, steps) < 0.3 if masked else None


def run(function, case, reverse=False):
    """Outputs, final state and all gradients."""
    cell, x, state, mask = case
    x = x.detach().clone().requires_grad_()
    state = tuple(part.detach().clone().requires_grad_() for part in state)
    outputs, final = function(cell, x, state, mask, reverse)
    generator = torch.Generator().manual_seed(3)
    loss = sum(
        (part * torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part)).sum()
        for part in (outputs, *final)
    )
    inputs = [x, *state, *cell.parameters()]
    return [part.detach() for part in (outputs, *final, *torch.autograd.grad(loss, inputs))]


def errors(results, expected):
    """The error of every tensor, relative to its largest entry where that exceeds 1."""
    return [
        (
            (have.double() - want.double()).abs().max() / want.double().abs().max().clamp_min(1)
        ).item()
        for have, want in zip(results, expected)
    ]


def assert_same(results, expected, tolerance):
    assert len(results) == len(expected)
    assert max(errors(results, expected)) <= tolerance


# lambda, eta, activation, update gate, mask, reverse
SETTINGS = [
    (0, None, "relu", True, False, False),
    (0, 1.0, "tanh", True, True, True),
    (0, None, "sigmoid", False, True, False),
    (0, 0.7, "softsign", True, False, True),
    (1, None, "relu", True, False, True),
    (1, 1.0, "none", False, True, False),
    (1, None, "sigmoid", True, True, True),
]


@needs_extension
@pytest.mark.parametrize("instruction_set", instruction_sets(), indirect=True)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s)))
@pytest.mark.parametrize("function", [KERNEL, projected_first], ids=["whole", "projected"])
def test_instruction_sets(instruction_set, settings, function):
    lambda_, eta, activation, update_gate, masked, reverse = settings
    options = {
        "lambda_": lambda_, "eta": eta, "activation": activation, "update_gate": update_gate
    }  # fmt: skip
    for size in ((4, 5, 17), (3, 1, 8), (1, 40, 33)):
        case = make_case(*size, masked=masked, **options)
        expected = run(run_naive, case, reverse)
        assert_same(run(function, case, reverse), expected, 1e-10)
        single = (case[0].float(), case[1].float(), tuple(p.float() for p in case[2]), case[3])
        # float32: no less exact than the plain loop, but for the order of sums.
        plain = errors(run(run_naive, single, reverse), expected)
        have = errors(run(function, single, reverse), expected)
        for ours, theirs in zip(have, plain):
            assert ours <= 10 * theirs + 1e-5


@needs_extension
@pytest.mark.parametrize("instruction_set", instruction_sets(), indirect=True)
@pytest.mark.parametrize("lambda_, reverse, masked", itertools.product((0, 1), (0, 1), (0, 1)))
def test_several_chunks_of_steps(instruction_set, lambda_, reverse, masked):
    """More than the backward pass takes at a time: 1024 rows, or 32 steps for lambda = 1."""
    for steps, batch in ((70, 3), (9, 400)) if not lambda_ else ((70, 3),):
        case = make_case(steps, batch, 5, masked=bool(masked), lambda_=lambda_, eta=1.0)
        assert_same(run(KERNEL, case, bool(reverse)), run(run_naive, case, bool(reverse)), 1e-9)


@needs_extension
@pytest.mark.parametrize("lambda_", [0, 1])
def test_results_do_not_depend_on_threads_at_all(threads, lambda_):
    case = make_case(20, 37, 50, dtype=torch.float32, lambda_=lambda_)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(run(KERNEL, case))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


@needs_extension
@pytest.mark.parametrize("lambda_", [0, 1])
@pytest.mark.parametrize("n", [1, 2, 3, 17, 50, 250])
def test_one_step_without_gradients(n, lambda_):
    """Few rows go through products of their own; many steps through packed weights."""
    for batch, steps in ((1, 1), (4, 1), (7, 2), (65, 1)):
        for masked in (False, True):
            cell, x, state, mask = make_case(
                steps, batch, n, n_x=5, masked=masked, lambda_=lambda_, eta=1.0
            )
            with torch.no_grad():
                outputs, final = KERNEL(cell, x, state, mask, False)
                wanted, wanted_final = run_naive(cell, x, state, mask, False)
            assert_same([outputs, *final], [wanted, *wanted_final], 1e-11)
            kept = [part.clone() for part in state]
            assert all(torch.equal(a, b) for a, b in zip(kept, state))


@needs_extension
@pytest.mark.parametrize("lambda_", [0, 1])
def test_layouts_of_inputs_and_gradients(lambda_):
    cell, x, state, _ = make_case(6, 4, 5, lambda_=lambda_)
    spread = torch.stack([x, x], -1)[..., 0]
    assert spread.stride(-1) == 2
    time_first = x.transpose(0, 1).contiguous().transpose(0, 1)
    for other in (spread, time_first):
        assert_same(
            run(KERNEL, (cell, other, state, None)), run(run_naive, (cell, x, state, None)), 1e-10
        )
    results = []
    for function in (KERNEL, run_naive):
        for weigh in (
            lambda o: o.sum(),
            lambda o: o[:, 2].square().sum(),
            lambda o: (o.transpose(1, 2).contiguous() * torch.arange(6.0)).sum(),
            lambda o: o[..., 3].sum(),
        ):
            loss = weigh(function(cell, x, state, None, False)[0])
            results.append(torch.autograd.grad(loss, list(cell.parameters())))
    for have, want in zip(results[:4], results[4:]):
        assert_same(have, want, 1e-10)


@needs_extension
def test_empty_batch():
    cell, x, state, _ = make_case(3, 0, 4, lambda_=1)
    outputs, (h, memory) = KERNEL(cell, x, state, None, False)
    assert outputs.shape == (0, 3, 4) and h.shape == (0, 4) and memory.shape == (0, 4, 4)
    outputs.sum().backward()
    assert not cell.weight_hh.grad.any()


@needs_extension
@pytest.mark.parametrize("instruction_set", instruction_sets(), indirect=True)
@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "softsign", "none"])
def test_functions_in_single_precision(instruction_set, activation):
    """sigmoid and tanh to a few units in the last place, at the ends of the range too."""
    z = torch.cat([
        torch.linspace(-12, 12, 20001), torch.logspace(-20, 4, 2001), -torch.logspace(-20, 4, 2001),
        torch.tensor([0.0, torch.inf, -torch.inf, torch.nan]),
    ])  # fmt: skip
    function = RUMCell(1, 1, activation=activation)._f
    settings = RumSettings(0, None, activation, True)

    def new_state(gate, embedded, h):
        """N = 1 turns nothing: u h + (1 - u) f(e + h)."""
        projected = torch.stack([torch.ones_like(z), gate, embedded], 1).unsqueeze(0)
        state = torch.full((len(z), 1), h)
        return KERNEL.sequence(projected, state, None, torch.zeros(2, 1), None, False, settings)[1]

    limits = {"rtol": 5e-7, "atol": 1e-30, "equal_nan": True}  # four units in the last place
    bounded = z.nan_to_num(nan=torch.nan)  # an infinite e has no direction
    have = new_state(torch.full_like(z, -torch.inf), bounded, 0.0).flatten()
    torch.testing.assert_close(have.double(), function(bounded.double()), **limits)
    have = new_state(z, torch.zeros_like(z), 1.0).flatten()
    u = torch.sigmoid(z.double())
    at_one = function(torch.ones(1).double())
    torch.testing.assert_close(have.double(), u + (1 - u) * at_one, **limits)


@needs_extension
def test_what_is_not_covered():
    cell, x, state, _ = make_case(3, 2, 4, dtype=torch.float32)
    assert KERNEL.unsupported(cell, x, state, None) is None
    assert "float16" in KERNEL.unsupported(cell.half(), x.half(), state, None)
    assert "float64" in KERNEL.unsupported(cell.float(), x.double(), state, None)
    assert "empty" in KERNEL.unsupported(cell, x[:, :0], state, None)
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast" in KERNEL.unsupported(cell, x, state, None)


@needs_extension
def test_numbers_that_torch_negates_when_it_reads_them():
    cell, x, state, _ = make_case(3, 2, 4)
    turned = [torch.complex(torch.zeros_like(t), -t).conj().imag for t in (x, *state)]
    assert all(t.is_neg() for t in turned)
    outputs, _ = KERNEL(cell, turned[0], tuple(turned[1:]), None, False)
    torch.testing.assert_close(outputs, run_naive(cell, x, state)[0])


@needs_extension
def test_unknown_instruction_set():
    with pytest.raises(ValueError, match="sse9"):
        extension().set_instruction_set("sse9")


@pytest.fixture
def no_extension(monkeypatch, tmp_path):
    """The backend as in an installation that has no extension; the note of the build is given."""
    note = tmp_path / "note.txt"
    monkeypatch.setattr(cpp, "_module", None)
    monkeypatch.setattr(cpp, "_reason", None)
    monkeypatch.setattr(cpp, "BUILD_NOTE", note)
    monkeypatch.setattr(cpp, "EXTENSION", "fairseq_rum._not_there")
    return note


def test_without_the_extension(no_extension):
    cell = RUMCell(3, 4)
    x = torch.randn(2, 5, 3)
    no_extension.write_text("the build failed: no compiler\n")
    assert KERNEL.unavailable().endswith("is not built: the build failed: no compiler")
    with pytest.raises(InputError, match="no compiler"):
        check_backend("rum", "cpp")
    with pytest.raises(InputError, match="no compiler"):
        run_sequence(cell, x, cell.init_state(2), backend="cpp")
    outputs, _ = run_sequence(cell, x, cell.init_state(2))
    torch.testing.assert_close(outputs, run_naive(cell, x, cell.init_state(2))[0])


def test_an_extension_that_does_not_load(no_extension, monkeypatch):
    def fail(name):
        raise ImportError("undefined symbol: _ZN3c10")

    monkeypatch.setattr(cpp.importlib, "import_module", fail)
    assert "failed to import (undefined symbol" in KERNEL.unavailable()


def build(tmp_path, **environment):
    """``setup.py build_ext`` into another folder: what it says, and its note."""
    variables = {**os.environ, **environment}
    folders = ["--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "temp")]
    result = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", *folders],
        cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    note = tmp_path / "lib" / "fairseq_rum" / "_C.not_built.txt"
    return result.stderr, note.read_text() if note.exists() else None


def test_a_failing_build_is_a_note(tmp_path):
    said, note = build(tmp_path, CC="false", CXX="false")
    assert "fairseq_rum: no C++ backend, the build failed" in said
    assert note.startswith("the build failed")
    assert not list(tmp_path.glob("lib/**/*.so"))


def test_a_build_without_torch_is_a_note(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('hidden')\n")
    said, note = build(tmp_path, PYTHONPATH=str(tmp_path))
    assert "--no-build-isolation" in said and "--no-build-isolation" in note


def test_a_torch_that_is_broken_is_a_note(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so: no such file')\n")
    said, note = build(tmp_path, PYTHONPATH=str(tmp_path))
    assert "torch cannot be imported: libcudart.so: no such file" in note and note.strip() in said


def test_a_failing_build_in_place_leaves_no_older_extension(tmp_path):
    """It would be of other sources, or for another torch."""
    package = tmp_path / "fairseq_rum"
    package.mkdir()
    for name in ("setup.py", "fairseq_rum/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    older = package / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    older.write_bytes(b"")
    command = [sys.executable, str(tmp_path / "setup.py"), "-q", "build_ext", "--inplace"]
    (tmp_path / "torch.py").write_text("raise ImportError('hidden')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=300)
    assert not older.exists() and (package / "_C.not_built.txt").exists()


def test_no_build_when_told_so(tmp_path):
    said, note = build(tmp_path, FAIRSEQ_RUM_NO_EXT="1")
    assert note is None and not list(tmp_path.glob("lib/**/*.so"))
