"""Heterophilous graphs: five of Platonov et al. (2023), and six older ones in the same form."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import HeterophilousGraphDataset
from torch_geometric.utils import to_undirected

from .dataset import GraphDataset
from .entries import Entry, Request
from .errors import DamagedDataError
from .official import processed_by, read_processed
from .reading import read_npz
from .sources import Source, SourceFile, find_source

_PROJECT = "the repository yandex-research/heterophilous-graphs (Platonov et al., 2023), folder data"

# sha256 of the published npz files.
_OFFICIAL = {
    "roman-empire": "a58ba741d123bf892fe5c872138d07463d75a2e9012360b8dd78ac2d4766d428",
    "amazon-ratings": "4c3a3e3b9d9f6cba0fede4625a00aad8c5721c1a36ed771367f446763241c7dd",
    "minesweeper": "e664c8dacf1e8ac466c2c09ed4b237bd2c5541f47a6eae9c6092cb87f16412b3",
    "tolokers": "dacf3ac94cec53d03cd2adb5255c08b33dee1656c33ca8164a464bd9450a1667",
    "questions": "757ebd772bab1475c4dd951ca9e364400c6db161656cff9d21780ee874cf3074",
}
_OLDER = {
    "actor": "c350eef06b2c2a9bf8218be2b57cac6d4003d0922eb597a039e9123f75817816",
    "chameleon-filtered": "bf46f07e1fb5249280447e5fe3100f3e82fc4b93ad1e13ffcfdec924b6ac0bb5",
    "squirrel-filtered": "f06370ffb3116c5de8b7a600005400b2293c025e0ce2f6916d8201a825505ac7",
    "texas": "b164b99e6c3d43e4ab07488ec59bd8c815f90cbc1bd4cf425ce587d2b534d844",
    "cornell": "684c54ba3daa13b0ba1f04a3d6dd1b1175c1ae9bdeb982851fd4ff96d3aac298",
    "wisconsin": "2543c89838cfc75f737f7c4664cc1d097f8268602c20b2d1bd4f21407df9c074",
}
_BINARY = ("minesweeper", "tolokers", "questions")


def _official(request: Request, name: str) -> GraphDataset:
    folder = str(request.root / "heterophilous")
    source = processed_by(HeterophilousGraphDataset, name, _sources(name), request, root=folder, name=name)
    return _dataset(name, read_processed(request.root / source.files[0].path)[0], request.split)


def _older(request: Request, name: str) -> GraphDataset:
    file = find_source(name, _sources(name), request.root).files[0]
    file.check(request.root)
    return _dataset(name, _read(request.root / file.path), request.split)


def _read(path: Path) -> Data:
    """A graph from a file of the same form as the five, as PyTorch Geometric's loader makes it."""
    arrays = read_npz(path)
    try:
        x = torch.from_numpy(arrays["node_features"])
        edges = torch.from_numpy(arrays["edges"]).T.contiguous()
        masks = {f"{part}_mask": torch.from_numpy(arrays[f"{part}_masks"]).T for part in ("train", "val", "test")}
        y = torch.from_numpy(arrays["node_labels"])
    except KeyError as error:
        raise DamagedDataError(f"{path} has no array {error}") from None
    return Data(x=x, y=y, edge_index=to_undirected(edges, num_nodes=len(x)), **masks)


def _dataset(name: str, data: Data, split: int) -> GraphDataset:
    binary = name in _BINARY
    y: Tensor = data.y.float()[:, None] if binary else data.y
    classes = 1 if binary else int(y.max()) + 1

    def part(mask: Tensor) -> list[Data]:
        return [Data(x=data.x, edge_index=data.edge_index, y=y, mask=mask[:, split].contiguous())]

    return GraphDataset(
        name=name,
        task="node",
        train=part(data.train_mask),
        val=part(data.val_mask),
        test=part(data.test_mask),
        in_channels=data.x.shape[1],
        out_channels=classes,
        edge_dim=None,
        loss="binary_cross_entropy" if binary else "cross_entropy",
        metric="roc_auc" if binary else "accuracy",
        provenance={
            "source": _PROJECT,
            "split": f"{split} of 10",
            "official": True,
            "preprocessing": "edges in both directions; no self-loops added; features as published",
        },
    )


def _sources(name: str) -> tuple[Source, ...]:
    file = name.replace("-", "_")
    folder = f"heterophilous/{file}"
    digest = _OFFICIAL.get(name) or _OLDER[name]
    found_as = (f"{file}.npz",)
    raw = Source(
        "the npz file", (SourceFile(f"{folder}/raw/{file}.npz", found_as, digest),), _PROJECT, name in _OFFICIAL
    )
    if name in _OLDER:
        return (raw,)
    processed = SourceFile(f"{folder}/processed/data.pt", (f"{file}/processed/data.pt",))
    return Source("the file processed by PyTorch Geometric", (processed,), _PROJECT), raw


def _entry(name: str) -> Entry:
    make = _official if name in _OFFICIAL else _older
    about = "one heterophilous graph" + ("" if name in _OFFICIAL else ", older than the five")

    def load(request: Request) -> GraphDataset:
        return make(request, name)

    return Entry(name, about, load, _sources(name), splits=10)


ENTRIES = tuple(_entry(name) for name in (*_OFFICIAL, *_OLDER))
