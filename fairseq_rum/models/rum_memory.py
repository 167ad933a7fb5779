"""``rum_memory``: one-hot symbols, recurrent layers of any unit, and a linear classifier."""

from dataclasses import dataclass, field
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.models import BaseFairseqModel, register_model
from torch import Tensor, nn

from fairseq_rum.config import UnitConfig, build_unit, check_sizes, check_units
from fairseq_rum.data.memory_tasks import MemoryProblem
from fairseq_rum.errors import InputError
from fairseq_rum.layers import StackedRecurrent
from fairseq_rum.models.named_architectures import NamedArchitectures


@dataclass
class RumMemoryConfig(UnitConfig):
    """Options of ``rum_memory``."""

    rnn_unit: str = field(default="rum", metadata={"help": "recurrent unit: rum, lstm, gru, ..."})
    hidden_size: int = field(default=100, metadata={"help": "hidden size of the unit, N"})
    num_layers: int = field(default=1, metadata={"help": "number of layers, >= 1"})


@register_model("rum_memory", dataclass=RumMemoryConfig)
class RumMemory(NamedArchitectures, BaseFairseqModel):
    """The model of the memory tasks: h = units(one-hot x), logits = W h + b.

    Args:
        cfg: the options.
        problem: sizes of input and output, and at how many steps there is an answer.

    Shapes:
        - ``src_tokens`` ``(B, T)``, indices of input symbols;
        - output: logits ``(B, answer_steps, output_symbols)`` of the last so many steps.
    """

    base_config = RumMemoryConfig

    def __init__(self, cfg: RumMemoryConfig, problem: MemoryProblem) -> None:
        super().__init__()
        self.answer_steps = problem.answer_steps
        self.rnn = StackedRecurrent(
            lambda size: build_unit(cfg, cfg.rnn_unit, size, cfg.hidden_size),
            problem.input_symbols,
            cfg.num_layers,
            backend=cfg.rnn_backend,
        )
        self.output_projection = nn.Linear(self.rnn.output_size, problem.output_symbols)
        nn.init.xavier_uniform_(self.output_projection.weight)
        nn.init.zeros_(self.output_projection.bias)
        self.register_buffer("one_hot", torch.eye(problem.input_symbols), persistent=False)

    @classmethod
    def build_model(cls, cfg: RumMemoryConfig, task: Any) -> "RumMemory":
        """Build the model for a memory task.

        Raises:
            InputError: an option is out of its range, belongs to a unit that the model does not
                use, or the task is no memory task.
        """
        problem: Optional[MemoryProblem] = getattr(task, "problem", None)
        if problem is None:
            raise InputError(
                "--arch rum_memory needs --task copying_memory or --task associative_recall"
            )
        check_units(cfg, [cfg.rnn_unit], cls.preset())
        check_sizes(cfg, ("hidden_size", "num_layers"))
        return cls(cfg, problem)

    def forward(self, src_tokens: Tensor) -> Tensor:
        """Logits at the steps that have an answer."""
        features, _ = self.rnn(F.embedding(src_tokens, self.one_hot))
        return self.output_projection(features[:, -self.answer_steps :])
