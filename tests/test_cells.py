"""One contract for all units."""

import copy
import inspect
import math
import pickle
import threading

import pytest
import torch

from fairseq_rum.cells import build_cell, get_cell, registered_cells
from fairseq_rum.errors import InputError
from fairseq_rum.kernels import run_sequence
from fairseq_rum.kernels.naive import run_naive
from fairseq_rum.layers import RNN, RecurrentLayer

N_X, N, B, T = 5, 6, 4, 7


def neighbour_pairs(n, capacity=2):
    return capacity // 2 * (n // 2 + (n - 1) // 2)


def fft_pairs(n):
    """Pairs (i, i + d) with bit d of i clear, counted one by one."""
    total, distance = 0, 1
    while distance < n:
        total += sum(1 for i in range(n - distance) if not i & distance)
        distance *= 2
    return total


# Unit, options, and the number of parameters as a function of N_x and N.
CASES = [
    ("rum", {}, lambda x, n: 3 * n * x + 2 * n * n + 3 * n),
    ("rum", {"lambda_": 1, "eta": 1.0}, lambda x, n: 3 * n * x + 2 * n * n + 3 * n),
    ("rum", {"update_gate": False, "bias": False}, lambda x, n: 2 * n * x + n * n),
    ("rum", {"activation": "tanh", "layer_norm": True}, lambda x, n: 3 * n * x + 2 * n * n + 9 * n),
    (
        "rum",
        {"layer_norm": True, "layer_norm_gate": "after", "lambda_": 1},
        lambda x, n: 3 * n * x + 2 * n * n + 9 * n,
    ),
    ("rum", {"layer_norm": True, "update_gate": False}, lambda x, n: 2 * n * x + n * n + 6 * n),
    ("rum", {"rotation_trainable": False, "lambda_": 1}, lambda x, n: n * x + n * n + n),
    ("rum", {"rotation_trainable": False, "bias": False}, lambda x, n: n * x + n * n),
    ("lstm", {}, lambda x, n: 4 * n * x + 4 * n * n + 8 * n),
    ("lstm", {"bias": False}, lambda x, n: 4 * n * x + 4 * n * n),
    ("lstm", {"layer_norm": True}, lambda x, n: 4 * n * x + 4 * n * n + 18 * n),
    ("gru", {}, lambda x, n: 3 * n * x + 3 * n * n + 6 * n),
    ("gru", {"layer_norm": True, "bias": False}, lambda x, n: 3 * n * x + 3 * n * n + 6 * n),
    ("urnn", {}, lambda x, n: 2 * n * x + 3 * n + 2 * n * n),
    ("eurnn", {}, lambda x, n: 2 * n * x + 2 * n + 2 * neighbour_pairs(n)),
    ("eurnn", {"capacity": 4}, lambda x, n: 2 * n * x + 2 * n + 2 * neighbour_pairs(n, 4)),
    ("eurnn", {"field": "real"}, lambda x, n: n * x + n + neighbour_pairs(n)),
    ("eurnn", {"fft": True}, lambda x, n: 2 * n * x + 2 * n + 2 * fft_pairs(n)),
    ("goru", {}, lambda x, n: 3 * n * x + 2 * n * n + 3 * n + neighbour_pairs(n)),
    ("goru", {"fft": True}, lambda x, n: 3 * n * x + 2 * n * n + 3 * n + fft_pairs(n)),
    ("fast_weights", {}, lambda x, n: n * x + n * n + 3 * n),
    ("fast_weights", {"inner_steps": 3, "decay": 0.9}, lambda x, n: n * x + n * n + 3 * n),
    ("weinet", {}, lambda x, n: (3 * n + 1) * (x + n + 1) + 2 * n * n + 2 * n),
]
NOISY = [
    ("rum", {"zoneout": 0.3, "eta": 1.0}, None),
    ("lstm", {"zoneout": 0.3, "zoneout_cell": 0.2}, None),
    ("gru", {"zoneout": 0.3}, None),
]


def name_of(case):
    return "-".join([case[0], *(f"{key}={value}" for key, value in case[1].items())])


def all_cases(cases=CASES):
    return pytest.mark.parametrize(
        ("unit", "options", "count"), cases, ids=[name_of(case) for case in cases]
    )


def make(unit, options, dtype=torch.float64, n_x=N_X, n=N):
    cell = build_cell(unit, n_x, n, **options).to(dtype)
    with torch.no_grad():
        for parameter in cell.parameters():
            # Away from the initial values, where gates may be all alike and inputs near zero.
            parameter.add_(0.3 * torch.randn_like(parameter))
    return cell


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_every_unit_is_in_the_contract():
    tested = {case[0] for case in CASES}
    missing = set(registered_cells()) - tested - {"fast_slow"}  # made of other units: see its tests
    assert not missing, f"add {missing} to CASES"


@all_cases()
def test_parameter_count(unit, options, count):
    for n_x, n in ((3, 8), (7, 13), (26, 50)):
        cell = build_cell(unit, n_x, n, **options)
        assert sum(p.numel() for p in cell.parameters()) == count(n_x, n)


@all_cases(CASES + NOISY)
def test_shapes(unit, options, count):
    cell = make(unit, options)
    assert cell.unit == unit
    assert next(iter(cell.state_shapes)) == "h"
    assert cell.state_shapes["h"] == (N,)
    state = cell.init_state(B)
    assert isinstance(state, tuple)
    assert [s.shape for s in state] == [(B, *shape) for shape in cell.state_shapes.values()]
    x = torch.randn(B, N_X, dtype=torch.float64)
    output, new = cell(x)
    assert output.shape == (B, N) and not output.is_complex()
    assert isinstance(new, tuple)
    assert [s.shape for s in new] == [s.shape for s in state]
    assert all(s.dtype == torch.float64 for s in (output, *new))
    close(new[0], output)
    stepped, _ = cell.step(cell.project_input(x), state)
    if (unit, options, count) not in NOISY:
        close(stepped, output)


@all_cases()
def test_the_loop_is_the_steps(unit, options, count):
    cell = make(unit, options)
    x = torch.randn(B, T, N_X, dtype=torch.float64)
    outputs, final = run_sequence(cell, x, cell.init_state(B))
    state, expected = cell.init_state(B), []
    for t in range(T):
        output, state = cell(x[:, t], state)
        expected.append(output)
    close(outputs, torch.stack(expected, 1))
    for got, want in zip(final, state):
        close(got, want)


@all_cases()
def test_rows_are_independent(unit, options, count):
    cell = make(unit, options)
    x = torch.randn(B, T, N_X, dtype=torch.float64)
    order = torch.tensor([2, 0, 3, 1])
    outputs, final = run_sequence(cell, x, cell.init_state(B))
    permuted, final_permuted = run_sequence(cell, x[order], cell.init_state(B))
    close(permuted, outputs[order])
    for a, b in zip(final_permuted, final):
        close(a, b.index_select(0, order))
    alone, _ = run_sequence(cell, x[1:2], cell.init_state(1))
    close(alone, outputs[1:2])


@all_cases()
@pytest.mark.parametrize("reverse", [False, True])
def test_padding(unit, options, count, reverse):
    cell = make(unit, options)
    x = torch.randn(B, T, N_X, dtype=torch.float64)
    mask = torch.zeros(B, T, dtype=torch.bool)
    lengths = [7, 4, 1, 6]
    for row, length in enumerate(lengths):
        mask[row, length:] = True
    x[mask] = 100.0
    outputs, final = run_sequence(cell, x, cell.init_state(B), mask, reverse)
    assert (outputs[mask] == 0).all()
    for row, length in enumerate(lengths):
        alone, last = run_naive(cell, x[row : row + 1, :length], cell.init_state(1), None, reverse)
        close(outputs[row : row + 1, :length], alone)
        for got, want in zip(final, last):
            close(got[row : row + 1], want)


@all_cases()
def test_state_carry(unit, options, count):
    cell = make(unit, options)
    x = torch.randn(B, T, N_X, dtype=torch.float64)
    whole, final = run_sequence(cell, x, cell.init_state(B))
    first, state = run_sequence(cell, x[:, :3], cell.init_state(B))
    second, last = run_sequence(cell, x[:, 3:], state)
    close(torch.cat((first, second), 1), whole)
    for a, b in zip(last, final):
        close(a, b)


@all_cases()
def test_reverse(unit, options, count):
    cell = make(unit, options)
    x = torch.randn(B, T, N_X, dtype=torch.float64)
    forward, final = run_sequence(cell, x.flip(1), cell.init_state(B))
    backward, last = run_sequence(cell, x, cell.init_state(B), reverse=True)
    close(backward, forward.flip(1))
    for a, b in zip(last, final):
        close(a, b)


@all_cases(CASES + NOISY)
def test_single_and_half_precision(unit, options, count):
    cell = make(unit, options).eval()
    x = torch.randn(B, T, N_X, dtype=torch.float64)
    exact, _ = run_sequence(cell, x, cell.init_state(B))
    cell.float()
    single, final = run_sequence(cell, x.float(), cell.init_state(B))
    assert single.dtype == torch.float32
    assert all(s.dtype == torch.float32 for s in final)
    # modReLU with a positive bias jumps at zero: an error there isn't one of the precision.
    torch.testing.assert_close(single.double(), exact, rtol=1e-3, atol=1e-3)
    cell.bfloat16()
    half, final = run_sequence(cell, x.bfloat16(), cell.init_state(B))
    assert half.dtype == torch.bfloat16 and half.isfinite().all()
    assert all(s.dtype == torch.bfloat16 for s in final)
    half.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in cell.parameters())


@all_cases(CASES + NOISY)
@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_autocast(unit, options, count, backend):
    cell = make(unit, options, torch.float32)
    x = torch.randn(B, T, N_X)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = run_sequence(cell, x, cell.init_state(B), backend=backend)
    outputs.float().square().sum().backward()
    assert outputs.isfinite().all()
    for parameter in cell.parameters():
        assert parameter.grad.dtype == torch.float32 and parameter.grad.isfinite().all()


@all_cases(CASES + NOISY)
def test_pickle_and_deepcopy(unit, options, count):
    cell = make(unit, options).eval()
    x = torch.randn(B, T, N_X, dtype=torch.float64)
    outputs, _ = run_sequence(cell, x, cell.init_state(B))
    rebuilt = build_cell(unit, N_X, N, **options).double().eval()
    rebuilt.load_state_dict(cell.state_dict())
    for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell)), rebuilt):
        again, _ = run_sequence(other, x, other.init_state(B))
        assert torch.equal(again, outputs)
        assert [n for n, _ in other.named_parameters()] == [n for n, _ in cell.named_parameters()]
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
    assert torch.equal(run_sequence(cell, x, cell.init_state(B))[0], outputs)


@all_cases()
def test_gradients(unit, options, count):
    cell = make(unit, options, n_x=2, n=4)
    names = [name for name, _ in cell.named_parameters()]
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    state = [torch.randn_like(s).requires_grad_() for s in cell.init_state(2)]

    def run(x, *rest):
        state, values = rest[: len(cell.state_shapes)], rest[len(cell.state_shapes) :]

        class Loop(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = cell

            def forward(self, x, state):
                outputs, final = run_sequence(self.cell, x, state)
                return (outputs, *final)

        parameters = {f"cell.{name}": value for name, value in zip(names, values)}
        return torch.func.functional_call(Loop(), parameters, (x, state))

    values = [p.detach().clone().requires_grad_() for p in cell.parameters()]
    assert torch.autograd.gradcheck(run, (x, *state, *values))


@all_cases()
def test_every_parameter_learns(unit, options, count):
    cell = make(unit, options, dtype=torch.float32)
    outputs, _ = run_sequence(cell, torch.randn(B, T, N_X), cell.init_state(B))
    outputs.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in cell.parameters())


@all_cases()
def test_as_a_layer_and_as_a_drop_in(unit, options, count):
    cell = make(unit, options)
    outputs, final = RecurrentLayer(cell)(torch.randn(B, T, N_X, dtype=torch.float64))
    assert outputs.shape == (B, T, N)
    rnn = RNN(unit, N_X, N, num_layers=2, bidirectional=True, batch_first=True, **options)
    output, hidden = rnn(torch.randn(B, T, N_X))
    assert output.shape == (B, T, 2 * N)
    parts = (hidden,) if isinstance(hidden, torch.Tensor) else hidden
    assert [p.shape for p in parts] == [(4, B, *s) for s in cell.state_shapes.values()]


@pytest.mark.parametrize("unit", sorted({case[0] for case in CASES}))
def test_options(unit):
    with pytest.raises(InputError, match=f"unit '{unit}' has no option 'colour'"):
        build_cell(unit, N_X, N, colour="red")
    with pytest.raises(InputError, match="at least 1"):
        build_cell(unit, 0, N)
    with pytest.raises(InputError, match="at least 1"):
        build_cell(unit, N_X, 0)
    parameters = list(inspect.signature(get_cell(unit).__init__).parameters.values())[3:]
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters), "options are keywords"
    assert all(p.default is not p.empty for p in parameters), "options have defaults"


BAD = [
    ("rum", {"lambda_": 2}, "lambda must be 0 or 1"),
    ("rum", {"eta": 0.0}, "eta must be positive"),
    ("rum", {"activation": "swish"}, "unknown activation 'swish'"),
    ("rum", {"zoneout": 1.5}, "zoneout must lie in"),
    ("rum", {"layer_norm": True, "layer_norm_gate": "within"}, "before or after"),
    ("rum", {"layer_norm_gate": "after"}, "needs layer normalization and the update gate"),
    ("rum", {"rotation_trainable": False, "update_gate": False}, "nothing to train"),
    ("rum", {"kernel_init": "normal"}, "kernel_init must be orthogonal or uniform"),
    ("lstm", {"zoneout": -0.1}, "zoneout must lie in"),
    ("lstm", {"zoneout_cell": 2.0}, "zoneout_cell must lie in"),
    ("gru", {"zoneout": math.nan}, "zoneout must lie in"),
    ("eurnn", {"capacity": 3}, "capacity must be even"),
    ("eurnn", {"capacity": 8}, "from 2 to the hidden size 6"),
    ("eurnn", {"capacity": 0}, "from 2 to"),
    ("eurnn", {"capacity": 2, "fft": True}, "exclude each other"),
    ("eurnn", {"field": "quaternion"}, "complex or real"),
    ("goru", {"capacity": 5}, "capacity must be even"),
    ("goru", {"capacity": 2, "fft": True}, "exclude each other"),
    ("fast_weights", {"decay": 0.0}, r"decay must lie in \(0, 1\]"),
    ("fast_weights", {"decay": 1.1}, r"decay must lie in \(0, 1\]"),
    ("fast_weights", {"eta": 0.0}, "eta must be positive"),
    ("fast_weights", {"inner_steps": 0}, "at least 1"),
]


@pytest.mark.parametrize(("unit", "options", "message"), BAD)
def test_bad_options_get_one_sentence(unit, options, message):
    with pytest.raises(InputError, match=f"^unit '{unit}': .*{message}"):
        build_cell(unit, N_X, N, **options)


@pytest.mark.parametrize(
    ("unit", "options"),
    [
        ("eurnn", {}),
        ("goru", {}),
        ("fast_weights", {}),
        ("weinet", {}),
        ("rum", {"layer_norm": True}),
        ("lstm", {"layer_norm": True}),
        ("gru", {"layer_norm": True}),
    ],
)
def test_hidden_size_one_is_refused_where_it_has_no_meaning(unit, options):
    with pytest.raises(InputError, match="at least 2, got 1"):
        build_cell(unit, N_X, 1, **options)


def test_a_thread_that_evaluates_leaves_the_others_their_gradient():
    cell = build_cell("rum", 3, 4, rotation_trainable=False)
    inside, done = threading.Event(), threading.Event()

    def evaluate():
        with torch.no_grad(), cell.prepared():
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=evaluate)
    thread.start()
    inside.wait(10)
    outputs, _ = run_sequence(cell, torch.randn(2, 3, 3), cell.init_state(2), backend="naive")
    outputs.sum().backward()
    done.set()
    thread.join()
    assert cell.gate_hh.grad.abs().sum() > 0


def test_what_is_derived_is_computed_once_a_sequence(monkeypatch):
    cell = build_cell("urnn", N_X, N)
    calls = []
    derive = type(cell).derive
    monkeypatch.setattr(type(cell), "derive", lambda self: calls.append(1) or derive(self))
    x = torch.randn(B, T, N_X)
    run_naive(cell, x, cell.init_state(B))
    assert len(calls) == 1
    with pytest.raises(RuntimeError):
        run_naive(cell, x, (torch.zeros(B, 3), torch.zeros(B, 3)))
    assert not cell._derived, "an error leaves nothing behind"
    holder = torch.nn.ModuleDict({"cell": cell})
    calls.clear()
    with holder["cell"].prepared(), holder["cell"].prepared():
        assert cell.derived is cell.derived
    assert len(calls) == 1 and not cell._derived
    with torch.no_grad():
        before = cell(x[:, 0])[0]
        cell.unitary.parametrizations.weight.original.normal_()
        assert not torch.equal(cell(x[:, 0])[0], before), "nothing old is used after an update"
