"""A state that is a tuple of tensors, as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .systems import Single, Systems


class Packing:
    """A tuple of tensors as one tensor: side by side within each row where there are many systems, flat otherwise."""

    def __init__(self, example: Sequence[Tensor], systems: Systems) -> None:
        if len(example) == 0:
            raise ValueError("y0 is an empty tuple: there is nothing to integrate")
        self.shapes = [part.shape for part in example]
        self.flat = isinstance(systems, Single)
        if not self.flat:
            rows = {shape[0] if len(shape) else None for shape in self.shapes}
            if len(rows) != 1 or None in rows:
                shapes = [list(shape) for shape in self.shapes]
                raise ValueError(f"y0: with many systems all parts need the same first dimension, got shapes {shapes}")
        self.lead = () if self.flat else tuple(self.shapes[0][:1])
        self.widths = [shape[len(self.lead) :].numel() for shape in self.shapes]

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.reshape((*self.lead, -1)) for part in parts], dim=-1)

    def unpack(self, packed: Tensor) -> tuple[Tensor, ...]:
        """The parts again; leading dimensions of `packed` beyond a state's own (times) are kept."""
        extra = packed.shape[: packed.ndim - len(self.lead) - 1]
        pieces = packed.split(self.widths, dim=-1)
        return tuple(piece.reshape((*extra, *shape)) for piece, shape in zip(pieces, self.shapes, strict=True))
