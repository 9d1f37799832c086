"""Hypothesis strategies: states, systems, energies, tangents, fields, graphs.

Numbers come from seeds, so that a failing example shrinks to few rows, a small seed and a scale of 1, and prints as
ordinary tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import torch
from torch import Tensor

from solvers import Rows, Segments, Single, Systems

from ..base import Energy, PointwiseEnergy, Tangent
from ..coefficients import MLPCoefficient
from ..energies import ENERGIES, Quadratic
from ..field import LyapunovField
from ..tangents import AntisymmetricTangent, MLPTangent

DTYPES = (torch.float64, torch.float32)

_SEEDS = st.integers(0, 2**16)


@st.composite
def states(
    draw: st.DrawFn,
    shape: Sequence[int],
    dtype: torch.dtype = torch.float64,
    scales: tuple[float, float] = (1e-6, 1e6),
) -> Tensor:
    """States of a shape, at scales drawn between two; some entries, some rows, or all of them may be zero.

    >>> from hypothesis import given
    >>> from lyapflow.testing import states
    >>> @given(states((3, 2), scales=(1e-3, 1e3)))
    ... def test(h):
    ...     assert h.shape == (3, 2)
    >>> test()
    """
    scale = draw(_powers_of_ten(scales))
    kind = draw(st.sampled_from(["normal", "sparse", "equal rows", "zero"]))
    random = torch.Generator().manual_seed(draw(_SEEDS))
    h = scale * torch.randn(tuple(shape), generator=random, dtype=torch.float64)
    if kind == "sparse":
        h = torch.where(torch.rand(h.shape, generator=random) < 0.5, 0.0, h)
    elif kind == "equal rows" and h.ndim and len(h):
        h = h[:1].expand_as(h).clone()
    elif kind == "zero":
        h = torch.zeros_like(h)
    return h.to(dtype)


def states_like(example: Tensor, scales: tuple[float, float] = (1e-3, 1e3)) -> st.SearchStrategy[Tensor]:
    """States of an example's shape, type and device: the example itself, and others at scales around its own.

    >>> import torch
    >>> from hypothesis import given
    >>> from lyapflow.testing import states_like
    >>> @given(states_like(torch.ones(2, 3)))
    ... def test(h):
    ...     assert h.shape == (2, 3)
    >>> test()
    """
    size = float(example.detach().double().square().mean().sqrt()) if example.numel() else 1.0
    size = size if size > 0 else 1.0
    others = states(tuple(example.shape), example.dtype, (scales[0] * size, scales[1] * size))
    return st.one_of(st.just(example.detach()), others.map(lambda h: h.to(example.device)))


@st.composite
def systems(draw: st.DrawFn, rows: int) -> Systems:
    """Divisions of a state of so many rows: each row, all of them, or segments of any sizes, sorted or not.

    A segment may be empty.

    >>> import torch
    >>> from hypothesis import given
    >>> from lyapflow.testing import systems
    >>> @given(systems(4))
    ... def test(division):
    ...     assert division.bind(torch.zeros(4, 2)).sizes.sum() == 8
    >>> test()
    """
    kind = draw(st.sampled_from(["rows", "segments", "single"]))
    if kind == "rows":
        return Rows()
    if kind == "single":
        return Single()
    count = draw(st.integers(1, max(1, rows) + 1))
    index = draw(st.lists(st.integers(0, count - 1), min_size=rows, max_size=rows))
    if draw(st.booleans()):
        index = sorted(index)
    return Segments(torch.tensor(index, dtype=torch.int64), count)


@st.composite
def divided_states(
    draw: st.DrawFn,
    width: int | None = None,
    scales: tuple[float, float] = (1e-6, 1e6),
    dtypes: Sequence[torch.dtype] = DTYPES,
    max_rows: int = 6,
) -> tuple[Systems, Tensor]:
    """A division and a state that fits it, `[rows, width]`.

    >>> from hypothesis import given
    >>> from lyapflow.testing import divided_states
    >>> @given(divided_states())
    ... def test(case):
    ...     division, h = case
    ...     assert division.bind(h).inner(h, h).shape == (division.bind(h).count,)
    >>> test()
    """
    rows = draw(st.integers(1, max_rows))
    width = draw(st.integers(1, 4)) if width is None else width
    return draw(systems(rows)), draw(states((rows, width), draw(st.sampled_from(list(dtypes))), scales))


@st.composite
def energies(
    draw: st.DrawFn,
    width: int,
    dtype: torch.dtype = torch.float64,
    division: Systems | None = None,
    scales: tuple[float, float] = (1e-6, 1e6),
) -> Energy:
    """Energies for points of `width` entries: all of `lyapflow.energies.ENERGIES`, saddles, and a constant.

    They come at scales drawn between two.

    >>> import torch
    >>> from hypothesis import given
    >>> from lyapflow.testing import energies
    >>> @given(energies(2))
    ... def test(energy):
    ...     assert energy(torch.zeros(5, 2, dtype=torch.float64)).shape == (5,)
    >>> test()
    """
    entries = [entry for entry in ENERGIES.values() if entry.takes(width)]
    random = torch.Generator().manual_seed(draw(_SEEDS))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

    def saddle() -> PointwiseEnergy:
        matrix = normal(width, width)
        return Quadratic((matrix + matrix.T) / 2, normal(width))

    kind = draw(st.sampled_from([*(entry.name for entry in entries), "saddle", "constant"]))
    special = {"saddle": saddle, "constant": _Constant}
    inner = special[kind]() if kind in special else ENERGIES[kind].draw(width, normal)
    for parameter in inner.parameters():
        parameter.data = 0.7 * normal(*parameter.shape)
    energy = Scaled(inner.to(dtype), draw(_powers_of_ten(scales)))
    return energy if division is None else energy.bind(division)


class Scaled(PointwiseEnergy):
    """An energy in other units."""

    def __init__(self, inner: PointwiseEnergy, scale: float) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale

    def density(self, h: Tensor) -> Tensor:
        return self.scale * self.inner.density(h)

    def extra_repr(self) -> str:
        return f"scale={self.scale:.3g}"


class _Constant(PointwiseEnergy):
    """Flat everywhere."""

    def density(self, h: Tensor) -> Tensor:
        return torch.ones_like(h[..., 0])


class Constantly(Tangent):
    """The same direction at every row."""

    def __init__(self, direction: Tensor) -> None:
        super().__init__()
        self.register_buffer("direction", direction)

    def forward(self, h: Tensor) -> Tensor:
        direction: Any = self.direction
        return direction.expand_as(h)


@st.composite
def tangents(draw: st.DrawFn, width: int, dtype: torch.dtype = torch.float64) -> Tangent:
    """Tangents for points of `width` entries: networks, constant directions, rotations of the gradient.

    >>> import torch
    >>> from hypothesis import given
    >>> from lyapflow import LyapunovField, Quadratic
    >>> from lyapflow.testing import tangents
    >>> @given(tangents(2, torch.float32))
    ... def test(tangent):
    ...     assert LyapunovField(Quadratic([1.0, 2.0]), tangent)(0.0, torch.ones(3, 2)).shape == (3, 2)
    >>> test()
    """
    kind = draw(st.sampled_from(["mlp", "constant", "timed", *(["antisymmetric"] if width > 1 else [])]))
    random = torch.Generator().manual_seed(draw(_SEEDS))
    size = draw(_powers_of_ten((1e-3, 1e3)))
    tangent: Tangent
    if kind == "constant":
        tangent = Constantly(size * torch.randn(width, generator=random, dtype=torch.float64))
    elif kind == "antisymmetric":
        tangent = AntisymmetricTangent(width)
    else:
        tangent = MLPTangent(width, (8,), timed=kind == "timed")
    for parameter in tangent.parameters():
        parameter.data = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
    return tangent.to(dtype)


@st.composite
def fields(
    draw: st.DrawFn,
    width: int,
    dtype: torch.dtype = torch.float64,
    division: Systems | None = None,
    scales: tuple[float, float] = (1e-6, 1e6),
) -> LyapunovField:
    """Lyapunov fields with energies, tangents and coefficients of every kind.

    >>> import torch
    >>> from hypothesis import given
    >>> from lyapflow.testing import assert_dissipates, fields
    >>> @given(fields(2, torch.float32))
    ... def test(field):
    ...     assert_dissipates(field, torch.ones(3, 2))
    >>> test()
    """
    random = torch.Generator().manual_seed(draw(_SEEDS))

    def coefficient(within: Any) -> MLPCoefficient:
        module = MLPCoefficient(width, 4, within=within)
        for parameter in module.parameters():
            parameter.data = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
        return module.to(dtype)

    numbers = draw(_powers_of_ten((1e-3, 1e3)))
    alpha = draw(st.sampled_from([numbers, 0.0, 1.0, coefficient("sigmoid"), coefficient("softplus")]))
    beta = draw(st.sampled_from([numbers, -numbers, 1.0, coefficient("real")]))
    energy = draw(energies(width, dtype, division, scales))
    tangent = draw(st.one_of(tangents(width, dtype), st.none()))
    projection = draw(st.sampled_from(["system", "row"]))
    return LyapunovField(energy, tangent, alpha, beta, division, projection=projection)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Graphs:
    """A batch of graphs: edges `[2, E]` from source to target, and the graph that every node belongs to.

    >>> import torch
    >>> from lyapflow.testing import Graphs
    >>> pair_and_point = Graphs(torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0, 1]), 2)
    >>> pair_and_point.nodes, pair_and_point.systems.count
    (3, 2)
    """

    edge_index: Tensor
    batch: Tensor
    count: int

    @property
    def nodes(self) -> int:
        return len(self.batch)

    @property
    def systems(self) -> Segments:
        return Segments(self.batch, self.count)


@st.composite
def graphs(draw: st.DrawFn, max_graphs: int = 4, max_nodes: int = 6, min_nodes: int = 0) -> Graphs:
    """Batches of graphs of different sizes, without edges between graphs.

    There are graphs without nodes, of one node, without edges, with isolated nodes, loops and repeated edges, and edges
    may run both ways or one way only. At least one node is there.

    >>> from hypothesis import given
    >>> from lyapflow.testing import graphs
    >>> @given(graphs())
    ... def test(batch):
    ...     source, target = batch.edge_index
    ...     assert (batch.batch[source] == batch.batch[target]).all()
    >>> test()
    """
    sizes = draw(st.lists(st.integers(min_nodes, max_nodes), min_size=1, max_size=max_graphs).filter(sum))
    edges: list[tuple[int, int]] = []
    start = 0
    for size in sizes:
        if size:
            node = st.integers(start, start + size - 1)
            found = draw(st.lists(st.tuples(node, node), max_size=3 * size))
            edges += found + ([(b, a) for a, b in found] if draw(st.booleans()) else [])
        start += size
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    return Graphs(edge_index, batch, len(sizes))


def _powers_of_ten(limits: tuple[float, float]) -> st.SearchStrategy[float]:
    low, high = (float(torch.tensor(limit, dtype=torch.float64).log10()) for limit in limits)
    # Ones first: what fails at many scales is shown at the simplest.
    inside = [1.0] if low <= 0 <= high else []
    return st.one_of(*(st.just(one) for one in inside), st.floats(low, high).map(lambda exponent: 10.0**exponent))
