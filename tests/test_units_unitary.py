"""Pair rotations, modReLU, and the networks made of them."""

import math

import pytest
import torch

from fairseq_rum.cells import build_cell
from fairseq_rum.cells.unitary import PairRotations
from fairseq_rum.functional.eunn import eunn_coefficients, eunn_layout, eunn_matrix, eunn_rotate
from fairseq_rum.functional.modrelu import MODULUS_FLOOR, modrelu, modrelu_pairs
from fairseq_rum.kernels import run_sequence


def layers_of(size, capacity, fft):
    """The pairs of every layer in the order of their angles, one by one."""
    if not fft:
        return [
            [(i, i + 1) for i in range(layer % 2, size - 1, 2)] for layer in range(capacity or 2)
        ]
    distances = [2**k for k in reversed(range(math.ceil(math.log2(size))))]
    return [[(i, i + d) for i in range(size - d) if (i // d) % 2 == 0] for d in distances]


def explicit_matrix(size, capacity, fft, theta, phi, omega):
    """W for column vectors, from N x N rotations of single pairs multiplied out."""
    dtype = torch.float64 if phi is None else torch.complex128
    w = torch.eye(size, dtype=dtype)
    k = 0
    for layer in layers_of(size, capacity, fft):
        for i, j in layer:
            r = torch.eye(size, dtype=dtype)
            phase = 1.0 if phi is None else torch.exp(1j * phi[k])
            r[i, i], r[i, j] = phase * torch.cos(theta[k]), -phase * torch.sin(theta[k])
            r[j, i], r[j, j] = torch.sin(theta[k]), torch.cos(theta[k])
            w = r @ w
            k += 1
    assert k == len(theta)
    return w if omega is None else torch.exp(1j * omega).unsqueeze(1) * w


SHAPES = [
    (size, capacity, fft)
    for size in (2, 3, 5, 6, 8, 13)
    for capacity, fft in ((None, False), (4, False), (None, True))
    if capacity is None or capacity <= size
]


@pytest.mark.parametrize(("size", "capacity", "fft"), SHAPES)
@pytest.mark.parametrize("is_complex", [False, True])
def test_rotations_are_the_explicit_product(size, capacity, fft, is_complex):
    layout = eunn_layout(size, capacity, fft)
    theta = torch.randn(layout.pairs, dtype=torch.float64)
    phi = torch.randn_like(theta) if is_complex else None
    omega = torch.randn(size, dtype=torch.float64) if is_complex else None
    w = explicit_matrix(size, capacity, fft, theta, phi, omega)
    coefficients = eunn_coefficients(layout.slot, theta, phi, omega)
    x = torch.randn(4, 3, size, dtype=w.dtype)
    expected = x @ w.mT
    torch.testing.assert_close(
        eunn_rotate(x, layout.partner, *coefficients), expected, rtol=0, atol=1e-13
    )
    matrix = eunn_matrix(layout.partner, *coefficients)
    torch.testing.assert_close(x @ matrix, expected, rtol=0, atol=1e-13)
    identity = torch.eye(size, dtype=w.dtype)
    torch.testing.assert_close(matrix.mH @ matrix, identity, rtol=0, atol=1e-13)


def test_every_layer_is_a_set_of_disjoint_pairs():
    for size, capacity, fft in SHAPES:
        layout = eunn_layout(size, capacity, fft)
        partner = layout.partner
        assert torch.equal(partner.gather(1, partner), torch.arange(size).expand_as(partner))
        used = layout.slot[layout.slot < 2 * layout.pairs]
        assert torch.equal(used.sort().values, torch.arange(2 * layout.pairs))
    assert len(eunn_layout(8, None, True).partner) == 3
    assert eunn_layout(8, None, True).pairs == 12  # (N / 2) log2 N


def test_full_capacity_has_as_many_angles_as_the_orthogonal_group_has_dimensions():
    assert eunn_layout(6, 6).pairs == 6 * 5 // 2


@pytest.mark.parametrize("is_complex", [False, True])
def test_gradients_of_the_rotations(is_complex):
    layout = eunn_layout(5, 4)
    angles = [torch.randn(n, dtype=torch.float64, requires_grad=True) for n in (layout.pairs,) * 2]
    end = torch.randn(5, dtype=torch.float64, requires_grad=True)
    dtype = torch.complex128 if is_complex else torch.float64
    x = torch.randn(3, 5, dtype=dtype, requires_grad=True)

    def run(x, theta, *rest):
        return eunn_rotate(x, layout.partner, *eunn_coefficients(layout.slot, theta, *rest))

    inputs = (x, *angles, end) if is_complex else (x, angles[0])
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("unit", ["eurnn", "goru"])
@pytest.mark.parametrize("field", ["complex", "real"])
def test_as_a_matrix_or_layer_by_layer(unit, field):
    options = {"field": field} if unit == "eurnn" else {}
    cell = build_cell(unit, 3, 10, capacity=4, **options).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    results = []
    for as_matrix in (True, False):
        cell.rotations.as_matrix = as_matrix
        outputs, final = run_sequence(cell, x, cell.init_state(2))
        gradients = torch.autograd.grad(outputs.square().sum(), list(cell.parameters()))
        results.append((outputs, *final, *gradients))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    half = cell.bfloat16()
    outputs, _ = run_sequence(half, x.bfloat16(), half.init_state(2))
    assert outputs.dtype == torch.bfloat16


def test_large_sizes_go_layer_by_layer():
    assert PairRotations(100, None, False, False).as_matrix
    assert not PairRotations(1000, None, False, False).as_matrix
    assert build_cell("eurnn", 3, 300).derived[0].shape == (2, 300)


def test_modrelu():
    z = torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0])
    torch.testing.assert_close(
        modrelu(z, torch.full((5,), -1.0)), torch.tensor([-2.0, 0.0, 0.0, 0.0, 1.0])
    )
    torch.testing.assert_close(
        modrelu(z, torch.full((5,), 1.0)), torch.tensor([-4.0, -2.0, 0.0, 1.5, 3.0])
    )


def test_modrelu_of_complex_numbers():
    z = torch.randn(4, 6, dtype=torch.complex128)
    bias = torch.randn(6, dtype=torch.float64)
    expected = torch.relu(z.abs() + bias) * z / z.abs()
    got = modrelu_pairs(torch.stack((z.real, z.imag), -2), bias)
    torch.testing.assert_close(torch.complex(*got.unbind(-2)), expected)
    pairs = torch.stack((z.real, z.imag), -2).requires_grad_()
    assert torch.autograd.gradcheck(modrelu_pairs, (pairs, bias.requires_grad_()))


def test_modrelu_at_zero():
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        z = torch.zeros(1, 2, 3, dtype=dtype, requires_grad=True)
        bias = torch.tensor([-1.0, 0.0, 1.0], dtype=dtype, requires_grad=True)
        out = modrelu_pairs(z, bias)
        assert (out == 0).all() and out.dtype == dtype
        out.sum().backward()
        if dtype != torch.float16:  # whose range ends below 1 / floor
            assert z.grad.isfinite().all()
        assert bias.grad.isfinite().all()
    z = torch.full((1, 2, 1), 1e-9, dtype=torch.float64)
    assert modrelu_pairs(z, torch.ones(1, dtype=torch.float64)).abs().max() <= 2e-9 / MODULUS_FLOOR


def matrix_of(cell):
    return cell.rotations.matrix() if hasattr(cell, "rotations") else cell.matrix()


@pytest.mark.parametrize(
    ("unit", "options"),
    [
        ("urnn", {}),
        ("eurnn", {}),
        ("eurnn", {"field": "real", "capacity": 4}),
        ("eurnn", {"fft": True}),
        ("goru", {}),
        ("goru", {"fft": True}),
    ],
)
@pytest.mark.parametrize("optimizer", ["Adam", "RMSprop"])
def test_unitary_after_training(unit, options, optimizer):
    cell = build_cell(unit, 3, 12, **options)
    readout = torch.nn.Linear(12, 3)
    parameters = [*cell.parameters(), *readout.parameters()]
    optimizer = getattr(torch.optim, optimizer)(parameters, lr=1e-2)
    before = matrix_of(cell).detach()
    x = torch.randn(8, 6, 3)
    losses = []
    for _ in range(100):
        outputs, _ = run_sequence(cell, x, cell.init_state(8))
        loss = torch.nn.functional.mse_loss(readout(outputs[:, 3:]), x[:, :3])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    after = matrix_of(cell).detach()
    assert losses[-1] < 0.9 * losses[0]
    assert (after - before).abs().max() > 0.05, "the matrix is trained"
    error = (after.mH @ after - torch.eye(12)).abs().max().item()
    assert error < 2e-6, "100 steps leave it unitary to float32's rounding"


def test_urnn_starts_at_a_random_unitary_matrix():
    phases = torch.cat(
        [build_cell("urnn", 3, 20).matrix().detach().logdet().imag.reshape(1) for _ in range(200)]
    )
    # The determinant of a Haar matrix is uniform on the circle.
    assert torch.exp(1j * phases).mean().abs() < 0.25
    cell = build_cell("urnn", 3, 6)
    h, imag = cell.init_state(4)
    assert torch.equal(torch.cat((h, imag), -1), cell.initial.expand(4, -1))
    cell.double()
    w = cell.matrix()
    assert w.dtype == torch.complex128
    cell.bfloat16()
    w = cell.matrix()
    identity = torch.eye(6, dtype=w.dtype)
    torch.testing.assert_close(w.mH @ w, identity, rtol=0, atol=1e-5)


def test_norms_are_kept_without_input():
    """With b = 0 modReLU is linear, and a unitary W keeps |h|: in h and imag together."""
    for unit in ("urnn", "eurnn"):
        cell = build_cell(unit, 3, 16).double()
        state = tuple(torch.randn(2, 16, dtype=torch.float64) for _ in range(2))
        _, final = run_sequence(cell, torch.zeros(2, 500, 3, dtype=torch.float64), state)
        before = sum(s.square().sum(-1) for s in state)
        torch.testing.assert_close(
            sum(s.square().sum(-1) for s in final),
            before,
            rtol=1e-4 if unit == "urnn" else 1e-12,
            atol=0,
        )


def test_goru_is_its_equations():
    cell = build_cell("goru", 3, 6, capacity=4).double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.copy_(torch.randn_like(parameter))
    x, h = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 6, dtype=torch.float64)
    u = explicit_matrix(6, 4, False, cell.rotations.theta, None, None)
    w_x, w_h, b = cell.weight_ih.chunk(3), cell.weight_hh.chunk(2), cell.bias.chunk(3)
    r = (x @ w_x[0].t() + h @ w_h[0].t() + b[0]).sigmoid()
    g = (x @ w_x[1].t() + h @ w_h[1].t() + b[1]).sigmoid()
    z = x @ w_x[2].t() + r * (h @ u.t())
    c = z.sign() * (z.abs() + b[2]).relu()
    torch.testing.assert_close(cell(x, (h,))[0], g * h + (1 - g) * c)


def test_initialization():
    cell = build_cell("goru", 3, 6)
    assert cell.bias.tolist() == [2.0] * 6 + [0.0] * 6 + [2.0] * 6
    for weight in (cell.weight_ih, cell.weight_hh, build_cell("eurnn", 3, 6).weight_ih):
        assert 0.005 < weight.abs().max() <= 0.01
    angles = build_cell("eurnn", 3, 200).rotations.theta
    assert angles.abs().max() <= math.pi and angles.abs().mean().item() == pytest.approx(
        math.pi / 2, abs=0.4
    )
