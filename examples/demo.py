"""The demonstration: a model that learns distances in graphs, and whose energy rises in no step of any graph.

First the barbell graph, on which gradient flow of the Dirichlet energy stays on its side of the bridge, and TANGO does
not. Then random graphs and the task to predict the eccentricity of every node, the distance to the farthest node. Three
models are trained alike, on the same graphs, with as many parameters and epochs, and messages that go ten edges far:
the backbone GatedGCN, TANGO with plain Euler steps as in the paper, and TANGO with guaranteed descent, the default.
Then the learned energy of both along their steps, over the whole test set. All of it is measured while you wait, and
written to a page.

Run as one of::

    python -m examples.demo                     # everything goes to demo/
    python -m examples.demo --seed 1 --out DIR
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Batch

from examples.barbell_flows import BarbellResult, barbell
from examples.demo_figures import draw_curves, draw_energies, draw_predictions
from examples.demo_page import Figure, page
from examples.terminal import heading, say, table
from lyapflow import DescentCount
from lyapflow_graph import Tango
from lyapflow_graph.data import GraphDataset, load
from lyapflow_graph.training import (
    Config,
    DataConfig,
    ModelConfig,
    Record,
    TrainingConfig,
    load_model,
    predict,
    train,
)

# A step of TANGO passes messages over two edges, out by the network of the energy and back by its gradient, and a layer
# of the backbone over one: it is ten edges in both. The widths are such that all have about as many parameters.
MODELS = {
    "GatedGCN": ModelConfig("gatedgcn", 16, {"num_layers": 10}),
    "TANGO, plain Euler": ModelConfig("tango", 30, {"num_steps": 5, "step_size": 1.0, "guard": False}),
    "TANGO, guaranteed": ModelConfig("tango", 30, {"num_steps": 5, "step_size": 1.0}),
}
TRAINING = TrainingConfig(
    epochs=25,
    batch_size=64,
    optimizer="adam",
    lr=3e-3,
    weight_decay=1e-6,
    scheduler="cosine",
)
GRAPHS = 1100  # the dataset has 7,040


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model and its predictions on the test set.

    Attributes:
        name: The name of the model.
        folder: The folder of its run.
        record: The record of its run.
        curves: The metrics of all epochs, by the columns of `metrics.csv`.
        values: The prediction for each node of the test set.
        labels: The label of each node of the test set.
    """

    name: str
    folder: Path
    record: Record
    curves: Mapping[str, Sequence[float]]
    values: Sequence[float]
    labels: Sequence[float]

    @property
    def test(self) -> float:
        """The metric on the test set."""
        assert self.record.test is not None
        return self.record.test

    @property
    def descent(self) -> DescentCount:
        """In how many graphs and steps of the test set the energy rises."""
        assert self.record.descent is not None
        return DescentCount(**self.record.descent)

    @property
    def certificate(self) -> str:
        """The same as one line."""
        return self.descent.sentence("test graphs")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="TANGO at work, in three minutes.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for all files (default: demo)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the order of graphs (default: 0)")
    parser.add_argument("--epochs", type=int, default=TRAINING.epochs, help=f"default: {TRAINING.epochs}")
    parser.add_argument("--graphs", type=int, default=GRAPHS, help=f"default: {GRAPHS}")
    options = parser.parse_args(arguments)
    out: Path = options.out
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other

    start = time.perf_counter()
    crossing = show_barbell(out)
    data = make_data(options.graphs, out / "data")
    training = dataclasses.replace(TRAINING, epochs=options.epochs)
    trained = [run(name, data, training, options.seed, out / "trained") for name in MODELS]
    rows = results(trained, data)
    show_results(rows, trained)
    show_energies(*trained[1:])
    paths = write_page(out, crossing, rows, trained, data.test)
    heading(f"Done in {time.perf_counter() - start:.0f} seconds")
    table("ll", ("file", "contents"), [(str(path), what) for path, what in paths.items()])


# -- the barbell ------------------------------------------------------------------------------------------------------


def show_barbell(out: Path, train_steps: int = 20) -> str:
    heading("1. A signal has to cross a bottleneck")
    result = barbell(train_steps=train_steps)
    told = crossing_of(result)
    result.plot(out / "barbell.png")
    say(told)
    return told


def crossing_of(result: BarbellResult) -> str:
    steps = len(result.tango.energy) - 1
    rise = max(result.gradient_flow.largest_rise, result.tango.largest_rise)
    return (
        f"Two cliques are joined by a path, and one node of the left one holds a signal. After {steps} Euler steps "
        f"{result.gradient_flow.crossed:.1%} of it has crossed the bridge by gradient flow of the Dirichlet energy, "
        f"and {result.tango.crossed:.1%} by TANGO, which also moves along a learned direction orthogonal to the "
        f"gradient; in the uniform state it would be {result.uniform:.1%}. "
        + (f"The energy rises by {rise:.0e} in a step." if rise > 0 else "The energy falls in every step.")
    )


# -- eccentricities ---------------------------------------------------------------------------------------------------


def make_data(graphs: int, root: Path) -> GraphDataset:
    heading("2. How far is the farthest node?")
    data = load("gpp/eccentricity", root, graphs=graphs, progress=True)
    say(
        f"The task: predict the eccentricity of every node. {len(data.train)} random graphs for training, "
        f"{len(data.val)} for validation, {len(data.test)} for the test. The metric is the base-10 logarithm of the "
        "mean squared error; lower is better."
    )
    return data


def run(name: str, data: GraphDataset, training: TrainingConfig, seed: int, folder: Path) -> Trained:
    """Train one of the models anew."""
    folder = folder / name.replace(",", "").replace(" ", "_").lower()
    graphs = sum(len(part) for part in (data.train, data.val, data.test))
    config = Config(DataConfig(data.name, options={"graphs": graphs}), MODELS[name], training, seed)
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier demonstration
    say(f"Training {name} for {training.epochs} epochs.")
    record = train(config, folder, dataset=data)
    found = predict(folder, data, parts=("test",)).table
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    curves = {column: [float(row[column]) for row in rows] for column in rows[0]}
    return Trained(name, folder, record, curves, found["value"].to_pylist(), found["label"].to_pylist())


HEADER = (
    "model", "validation log10 MSE", "test log10 MSE", "energy rises in", "parameters", "best epoch", "seconds"
)  # fmt: skip


def results(trained: Sequence[Trained], data: GraphDataset) -> list[tuple[str, ...]]:
    """The rows of the table; the first is the error of the mean label of the training set."""
    mean = float(torch.cat([data.train[i].y for i in range(len(data.train))]).double().mean())
    constant = [f"{constant_error(mean, part):.3f}" for part in (data.val, data.test)]
    rows: list[tuple[str, ...]] = [("the mean label", *constant, "-", "1", "-", "-")]
    for one in trained:
        record = one.record
        rises = "-" if record.descent is None else f"{one.descent.rising_systems} of {one.descent.systems}"
        numbers = f"{record.val:.3f}", f"{one.test:.3f}", rises, f"{record.parameters:,}", str(record.best_epoch)
        rows.append((one.name, *numbers, f"{record.seconds:.0f}"))
    return rows


def constant_error(value: float, graphs: Sequence[object]) -> float:
    """The metric of a model that always says the same."""
    errors = [(graphs[i].y.double() - value).square().mean() for i in range(len(graphs))]  # type: ignore[attr-defined]
    return math.log10(float(torch.stack(errors).mean()))


def show_results(rows: Sequence[tuple[str, ...]], trained: Sequence[Trained]) -> None:
    heading("3. Results")
    table("lrrrrrr", HEADER, rows)
    say(verdict(*trained))


def verdict(backbone: Trained, euler: Trained, ours: Trained) -> str:
    """The errors on the test set, relative to each other."""
    to_backbone, to_euler = (10 ** (ours.test - other.test) for other in (backbone, euler))
    return (
        f"The squared error of {ours.name} is {to_backbone:.2f} times that of {backbone.name}, and {to_euler:.2f} "
        f"times that of {euler.name}."
    )


# -- the energy -------------------------------------------------------------------------------------------------------


def show_energies(euler: Trained, ours: Trained) -> None:
    heading("4. The energy of every test graph, in every step")
    say(explained(euler, ours))
    for one in (euler, ours):
        print(f"  {one.name}\n  {one.certificate}\n", flush=True)


@torch.no_grad()
def energies(folder: Path, graphs: Sequence[object]) -> Tensor | None:
    """The energy of every graph at the start and after every step, `[steps + 1, graphs]`; None without an energy."""
    model = load_model(folder)
    if not isinstance(model, Tango):
        return None
    h, batch = model.encode(Batch.from_data_list([graphs[i] for i in range(len(graphs))]))
    return model.conv.take_steps(h, batch).energy


def explained(euler: Trained, ours: Trained) -> str:
    """What the steps of both do to the energy."""
    risen, kept = euler.descent, ours.descent
    return (
        "Along the field itself the energy never grows, since the tangential part is orthogonal to its gradient. A "
        f"step of Euler's method need not keep that: it raises the energy of {risen.rising_systems} of {risen.systems} "
        "test graphs. The guaranteed model takes as many steps of the same size. It was trained to descend, and a "
        f"guard halves a step that would raise the energy of a graph: {kept.shortened_steps} of {kept.steps:,} here."
    )


# -- the page ---------------------------------------------------------------------------------------------------------


def write_page(
    out: Path, crossing: str, rows: Sequence[tuple[str, ...]], trained: Sequence[Trained], test: Sequence[object]
) -> dict[Path, str]:
    """Draw the figures and write the page; what each file is, by its path."""
    curves, pairs = {one.name: one.curves for one in trained}, {one.name: (one.labels, one.values) for one in trained}
    draw_curves(curves, out / "training.png")
    draw_predictions(pairs, out / "predictions.png")
    draw_energies({one.name: (one.test, energies(one.folder, test)) for one in trained}, out / "energy.png")
    backbone, euler, ours = trained
    figures = [
        Figure("The energy of every test graph, step by step", out / "energy.png", explained(euler, ours)),
        Figure("Training", out / "training.png", verdict(backbone, euler, ours)),
        Figure(
            "Predictions on the test set",
            out / "predictions.png",
            "All nodes with the same eccentricity: the mean of the predictions, and the range of the middle 80%.",
        ),
        Figure("A signal has to cross a bottleneck", out / "barbell.png", crossing),
    ]
    details = {f"Certificate: {one.name}": one.certificate for one in (euler, ours)}
    details |= {f"Configuration: {one.name}": (one.folder / "config.toml").read_text() for one in trained}
    path = out / "report.html"
    path.write_text(page("TANGO that keeps its promise", HEADER, rows, figures, details), encoding="utf-8")
    written = {path: "everything on one page"}
    written |= {figure.path: figure.title for figure in figures}
    return written | {one.folder: f"the run of {one.name}: weights, metrics, record" for one in trained}


if __name__ == "__main__":
    main()
