"""Batches cut out of flat tensors, against collating a list of graphs.

Claim: an epoch of shuffled batches of `BatchLoader` is at least 3 times as fast as one of PyTorch Geometric's
`DataLoader` for graphs of tens of nodes, and no slower for those of CLUSTER, with thousands of edges, where both do
little else than copy memory.

Both load in the main process and give equal batches, with features, edges, labels and a positional encoding.
"""

from __future__ import annotations

import warnings

import torch
from report import Claim, main, print_table, smallest
from timing import interleave
from torch_geometric.data import Data

from lyapflow_graph.data import BatchLoader

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.loader import DataLoader

# Graphs, the fewest and the most nodes of one, edges of a node, graphs of a batch.
SMALL = {"ZINC, 128": (2000, 9, 38, 2, 128), "graph properties, 512": (2048, 25, 35, 7, 512)}
LARGE = {"CLUSTER, 64": (256, 60, 180, 36, 64)}
OURS, THEIRS = "BatchLoader", "DataLoader"


def graphs_like(count: int, fewest: int, most: int, degree: int) -> list[Data]:
    generator = torch.Generator().manual_seed(0)

    def one(n: int) -> Data:
        return Data(
            x=torch.rand(n, 4, generator=generator),
            edge_index=torch.randint(0, n, (2, degree * n), generator=generator),
            edge_attr=torch.rand(degree * n, 1, generator=generator),
            y=torch.rand(1, 1, generator=generator),
            random_walk_pe=torch.rand(n, 20, generator=generator),
        )

    return [one(n) for n in torch.randint(fewest, most, (count,), generator=generator).tolist()]


def epoch(loader: BatchLoader | DataLoader) -> int:
    return sum(batch.num_nodes for batch in loader)


def measure(rounds: int) -> list[Claim]:
    faster = {}
    for name, (count, fewest, most, degree, size) in (SMALL | LARGE).items():
        graphs = graphs_like(count, fewest, most, degree)
        ours, theirs = BatchLoader(graphs, size, shuffle=True), DataLoader(graphs, size, shuffle=True)
        timings = interleave({OURS: lambda a=ours: epoch(a), THEIRS: lambda b=theirs: epoch(b)}, rounds)
        rows = [timings.row(candidate, THEIRS) for candidate in (OURS, THEIRS)]
        print_table(f"{name}: an epoch of {count} graphs", ("", "ms", "spread", "of DataLoader"), rows)
        faster[name] = timings.ratio(THEIRS, OURS)
    return [
        smallest(f"BatchLoader faster than DataLoader, {kind} graphs", {name: faster[name] for name in cases}, bound)
        for kind, cases, bound in (("small", SMALL, 3.0), ("large", LARGE, 1.0))
    ]


if __name__ == "__main__":
    main(__doc__, measure)
