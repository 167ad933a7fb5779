"""The rotation of RUM: turn the direction of one vector into that of another.

Equation 1 of Dangovski et al. (TACL 7, 2019) writes ``Rotation(a, b)`` with the angle between a
and b, that is with ``arccos`` and ``sqrt(1 - cos^2)``, whose gradients are infinite for parallel
vectors. The same matrix is the product of two Householder reflections

    p = a / |a|,  q = b / |b|,  s = (p + q) / |p + q|,  H_x v = v - 2 (x . v) x
    Rotation(a, b) = H_s H_p

since H_p sends p to -p, H_s sends -p to q, and both leave the complement of span(a, b) alone.
This form has no square root of a difference and is orthogonal to rounding for any unit vectors
p and s, however inexact their directions.

Where Equation 1 defines nothing, this module does:

- |a| or |b| at most ``eps ** 2``, or N = 1: the identity, with zero gradient to a and b;
- |p + q| below ``sqrt(eps)`` (antiparallel, no plane is singled out): the rotation by pi in the
  plane of p and of one fixed vector perpendicular to p, with zero gradient to a and b. Outside
  this zone the gradient grows as 1 / |p + q|, so the zone is also what bounds it.

``eps`` is the machine epsilon of the dtype that is computed in: float32 for half precision.
"""

from __future__ import annotations

from typing import Tuple

import torch
from torch import Tensor

from fairseq_rum.compat import is_tracing


def rotate(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """Apply ``Rotation(a, b)`` to v in O(N), without forming the matrix.

    Args:
        a: vectors whose direction is turned, shape ``(..., N)``.
        b: vectors that give the new direction, shape ``(..., N)``.
        v: vectors to rotate, shape ``(..., N)``. The leading dimensions of the three broadcast.

    Returns:
        The rotated vectors, of the broadcast shape and of the dtype of v; float16 and bfloat16
        are computed in float32.

    Raises:
        ValueError: the last dimensions differ.
    """
    p, s = _reflection_vectors(a, b, v)
    return _reflect(s, _reflect(p, v.to(p.dtype))).to(v.dtype)


def rotation(a: Tensor, b: Tensor) -> Tensor:
    """The matrix ``Rotation(a, b)`` of Equation 1, shape ``(..., N, N)``.

    Args:
        a: vectors whose direction is turned, shape ``(..., N)``.
        b: vectors that give the new direction, shape ``(..., N)``.

    Returns:
        Orthogonal matrices of determinant 1, of the dtype of a and b, with
        ``rotation(a, b) @ a / |a| = b / |b|``.

    Raises:
        ValueError: the last dimensions differ.
    """
    basis = torch.eye(a.shape[-1], dtype=torch.promote_types(a.dtype, b.dtype), device=a.device)
    # Row i is the image of the i-th basis vector, which is column i of the matrix.
    return rotate(a.unsqueeze(-2), b.unsqueeze(-2), basis).transpose(-1, -2)


def compose_rotation(memory: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``memory @ Rotation(a, b)`` in O(N^2), the update of the associative memory (lambda = 1).

    Args:
        memory: matrices R_{t-1}, shape ``(..., N, N)``.
        a: vectors whose direction is turned, shape ``(..., N)``.
        b: vectors that give the new direction, shape ``(..., N)``.

    Returns:
        R_t, of the shape and dtype of ``memory``.

    Raises:
        ValueError: the last dimensions differ.
    """
    p, s = _reflection_vectors(a, b, memory)
    # Reflections are symmetric: the rows r of R become H_p H_s r.
    rows = _reflect(s.unsqueeze(-2), memory.to(p.dtype))
    return _reflect(p.unsqueeze(-2), rows).to(memory.dtype)


def _reflect(x: Tensor, v: Tensor) -> Tensor:
    """H_x v = v - 2 (x . v) x for unit x; the identity for x = 0."""
    return v - 2 * (x * v).sum(-1, keepdim=True) * x


def _reflection_vectors(a: Tensor, b: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
    """The unit vectors p and s of ``Rotation(a, b) = H_s H_p``; both zero for the identity."""
    size = v.shape[-1]
    if a.shape[-1] != size or b.shape[-1] != size:
        raise ValueError(
            "rotation needs vectors of one size, got last dimensions "
            f"{a.shape[-1]} (a), {b.shape[-1]} (b) and {size} (v)"
        )
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), v.dtype)
    if dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    a, b = torch.broadcast_tensors(a.to(dtype), b.to(dtype))
    eps = torch.finfo(dtype).eps

    norm_a = torch.linalg.vector_norm(a, dim=-1, keepdim=True)
    norm_b = torch.linalg.vector_norm(b, dim=-1, keepdim=True)
    turns = (norm_a > eps**2) & (norm_b > eps**2)
    if size == 1:
        turns = torch.zeros_like(turns)
    # The inner `where` keeps 0/0 out of the backward pass, the outer one selects.
    p = torch.where(turns, a / torch.where(turns, norm_a, 1.0), 0.0)
    q = torch.where(turns, b / torch.where(turns, norm_b, 1.0), 0.0)

    w = p + q
    norm_w = torch.linalg.vector_norm(w, dim=-1, keepdim=True)
    antiparallel = turns & (norm_w < eps**0.5)
    s = torch.where(antiparallel | ~turns, 0.0, w / torch.where(norm_w > 0, norm_w, 1.0))
    if is_tracing() or bool(antiparallel.any()):
        fixed = p.detach()
        p = torch.where(antiparallel, fixed, p)
        s = torch.where(antiparallel, _perpendicular(fixed), s)
    return p, s


def _perpendicular(p: Tensor) -> Tensor:
    """A unit vector perpendicular to the unit vector p, made of the basis vector least along p."""
    axis = torch.zeros_like(p).scatter_(-1, p.abs().argmin(-1, keepdim=True), 1.0)
    s = axis - (axis * p).sum(-1, keepdim=True) * p
    return s / torch.linalg.vector_norm(s, dim=-1, keepdim=True).clamp_min(0.5)
