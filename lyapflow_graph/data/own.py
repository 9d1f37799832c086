"""Data of your own: a folder of npz files, or an object of a module."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from lyapflow.importing import import_object

from ..losses import LOSSES
from ..metrics import METRICS
from .dataset import GraphDataset
from .errors import DamagedDataError
from .graphs import GraphSet
from .options import check_choice, check_number
from .reading import read_npz

_PARTS = ("train", "val", "test")


@final
@dataclass(frozen=True)
class Choices:
    """What the graphs themselves do not say.

    Args:
        task: "node" or "graph"; found from `y` if not given.
        loss: Found from `y` if not given: cross entropy for integers, the absolute error for floating point numbers.
        metric: The usual one of the loss if not given.
        seed: Of a split at random, where there is none.
    """

    task: Literal["node", "graph"] | None = None
    loss: str | None = None
    metric: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task is not None:
            check_choice("task", self.task, ("node", "graph"))
        _ = self.loss and LOSSES[self.loss], self.metric and METRICS[self.metric]  # which refuse what they do not know
        check_number("seed", self.seed, least=0)

    @classmethod
    def of(cls, name: str, options: dict[str, Any]) -> Choices:
        known = [field.name for field in fields(cls)]
        for option in options:
            if option not in known:
                raise TypeError(f"{name} has no option {option!r}; it has {', '.join(known)}")
        return cls(**options)


def from_folder(folder: Path, split: int, options: dict[str, Any]) -> GraphDataset:
    """A dataset from npz files: `graphs.npz`, or `train.npz`, `val.npz` and `test.npz`.

    Each holds `x`, `edge_index` (from 0 in every graph), `y`, `node_ptr` and `edge_ptr` where there is more than one
    graph, and maybe `edge_attr` and other attributes of nodes. A single graph in `graphs.npz` may have `train_mask`,
    `val_mask` and `test_mask`, `[nodes]` or `[nodes, splits]`; several may have `split_train`, `split_val` and
    `split_test` with their numbers. Without, a split of 80/10/10 is drawn.
    """
    choices = Choices.of(str(folder), options)
    paths = {part: folder / f"{part}.npz" for part in _PARTS}
    source: dict[str, str] = {"source": f"files of {folder.name}"}
    if all(path.is_file() for path in paths.values()):
        parts = {part: _graphs(path, read_npz(path)) for part, path in paths.items()}
        return _dataset(str(folder), parts, choices, source | {"split": "as in the files"})
    path = folder / "graphs.npz"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} has neither graphs.npz nor all of {', '.join(p.name for p in paths.values())}"
        )
    arrays = read_npz(path)
    chosen = {part: arrays.pop(f"split_{part}", None) for part in _PARTS}
    graphs = _graphs(path, arrays)
    if any(index is not None for index in chosen.values()):
        absent = [f"split_{part}" for part, index in chosen.items() if index is None]
        if absent:
            raise DamagedDataError(f"{path} has no array {absent[0]!r}, though it has others of a split")
        parts = {part: graphs.subset(torch.as_tensor(index).long()) for part, index in chosen.items()}
        return _dataset(str(folder), parts, choices, source | {"split": "as in the file"})
    return _split(str(folder), graphs, split, choices, source)


def from_object(path: str, split: int, options: dict[str, Any]) -> GraphDataset:
    """A dataset from `module:object`: a GraphDataset, a data set of PyTorch Geometric, graphs, or what makes one.

    A callable gets the options that it has arguments for; the others are :class:`Choices`.
    """
    found = import_object(path, "data")
    if callable(found) and not isinstance(found, Data):  # which is callable, for other reasons
        found, options = _called(path, found, options)
    choices = Choices.of(path, options)
    if isinstance(found, GraphDataset):
        return found
    if isinstance(found, Data):
        found = [found]
    if not isinstance(found, Iterable):
        kind = type(found).__name__
        raise TypeError(
            f"{path} must be a GraphDataset, a data set of PyTorch Geometric or a list of graphs, got {kind}"
        )
    return _split(path, _clean(found), split, choices, {"source": path})


def _called(path: str, make: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    signature = inspect.signature(make)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    own = {name: value for name, value in options.items() if takes_any or name in signature.parameters}
    try:
        signature.bind(**own)
    except TypeError as error:
        raise TypeError(f"{path} cannot be called with {own or 'no arguments'}: {error}") from None
    return make(**own), {name: value for name, value in options.items() if name not in own}


def _clean(graphs: Iterable[Any]) -> GraphSet:
    """Only tensors and numbers: what else a graph has, as a formula, cannot be batched."""
    kept = []
    for i, graph in enumerate(graphs):
        if not isinstance(graph, Data):
            raise TypeError(f"graphs must be torch_geometric Data, got {type(graph).__name__} for graph {i}")
        kept.append(Data.from_dict({k: v for k, v in graph.to_dict().items() if isinstance(v, Tensor | int | float)}))
    return GraphSet.of(kept)


def _graphs(path: Path, arrays: dict[str, np.ndarray]) -> GraphSet:
    for name in ("x", "edge_index", "y"):
        if name not in arrays:
            raise DamagedDataError(f"{path} has no array {name!r}; it has {', '.join(arrays) or 'none'}")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    nodes = tensors.pop("node_ptr", torch.tensor([0, len(tensors["x"])])).long()
    edges = tensors.pop("edge_ptr", torch.tensor([0, tensors["edge_index"].shape[-1]])).long()
    tensors["edge_index"] = tensors["edge_index"].long()
    by_graph = torch.arange(len(nodes))
    pointers = {}
    for name, tensor in tensors.items():
        rows = tensor.shape[-1] if "index" in name else len(tensor)
        options = [pointer for pointer in (nodes, edges, by_graph) if int(pointer[-1]) == rows]
        if name.startswith("edge") and int(edges[-1]) == rows:
            options = [edges]
        if not options:
            wanted = f"{int(nodes[-1])} nodes, {int(edges[-1])} edges or {len(nodes) - 1} graphs"
            raise DamagedDataError(f"{path}: {name!r} has {rows} rows, which are not its {wanted}")
        pointers[name] = options[0]
    try:
        graphs = GraphSet(tensors, pointers, nodes)
    except ValueError as error:
        raise DamagedDataError(f"{path}: {error}") from None
    index, sizes = tensors["edge_index"], nodes.diff().repeat_interleave(edges.diff())
    if index.ndim != 2 or len(index) != 2 or bool(((index < 0) | (index >= sizes)).any()):
        raise DamagedDataError(
            f"{path}: 'edge_index' must be [2, edges] of nodes of their graph, counted from 0 in each"
        )
    return graphs


def _split(name: str, graphs: GraphSet, split: int, choices: Choices, source: dict[str, str]) -> GraphDataset:
    if len(graphs) == 1:
        parts, how = _masked(name, graphs, split, choices.seed)
        return _dataset(name, parts, choices, source | {"split": how})
    if len(graphs) < 3:
        raise ValueError(f"{name} has {len(graphs)} graphs, which cannot be split into three parts")
    order = np.random.default_rng([choices.seed, split]).permutation(len(graphs))
    tenth = max(1, len(graphs) // 10)
    index = {"train": order[2 * tenth :], "val": order[:tenth], "test": order[tenth : 2 * tenth]}
    parts = {part: graphs.subset(torch.from_numpy(chosen)) for part, chosen in index.items()}
    return _dataset(name, parts, choices, source | {"split": f"at random 80/10/10, seed {choices.seed}, {split}"})


def _masked(name: str, graphs: GraphSet, split: int, seed: int) -> tuple[dict[str, GraphSet], str]:
    """One graph in three parts: its own masks, or masks at random."""
    masks = {part: graphs.tensors.get(f"{part}_mask") for part in _PARTS}
    bare = graphs.replace(**{key: None for key in graphs.tensors if key.endswith("_mask")})
    if all(mask is not None for mask in masks.values()):
        chosen = {}
        for part, mask in masks.items():
            assert mask is not None
            if mask.ndim == 2 and split >= mask.shape[1]:
                raise ValueError(f"split must lie in 0 to {mask.shape[1] - 1} for {name}, got {split}")
            chosen[part] = mask if mask.ndim == 1 else mask[:, split].contiguous()
        how = f"its own, {split}"
    else:
        nodes = int(graphs.node_pointer[-1])
        order = torch.from_numpy(np.random.default_rng([seed, split]).permutation(nodes))
        ends = (0, round(0.8 * nodes), round(0.9 * nodes), nodes)
        chosen = {part: torch.zeros(nodes, dtype=torch.bool) for part in _PARTS}
        for i, part in enumerate(_PARTS):
            chosen[part][order[ends[i] : ends[i + 1]]] = True
        how = f"nodes at random 80/10/10, seed {seed}, {split}"
    return {part: bare.with_node_attribute("mask", mask.bool()) for part, mask in chosen.items()}, how


def _dataset(name: str, parts: dict[str, GraphSet], choices: Choices, provenance: dict[str, str]) -> GraphDataset:
    for part, graphs in parts.items():
        absent = [key for key in ("x", "edge_index", "y") if key not in graphs.tensors]
        if absent:
            raise ValueError(f"the graphs of {name} for {part} have no {absent[0]!r}, only {list(graphs.tensors)}")
    parts = {part: _shaped(graphs, choices) for part, graphs in parts.items()}
    train = parts["train"]
    y = train.tensors["y"]
    by_node = train.pointers["y"] is train.node_pointer
    loss = choices.loss or ("l1" if y.is_floating_point() else "cross_entropy")
    classes = max(int(graphs.tensors["y"].max()) for graphs in parts.values()) + 1
    return GraphDataset(
        name=name,
        task=choices.task or ("node" if by_node else "graph"),
        train=train,
        val=parts["val"],
        test=parts["test"],
        in_channels=_width("x", parts),
        out_channels=y.shape[1] if y.is_floating_point() else classes,
        edge_dim=_width("edge_attr", parts) if "edge_attr" in train.tensors else None,
        loss=loss,
        metric=choices.metric or LOSSES[loss].metric,
        provenance={"official": False, **provenance},
    )


def _shaped(graphs: GraphSet, choices: Choices) -> GraphSet:
    """Features in columns; classes as a row of numbers; values to predict as a table."""
    tensors = graphs.tensors
    changed = {}
    for name in {"x", "edge_attr"} & set(tensors):
        tensor = tensors[name]
        tensor = tensor[:, None] if tensor.ndim == 1 else tensor
        changed[name] = tensor.float() if tensor.is_floating_point() else tensor.long()
    y = tensors["y"]
    values = y.is_floating_point() or (choices.loss is not None and LOSSES[choices.loss].labels != "classes")
    if values:
        changed["y"] = (y[:, None] if y.ndim == 1 else y).float()
    else:
        if y.ndim == 2 and y.shape[1] != 1:
            raise ValueError(f"y must have one class in a row, got {y.shape[1]}; give loss for several labels")
        changed["y"] = y.flatten().long()
    return graphs.replace(**changed)


def _width(name: str, parts: dict[str, GraphSet]) -> int | tuple[int, ...]:
    """The width of floating point features, or the number of categories in each column of integers."""
    columns = [graphs.tensors[name] for graphs in parts.values()]
    if columns[0].is_floating_point():
        return columns[0].shape[1]
    return tuple((torch.cat(columns).amax(0) + 1).tolist())
