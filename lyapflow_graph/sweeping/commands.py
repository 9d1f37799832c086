"""`lyapflow sweep`. What is heavy is imported when the command runs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from .result import SweepResult

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
out, errors = Console(highlight=False), Console(stderr=True, highlight=False)

_INTERRUPTED = 130  # as shells have it for a process that Ctrl-C ends
_SHOWN = 10


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A TOML file with a table [sweep].")],
    folder: Annotated[Path | None, typer.Option("--out", "-o", help="Of the sweep; by default sweeps/NAME.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the work.")] = 1,
    storage: Annotated[str | None, typer.Option(help="sqlite:///PATH, postgresql+psycopg://USER:PASSWORD@HOST/DATABASE "
                                                     "or journal:PATH; by default SQLite in the folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep in the folder.")] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Instead of what the file says, as "
                                                                     "sweep.trials=50; may be repeated.")] = None,
) -> None:  # fmt: skip
    """Try configurations, judge them on the validation set, and keep the best."""
    from . import load_sweep, run_sweep

    sweep = load_sweep(file, settings or ())
    folder = folder or Path("sweeps", file.stem)
    _print(f"sweep: {folder}, up to {sweep.size} trials")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *rest, **more: errors.print(f"warning: {message}", markup=False)
            found = run_sweep(sweep, folder, workers=workers, storage=storage, resume=resume, say=_print)
    except KeyboardInterrupt as error:
        errors.print(str(error) or "interrupted before the first trial", markup=False, soft_wrap=True)
        raise typer.Exit(_INTERRUPTED) from None
    _show(found)
    if found.best is None:
        raise RuntimeError(f"no trial was completed; {folder / 'sweep.md'} says why")
    _print(f"written: {folder / 'best.toml'}, {folder / 'sweep.md'}, {folder / 'sweep.html'}")


def _show(found: SweepResult) -> None:
    header, rows = found.table(_SHOWN)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    out.print(table)
    _print(found.summary())
    if found.importance:
        shares = ", ".join(f"{key} {share:.0%}" for key, share in found.importance.items())
        _print(f"what mattered: {shares}")


def _print(text: str) -> None:
    out.print(text, markup=False, soft_wrap=True)
