"""Small data and small runs that the tests of training share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from lyapflow_graph.data.dataset import GraphDataset
from lyapflow_graph.training import Config, DataConfig, ModelConfig, TrainingConfig
from lyapflow_graph.training.checkpoint import Checkpoint, load_checkpoint

ENDS = ("seconds", "peak_memory")  # what differs from one time to the next


def ring(nodes: int, random: torch.Generator, **given: Any) -> Data:
    there = torch.arange(nodes)
    edge_index = torch.stack([torch.cat([there, (there + 1) % nodes]), torch.cat([(there + 1) % nodes, there])])
    return Data(x=torch.randn(nodes, 3, generator=random), edge_index=edge_index, **given)


def graphs_with_values(count: int = 11, seed: int = 0) -> GraphDataset:
    """Rings of different sizes with a value each: the graph task, five to learn from."""
    random = torch.Generator().manual_seed(seed)
    graphs = [ring(3 + k % 4, random, y=torch.randn(1, 1, generator=random)) for k in range(count)]
    return GraphDataset("rings", "graph", graphs[:5], graphs[5:8], graphs[8:], 3, 1, None, "l1", "mae")


def graphs_with_classes(seed: int = 0) -> GraphDataset:
    """Rings whose nodes have classes, of which only some count: the node task."""
    random = torch.Generator().manual_seed(seed)

    def one(nodes: int) -> Data:
        labels = torch.randint(0, 3, (nodes,), generator=random)
        return ring(nodes, random, y=labels, mask=torch.rand(nodes, generator=random) < 0.6)

    graphs = [one(nodes) for nodes in (4, 7, 5, 9, 3, 6, 5, 8)]
    loss, metric = "weighted_cross_entropy", "weighted_accuracy"
    return GraphDataset("coloured", "node", graphs[:5], graphs[5:7], graphs[7:], 3, 3, None, loss, metric)  # type: ignore[arg-type]


def one_graph(seed: int = 0) -> GraphDataset:
    """One graph for all three parts, whose nodes are divided among them."""
    random = torch.Generator().manual_seed(seed)
    data = ring(24, random, y=torch.randint(0, 2, (24, 1), generator=random).float())
    part = torch.arange(24) % 3
    parts: list[list[Data]] = []
    for k in range(3):
        parts.append([data.clone()])
        parts[-1][0].mask = part == k
    return GraphDataset("lonely", "node", *parts, 3, 1, None, "binary_cross_entropy", "roc_auc")


def small(dataset: GraphDataset, model: dict[str, Any] | None = None, **training: Any) -> Config:
    """A configuration that takes no time."""
    options = {"num_steps": 2, "dropout": 0.2, **(model or {})}
    kind, width = options.pop("kind", "tango"), options.pop("hidden_channels", 4)
    settings = {"epochs": 4, "batch_size": 2, "lr": 0.01, **training}
    return Config(DataConfig(dataset.name), ModelConfig(kind, width, options), TrainingConfig(**settings))


def checkpoint_of(folder: Path) -> Checkpoint:
    found = load_checkpoint(folder)
    assert found is not None
    return found


def assert_same_run(one: Path, other: Path) -> None:
    """Bit for bit, but for the time that it took and the memory."""
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    names = ("metrics.csv", "config.toml", "model.pt")
    for name in (name for name in names if (one / name).exists()):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    a, b = (json.loads((folder / "record.json").read_text()) for folder in (one, other))
    assert {key: value for key, value in a.items() if key not in ENDS} == {
        key: value for key, value in b.items() if key not in ENDS
    }
    first, second = checkpoint_of(one), checkpoint_of(other)
    for name in ("weights", "best", "optimizer", "scheduler", "history"):
        assert_same(getattr(first, name), getattr(second, name))


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other
