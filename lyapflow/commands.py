"""What the command `lyapflow` can do. Needs Typer and Rich: `pip install "lyapflow[cli]"`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from solvers import methods

from .certificate import Certificate
from .certify import certify
from .demo import demo_field, demo_starts
from .doctor import diagnosis
from .flow import Flow
from .importing import import_object

app = typer.Typer(
    name="lyapflow",
    help="Neural dynamics whose energy provably decays.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
out, errors = Console(highlight=False), Console(stderr=True, highlight=False)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False) -> None:
    if version:
        from . import __version__

        out.print(f"lyapflow {__version__}")
        raise typer.Exit()


@app.command("doctor")
def run_doctor() -> None:
    """Show what is installed: versions, kernels, threads, devices, and how to get what is missing."""
    for name, value in diagnosis().items():
        out.print(f"{name + ':':10} {value}", markup=False, soft_wrap=True)


@app.command("solvers")
def list_solvers(
    dissipative: Annotated[bool, typer.Option("--dissipative", help="Only those that never raise an energy.")] = False,
) -> None:
    """List the methods that can integrate a field."""
    flags = ("adaptive", "implicit", "dissipative", "symplectic")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("name", "order", "stages", *flags):
        table.add_column(heading, no_wrap=True)
    for name, method in methods().items():
        if method.dissipative or not dissipative:
            marks = ["yes" if getattr(method, flag) else "-" for flag in flags]
            table.add_row(name, str(method.order), str(method.stages), *marks)
    out.print(table)


@app.command("certify")
def run_certify(
    field: Annotated[str, typer.Argument(help="Where the field is, as module:object; a Flow, or a function that "
                                              "makes one without arguments, will do too.")],
    shape: Annotated[str | None, typer.Option(help="Of a random state at the start, as 16,2.")] = None,
    state: Annotated[Path | None, typer.Option(help="A file of torch.save with the state at the start.")] = None,
    scale: Annotated[float, typer.Option(help="Of the random state.")] = 1.0,
    dtype: Annotated[str, typer.Option(help="Of the random state: float32 or float64.")] = "float32",
    time: Annotated[float | None, typer.Option(help="How long to follow the field.")] = None,
    steps: Annotated[int | None, typer.Option(help="How many steps.")] = None,
    step_size: Annotated[float | None, typer.Option(help="Their size.")] = None,
    method: Annotated[str | None, typer.Option(help="A name from `lyapflow solvers`; euler if not given.")] = None,
    samples: Annotated[int, typer.Option(help="How many states are sampled.")] = 256,
    confidence: Annotated[float, typer.Option(help="Of the bound on the share of violations.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the random state and of the samples.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Save the certificate there.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it there; needs matplotlib.")] = None,
) -> None:  # fmt: skip
    """Follow a field and say what it does to its energy. The exit code is 1 if it raises it anywhere."""
    torch.manual_seed(seed)
    found = load_object(field)
    start = _start(shape, state, scale, dtype)
    settings: dict[str, Any] = {"steps": steps, "step_size": step_size}
    if method is not None:
        settings["method"] = method
    certificate = certify(
        found, start, time, samples=samples, confidence=confidence, seed=seed, progress=True, **settings
    )
    show(certificate)
    if json is not None:
        out.print(f"saved: {certificate.save(json)}")
    if plot is not None:
        certificate.plot(plot)
        out.print(f"drawn: {plot}")
    raise typer.Exit(0 if certificate.holds else 1)


@app.command("demo")
def run_demo(
    to: Annotated[Path, typer.Option("--out", help="Where the figures go.")] = Path("lyapflow-demo"),
    seed: Annotated[int, typer.Option(help="Of the field and of the starts.")] = 0,
) -> None:
    """Show a field with an energy and a tangent, and three methods that follow it, one of which raises the energy."""
    field, starts = demo_field(seed), demo_starts(seed)
    out.print("dh/dt = -alpha grad V(h) + beta T(h): V is Himmelblau's function with its four minima, T its gradient")
    out.print("turned by a right angle. Along the field V never grows; along steps of Euler's method it may.\n")
    shown = ("euler", "armijo_euler", "relaxed_rk4")
    for name in track(shown, description="certifying", console=errors, transient=True):
        certificate = certify(field, starts, steps=60, step_size=0.2, method=name, samples=32, seed=seed)
        show(certificate)
        certificate.save(to / f"{name}.json")
        try:
            certificate.plot(to / f"{name}.png")
        except ImportError as error:
            errors.print(f"no figures: {error}", markup=False)
        out.print()
    out.print(f"certificates and figures are in {to}/")


def _forward(name: str, module: str, about: str, attribute: str = "app") -> None:
    """Commands of `lyapflow_graph` are imported when they are called: `lyapflow` works without torch_geometric."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

    @app.command(name, help=about, add_help_option=False, context_settings=settings)
    def run(context: typer.Context) -> None:
        if importlib.util.find_spec("torch_geometric") is None:
            raise ImportError(f'lyapflow {name} needs torch_geometric: pip install "lyapflow[graph]"')
        getattr(importlib.import_module(module), attribute)(context.args, prog_name=f"lyapflow {name}")


_forward("data", "lyapflow_graph.data.commands", "Data sets for graph networks: list, show, import.")

_TRAINING = "lyapflow_graph.training.commands"
_forward("train", _TRAINING, "Train a model as a TOML file says, and leave its record in a folder.", "train")
_forward("sweep", "lyapflow_graph.sweeping.commands", "Try configurations, and keep the best by the validation set.")
_forward("report", _TRAINING, "Tables over all runs in a folder, beside the figures of the paper.", "report")
_forward("predict", _TRAINING, "Predict with a trained model, and certify its field on the data.", "predict")
_forward("export", _TRAINING, "Write a trained model to one file.", "export")


def show(certificate: Certificate) -> None:
    """A certificate on the terminal."""
    first, *rest = certificate.sentences()
    header, rows = certificate.rows()
    out.print(first, style="bold", markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    for name in header:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows[:20]:
        table.add_row(*row, style="red" if any(cell.endswith("!") for cell in row) else None)
    out.print(table)
    if len(rows) > 20:
        out.print(f"... and {len(rows) - 20} more systems")
    out.print(certificate.legend(), style="dim", markup=False)
    for line in rest[:-1]:
        out.print(line, markup=False)
    out.print(rest[-1], style="green" if certificate.holds else "red", markup=False)


def _start(shape: str | None, state: Path | None, scale: float, dtype: str) -> torch.Tensor:
    if (shape is None) == (state is None):
        raise ValueError("give the state at the start, by one of --shape 16,2 and --state FILE")
    if state is not None:
        loaded = torch.load(state, weights_only=True)
        if not isinstance(loaded, torch.Tensor):
            raise TypeError(f"{state} must hold a tensor, got {type(loaded).__name__}")
        return loaded
    assert shape is not None
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be float32 or float64, got {dtype!r}")
    try:
        sizes = [int(size) for size in shape.split(",")]
    except ValueError:
        raise ValueError(f"shape must be whole numbers with commas between them, as 16,2; got {shape!r}") from None
    if any(size < 1 for size in sizes):
        raise ValueError(f"shape must be positive numbers, got {shape!r}")
    return scale * torch.randn(sizes, dtype=getattr(torch, dtype))


def load_object(path: str) -> Any:
    """What `module:object` names, made if it is a function or class that makes a field without arguments.

    >>> load_object("lyapflow:DoubleWell")
    DoubleWell(barrier=0.25, width=1.0)
    """
    found = import_object(path, "a field")
    is_field = callable(getattr(found, "energy", None)) or isinstance(found, Flow)
    if inspect.isclass(found) or (inspect.isroutine(found) and not is_field):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise TypeError(f"{path} cannot be called without arguments to make a field: {error}") from None
        return found()
    return found
