"""How the learning rate changes from epoch to epoch."""

from __future__ import annotations

import math
from typing import Any, final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from .config import TrainingConfig


@final
class Schedule:
    """The learning rate of an optimizer over the epochs.

    Args:
        optimizer: The optimizer.
        training: `scheduler` and what belongs to it.

    >>> import torch
    >>> from lyapflow_graph.training import TrainingConfig
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = Schedule(optimizer, TrainingConfig(epochs=4, lr=1.0, scheduler="cosine", warm_up=2))
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(schedule.lr, 3))
    ...     optimizer.step()
    ...     schedule.step(val_loss=0.0)
    >>> rates
    [0.5, 1.0, 1.0, 0.5]
    """

    def __init__(self, optimizer: Optimizer, training: TrainingConfig) -> None:
        self._optimizer, self._training = optimizer, training
        self._scheduler: LambdaLR | ReduceLROnPlateau
        if training.scheduler == "plateau":
            self._scheduler = ReduceLROnPlateau(
                optimizer, factor=training.plateau_factor, patience=training.plateau_patience
            )
        else:
            self._scheduler = LambdaLR(optimizer, self._factor)

    @property
    def lr(self) -> float:
        """The learning rate now."""
        return float(self._optimizer.param_groups[0]["lr"])

    @property
    def is_over(self) -> bool:
        """Whether the learning rate has come down so far that training ends."""
        return self._training.scheduler == "plateau" and self.lr < self._training.min_lr

    def step(self, val_loss: float) -> None:
        """To the next epoch."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(val_loss)
        else:
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Numbers only; that of the optimizer has the learning rate itself."""
        return self._scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._scheduler.load_state_dict(state)

    def _factor(self, epoch: int) -> float:
        training = self._training
        if epoch < training.warm_up:
            return (epoch + 1) / training.warm_up
        if training.scheduler == "none":
            return 1.0
        done = (epoch - training.warm_up) / max(1, training.epochs - training.warm_up)
        low = training.min_lr / training.lr
        return low + (1 - low) * (1 + math.cos(math.pi * min(1.0, done))) / 2
