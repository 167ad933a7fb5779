"""The rotation against Equation 1 and its invariants, in float64 unless said otherwise."""

import math

import numpy as np
import pytest
import torch

from fairseq_rum.functional import compose_rotation, rotate, rotation

SIZES = [2, 3, 17, 250]


def equation_1(a, b):
    """Rotation(a, b) as the paper writes it, with the angle taken by arccos."""
    u = a / a.norm()
    v = b - (u @ b) * u
    v = v / v.norm()
    theta = torch.arccos((a @ b) / (a.norm() * b.norm()))
    cos, sin = torch.cos(theta), torch.sin(theta)
    plane = torch.stack([u, v], dim=1)
    turn = torch.tensor([[cos, -sin], [sin, cos]], dtype=a.dtype)
    return torch.eye(len(a), dtype=a.dtype) - u.outer(u) - v.outer(v) + plane @ turn @ plane.T


def determinant(matrix):
    """By numpy: torch's LU of larger matrices fails inside MKL with two threads on some CPUs."""
    return np.linalg.det(matrix.double().numpy())


def vectors(size, count=1, dtype=torch.float64):
    return [torch.randn(4, size, dtype=dtype) for _ in range(count)]


@pytest.mark.parametrize("size", SIZES)
def test_equals_equation_1(size):
    a, b = vectors(size, 2)
    expected = torch.stack([equation_1(x, y) for x, y in zip(a, b)])
    assert (rotation(a, b) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("size", SIZES)
def test_is_a_rotation_that_turns_a_to_b_and_leaves_the_rest(size):
    a, b, v = vectors(size, 3)
    matrix = rotation(a, b)
    eye = torch.eye(size, dtype=a.dtype)
    assert (matrix.transpose(-1, -2) @ matrix - eye).abs().max() < 1e-14
    assert abs(determinant(matrix) - 1).max() < 1e-12
    p, q = a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True)
    assert ((matrix @ p.unsqueeze(-1)).squeeze(-1) - q).abs().max() < 1e-14
    if size > 2:
        basis = torch.linalg.qr(torch.stack([a, b], dim=-1)).Q
        outside = v - (basis @ (basis.transpose(-1, -2) @ v.unsqueeze(-1))).squeeze(-1)
        assert (rotate(a, b, outside) - outside).abs().max() < 1e-13


@pytest.mark.parametrize("size", SIZES)
def test_rotate_and_compose_are_products_with_the_matrix(size):
    a, b, v = vectors(size, 3)
    memory = torch.randn(4, size, size, dtype=a.dtype)
    matrix = rotation(a, b)
    assert (rotate(a, b, v) - (matrix @ v.unsqueeze(-1)).squeeze(-1)).abs().max() < 1e-13
    assert (compose_rotation(memory, a, b) - memory @ matrix).abs().max() < 1e-12


def test_leading_dimensions_broadcast():
    a, b, v = torch.randn(2, 1, 5), torch.randn(3, 5), torch.randn(4, 1, 1, 5)
    assert rotate(a, b, v).shape == (4, 2, 3, 5)
    assert rotation(a, b).shape == (2, 3, 5, 5)
    assert rotate(a[0, 0], b[0], v[0, 0, 0]).shape == (5,)


@pytest.mark.parametrize("size", [2, 3, 17])
def test_gradients(size):
    a, b, v = (x[:2].requires_grad_() for x in vectors(size, 3))
    assert torch.autograd.gradcheck(rotate, (a, b, v))
    assert torch.autograd.gradgradcheck(rotate, (a, b, v))
    memory = torch.randn(2, size, size, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(compose_rotation, (memory, a, b))


def near_antiparallel(size, angle, dtype):
    """Pairs at ``pi - angle`` rad."""
    a = torch.randn(64, size, dtype=torch.float64)
    p = a / a.norm(dim=-1, keepdim=True)
    r = torch.randn_like(p)
    r = r - (r * p).sum(-1, keepdim=True) * p
    r = r / r.norm(dim=-1, keepdim=True)
    return p.to(dtype), (-math.cos(angle) * p + math.sin(angle) * r).to(dtype)


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-6), (torch.float64, 2e-15)])
@pytest.mark.parametrize("angle", [1e-1, 1e-2, 1e-4, 1e-6, 1e-9, 0.0])
def test_orthogonal_near_antiparallel_vectors(dtype, bound, angle):
    a, b = near_antiparallel(50, angle, dtype)
    matrix = rotation(a, b)
    eye = torch.eye(50, dtype=dtype)
    assert (matrix.transpose(-1, -2) @ matrix - eye).abs().max() < bound
    assert abs(determinant(matrix) - 1).max() < 50 * bound
    # Inside the zone where the plane is fixed, a goes to -a, which is b to sqrt(eps).
    turned = (matrix @ a.unsqueeze(-1)).squeeze(-1) - b
    assert turned.abs().max() < 2 * max(bound, torch.finfo(dtype).eps ** 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_bounded_near_antiparallel_vectors(dtype):
    bound = 20 / torch.finfo(dtype).eps ** 0.5
    for angle in (1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-10, 0.0):
        a, b = (x.requires_grad_() for x in near_antiparallel(50, angle, dtype))
        v = torch.randn(64, 50, dtype=dtype)
        rotate(a, b, v).norm(dim=-1).sum().backward()
        rotate(a, b, v).sum().backward()
        for x in (a, b):
            assert torch.isfinite(x.grad).all()
            assert x.grad.norm(dim=-1).max() < bound * v.norm(dim=-1).max()


def test_parallel_vectors_give_the_identity_and_the_gradient_of_the_limit():
    a = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([[2.0], [0.3]], dtype=torch.float64)
    b = (scale * a.detach()).requires_grad_()
    v = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert (rotate(a, b, v) - v).abs().max() < 1e-15
    assert torch.autograd.gradcheck(rotate, (a, b, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["a", "b", "both", "v", "antiparallel", "parallel", "tiny"])
def test_edges_are_finite_in_every_dtype(dtype, case):
    a, b, v = (x.to(dtype) for x in vectors(6, 3))
    if case in ("a", "both"):
        a = torch.zeros_like(a)
    if case in ("b", "both"):
        b = torch.zeros_like(b)
    if case == "v":
        v = torch.zeros_like(v)
    if case == "antiparallel":
        b = -2 * a
    if case == "parallel":
        b = 2 * a
    if case == "tiny":
        a = a * torch.finfo(dtype).tiny
    for x in (a, b, v):
        x.requires_grad_()
    out = rotate(a, b, v)
    assert out.dtype == dtype
    out.float().pow(2).sum().backward()
    for x in (out, a.grad, b.grad, v.grad):
        assert torch.isfinite(x).all()
    if case in ("a", "b", "both", "parallel"):
        assert torch.allclose(out.float(), v.float(), rtol=2e-2, atol=2e-2)
    if case in ("a", "b", "both", "antiparallel"):
        assert not a.grad.any() and not b.grad.any()
    norms = out.float().norm(dim=-1), v.float().norm(dim=-1)
    assert torch.allclose(*norms, rtol=2e-2)


def test_antiparallel_vectors_turn_by_pi():
    a, v = vectors(4, 2)
    matrix = rotation(a, -3 * a)
    assert abs(determinant(matrix) - 1).max() < 1e-13
    assert ((matrix @ a.unsqueeze(-1)).squeeze(-1) + a).abs().max() < 1e-14
    assert (matrix @ matrix - torch.eye(4, dtype=a.dtype)).abs().max() < 1e-14
    assert torch.equal(matrix, rotation(a, -3 * a))


def test_one_dimension_is_the_identity():
    a, b = torch.tensor([[2.0], [-1.0]]), torch.tensor([[-3.0], [-1.0]])
    v = torch.tensor([[5.0], [7.0]])
    assert torch.equal(rotate(a, b, v), v)


def test_exactly_parallel_float32_rows_are_finite():
    """1 - cos^2 is negative on a fifth of these; the authors' formula gives NaN there."""
    a = torch.randn(2000, 50)
    a.requires_grad_()
    b = (a.detach() * torch.rand(2000, 1)).requires_grad_()
    v = torch.randn(2000, 50)
    rotate(a, b, v).square().sum().backward()
    assert torch.isfinite(a.grad).all() and torch.isfinite(b.grad).all()


def test_sizes_that_differ_are_refused():
    with pytest.raises(ValueError, match="last dimensions 3 .a., 4 .b. and 3 .v."):
        rotate(torch.ones(3), torch.ones(4), torch.ones(3))
