"""What a constant gives on the labels of graph property prediction: the mean of the training set, said of every node.

Run as `python -m experiments.scripts.constants`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import typer

from lyapflow_graph.data import load
from lyapflow_graph.losses import LOSSES, Judged

from ..tables import save_measured

LABELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Diameter": ("gpp/diameter", {}),
    "SSSP": ("gpp/sssp", {}),
    "Eccentricity": ("gpp/eccentricity", {}),
    "Laplacian feature": ("gpp/sssp", {"labels": "published"}),
}


def main() -> None:
    """Measure, and write `experiments/results/property_constants.json`."""
    rows = []
    for name, (data, options) in LABELS.items():
        raw, divisor = (constant(data, scale=scale, **options) for scale in ("raw", "normalised"))
        rows.append([name, f"{raw[0]:.4f}", f"{divisor[0]:.4f}", f"{divisor[1]:.4g}"])
        typer.echo(rows[-1])
    path = save_measured(
        "property_constants",
        after="property_variants",
        title="What a constant gives",
        about=(
            "The mean label of the training graphs, said of every node or graph of the test set: log10 of the mean "
            "squared error. Dividing all labels by the largest of the training set lowers every figure of that label "
            "by twice the logarithm of it, for a constant as for any model."
        ),
        command="python -m experiments.scripts.constants",
        seed=1234,
        tables=[{"header": ["label", "raw", "divided by the largest", "the largest"], "rows": rows}],
    )
    typer.echo(f"written: {path}")


def constant(name: str, **options: Any) -> tuple[float, float]:
    """The logarithm of the error of the mean, and what the labels are divided by."""
    data = load(name, **options)
    mean = torch.cat([data.train[i].y for i in range(len(data.train))]).mean()
    labels = [data.test[i].y for i in range(len(data.test))]
    graph = torch.cat([torch.full((len(y),), i) for i, y in enumerate(labels)])
    target = torch.cat(labels)
    told = Judged(mean.expand_as(target), target, graph, len(labels))
    total, count = LOSSES[data.loss].sums(told)
    return math.log10(float(total / count)), float(data.provenance["divided by"])


if __name__ == "__main__":
    typer.run(main)
