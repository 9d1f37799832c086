"""Minesweeper on a grid of any size, in the manner of the set of Platonov et al. (2023)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from .dataset import GraphDataset
from .entries import Entry, Request
from .generated import both_ways
from .options import check_number

_MINES, _HIDDEN = 0.2, 0.5
_COUNTS = 6  # of neighbouring mines that are told apart: 0 to 4, and 5 or more


def grid(height: int, width: int) -> Tensor:
    """Edges, in both directions, of a grid whose cells have up to eight neighbours.

    >>> from lyapflow_graph.data.minesweeper import grid
    >>> grid(100, 100).shape
    torch.Size([2, 78804])
    """
    cell = torch.arange(height * width).reshape(height, width)
    pairs = (
        (cell[:, :-1], cell[:, 1:]),
        (cell[:-1], cell[1:]),
        (cell[:-1, :-1], cell[1:, 1:]),
        (cell[:-1, 1:], cell[1:, :-1]),
    )
    return both_ways(torch.cat([torch.stack([a.flatten(), b.flatten()]) for a, b in pairs], dim=1))


def _minesweeper(request: Request, *, size: int = 100, seed: int = 0) -> GraphDataset:
    check_number("size", size, least=4)
    check_number("seed", seed, least=0)
    cells, rng = size * size, np.random.default_rng(seed)
    edge_index = grid(size, size)
    mine = torch.zeros(cells)
    mine[torch.from_numpy(rng.permutation(cells)[: round(_MINES * cells)])] = 1.0
    around = torch.zeros(cells).index_add(0, edge_index[1], mine[edge_index[0]]).long()
    channel = 1 + around.clamp(max=_COUNTS - 1)
    channel[torch.from_numpy(rng.permutation(cells)[: round(_HIDDEN * cells)])] = 0  # the count is not told
    x = torch.nn.functional.one_hot(channel, 1 + _COUNTS).float()
    # From 1 on: zeros at the end of a seed are ignored, and the mines must not be drawn again.
    order = torch.from_numpy(np.random.default_rng([seed, request.split + 1]).permutation(cells))
    ends = (0, cells // 2, cells // 2 + cells // 4, cells)

    def part(i: int) -> list[Data]:
        mask = torch.zeros(cells, dtype=torch.bool)
        mask[order[ends[i] : ends[i + 1]]] = True
        return [Data(x=x, edge_index=edge_index, y=mine[:, None], mask=mask)]

    return GraphDataset(
        name="minesweeper-grid",
        task="node",
        train=part(0),
        val=part(1),
        test=part(2),
        in_channels=1 + _COUNTS,
        out_channels=1,
        edge_dim=None,
        loss="binary_cross_entropy",
        metric="roc_auc",
        provenance={
            "source": "generated here in the manner of minesweeper (Platonov et al., 2023)",
            "split": f"{request.split} of 10, at random 50/25/25",
            "official": False,
            "size": size,
            "seed": seed,
        },
    )


ENTRIES = (Entry("minesweeper-grid", "a grid with mines, of any size", _minesweeper, splits=10),)
