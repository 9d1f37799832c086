"""What came of a sweep: its trials, the best of them, what mattered."""

from __future__ import annotations

import dataclasses
import html
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from ..metrics import METRICS
from ..training.config import Config
from ..training.files import write
from ..training.markup import html_page, html_table, markdown_table
from .plan import Sweep
from .trials import Trials

Status = Literal["complete", "pruned", "skipped", "failed", "under way", "waiting"]
_ENOUGH = 8  # trials, for a word about what mattered


@dataclasses.dataclass(frozen=True)
class Trial:
    """What came of a trial.

    Attributes:
        number: Of the trial.
        status: "complete", "pruned", "skipped" (its model is too large, or its configuration makes no sense), "failed",
            "under way" or "waiting".
        value: The validation metric: the mean over the seeds, or that of the last epoch for one that was pruned.
        labels: The values of what varies.
        why: For those that were pruned, skipped or failed.
        parameters: How many its model has.
        runs: The folders of its runs.
    """

    number: int
    status: Status
    value: float | None
    labels: Mapping[str, Any]
    why: str
    parameters: int | None
    runs: Sequence[str]


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """What came of a sweep.

    Attributes:
        sweep: What was done.
        metric: Of the validation set.
        trials: All of them, the best first, then those without a value.
        importance: The share of each key in what tells the better trials from the others, by PED-ANOVA; empty where
            there are too few trials.

    >>> from lyapflow_graph.sweeping import Choices, SweepResult, Search, Sweep
    >>> sweep = Sweep({"data": {"name": "zinc"}}, {"model.num_steps": Choices((2, 4))}, Search())
    >>> SweepResult(sweep, "mae", [], {}).best is None
    True
    """

    sweep: Sweep
    metric: str
    trials: Sequence[Trial]
    importance: Mapping[str, float]

    @property
    def best(self) -> Trial | None:
        """The best of those that were completed."""
        return next((trial for trial in self.trials if trial.status == "complete"), None)

    @property
    def best_config(self) -> Config | None:
        """Its configuration, with the first of the seeds."""
        return None if self.best is None else self.sweep.config(self.best.labels, self.sweep.search.seeds[0])

    def summary(self) -> str:
        """How many trials there are of each kind, in a line."""
        kinds = [trial.status for trial in self.trials]
        counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
        return f"{len(kinds)} trials: {', '.join(counts)}" if kinds else "no trials"

    def table(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """A header and a row for each trial.

        Args:
            most: How many rows at the most.
        """
        keys = list(self.sweep.space)
        header = [
            "trial",
            f"validation {self.metric}",
            *(key.rsplit(".", 1)[1] for key in keys),
            "parameters",
            "status",
        ]
        return header, [_cells(trial, keys) for trial in self.trials[:most]]

    def markdown(self) -> str:
        """As Markdown."""
        parts = ["# Sweep", "", self._about(), ""]
        for title, header, rows in self._tables():
            parts += [f"## {title}", "", *markdown_table(header, rows), ""]
        return "\n".join(parts)

    def html(self) -> str:
        """As one HTML page that needs nothing else."""
        parts = [f"<h1>Sweep</h1><p>{html.escape(self._about())}</p>"]
        for title, header, rows in self._tables():
            parts.append(f"<h2>{html.escape(title)}</h2>{html_table(header, rows)}")
        return html_page("Sweep", parts)

    def save(self, folder: str | Path) -> list[Path]:
        """Write `sweep.md`, `sweep.html`, and `best.toml` if there is a best trial."""
        contents = {"sweep.md": self.markdown(), "sweep.html": self.html()}
        if self.best_config is not None:
            contents["best.toml"] = self.best_config.to_toml()
        paths = [Path(folder) / name for name in contents]
        for path, content in zip(paths, contents.values(), strict=True):
            write(path, content)
        return paths

    def _about(self) -> str:
        search, better = self.sweep.search, "higher" if METRICS[self.metric].maximise else "lower"
        seeds = f"mean over the seeds {', '.join(map(str, search.seeds))}" if len(search.seeds) > 1 else "one seed"
        about = (
            f"{self.sweep.base.data.name}: {self.summary()}. Values are of the validation set ({seeds}), {better} is "
            f"better; the test set was not looked at. Sampler {search.sampler}, pruner {search.pruner}."
        )
        if self.best is not None:
            about += " best.toml is the configuration of the best trial, which `lyapflow train` trains and tests."
        return about

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        found = [("Trials", *self.table())]
        if self.importance:
            shares = [[key, f"{share:.0%}"] for key, share in self.importance.items()]
            found.append(("What mattered", ["key", "share"], shares))
        return found


def result_of(trials: Trials) -> SweepResult:
    """What the storage says about a sweep."""
    told = [_told(trial) for trial in trials.all() if "passed_on" not in trial.user_attrs]
    sign = -1 if METRICS[trials.metric].maximise else 1

    def rank(trial: Trial) -> tuple[bool, float, int]:
        return trial.status != "complete", sign * (trial.value or 0.0), trial.number

    return SweepResult(trials.sweep, trials.metric, sorted(told, key=rank), _importance(trials.study))


def _told(trial: FrozenTrial) -> Trial:
    attributes = trial.user_attrs
    status: Status
    if "skipped" in attributes:
        status, why = "skipped", attributes["skipped"]
    elif trial.state == TrialState.PRUNED:
        status, why = "pruned", f"after {attributes.get('epochs', '?')} epochs"
    elif trial.state == TrialState.FAIL:
        status, why = "failed", attributes.get("failed", "")
    else:
        names: dict[TrialState, Status] = {TrialState.RUNNING: "under way", TrialState.WAITING: "waiting"}
        status, why = names.get(trial.state, "complete"), ""
    labels = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
    value = trial.value if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) else None
    runs = attributes.get("runs", [])
    return Trial(trial.number, status, value, labels, why, attributes.get("parameters"), runs)


def _importance(study: optuna.Study) -> dict[str, float]:
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < _ENOUGH or len({trial.value for trial in complete}) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that few trials say little is what the guide says
        return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())


def _cells(trial: Trial, keys: Sequence[str]) -> list[str]:
    values = [trial.labels.get(key, "-") for key in keys]
    return [
        str(trial.number),
        "-" if trial.value is None else f"{trial.value:.5g}",
        *(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values),
        "-" if trial.parameters is None else f"{trial.parameters:,}",
        f"{trial.status}: {trial.why}" if trial.why else trial.status,
    ]
