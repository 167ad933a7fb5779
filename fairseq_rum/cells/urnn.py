"""The full-capacity unitary network."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Tuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal

from fairseq_rum.cells.base import State
from fairseq_rum.cells.registry import register_cell
from fairseq_rum.cells.unitary import UnitaryCell


class _Complex(nn.Module):
    """A complex matrix stored as real numbers ``(N, N, 2)``, at least in single precision."""

    def forward(self, pairs: Tensor) -> Tensor:
        """``(N, N, 2)`` real -> ``(N, N)`` complex."""
        if pairs.dtype in (torch.float16, torch.bfloat16):
            pairs = pairs.float()
        return torch.view_as_complex(pairs)


class _Times(nn.Module):
    """The product with a constant unitary matrix, the point that the chart is centred at."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.empty(size, size, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a random unitary matrix."""
        size = self.centre.shape[0]
        # The Haar distribution.
        drawn = _unitary_part(torch.randn(size, size, dtype=torch.complex128))
        self.centre.copy_(torch.view_as_real(drawn))

    def forward(self, near_identity: Tensor) -> Tensor:
        """``(N, N)`` -> ``(N, N)``."""
        centre = self.centre
        if centre.dtype in (torch.float16, torch.bfloat16):
            # Rounding to half precision has taken the matrix off the group: put it back.
            centre = _unitary_part(torch.view_as_complex(centre.float()))
        else:
            centre = torch.view_as_complex(centre)
        return centre @ near_identity


def _unitary_part(matrix: Tensor) -> Tensor:
    """Q of M = QR, made unique by a positive diagonal of R: M itself where M is unitary."""
    q, r = torch.linalg.qr(matrix)
    return q * torch.sgn(r.diagonal())


class UnitaryMatrix(nn.Module):
    """A unitary matrix that any optimizer may train: ``weight``, complex, ``(N, N)``.

    ``weight = C (I - A/2)^-1 (I + A/2)`` with C a constant random unitary matrix and A
    skew-Hermitian, made of the N^2 numbers of the lower triangle (real and imaginary parts, on the
    diagonal the imaginary ones alone) of ``parametrizations.weight.original`` ``(N, N, 2)``, which
    starts at zero.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.zeros(size, size, 2))
        parametrize.register_parametrization(self, "weight", _Complex(), unsafe=True)
        orthogonal(self, "weight", "cayley", use_trivialization=False)
        parametrize.register_parametrization(self, "weight", _Times(size), unsafe=True)

    def reset_parameters(self) -> None:
        """A random matrix from the uniform (Haar) distribution on the unitary group."""
        nn.init.zeros_(self.parametrizations.weight.original)
        self.parametrizations.weight[-1].reset_parameters()

    def __reduce__(self) -> Tuple[Callable, Tuple[int], Dict[str, Any]]:
        # torch refuses to pickle a module with a parametrization: build one, then set its contents.
        return _unpickled, (self.size,), self.__dict__


def _unpickled(size: int) -> UnitaryMatrix:
    with torch.random.fork_rng(devices=[]):
        return UnitaryMatrix(size)


@register_cell("urnn")
class URNNCell(UnitaryCell):
    r"""Full-capacity unitary network: Wisdom et al., Full-Capacity Unitary Recurrent Neural
    Networks, NIPS 2016; the network is that of Arjovsky et al., ICML 2016.

    .. math::
        h_t &= \mathrm{modReLU}_b(W h_{t-1} + V x_t), \quad W^* W = I\\
        \mathrm{modReLU}_b(z) &= \mathrm{ReLU}(|z| + b) \, z / |z|

    W is any unitary matrix: full capacity, where products of a few structured factors leave most
    of them out. The paper trains it by a multiplicative step of its own along the group,
    :math:`W \leftarrow (I + \frac{\mu}{2} A)^{-1} (I - \frac{\mu}{2} A) W` with
    :math:`A = G W^* - W G^*` from the gradient G (Equation 6), beside another optimizer for the
    rest. Here the same Cayley map is a chart: :math:`W = C (I - \frac12 A)^{-1} (I + \frac12 A)`
    with a constant random C, and the skew-Hermitian A is what is trained, by
    torch.nn.utils.parametrizations.orthogonal. So one optimizer, with its momentum and adaptive
    steps, trains all parameters; W is unitary to rounding after every step, and errors don't add
    up over steps. A step of the same length moves W less the further A is from zero, and the
    matrices for which :math:`C^* W` has the eigenvalue -1 are reached in the limit only. Weight
    decay pulls W towards C.

    Args:
        input_size: N_x.
        hidden_size: N, the number of complex hidden units.

    Shapes:
        - input ``(B, N_x)``, output ``(B, N)``, the real part of the hidden state (the paper gives
          the output layer both parts: there a layer has 2N features, here N);
        - state ``(h, imag)``, real and imaginary parts, both ``(B, N)``.

    Parameters:
        - ``weight_ih`` ``(2N, N_x)``, the real and the imaginary rows of V: Glorot's uniform
          distribution, bound sqrt(6 / (N_x + 2N));
        - ``bias`` b ``(N,)``, zero;
        - ``initial`` h_0 ``(2N,)``, trained too, from U(-sqrt(3 / 2N), sqrt(3 / 2N)), so that
          :math:`E|h_0|^2 = 1`;
        - ``unitary``: N^2 numbers of A in a tensor of 2 N^2, whose upper triangle is unused; W
          starts at a random unitary matrix;
        - in all 2 N N_x + 3 N + 2 N^2, of which N^2 are unused.

    W is computed in single precision at least, then rounded to the dtype of the other weights.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size, True)
        self.initial = nn.Parameter(torch.empty(2 * hidden_size))
        self.unitary = UnitaryMatrix(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialized as in the papers, W at a random unitary matrix."""
        bound = math.sqrt(6.0 / (self.input_size + 2 * self.hidden_size))
        nn.init.uniform_(self.weight_ih, -bound, bound)
        nn.init.zeros_(self.bias)
        bound = math.sqrt(3.0 / (2 * self.hidden_size))
        nn.init.uniform_(self.initial, -bound, bound)
        self.unitary.reset_parameters()

    def init_state(self, batch: int) -> State:
        """The trained h_0, the same in every row."""
        real, imag = self.initial.expand(batch, -1).chunk(2, dim=-1)
        return real, imag

    def matrix(self) -> Tensor:
        """W for row vectors."""
        return self.unitary.weight.mT

    def rotation_weights(self) -> Dict[str, Tensor]:
        """The numbers of A."""
        return {"A": self.unitary.parametrizations.weight.original.detach()}
