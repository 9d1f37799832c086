"""Normalisation of node or edge states, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch_geometric.nn.norm import GraphNorm

from lyapflow.projection import at_least_single

from ..kernels import row_norm


@final
class RowNorm(nn.Module):
    """Layer normalisation that can be differentiated any number of times, see :func:`row_norm`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return row_norm(at_least_single(x), self.weight, self.bias).to(x.dtype)


_KINDS: dict[str, Callable[[int], nn.Module]] = {
    "layer": RowNorm,
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

    >>> import torch
    >>> from lyapflow_graph import Norm
    >>> Norm("graph", 1)(torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0, 0, 1]), graphs=2).detach().flatten()
    tensor([-1.0000,  1.0000,  0.0000])
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
