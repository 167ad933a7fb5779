"""What the unitary networks share: the step, the complex state, the layers of pair rotations."""

from __future__ import annotations

import math
from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.cells.base import RecurrentCell, State
from fairseq_rum.functional import (
    eunn_coefficients,
    eunn_layout,
    eunn_matrix,
    eunn_rotate,
    modrelu,
    modrelu_pairs,
)


class UnitaryCell(RecurrentCell):
    r"""A network :math:`h_t = \mathrm{modReLU}_b(W h_{t-1} + V x_t)` with a unitary W.

    A subclass has :meth:`matrix`. Complex numbers are pairs of real tensors, so that checkpoints,
    masks, optimizers and half precision need to know nothing of them: N complex hidden units have
    the state ``(h, imag)``, the real and imaginary parts, both ``(B, N)``. The output is h, the
    real part: the papers' N counts complex units, and the output of a unit here has N features.

    Args:
        input_size: N_x.
        hidden_size: N.
        is_complex: complex or real numbers.

    Parameters: ``weight_ih`` ``(2N, N_x)``, the real and imaginary rows of V, or ``(N, N_x)`` for
    real numbers; ``bias`` b ``(N,)``, real.
    """

    def __init__(self, input_size: int, hidden_size: int, is_complex: bool) -> None:
        super().__init__(input_size, hidden_size)
        self.is_complex = is_complex
        parts = 2 if is_complex else 1
        self.weight_ih = nn.Parameter(torch.empty(parts * hidden_size, input_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))

    @property
    def state_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """``h`` and, for complex numbers, the imaginary part ``imag``."""
        n = self.hidden_size
        return {"h": (n,), "imag": (n,)} if self.is_complex else {"h": (n,)}

    def matrix(self) -> Tensor:
        """W as ``(N, N)`` for row vectors, ``W h`` being ``h @ matrix()``; complex or real."""
        raise NotImplementedError

    def derive(self) -> Tuple[Tensor, ...]:
        """W for rows of real numbers: ``(N, N)``, or ``(2N, 2N)`` for rows (real, imaginary)."""
        w = self.matrix()
        if self.is_complex:
            real, imag = w.real, w.imag
            w = torch.cat((torch.cat((real, imag), -1), torch.cat((-imag, real), -1)))
        return (w.to(self.weight_ih.dtype),)

    def project_input(self, x: Tensor) -> Tensor:
        """V x: ``(..., N_x) -> (..., 2N)``, real and imaginary parts; ``(..., N)`` if real."""
        return F.linear(x, self.weight_ih)

    def recurrent(self, projected: Tensor, state: State) -> Tensor:
        """W h + V x, the real and imaginary parts side by side."""
        (w,) = self.derived
        h = torch.cat(state, dim=-1) if self.is_complex else state[0]
        return torch.addmm(projected, h, w)

    def step(self, projected: Tensor, state: State) -> Tuple[Tensor, State]:
        """One step."""
        z = self.recurrent(projected, state)
        if not self.is_complex:
            h = modrelu(z, self.bias)
            return h, (h,)
        h, imag = modrelu_pairs(z.unflatten(-1, (2, -1)), self.bias).unbind(-2)
        return h, (h, imag)


class PairRotations(nn.Module):
    """The unitary transform of :mod:`fairseq_rum.functional.eunn` with its angles as parameters.

    Args:
        size: N.
        capacity: the number of layers, even, from 2 to N; 2 when None.
        fft: the FFT arrangement instead, with ceil(log2 N) layers.
        is_complex: unitary (True) or orthogonal (False).

    Parameters: ``theta`` ``(K,)`` and, if complex, ``phi`` ``(K,)`` and ``omega`` ``(N,)``, all
    drawn from U(-pi, pi). K = L (N - 1) / 2, or what
    :func:`fairseq_rum.functional.eunn.eunn_layout` says for the FFT arrangement.

    Raises:
        ValueError: as :func:`fairseq_rum.functional.eunn.eunn_layout`.
    """

    def __init__(self, size: int, capacity: Optional[int], fft: bool, is_complex: bool) -> None:
        super().__init__()
        partner, slot, pairs = eunn_layout(size, capacity, fft)
        self.register_buffer("partner", partner, persistent=False)
        self.register_buffer("slot", slot, persistent=False)
        # Where one product with the whole matrix, made once a sequence, costs less than the layers
        # in every step: measured on CPU for 2 to 10 layers.
        self.as_matrix = size <= 64 * len(partner)
        self.theta = nn.Parameter(torch.empty(pairs))
        self.phi = nn.Parameter(torch.empty(pairs)) if is_complex else None
        self.omega = nn.Parameter(torch.empty(size)) if is_complex else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All angles uniform on the circle."""
        for angles in self.parameters():
            nn.init.uniform_(angles, -math.pi, math.pi)

    def coefficients(self) -> Tuple[Tensor, Tensor]:
        """What the layers multiply by, ``(L, N)``, computed from the angles."""
        return eunn_coefficients(self.slot, self.theta, self.phi, self.omega)

    def matrix(self) -> Tensor:
        """The transform as ``(N, N)`` for row vectors."""
        return eunn_matrix(self.partner, *self.coefficients())

    def forward(self, x: Tensor, own: Tensor, other: Tensor) -> Tensor:
        """Apply the layers with these :meth:`coefficients`: ``(..., N) -> (..., N)``."""
        return eunn_rotate(x.to(own.dtype), self.partner, own, other)
