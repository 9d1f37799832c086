"""Two cliques joined by a path: what is at one end has to be known at the other."""

from __future__ import annotations

import torch

from .dataset import GraphDataset
from .entries import Entry, Request
from .generated import PARTS, both_ways, shares
from .graphs import GraphSet
from .options import check_number

_SHARES = (8, 1, 1)


def barbell_edges(cliques: int, bridge: int) -> torch.Tensor:
    """Edges, in both directions: the nodes of one clique, then those of the path, then those of the other clique.

    >>> from lyapflow_graph.data.barbells import barbell_edges
    >>> barbell_edges(cliques=2, bridge=1)
    tensor([[0, 1, 1, 2, 2, 3, 3, 4],
            [1, 0, 2, 1, 3, 2, 4, 3]])
    """
    clique = torch.combinations(torch.arange(cliques)).T
    path = torch.arange(cliques - 1, cliques + bridge)
    return both_ways(torch.cat([clique, torch.stack([path, path + 1]), clique + cliques + bridge], dim=1))


def _barbell(
    request: Request, *, cliques: int = 10, bridge: int = 4, graphs: int = 1000, seed: int = 0
) -> GraphDataset:
    check_number("cliques", cliques, least=2)
    check_number("bridge", bridge, least=0)
    check_number("seed", seed, least=0)
    counts = shares(graphs, _SHARES)
    n, edges = 2 * cliques + bridge, barbell_edges(cliques, bridge)
    generator = torch.Generator().manual_seed(seed)
    side = torch.cat([torch.full((cliques,), -1.0), torch.zeros(bridge), torch.ones(cliques)])

    def part(count: int) -> GraphSet:
        value = torch.randn(count, n, generator=generator) * side.abs()
        left, right = value[:, :cliques].mean(1), value[:, -cliques:].mean(1)
        y = torch.where(side < 0, right[:, None], left[:, None]) * side.abs()
        tensors = {
            "x": torch.stack([value, side.expand(count, n)], dim=2).flatten(0, 1),
            "edge_index": edges.repeat(1, count),
            "y": y.reshape(-1, 1),
            "mask": (side != 0).repeat(count),
        }
        nodes = torch.arange(count + 1) * n
        pointers = {"x": nodes, "edge_index": torch.arange(count + 1) * edges.shape[1], "y": nodes, "mask": nodes}
        return GraphSet(tensors, pointers, nodes)

    parts = dict(zip(PARTS, map(part, counts), strict=True))
    return GraphDataset(
        name="barbell",
        task="node",
        train=parts["train"],
        val=parts["val"],
        test=parts["test"],
        in_channels=2,
        out_channels=1,
        edge_dim=None,
        loss="mse",
        metric="log10_mse",
        provenance={
            "source": "generated here: every node of a clique is to tell the mean value of the other clique",
            "split": "/".join(map(str, counts)),
            "official": False,
            "cliques": cliques,
            "bridge": bridge,
            "seed": seed,
        },
    )


ENTRIES = (Entry("barbell", "two cliques and a bridge, the mean of the other end", _barbell),)
