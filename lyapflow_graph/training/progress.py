"""A line on the terminal that says how far a run is; nothing where there is no terminal."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@final
class EpochBar:
    """A progress bar over epochs on standard error.

    Args:
        epochs: How many there are.
        done: How many are done.
        enabled: Whether to show it; it is never shown where standard error is no terminal.

    >>> with EpochBar(3, enabled=False) as bar:
    ...     bar.advance({"val_mae": 0.5})
    """

    def __init__(self, epochs: int, done: int = 0, enabled: bool = True) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("epoch"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(
            *columns, TextColumn("{task.fields[told]}"), console=console, disable=not (enabled and console.is_terminal)
        )
        self._task = self._progress.add_task("epochs", total=epochs, completed=done, told="")

    def __enter__(self) -> EpochBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, row: Mapping[str, float]) -> None:
        """One epoch more, with its metrics."""
        shown = [name for name in row if name == "train_loss" or (name.startswith("val_") and name != "val_loss")]
        shown += [name for name in ("energy_last", "rising") if name in row]
        told = "  ".join(f"{name} {row[name]:.4g}" for name in shown)
        self._progress.update(self._task, advance=1, told=told)
