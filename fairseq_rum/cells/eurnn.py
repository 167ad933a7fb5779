"""The recurrent network with a tunable efficient unitary matrix."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq_rum.cells.base import State
from fairseq_rum.cells.registry import register_cell
from fairseq_rum.cells.unitary import PairRotations, UnitaryCell


@register_cell("eurnn")
class EURNNCell(UnitaryCell):
    r"""Efficient unitary network: Jing et al., Tunable Efficient Unitary Neural Networks (EUNN) and
    their Application to RNNs, ICML 2017.

    .. math::
        h_t &= \mathrm{modReLU}_b(W h_{t-1} + V x_t)\\
        W &= D \, F_L \cdots F_2 F_1     & \text{(Equations 5 and 7 of the paper)}\\
        \mathrm{modReLU}_b(z) &= \mathrm{ReLU}(|z| + b) \, z / |z|

    Every F rotates disjoint pairs of coordinates, D is a diagonal of phases: see
    :mod:`fairseq_rum.functional.eunn`. W is unitary (orthogonal for real numbers) whatever the
    angles are, so any optimizer trains it. W is multiplied out once a sequence, or applied layer
    by layer when N is large for the number of layers.

    Args:
        input_size: N_x.
        hidden_size: N, the number of complex (or real) hidden units.
        capacity: L, the number of layers of the tunable arrangement, even, from 2 to N; 2 when
            None.
        fft: the FFT arrangement instead, with ceil(log2 N) layers.
        field: ``complex``, as in the paper, or ``real``.

    Shapes:
        - input ``(B, N_x)``, output ``(B, N)``: the real part of the hidden state, which is what
          the authors' code gives to the output layer;
        - state ``(h, imag)``, real and imaginary parts, both ``(B, N)``; ``(h,)`` if real.

    Parameters:
        - ``weight_ih`` ``(2N, N_x)``, the real and the imaginary rows of V, from U(-0.01, 0.01);
        - ``bias`` b ``(N,)``, zero;
        - ``rotations.theta`` and ``rotations.phi`` ``(K,)``, ``rotations.omega`` ``(N,)``, from
          U(-pi, pi), where K = L/2 (floor(N/2) + floor((N-1)/2)), or (N/2) log2 N with ``fft`` for
          a power of two;
        - in all 2 N N_x + 2 N + 2 K; if real ``weight_ih`` is ``(N, N_x)`` and phi and omega don't
          exist, in all N N_x + N + K.

    Raises:
        ValueError: N = 1, capacity odd or outside [2, N] or together with ``fft``, unknown field.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        capacity: Optional[int] = None,
        fft: bool = False,
        field: str = "complex",
    ) -> None:
        if field not in ("complex", "real"):
            raise ValueError(f"field must be complex or real, got {field!r}")
        super().__init__(input_size, hidden_size, field == "complex")
        self.rotations = PairRotations(hidden_size, capacity, fft, self.is_complex)
        self.fft = fft
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small input weights, no bias, all angles uniform on the circle."""
        nn.init.uniform_(self.weight_ih, -0.01, 0.01)
        nn.init.zeros_(self.bias)
        self.rotations.reset_parameters()

    def matrix(self) -> Tensor:
        """W for row vectors."""
        return self.rotations.matrix()

    def derive(self) -> Tuple[Tensor, ...]:
        """W, or the coefficients of its layers."""
        return super().derive() if self.rotations.as_matrix else self.rotations.coefficients()

    def recurrent(self, projected: Tensor, state: State) -> Tensor:
        """W h + V x."""
        if self.rotations.as_matrix:
            return super().recurrent(projected, state)
        own, other = self.derived
        if not self.is_complex:
            return projected + self.rotations(state[0], own, other).to(projected.dtype)
        h = torch.complex(*(part.to(own.real.dtype) for part in state))
        rotated = torch.view_as_real(self.rotations(h, own, other)).movedim(-1, -2).flatten(-2)
        return projected + rotated.to(projected.dtype)

    def rotation_weights(self) -> Dict[str, Tensor]:
        """The angles and phases of W."""
        angles = self.rotations.named_parameters("rotations")
        return {name: value.detach() for name, value in angles}

    def extra_repr(self) -> str:
        """Sizes and options, for ``print(model)``."""
        field = "complex" if self.is_complex else "real"
        layers = len(self.rotations.partner)
        return f"{super().extra_repr()}, layers={layers}, fft={self.fft}, field={field}"
