"""ZINC: 12,000 molecules, whose penalised solubility is to be predicted."""

from __future__ import annotations

from pathlib import Path

import torch
from torch_geometric.datasets import ZINC

from .dataset import GraphDataset
from .entries import Entry, Request
from .errors import DamagedDataError
from .graphs import GraphSet
from .official import processed_by, read_processed
from .reading import read_npz
from .sources import Source, SourceFile

_PARTS = ("train", "val", "test")
_PROJECT = "the repository graphdeeplearning/benchmarking-gnns (Dwivedi et al., 2020), molecules.zip"
_ATOMS, _BONDS = 28, 4

_PROCESSED = Source(
    "files processed by PyTorch Geometric",
    tuple(SourceFile(f"zinc/subset/processed/{part}.pt", (f"subset/processed/{part}.pt",)) for part in _PARTS),
    _PROJECT,
)
_RAW = Source(
    "raw files, as PyTorch Geometric takes them",
    tuple(
        SourceFile(
            f"zinc/raw/{part}.{end}", (f"molecules/{part}.{end}", f"ZINC/raw/{part}.{end}", f"zinc/raw/{part}.{end}")
        )
        for end in ("pickle", "index")
        for part in _PARTS
    ),
    _PROJECT,
    downloaded=True,
)
_NPZ = "zinc12k_official-valtest_resampled-train.npz"
_RESAMPLED = Source(
    "an npz file with the official validation and test molecules and other training molecules",
    (SourceFile(f"zinc/{_NPZ}", (_NPZ,), "16927ad7013f7832f6fc8dd7e89ddc2878e17d507371bddeddae09bb0ecc610f"),),
    "the molecules of JT-VAE (wengong-jin/icml18-jtnn), picked by the index files of benchmarking-gnns",
)


def _zinc(request: Request) -> GraphDataset:
    sources = (_PROCESSED, _RAW, _RESAMPLED)
    source = processed_by(ZINC, "zinc", sources, request, root=str(request.root / "zinc"), subset=True)
    if source is _RESAMPLED:
        source.files[0].check(request.root)
        parts = _read(request.root / source.files[0].path)
    else:
        parts = [_shaped(read_processed(request.root / file.path)) for file in source.files]
    official = source is not _RESAMPLED
    return GraphDataset(
        name="zinc",
        task="graph",
        train=parts[0],
        val=parts[1],
        test=parts[2],
        in_channels=(_ATOMS,),
        out_channels=1,
        edge_dim=(_BONDS,),
        loss="l1",
        metric="mae",
        provenance={
            "source": source.published,
            "split": f"{len(parts[0])}/{len(parts[1])}/{len(parts[2])}",
            "official": official,
            "differs": "" if official else "official val/test, resampled train: labels by the published formula",
        },
    )


def _shaped(graphs: GraphSet) -> GraphSet:
    """With a column of atoms, a column of bonds and a row of targets for each graph."""
    x, bonds, y = (graphs.tensors[name] for name in ("x", "edge_attr", "y"))
    return graphs.replace(x=x.reshape(-1, 1).long(), edge_attr=bonds.reshape(-1, 1).long(), y=y.reshape(-1, 1).float())


def _read(path: Path) -> list[GraphSet]:
    arrays = {name: torch.from_numpy(array) for name, array in read_npz(path).items()}

    def part(name: str) -> GraphSet:
        nodes, edges = arrays[f"{name}_node_ptr"].long(), arrays[f"{name}_edge_ptr"].long()
        names = ("x", "edge_index", "edge_attr", "y")
        tensors = {attribute: arrays[f"{name}_{attribute}"] for attribute in names}
        tensors["edge_index"] = tensors["edge_index"].long()
        pointers = {"x": nodes, "edge_index": edges, "edge_attr": edges, "y": torch.arange(len(nodes))}
        return _shaped(GraphSet(tensors, pointers, nodes))

    try:
        return [part(name) for name in _PARTS]
    except (KeyError, ValueError) as error:
        raise DamagedDataError(f"{path} does not hold the molecules of ZINC: {error}") from None


ENTRIES = (Entry("zinc", "12,000 molecules, regression", _zinc, (_PROCESSED, _RAW, _RESAMPLED)),)
