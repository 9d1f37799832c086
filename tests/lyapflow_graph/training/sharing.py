"""Gradients of runs, as one process or several have them.

torchrun --nproc-per-node 2 -m tests.lyapflow_graph.training.sharing FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lyapflow_graph.data.dataset import GraphDataset
from lyapflow_graph.training import train
from lyapflow_graph.training.module import GraphTask
from tests.lyapflow_graph.training.cases import graphs_with_classes, graphs_with_values, one_graph, small

# Five graphs in batches of two or three: shares are unequal, and in the last batch one process has nothing.
CASES: dict[str, tuple[Any, int]] = {
    "values": (graphs_with_values, 2),
    "classes": (graphs_with_classes, 3),
    "one": (one_graph, 1),
}


def gradients_of(dataset: GraphDataset, batch_size: int, folder: Path) -> list[Tensor]:
    """The gradient of every step of a short run, and its metrics."""
    found: list[Tensor] = []

    def keep(task: GraphTask, optimizer: Any) -> None:
        found.append(
            torch.cat([weight.grad.flatten() for weight in task.model.parameters() if weight.grad is not None])
        )

    config = small(dataset, {"dropout": 0.0}, epochs=2, batch_size=batch_size, precision="64")
    GraphTask.on_before_optimizer_step = keep  # type: ignore[method-assign, assignment]
    record = train(config, folder, dataset=dataset, figures=False)
    assert record.test is not None
    return [*found, torch.tensor([record.val, record.test, record.test_loss], dtype=torch.float64)]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for name, (make, batch_size) in CASES.items():
        found = gradients_of(make(), batch_size, folder / name)
        torch.save(found, folder / f"{name}-{os.environ.get('RANK', 0)}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
