"""States inside a step. `theta` runs from 0 at the step's start to 1 at its end and broadcasts against the state."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def linear(theta: Tensor, y0: Tensor, y1: Tensor) -> Tensor:
    return y0 + theta * (y1 - y0)


def hermite(theta: Tensor, y0: Tensor, y1: Tensor, df0: Tensor, df1: Tensor) -> Tensor:
    """The cubic through both ends with their slopes; `df` is step size times derivative."""
    rise = y1 - y0
    return y0 + theta * (df0 + theta * ((3 * rise - 2 * df0 - df1) + theta * (df0 + df1 - 2 * rise)))


def quartic(theta: Tensor, y0: Tensor, y1: Tensor, middle: Tensor, df0: Tensor, df1: Tensor) -> Tensor:
    """The quartic through both ends with their slopes, and through the middle."""
    a = 2 * (df1 - df0) - 8 * (y1 + y0) + 16 * middle
    b = 5 * df0 - 3 * df1 + 18 * y0 + 14 * y1 - 32 * middle
    c = df1 - 4 * df0 - 11 * y0 - 5 * y1 + 16 * middle
    return y0 + theta * (df0 + theta * (c + theta * (b + theta * a)))


def polynomial_weights(theta: Tensor, coefficients: Sequence[Sequence[float]]) -> list[Tensor]:
    """For each stage the weight b_i(theta); `coefficients[i]` are those of theta, theta^2, ..."""
    weights = []
    for row in coefficients:
        weight = theta * row[-1]
        for coefficient in reversed(row[:-1]):
            weight = (weight + coefficient) * theta
        weights.append(weight)
    return weights
