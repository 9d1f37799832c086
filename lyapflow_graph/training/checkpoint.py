"""The state of a run after an epoch, kept so that no crash loses it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from .files import DamagedError, load_tensors, save_tensors

_FORMAT = 1
_SLOTS = ("even.ckpt", "odd.ckpt")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Everything that the rest of a run depends on.

    Random numbers are no part of it: those of an epoch are a function of the seed and the epoch.

    Attributes:
        config_hash: Of the configuration, with its seed.
        history: `[epochs, columns]`, in double precision: the metrics of all epochs so far.
        columns: What they are.
        weights: Of the model.
        best: Of the model at the best epoch so far.
        optimizer: Its state.
        scheduler: Its state.
        precision: The state of mixed precision.
        seconds: How long it took so far.
    """

    config_hash: str
    history: Tensor
    columns: tuple[str, ...]
    weights: Mapping[str, Tensor]
    best: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    precision: Mapping[str, Any]
    seconds: float

    @property
    def epochs(self) -> int:
        """How many epochs are done."""
        return len(self.history)


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint. Two files take turns, so that the one before is there whatever happens to this one."""
    path = folder / _SLOTS[checkpoint.epochs % 2]
    fields = {field.name: getattr(checkpoint, field.name) for field in dataclasses.fields(checkpoint)}
    plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in fields.items()}
    save_tensors(path, {"format": _FORMAT, **plain, "columns": list(checkpoint.columns)})
    return path


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole, None where there is none; a warning says which is damaged.

    If there are only damaged ones, it is an error.
    """
    found: list[Checkpoint] = []
    damaged: list[DamagedError] = []
    for name in _SLOTS:
        try:
            found.append(_load(folder / name))
        except FileNotFoundError:
            continue
        except DamagedError as error:
            damaged.append(error)
    if damaged and not found:
        raise DamagedError(f"{damaged[0]}; there is no other checkpoint in {folder}: start the run again")
    newest = max(found, key=lambda one: one.epochs, default=None)
    for problem in damaged:
        assert newest is not None
        warnings.warn(f"{problem}; going on from the one of epoch {newest.epochs}", stacklevel=2)
    return newest


def _load(path: Path) -> Checkpoint:
    read = load_tensors(path)
    wanted = {field.name for field in dataclasses.fields(Checkpoint)}
    written = read.pop("format", None)
    if not isinstance(written, int) or written != _FORMAT or set(read) != wanted:
        raise DamagedError(f"{path} is not a checkpoint of format {_FORMAT}")
    history, columns = read["history"], read["columns"]
    tables = [read[name] for name in ("weights", "best", "optimizer", "scheduler", "precision")]
    whole = isinstance(history, Tensor) and isinstance(columns, list) and history.ndim == 2
    if not (
        whole
        and history.shape[1] == len(columns)
        and all(isinstance(column, str) for column in columns)
        and all(isinstance(table, dict) for table in tables)
        and all(isinstance(weight, Tensor) for table in tables[:2] for weight in table.values())
        and isinstance(read["config_hash"], str)
        and isinstance(read["seconds"], float)
    ):
        raise DamagedError(f"{path} is damaged: it has fields that no checkpoint has")
    return Checkpoint(**{**read, "columns": tuple(columns)})
