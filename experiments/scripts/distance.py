"""How far the trained models of the study of depth see: the influence of a node on others, over their distance.

Run as `python -m experiments.scripts.distance`, after `python -m experiments run depth`, which leaves the weights in
`runs/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import torch
import typer
from torch import Tensor
from torch_geometric.data import Batch

from lyapflow_graph import influence_over_distance
from lyapflow_graph.training import load_config, load_model
from lyapflow_graph.training.run import load_dataset

from ..study import load_study
from ..tables import ROOT, save_measured

FIGURE = "influence.png"
_COLOURS = {"GatedGCN": "#8c8c8c", "gradient flow, GatedGCN": "#2a9d5c", "TANGO, GatedGCN": "#e07b00"}


def main(
    runs: Annotated[Path, typer.Option(help="Where the runs of the studies are.")] = Path("runs", "studies"),
    column: Annotated[str, typer.Option(help="Of the study of depth.")] = "L = 8",
    graphs: Annotated[int, typer.Option(help="Of the test set.")] = 8,
) -> None:
    """Measure, and write `experiments/results/distance.json` and a figure."""
    study = load_study("depth")
    found: dict[str, Tensor] = {}
    for row in study.rows:
        own = [cell for cell in study.cells if (cell.row, cell.column) == (row, column)]
        found[row] = torch.stack([_influence(runs / cell.place, graphs) for cell in own]).mean(0)
    distances = range(len(next(iter(found.values()))))
    rows = [[str(d), *(f"{float(curve[d]):.2e}" for curve in found.values())] for d in distances]
    _draw(found, column, ROOT / "docs" / "images" / FIGURE)
    path = save_measured(
        "distance",
        after="depth",
        title="How far a node is seen through the bottleneck",
        about=(
            f"The trained models of the study of depth at {column}: the norm of the derivative of the features of one "
            "node, behind the last layer or step, in the encoded features of another, relative to that of a node in "
            f"itself; mean over pairs at each distance, {graphs} test graphs and the seeds of the study."
        ),
        command="python -m experiments.scripts.distance",
        seed=0,
        tables=[{"header": ["distance", *found], "rows": rows}],
        images=[{"file": FIGURE, "alt": "Influence over distance for GatedGCN, gradient flow and TANGO."}],
    )
    typer.echo(f"written: {path}")


def _influence(run: Path, graphs: int) -> Tensor:
    """`[D + 1]`, the mean over graphs."""
    model = load_model(run).eval()
    test = load_dataset(load_config(run / "config.toml").data).test
    with torch.no_grad():
        h, batch = model.encode(Batch.from_data_list([test[i] for i in range(graphs)]))
    return influence_over_distance(lambda x: model.body(x, batch), h, batch, relative=True).mean.mean(0)


def _draw(found: dict[str, Tensor], column: str, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4), facecolor="white", layout="constrained")
    for name, curve in found.items():
        axes.semilogy(curve.clamp_min(1e-12), "o-", label=name, color=_COLOURS.get(name))
    axes.axvspan(0.5, 1.5, alpha=0.08, color="black", label="within a clique")
    axes.set(xlabel="distance between two nodes, in edges", ylabel="influence, relative to distance 0")
    axes.set_title(f"What a node sees of another after training, {column}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)


if __name__ == "__main__":
    typer.run(main)
