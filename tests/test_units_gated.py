"""lstm and gru against torch; layer normalization, zoneout and constant rotations."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fairseq_rum.cells import build_cell, from_torch, to_torch
from fairseq_rum.cells.zoneout import zoneout
from fairseq_rum.functional import block_layer_norm
from fairseq_rum.kernels import run_sequence
from fairseq_rum.kernels.naive import run_naive

PAIRS = [("lstm", nn.LSTM, nn.LSTMCell), ("gru", nn.GRU, nn.GRUCell)]


def normalize(v):
    return (v - v.mean(-1, keepdim=True)) / (v.var(-1, unbiased=False, keepdim=True) + 1e-3).sqrt()


def randomize(cell):
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return cell


@pytest.mark.parametrize(("unit", "sequence", "single"), PAIRS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("backend", ["naive", "auto"])
def test_equal_to_torch(unit, sequence, single, bias, backend):
    module = sequence(5, 7, bias=bias, batch_first=True).double()
    x = torch.randn(3, 11, 5, dtype=torch.float64, requires_grad=True)
    state = [torch.randn(3, 7, dtype=torch.float64) for _ in range(2 if unit == "lstm" else 1)]
    hidden = tuple(s.unsqueeze(0) for s in state)
    expected, final = module(x, hidden if len(hidden) > 1 else hidden[0])
    cell = from_torch(module)
    assert cell.unit == unit and cell.plain_step
    outputs, last = run_sequence(cell, x, tuple(state), backend=backend)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-14)
    for got, want in zip(last, final if isinstance(final, tuple) else (final,)):
        torch.testing.assert_close(got, want.squeeze(0), rtol=0, atol=1e-14)

    weights = [p for _, p in sorted(module.named_parameters())]
    ours = [p for _, p in sorted(cell.named_parameters())]
    for got, want in zip(
        torch.autograd.grad(outputs.square().sum(), [x, *ours]),
        torch.autograd.grad(expected.square().sum(), [x, *weights]),
    ):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("unit", "sequence", "single"), PAIRS)
@pytest.mark.parametrize("bias", [True, False])
def test_weights_both_ways(unit, sequence, single, bias):
    cell = randomize(build_cell(unit, 4, 6, bias=bias)).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    expected, _ = run_naive(cell, x, cell.init_state(2))
    module = to_torch(cell)
    assert isinstance(module, sequence) and module.batch_first
    torch.testing.assert_close(module(x)[0], expected, rtol=0, atol=1e-14)
    back = from_torch(module)
    for (name, a), (_, b) in zip(cell.named_parameters(), back.named_parameters()):
        assert torch.equal(a, b) and a.data_ptr() != b.data_ptr(), name

    step = single(4, 6, bias=bias).double()
    got, _ = from_torch(step)(x[:, 0])
    want = step(x[:, 0])
    torch.testing.assert_close(got, want[0] if unit == "lstm" else want, rtol=0, atol=1e-14)


def test_weights_that_cannot_be_converted():
    for module in (nn.LSTM(3, 4, 2), nn.GRU(3, 4, bidirectional=True), nn.LSTM(3, 4, proj_size=2)):
        with pytest.raises(ValueError, match="one layer in one direction"):
            from_torch(module)
    with pytest.raises(ValueError, match="takes an LSTM or GRU of torch, got RNN"):
        from_torch(nn.RNN(3, 4))
    with pytest.raises(ValueError, match="the units lstm and gru, got 'rum'"):
        to_torch(build_cell("rum", 3, 4))
    with pytest.raises(ValueError, match="torch's modules have no zoneout"):
        to_torch(build_cell("lstm", 3, 4, zoneout_cell=0.1))
    with pytest.raises(ValueError, match="no layer normalization or zoneout"):
        to_torch(build_cell("gru", 3, 4, layer_norm=True, zoneout=0.1))


def test_forget_gate_starts_open():
    cell = build_cell("lstm", 3, 4)
    assert torch.equal((cell.bias_ih + cell.bias_hh)[4:8], torch.ones(4))
    cell = build_cell("lstm", 3, 4, layer_norm=True)
    assert torch.equal(
        cell.norm_shift, torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]).repeat_interleave(4)
    )


def test_block_layer_norm():
    x, gain, shift = torch.randn(2, 3, 12), torch.randn(12), torch.randn(12)
    got = block_layer_norm(x, 3, gain, shift)
    want = torch.cat([normalize(part) for part in x.chunk(3, -1)], -1) * gain + shift
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        block_layer_norm(x, 1, gain, shift), normalize(x) * gain + shift, rtol=1e-5, atol=1e-5
    )


def test_layer_norm_lstm():
    cell = randomize(build_cell("lstm", 3, 4, layer_norm=True)).double()
    x, h, c = (torch.randn(2, n, dtype=torch.float64) for n in (3, 4, 4))
    gain, shift = cell.norm_gain.chunk(5), cell.norm_shift.chunk(5)
    sums = x @ cell.weight_ih.t() + cell.bias_ih + h @ cell.weight_hh.t() + cell.bias_hh
    i, f, g, o = (normalize(s) * a + b for s, a, b in zip(sums.chunk(4, -1), gain, shift))
    new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    new_h = o.sigmoid() * (normalize(new_c) * gain[4] + shift[4]).tanh()
    output, state = cell(x, (h, c))
    torch.testing.assert_close(output, new_h)
    torch.testing.assert_close(state[1], new_c)


def test_layer_norm_gru():
    cell = randomize(build_cell("gru", 3, 4, layer_norm=True)).double()
    x, h = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    gain, shift = cell.norm_gain.chunk(3), cell.norm_shift.chunk(3)
    fed = (x @ cell.weight_ih.t() + cell.bias_ih).chunk(3, -1)
    back = (h @ cell.weight_hh.t() + cell.bias_hh).chunk(3, -1)
    r = (normalize(fed[0] + back[0]) * gain[0] + shift[0]).sigmoid()
    z = (normalize(fed[1] + back[1]) * gain[1] + shift[1]).sigmoid()
    n = (normalize(fed[2] + r * back[2]) * gain[2] + shift[2]).tanh()
    torch.testing.assert_close(cell(x, (h,))[0], (1 - z) * n + z * h)


@pytest.mark.parametrize("where", ["before", "after"])
def test_layer_norm_rum(where):
    from fairseq_rum.functional import rotate

    cell = randomize(
        build_cell("rum", 3, 4, layer_norm=True, layer_norm_gate=where, activation="tanh")
    ).double()
    x, h = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    gain, shift = cell.norm_gain.chunk(3), cell.norm_shift.chunk(3)
    fed = (x @ cell.weight_ih.t() + cell.bias).chunk(3, -1)
    back = (h @ cell.weight_hh.t()).chunk(2, -1)
    tau = normalize(fed[0] + back[0]) * gain[0] + shift[0]
    if where == "before":
        u = (normalize(fed[1] + back[1]) * gain[1] + shift[1]).sigmoid()
    else:
        u = normalize((fed[1] + back[1]).sigmoid()) * gain[1] + shift[1]
    c = (normalize(fed[2] + rotate(fed[2], tau, h)) * gain[2] + shift[2]).tanh()
    torch.testing.assert_close(cell(x, (h,))[0], u * h + (1 - u) * c)


def test_layer_norm_leaves_the_gate_of_rum_at_its_start():
    shift = build_cell("rum", 3, 4, layer_norm=True).norm_shift.chunk(3)
    assert [s.unique().tolist() for s in shift] == [[0.0], [1.0], [0.0]]
    shift = build_cell("rum", 3, 4, layer_norm=True, layer_norm_gate="after").norm_shift
    assert shift.unique().tolist() == [0.0]


def test_zoneout():
    new, old = torch.ones(200, 200), torch.zeros(200, 200)
    assert zoneout(new, old, 0.0, True) is new
    kept = zoneout(new, old, 0.3, True)
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    assert kept.mean().item() == pytest.approx(0.7, abs=0.01)  # 4 standard deviations
    torch.testing.assert_close(zoneout(new, old, 0.3, False), torch.full((200, 200), 0.7))
    assert torch.equal(zoneout(new, old, 1.0, True), old)
    assert torch.equal(zoneout(new, old, 1.0, False), old)


@pytest.mark.parametrize(
    ("unit", "options"),
    [
        ("rum", {}),
        ("rum", {"lambda_": 1}),
        ("lstm", {}),
        ("gru", {}),
    ],
)
def test_zoneout_in_the_units(unit, options):
    x = torch.randn(2, 5, 3)
    plain = build_cell(unit, 3, 8, **options)
    state = tuple(torch.randn_like(s) if i == 0 else s for i, s in enumerate(plain.init_state(2)))
    output, _ = plain(x[:, 0], state)

    def with_zoneout(p):
        cell = build_cell(unit, 3, 8, zoneout=p, **options)
        cell.load_state_dict(plain.state_dict())
        return cell

    assert with_zoneout(0.0).plain_step and not with_zoneout(0.2).plain_step
    torch.testing.assert_close(with_zoneout(0.0)(x[:, 0], state)[0], output)
    cell = with_zoneout(0.25)
    trained, (h, *_) = cell(x[:, 0], state)
    assert torch.equal(trained, h)
    assert ((trained == state[0]) | (trained == output)).all()
    assert (trained == state[0]).any() and (trained == output).any()
    torch.testing.assert_close(cell.eval()(x[:, 0], state)[0], 0.25 * state[0] + 0.75 * output)
    for mode in (True, False):
        held, _ = run_sequence(with_zoneout(1.0).train(mode), x, state)
        torch.testing.assert_close(held, state[0].unsqueeze(1).expand_as(held))


def test_zoneout_of_the_memory_cell_of_lstm():
    plain = build_cell("lstm", 3, 8)
    cell = build_cell("lstm", 3, 8, zoneout_cell=0.25).eval()
    cell.load_state_dict(plain.state_dict())
    x, state = torch.randn(2, 3), (torch.randn(2, 8), torch.randn(2, 8))
    output, (h, c) = cell(x, state)
    expected, (_, new) = plain(x, state)
    torch.testing.assert_close(output, expected)  # h reads the cell before its zoneout
    torch.testing.assert_close(c, 0.25 * state[1] + 0.75 * new)


@pytest.mark.parametrize("training", [True, False])
def test_time_normalization_holds_with_zoneout(training):
    cell = build_cell("rum", 3, 8, zoneout=0.4, eta=1.5).train(training)
    outputs, _ = run_sequence(cell, torch.randn(2, 9, 3), (torch.randn(2, 8),))
    torch.testing.assert_close(outputs.norm(dim=-1), torch.full((2, 9), 1.5))


@pytest.mark.parametrize("options", [{}, {"lambda_": 1}, {"bias": False}])
def test_constant_rotation(options):
    """The same function as with a trained rotation; only the rows of the gate move."""
    cell = build_cell("rum", 3, 6, rotation_trainable=False, **options).double()
    full = build_cell("rum", 3, 6, **options).double()
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias"):
            if getattr(full, name) is not None:
                getattr(full, name).copy_(getattr(cell, name))
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    outputs, _ = run_sequence(cell, x, cell.init_state(2))
    expected, _ = run_sequence(full, x, full.init_state(2))
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-14)
    outputs.square().sum().backward()
    expected.square().sum().backward()
    rows = slice(6, 12)
    torch.testing.assert_close(cell.gate_ih.grad, full.weight_ih.grad[rows], rtol=0, atol=1e-12)
    torch.testing.assert_close(cell.gate_hh.grad, full.weight_hh.grad[rows], rtol=0, atol=1e-12)

    before = {name: buffer.clone() for name, buffer in cell.named_buffers()}
    names = {name for name, _ in cell.named_parameters()}
    assert names == {"gate_ih", "gate_hh"} | ({"gate_bias"} if full.bias is not None else set())
    optimizer = torch.optim.AdamW(cell.parameters(), weight_decay=0.5)
    optimizer.step()
    assert all(torch.equal(before[name], buffer) for name, buffer in cell.named_buffers())
    with pytest.raises(AttributeError, match="weight_xh"):
        cell.weight_xh  # noqa: B018


@pytest.mark.parametrize("trainable", [True, False])
def test_initialization_of_rum(trainable):
    cell = build_cell("rum", 4, 6, rotation_trainable=trainable)
    for block in (*cell.weight_ih.chunk(3), *cell.weight_hh.chunk(2)):
        gram = block.t() @ block
        torch.testing.assert_close(gram, torch.eye(len(gram)), rtol=0, atol=1e-5)
    assert cell.bias.tolist() == [1.0] * 12 + [0.0] * 6

    cell = build_cell("rum", 40, 60, rotation_trainable=trainable, kernel_init="uniform")
    for kernel in (cell.weight_ih, cell.weight_hh):
        low, mean, high = (kernel.quantile(q) * math.sqrt(60) for q in (0.0, 0.5, 1.0))
        assert -1 <= low < -0.99 and abs(mean) < 0.05 and 0.99 < high <= 1
    assert cell.bias.tolist() == [1.0] * 120 + [0.0] * 60


def test_fused_loops_refuse_what_they_do_not_know(caplog):
    caplog.set_level("INFO")
    x = torch.randn(2, 3, 3)
    for unit, options in (
        ("lstm", {"layer_norm": True}),
        ("gru", {"zoneout": 0.5}),
        ("rum", {"layer_norm": True, "zoneout": 0.5}),
    ):
        cell = build_cell(unit, 3, 4, **options).eval()
        auto, _ = run_sequence(cell, x, cell.init_state(2))
        naive, _ = run_naive(cell, x, cell.init_state(2))
        assert torch.equal(auto, naive)
        assert not F.mse_loss(auto, run_sequence(plain_copy(cell), x, cell.init_state(2))[0]) == 0


@pytest.mark.parametrize("unit", ["lstm", "gru"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_fused_loops_skip_padding_wherever_it_is(unit, bias, reverse, dtype, tolerance):
    """At the end, at the start, within, everywhere and nowhere; what stands there is infinite."""
    cell = randomize(build_cell(unit, 3, 4, bias=bias)).to(dtype)
    padding = torch.zeros(5, 6, dtype=torch.bool)
    padding[0, 4:] = padding[1, :3] = padding[2, [0, 2, 3, 5]] = padding[3] = True
    x = torch.randn(5, 6, 3, dtype=dtype)
    start = [torch.randn(5, 4, dtype=dtype) for _ in cell.init_state(5)]

    def run(backend):
        inputs = x.clone().requires_grad_()
        if backend == "fused":
            inputs.data[padding] = float("inf")
        state = tuple(part.clone().requires_grad_() for part in start)
        output, final = run_sequence(cell, inputs, state, padding, reverse, backend)
        weights = torch.linspace(-1, 2, output.numel(), dtype=dtype).view_as(output)
        loss = (output * weights).sum() + sum((part**2).sum() * 0.3 for part in final)
        gradients = torch.autograd.grad(loss, [inputs, *state, *cell.parameters()])
        return [output, *final, *gradients]

    for found, expected in zip(run("fused"), run("naive")):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def plain_copy(cell):
    plain = build_cell(cell.unit, cell.input_size, cell.hidden_size)
    plain.load_state_dict(cell.state_dict(), strict=False)
    return plain
