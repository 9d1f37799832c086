"""Data of one's own: folders of npz files, and objects of modules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lyapflow_graph.data import DamagedDataError, load
from tests.lyapflow_graph.data.cases import trainable

MINE = """
import torch
from torch_geometric.data import Data, InMemoryDataset
from lyapflow_graph.data import load

def graph(n, **more):
    return Data(x=torch.rand(n, 3), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([n % 2]), **more)

graphs = [graph(n, smiles="C" * n) for n in range(2, 22)]
one = Data(x=torch.rand(20, 3), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.arange(20) % 3)
own = load("barbell", graphs=11)

class Mine(InMemoryDataset):
    def __init__(self):
        super().__init__()
        self.data, self.slices = self.collate([graph(n) for n in range(2, 14)])

def made(cliques=3, seed=0):
    return load("barbell", graphs=11, cliques=cliques, seed=seed)

def needs(width):
    return graphs

empty = []
words = ["a", "b", "c"]
number = 3
without = [Data(x=torch.rand(2, 3), y=torch.ones(1))] * 5
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_graphs.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_graphs", raising=False)
    return tmp_path


def arrays(graphs: int, **more: Any) -> dict[str, Any]:
    """Graphs of three nodes and two edges."""
    return {
        "x": np.arange(6 * graphs, dtype=np.float32).reshape(-1, 2),
        "edge_index": np.tile(np.array([[0, 1], [1, 2]]), graphs),
        "y": np.arange(graphs) % 2,
        "node_ptr": 3 * np.arange(graphs + 1),
        "edge_ptr": 2 * np.arange(graphs + 1),
        **more,
    }


def test_three_files(tmp_path: Path) -> None:
    for part, count in (("train", 5), ("val", 3), ("test", 2)):
        np.savez(tmp_path / f"{part}.npz", **arrays(count, edge_attr=np.ones((2 * count, 1), dtype=np.int32)))
    dataset = load(str(tmp_path))
    assert (dataset.task, dataset.loss, dataset.metric) == ("graph", "cross_entropy", "accuracy")
    assert (dataset.in_channels, dataset.out_channels, dataset.edge_dim) == (2, 2, (2,))
    assert [len(part) for part in (dataset.train, dataset.val, dataset.test)] == [5, 3, 2]
    assert dataset.train[4].x.tolist() == [[24, 25], [26, 27], [28, 29]]
    trainable(dataset)
    trainable(load(str(tmp_path), pe={"random_walk_pe": 3}))


def test_one_file_with_a_split_or_without(tmp_path: Path) -> None:
    split = {"split_train": np.array([3, 1]), "split_val": np.array([0]), "split_test": np.array([2])}
    np.savez(tmp_path / "graphs.npz", **arrays(4, y=np.linspace(0, 1, 4), **split))
    dataset = load(str(tmp_path))
    assert (dataset.loss, dataset.metric) == ("l1", "mae")
    assert [graph.y.tolist() for graph in dataset.train] == [[[1.0]], [[pytest.approx(1 / 3)]]]
    trainable(dataset)
    np.savez(tmp_path / "graphs.npz", **arrays(30, y=np.arange(90) % 3))
    drawn = load(str(tmp_path), loss="weighted_cross_entropy", seed=3)
    assert (drawn.task, drawn.metric) == ("node", "weighted_accuracy")
    assert [len(part) for part in (drawn.train, drawn.val, drawn.test)] == [24, 3, 3]
    seen = sorted(float(graph.x[0, 0]) for part in (drawn.train, drawn.val, drawn.test) for graph in part)
    assert seen == [6.0 * i for i in range(30)]
    trainable(drawn)
    same, other = load(str(tmp_path), seed=3), load(str(tmp_path), seed=4)
    assert torch.equal(same.val[0].x, drawn.val[0].x)
    assert any(not torch.equal(a.x, b.x) for a, b in zip(same.val, other.val, strict=True))


@pytest.mark.parametrize("own_masks", [True, False])
def test_one_graph(tmp_path: Path, own_masks: bool) -> None:
    n = 20
    masks = {
        f"{part}_mask": np.stack([np.arange(n) % 3 == i, np.arange(n) % 3 == 2 - i], axis=1)
        for i, part in enumerate(("train", "val", "test"))
    }
    graph = {"x": np.ones((n, 2), dtype=np.float32), "edge_index": np.array([[0], [1]]), "y": np.arange(n) % 2}
    np.savez(tmp_path / "graphs.npz", **graph, **(masks if own_masks else {}))
    dataset = load(str(tmp_path), split=1, loss="binary_cross_entropy")
    trainable(dataset)
    found = torch.stack([part[0].mask for part in (dataset.train, dataset.val, dataset.test)])
    assert (found.sum(0) == 1).all()
    assert (dataset.metric, dataset.out_channels) == ("roc_auc", 1)
    if own_masks:
        assert found[0].tolist() == (np.arange(n) % 3 == 2).tolist()
        with pytest.raises(ValueError, match="split must lie in 0 to 1"):
            load(str(tmp_path), split=2)
    else:
        assert found.sum(1).tolist() == [16, 2, 2]


def test_wrong_folders_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither graphs.npz nor all of train.npz, val.npz, test.npz"):
        load(str(tmp_path))
    for wrong, message in (
        ({"x": np.ones((2, 1))}, "graphs.npz has no array 'edge_index'; it has x"),
        (arrays(4, y=np.ones(5)), "'y' has 5 rows, which are not its 12 nodes, 8 edges or 4 graphs"),
        (arrays(4, split_val=np.ones(1, dtype=int)), "no array 'split_train', though it has others"),
        (arrays(4, edge_ptr=np.array([0, 8])), "pointers must be of the shape"),
        (arrays(4, x=np.array([object()] * 12)), "cannot be read"),
    ):
        np.savez(tmp_path / "graphs.npz", **wrong)
        with pytest.raises(DamagedDataError, match=message):
            load(str(tmp_path))
    np.savez(tmp_path / "graphs.npz", **arrays(4))
    with pytest.raises(TypeError, match="has no option 'graphs'; it has task, loss, metric, seed"):
        load(str(tmp_path), graphs=3)
    with pytest.raises(ValueError, match="unknown loss 'hinge'; known are: binary_cross_entropy"):
        load(str(tmp_path), loss="hinge")
    np.savez(tmp_path / "graphs.npz", **arrays(4, y=np.ones((4, 2), dtype=int)))
    with pytest.raises(ValueError, match="one class in a row, got 2; give loss for several labels"):
        load(str(tmp_path))
    trainable(load(str(tmp_path), loss="binary_cross_entropy"))


@pytest.mark.parametrize("name", ["graphs", "Mine", "one", "own", "made"])
def test_objects(name: str) -> None:
    dataset = load(f"my_graphs:{name}")
    trainable(dataset)
    if name == "graphs":
        assert len(dataset.train) == 16
        assert "smiles" not in dataset.train[0]
    if name == "Mine":
        assert dataset.out_channels == 2


def test_options_go_to_the_callable_or_say_what_graphs_do_not() -> None:
    assert load("my_graphs:made", cliques=5, seed=2).provenance["cliques"] == 5
    assert load("my_graphs:graphs", metric="weighted_accuracy", seed=2).metric == "weighted_accuracy"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("my_graphs:nothing", AttributeError, "'my_graphs' has no object 'nothing'"),
        ("no_such_module:x", ImportError, "cannot import 'no_such_module'"),
        ("my_graphs:needs", TypeError, "cannot be called with no arguments: missing a required argument: 'width'"),
        ("my_graphs:number", TypeError, "must be a GraphDataset, a data set of PyTorch Geometric or a list .* got int"),
        ("my_graphs:words", TypeError, "must be torch_geometric Data, got str for graph 0"),
        ("my_graphs:empty", ValueError, "at least one"),
        ("my_graphs:without", ValueError, "have no 'edge_index', only"),
    ],
)
def test_wrong_objects_are_told(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load(name)
