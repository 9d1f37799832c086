"""Run studies, and write their tables.

::

    python -m experiments run property_prediction                                  # what is missing of a study
    python -m experiments run property_prediction --row GPS --column SSSP          # one cell
    python -m experiments tables                                                   # docs and README, from the records

Start `run` as often as there are cores, each with `OMP_NUM_THREADS=1`: a run that another process is at is passed by.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock, Timeout

from lyapflow_graph.training import train

from .study import RESULTS, Cell, load_study
from .tables import write_all

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def run(
    studies: Annotated[list[str], typer.Argument(help="Names of files in experiments/studies.")],
    row: Annotated[str | None, typer.Option(help="Only this row.")] = None,
    column: Annotated[str | None, typer.Option(help="Only this column.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what has a record already.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Begin no run after so many minutes.")] = None,
    runs: Annotated[Path, typer.Option(help="Where checkpoints are kept.")] = Path("runs", "studies"),
) -> None:
    """Train what is missing of some studies. What was interrupted goes on where it was."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    for study in map(load_study, studies):
        chosen = [cell for cell in study.cells if row in (None, cell.row) and column in (None, cell.column)]
        if not chosen:
            raise typer.BadParameter(f"{study.name} has the rows {study.rows} and the columns {study.columns}")
        for cell in chosen:
            if end is not None and time.monotonic() > end:
                typer.echo("the time is over; the same command goes on")
                return
            _complete(cell, runs / cell.place, again)


@app.command()
def tables() -> None:
    """Write the tables of all studies, from their records alone: docs/results.md and the part of the README."""
    for path in write_all():
        typer.echo(f"written: {path}")


def _complete(cell: Cell, folder: Path, again: bool) -> None:
    kept = RESULTS / cell.place
    if (kept / "record.json").exists() and not again:
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{folder}.lock", timeout=0):
            if again and (folder / "record.json").exists():
                shutil.rmtree(folder)
            typer.echo(f"{time.strftime('%H:%M:%S')} {cell}")
            record = train(cell.config, folder, resume=True, figures=False, progress=False)
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "record.json", kept / "record.json")
            typer.echo(f"{time.strftime('%H:%M:%S')} {cell}: val {record.val:.4f}, {record.seconds:.0f} s")
    except Timeout:
        return


if __name__ == "__main__":
    app()
