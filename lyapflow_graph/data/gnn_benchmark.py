"""MNIST and CIFAR10 superpixels, PATTERN and CLUSTER, as Dwivedi et al. (2020) published them."""

from __future__ import annotations

import torch
from torch_geometric.datasets import GNNBenchmarkDataset

from .dataset import GraphDataset
from .entries import Entry, Request
from .graphs import GraphSet
from .official import processed_by, read_processed
from .sources import Source, SourceFile

_PROJECT = "the repository graphdeeplearning/benchmarking-gnns (Dwivedi et al., 2020)"
_CLASSES = {"mnist": 10, "cifar10": 10, "pattern": 2, "cluster": 6}
_IMAGES = ("mnist", "cifar10")


def _sources(name: str) -> tuple[Source, ...]:
    upper = name.upper()
    processed = tuple(
        SourceFile(f"gnn_benchmark/{upper}/processed/{part}_data.pt", (f"{upper}/processed/{part}_data.pt",))
        for part in ("train", "val", "test")
    )
    raw = SourceFile(f"gnn_benchmark/{upper}/raw/{upper}_v2.pt", (f"{upper}_v2.pt",))
    published = f"{_PROJECT}; PyTorch Geometric keeps {upper}_v2.zip"
    return (
        Source("files processed by PyTorch Geometric", processed, published),
        Source("the raw file, as PyTorch Geometric takes it", (raw,), published, downloaded=True),
    )


def _load(request: Request, name: str) -> GraphDataset:
    folder = str(request.root / "gnn_benchmark")
    source = processed_by(GNNBenchmarkDataset, name, _sources(name), request, root=folder, name=name.upper())
    parts = [_shaped(read_processed(request.root / file.path)) for file in source.files]
    image = name in _IMAGES
    return GraphDataset(
        name=name,
        task="graph" if image else "node",
        train=parts[0],
        val=parts[1],
        test=parts[2],
        in_channels=parts[0].tensors["x"].shape[1],
        out_channels=_CLASSES[name],
        edge_dim=1 if "edge_attr" in parts[0].tensors else None,
        loss="cross_entropy" if image else "weighted_cross_entropy",
        metric="accuracy" if image else "weighted_accuracy",
        provenance={
            "source": source.published,
            "split": "/".join(str(len(part)) for part in parts),
            "official": True,
            "preprocessing": "positions joined to the features" if image else "",
        },
    )


def _shaped(graphs: GraphSet) -> GraphSet:
    """Positions are features of superpixels, and weights of edges a column."""
    tensors = graphs.tensors
    x, y = tensors["x"].float(), tensors["y"].long().flatten()
    if "pos" in tensors:
        graphs, x = graphs.replace(pos=None), torch.cat([x, tensors["pos"].float()], dim=1)
    if "edge_attr" in tensors:
        graphs = graphs.replace(edge_attr=tensors["edge_attr"].reshape(-1, 1).float())
    return graphs.replace(x=x, y=y)


def _entry(name: str, about: str) -> Entry:
    def load(request: Request) -> GraphDataset:
        return _load(request, name)

    return Entry(name, about, load, _sources(name))


ENTRIES = (
    _entry("mnist", "70,000 superpixel graphs, 10 classes"),
    _entry("cifar10", "60,000 superpixel graphs, 10 classes"),
    _entry("pattern", "14,000 graphs, is a node in a planted pattern"),
    _entry("cluster", "12,000 graphs, the community of a node"),
)
