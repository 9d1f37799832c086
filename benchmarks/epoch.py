"""An epoch of `lyapflow train` against a bare loop that trains and validates the same model on the same batches.

Claim: at most 1.15 times as long, with the checkpoint on the disk after every epoch, the curves of the energy, the logs
and everything else that a run keeps. The bare loop has the loss, the optimiser, the metric, and nothing to resume from.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from report import Claim, largest, main, print_table
from timing import Timings
from torch_geometric.data import Data
from torchmetrics.classification import BinaryAUROC
from torchmetrics.regression import MeanAbsoluteError

from lyapflow_graph.data import BatchLoader, GraphDataset
from lyapflow_graph.training import Config, DataConfig, ModelConfig, TrainingConfig, train
from lyapflow_graph.training.model import make_model

EPOCHS = 6  # the first is not measured
ROUNDS = 7
BARE, OURS = "bare loop", "lyapflow train"


def grid_like(nodes: int, edges: int, random: torch.Generator) -> Data:
    ends = torch.randint(0, nodes, (2, edges // 2), generator=random)
    return Data(x=torch.randn(nodes, 8, generator=random), edge_index=torch.cat([ends, ends.flip(0)], 1))


def molecules() -> GraphDataset:
    """600 graphs of the size of ZINC's, with a value each."""
    random = torch.Generator().manual_seed(0)
    graphs = [grid_like(23, 50, random) for _ in range(600)]
    for graph in graphs:
        graph.y = torch.randn(1, 1, generator=random)
    return GraphDataset("molecules", "graph", graphs[:500], graphs[500:550], graphs[550:], 8, 1, None, "l1", "mae")


def one_graph() -> GraphDataset:
    """One graph of half the size of Minesweeper, whose nodes are classified."""
    random = torch.Generator().manual_seed(0)
    graph = grid_like(5000, 39_000, random)
    graph.y = torch.randint(0, 2, (5000, 1), generator=random).float()
    parts = [[graph.clone()] for _ in range(3)]
    for k, (part,) in enumerate(parts):
        part.mask = torch.arange(5000) % 4 == k if k else torch.arange(5000) % 2 == 0
    return GraphDataset("one graph", "node", *parts, 8, 1, None, "binary_cross_entropy", "roc_auc")


CASES = {"600 graphs of 23 nodes": molecules, "one graph of 5,000 nodes": one_graph}


def config_of(data: GraphDataset) -> Config:
    training = TrainingConfig(epochs=EPOCHS, batch_size=50, clip=1.0)
    return Config(
        DataConfig(data.name), ModelConfig("tango", 64, {"num_steps": 4, "dropout": 0.1, "guard": False}), training
    )


def bare(data: GraphDataset) -> float:
    """Seconds of an epoch."""
    config = config_of(data)
    model = make_model("tango", 64, config.model.options, data)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.0)
    loader, val = BatchLoader(data.train, 50, shuffle=True), BatchLoader(data.val, 50)
    metric = BinaryAUROC() if data.task == "node" else MeanAbsoluteError()
    begin = 0.0
    for epoch in range(EPOCHS):
        begin = time.perf_counter() if epoch == 1 else begin
        loader.set_epoch(epoch)
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            found, target = model(batch), batch.y
            if data.task == "node":
                loss = F.binary_cross_entropy_with_logits(found[batch.mask], target[batch.mask])
            else:
                loss = F.l1_loss(found, target)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for batch in val:
                chosen = batch.mask if data.task == "node" else slice(None)
                target = batch.y[chosen].flatten()
                metric.update(model(batch)[chosen].flatten(), target.long() if data.task == "node" else target)
        metric.compute()
        metric.reset()
    return (time.perf_counter() - begin) / (EPOCHS - 1)


def ours(data: GraphDataset) -> float:
    """Seconds of an epoch, from the end of one to the end of the next."""
    ends: list[float] = []

    def note(epoch: int, row: Mapping[str, float]) -> None:
        ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        train(config_of(data), Path(folder, "run"), dataset=data, on_epoch=note, figures=False, progress=False)
    return (ends[-1] - ends[0]) / (EPOCHS - 1)


def measure(rounds: int) -> list[Claim]:
    ratios = {}
    for name, make in CASES.items():
        data = make()
        seconds: dict[str, list[float]] = {BARE: [], OURS: []}
        for k in range(ROUNDS + 1):
            for candidate, run in ((BARE, bare), (OURS, ours))[:: 1 if k % 2 else -1]:
                taken = run(data)
                if k:  # the first round warms up
                    seconds[candidate].append(taken)
        timings = Timings(seconds)
        rows = [timings.row(candidate, BARE) for candidate in (BARE, OURS)]
        print_table(f"An epoch, {name}, milliseconds", ("", "ms", "spread", "of the bare loop's"), rows)
        ratios[name] = timings.ratio(OURS, BARE)
    return [largest("epoch of lyapflow train in units of a bare loop's", ratios, at_most=1.15)]


if __name__ == "__main__":
    main(__doc__, measure)
