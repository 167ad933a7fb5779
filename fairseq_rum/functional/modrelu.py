r"""modReLU, the activation of unitary networks: it changes the modulus and keeps the phase.

Arjovsky et al. (ICML 2016): :math:`\mathrm{modReLU}_b(z) = \mathrm{ReLU}(|z| + b) \, z / |z|`.

At z = 0, where that has no value, it is zero here. For b > 0 it jumps there: the direction of a
small z decides on a result of modulus b. For complex numbers a modulus below ``MODULUS_FLOOR``
counts as that, which makes the function continuous and bounds its gradient by b / floor.
"""

from __future__ import annotations

import torch
from torch import Tensor

MODULUS_FLOOR = 1e-5


def modrelu(z: Tensor, bias: Tensor) -> Tensor:
    """modReLU of real numbers: ``sign(z) ReLU(|z| + bias)``.

    Args:
        z: ``(..., N)``.
        bias: ``(N,)``.

    Returns:
        The activated values, of the shape of z.
    """
    return torch.sign(z) * torch.relu(z.abs() + bias)


def modrelu_pairs(z: Tensor, bias: Tensor) -> Tensor:
    """modReLU of complex numbers that are given as real and imaginary parts.

    Args:
        z: ``(..., 2, N)``, the real parts and the imaginary parts.
        bias: ``(N,)``, real.

    Returns:
        The activated values, of the shape of z.
    """
    dtype = z.dtype
    if dtype == torch.float16:  # where the square of the floor is zero
        z = z.float()
    # Far faster on CPU than a norm over the second last dimension, and no NaN behind a zero.
    real, imag = z.unbind(-2)
    squares = torch.addcmul(real * real, imag, imag).clamp_min(MODULUS_FLOOR**2)
    modulus = squares.sqrt().unsqueeze(-2)
    return (z * (torch.relu(modulus + bias) / modulus)).to(dtype)
