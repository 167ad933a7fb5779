"""Trained models for the commands that draw: checkpoint, task, and a batch to look at."""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig
from torch import Tensor, nn

from fairseq_rum.cells import RecurrentCell
from fairseq_rum.cli import figures
from fairseq_rum.errors import InputError
from fairseq_rum.layers.probe import Probe, probe


@dataclass
class Trained:
    """A checkpoint.

    Attributes:
        label: how the figure calls it.
        path: of the file.
        model: in evaluation mode.
        task, cfg: as it was trained with.
    """

    label: str
    path: str
    model: nn.Module
    task: Any
    cfg: DictConfig

    def initial(self) -> nn.Module:
        """The model as it was before the first update, in evaluation mode."""
        with torch.random.fork_rng():
            utils.set_torch_seed(self.cfg.common.seed)
            return self.task.build_model(self.cfg.model).eval()

    def first_batch(self, split: str | None = None) -> dict[str, Any]:
        """The first batch of a split, as training takes it; of the training split by default.

        Raises:
            InputError: there is no such split, or nothing in it.
        """
        dataset = self.cfg.dataset
        split = split or dataset.train_subset
        try:
            self.task.load_dataset(split, epoch=1)
        except (FileNotFoundError, KeyError) as error:
            raise InputError(f"{self.path}: its data have no split {split!r} ({error})") from error
        limits = utils.resolve_max_positions(self.task.max_positions(), self.model.max_positions())
        iterator = self.task.get_batch_iterator(
            dataset=self.task.dataset(split),
            max_tokens=dataset.max_tokens,
            max_sentences=dataset.batch_size,
            max_positions=limits,
            ignore_invalid_inputs=True,
            required_batch_size_multiple=dataset.required_batch_size_multiple,
            seed=self.cfg.common.seed,
            epoch=1,
        )
        with warnings.catch_warnings():
            # fairseq pins memory whether there is a GPU or not, which torch complains about.
            warnings.filterwarnings("ignore", message=".*pin_memory", category=UserWarning)
            batches = iterator.next_epoch_itr(shuffle=split == dataset.train_subset)
            sample = next(iter(batches), None)
        if not sample:
            raise InputError(f"{self.path}: no batch in split {split!r}")
        return sample

    def loss(self, model: nn.Module, sample: dict[str, Any]) -> Tensor:
        """The mean loss that training minimizes, in nats."""
        total, size, _ = self.task.build_criterion(self.cfg.criterion)(model, sample)
        return total / size

    def probed(self, model: nn.Module, sample: dict[str, Any]) -> Probe:
        """What the units of the model do with a batch."""
        with torch.no_grad(), probe(model) as found:
            self.loss(model, sample)
        return found


def load_all(args: argparse.Namespace) -> list[Trained]:
    """The models that the options of :func:`fairseq_rum.cli.figures.add_checkpoints` name.

    Raises:
        InputError: a file is missing or no checkpoint, its task cannot be set up, it has no
            recurrent unit, or two have one name.
    """
    loaded: list[Trained] = []
    for text in args.checkpoints:
        label, name = figures.split_name(text)
        path = Path(name)
        path = path / figures.LAST if path.is_dir() else path
        loaded.append(_load(label or path.absolute().parent.name, str(path), args.data))
    figures.unique([trained.label for trained in loaded], "--checkpoints")
    return loaded


def pick_unit(model: nn.Module, path: str, name: str | None) -> tuple[str, RecurrentCell]:
    """The unit of a model that ``--unit`` names, the first one by default.

    Raises:
        InputError: it has none of that name.
    """
    units = {n: m for n, m in model.named_modules() if isinstance(m, RecurrentCell)}
    name = next(iter(units)) if name is None else name
    if name not in units:
        raise InputError(f"--unit {name}: {path} has {', '.join(units)}")
    return name, units[name]


def _load(label: str, path: str, data: str | None) -> Trained:
    if not Path(path).is_file():
        raise InputError(f"{path}: no such checkpoint")
    overrides = None if data is None else {"data": data}
    state = checkpoint_utils.load_checkpoint_to_cpu(path, overrides)
    if state.get("cfg") is None or "model" not in state:
        raise InputError(f"{path}: no checkpoint of fairseq-train")
    for kind, known in (("task", TASK_REGISTRY), ("model", MODEL_REGISTRY)):
        name = state["cfg"][kind]._name
        if name not in known:
            raise InputError(f"{path}: unknown {kind} {name!r}")
    try:
        (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([path], state=state)
    except FileNotFoundError as error:
        raise InputError(f"{path}: its task lacks {error.filename}, give --data") from error
    if not any(isinstance(module, RecurrentCell) for module in model.modules()):
        raise InputError(f"{path}: a model without a recurrent unit of fairseq_rum")
    return Trained(label, path, model.eval(), task, cfg)
