"""``rum_adagrad``: Adagrad whose accumulators start above zero, which fairseq's does not offer."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II

from fairseq_rum.errors import InputError


@dataclass
class FairseqAdagradConfig(FairseqDataclass):
    """Options of ``rum_adagrad``; the defaults are those of See et al. 2017."""

    adagrad_initial_accumulator: float = field(
        default=0.1, metadata={"help": "sum of squared gradients before the first one, >= 0"}
    )
    adagrad_eps: float = field(
        default=1e-10,
        metadata={"help": "added to the root of the sum, >= 0, as in torch; TensorFlow has none"},
    )
    lr: List[float] = II("optimization.lr")


@register_optimizer("rum_adagrad", dataclass=FairseqAdagradConfig)
class FairseqAdagrad(FairseqOptimizer):
    r"""Adagrad (Duchi et al. 2011) for fairseq, as TensorFlow starts it.

    .. math::
        s_0 &= \text{initial accumulator}\\
        s_t &= s_{t-1} + g_t^2\\
        \theta_t &= \theta_{t-1} - \alpha \, g_t / (\sqrt{s_t} + \epsilon)

    With s_0 = 0, as fairseq's ``adagrad`` has it, the first update is alpha in every coordinate,
    however small its gradient.

    Raises:
        InputError: an option is out of its range.
    """

    def __init__(self, cfg: FairseqAdagradConfig, params: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(cfg)
        for name in ("adagrad_initial_accumulator", "adagrad_eps"):
            if not getattr(cfg, name) >= 0.0:
                flag = "--" + name.replace("_", "-")
                raise InputError(f"{flag} must be at least 0, got {getattr(cfg, name)}")
        self._optimizer = torch.optim.Adagrad(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> Dict[str, Any]:
        """What overrides the options in a checkpoint when training is resumed."""
        lr = self.cfg.lr
        return {
            "lr": lr[0] if isinstance(lr, Collection) else lr,
            "initial_accumulator_value": self.cfg.adagrad_initial_accumulator,
            "eps": self.cfg.adagrad_eps,
        }

    def load_state_dict(
        self, state_dict: Dict[str, Any], optimizer_overrides: Optional[Dict[str, Any]] = None
    ) -> None:
        """Continue from a checkpoint.

        Raises:
            InputError: it was saved for a model with more or fewer parameters, as one without
                ``--coverage`` is.
        """
        saved, own = (
            sum(len(group["params"]) for group in groups)
            for groups in (state_dict["param_groups"], self.param_groups)
        )
        if saved != own:
            raise InputError(
                f"the checkpoint's optimizer has {saved} parameters and this model {own}: "
                "add --reset-optimizer, or name the checkpoint by --finetune-from-model"
            )
        super().load_state_dict(state_dict, optimizer_overrides)

    @property
    def supports_flat_params(self) -> bool:
        """Yes: every coordinate is on its own."""
        return True
