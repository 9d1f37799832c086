"""Many graphs as a few flat tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, final, overload

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data


@final
class GraphSet(Sequence[Data]):
    """Graphs as flat tensors: each attribute of all graphs is one tensor, and pointers say where each graph begins.

    It is a sequence of `Data`, whose tensors are views. Batches are cut out by index arithmetic, without an object for
    each graph, and equal those of PyTorch Geometric.

    Args:
        tensors: Attributes of all graphs, one graph after the other. Indices of nodes count from 0 in every graph.
        pointers: For each attribute where every graph begins in it, and where the last one ends: `[graphs + 1]`.
        node_pointer: The same for nodes.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> from lyapflow_graph.data import GraphSet
    >>> pair = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
    >>> lone = Data(x=torch.zeros(1, 1), edge_index=torch.zeros(2, 0, dtype=torch.long))
    >>> graphs = GraphSet.of([pair, lone, pair])
    >>> graphs[1]
    Data(x=[1, 1], edge_index=[2, 0])
    >>> graphs.batch(torch.tensor([2, 0])).edge_index
    tensor([[0, 2],
            [1, 3]])
    """

    def __init__(self, tensors: Mapping[str, Tensor], pointers: Mapping[str, Tensor], node_pointer: Tensor) -> None:
        if set(tensors) != set(pointers):
            raise ValueError(f"tensors and pointers must have the same names, got {set(tensors)} and {set(pointers)}")
        for name, pointer in {**pointers, "node_pointer": node_pointer}.items():
            if pointer.shape != node_pointer.shape or pointer.ndim != 1 or pointer.shape[0] == 0:
                raise ValueError(f"pointers must be of the shape [graphs + 1], got {list(pointer.shape)} for {name!r}")
            if pointer[0] != 0 or bool((pointer.diff() < 0).any()):
                raise ValueError(f"pointers must begin at 0 and never go back, but that for {name!r} does")
        for name, tensor in tensors.items():
            rows, end = tensor.shape[_cat_dim(name)], int(pointers[name][-1])
            if rows != end:
                raise ValueError(f"{name!r} has {rows} rows, but its pointer ends at {end}")
        self.tensors = dict(tensors)
        self.node_pointer = node_pointer
        self.pointers: dict[str, Tensor] = {}
        for name, pointer in pointers.items():  # equal pointers become one object, which is then worked on once
            known = (node_pointer, *self.pointers.values())
            self.pointers[name] = next((old for old in known if torch.equal(old, pointer)), pointer)

    @classmethod
    def of(cls, graphs: Iterable[Data]) -> GraphSet:
        """Graphs with the same attributes, which are tensors or numbers."""
        if isinstance(graphs, GraphSet):
            return graphs
        graphs = list(graphs)
        if not graphs:
            raise ValueError("graphs must be at least one, got none")
        names = _attributes(graphs[0], 0)
        columns: dict[str, list[Tensor]] = {name: [] for name in names}
        for i, graph in enumerate(graphs):
            own = _attributes(graph, i)
            if set(own) != set(names):
                raise ValueError(f"all graphs must have the attributes of the first, {names}; graph {i} has {own}")
            for name in names:
                value = torch.as_tensor(graph[name])
                columns[name].append(value[None] if value.ndim == 0 else value)
        tensors, pointers = {}, {}
        for name, values in columns.items():
            _check_column(name, values)
            dim = _cat_dim(name)
            tensors[name] = torch.cat(values, dim) if len(values) > 1 else values[0]  # one graph is not copied
            pointers[name] = _pointer(torch.tensor([value.shape[dim] for value in values]))
        return cls(tensors, pointers, _pointer(torch.tensor([graph.num_nodes for graph in graphs])))

    def __len__(self) -> int:
        return self.node_pointer.shape[0] - 1

    @overload
    def __getitem__(self, index: int) -> Data: ...
    @overload
    def __getitem__(self, index: slice) -> GraphSet: ...
    def __getitem__(self, index: int | slice) -> Data | GraphSet:
        if isinstance(index, slice):
            return self.subset(torch.tensor(range(len(self))[index], dtype=torch.long))
        i = range(len(self))[index]
        data = Data()
        for name, tensor in self.tensors.items():
            start, end = self.pointers[name][i : i + 2].tolist()
            data[name] = tensor.narrow(_cat_dim(name), start, end - start)
        if "x" not in self.tensors:
            data.num_nodes = int(self.node_pointer[i + 1] - self.node_pointer[i])
        return data

    def subset(self, index: Tensor) -> GraphSet:
        """The graphs of these numbers, in this order."""
        cut = _Cut(index)
        tensors = {name: cut.rows(tensor, name, self.pointers[name]) for name, tensor in self.tensors.items()}
        pointers = {name: cut.pointer(pointer) for name, pointer in self.pointers.items()}
        return GraphSet(tensors, pointers, cut.pointer(self.node_pointer))

    def batch(self, index: Tensor) -> Batch:
        """The graphs of these numbers, in this order, as `Batch.from_data_list` would put them together."""
        cut, batch = _Cut(index), Batch(_base_cls=Data)
        nodes = cut.pointer(self.node_pointer)
        zeros = torch.zeros(len(index), dtype=torch.long)
        increments = {name: nodes[:-1] if _is_index(name) else zeros for name in self.tensors}
        for name, tensor in self.tensors.items():
            pointer = self.pointers[name]
            batch[name] = (
                cut.shifted(tensor, name, pointer, nodes[:-1]) if _is_index(name) else cut.rows(tensor, name, pointer)
            )
        if "x" not in self.tensors:
            batch.num_nodes = int(nodes[-1])
            batch._num_nodes = nodes.diff().tolist()
        batch.batch, batch.ptr = cut.spread(torch.arange(len(index)), self.node_pointer), nodes
        batch._num_graphs = len(index)
        # With these the batch can be taken apart again, as any of PyTorch Geometric.
        batch._slice_dict = {name: cut.pointer(pointer) for name, pointer in self.pointers.items()}
        batch._inc_dict = increments
        return batch

    def replace(self, **tensors: Tensor | None) -> GraphSet:
        """The same graphs with other values of some attributes, and without those that are given as None."""
        kept = {name: tensor for name, tensor in {**self.tensors, **tensors}.items() if tensor is not None}
        return GraphSet(kept, {name: self.pointers[name] for name in kept}, self.node_pointer)

    def with_node_attribute(self, name: str, rows: Tensor) -> GraphSet:
        """The same graphs with one attribute of nodes more."""
        pointers = {**self.pointers, name: self.node_pointer}
        return GraphSet({**self.tensors, name: rows}, pointers, self.node_pointer)

    def __repr__(self) -> str:
        nodes = int(self.node_pointer[-1])
        return f"GraphSet(graphs={len(self)}, nodes={nodes}, attributes={list(self.tensors)})"


_LONG = 256  # rows of a graph, on average, from which copying graph by graph is faster than row by row


class _Cut:
    """Some graphs out of many: where their rows are, worked out once for all attributes that share a pointer."""

    def __init__(self, index: Tensor) -> None:
        self.index = index
        self._known: dict[int, _Rows] = {}

    def pointer(self, pointer: Tensor) -> Tensor:
        """Where the chosen graphs begin among the chosen rows."""
        return self._of(pointer).pointer

    def rows(self, tensor: Tensor, name: str, pointer: Tensor) -> Tensor:
        rows, dim = self._of(pointer), _cat_dim(name)
        if rows.long:
            pieces = [tensor.narrow(dim, start, size) for start, size in rows.pieces]
            return torch.cat(pieces, dim)
        return tensor.index_select(dim, rows.chosen)

    def shifted(self, tensor: Tensor, name: str, pointer: Tensor, by: Tensor) -> Tensor:
        """The rows, with the value of every chosen graph added to its own."""
        rows, found, dim = self._of(pointer), self.rows(tensor, name, pointer), _cat_dim(name)
        if not rows.long:
            return found.add_(self.spread(by, pointer))
        starts = rows.pointer[:-1].tolist()
        for start, (_, size), value in zip(starts, rows.pieces, by.tolist(), strict=True):
            found.narrow(dim, start, size).add_(value)
        return found

    def spread(self, values: Tensor, pointer: Tensor) -> Tensor:
        """A value of every chosen graph at each of its rows."""
        rows = self._of(pointer)
        return values.repeat_interleave(rows.sizes, output_size=rows.count)

    def _of(self, pointer: Tensor) -> _Rows:
        if id(pointer) not in self._known:
            self._known[id(pointer)] = _Rows(pointer[self.index], pointer[self.index + 1] - pointer[self.index])
        return self._known[id(pointer)]


class _Rows:
    """The rows that begin at `starts`, so many from each as `sizes` says."""

    def __init__(self, starts: Tensor, sizes: Tensor) -> None:
        self.starts, self.sizes = starts, sizes
        self.pointer = _pointer(sizes)
        self.count = int(self.pointer[-1])
        self.long = self.count >= _LONG * len(sizes) > 0

    @cached_property
    def chosen(self) -> Tensor:
        shift = (self.starts - self.pointer[:-1]).repeat_interleave(self.sizes, output_size=self.count)
        return shift.add_(torch.arange(self.count))

    @cached_property
    def pieces(self) -> list[tuple[int, int]]:
        return list(zip(self.starts.tolist(), self.sizes.tolist(), strict=True))


def _pointer(sizes: Tensor) -> Tensor:
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def _is_index(name: str) -> bool:
    """Whether it holds numbers of nodes, by the rule of PyTorch Geometric."""
    return "index" in name or name == "face"


def _cat_dim(name: str) -> int:
    return -1 if _is_index(name) else 0


def _attributes(graph: Any, i: int) -> list[str]:
    """The names of what is collated of a graph that can be."""
    if not isinstance(graph, Data):
        raise TypeError(f"graphs must be torch_geometric Data, got {type(graph).__name__} for graph {i}")
    if type(graph).__inc__ is not Data.__inc__ or type(graph).__cat_dim__ is not Data.__cat_dim__:
        raise TypeError(f"graphs with a way of batching of their own are not taken, got {type(graph).__name__}")
    names = [name for name in graph.to_dict() if name != "num_nodes"]  # keys() has them in an order that varies
    for name in names:
        if not isinstance(graph[name], Tensor | int | float):
            kind = type(graph[name]).__name__
            raise TypeError(f"attributes must be tensors or numbers, but {name!r} of graph {i} is a {kind}; remove it")
        if "batch" in name or name == "ptr":
            raise ValueError(f"graph {i} has {name!r}, as batches have; give the graphs one by one")
    return names


def _check_column(name: str, values: list[Tensor]) -> None:
    def kind(value: Tensor) -> tuple[torch.dtype, tuple[int, ...]]:
        return value.dtype, tuple(value.shape[:-1] if _is_index(name) else value.shape[1:])

    for i, value in enumerate(values):
        if kind(value) != kind(values[0]):
            a, b = (f"{v.dtype} of shape {list(v.shape)}" for v in (values[0], value))
            raise ValueError(f"{name!r} must be alike in all graphs, but is {a} in the first and {b} in graph {i}")
