"""What generated sets have in common: three parts from one seed, kept once made."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .cache import cached
from .entries import Request
from .graphs import GraphSet
from .options import check_number

PARTS = ("train", "val", "test")
Parts = dict[str, GraphSet]


def kept(request: Request, name: str, key: Mapping[str, object], make: Callable[[], Parts]) -> Parts:
    """Three sets of graphs, from the cache if they were made before.

    Args:
        request: Says where the cache is.
        name: Of the data set.
        key: All options, and a version of the generator.
        make: Called if they have to be made.
    """

    def flat() -> dict[str, Tensor]:
        tensors = {}
        for part, graphs in make().items():
            tensors[f"{part}/nodes"] = graphs.node_pointer
            for attribute, tensor in graphs.tensors.items():
                tensors[f"{part}/{attribute}"] = tensor
                tensors[f"{part}/{attribute}/pointer"] = graphs.pointers[attribute]
        return tensors

    tensors = cached(request.root, name, key, flat)

    def part(name: str) -> GraphSet:
        ends = {key.removeprefix(f"{name}/"): tensor for key, tensor in tensors.items() if key.startswith(f"{name}/")}
        attributes = [key for key in ends if f"{key}/pointer" in ends]
        pointers = {key: ends[f"{key}/pointer"] for key in attributes}
        return GraphSet({key: ends[key] for key in attributes}, pointers, ends["nodes"])

    return {name: part(name) for name in PARTS}


def shares(graphs: int, official: tuple[int, int, int]) -> tuple[int, int, int]:
    """How many graphs each part has, in the proportions of the official numbers.

    >>> from lyapflow_graph.data.generated import shares
    >>> shares(7040, (5120, 640, 1280)), shares(70, (5120, 640, 1280))
    ((5120, 640, 1280), (51, 6, 13))
    """
    check_number("graphs", graphs, least=11)  # so that no part is empty
    train = round(graphs * official[0] / sum(official))
    val = max(1, round(graphs * official[1] / sum(official)))
    return train, val, graphs - train - val


def both_ways(pairs: Tensor) -> Tensor:
    """Edges `[2, E]` that are given once, in both directions and sorted."""
    edges = torch.cat([pairs, pairs.flip(0)], dim=1)
    return edges[:, (edges[0] * (int(edges.max()) + 1 if edges.numel() else 1) + edges[1]).argsort()]
