"""A training step of TANGO (forward, loss, backward, optimiser) against its backbone, at the sizes of data sets.

Claims: TANGO with GatedGCN takes at most 1.42 times as long as 8 layers of GatedGCN written with PyTorch Geometric's
MessagePassing, with GPS at most 1.62 times as long as 8 GPS layers of PyTorch Geometric's parts; it is at least 4 times
as fast as the same TANGO in plain torch; our GatedGCN is at least twice as fast as that of MessagePassing; twice the
edges, nodes or steps cost at most 2.1 times as much. All with 8 steps and one layer in each network.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from report import Claim, largest, main, print_table, smallest
from timing import Timings, interleave
from torch import Tensor, nn

from lyapflow_graph import GatedGCN, GraphBatch, GraphNet, Tango
from lyapflow_graph.kernels import kernel_backend

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GPSConv, MessagePassing

Sizes = tuple[int, int, int, int]  # nodes, edges, width, graphs
CASES: dict[str, Sizes] = {
    "Minesweeper, 64": (10_000, 78_804, 64, 1),
    "Roman-empire, 64": (22_662, 65_854, 64, 1),
    "Questions, 64": (48_921, 307_080, 64, 1),
    "64 graphs of 30, 30": (1_920, 5_760, 30, 64),
}
GPS_CASES = ("Minesweeper, 64", "64 graphs of 30, 30")
ROUNDS = 7
TANGO, PLAIN, LAYERS, THEIRS = "TANGO", "TANGO in plain torch", "our 8 layers", "8 layers with PyG"
FLOOR = "matrix products of TANGO alone"


class PyGGatedGCN(MessagePassing):
    """GatedGCN as one writes it with MessagePassing."""

    def __init__(self, channels: int) -> None:
        super().__init__(aggr="add")
        self.A, self.B, self.D, self.E = (nn.Linear(channels, channels) for _ in range(4))
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        sums = self.propagate(edge_index, b=self.B(x), d=self.D(x), e=self.E(x))
        num, den = sums.chunk(2, dim=1)
        return x + F.silu(self.norm(self.A(x) + num / (den + 1e-6)))

    def message(self, b_j: Tensor, d_i: Tensor, e_j: Tensor) -> Tensor:
        gate = torch.sigmoid(d_i + e_j)
        return torch.cat([gate * b_j, gate], dim=1)


class Plain(nn.Module):
    """The layer as GPSConv calls it: without its own residual, which GPSConv adds."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = PyGGatedGCN(channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index) - x

    def reset_parameters(self) -> None:
        self.conv.reset_parameters()


class Stack(nn.Module):
    """Layers of PyTorch Geometric one after the other, called as `GraphNet` calls its body."""

    def __init__(self, layers: list[nn.Module], batched: bool) -> None:
        super().__init__()
        self.layers, self.batched = nn.ModuleList(layers), batched

    def forward(self, h: Tensor, graphs: GraphBatch) -> Tensor:
        batch = (graphs.graph_of_node,) if self.batched else ()
        for layer in self.layers:
            h = layer(h, graphs.edge_index, *batch)
        return h


def graphs_of(nodes: int, edges: int, count: int) -> tuple[Tensor, Tensor]:
    """Random edges within `count` graphs of equal size, and the graph of every node."""
    size = nodes // count
    start = size * torch.randint(0, count, (edges,))
    return start + torch.randint(0, size, (2, edges)), torch.arange(nodes) // size


def step(model: nn.Module, edge_index: Tensor, batch: Tensor, backend: Any = "auto") -> Callable[[], None]:
    """A training step on random features and labels."""
    x, target = torch.randn(len(batch), 16), torch.randint(0, 2, (len(batch),))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    given: dict[str, Any] = {"batch": batch} if int(batch[-1]) else {}

    def run() -> None:
        with kernel_backend(backend):
            optimizer.zero_grad()
            F.cross_entropy(model(x, edge_index, **given), target).backward()
            optimizer.step()

    return run


def theirs(backbone: str, width: int, count: int) -> nn.Module:
    if backbone == "gatedgcn":
        return Stack([PyGGatedGCN(width) for _ in range(8)], batched=False)
    heads, attention = (4, "performer") if count == 1 else (2, "multihead")
    layers = [
        GPSConv(width, Plain(width), heads=heads, act="silu", norm="layer_norm", attn_type=attention) for _ in range(8)
    ]
    return Stack(layers, batched=True)


def compare(backbone: str, sizes: Sizes, case: str, rounds: int, with_plain: bool) -> Timings:
    """Interleaved, in a process of its own: no case begins with the memory of another."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        timings = pool.submit(_compare, backbone, sizes, rounds, with_plain).result()
    title = f"{backbone}, {case}: training steps, milliseconds"
    rows = [timings.row(name, THEIRS) for name in timings.seconds]
    print_table(title, ("", "ms", "spread", "of PyG's layers"), rows)
    return timings


def _compare(backbone: str, sizes: Sizes, rounds: int, with_plain: bool) -> Timings:
    nodes, edges, width, count = sizes
    torch.manual_seed(0)
    edge_index, batch = graphs_of(nodes, edges, count)
    models: dict[str, Callable[[], None]] = {
        THEIRS: step(GraphNet(16, width, 2, theirs(backbone, width, count)), edge_index, batch),
        TANGO: step(Tango(16, width, 2, backbone=backbone), edge_index, batch),
    }
    if backbone == "gatedgcn":
        models[LAYERS] = step(GraphNet(16, width, 2, GatedGCN(width, 8)), edge_index, batch)
    if with_plain:
        models[PLAIN] = step(Tango(16, width, 2, backbone=backbone), edge_index, batch, "reference")
    if backbone == "gatedgcn":
        models[FLOOR] = matrix_products(nodes, width)
    return interleave(models, rounds, least=ROUNDS, warm_up=1)


def matrix_products(nodes: int, width: int) -> Callable[[], None]:
    """Those of a training step of TANGO with GatedGCN, and nothing else.

    The energy's step has its value, gradient and their derivative: 3 times 3 products with the map to 4 widths and with
    the head's; the tangent's has 3.
    """
    x, wide = torch.randn(nodes, width), torch.randn(nodes, 4 * width)
    weight, head = torch.randn(width, 4 * width), torch.randn(width, width)

    def run() -> None:
        for _ in range(8):
            for _ in range(4):
                x @ weight, wide @ weight.T, x.T @ wide
            for _ in range(3):
                x @ head, x @ head.T, x.T @ x

    return run


def growth(rounds: int) -> dict[str, float]:
    """How many times as long a step takes with twice as much of something."""
    base = {"nodes": 8_000, "edges": 60_000, "steps": 4}
    runs = {}
    for name in ("nothing", *base):
        size = {key: value * (2 if key == name else 1) for key, value in base.items()}
        torch.manual_seed(0)
        edge_index, batch = graphs_of(size["nodes"], size["edges"], 1)
        runs[name] = step(Tango(16, 64, 2, num_steps=size["steps"]), edge_index, batch)
    timings = interleave(runs, rounds, least=ROUNDS, warm_up=1)
    return {f"twice the {name}": timings.ratio(name, "nothing") for name in base}


def measure(rounds: int) -> list[Claim]:
    rounds = ROUNDS  # a step takes seconds: more of them would take hours
    found: dict[str, dict[str, float]] = {"gatedgcn": {}, "gps": {}, "plain": {}, "layers": {}, "floor": {}}
    for case in CASES:
        timings = compare("gatedgcn", CASES[case], case, rounds, with_plain=True)
        found["gatedgcn"][case] = timings.ratio(TANGO, THEIRS)
        found["layers"][case] = timings.ratio(THEIRS, LAYERS)
        found["floor"][case] = timings.ratio(TANGO, FLOOR)
        found["plain"][case] = timings.ratio(PLAIN, TANGO)
    for case in GPS_CASES:
        found["gps"][case] = compare("gps", CASES[case], case, rounds, with_plain=False).ratio(TANGO, THEIRS)
    against = "in units of PyG's 8 layers"
    return [
        *(Claim(f"TANGO with GatedGCN {against}", x, at_most=1.42, case=case) for case, x in found["gatedgcn"].items()),
        *(Claim(f"TANGO with GPS {against}", x, at_most=1.62, case=case) for case, x in found["gps"].items()),
        *(Claim("TANGO faster than in plain torch", x, at_least=4.0, case=case) for case, x in found["plain"].items()),
        smallest("our GatedGCN faster than PyG's", found["layers"], at_least=2.0),
        largest("TANGO with twice as much work", growth(rounds), at_most=2.1),
        *(Claim("TANGO in units of its matrix products", x, case=case) for case, x in found["floor"].items()),
    ]


if __name__ == "__main__":
    main(__doc__, measure)
