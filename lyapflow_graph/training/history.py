"""The metrics of every epoch, in memory and as `metrics.csv`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from ..metrics import METRICS
from .files import write

ENERGY_COLUMNS = ("energy_first", "energy_last", "rising", "shortened", "train_violations", "descent_weight")


@final
class History:
    """A row of numbers for each epoch.

    Args:
        metric: What decides which epoch is the best.
        with_energy: Whether there are columns for the energy.
        rows: Of the epochs so far, `[epochs, columns]`.

    >>> from lyapflow_graph.training.history import History
    >>> history = History("mae", with_energy=False)
    >>> for error in (3.0, 1.0, 2.0):
    ...     history.append({"lr": 0.1, "train_loss": error, "val_loss": error, "val_mae": error})
    >>> history.best_epoch, history.epochs_since_best, history[1]["val_mae"]
    (2, 1, 1.0)
    """

    def __init__(self, metric: str, with_energy: bool, rows: Tensor | None = None) -> None:
        self.metric = metric
        self.columns: tuple[str, ...] = ("epoch", "lr", "train_loss", "val_loss", f"val_{metric}")
        self.columns += ENERGY_COLUMNS if with_energy else ()
        self._rows: list[list[float]] = [] if rows is None else rows.tolist()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> dict[str, float]:
        return dict(zip(self.columns, self._rows[i], strict=True))

    def column(self, name: str) -> list[float]:
        """All values of a column."""
        place = self.columns.index(name)
        return [row[place] for row in self._rows]

    def append(self, values: Mapping[str, float]) -> None:
        """Add the row of the next epoch; epochs are counted from 1."""
        row = {"epoch": float(len(self) + 1), **values}
        if set(row) != set(self.columns):
            raise ValueError(f"a row has the columns {list(self.columns)}, got {list(row)}")
        self._rows.append([float(row[name]) for name in self.columns])

    @property
    def best_epoch(self) -> int:
        """The first with the best validation metric; 0 before any."""
        values = self.column(f"val_{self.metric}")
        sign = -1 if METRICS[self.metric].maximise else 1
        keys = [math.inf if math.isnan(value) else sign * value for value in values]
        return 1 + keys.index(min(keys)) if keys else 0

    @property
    def epochs_since_best(self) -> int:
        return len(self) - self.best_epoch

    def tensor(self) -> Tensor:
        """`[epochs, columns]`, in double precision."""
        return torch.tensor(self._rows, dtype=torch.float64).reshape(len(self), len(self.columns))

    def save(self, path: Path) -> None:
        """Write all rows."""
        write(path, _csv([self.columns, *(self._cells(i) for i in range(len(self)))]))

    def append_last(self, path: Path) -> None:
        """Add the last row to the file of the others. A row that a crash cuts off is written anew on resuming."""
        with open(path, "a", encoding="utf-8", newline="") as file:
            file.write(_csv([self._cells(len(self) - 1)]))

    def _cells(self, i: int) -> list[str]:
        return [str(int(self._rows[i][0])), *(repr(value) for value in self._rows[i][1:])]


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
