"""What a run leaves behind: files, energies, predictions, exported models, reports."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.loader import ClusterData

from lyapflow import DescentCount
from lyapflow_graph import GatedGCN, GraphNet, Tango
from lyapflow_graph.data.dataset import GraphDataset
from lyapflow_graph.training import (
    Config,
    ConfigError,
    DamagedError,
    DataConfig,
    ModelConfig,
    Record,
    TrainingConfig,
    load_config,
    load_model,
    predict,
    report,
    train,
)
from lyapflow_graph.training.energy_monitor import EnergyMonitor, count_descent, flow_of, forward_with_energy
from lyapflow_graph.training.files import load_tensors, save_tensors
from lyapflow_graph.training.loaders import PartLoader, make_loader
from lyapflow_graph.training.report import paper_on
from tests.lyapflow_graph.cases import assert_close
from tests.lyapflow_graph.training.cases import graphs_with_classes, graphs_with_values, one_graph, small


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record, GraphDataset]:
    folder, data = tmp_path_factory.mktemp("runs") / "run", graphs_with_classes()
    return folder, train(small(data), folder, dataset=data), data


# -- records ----------------------------------------------------------------------------------------------------------


def test_the_folder_of_a_run(run: tuple[Path, Record, GraphDataset]) -> None:
    folder, record, _ = run
    names = {"config.toml", "energy.png", "even.ckpt", "metrics.csv", "model.pt"}
    names |= {"odd.ckpt", "record.json", "tensorboard", "training.png"}
    assert {path.name for path in folder.iterdir()} == names
    assert Record.load(folder) == record
    assert record.configuration.hash == record.hash == load_config(folder / "config.toml").hash
    assert (record.status, record.epochs, record.metric, record.seed) == ("finished", 4, "weighted_accuracy", 0)
    assert record.seconds > 0
    assert record.peak_memory > 2**24
    assert record.versions["torch"] == torch.__version__
    count = DescentCount(**record.descent)
    assert count == count_descent(load_model(folder), run[2].test)
    assert count.holds
    assert (count.systems, count.steps) == (1, 2)
    with open(folder / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    values = [float(row["val_weighted_accuracy"]) for row in rows]
    assert record.val == max(values) == values[record.best_epoch - 1]
    assert all(float(row["energy_last"]) < float(row["energy_first"]) for row in rows)


def test_labels_are_standardized_by_those_of_the_training_set(tmp_path: Path) -> None:
    data = graphs_with_values()
    for graphs in (data.train, data.val, data.test):
        for graph in graphs:
            graph.y = 1000 + graph.y
    record = train(small(data, standardize=True), tmp_path / "run", dataset=data)
    plain = train(small(data), tmp_path / "plain", dataset=data)
    assert record.val < plain.val - 2  # from the start: the mean of the labels need not be learned
    labels, model = torch.cat([graph.y for graph in data.train]), load_model(tmp_path / "run")
    assert_close(model.shift, labels.mean(0))
    assert_close(model.scale, labels.std(0, correction=0))
    with pytest.raises(ConfigError, match="standardize is for regression"):
        train(small(graphs_with_classes(), standardize=True), tmp_path / "classes", dataset=graphs_with_classes())


def rows_of(folder: Path) -> list[dict[str, float]]:
    with open(folder / "metrics.csv") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


STEEP = {"step_size": 3.0, "beta_start": 1.0, "num_steps": 4}  # whose energy rises under Euler's steps


def test_a_model_learns_to_descend(tmp_path: Path) -> None:
    data, settings = graphs_with_values(), {"epochs": 12, "guard_from": 0.75}
    train(small(data, STEEP, **settings), tmp_path / "taught", dataset=data)
    train(small(data, STEEP, **settings, descent_weight=0.0), tmp_path / "not", dataset=data)
    train(small(data, {**STEEP, "guard": False}, **settings), tmp_path / "euler", dataset=data)
    taught, not_taught, euler = (rows_of(tmp_path / name) for name in ("taught", "not", "euler"))
    assert all(row["rising"] == 0 for row in taught + not_taught)  # evaluation is guarded from the start
    assert euler[-1]["rising"] > 0
    assert not_taught[-1]["shortened"] > 0
    assert taught[-1]["shortened"] < not_taught[-1]["shortened"]
    assert all(row["descent_weight"] == 0 for row in not_taught)


def test_the_weight_of_the_objective_follows_the_violations(tmp_path: Path) -> None:
    data = graphs_with_values()
    train(small(data, STEEP, epochs=6, guard_from=0.5), tmp_path, dataset=data)
    rows, growth = rows_of(tmp_path), 1000**0.5
    assert rows[0]["descent_weight"] == 0.1
    assert rows[0]["train_violations"] > 0
    for row, following in itertools.pairwise(rows):
        factor = growth if row["train_violations"] > 1e-3 else growth**-0.25
        assert following["descent_weight"] == pytest.approx(min(100.0, factor * row["descent_weight"]))


def test_tensorboard_has_the_metrics(run: tuple[Path, Record, GraphDataset]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run[0] / "tensorboard"))
    events.Reload()
    assert {"train/loss", "val/loss", "energy/first", "descent/weight", "rising"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("val/loss")] == [1, 2, 3, 4]


def test_the_test_metric_is_that_of_the_best_weights(run: tuple[Path, Record, GraphDataset]) -> None:
    folder, record, data = run
    (graph,) = data.test
    guess = load_model(folder)(graph).argmax(1)[graph.mask]
    truth = graph.y[graph.mask]
    recalls = [float((guess[truth == k] == k).float().mean()) for k in truth.unique()]
    assert record.test == pytest.approx(sum(recalls) / len(recalls))


def test_damaged_records_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("{")
    with pytest.raises(DamagedError, match="is damaged"):
        Record.load(tmp_path)
    (tmp_path / "record.json").write_text('{"format": 99}')
    with pytest.raises(DamagedError, match="is not a record of format 2"):
        Record.load(tmp_path)


def test_models_without_an_energy(tmp_path: Path) -> None:
    data = graphs_with_values()
    plain = Config(DataConfig("rings"), ModelConfig("gatedgcn", 4), TrainingConfig(epochs=1))
    record = train(plain, tmp_path, dataset=data)
    assert record.descent is None
    assert not (tmp_path / "energy.png").exists()
    assert (tmp_path / "training.png").exists()
    assert "energy" not in (tmp_path / "metrics.csv").read_text()


def test_features_of_edges_can_be_left_out(tmp_path: Path) -> None:
    data = graphs_with_values()
    for graph in (*data.train, *data.val, *data.test):
        graph.edge_attr = torch.randn(graph.num_edges, 2)
    data = dataclasses.replace(data, edge_dim=2)
    config = small(data, {"kind": "grand"}, epochs=1)
    with pytest.raises(ConfigError, match="edge_features = false"):
        train(config, tmp_path / "with", dataset=data)
    without = dataclasses.replace(config, data=dataclasses.replace(config.data, edge_features=False))
    assert train(without, tmp_path / "without", dataset=data, figures=False).test is not None
    assert data.train[0].edge_attr is not None  # the data itself is as it was


@pytest.mark.parametrize(
    ("settings", "message"), [({"precision": "16"}, "needs CUDA"), ({"device": "cuda"}, "no CUDA device")]
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_what_this_machine_has_not(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = graphs_with_values()
    with pytest.raises(ConfigError, match=message):
        train(small(data, **settings), tmp_path, dataset=data)


# -- energies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["node", "graph"])
def test_watching_the_energy_changes_nothing(task: Any) -> None:
    batch = Batch.from_data_list(list(graphs_with_values().train))
    model = Tango(3, 8, 2, task=task).eval()
    flow = flow_of(model)
    assert flow is not None
    with torch.no_grad():
        found, solution = forward_with_energy(model, flow, batch)
        assert torch.equal(found, model(batch))
        assert torch.equal(solution.energy, model.solve(batch).energy)
        monitor = EnergyMonitor()
        monitor.add(solution)
    assert monitor.row()["energy_first"] == pytest.approx(float(solution.energy[0].mean()))
    assert monitor.over_all(lambda x: 2 * x).count == monitor.count + monitor.count


@pytest.mark.parametrize("guard", [False, True])
def test_descent_is_counted_over_all_graphs(guard: bool) -> None:
    torch.manual_seed(0)
    graphs = list(graphs_with_values().train)
    found = count_descent(Tango(3, 4, 1, num_steps=3, step_size=3.0, beta_start=3.0, guard=guard), graphs)
    assert found is not None
    assert (found.systems, found.steps) == (len(graphs), 3 * len(graphs))
    assert found.holds == guard
    adaptive = count_descent(Tango(3, 4, 1, method="dopri5"), graphs)
    assert adaptive is not None
    assert adaptive.systems == len(graphs)
    assert count_descent(GraphNet(3, 4, 1, GatedGCN(4)), graphs) is None


# -- predictions and exports ------------------------------------------------------------------------------------------


def test_predictions(run: tuple[Path, Record, GraphDataset], tmp_path: Path) -> None:
    folder, _, data = run
    found = predict(folder, data)
    table = found.table
    assert pyarrow.parquet.read_table(found.save(tmp_path / "out.parquet")).equals(table)
    rows = table.to_pylist()
    assert len(rows) == sum(int(graph.mask.sum()) for part in (data.train, data.val, data.test) for graph in part)
    model = load_model(folder)
    for row in rows[::3]:
        graph = getattr(data, row["part"])[row["graph"]]
        with torch.no_grad():
            shares = model(graph)[row["node"]].double().softmax(0)
        assert [row[f"probability_{k}"] for k in range(3)] == pytest.approx(shares.tolist(), rel=1e-4)
        assert row["class"] == int(shares.argmax())
        assert row["label"] == int(graph.y[row["node"]])
    assert found.descent is not None
    assert found.descent.systems == sum(len(part) for part in (data.train, data.val, data.test))
    assert table.schema.metadata[b"dataset"] == b"coloured"


@pytest.mark.parametrize("make", [graphs_with_values, one_graph])
def test_predictions_of_other_kinds(make: Any, tmp_path: Path) -> None:
    data = make()
    train(small(data, epochs=1), tmp_path, dataset=data, figures=False)
    found = predict(tmp_path, data, parts=["test"])
    names = (
        ["part", "graph", "value", "label"]
        if data.task == "graph"
        else ["part", "graph", "node", "probability", "label"]
    )
    assert found.table.column_names == names
    assert found.descent is not None
    assert found.descent.systems == len(data.test)
    if data.task == "graph":
        assert found.table["graph"].to_pylist() == [0, 1, 2]
    else:
        assert found.table["node"].to_pylist() == list(range(2, 24, 3))


def test_data_that_does_not_fit_the_model(run: tuple[Path, Record, GraphDataset]) -> None:
    with pytest.raises(ValueError, match="the model was trained for task=node, but rings has task=graph"):
        predict(run[0], graphs_with_values())
    with pytest.raises(ValueError, match="parts must be of train, val, test, got 'all'"):
        predict(run[0], run[2], parts=["all"])  # type: ignore[list-item]


def test_damaged_models_are_refused(run: tuple[Path, Record, GraphDataset], tmp_path: Path) -> None:
    content = bytearray((run[0] / "model.pt").read_bytes())
    content[300] ^= 1
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(DamagedError, match="checksum"):
        load_model(tmp_path)
    save_tensors(tmp_path / "other.pt", {"format": 1})
    with pytest.raises(DamagedError, match="is not a model"):
        load_model(tmp_path / "other.pt")
    assert load_tensors(tmp_path / "other.pt") == {"format": 1}


# -- reports ----------------------------------------------------------------------------------------------------------


def place(folder: Path, record: Record | None, **changes: Any) -> None:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("")
    if record is not None:
        dataclasses.replace(record, **changes).save(folder)


def test_reports_are_made_of_records(run: tuple[Path, Record, GraphDataset], tmp_path: Path) -> None:
    record = dataclasses.replace(run[1], dataset="pattern")
    for seed, value in enumerate((0.80, 0.82, 0.87)):
        place(tmp_path / "a" / str(seed), record, seed=seed, test=value)
    backbone = {**record.config, "model": {"kind": "gatedgcn"}}
    place(tmp_path / "b", record, test=0.9, family="f", config=backbone, descent=None)
    (tmp_path / "b" / "config.toml").unlink()  # the record alone is enough
    place(tmp_path / "c", record, status="pruned", test=None)
    place(tmp_path / "d", None)
    place(tmp_path / "e", None)
    (tmp_path / "e" / "record.json").write_text("<b>")
    found = report(tmp_path)
    text = found.markdown()
    best, mean = (line for line in text.splitlines() if line.startswith("| gatedgcn") or line.startswith("| tango"))
    assert best.startswith("| gatedgcn | 90.00 |")  # the better comes first
    assert "| 85.568 |" in best
    assert mean.startswith("| tango gatedgcn | 83.00 ± 3.61 |")  # the deviation of a sample
    assert "| 3 | 86.672 |" in mean
    assert "c: pruned after 4 epochs" in text
    assert "d: it has not ended" in text
    assert "## PATTERN (pattern)" in text
    page = found.html()
    assert "83.00 ± 3.61" in page
    assert "http" not in page
    assert [path.name for path in found.save(tmp_path)] == ["report.md", "report.html"]
    assert json.loads((tmp_path / "b" / "record.json").read_text())["test"] == 0.9


def test_what_the_paper_reports() -> None:
    entries = tomllib.loads(resources.files("lyapflow_graph.training").joinpath("paper.toml").read_text())["dataset"]
    assert len(entries) == 15
    assert all({"gatedgcn", "tango gatedgcn", "gps", "tango gps"} <= set(entry["figures"]) for entry in entries)
    ablated = [entry["title"] for entry in entries if "tango gatedgcn non-energy" in entry["figures"]]
    assert ablated == ["Diameter", "ZINC-12k", "Peptides-func", "Roman-empire"]
    likeness = paper_on("sbm-pattern")
    assert likeness is not None
    assert not likeness.same_data
    assert paper_on("barbell") is None


# -- parts of one graph -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("parts", [3, 7, 10])
def test_parts_are_shared_without_rest(parts: int, world: int) -> None:
    def batches(rank: int, epoch: int) -> list[list[int]]:
        loader = PartLoader(torch.arange(parts), lambda index: index, 3, True, 5, (rank, world))  # type: ignore[arg-type, return-value]
        loader.set_epoch(epoch)
        found = [batch.tolist() for batch in loader]  # type: ignore[attr-defined]
        assert len(found) == len(loader)
        return found

    shares = [batches(rank, 1) for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    assert all(batch for share in shares for batch in share)
    assert sorted(x for share in shares for batch in share for x in batch) == list(range(parts))
    if parts > 3:
        assert batches(0, 1) == batches(0, 1) != batches(0, 2)


def test_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a partition that needs no compiled library."""
    monkeypatch.setattr(ClusterData, "_metis", lambda self, edge_index, n: torch.arange(n) * self.num_parts // n)
    data = one_graph()
    training = TrainingConfig(loader="cluster", clusters=4, batch_size=2)
    seen = torch.cat([batch.x for batch in make_loader(data.train, training, 0, True, (0, 1))])
    assert torch.equal(seen.sort(0).values, data.train[0].x.sort(0).values)
    record = train(small(data, loader="cluster", clusters=4), tmp_path, dataset=data, figures=False)
    assert record.test is not None


@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without:UserWarning")  # with torch_sparse instead
def test_neighbours(tmp_path: Path) -> None:
    pytest.importorskip("torch_sparse", reason="sampling of neighbours needs pyg_lib or torch_sparse")
    data = one_graph()
    config = small(data, loader="neighbor", neighbors=[2, 2], batch_size=3)
    one = train(config, tmp_path / "one", dataset=data, figures=False)
    assert train(config, tmp_path / "two", dataset=data, figures=False).test == one.test
    loader = make_loader(data.train, config.training, 0, False, (0, 1))
    for batch, nodes in zip(loader, data.train[0].mask.nonzero()[:, 0].split(3), strict=True):
        assert torch.equal(batch.x[batch.mask], data.train[0].x[nodes])


def test_parts_of_many_graphs_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="divides one graph, but there are 5"):
        make_loader(graphs_with_values().train, TrainingConfig(loader="cluster"), 0, True, (0, 1))
