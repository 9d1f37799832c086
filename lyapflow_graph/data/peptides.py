"""Peptides-func and Peptides-struct of the Long Range Graph Benchmark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch_geometric.datasets import LRGBDataset

from ..encoders import ATOM_FEATURES, BOND_FEATURES
from .dataset import GraphDataset
from .entries import Entry, Request
from .errors import DamagedDataError
from .graphs import GraphSet
from .official import processed_by, read_processed
from .reading import read_npz, read_pickle
from .sources import Source, SourceFile

_PARTS = ("train", "val", "test")
_PROJECT = "the Long Range Graph Benchmark (vijaydwivedi75/lrgb; data CC BY-NC 4.0)"
_OUT = {"peptides-func": 10, "peptides-struct": 11}

_SPLIT = SourceFile(
    "peptides/splits_random_stratified_peptide.pickle",
    ("splits_random_stratified_peptide.pickle",),
    "5a0114bdadc80b94fc7ae974f13ef061",
    "md5",
)
_GRAPHS = SourceFile(
    "peptides/peptides_graphs.npz",
    ("peptides_graphs.npz",),
    "3795b007e5c8f8abcfe2ebf254d5e824b7f05c32e3e849a22182e186019ebeda",
)
_DERIVED = Source(
    "an npz file of graphs made from the official molecules, and the official split",
    (_GRAPHS, _SPLIT),
    f"peptide_multi_class_dataset.csv.gz and the split of {_PROJECT}",
)


def _sources(name: str) -> tuple[Source, ...]:
    archive = name.replace("-", "")  # as the published zip and its folder are called

    def file(kind: str, part: str, *found_as: str) -> SourceFile:
        path = f"{name}/{kind}/{part}.pt"
        return SourceFile(f"lrgb/{path}", (path, *found_as))

    processed = tuple(file("processed", part) for part in _PARTS)
    raw = tuple(file("raw", part, f"{archive}/{part}.pt") for part in _PARTS)
    official = (
        Source("files processed by PyTorch Geometric", processed, f"{_PROJECT}, {archive}.zip"),
        Source("raw files, as PyTorch Geometric takes them", raw, f"{_PROJECT}, {archive}.zip", downloaded=True),
    )
    return (*official, _DERIVED) if name == "peptides-func" else official


def _peptides(request: Request, name: str) -> GraphDataset:
    folder = str(request.root / "lrgb")
    source = processed_by(LRGBDataset, name, _sources(name), request, root=folder, name=name)
    if source is _DERIVED:
        for file in source.files:
            file.check(request.root)
        parts = _read(request.root / _GRAPHS.path, request.root / _SPLIT.path)
    else:
        parts = [_shaped(read_processed(request.root / file.path), _OUT[name]) for file in source.files]
    func = name == "peptides-func"
    return GraphDataset(
        name=name,
        task="graph",
        train=parts[0],
        val=parts[1],
        test=parts[2],
        in_channels=ATOM_FEATURES,
        out_channels=_OUT[name],
        edge_dim=BOND_FEATURES,
        loss="binary_cross_entropy" if func else "l1",
        metric="average_precision" if func else "mae",
        provenance={
            "source": source.published,
            "split": f"stratified, {len(parts[0])}/{len(parts[1])}/{len(parts[2])}",
            "official": True,
            "differs": "graphs made by RDKit from the official molecules" if source is _DERIVED else "",
            "targets": "10 labels" if func else "11 values, each standardised over the whole set",
        },
    )


def _shaped(graphs: GraphSet, out: int) -> GraphSet:
    x, bonds, y = (graphs.tensors[name] for name in ("x", "edge_attr", "y"))
    return graphs.replace(x=x.long(), edge_attr=bonds.long(), y=y.reshape(-1, out).float())


def _read(graphs_at: Path, split_at: Path) -> list[GraphSet]:
    arrays, split = read_npz(graphs_at), read_pickle(split_at)
    try:
        flat = _both_ways(arrays)
        return [flat.subset(torch.from_numpy(np.asarray(split[part])).long()) for part in _PARTS]
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise DamagedDataError(f"{graphs_at} and {split_at} are not the peptides: {error}") from None


def _both_ways(arrays: dict[str, np.ndarray]) -> GraphSet:
    """Every bond is stored once; here each is followed by its reverse."""
    nodes = torch.from_numpy(arrays["node_ptr"].astype(np.int64))
    edges = 2 * torch.from_numpy(arrays["edge_ptr"].astype(np.int64))
    once = torch.from_numpy(arrays["edge_index_undirected"].astype(np.int64))
    tensors = {
        "x": torch.from_numpy(arrays["x"].astype(np.int64)),
        "edge_index": torch.stack([once, once.flip(0)], dim=2).flatten(1),
        "edge_attr": torch.from_numpy(arrays["edge_attr"].astype(np.int64)).repeat_interleave(2, 0),
        "y": torch.from_numpy(arrays["y"].astype(np.float32)),
    }
    pointers = {"x": nodes, "edge_index": edges, "edge_attr": edges, "y": torch.arange(len(nodes))}
    return GraphSet(tensors, pointers, nodes)


def _entry(name: str, about: str) -> Entry:
    def load(request: Request) -> GraphDataset:
        return _peptides(request, name)

    return Entry(name, about, load, _sources(name))


ENTRIES = (
    _entry("peptides-func", "15,535 peptides, ten labels"),
    _entry("peptides-struct", "15,535 peptides, eleven values"),
)
