"""Half precision: what is computed in float32 inside, and that nothing becomes NaN."""

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import USER_DIR, run_fairseq
from test_kill_resume import MODELS
from test_language_model import parameters, train_arguments

from fairseq_rum.cells import build_cell, registered_cells
from fairseq_rum.functional import block_layer_norm, compose_rotation, rotate, time_normalize
from fairseq_rum.kernels import run_sequence

HALF = [torch.bfloat16, torch.float16]
B, T, N_X, N = 3, 6, 16, 256
CASES = {
    **{unit: (unit, {}) for unit in registered_cells()},
    "rum lambda": ("rum", {"lambda_": 1}),
    "rum eta": ("rum", {"lambda_": 1, "eta": 1.0}),
    "rum layer norm": ("rum", {"layer_norm": True}),
    "lstm layer norm": ("lstm", {"layer_norm": True}),
}
all_units = pytest.mark.parametrize("unit, options", CASES.values(), ids=CASES)
all_halves = pytest.mark.parametrize("dtype", HALF)


def run(unit, options, dtype, autocast):
    """Outputs, final h, and gradients of a unit of N = 256."""
    torch.manual_seed(1)
    cell = build_cell(unit, N_X, N, **options)
    x = torch.randn(B, T, N_X)
    if autocast:
        with torch.autocast("cpu", dtype):
            outputs, final = run_sequence(cell, x, cell.init_state(B))
    else:
        cell = cell.to(dtype)
        outputs, final = run_sequence(cell, x.to(dtype), cell.init_state(B))
    outputs.float().square().sum().backward()
    return outputs.detach(), final[0].detach(), [p.grad for p in cell.parameters()]


@all_units
@all_halves
def test_autocast_rounds_and_no_more(unit, options, dtype):
    exact, _, _ = run(unit, options, torch.float32, autocast=False)
    outputs, _, gradients = run(unit, options, dtype, autocast=True)
    assert outputs.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    # A rounding of 8 or 11 bits in each product, over six steps.
    bound = 16 * torch.finfo(dtype).eps
    assert (outputs - exact).norm() < bound * exact.norm()


@all_units
def test_layers_in_bfloat16(unit, options):
    exact, _, _ = run(unit, options, torch.float32, autocast=False)
    outputs, _, gradients = run(unit, options, torch.bfloat16, autocast=False)
    assert outputs.dtype == torch.bfloat16 and outputs.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    bound = 16 * torch.finfo(torch.bfloat16).eps
    assert (outputs - exact).norm() < bound * exact.norm()


@all_halves
def test_the_norm_is_kept_to_float32_accuracy_under_autocast(dtype):
    outputs, h, _ = run("rum", {"lambda_": 1, "eta": 2.0}, dtype, autocast=True)
    assert h.dtype == torch.float32
    assert (outputs.float().norm(dim=-1) - 2).abs().max() < 2e-6
    assert (h.norm(dim=-1) - 2).abs().max() < 2e-6


def half(*shape, dtype):
    return torch.randn(*shape).to(dtype)


@all_halves
def test_what_is_computed_in_float32(dtype):
    """The result is that of float32 on the same numbers, rounded once."""
    a, b, v = (half(B, N, dtype=dtype) for _ in range(3))
    memory, gain, shift = half(B, N, N, dtype=dtype), half(N, dtype=dtype), half(N, dtype=dtype)
    for function, arguments in (
        (rotate, (a, b, v)),
        (compose_rotation, (memory, a, b)),
        (lambda h: time_normalize(h, 3.0), (v,)),
        (lambda x, g, s: block_layer_norm(x, 1, g, s), (v, gain, shift)),
        (lambda x: F.softmax(x, -1), (v,)),
        (lambda x: F.log_softmax(x, -1), (v,)),
    ):
        found = function(*arguments)
        expected = function(*(argument.float() for argument in arguments))
        assert found.dtype == dtype
        spacing = torch.finfo(dtype).eps * expected.abs().clamp_min(torch.finfo(dtype).tiny)
        assert ((found.float() - expected).abs() <= spacing).all()


def test_amp_is_float32_on_the_cpu(char_data, tmp_path):
    """fairseq's --amp asks CUDA for autocast and for scaling, and gets neither."""
    for folder, extra in (("plain", []), ("amp", ["--amp"])):
        run_fairseq("train", *train_arguments(char_data, tmp_path / folder, "--max-update", 3,
                                              "--disable-validation", *extra))  # fmt: skip
    plain, amp = (parameters(tmp_path / f / "checkpoint_last.pt") for f in ("plain", "amp"))
    assert plain.keys() == amp.keys() and all(torch.equal(plain[k], amp[k]) for k in plain)


@pytest.mark.soak
@all_halves
@pytest.mark.parametrize("name", ["copying", "rum_lm"])
def test_two_thousand_updates_under_autocast(char_data, tmp_path, fairseq_log, name, dtype):
    """No NaN, which would end the run, and the loss falls."""
    command = [*MODELS[name], "--rum-eta", 1] if name == "copying" else [char_data, *MODELS[name]]
    # A weight that has been cast would be kept over updates.
    with torch.autocast("cpu", dtype, cache_enabled=False):
        run_fairseq(
            "train", *command, "--user-dir", USER_DIR, "--cpu", "--num-workers", 0, "--no-save",
            "--max-update", 2000, "--disable-validation", "--log-interval", 100, "--clip-norm", 1,
            "--save-dir", tmp_path, "--log-format", "json",
        )  # fmt: skip
    from fairseq_rum.data.training_log import parse_line

    rows = [parse_line(r.getMessage())[1] for r in fairseq_log.records if r.name == "train_inner"]
    losses = [row["loss"] for row in rows]
    assert len(losses) == 20 and all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]
