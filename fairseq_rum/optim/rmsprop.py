"""``rmsprop``, which fairseq lacks, in torch's and in TensorFlow's reading."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II

from fairseq_rum.errors import InputError


@dataclass
class FairseqRMSpropConfig(FairseqDataclass):
    """Options of ``rmsprop``; the defaults are torch's but for the decay, which is the paper's."""

    rmsprop_decay: float = field(
        default=0.9, metadata={"help": "decay of the mean square gradient, in [0, 1)"}
    )
    rmsprop_eps: Optional[float] = field(
        default=None,
        metadata={
            "help": "epsilon, > 0 (default: torch's 1e-8; TensorFlow's 1e-10 with "
            "--rmsprop-eps-inside-sqrt)"
        },
    )
    rmsprop_eps_inside_sqrt: bool = field(
        default=False,
        metadata={
            "help": "divide by sqrt(mean square + epsilon), as TensorFlow does, instead of by "
            "sqrt(mean square) + epsilon, as torch does"
        },
    )
    rmsprop_start: float = field(
        default=0.0,
        metadata={
            "help": "mean square before the first gradient, >= 0: torch takes 0, TensorFlow 1"
        },
    )
    lr: List[float] = II("optimization.lr")


@register_optimizer("rmsprop", dataclass=FairseqRMSpropConfig)
class FairseqRMSprop(FairseqOptimizer):
    """RMSprop (Tieleman & Hinton 2012) for fairseq, see :class:`RMSprop`."""

    def __init__(self, cfg: FairseqRMSpropConfig, params: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(cfg)
        self._optimizer = RMSprop(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> Dict[str, Any]:
        """What overrides the options in a checkpoint when training is resumed."""
        lr = self.cfg.lr
        eps = self.cfg.rmsprop_eps
        if eps is None:
            eps = 1e-10 if self.cfg.rmsprop_eps_inside_sqrt else 1e-8
        return {
            "lr": lr[0] if isinstance(lr, Collection) else lr,
            "decay": self.cfg.rmsprop_decay,
            "eps": eps,
            "eps_inside_sqrt": self.cfg.rmsprop_eps_inside_sqrt,
            "start": self.cfg.rmsprop_start,
        }


class RMSprop(torch.optim.Optimizer):
    r"""RMSprop, where torch and TensorFlow differ in either's way.

    .. math::
        s_0 &= \text{start}\\
        s_t &= \rho s_{t-1} + (1 - \rho) g_t^2\\
        \theta_t &= \theta_{t-1} - \alpha \, g_t / (\sqrt{s_t} + \epsilon)
            &\text{(torch: start 0, } \epsilon = 10^{-8})\\
        \theta_t &= \theta_{t-1} - \alpha \, g_t / \sqrt{s_t + \epsilon}
            &\text{(TensorFlow: start 1, } \epsilon = 10^{-10})

    The first updates are large with start 0 (the first one is alpha / sqrt(1 - rho) in every
    coordinate) and small with start 1.

    Args:
        params: the parameters.
        lr: alpha.
        decay: rho.
        eps: epsilon.
        eps_inside_sqrt: the last equation instead of the one before.
        start: the mean square before the first gradient.

    Raises:
        InputError: an option is out of its range.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float = 1e-3,
        decay: float = 0.9,
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        start: float = 0.0,
    ) -> None:
        if not 0.0 <= decay < 1.0:
            raise InputError(f"--rmsprop-decay must lie in [0, 1), got {decay}")
        if not eps > 0.0:
            raise InputError(f"--rmsprop-eps must be positive, got {eps}")
        if not start >= 0.0:
            raise InputError(f"--rmsprop-start must be at least 0, got {start}")
        defaults = {
            "lr": lr,
            "decay": decay,
            "eps": eps,
            "eps_inside_sqrt": eps_inside_sqrt,
            "start": start,
        }
        super().__init__(params, defaults)

    @property
    def supports_flat_params(self) -> bool:
        """Yes: every coordinate is on its own."""
        return True

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:
        """One update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            for p in params:
                if "square_avg" not in self.state[p]:
                    self.state[p]["square_avg"] = torch.full_like(p, group["start"])
            grads = [p.grad for p in params]
            squares = [self.state[p]["square_avg"] for p in params]
            torch._foreach_mul_(squares, group["decay"])
            torch._foreach_addcmul_(squares, grads, grads, 1.0 - group["decay"])
            if group["eps_inside_sqrt"]:
                roots = torch._foreach_add(squares, group["eps"])
                torch._foreach_sqrt_(roots)
            else:
                roots = torch._foreach_sqrt(squares)
                torch._foreach_add_(roots, group["eps"])
            torch._foreach_addcdiv_(params, grads, roots, -group["lr"])
        return loss
