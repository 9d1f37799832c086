"""The price of the guarantee: guarded steps and the descent objective against plain Euler steps of the same model.

Claim: where the guard has nothing to do, a training step with guard and objective takes at most 1.15 times as long as
one of plain Euler, and inference at most 1.10 times. The energy after the last step is all that is computed more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from report import Claim, largest, main, print_table
from timing import interleave
from torch import Tensor

from lyapflow import descent_loss
from lyapflow_graph import GraphBatch, TangoConv

EULER, GUARDED = "Euler", "guarded"


def graphs_of(count: int, nodes: int, degree: int) -> GraphBatch:
    random = torch.Generator().manual_seed(0)
    ends = torch.randint(0, nodes, (2, count * nodes * degree // 2), generator=random)
    ends = ends + nodes * torch.arange(count).repeat_interleave(nodes * degree // 2)
    batch = torch.arange(count).repeat_interleave(nodes)
    return GraphBatch(torch.cat([ends, ends.flip(0)], 1), count * nodes, None, batch)


CASES: dict[str, tuple[GraphBatch, int, int, int]] = {
    "32 graphs of 30 nodes, width 30, 5 steps, 2 layers": (graphs_of(32, 30, 4), 30, 5, 2),
    "128 graphs of 30 nodes, width 64, 8 steps": (graphs_of(128, 30, 4), 64, 8, 1),
    "10,000 nodes, width 64, 8 steps": (graphs_of(1, 10_000, 8), 64, 8, 1),
}


def candidates(graphs: GraphBatch, width: int, steps: int, layers: int, train: bool) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    conv = TangoConv(width, num_steps=steps, step_size=0.01, num_layers=layers, guard=False)
    x = torch.randn(graphs.num_nodes, width)
    with torch.no_grad():
        fraction = conv.take_steps(x, graphs, guard=True).fraction
    assert fraction is not None
    assert bool((fraction == 1).all())  # so the guard is idle

    def learn(loss: Tensor) -> None:
        conv.zero_grad()
        loss.backward()

    def euler() -> None:
        if train:
            learn(conv(x, graphs).square().mean())
        else:
            with torch.no_grad():
                conv(x, graphs)

    def guarded() -> None:
        if train:
            solution = conv.take_steps(x, graphs, guard=True)
            learn(solution.y1.square().mean() + descent_loss(solution.energy))
        else:
            with torch.no_grad():
                conv.take_steps(x, graphs, guard=True)

    return {EULER: euler, GUARDED: guarded}


def measure(rounds: int) -> list[Claim]:
    claims = []
    for train, text, limit in (
        (True, "training step, guard and objective in units of plain Euler's", 1.15),
        (False, "inference, guarded in units of plain Euler's", 1.10),
    ):
        ratios = {}
        for name, (graphs, width, steps, layers) in CASES.items():
            timings = interleave(candidates(graphs, width, steps, layers, train), rounds)
            rows = [timings.row(candidate, EULER) for candidate in (EULER, GUARDED)]
            what = "A training step" if train else "Inference"
            print_table(f"{what}, {name}, milliseconds", ("", "ms", "spread", "of Euler's"), rows)
            ratios[name] = timings.ratio(GUARDED, EULER)
        claims.append(largest(text, ratios, at_most=limit))
    return claims


if __name__ == "__main__":
    main(__doc__, measure)
