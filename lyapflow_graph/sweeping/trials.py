"""The trials of a sweep, which many workers share: who takes which, and what becomes of those whose worker died."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import optuna
from filelock import FileLock, Timeout
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from ..metrics import METRICS
from ..training.loaders import mix
from .plan import Sweep
from .space import Label

_ATTEMPTS = 3  # a trial that kills its worker as often is not tried again
_SKIPS = 10  # configurations skipped for each trial that is wanted, before it is given up


@final
class Trials:
    """The trials of one sweep.

    A worker holds a lock on a file as long as it lives, whatever ends it, and every trial says whose it is: so a trial
    that is under way and whose lock is free has lost its worker. This needs no clock, and works with every storage; it
    asks that all workers share the folder.

    Args:
        sweep: What to do.
        folder: Of the sweep.
        storage: Where the trials are.
        metric: What their values are; None for a sweep that is there already.
    """

    def __init__(self, sweep: Sweep, folder: Path, storage: BaseStorage, metric: str | None = None) -> None:
        self.sweep, self.folder, self._storage = sweep, folder, storage
        epochs = sweep.base.training.epochs
        name, pruner = study_name(sweep), _pruner(sweep.search.pruner, epochs)
        if metric is None:
            self.study = optuna.load_study(study_name=name, storage=storage, pruner=pruner, sampler=RandomSampler())
        else:
            direction = StudyDirection.MAXIMIZE if METRICS[metric].maximise else StudyDirection.MINIMIZE
            self.study = optuna.create_study(
                storage=storage, study_name=name, pruner=pruner, sampler=RandomSampler(), direction=direction,
                load_if_exists=True,
            )  # fmt: skip
            self.study.set_user_attr("metric", metric)

    @property
    def metric(self) -> str:
        """What the values of the trials are."""
        return self.study.user_attrs["metric"]

    def all(self) -> Sequence[FrozenTrial]:
        """Every trial there is, in whatever state."""
        return self.study.get_trials(deepcopy=False)

    def left(self) -> bool:
        """Whether there is a trial to take."""
        trials = self.all()
        return any(trial.state == TrialState.WAITING for trial in trials) or self._wants_more(trials)

    @contextmanager
    def worker(self) -> Iterator[str]:
        """A name for a worker, which counts as alive as long as this lasts."""
        name = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        path = self._lock_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path):
            yield name
        path.unlink(missing_ok=True)

    def claim(self, worker: str) -> Trial | None:
        """A trial for a worker, with values for all keys; None when there is nothing left to do."""
        with self._alone():
            trials = self.all()
            if not any(trial.state == TrialState.WAITING for trial in trials):
                if not self._wants_more(trials):
                    return None
                if self.sweep.search.sampler == "grid":
                    self.study.enqueue_trial(next(self._untried(trials)))
            trial = self.study.ask()
            trial.set_user_attr("worker", worker)
            # Draws are a function of the trial, so that a sweep which is resumed goes on as it would have.
            self.study.sampler = _sampler(self.sweep, trial.number)
            for key, dimension in self.sweep.space.items():
                dimension.draw(trial, key)
            return trial

    def give_back(self, trial: Trial) -> None:
        """Leave a trial to be taken again, as it was when it was claimed; nothing happens to one that is finished."""
        with self._alone():
            found = self._storage.get_trial(trial._trial_id)
            if found.state == TrialState.RUNNING:
                self._again(found, count=False)

    def recover(self) -> list[int]:
        """Make trials whose workers are dead available again; their numbers."""
        found = []
        with self._alone():
            for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if self._is_dead(trial.user_attrs.get("worker")):
                    self._again(trial, count=True)
                    found.append(trial.number)
        return found

    # -- parts of it --------------------------------------------------------------------------------------------------

    def _alone(self) -> FileLock:
        path = self.folder / "locks" / "claim.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path)

    def _wants_more(self, trials: Sequence[FrozenTrial]) -> bool:
        if self.sweep.search.sampler == "grid":
            return next(self._untried(trials), None) is not None
        wanted = self.sweep.search.trials
        assert wanted is not None
        skipped = sum("skipped" in trial.user_attrs for trial in trials)
        passed_on = sum("passed_on" in trial.user_attrs for trial in trials)
        return len(trials) - skipped - passed_on < wanted and skipped < _SKIPS * max(10, wanted)

    def _untried(self, trials: Sequence[FrozenTrial]) -> Iterator[dict[str, Label]]:
        tried = {tuple(_labels(trial).get(key) for key in self.sweep.space) for trial in trials}
        return (point for point in self.sweep.points() if tuple(point.values()) not in tried)

    def _again(self, trial: FrozenTrial, count: bool) -> None:
        """In an order in which a crash leaves a trial too many, and never one too few."""
        labels, attempt = _labels(trial), trial.user_attrs.get("attempt", 1) + int(count)
        storage, key = self._storage, trial._trial_id
        if attempt > _ATTEMPTS:
            storage.set_trial_user_attr(key, "failed", f"its worker was killed {_ATTEMPTS} times; out of memory?")
        else:
            if set(labels) == set(self.sweep.space):
                waiting = create_trial(
                    state=TrialState.WAITING,
                    system_attrs={"fixed_params": labels},
                    user_attrs={"attempt": attempt, "retry_of": trial.number},
                )
                self.study.add_trial(waiting)
            storage.set_trial_user_attr(key, "passed_on", True)
        self.study.tell(trial.number, state=TrialState.FAIL)

    def _is_dead(self, worker: str | None) -> bool:
        # Without a name it was killed before it could say so: nobody else is claiming now. Any other that no worker
        # gives itself is not a name of a file here.
        if worker is None or not re.fullmatch(r"\d+-[0-9a-f]{12}", worker):
            return True
        path = self._lock_of(worker)
        try:
            with FileLock(path, timeout=0):
                pass
        except Timeout:
            return False
        path.unlink(missing_ok=True)
        return True

    def _lock_of(self, worker: str) -> Path:
        return self.folder / "locks" / f"worker-{worker}.lock"


def study_name(sweep: Sweep) -> str:
    """What Optuna calls a sweep."""
    return f"lyapflow-{sweep.hash}"


def _labels(trial: FrozenTrial) -> dict[str, Any]:
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


def _sampler(sweep: Sweep, trial: int) -> BaseSampler:
    seed = mix(sweep.search.seed, trial) % 2**32
    return TPESampler(seed=seed) if sweep.search.sampler == "tpe" else RandomSampler(seed=seed)


def _pruner(name: str, epochs: int) -> BasePruner:
    if name == "median":
        return MedianPruner(n_warmup_steps=max(1, epochs // 10))
    if name == "halving":
        return SuccessiveHalvingPruner(min_resource=max(1, epochs // 10), reduction_factor=3)
    return NopPruner()
