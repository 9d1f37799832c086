"""Multilayer perceptrons, as the learned parts use them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from torch import Tensor, nn

# Smooth ones first: a gradient of an energy is differentiated again, and ReLU's second derivative is zero.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "elu": nn.ELU,
    "relu": nn.ReLU,
    "identity": nn.Identity,
}


def activation_named(name: str) -> nn.Module:
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}; known are: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]()


class MLP(nn.Sequential):
    """Linear layers with an activation between them."""

    def __init__(self, inputs: int, hidden: int | Sequence[int], outputs: int, activation: str) -> None:
        widths = [inputs, *([hidden] if isinstance(hidden, int) else hidden), outputs]
        if any(width < 1 for width in widths):
            raise ValueError(f"the widths of a network must be positive, got {widths}")
        layers: list[nn.Module] = []
        for below, above in itertools.pairwise(widths):
            layers += [nn.Linear(below, above), activation_named(activation)]
        super().__init__(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x
