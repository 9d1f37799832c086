"""One trained model under several solvers, and at step sizes from far too small to far too large.

Run as::

    python -m experiments.scripts.solvers [RUN]       # by default TANGO on SSSP, of the study of properties

The run is one of `python -m experiments run`, with its weights in `runs/`. The first table follows the trained field
for the time that the model was trained with, by each method, and reads the same readout: the metric on test graphs, the
share of accepted steps in which the energy of a graph rises, evaluations of the field and time. The second takes as
many steps as the model does, but of another size.
"""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch_geometric.data import Batch

from lyapflow_graph import Tango
from lyapflow_graph.training import load_config, load_model
from lyapflow_graph.training.run import load_dataset
from solvers import Solution

from ..tables import save_measured

METHODS = ("euler", "rk4", "dopri5", "armijo_euler", "relaxed_rk4", "discrete_gradient")
STEP_SIZES = (0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
STEPPED = ("euler", "rk4", "armijo_euler", "relaxed_rk4")
DEFAULT = Path("runs", "studies", "property_prediction", "tango-gatedgcn", "sssp", "0-0")


def main(
    run: Annotated[Path, typer.Argument(help="The folder of a run of TANGO on nodes.")] = DEFAULT,
    graphs: Annotated[int, typer.Option(help="Of the test set.")] = 64,
    stepped: Annotated[int, typer.Option(help="Of these, how many are followed at all step sizes.")] = 16,
    rounds: Annotated[int, typer.Option(help="Of timing.")] = 3,
) -> None:
    """Measure, and write `experiments/results/solvers.json`."""
    config = load_config(run / "config.toml")
    model = load_model(run).double()  # so that what rises is no rounding
    if not isinstance(model, Tango) or model.task != "node":
        raise typer.BadParameter(f"{run} has no TANGO that speaks of nodes")
    test = load_dataset(config.data).test
    chosen, few = (_double(Batch.from_data_list([test[i] for i in range(count)])) for count in (graphs, stepped))
    trained = model.conv.step_size
    tables = [
        {
            "title": f"The trained field for the same time, {model.conv.num_steps} steps of {trained:g} for methods "
            f"with fixed steps; {graphs} test graphs",
            "header": ["method", "log10 MSE", "steps that raise V", "graphs whose V rises", "evaluations", "time"],
            "rows": _by_method(model, chosen, rounds),
        },
        {
            "title": f"{model.conv.num_steps} steps of another size: graphs whose energy rises in some step, or which "
            f"leave the numbers; {stepped} test graphs",
            "header": ["step size", *STEPPED],
            "rows": _by_step_size(model, few),
        },
    ]
    path = save_measured(
        "solvers",
        after="property_prediction",
        title="One trained model, many solvers",
        about=(
            f"TANGO on `{config.data.name}` (configuration `{config.hash}`, seed {config.seed}) was trained with "
            "Euler's steps, and is followed by other methods afterwards, in double precision. What Euler computes is "
            "part of the trained model: a more exact solution of the same differential equation is another function, "
            "and the metric shows how far the two are apart. *Evaluations* are of the field, the mean over graphs; "
            f"*time* is in units of Euler's, the median of {rounds} interleaved rounds. `dopri5` chooses its own "
            "steps, at its default tolerances. `discrete_gradient` solves an equation in every step and is not in the "
            "second table: at large steps that takes minutes for a graph."
        ),
        command="python -m experiments.scripts.solvers",
        seed=config.seed,
        tables=tables,
    )
    typer.echo(f"written: {path}")


def _double(batch: Any) -> Any:
    return batch.apply(lambda x: x.double() if x.is_floating_point() else x)


def _follow(model: Tango, batch: Any, method: str, step_size: float, throw: bool) -> tuple[Tensor, Solution[Tensor]]:
    conv = model.conv
    before = conv.method, conv.step_size
    conv.method, conv.step_size = method, step_size
    try:
        with torch.no_grad():
            h, of_batch = model.encode(batch)
            solution = conv.solve(h, of_batch, saveat="steps", throw=throw)
            return model.decode(conv.read(solution.y1), of_batch), solution
    finally:
        conv.method, conv.step_size = before


def _by_method(model: Tango, batch: Any, rounds: int) -> list[list[str]]:
    step_size, rows, times = model.conv.step_size, [], {method: list[float]() for method in METHODS}
    found: dict[str, tuple[Tensor, Solution[Tensor]]] = {}
    for _ in range(rounds):
        for method in METHODS:
            began = time.perf_counter()
            found[method] = _follow(model, batch, method, step_size, throw=False)
            times[method].append(time.perf_counter() - began)
    for method, (output, solution) in found.items():
        rising = rises(solution)
        error = (output - batch.y).square().flatten()
        per_graph = error.new_zeros(batch.num_graphs).index_add(0, batch.batch, error) / batch.ptr.diff()
        accepted = float(solution.stats["accepted"].sum())
        ratio = statistics.median(own / euler for own, euler in zip(times[method], times["euler"], strict=True))
        rows.append(
            [
                method,
                _number(float(per_graph.mean().log10())),
                f"{100 * float(rising.sum()) / accepted:.1f} %",
                f"{int((rising > 0).sum())} of {batch.num_graphs}",
                f"{float(solution.stats['nfe'].double().mean()):.0f}",
                f"{ratio:.1f}x",
            ]
        )
        typer.echo(rows[-1])
    return rows


def _by_step_size(model: Tango, batch: Any) -> list[list[str]]:
    rows = []
    for step_size in STEP_SIZES:
        cells = [_outcome(_follow(model, batch, method, step_size, throw=False)[1]) for method in STEPPED]
        rows.append([f"{step_size:g}", *cells])
        typer.echo(rows[-1])
    return rows


def _outcome(solution: Solution[Tensor]) -> str:
    rising = int((rises(solution) > 0).sum())
    lost = int((~torch.isfinite(solution.energy[-1])).sum())
    failed = sum(solution.status_of(i).name != "SUCCESS" for i in range(solution.status.numel()))
    told = [f"{rising} rise"] if rising else []
    told += [f"{lost} lost"] if lost else []
    told += [f"{failed} not at the end"] if failed and not lost else []
    return ", ".join(told) or "none"


def rises(solution: Solution[Tensor]) -> Tensor:
    """`[S]`, in how many steps the energy of each graph rose, beyond rounding."""
    energy = solution.energy
    change = energy.diff(dim=0)
    return ((change > 1e-9 * energy[:-1].abs()) | ~torch.isfinite(energy[1:])).sum(0)


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "no number"


if __name__ == "__main__":
    typer.run(main)
