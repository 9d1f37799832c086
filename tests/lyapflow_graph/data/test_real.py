"""The real files, where the environment variable LYAPFLOW_DATA names a folder that has them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lyapflow_graph.data import import_files, load, names
from lyapflow_graph.data.registry import ENTRIES
from tests.lyapflow_graph.data.cases import trainable


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = os.environ.get("LYAPFLOW_DATA")
    if folder is None:
        pytest.skip("LYAPFLOW_DATA is not set to a folder with the real files")
    root = tmp_path_factory.mktemp("real")
    assert all(one.outcome == "imported" for one in import_files(folder, root))
    return root


def totals(graphs: Any) -> tuple[int, int, int]:
    nodes, edges = graphs.node_pointer[-1], graphs.pointers["edge_index"][-1]
    return len(graphs), int(nodes), int(edges)


def test_every_real_set_loads_or_is_told_missing(real: Path) -> None:
    for name in names():
        if ENTRIES[name].sources and ENTRIES[name].available(real):
            options = {"graphs": 14} if name == "mnist-superpixels" else {}
            trainable(load(name, real, **options))  # type: ignore[arg-type]


def test_real_numbers(real: Path) -> None:
    """The published statistics of the official sets."""
    if ENTRIES["minesweeper"].available(real):
        data = load("minesweeper", real).train[0]
        assert (data.num_nodes, data.edge_index.shape[1], int(data.y.sum())) == (10000, 2 * 39402, 2000)
        assert int(data.mask.sum()) == 5000
    if ENTRIES["tolokers"].available(real):
        data = load("tolokers", real, split=3).test[0]
        assert (data.num_nodes, data.edge_index.shape[1], int(data.mask.sum())) == (11758, 2 * 519000, 2940)
    if ENTRIES["zinc"].available(real):
        zinc = load("zinc", real)
        assert totals(zinc.val) == (1000, 23083, 49692)
        assert totals(zinc.test) == (1000, 23117, 49720)
    if ENTRIES["peptides-func"].available(real):
        func = load("peptides-func", real)
        sizes = [totals(part) for part in (func.train, func.val, func.test)]
        assert [size[0] for size in sizes] == [10873, 2331, 2331]
        assert [size[1] for size in sizes] == [1647684, 348441, 348734]
        assert sum(size[2] for size in sizes) == 4773974


def test_generated_minesweeper_is_like_the_real_one(real: Path) -> None:
    if not ENTRIES["minesweeper"].available(real):
        pytest.skip("minesweeper.npz is not among the files")
    theirs, ours = load("minesweeper", real).train[0], load("minesweeper-grid").train[0]
    assert torch.equal(theirs.edge_index, ours.edge_index)
    assert theirs.y.sum() == ours.y.sum()
    assert theirs.x[:, 0].sum() == ours.x[:, 0].sum()
    around = torch.zeros(10000).index_add(0, theirs.edge_index[1], theirs.y[theirs.edge_index[0], 0]).long()
    told = theirs.x[:, 0] == 0
    assert torch.equal(theirs.x[told].argmax(1), 1 + around[told].clamp(max=5))
