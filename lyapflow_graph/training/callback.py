"""What happens around every epoch of a run: random numbers, the checkpoint, logs, and when to stop."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.tensorboard import SummaryWriter

from .checkpoint import Checkpoint, save_checkpoint
from .config import Config
from .files import DamagedError
from .history import History
from .loaders import Loader, mix
from .module import GraphTask
from .progress import EpochBar

OnEpoch = Callable[[int, Mapping[str, float]], None]


class Pruned(Exception):  # noqa: N818 - it is no error
    """Raised by the function that `train` is given as `on_epoch`, to stop a run that is not worth going on with.

    >>> from lyapflow_graph.training import Pruned
    >>> def on_epoch(epoch, metrics):
    ...     if epoch == 10 and metrics["val_mae"] > 1:
    ...         raise Pruned
    """


class Diverged(RuntimeError):  # noqa: N818 - the loss has diverged
    """The gradient or the loss is no number any more.

    >>> from lyapflow_graph.training import Diverged
    >>> issubclass(Diverged, RuntimeError)
    True
    """


class Stopped(Exception):  # noqa: N818 - it is no error
    """By Ctrl-C, between two batches. Lightning ends the process when it sees a KeyboardInterrupt."""


def seed_everything(*numbers: int) -> None:
    """Seed Python, NumPy and torch by some numbers, as the seed of a run and the epoch."""
    mixed = mix(*numbers)
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.manual_seed(mixed)


@final
class RunCallback(pl.Callback):
    """Keeps a run: after every epoch its state is on the disk, and everything else follows from the state.

    The random numbers of an epoch are seeded by the seed of the run, the epoch and the process. So there is nothing to
    keep of them, and an epoch after resuming draws what it would have drawn.

    Args:
        folder: Of the run.
        config: Of the run.
        history: Of the epochs so far.
        checkpoint: Where to go on from.
        loader: Of the training set, whose order changes with the epoch.
        bar: Shows the progress.
        on_epoch: Called after every epoch with its number and its metrics; may raise :class:`Pruned`.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        history: History,
        checkpoint: Checkpoint | None,
        loader: Loader,
        bar: EpochBar,
        on_epoch: OnEpoch | None,
    ) -> None:
        self.folder, self.config, self.history, self.loader, self.bar = folder, config, history, loader, bar
        self.on_epoch = on_epoch
        self.best: Mapping[str, Tensor] = {} if checkpoint is None else checkpoint.best
        self.pruned = self._interrupted = False
        self._restored = checkpoint
        self._seconds_before = 0.0 if checkpoint is None else checkpoint.seconds
        self._begin = time.perf_counter()
        self._writer: SummaryWriter | None = None
        loader.set_epoch(len(history))

    @property
    def seconds(self) -> float:
        """How long the run took so far, over all the times it was resumed; what a crash lost is not counted."""
        return self._seconds_before + time.perf_counter() - self._begin

    @property
    def is_over(self) -> bool:
        """Whether there is no epoch left to do, as far as the metrics say."""
        training = self.config.training
        tired = training.patience is not None and self.history.epochs_since_best >= training.patience
        return tired or len(self.history) >= training.epochs

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C stops after the batch, the second time at once. Only the main thread may decide that."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def note(number: int, frame: Any) -> None:
            self._interrupted = True
            signal.signal(signal.SIGINT, before)

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # -- what Lightning calls -----------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._restored is not None:
            assert isinstance(pl_module, GraphTask)
            assert pl_module.schedule is not None
            try:
                trainer.optimizers[0].load_state_dict(dict(self._restored.optimizer))
                pl_module.schedule.load_state_dict(dict(self._restored.scheduler))
                trainer.precision_plugin.load_state_dict(dict(self._restored.precision))
            except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
                raise DamagedError(f"the checkpoint in {self.folder} is not of this optimizer: {error!r}") from error
            trainer.should_stop = pl_module.schedule.is_over
            self._restored = None
        if trainer.is_global_zero:
            self.history.save(self.folder / "metrics.csv")
            self._writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=len(self.history) + 1)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, GraphTask)
        pl_module.guarding = len(self.history) >= self.config.training.guard_from * self.config.training.epochs
        pl_module.descent_weight = self._descent_weight()
        seed_everything(self.config.seed, len(self.history) + 1, trainer.global_rank)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        # A step along such a gradient would leave no weight a number. With 16 bit these are skipped by the scaling.
        if self.config.training.precision == "16":
            return
        gradients = [weight.grad for weight in pl_module.parameters() if weight.grad is not None]
        if not bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients))):
            raise self._diverged("the gradient is not finite", len(self.history) + 1)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._interrupted:
            raise Stopped

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, GraphTask)
        assert pl_module.schedule is not None
        self.history.append(self._row(pl_module))
        row, epoch = self.history[-1], len(self.history)
        if not math.isfinite(row["train_loss"]):
            raise self._diverged(f"the training loss is {row['train_loss']}", epoch)
        if self.history.best_epoch == epoch:
            self.best = {name: value.detach().cpu().clone() for name, value in pl_module.model.state_dict().items()}
        pl_module.schedule.step(row["val_loss"])
        self.loader.set_epoch(epoch)
        if trainer.is_global_zero:
            self._save(trainer, pl_module)
        self._tell(epoch, row)
        trainer.should_stop = trainer.should_stop or self.is_over or self.pruned or pl_module.schedule.is_over

    @staticmethod
    def _diverged(what: str, epoch: int) -> Diverged:
        return Diverged(
            f"{what} in epoch {epoch}; lower training.lr, set training.clip, or give the flow smaller steps"
        )

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    # -- parts of it --------------------------------------------------------------------------------------------------

    def _row(self, task: GraphTask) -> dict[str, float]:
        assert task.schedule is not None
        row = {"lr": task.schedule.lr, "train_loss": task.mean_loss(), "val_loss": task.evaluated["loss"]}
        row[f"val_{self.history.metric}"] = task.evaluated["metric"]
        if task.monitor is not None:
            row |= task.monitor.row()
            row |= {"train_violations": task.train_violations, "descent_weight": task.descent_weight}
        return row

    def _descent_weight(self) -> float:
        """The weight of the descent objective in the next epoch, from what the one before it was like."""
        training = self.config.training
        if len(self.history) == 0 or training.descent_weight == 0:
            return training.descent_weight
        last, growth = self.history[-1], 1000 ** (3 / training.epochs)
        too_many = last.get("train_violations", 0.0) > training.descent_tolerance
        weight = last.get("descent_weight", 0.0) * (growth if too_many else growth**-0.25)
        return min(weight, 1000 * training.descent_weight)

    def _save(self, trainer: pl.Trainer, task: GraphTask) -> None:
        assert task.schedule is not None
        checkpoint = Checkpoint(
            config_hash=self.config.hash,
            history=self.history.tensor(),
            columns=self.history.columns,
            weights=task.model.state_dict(),
            best=self.best,
            optimizer=trainer.optimizers[0].state_dict(),
            scheduler=task.schedule.state_dict(),
            precision=trainer.precision_plugin.state_dict(),
            seconds=self.seconds,
        )
        save_checkpoint(self.folder, checkpoint)
        self.history.append_last(self.folder / "metrics.csv")

    def _tell(self, epoch: int, row: Mapping[str, float]) -> None:
        self.bar.advance(row)
        if self._writer is not None:
            for name, value in row.items():
                if name != "epoch" and not math.isnan(value):
                    self._writer.add_scalar(name.replace("_", "/", 1), value, epoch)
        if self.on_epoch is not None:
            try:
                self.on_epoch(epoch, row)
            except Pruned:
                self.pruned = True
