"""From the final state of a bidirectional encoder to the first state of a decoder."""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_rum.cells import RecurrentCell, State
from fairseq_rum.modules.initialization import truncated_normal_


def vector_parts(shapes: Mapping[str, Tuple[int, ...]]) -> Dict[str, int]:
    """The parts of a unit's state that are vectors: name -> size, h first."""
    return {name: shape[0] for name, shape in shapes.items() if len(shape) == 1}


def join_vectors(cell: RecurrentCell, state: State) -> Tensor:
    """All vectors of a unit's state side by side: [h; c] of an LSTM, h of a RUM."""
    vectors = [part for part, shape in zip(state, cell.state_shapes.values()) if len(shape) == 1]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=-1)


class StateBridge(nn.Module):
    r"""The decoder's first state from the encoder's last one, for any two units.

    See et al.'s code makes the state of an LSTM from that of a bidirectional one by

    .. math::
        h = \mathrm{relu}(W_h [h_f; h_b] + b_h), \quad c = \mathrm{relu}(W_c [c_f; c_b] + b_c)

    Of other units the parts of the state may differ. A part of the decoder's state is made from the
    encoder's part of the same name, or from h where the encoder has none of that name. The
    encoder's parts that the decoder lacks would be lost; they join h in a second layer, so that
    from LSTM to RUM, with h' and c' the right-hand sides above,

    .. math::
        h = \mathrm{relu}(W [h'; c'] + b)

    Only vectors take part. A matrix, such as RUM's associative memory R, starts as the decoder's
    unit says, and that of the encoder is not used.

    Args:
        encoder: the encoder's unit; its state in both directions is the input.
        decoder: the decoder's unit.

    Initialized as the original code: normal with standard deviation 1e-4, biases too. The second
    layer, which is not in it, is uniform by Glorot: behind a first one of 1e-4, another one of
    1e-4 would pass next to nothing, in either direction (our reading).
    """

    def __init__(self, encoder: RecurrentCell, decoder: RecurrentCell) -> None:
        super().__init__()
        sources = vector_parts(encoder.state_shapes)
        targets = vector_parts(decoder.state_shapes)
        unused = [name for name in sources if name not in targets]
        self.encoder_parts = list(sources)
        self.decoder_parts = list(decoder.state_shapes)
        self.inputs: Dict[str, List[str]] = {}
        self.maps = nn.ModuleDict()
        self.joins = nn.ModuleDict()
        for name, size in targets.items():
            inputs = [name if name in sources else "h"]
            if name == "h":
                inputs += unused
            self.inputs[name] = inputs
            for source in inputs:
                self.maps[_key(name, source)] = nn.Linear(2 * sources[source], size)
            if len(inputs) > 1:
                self.joins[name] = nn.Linear(len(inputs) * size, size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the class says."""
        for linear in self.maps.values():
            for parameter in linear.parameters():
                truncated_normal_(parameter)
        for linear in self.joins.values():
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, final: Sequence[Tensor], start: State) -> State:
        """The decoder's first state.

        Args:
            final: the vectors of the encoder's state in their order, ``(B, 2 size)`` each: both
                directions side by side.
            start: the initial state of the decoder's unit.
        """
        last = dict(zip(self.encoder_parts, final))
        state = []
        for name, initial in zip(self.decoder_parts, start):
            if name not in self.inputs:
                state.append(initial)
                continue
            parts = [F.relu(self.maps[_key(name, s)](last[s])) for s in self.inputs[name]]
            if len(parts) == 1:
                state.append(parts[0])
            else:
                state.append(F.relu(self.joins[name](torch.cat(parts, dim=-1))))
        return tuple(state)


def _key(target: str, source: str) -> str:
    return f"{target}_from_{source}"
