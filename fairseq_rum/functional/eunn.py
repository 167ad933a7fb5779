r"""Efficient unitary transforms: products of layers of rotations in planes of two coordinates.

Jing et al. (ICML 2017, Tunable Efficient Unitary Neural Networks) build a unitary matrix from
layers; a layer rotates disjoint pairs (i, j) of coordinates, i < j, all at once:

.. math::
    y_i = e^{i\varphi} (\cos\theta \, x_i - \sin\theta \, x_j), \qquad
    y_j = \sin\theta \, x_i + \cos\theta \, x_j

With :math:`\varphi = 0` the transform is real and orthogonal. The complex one ends in a diagonal
of phases :math:`e^{i\omega}`. Two arrangements of pairs:

- tunable: layers with the pairs (0, 1), (2, 3), ... and layers with (1, 2), (3, 4), ... take
  turns; the number of layers is the capacity, and N layers reach every unitary matrix;
- FFT: the pairs of a layer are a power of two apart, N/2, N/4, ... 1 as in the fast Fourier
  transform. For an N that is no power of two the coordinates without partner stay as they are.

A layer costs O(N): one product with the coefficients of the coordinates themselves, one with those
of their partners. There is no loop over pairs.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor


class EunnLayout(NamedTuple):
    """Which coordinates are rotated together.

    Attributes:
        partner: ``(L, N)``, the other coordinate of the pair; the coordinate itself if it has none.
        slot: ``(L, N)``, k for the first coordinate of pair k, K + k for the second one of it, and
            2K for a coordinate without partner.
        pairs: K, the number of pairs in all layers, which is the number of angles.
    """

    partner: Tensor
    slot: Tensor
    pairs: int


def eunn_layout(size: int, capacity: Optional[int] = None, fft: bool = False) -> EunnLayout:
    """The pairs of every layer.

    Args:
        size: N.
        capacity: L, the number of layers of the tunable arrangement; 2 when None.
        fft: the FFT arrangement, which has ceil(log2 N) layers.

    Raises:
        ValueError: N = 1, a capacity that is odd or outside [2, N], or one together with ``fft``.
    """
    if size < 2:
        raise ValueError(f"a rotation of pairs needs a hidden size of at least 2, got {size}")
    if fft:
        if capacity is not None:
            raise ValueError("capacity and fft exclude each other: fft has log2 of the size layers")
        layers = _fft_pairs(size)
    else:
        capacity = 2 if capacity is None else capacity
        if capacity % 2 or not 2 <= capacity <= size:
            raise ValueError(
                f"capacity must be even, from 2 to the hidden size {size}, got {capacity}"
            )
        layers = [_neighbours(size, layer % 2) for layer in range(capacity)]
    pairs = sum(len(first) for first, _ in layers)
    partner = torch.arange(size).repeat(len(layers), 1)
    slot = torch.full((len(layers), size), 2 * pairs)
    start = 0
    for layer, (first, second) in enumerate(layers):
        angles = torch.arange(start, start + len(first))
        partner[layer, first], partner[layer, second] = second, first
        slot[layer, first], slot[layer, second] = angles, pairs + angles
        start += len(first)
    return EunnLayout(partner, slot, pairs)


def _neighbours(size: int, offset: int) -> Tuple[Tensor, Tensor]:
    first = torch.arange(offset, size - 1, 2)
    return first, first + 1


def _fft_pairs(size: int) -> List[Tuple[Tensor, Tensor]]:
    coordinates = torch.arange(size)
    layers = []
    distance = 1 << ((size - 1).bit_length() - 1)
    while distance:
        first = coordinates[(coordinates // distance % 2 == 0) & (coordinates + distance < size)]
        layers.append((first, first + distance))
        distance //= 2
    return layers


def eunn_coefficients(
    slot: Tensor, theta: Tensor, phi: Optional[Tensor] = None, omega: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """What every layer multiplies the coordinates and their partners by.

    Args:
        slot: from :func:`eunn_layout`.
        theta: the angles, ``(K,)``.
        phi: the phases of the pairs, ``(K,)``; None for a real transform.
        omega: the phases at the end, ``(N,)``; None for a real transform.

    Returns:
        The coefficients of the coordinates and of their partners, ``(L, N)``, complex if phi is
        given. Angles of half precision are computed with in float32.
    """
    if theta.dtype in (torch.float16, torch.bfloat16):
        theta = theta.float()
    cos, sin = torch.cos(theta), torch.sin(theta)
    one, zero = cos.new_ones(1), cos.new_zeros(1)
    if phi is None:
        own = torch.cat((cos, cos, one))
        other = torch.cat((-sin, sin, zero))
        return own[slot], other[slot]
    phase = torch.polar(torch.ones_like(theta), phi.to(theta.dtype))
    own = torch.cat((cos * phase, torch.cat((cos, one)).to(phase.dtype)))[slot]
    other = torch.cat((-sin * phase, torch.cat((sin, zero)).to(phase.dtype)))[slot]
    if omega is not None:
        end = torch.polar(torch.ones_like(theta[:1]), omega.to(theta.dtype))
        own = torch.cat((own[:-1], own[-1:] * end))
        other = torch.cat((other[:-1], other[-1:] * end))
    return own, other


def eunn_rotate(x: Tensor, partner: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """Apply all layers to vectors, in O(L N).

    Args:
        x: ``(..., N)``, complex if the coefficients are.
        partner: from :func:`eunn_layout`.
        own, other: from :func:`eunn_coefficients`.

    Returns:
        The transformed vectors, of the shape of x.
    """
    for places, diagonal, swapped in zip(partner.unbind(0), own.unbind(0), other.unbind(0)):
        x = torch.addcmul(x * diagonal, _Swap.apply(x, places), swapped)
    return x


def eunn_matrix(partner: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """The transform as a matrix M, ``(N, N)``, for row vectors: ``eunn_rotate(x, ...) = x @ M``."""
    return eunn_rotate(
        torch.eye(own.shape[-1], dtype=own.dtype, device=own.device), partner, own, other
    )


class _Swap(torch.autograd.Function):
    """``x[..., partner]`` for a permutation that is its own inverse: its gradient is a swap too,
    not the slow scattered sum that autograd would do."""

    @staticmethod
    def forward(ctx, x: Tensor, partner: Tensor) -> Tensor:  # noqa: ANN001
        ctx.save_for_backward(partner)
        return x.index_select(-1, partner)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tuple[Tensor, None]:  # noqa: ANN001
        (partner,) = ctx.saved_tensors
        return _Swap.apply(gradient, partner), None
