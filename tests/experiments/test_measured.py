"""What the scripts beside the studies measure."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer

from experiments.scripts import distance, errors, solvers
from experiments.scripts.constants import constant
from experiments.study import HERE, load_study
from lyapflow_graph.data import load
from lyapflow_graph.training import load_config, train


def test_the_error_of_a_constant_is_the_variance_of_the_labels() -> None:
    found, divisor = constant("gpp/diameter", graphs=60)
    data = load("gpp/diameter", graphs=60)
    train_labels = torch.cat([graph.y for graph in data.train])
    test_labels = torch.cat([graph.y for graph in data.test])
    assert divisor == 1.0
    assert math.isclose(10**found, float((test_labels - train_labels.mean()).square().mean()), rel_tol=1e-5)
    normalised, largest = constant("gpp/diameter", graphs=60, scale="normalised")
    assert largest == float(train_labels.max())
    assert math.isclose(normalised, found - 2 * math.log10(largest), abs_tol=1e-5)


def test_rises_are_counted_for_each_graph_and_rounding_is_none() -> None:
    rows = [[1.0, 1.0, 1.0], [0.5, 1.5, 1.0 + 5e-10], [0.6, 1.6, float("nan")]]
    energy = torch.tensor(rows, dtype=torch.float64)
    solution: Any = SimpleNamespace(energy=energy)
    assert solvers.rises(solution).tolist() == [1, 2, 1]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """All models of one column of the study of depth, after one epoch on tiny graphs."""
    for cell in load_study("depth", HERE).cells:
        if cell.column == "L = 2":
            tiny = ["data.options={ cliques = 3, bridge = 1, graphs = 24 }", "training.epochs=1"]
            train(load_config(cell.path, [*cell.settings, *tiny]), tmp_path / cell.place, figures=False, progress=False)
    return tmp_path


def test_studies_of_trained_models(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    for module in (solvers, distance):
        monkeypatch.setattr(module, "save_measured", lambda name, **what: told.update({name: what}))
    monkeypatch.setattr(distance, "ROOT", runs)
    distance.main(runs=runs, column="L = 2", graphs=2)
    (table,) = told["distance"]["tables"]
    assert [row[0] for row in table["rows"]] == ["0", "1", "2", "3", "4"]
    assert {float(value) for value in table["rows"][0][1:]} == {1.0}
    assert float(table["rows"][4][1]) == 0.0  # two layers do not reach four edges far, and two steps do
    assert float(table["rows"][4][2]) > 0.0
    assert (runs / "docs" / "images" / distance.FIGURE).exists()

    monkeypatch.setattr(solvers, "STEP_SIZES", (0.01, 100.0))
    monkeypatch.setattr(solvers, "STEPPED", ("euler", "armijo_euler"))
    solvers.main(run=runs / "depth" / "tango-gatedgcn" / "l-2" / "0-0", graphs=2, stepped=2, rounds=1)
    methods, sizes = told["solvers"]["tables"]
    assert [row[0] for row in methods["rows"]] == list(solvers.METHODS)
    assert methods["rows"][0][4] == "2"  # evaluations of Euler's two steps
    assert [row[3] for row in methods["rows"] if row[0] in ("armijo_euler", "discrete_gradient")] == ["0 of 2"] * 2
    assert sizes["rows"][0] == ["0.01", "none", "none"]
    assert sizes["rows"][1][1] != "none"
    assert "rise" not in sizes["rows"][1][2]


def test_errors_are_described_with_and_without_the_worst() -> None:
    drawn = torch.full((200,), 0.01)
    drawn[[3, 150]] = 4.0
    mean, interval, share, without, median = errors.described(drawn)
    assert mean == f"{math.log10((8 + 1.98) / 200):.4f}"
    assert share == f"{8 / 9.98:.0%}"
    assert (without, median) == ("-2.0000", "0.10")
    low, high = map(float, interval.split(" to "))
    assert low < float(mean) < high < math.log10(10 * 4 / 200)
    assert low == -2.0  # in one resampling of eight none of the two is drawn


def test_study_of_errors_agrees_with_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(errors, "save_measured", lambda name, **what: told.update({name: what}))
    with pytest.raises(typer.BadParameter, match="no trained model of property_prediction in"):
        errors.main(runs=tmp_path)
    cells = load_study("property_prediction", HERE).cells
    (cell,) = [one for one in cells if (one.row, one.column) == ("GatedGCN", "Diameter")]
    tiny = ["data.options={ graphs = 60 }", "model.num_layers=1", "training.epochs=1"]
    record = train(
        load_config(cell.path, [*cell.settings, *tiny]), tmp_path / cell.place, figures=False, progress=False
    )
    errors.main(runs=tmp_path)
    ((row,),) = [table["rows"] for table in told["diameter_errors"]["tables"]]
    assert row[:2] == ["GatedGCN", "Diameter"]
    assert math.isclose(float(row[2]), record.test, abs_tol=1e-4)  # which the table is rounded to
