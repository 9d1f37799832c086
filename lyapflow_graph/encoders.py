"""From what data sets hold, numbers, categories and positional encodings, to features of a width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from .batch import GraphBatch, check_features

ATOM_FEATURES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
"""Categories of the nine features of an atom, as the Open Graph Benchmark and the Peptides data have them."""

BOND_FEATURES = (5, 6, 2)
"""Categories of the three features of a bond, likewise."""


@final
class CategoricalEncoder(nn.Module):
    """The sum of an embedding for each column of categories.

    Args:
        categories: How many each column has, as `ATOM_FEATURES`, or `[28]` for the atoms of ZINC.
        channels: The width of the embeddings.

    >>> import torch
    >>> from lyapflow_graph import ATOM_FEATURES, CategoricalEncoder
    >>> encoder = CategoricalEncoder(ATOM_FEATURES, channels=16)
    >>> encoder(torch.zeros(5, 9, dtype=torch.long)).shape
    torch.Size([5, 16])
    """

    def __init__(self, categories: Sequence[int], channels: int) -> None:
        super().__init__()
        if len(categories) == 0 or any(count < 1 for count in categories):
            raise ValueError(f"categories must be positive numbers, one for each column, got {list(categories)}")
        self.categories = tuple(categories)
        self.embeddings = nn.ModuleList(nn.Embedding(count, channels) for count in categories)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for embedding in self.embeddings:
            nn.init.xavier_uniform_(embedding.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None] if x.ndim == 1 else x
        if x.is_floating_point() or x.ndim != 2 or x.shape[1] != len(self.categories):
            kind = f"{x.dtype} of shape {list(x.shape)}"
            raise ValueError(f"categories must be integers of shape [rows, {len(self.categories)}], got {kind}")
        self._check(x)
        return sum((embed(x[:, i]) for i, embed in enumerate(self.embeddings)), torch.zeros((), device=x.device))

    @torch.compiler.disable  # it looks at values
    def _check(self, x: Tensor) -> None:
        if x.numel() and bool(((x < 0) | (x >= x.new_tensor(self.categories))).any()):
            low, high = x.amin(0).tolist(), x.amax(0).tolist()
            raise ValueError(f"categories must lie below {list(self.categories)}, got {low} to {high}")

    def extra_repr(self) -> str:
        return f"categories={list(self.categories)}"


@final
class PositionalEncoder(nn.Module):
    """A linear map of a positional or structural encoding, as the transforms of PyTorch Geometric compute them.

    The sign of an eigenvector means nothing. In training mode those of Laplacian eigenvectors
    (`AddLaplacianEigenvectorPE`) are drawn again at every call, for every graph and column, so that it is not learned.

    Args:
        name: The attribute that the transform writes: "laplacian_eigenvector_pe", "random_walk_pe" or another.
        width: Its width.
        channels: Of the result.

    >>> import torch
    >>> from lyapflow_graph import GraphBatch, PositionalEncoder
    >>> graphs = GraphBatch(torch.tensor([[0], [1]]), num_nodes=2)
    >>> PositionalEncoder("random_walk_pe", 4, channels=8)(torch.rand(2, 4), graphs).shape
    torch.Size([2, 8])
    """

    def __init__(self, name: str, width: int, channels: int) -> None:
        super().__init__()
        self.name, self.width = name, width
        self.linear = nn.Linear(width, channels)

    def reset_parameters(self) -> None:
        self.linear.reset_parameters()

    def forward(self, encoding: Tensor, graphs: GraphBatch) -> Tensor:
        check_features(self.name, encoding, self.width, graphs)
        if self.training and self.name == "laplacian_eigenvector_pe":
            signs = torch.randint(0, 2, (graphs.count, self.width), device=encoding.device) * 2 - 1
            encoding = encoding * signs[graphs.graph_of_node]
        return self.linear(encoding.to(self.linear.weight.dtype))

    def extra_repr(self) -> str:
        return f"{self.name!r}, {self.width}"
