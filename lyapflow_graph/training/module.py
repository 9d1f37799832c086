"""A graph model as Lightning trains it."""

from __future__ import annotations

import math
from typing import Any, final

import lightning.pytorch as pl
import torch
import torch.distributed
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from lyapflow import descent_loss

from ..data.dataset import GraphDataset
from ..losses import LOSSES, judged
from ..metrics import METRICS
from ..models import GraphModel
from .config import TrainingConfig
from .energy_monitor import EnergyMonitor, flow_of, forward_with_energy
from .schedules import Schedule


@final
class GraphTask(pl.LightningModule):
    """A model with the loss and the metric of a dataset.

    The loss of a batch is a sum over its items divided by their number, also where processes share the batch: each
    divides its own sum by the number over all of them.

    Args:
        model: The model.
        dataset: Which loss and metric.
        training: How it is optimised.
    """

    def __init__(self, model: GraphModel, dataset: GraphDataset, training: TrainingConfig) -> None:
        super().__init__()
        self.model, self.loss, self.settings = model, LOSSES[dataset.loss], training
        self.metric_entry = METRICS[dataset.metric]
        self.metric = self.metric_entry.make(dataset)
        self.flow = (flow_of(model),)  # in a tuple, so that its weights are not counted twice
        self.schedule: Schedule | None = None
        self.guarding = False  # whether steps are guarded in training too
        self.descent_weight = 0.0
        self.train_violations = math.nan  # the share of graphs of the last training epoch
        self.monitor: EnergyMonitor | None = None  # of the last evaluation
        self._train_monitor = EnergyMonitor()
        self.evaluated: dict[str, float] = {}  # loss and metric of the last evaluation
        self._sums: list[Tensor] = []
        self._train_sums: list[Tensor] = []

    def configure_optimizers(self) -> Optimizer:
        settings = self.settings
        kind = Adam if settings.optimizer == "adam" else AdamW
        optimizer = kind(self.model.parameters(), settings.lr, weight_decay=settings.weight_decay)
        self.schedule = Schedule(optimizer, settings)
        return optimizer

    # -- training -----------------------------------------------------------------------------------------------------

    def on_train_epoch_start(self) -> None:
        self._sums, self._train_monitor = [], EnergyMonitor()

    def training_step(self, batch: Any, index: int) -> Tensor:
        flow = self.flow[0]
        if flow is None or not flow.guard:
            loss = self._loss(self.model(batch), batch)
        else:
            prediction, solution = forward_with_energy(self.model, flow, batch, self.guarding)
            self._train_monitor.add(solution)
            loss = self._loss(prediction, batch)
            if self.descent_weight > 0:
                graphs = torch.tensor(float(solution.energy.shape[1]), device=self.device)
                share = graphs / self._over_all(graphs).clamp(min=1)
                loss = loss + self.descent_weight * share * descent_loss(solution.energy, self.settings.descent_margin)
        # The gradients of the processes are averaged; the loss of the batch is the sum of their shares.
        return loss * self.trainer.world_size

    def mean_loss(self) -> float:
        """Over the items of the epoch so far, of all processes: all of them have to ask."""
        total, count = torch.stack(self._sums).sum(0)
        return float(self._over_all(total) / count)

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self._train_sums, self._sums = self._sums, []
        self._watch()

    def validation_step(self, batch: Any, index: int) -> None:
        self._evaluate(batch)

    def on_validation_epoch_end(self) -> None:
        self._finish()
        self._sums = self._train_sums
        flow = self.flow[0]
        if flow is not None and flow.guard:
            seen = self._train_monitor.over_all(self._over_all)
            self.train_violations = seen.violating / max(1, seen.count.systems)

    def on_test_epoch_start(self) -> None:
        self._sums = []
        self._watch()

    def test_step(self, batch: Any, index: int) -> None:
        self._evaluate(batch)

    def on_test_epoch_end(self) -> None:
        self._finish()

    def _watch(self) -> None:
        self.monitor = None if self.flow[0] is None else EnergyMonitor()

    def _evaluate(self, batch: Any) -> None:
        if self.monitor is None:
            prediction = self.model(batch)
        else:
            flow = self.flow[0]
            assert flow is not None
            prediction, solution = forward_with_energy(self.model, flow, batch)
            self.monitor.add(solution)
        self._loss(prediction, batch)
        self.metric_entry.update(self.metric, judged(prediction, batch))

    def _finish(self) -> None:
        self.evaluated = {"loss": self.mean_loss(), "metric": float(self.metric.compute())}
        self.metric.reset()
        if self.monitor is not None:
            self.monitor = self.monitor.over_all(self._over_all)

    # -- losses -------------------------------------------------------------------------------------------------------

    def _loss(self, prediction: Tensor, batch: Any) -> Tensor:
        """The share of this process in the loss of the batch; its parts are kept for the mean over the epoch."""
        total, count = self.loss.sums(judged(prediction, batch, self._over_all))
        count = self._over_all(count.detach())
        self._sums.append(torch.stack([total.detach().double(), count.double()]))
        return total / torch.where(count > 0, count, 1.0)

    def _over_all(self, x: Tensor) -> Tensor:
        if self.trainer.world_size == 1:
            return x
        x = x.clone()
        torch.distributed.all_reduce(x)
        return x
