"""One worker: takes a trial, runs it, says what came of it, and takes the next."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import torch
from filelock import FileLock
from optuna.trial import Trial, TrialState

from solvers import SolveError

from ..data.dataset import GraphDataset
from ..training.callback import Diverged, Pruned
from ..training.checkpoint import load_checkpoint
from ..training.config import Config
from ..training.model import make_model
from ..training.record import Record
from ..training.run import load_dataset, train
from ..training.schema import ConfigError
from .plan import Sweep
from .trials import Trials

Say = Callable[[str], None]


class Skipped(Exception):  # noqa: N818 - it is no error
    """A configuration that is not to be trained, and why."""


@final
class Worker:
    """Runs trials until there are none left.

    Args:
        trials: Which it takes them from.
        say: Called with a line about each.
        dataset: The data, where it is at hand; by default it is loaded as the configuration says.
    """

    def __init__(self, trials: Trials, say: Say, dataset: GraphDataset | None = None) -> None:
        self.trials, self.say = trials, say
        self._dataset = dataset
        self._loaded: tuple[str, GraphDataset] | None = None

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Take one trial after another.

        Args:
            stopped: Asked before each; the worker ends when it says yes.
        """
        with self.trials.worker() as name:
            while not stopped():
                trial = self.trials.claim(name)
                if trial is None:
                    return
                try:
                    self._complete(trial)
                except SystemExit as stop:  # which Lightning makes of a second Ctrl-C
                    self.trials.give_back(trial)
                    raise KeyboardInterrupt from stop
                except BaseException:
                    self.trials.give_back(trial)
                    raise

    def _complete(self, trial: Trial) -> None:
        study = self.trials.study
        try:
            value = self._value(trial)
        except Skipped as skipped:
            trial.set_user_attr("skipped", str(skipped))
            study.tell(trial, state=TrialState.PRUNED)
            self.say(f"trial {trial.number}: skipped, {skipped}; {_told(trial)}")
        except Pruned:
            study.tell(trial, state=TrialState.PRUNED)
            self.say(f"trial {trial.number}: pruned after {trial.user_attrs['epochs']} epochs; {_told(trial)}")
        except (ConfigError, Diverged, SolveError, torch.OutOfMemoryError) as error:
            reason = str(error).splitlines()[0]
            trial.set_user_attr("failed", reason)
            study.tell(trial, state=TrialState.FAIL)
            self.say(f"trial {trial.number}: failed, {reason}; {_told(trial)}")
        else:
            study.tell(trial, value)
            self.say(f"trial {trial.number}: {self.trials.metric} {value:.5g}; {_told(trial)}")

    def _value(self, trial: Trial) -> float:
        """The mean over the seeds of the validation metric; nothing else is looked at."""
        sweep = self.trials.sweep
        try:
            configs = [sweep.config(trial.params, seed) for seed in sweep.search.seeds]
        except ConfigError as error:
            raise Skipped(str(error)) from None
        data = self._data(configs[0])
        trial.set_user_attr("parameters", self._parameters(sweep, configs[0], data))
        trial.set_user_attr("runs", [run_name(config) for config in configs])
        values = []
        for config in configs:
            record = self._train(config, data, trial, watched=config is configs[0])
            if record.status == "pruned":
                trial.set_user_attr("epochs", record.epochs)
                raise Pruned
            values.append(record.val)
        if not all(map(math.isfinite, values)):
            raise Diverged(f"the validation {self.trials.metric} is {values}")
        return statistics.fmean(values)

    def _parameters(self, sweep: Sweep, config: Config, data: GraphDataset) -> int:
        """How many there are, without the memory that they would take."""
        data = data if config.data.edge_features else dataclasses.replace(data, edge_dim=None)
        with torch.device("meta"):
            model = make_model(config.model.kind, config.model.hidden_channels, config.model.options, data)
        found, most = sum(weight.numel() for weight in model.parameters()), sweep.search.max_parameters
        if most is not None and found > most:
            raise Skipped(f"{found:,} parameters, {most:,} are allowed")
        return found

    def _train(self, config: Config, data: GraphDataset, trial: Trial, watched: bool) -> Record:
        """A run in a folder that its configuration names: one that was begun goes on, and none is done twice."""
        folder, name = self.trials.folder, run_name(config)
        key = f"val_{self.trials.metric}"

        def on_epoch(epoch: int, metrics: Mapping[str, float]) -> None:
            trial.report(metrics[key], epoch)
            if trial.should_prune():
                raise Pruned

        with FileLock(folder / "locks" / f"run-{name}.lock"):
            if watched:
                _report_again(folder / "runs" / name, key, trial)
            return train(
                config,
                folder / "runs" / name,
                resume=True,
                on_epoch=on_epoch if watched else None,
                dataset=data,
                test=False,
                figures=False,
                progress=False,
            )

    def _data(self, config: Config) -> GraphDataset:
        """Kept from one trial to the next, unless what is varied changes it."""
        if self._dataset is not None:
            return self._dataset
        key = json.dumps(config.to_dict()["data"], sort_keys=True)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = (key, load_dataset(config.data))
        return self._loaded[1]


def run_name(config: Config) -> str:
    """The folder of a run."""
    return f"{config.hash}-{config.data.split}-{config.seed}"


def _report_again(run: Path, key: str, trial: Trial) -> None:
    """What the epochs gave that are done already: a pruner is to see the whole curve of a trial that is resumed."""
    checkpoint = load_checkpoint(run) if run.exists() else None
    if checkpoint is not None:
        for epoch, value in enumerate(checkpoint.history[:, checkpoint.columns.index(key)].tolist(), start=1):
            trial.report(value, epoch)


def _told(trial: Trial) -> str:
    return told(trial.params)


def told(labels: Mapping[str, Any]) -> str:
    """The values of a trial in a line.

    >>> told({"model.num_steps": 4, "training.lr": 0.00123456789})
    'num_steps 4, lr 0.001235'
    """
    shown = {key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in labels.items()}
    return ", ".join(f"{key.rsplit('.', 1)[1]} {value}" for key, value in shown.items())
