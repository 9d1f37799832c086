"""What every dataset has to be good for."""

from __future__ import annotations

from typing import Any

import torch

from lyapflow_graph import GatedGCN, GraphNet
from lyapflow_graph.data import BatchLoader, GraphDataset


def trainable(dataset: GraphDataset) -> None:
    """A model made from what the dataset says takes its batches, and its output fits the labels."""
    edge_dim = None if dataset.edge_dim is None else dataset.edge_dim if isinstance(dataset.edge_dim, int) else 8
    body = GatedGCN(8, num_layers=1, edge_dim=edge_dim)
    options: dict[str, Any] = {"task": dataset.task, "edge_dim": dataset.edge_dim, "pe": dataset.pe}
    model = GraphNet(dataset.in_channels, 8, dataset.out_channels, body, **options)
    for part in (dataset.train, dataset.val, dataset.test):
        batch = next(iter(BatchLoader(part, 2)))
        out = model(batch)
        if "cross_entropy" in dataset.loss and dataset.loss != "binary_cross_entropy":
            assert batch.y.dtype == torch.long
            assert batch.y.shape == out.shape[:1]
            assert int(batch.y.max()) < dataset.out_channels
        else:
            assert batch.y.is_floating_point()
            assert batch.y.shape == out.shape
        if "mask" in batch:
            assert batch.mask.dtype == torch.bool
            assert batch.mask.any()
