"""Normalisation of node or edge states, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor, nn
from torch_geometric.nn.norm import GraphNorm

_KINDS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "graph": GraphNorm,
    "batch": nn.BatchNorm1d,
    "none": lambda channels: nn.Identity(),
}
NORMS = tuple(_KINDS)


@final
class Norm(nn.Module):
    """Normalisation of rows.

    Args:
        name: "layer", each row for itself; "graph", each channel over the rows of a graph; "batch", each channel over
            all rows, which in training mode couples the graphs of a batch; "none".
        channels: Entries of a row.
    """

    def __init__(self, name: str, channels: int) -> None:
        super().__init__()
        if name not in _KINDS:
            raise ValueError(f"unknown norm {name!r}; known are: {', '.join(_KINDS)}")
        self.module = _KINDS[name](channels)

    def forward(self, x: Tensor, graph_of_row: Tensor, graphs: int) -> Tensor:
        if isinstance(self.module, GraphNorm):
            return self.module(x, graph_of_row, graphs)
        return self.module(x)

    def reset_parameters(self) -> None:
        if not isinstance(self.module, nn.Identity):
            self.module.reset_parameters()  # type: ignore[operator]
