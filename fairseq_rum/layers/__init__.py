"""Units over sequences; :class:`RUM` is a drop-in for torch.nn.LSTM and needs no fairseq."""

from fairseq_rum.layers.recurrent import RecurrentLayer, StackedRecurrent
from fairseq_rum.layers.rnn import RNN, RUM

__all__ = ["RNN", "RUM", "RecurrentLayer", "StackedRecurrent"]
