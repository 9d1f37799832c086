"""A graph model as Lightning trains it."""

from __future__ import annotations

from typing import Any, final

import lightning.pytorch as pl
import torch
import torch.distributed
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from ..data.dataset import GraphDataset
from ..losses import LOSSES, judged
from ..metrics import METRICS
from ..models import GraphModel
from .config import TrainingConfig
from .energy_monitor import EnergyCurve, flow_of, forward_with_energy
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
        self.watches = True  # whether the next validation looks at the energy
        self.curve: EnergyCurve | None = None
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
        self._sums = []

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = self._loss(self.model(batch), batch)
        # The gradients of the processes are averaged; the loss of the batch is the sum of their shares.
        return loss * self.trainer.world_size

    def mean_loss(self) -> float:
        """Over the items of the epoch so far, of all processes: all of them have to ask."""
        total, count = torch.stack(self._sums).sum(0)
        return float(self._over_all(total) / count)

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self._train_sums, self._sums = self._sums, []
        self.curve = None

    def validation_step(self, batch: Any, index: int) -> None:
        flow = self.flow[0]
        if index == 0 and self.watches and flow is not None:
            prediction, self.curve = forward_with_energy(self.model, flow, batch)
        else:
            prediction = self.model(batch)
        self._evaluate(prediction, batch)

    def on_validation_epoch_end(self) -> None:
        self._finish()
        self._sums = self._train_sums

    def on_test_epoch_start(self) -> None:
        self._sums = []

    def test_step(self, batch: Any, index: int) -> None:
        self._evaluate(self.model(batch), batch)

    def on_test_epoch_end(self) -> None:
        self._finish()

    def _evaluate(self, prediction: Tensor, batch: Any) -> None:
        self._loss(prediction, batch)
        self.metric_entry.update(self.metric, judged(prediction, batch))

    def _finish(self) -> None:
        self.evaluated = {"loss": self.mean_loss(), "metric": float(self.metric.compute())}
        self.metric.reset()

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
