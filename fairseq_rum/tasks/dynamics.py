"""``--log-dynamics`` and what TensorBoard gets to see of the units; it registers nothing."""

import atexit
import functools
import os
from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

import torch
import torch.distributed as dist
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.logging.progress_bar import SummaryWriter
from fairseq.models import BaseFairseqModel
from omegaconf import II
from torch import Tensor, nn

from fairseq_rum.data.dynamics_log import DYNAMICS_FILE, dynamics_line
from fairseq_rum.errors import InputError
from fairseq_rum.layers.probe import probe, unit_labels


@dataclass
class DynamicsConfig(FairseqDataclass):
    """Options of tasks that can log what goes on in the units."""

    log_dynamics: bool = field(
        default=False,
        metadata={
            "help": "log the units' angles, norms and gates every --log-interval updates, and the "
            f"gradient at every step to {DYNAMICS_FILE} in --save-dir, for fairseq-rum plot "
            "gradients; takes one more, slow, pass each time"
        },
    )
    log_interval: int = II("common.log_interval")
    save_dir: str = II("checkpoint.save_dir")
    tensorboard_logdir: Optional[str] = II("common.tensorboard_logdir")


class LogsDynamics:
    """Mix-in for tasks: looks into the model's units every ``--log-interval`` updates.

    On with ``--log-dynamics`` or ``--tensorboard-logdir``. A batch that is due goes through the
    model once more before its own step, see :func:`fairseq_rum.layers.probe.probe`, with the same
    random numbers and without touching gradients, so that the run is the same to the bit as
    without. fairseq's log gets, for each unit (by name where there are several, ``encoder.0/...``):

    - ``cos_theta``, ``update_gate``: means over the batch and its steps, where the unit has them;
    - ``h_norm``: the same of the norm of the hidden state; ``h_last_norm``: that after the last.

    A model may add its own, such as ``p_gen``.

    TensorBoard gets them as histograms too. The process of rank 0 looks at its own batch.
    """

    @functools.cached_property
    def dynamics(self) -> Optional["DynamicsLog"]:
        """Where it goes; None if it is off."""
        # Once: omegaconf is slow. The language modeling task has its options in another place.
        cfg = self.cfg or self.args  # type: ignore[attr-defined]
        if not cfg.log_dynamics and not cfg.tensorboard_logdir:
            return None
        if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
            return None
        path = os.path.join(cfg.save_dir, DYNAMICS_FILE) if cfg.log_dynamics else None
        return DynamicsLog(cfg.log_interval, path, cfg.tensorboard_logdir)

    def train_step(
        self,
        sample: Dict[str, Any],
        model: nn.Module,
        criterion: nn.Module,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> Tuple[torch.Tensor, int, Dict[str, Any]]:
        """fairseq's step, with a look at the units before it when that is due."""
        if self.dynamics is not None and not ignore_grad:
            self.dynamics.look(sample, model, criterion, update_num + 1)
        return super().train_step(  # type: ignore[misc]
            sample, model, criterion, optimizer, update_num, ignore_grad
        )


class DynamicsLog:
    """Writes what a probe sees of a model in training.

    Args:
        interval: updates between two looks.
        path: of the file for norms at every step; None for no gradients and no file.
        tensorboard: fairseq's ``--tensorboard-logdir``; None for no histograms.
    """

    def __init__(self, interval: int, path: Optional[str], tensorboard: Optional[str]) -> None:
        self.interval = interval
        self.path = path
        self.tensorboard = tensorboard
        self._last = 0

    def look(
        self, sample: Dict[str, Any], model: nn.Module, criterion: nn.Module, updates: int
    ) -> None:
        """Probe a batch, the first one of an update, if the update is one of the interval.

        Raises:
            InputError: the model has no units to look into, or the file cannot be written.
        """
        if updates % self.interval or updates == self._last:
            return
        self._last = updates
        while not isinstance(model, BaseFairseqModel):  # data parallel training wraps it
            model = model.module
        device = next(model.parameters()).device
        forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with forked, probe(model, self.path is not None) as found:
            with torch.set_grad_enabled(self.path is not None):
                loss, size, _ = criterion(model, sample)
            if self.path is not None:
                if not found.traces:
                    raise InputError("--log-dynamics: the model has no unit of fairseq_rum")
                found.differentiate(loss / size)
        series, final = found.series(), found.final_norms()
        labels = unit_labels(series)
        if self.path is not None:
            self._write(updates, {labels[name]: seen for name, seen in series.items()})
        for name, seen in series.items():
            seen.pop("gradient", None)
            prefix = f"{labels[name]}/" if labels[name] else ""
            self._log(prefix, seen, updates)
            self._scalar(f"{prefix}h_last_norm", final[name])
        self._log("", found.reported, updates)

    def _write(self, updates: int, seen: Dict[str, Dict[str, Tensor]]) -> None:
        steps = {
            label: {
                # Of all the batch, as the loss is its mean.
                "gradient": _sum_over_batch(quantities["gradient"].square()).sqrt().tolist(),
                "h_norm": quantities["h_norm"].nanmean(0).tolist(),
            }
            for label, quantities in seen.items()
        }
        try:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(dynamics_line(updates, steps) + "\n")
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}") from error

    def _log(self, prefix: str, quantities: Dict[str, Tensor], updates: int) -> None:
        """Means for fairseq's log, which TensorBoard gets too, and histograms for TensorBoard."""
        for name, values in quantities.items():
            values = values[values.isfinite()]
            if not len(values):
                continue
            self._scalar(prefix + name, values)
            if self._writer is not None:
                self._writer.add_histogram(prefix + name, values.cpu().numpy(), updates)

    def _scalar(self, name: str, values: Tensor) -> None:
        metrics.log_scalar(name, values.nanmean().item(), priority=500, round=4)

    @functools.cached_property
    def _writer(self) -> Any:
        """Beside the file of fairseq's scalars, which are those of its tag train_inner."""
        if self.tensorboard is None or SummaryWriter is None:
            return None
        folder = os.path.join(self.tensorboard, "train_inner")
        writer = SummaryWriter(folder, filename_suffix=".dynamics")
        atexit.register(writer.close)  # it writes in a thread
        return writer


def _sum_over_batch(values: Tensor) -> Tensor:
    """Sum over the batch, nan where all of it is: ``(B, T) -> (T,)``."""
    return values.nansum(0).masked_fill(values.isnan().all(0), float("nan"))
