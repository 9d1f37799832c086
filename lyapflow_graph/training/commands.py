"""`lyapflow train`, `report`, `predict` and `export`. What is heavy is imported when a command runs."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

# Each is a command by itself, which `lyapflow.commands` forwards to.
_settings: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False}
train, report, predict, export = (typer.Typer(**_settings, rich_markup_mode=None) for _ in range(4))
# Under torchrun the first process speaks for all.
out = Console(highlight=False, quiet=os.environ.get("RANK", "0") != "0")
errors = Console(stderr=True, highlight=False)

_INTERRUPTED = 130  # as shells have it for a process that Ctrl-C ends


@train.command()
def run_train(
    config: Annotated[Path, typer.Argument(help="A TOML file, or the record.json of a run to repeat.")],
    settings: Annotated[list[str] | None, typer.Option("--set", help="Instead of what the file says, as "
                                                                     "model.num_steps=16; may be repeated.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Of the run; by default runs/NAME/HASH-SPLIT-SEED.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
) -> None:  # fmt: skip
    """Train a model as a TOML file or a record says, test it, and leave its record in a folder."""
    from lyapflow import DescentCount

    from . import Interrupted, load_config
    from .run import train as run_it

    read = load_config(config, settings or ())
    name = config.parent.name if config.name in ("config.toml", "record.json") else config.stem
    folder = folder or Path("runs", name, f"{read.hash}-{read.data.split}-{read.seed}")
    out.print(f"run: {folder}", markup=False, soft_wrap=True)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            record = run_it(read, folder, resume=resume)
    except Interrupted as error:
        errors.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(_INTERRUPTED) from None
    if record.test is None:
        out.print(f"{record.status} after {record.epochs} epochs")
        return
    out.print(
        f"epochs: {record.epochs}, best {record.best_epoch}; {record.seconds:.1f} s, {record.parameters:,} parameters"
    )
    out.print(f"{record.metric}: validation {record.val:.5g}, test {record.test:.5g}", style="bold")
    if record.descent is not None:
        out.print(DescentCount(**record.descent).sentence("test graphs"), markup=False, soft_wrap=True)


@report.command()
def run_report(
    folder: Annotated[Path, typer.Argument(help="With folders of runs, at any depth.")],
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the report goes; by default the folder.")
    ] = None,
) -> None:
    """Write tables over all runs in a folder, beside the figures of the paper: report.md and report.html."""
    from .report import report as gather

    found = gather(folder)
    out.print(found.markdown(), markup=False, soft_wrap=True)
    for path in found.save(to or folder):
        errors.print(f"written: {path}", markup=False, soft_wrap=True)


@predict.command()
def run_predict(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or an exported model.")],
    data: Annotated[str | None, typer.Argument(help="A data set, by default that of the run.")] = None,
    to: Annotated[Path, typer.Option("--out", "-o", help="A Parquet file.")] = Path("predictions.parquet"),
    part: Annotated[list[str] | None, typer.Option(help="train, val or test; all if not given.")] = None,
    root: Annotated[str | None, typer.Option(help="The folder of the data.")] = None,
) -> None:
    """Predict with a trained model, and say what its energy does on the data. The exit code is 1 if it rises."""
    from .predict import predict as apply

    found = apply(run, data, parts=part or ("train", "val", "test"), root=root)  # type: ignore[arg-type]
    out.print(f"{found.table.num_rows} predictions: {found.save(to)}", markup=False, soft_wrap=True)
    if found.descent is not None:
        out.print(found.descent.sentence("graphs"), markup=False, soft_wrap=True)
        raise typer.Exit(0 if found.descent.holds else 1)


@export.command()
def run_export(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    to: Annotated[Path, typer.Option("--out", "-o", help="The file.")] = Path("model.pt"),
) -> None:
    """Write the trained model of a run to one file, which lyapflow_graph.training.load_model reads."""
    from .export import export_model, load_exported

    found = load_exported(run)
    path = export_model(to, found.model, found.config, found.dataset)
    out.print(f"written: {path}", markup=False, soft_wrap=True)


def _show_warning(message: Warning | str, *rest: object, **more: object) -> None:
    errors.print(f"warning: {message}", markup=False, soft_wrap=True)
