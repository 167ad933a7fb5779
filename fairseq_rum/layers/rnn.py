"""Units with the calling convention of torch.nn.LSTM and torch.nn.GRU."""

from __future__ import annotations

from typing import List, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from fairseq_rum.cells import State, build_cell
from fairseq_rum.layers.recurrent import StackedRecurrent

Hidden = Union[Tensor, Tuple[Tensor, ...]]


class RNN(nn.Module):
    """Any registered unit as a drop-in for torch.nn.LSTM.

    Args:
        unit: name of the unit.
        input_size: features of the input.
        hidden_size: N, features of the output of one direction.
        num_layers: layers on top of each other.
        batch_first: input and output are ``(B, T, features)`` instead of ``(T, B, features)``; as
            in torch, the hidden state is not concerned.
        dropout: probability, on the outputs of every layer but the last.
        bidirectional: run in both directions and concatenate the outputs.
        backend: which version of the unit's loop, see :func:`fairseq_rum.kernels.run_sequence`.
        device, dtype: of the parameters.
        options: the unit's own, such as ``lambda_`` and ``eta`` of RUM.

    Shapes (D = 2 if bidirectional, else 1; L = num_layers):
        - input ``(T, B, N_x)``, ``(B, T, N_x)``, ``(T, N_x)`` without batch, or a PackedSequence;
        - output ``(T, B, D N)`` alike, zero at padded steps of a PackedSequence;
        - hidden state ``(D L, B, N)``. A unit with several state tensors takes and returns a tuple
          of them, as torch.nn.LSTM does: ``(h, R)`` for RUM with lambda = 1, where R is
          ``(D L, B, N, N)``; a unit with one takes and returns that tensor, as torch.nn.GRU does.

    Raises:
        InputError: unknown unit, option or backend, or an option out of its range.
        ValueError: an input or hidden state of the wrong shape.
    """

    def __init__(
        self,
        unit: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        backend: str = "auto",
        device: Optional[torch.device] = None,
        dtype: Optional[torch.dtype] = None,
        **options: object,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.batch_first = batch_first
        self.bidirectional = bidirectional
        self.stack = StackedRecurrent(
            lambda size: build_cell(unit, size, hidden_size, **options),
            input_size,
            num_layers,
            bidirectional,
            dropout,
            backend,
        )
        self.to(device=device, dtype=dtype)

    def forward(
        self, input: Union[Tensor, PackedSequence], hx: Optional[Hidden] = None
    ) -> Tuple[Union[Tensor, PackedSequence], Hidden]:
        """Run the unit; the shapes are in the class docstring."""
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"expected an input of 2 or 3 dimensions with {self.input_size} features, "
                f"got shape {tuple(input.shape)}"
            )
        batched = input.dim() == 3
        if not batched:
            x = input.unsqueeze(0)
        else:
            x = input if self.batch_first else input.transpose(0, 1)
        states = self._split(hx, x.shape[0], batched)
        output, final = self.stack(x, states)
        hidden = self._join(final, batched)
        if not batched:
            return output.squeeze(0), hidden
        return (output if self.batch_first else output.transpose(0, 1)), hidden

    def _forward_packed(
        self, packed: PackedSequence, hx: Optional[Hidden]
    ) -> Tuple[PackedSequence, Hidden]:
        x, lengths = pad_packed_sequence(packed, batch_first=True)
        steps = torch.arange(x.shape[1], device=x.device)
        padding_mask = steps.unsqueeze(0) >= lengths.to(x.device).unsqueeze(1)
        states = self._split(hx, x.shape[0], True)
        output, final = self.stack(x, states, padding_mask if bool(padding_mask.any()) else None)
        repacked = pack_padded_sequence(
            output, lengths, batch_first=True, enforce_sorted=packed.sorted_indices is None
        )
        return repacked, self._join(final, True)

    def _split(self, hx: Optional[Hidden], batch: int, batched: bool) -> Optional[List[State]]:
        """torch's stacked hidden state -> one state for every layer and direction."""
        if hx is None:
            return None
        shapes = self.stack.layers[0].cell.state_shapes
        parts = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        if len(parts) != len(shapes):
            raise ValueError(
                f"expected a hidden state of {len(shapes)} tensors "
                f"({', '.join(shapes)}), got {len(parts)}"
            )
        if not batched:
            parts = tuple(part.unsqueeze(1) for part in parts)
        for part, (name, shape) in zip(parts, shapes.items()):
            expected = (len(self.stack.layers), batch, *shape)
            if tuple(part.shape) != expected:
                raise ValueError(
                    f"expected hidden state {name} of shape {expected}, got {tuple(part.shape)}"
                )
        return list(zip(*(part.unbind(0) for part in parts)))

    def _join(self, states: List[State], batched: bool) -> Hidden:
        parts = tuple(torch.stack(part, dim=0) for part in zip(*states))
        if not batched:
            parts = tuple(part.squeeze(1) for part in parts)
        return parts[0] if len(parts) == 1 else parts


class RUM(RNN):
    """The Rotational Unit of Memory as a drop-in for torch.nn.LSTM.

    Args:
        input_size, hidden_size, num_layers, batch_first, dropout, bidirectional: as in torch.
        lambda_, eta, activation, update_gate, bias: see :class:`fairseq_rum.cells.RUMCell`.
        kwargs: backend, device and dtype, see :class:`RNN`; other options of the unit.

    Example:
        >>> rum = RUM(10, 20, num_layers=2, lambda_=1)
        >>> output, (h, memory) = rum(torch.randn(5, 3, 10))
        >>> output.shape, h.shape, memory.shape
        (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]), torch.Size([2, 3, 20, 20]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        lambda_: int = 0,
        eta: Optional[float] = None,
        activation: str = "relu",
        update_gate: bool = True,
        **kwargs: object,
    ) -> None:
        super().__init__(
            "rum",
            input_size,
            hidden_size,
            num_layers,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            bias=bias,
            lambda_=lambda_,
            eta=eta,
            activation=activation,
            update_gate=update_gate,
            **kwargs,
        )
