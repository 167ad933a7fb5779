"""The probe sees what the units do, and changes nothing of it."""

import pytest
import torch

from fairseq_rum.cells import build_cell, registered_cells
from fairseq_rum.layers import RNN, RecurrentLayer
from fairseq_rum.layers.probe import probe, unit_labels

B, T, N_X, N = 3, 5, 4, 6
PAST_END = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.bool)


def layer(unit, reverse=False, backend="auto", **options):
    return RecurrentLayer(build_cell(unit, N_X, N, **options), reverse, backend).double()


@pytest.fixture
def x():
    return torch.randn(B, T, N_X, dtype=torch.float64)


@pytest.mark.parametrize("unit", registered_cells())
def test_every_unit_can_be_probed(unit, x):
    module = layer(unit)
    before, final_before = module(x)
    with probe(module) as found:
        output, final = module(x)
    torch.testing.assert_close(output, before)
    for part, part_before in zip(final, final_before):
        torch.testing.assert_close(part, part_before)
    seen = found.series()["cell"]
    assert all(values.shape == (B, T) for values in seen.values())
    torch.testing.assert_close(seen["h_norm"], output.detach().norm(dim=-1))
    if "update_gate" in seen:
        assert ((seen["update_gate"] > 0) & (seen["update_gate"] < 1)).all()
    assert ("cos_theta" in seen) == (unit == "rum")
    assert ("update_gate" in seen) == (unit in ("rum", "gru", "goru"))


@pytest.mark.parametrize("lambda_", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("options", [{}, {"update_gate": False}, {"layer_norm": True}])
def test_the_numbers_of_rum(lambda_, reverse, options, x):
    """cos(theta) and the gate of every step from the equations, the step before it given."""
    module = layer("rum", reverse, lambda_=lambda_, eta=0.7, **options)
    cell = module.cell
    with probe(module) as found:
        output, _ = module(x, None, PAST_END)
    seen = found.series()["cell"]
    assert ("update_gate" in seen) == cell.update_gate
    for b in range(B):
        length = int((~PAST_END[b]).sum())
        order = reversed(range(length)) if reverse else range(length)
        h = torch.zeros(N, dtype=torch.float64)
        for t in order:
            sums = x[b, t] @ cell.weight_ih.T + cell.bias
            gates = sums[:-N] + h @ cell.weight_hh.T
            if cell.layer_norm:
                gates = gates.view(-1, N)
                gates = (gates - gates.mean(1, keepdim=True)) / (
                    gates.var(1, keepdim=True, unbiased=False) + 1e-3
                ).sqrt()
                gates = gates.flatten() * cell.norm_gain[:-N] + cell.norm_shift[:-N]
            tau, e = gates[:N], sums[-N:]
            cosine = (tau @ e / tau.norm() / e.norm()).item()
            assert seen["cos_theta"][b, t].item() == pytest.approx(cosine, abs=1e-9)
            if cell.update_gate:
                u = torch.sigmoid(gates[N:]).mean().item()
                assert seen["update_gate"][b, t].item() == pytest.approx(u)
            h = output[b, t].detach()
            assert seen["h_norm"][b, t].item() == pytest.approx(h.norm().item())
    for values in seen.values():
        assert (values.isnan() == PAST_END).all()


@pytest.mark.parametrize("lambda_", [0, 1])
def test_gradients_are_those_of_autograd_by_hand(lambda_, x):
    """Cut the graph at one step after the other, and differentiate what comes after."""
    module = layer("rum", lambda_=lambda_)
    cell, weights = module.cell, torch.randn(B, T, N, dtype=torch.float64)
    with probe(module, gradients=True) as found:
        output, _ = module(x)
        found.differentiate((output.sin() * weights).sum())
    assert all(parameter.grad is None for parameter in module.parameters())
    for t in range(T):
        state = cell.init_state(B)
        for s in range(t + 1):
            _, state = cell(x[:, s], state)
        h = state[0].detach().requires_grad_()
        loss = (h.sin() * weights[:, t]).sum()
        state = (h, *(part.detach() for part in state[1:]))
        for s in range(t + 1, T):
            output, state = cell(x[:, s], state)
            loss = loss + (output.sin() * weights[:, s]).sum()
        (expected,) = torch.autograd.grad(loss, h)
        torch.testing.assert_close(found.series()["cell"]["gradient"][:, t], expected.norm(dim=-1))


def test_gradients_of_padded_and_unused_steps(x):
    module = layer("gru")
    with probe(module, gradients=True) as found:
        output, _ = module(x, padding_mask=PAST_END)
        found.differentiate(output[:, 1].sum())
    gradient = found.series()["cell"]["gradient"]
    assert (gradient.isnan() == PAST_END).all()
    assert (gradient[:, 2:].nan_to_num() == 0).all() and (gradient[:, :2] > 0).all()


def test_gradients_need_a_gradient(x):
    module = layer("gru")
    with probe(module) as found:
        output, _ = module(x)
    with pytest.raises(ValueError, match="gradients=True"):
        found.differentiate(output.sum())
    with torch.no_grad(), probe(module, gradients=True) as found:
        output, _ = module(x)
    with pytest.raises(ValueError, match="a pass with gradient"):
        found.differentiate(output.sum())


def test_nothing_is_left_in_the_model(x):
    module = layer("rum", backend="fused", lambda_=1)
    kept = dict(vars(module.cell))
    with pytest.raises(KeyError), probe(module):
        assert module.backend == "naive"
        with pytest.raises(RuntimeError, match="once at a time"), probe(module):
            pass
        assert module.backend == "naive" and "step" in vars(module.cell)
        raise KeyError
    assert module.backend == "fused" and vars(module.cell) == kept
    assert not module._forward_pre_hooks
    module(x)  # and works


def test_a_stack_in_both_directions_and_several_passes():
    rnn = RNN("rum", N_X, N, num_layers=2, bidirectional=True)
    x = torch.randn(T, B, N_X)
    with probe(rnn) as found:
        output, hidden = rnn(x)
        rnn(x[:2], hidden)
    series = found.series()
    assert len(series) == 4 and all(u["h_norm"].shape == (B, T + 2) for u in series.values())
    norms = output.detach().transpose(0, 1).unflatten(-1, (2, N)).norm(dim=-1)
    for direction in range(2):
        seen = series[f"stack.layers.{2 + direction}.cell"]["h_norm"]
        torch.testing.assert_close(seen[:, :T], norms[..., direction])


def test_the_cells_of_a_fast_slow_unit(x):
    module = layer("fast_slow")
    with probe(module) as found:
        module(x, padding_mask=PAST_END)
    series = found.series()
    assert set(series) == {"cell", "cell.fast.0", "cell.fast.1", "cell.slow"}
    assert "cos_theta" in series["cell.slow"]
    for seen in series.values():
        assert (seen["h_norm"].isnan() == PAST_END).all()


def test_a_unit_that_is_stepped_by_hand():
    cell = build_cell("rum", N_X, N)
    with probe(cell) as found, cell.prepared():
        state = cell.init_state(B)
        for _ in range(T):
            _, state = cell.step(cell.project_input(torch.randn(B, N_X)), state)
    assert found.series()[""]["cos_theta"].shape == (B, T)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_norm_of_the_last_state(reverse, x):
    module = layer("lstm", reverse)
    with probe(module) as found:
        _, (h, _) = module(x, padding_mask=PAST_END)
    torch.testing.assert_close(found.final_norms()["cell"], h.detach().norm(dim=-1))


def test_padding_that_only_the_model_knows(x):
    cell = build_cell("fast_slow", N_X, N).double()
    with probe(cell) as found:
        state = cell.init_state(B)
        for t in range(T):
            _, state = cell(x[:, t], state)
        found.pad("", PAST_END)
    for seen in found.series().values():
        assert (seen["h_norm"].isnan() == PAST_END).all()


def test_labels():
    assert unit_labels(["rnn.layers.0.cell"]) == {"rnn.layers.0.cell": ""}
    names = ["encoder.rnn.layers.0.cell", "encoder.rnn.layers.1.cell", "decoder.unit"]
    assert list(unit_labels(names).values()) == ["encoder.0", "encoder.1", "decoder"]
    assert unit_labels(["rnn.a.cell", "a.unit"]) == {"rnn.a.cell": "rnn.a.cell", "a.unit": "a.unit"}


@pytest.mark.parametrize(
    ("unit", "options", "shapes"),
    [
        ("rum", {}, {"W_xh tau": (N, N_X), "W_xh e": (N, N_X), "W_hh tau": (N, N)}),
        ("rum", {"rotation_trainable": False, "update_gate": True}, ...),
        ("rum", {"update_gate": False}, ...),
        ("goru", {}, {"rotations.theta": (5,)}),
        ("eurnn", {"field": "real"}, {"rotations.theta": (5,)}),
        ("eurnn", {}, {"rotations.theta": (5,), "rotations.phi": (5,), "rotations.omega": (N,)}),
        ("urnn", {}, {"A": (N, N, 2)}),
        ("lstm", {}, {}),
    ],
)
def test_rotation_weights_are_views(unit, options, shapes, x):
    """Writing to them changes what the unit does; a unit without rotation has none."""
    module = layer(unit, **options)
    weights = module.cell.rotation_weights()
    if shapes is not ...:
        assert {name: tuple(weight.shape) for name, weight in weights.items()} == shapes
    before = module(x)[0]
    for weight in weights.values():
        old = weight.clone()
        weight.add_(0.3 * torch.randn_like(weight))
        assert not torch.equal(module(x)[0], before)
        weight.copy_(old)
        assert torch.equal(module(x)[0], before)


def test_kernels_by_name():
    cell = build_cell("rum", N_X, N)
    kernels = cell.kernels()
    assert list(kernels) == ["W_hh tau", "W_hh u", "W_xh tau", "W_xh u", "W_xh e"]
    assert torch.equal(torch.cat(list(kernels.values())[:2]), cell.weight_hh)
    assert torch.equal(torch.cat(list(kernels.values())[2:]), cell.weight_ih)
    constant = build_cell("rum", N_X, N, rotation_trainable=False)
    for kept in (constant.weight_ih, constant.weight_hh):
        parts = [k for name, k in constant.kernels().items() if k.shape[1] == kept.shape[1]]
        assert torch.equal(torch.cat(parts), kept)
    without = build_cell("rum", N_X, N, update_gate=False).kernels()
    assert list(without) == ["W_hh tau", "W_xh tau", "W_xh e"]
    assert list(build_cell("lstm", N_X, N).kernels()) == ["weight_ih", "weight_hh"]
