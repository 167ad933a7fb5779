"""Units with a memory matrix: fast weights and WeiNet, as a matrix and as attention."""

import pytest
import torch

from fairseq_rum.cells import build_cell
from fairseq_rum.kernels import run_sequence

N = 6


def make(unit, **options):
    cell = build_cell(unit, 3, N, **options).double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return cell


UNITS = [
    ("fast_weights", {}),
    ("fast_weights", {"inner_steps": 3, "decay": 0.8, "eta": 0.7}),
    ("fast_weights", {"decay": 1.0}),
    ("weinet", {}),
]


@pytest.mark.parametrize(("unit", "options"), UNITS)
@pytest.mark.parametrize("steps", [2, 5, N, N + 1, 20])
@pytest.mark.parametrize("start", ["zero", "given"])
@pytest.mark.parametrize("reverse", [False, True])
def test_attention_is_the_matrix(unit, options, steps, start, reverse):
    """Outputs, final state and all gradients; within a stretch of N steps and past its end."""
    cell = make(unit, **options)
    x = torch.randn(4, steps, 3, dtype=torch.float64, requires_grad=True)
    state = cell.init_state(4)
    if start == "given":
        state = tuple(0.5 * torch.randn_like(s) for s in state)
        state = tuple(s.requires_grad_() for s in state)
    weights = [torch.randn_like(s) for s in (torch.empty(4, steps, N).double(), *state)]
    inputs = [x, *cell.parameters(), *(state if start == "given" else ())]
    results = []
    for backend in ("naive", "fused"):
        outputs, final = run_sequence(cell, x, state, None, reverse, backend)
        loss = sum((w * v).sum() for w, v in zip(weights, (outputs, *final)))
        results.append((outputs, *final, *torch.autograd.grad(loss, inputs)))
    for naive, fused in zip(*results):
        torch.testing.assert_close(fused, naive, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("unit", ["fast_weights", "weinet"])
def test_gradients_of_the_attention_form(unit):
    cell = make(unit)
    names = [name for name, _ in cell.named_parameters()]
    x = torch.randn(2, N + 2, 3, dtype=torch.float64, requires_grad=True)
    state = [torch.randn_like(s).requires_grad_() for s in cell.init_state(2)]

    class Loop(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, x, *state):
            outputs, final = run_sequence(self.cell, x, state, backend="fused")
            return (outputs, *final)

    def run(x, h, memory, *values):
        parameters = {f"cell.{name}": value for name, value in zip(names, values)}
        return torch.func.functional_call(Loop(), parameters, (x, h, memory))

    values = [p.detach().clone().requires_grad_() for p in cell.parameters()]
    assert torch.autograd.gradcheck(run, (x, *state, *values), fast_mode=True)


def test_single_precision_of_long_attention():
    """Long sequences, where the forget gates' product is far below float32's range."""
    for unit in ("fast_weights", "weinet"):
        cell = build_cell(unit, 3, 40).float()
        x = torch.randn(3, 300, 3)
        fused, final = run_sequence(cell, x, cell.init_state(3), backend="fused")
        cell.double()
        exact, last = run_sequence(cell, x.double(), cell.init_state(3), backend="naive")
        assert (fused - exact).abs().mean() < 1e-3 and final[1].isfinite().all()


def normalize(v):
    return (v - v.mean(-1, keepdim=True)) / (v.var(-1, unbiased=False, keepdim=True) + 1e-3).sqrt()


def test_fast_weights_is_its_equations():
    cell = make("fast_weights", decay=0.9, eta=0.4, inner_steps=2)
    state = tuple(torch.randn_like(s) for s in cell.init_state(2))
    x = torch.randn(2, 3, dtype=torch.float64)
    output, (h, memory) = cell(x, state)
    slow = x @ cell.weight_ih.t() + cell.bias + state[0] @ cell.weight_hh.t()
    y = slow.relu()
    for _ in range(2):
        y = slow + torch.einsum("bij,bj->bi", state[1], y)
        y = (normalize(y) * cell.norm_gain + cell.norm_shift).relu()
    torch.testing.assert_close(output, y)
    torch.testing.assert_close(memory, 0.9 * state[1] + 0.4 * torch.einsum("bi,bj->bij", y, y))


def test_weinet_is_its_equations():
    cell = make("weinet")
    state = tuple(torch.randn_like(s) for s in cell.init_state(2))
    x = torch.randn(2, 3, dtype=torch.float64)
    output, (h, memory) = cell(x, state)
    sums = x @ cell.weight_ih.t() + cell.bias + state[0] @ cell.weight_hh.t()
    slow, i, j, f = sums.split((N, N, N, 1), -1)
    y = slow + torch.einsum("bij,bj->bi", state[1], slow.relu())
    y = (normalize(y) * cell.norm_gain + cell.norm_shift).relu()
    torch.testing.assert_close(output, y)
    w_v, w_k = cell.weight_memory.chunk(2)
    stored, key = i.sigmoid() * (y @ w_v.t()), j.sigmoid() * (y @ w_k.t())
    expected = f.sigmoid().unsqueeze(-1) * state[1] + torch.einsum("bi,bj->bij", stored, key)
    torch.testing.assert_close(memory, expected)


def test_weinet_starts_near_fast_weights():
    """The update begins as 0.95 A + 0.5 h h', for any input."""
    cell = build_cell("weinet", 3, N)
    h, memory = torch.rand(2, N), torch.randn(2, N, N)
    _, (new, updated) = cell(torch.randn(2, 3), (h, memory))
    expected = 0.95 * memory + 0.5 * torch.einsum("bi,bj->bij", new, new)
    torch.testing.assert_close(updated, expected, rtol=0.03, atol=0.03)


def test_initialization_of_fast_weights():
    cell = build_cell("fast_weights", 3, 16)
    torch.testing.assert_close(cell.weight_hh, 0.05 * torch.eye(16))
    assert cell.weight_ih.abs().max() <= 0.25 and cell.weight_ih.std() > 0.1
    assert (cell.bias == 0).all()


@pytest.mark.parametrize("unit", ["fast_weights", "weinet"])
def test_second_derivative_of_the_attention_form_is_refused(unit):
    cell = make(unit)
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    outputs, _ = run_sequence(cell, x, cell.init_state(2), backend="fused")
    (gradient,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="naive"):
        (outputs.sum() + gradient.square().sum()).backward()


@pytest.mark.parametrize("unit", ["fast_weights", "weinet"])
def test_calls_that_take_the_matrix_form(unit):
    cell = build_cell(unit, 3, N)
    x = torch.randn(2, 4, 3)
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[1, 2:] = True
    outputs, _ = run_sequence(cell, x, cell.init_state(2), mask, backend="auto")
    assert (outputs[1, 2:] == 0).all()
    single, _ = run_sequence(cell, x[:, :1], cell.init_state(2))
    torch.testing.assert_close(single, outputs[:, :1])
