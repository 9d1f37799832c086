"""The demonstration: a signal crosses a bottleneck, and TANGO learns from distances what its backbone does not.

First the barbell graph, on which gradient flow of the Dirichlet energy stays on its side of the bridge, and TANGO does
not. Then random graphs of which every node is to tell its eccentricity, the distance to the farthest node: TANGO and
its backbone GatedGCN are trained alike, on the same graphs, with as many parameters and epochs, and messages that go
ten edges far. Then what the learned energy does along the flow. All of it is measured while you wait, and written to
a page.

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
from torch_geometric.data import Batch

from examples.barbell_flows import BarbellResult, barbell
from examples.demo_figures import draw_curves, draw_energies, draw_predictions
from examples.demo_page import Figure, page
from examples.terminal import heading, say, table
from lyapflow import Certificate, certify
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
# of the backbone over one: it is ten edges in both. The widths are such that both have about as many parameters.
MODELS = {
    "GatedGCN": ModelConfig("gatedgcn", 16, {"num_layers": 10}),
    "TANGO on GatedGCN": ModelConfig("tango", 30, {"num_steps": 5, "step_size": 1.0}),
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
CERTIFIED = 8  # graphs of the test set
METHODS = ("euler", "armijo_euler")


@dataclasses.dataclass(frozen=True)
class Trained:
    """A model that was trained, and what it says about the test set.

    Attributes:
        name: What it is called.
        folder: Of its run.
        record: Of its run.
        curves: The metrics of all epochs, by the columns of `metrics.csv`.
        values: What it predicts for each node of the test set.
        labels: What is true of them.
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
    certificates = show_certificates(trained[-1], data, out)
    paths = write_page(out, crossing, rows, trained, certificates)
    heading(f"Done in {time.perf_counter() - start:.0f} seconds")
    say("What was written:")
    table("ll", ("file", "what it is"), [(str(path), what) for path, what in paths.items()])


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
    heading("2. Every node tells how far away the farthest node is")
    data = load("gpp/eccentricity", root, graphs=graphs, progress=True)
    say(
        f"{len(data.train)} random graphs to learn from, {len(data.val)} to choose the best epoch by, {len(data.test)} "
        "to test. The figure is the logarithm to base 10 of the mean squared error; lower is better."
    )
    return data


def run(name: str, data: GraphDataset, training: TrainingConfig, seed: int, folder: Path) -> Trained:
    """Train one of the models anew."""
    kind = MODELS[name].kind
    graphs = sum(len(part) for part in (data.train, data.val, data.test))
    config = Config(DataConfig(data.name, options={"graphs": graphs}), MODELS[name], training, seed)
    shutil.rmtree(folder / kind, ignore_errors=True)  # of an earlier demonstration
    say(f"Training {name} for {training.epochs} epochs.")
    record = train(config, folder / kind, dataset=data)
    told = predict(folder / kind, data, parts=("test",)).table
    with open(folder / kind / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    curves = {column: [float(row[column]) for row in rows] for column in rows[0]}
    return Trained(name, folder / kind, record, curves, told["value"].to_pylist(), told["label"].to_pylist())


HEADER = ("model", "validation log10 MSE", "test log10 MSE", "parameters", "best epoch", "seconds")


def results(trained: Sequence[Trained], data: GraphDataset) -> list[tuple[str, ...]]:
    """The rows of the table, with what the mean label of the training set would give as the first."""
    mean = float(torch.cat([data.train[i].y for i in range(len(data.train))]).double().mean())
    constant = [f"{constant_error(mean, part):.3f}" for part in (data.val, data.test)]
    rows: list[tuple[str, ...]] = [("the mean label", *constant, "1", "-", "-")]
    for one in trained:
        record = one.record
        numbers = f"{record.val:.3f}", f"{one.test:.3f}", f"{record.parameters:,}", str(record.best_epoch)
        rows.append((one.name, *numbers, f"{record.seconds:.0f}"))
    return rows


def constant_error(value: float, graphs: Sequence[object]) -> float:
    """The metric of a model that always says the same."""
    errors = [(graphs[i].y.double() - value).square().mean() for i in range(len(graphs))]  # type: ignore[attr-defined]
    return math.log10(float(torch.stack(errors).mean()))


def show_results(rows: Sequence[tuple[str, ...]], trained: Sequence[Trained]) -> None:
    heading("3. What came of it")
    table("lrrrrr", HEADER, rows)
    say(verdict(*trained))


def verdict(backbone: Trained, tango: Trained) -> str:
    """Which is ahead on the test set, and by how much."""
    ratio = 10 ** abs(backbone.test - tango.test)
    if tango.test < backbone.test:
        return f"{tango.name} is ahead: the squared error of {backbone.name} is {ratio:.2f} times as large."
    return f"{tango.name} is not ahead in this run: its squared error is {ratio:.2f} times that of {backbone.name}."


# -- the certificate --------------------------------------------------------------------------------------------------


def show_certificates(tango: Trained, data: GraphDataset, out: Path) -> dict[str, Certificate]:
    heading("4. What the learned energy does")
    graphs = [data.test[i] for i in range(min(CERTIFIED, len(data.test)))]
    found = {}
    for method in METHODS:
        found[method] = certified(tango.folder, graphs, method)
        found[method].save(out / f"certificate_{method}.json")
        print(*(f"  {sentence}" for sentence in found[method].sentences()), "", sep="\n", flush=True)
    say(explained(found))
    return found


def certified(folder: Path, graphs: Sequence[object], method: str, samples: int = 32) -> Certificate:
    """A certificate of the trained field, followed by some method in the steps that the model takes."""
    model = load_model(folder)
    assert isinstance(model, Tango)
    with torch.no_grad():
        h, batch = model.encode(Batch.from_data_list(list(graphs)))
        flow = model.conv
        return certify(
            flow.bind(batch), h, steps=flow.num_steps, step_size=flow.step_size, method=method, samples=samples
        )


def explained(found: Mapping[str, Certificate]) -> str:
    euler, armijo = (found[method] for method in METHODS)
    count = len(euler.risen)
    return (
        "Along the field itself the energy never grows, since the tangential part is orthogonal to its gradient. "
        f"{len(euler.energy) - 1} forward Euler steps, with which the model was trained, need not keep that: the "
        f"energy rose on {int(euler.risen.sum())} of {count} graphs. The same field followed for the same time by "
        "armijo_euler, which shortens a step that would raise the energy, and took up to "
        f"{len(armijo.energy) - 1:,}: on {int(armijo.risen.sum())} of {count}."
    )


# -- the page ---------------------------------------------------------------------------------------------------------


def write_page(
    out: Path,
    crossing: str,
    rows: Sequence[tuple[str, ...]],
    trained: Sequence[Trained],
    certificates: Mapping[str, Certificate],
) -> dict[Path, str]:
    """Draw the figures and write the page; what each file is, by its path."""
    names = [one.name for one in trained]
    draw_curves(dict(zip(names, (one.curves for one in trained), strict=True)), out / "training.png")
    pairs = {one.name: (one.labels, one.values) for one in trained}
    draw_predictions(pairs, out / "predictions.png")
    draw_energies(list(certificates.values()), out / "energy.png")
    figures = [
        Figure("A signal has to cross a bottleneck", out / "barbell.png", crossing),
        Figure("Training", out / "training.png", verdict(*trained)),
        Figure(
            "Predictions on the test set",
            out / "predictions.png",
            "Of all nodes with the same eccentricity: the mean of what is predicted, and where the middle 80% lie.",
        ),
        Figure("The learned energy along the flow", out / "energy.png", explained(certificates)),
    ]
    details = {f"Certificate: {method}": str(found) for method, found in certificates.items()}
    details |= {f"Configuration: {one.name}": (one.folder / "config.toml").read_text() for one in trained}
    path = out / "report.html"
    path.write_text(page("TANGO and its backbone", HEADER, rows, figures, details), encoding="utf-8")
    written = {path: "everything on one page"}
    written |= {figure.path: figure.title for figure in figures}
    written |= {out / f"certificate_{method}.json": f"certificate of the field, by {method}" for method in METHODS}
    return written | {one.folder: f"the run of {one.name}: weights, metrics, record" for one in trained}


if __name__ == "__main__":
    main()
