"""Which graphs make the error on diameters: how sure its mean is, and what it is without the worst of them.

Run as `python -m experiments.scripts.errors`, after `python -m experiments run property_prediction`, which leaves the
weights in `runs/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor
from torch_geometric.loader import DataLoader

from lyapflow_graph.training import load_config, load_model
from lyapflow_graph.training.run import load_dataset

from ..study import load_study
from ..tables import save_measured

STUDY = "property_prediction"
COLUMNS = ("Diameter", "Diameter, 180 epochs")
RESAMPLINGS = 2000
SEED = 0


def main(
    runs: Annotated[Path, typer.Option(help="Where the runs of the studies are.")] = Path("runs", "studies"),
) -> None:
    """Measure, and write `experiments/results/diameter_errors.json`."""
    rows = []
    for column in COLUMNS:
        for cell in load_study(STUDY).cells:
            run = runs / cell.place
            if cell.column == column and (run / "model.pt").exists():
                rows.append([cell.row, column, *described(squared_errors(run))])
                typer.echo(rows[-1])
    if not rows:
        raise typer.BadParameter(f"no trained model of {STUDY} in {runs}: first `python -m experiments run {STUDY}`")
    path = save_measured(
        "diameter_errors",
        after=STUDY,
        title="Which graphs make the error on diameters",
        about=(
            "The trained models of the columns of diameters, graph by graph on the test set. One graph in a hundred "
            "makes much of the mean squared error. The interval holds the middle 95 of 100 of the logarithms in "
            f"{RESAMPLINGS:,} resamplings of the test graphs: how much a figure hangs on which graphs were drawn, not "
            "on the seed of the training."
        ),
        command="python -m experiments.scripts.errors",
        seed=SEED,
        tables=[
            {
                "header": [
                    "model",
                    "column",
                    "log10 MSE",
                    "95 % of resamplings",
                    "share of the worst 1 %",
                    "log10 MSE without these",
                    "median of errors",
                ],
                "rows": rows,
            }
        ],
    )
    typer.echo(f"written: {path}")


@torch.no_grad()
def squared_errors(run: Path) -> Tensor:
    """Of a trained model, for each test graph."""
    model = load_model(run).eval()
    test = load_dataset(load_config(run / "config.toml").data).test
    return torch.cat([(model(batch) - batch.y).square().flatten() for batch in DataLoader(test, batch_size=128)])


def described(errors: Tensor) -> list[str]:
    """What the table tells of squared errors."""
    errors = errors.double().sort(descending=True).values
    worst = max(1, len(errors) // 100)
    drawn = torch.randint(len(errors), (RESAMPLINGS, len(errors)), generator=torch.Generator().manual_seed(SEED))
    low, high = errors[drawn].mean(1).log10().quantile(torch.tensor([0.025, 0.975], dtype=errors.dtype)).tolist()
    return [
        f"{float(errors.mean().log10()):.4f}",
        f"{low:.2f} to {high:.2f}",
        f"{float(errors[:worst].sum() / errors.sum()):.0%}",
        f"{float(errors[worst:].mean().log10()):.4f}",
        f"{float(errors.median().sqrt()):.2f}",
    ]


if __name__ == "__main__":
    typer.run(main)
