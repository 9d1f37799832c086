"""Systems: sums per system and the way back, for rows, segments and single systems."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from solvers import Rows, Segments, Single, Systems


@st.composite
def divided_states(draw: Any) -> tuple[Systems, Tensor, list[Tensor]]:
    """A division, a state, and for each system the mask of its entries."""
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.complex128]))
    trailing = draw(st.lists(st.sampled_from([1, 2, 3, 0]), max_size=2))
    rows = draw(st.sampled_from([5, 3, 6, 1, 0]))
    y = torch.randn(rows, *trailing, dtype=dtype, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    kind = draw(st.sampled_from(["rows", "segments", "single"]))
    if kind == "single":
        return Single(), y, [torch.ones_like(y, dtype=torch.bool)]
    if kind == "rows":
        index, count, systems = torch.arange(rows), rows, Rows()
    else:
        count = draw(st.integers(1, 4))
        index = torch.tensor(draw(st.lists(st.integers(0, count - 1), min_size=rows, max_size=rows)), dtype=torch.int64)
        systems = Segments(index, count)
    shape = (rows, *(1,) * len(trailing))
    return systems, y, [(index == s).reshape(shape).expand_as(y) for s in range(count)]


@given(case=divided_states())
def test_sums_and_spreads_agree_with_masks(case: tuple[Systems, Tensor, list[Tensor]]) -> None:
    systems, y, masks = case
    bound = systems.bind(y)
    assert bound.count == len(masks)
    assert bound.sizes.tolist() == [int(mask.sum()) for mask in masks]
    total, inner = bound.total(y), bound.inner(y, 2 * y)
    assert not inner.is_complex()
    largest = bound.largest(y)
    assert largest.shape == (bound.count,)
    values = torch.arange(1.0, bound.count + 1)
    spread = bound.spread(values).expand_as(y)
    for s, mask in enumerate(masks):
        assert torch.allclose(total[s], y[mask].sum(), atol=1e-5)
        assert torch.allclose(inner[s], 2 * (y[mask].abs() ** 2).sum(), atol=1e-5)
        assert (spread[mask] == values[s]).all()
        assert largest[s] == (y[mask].abs().max() if mask.any() else 0)


def test_segments_sum_their_own_rows() -> None:
    y = torch.tensor([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0], [1000.0, 2000.0]])
    systems = Segments(torch.tensor([1, 0, 1, 3]), 4).bind(y)
    assert systems.total(y).tolist() == [30.0, 303.0, 0.0, 3000.0]
    assert systems.sizes.tolist() == [2.0, 4.0, 0.0, 2.0]
    assert systems.spread(torch.arange(4.0)).tolist() == [[1.0], [0.0], [1.0], [3.0]]


@given(case=divided_states())
def test_binding_is_idempotent(case: tuple[Systems, Tensor, list[Tensor]]) -> None:
    systems, y, _ = case
    assert systems.bind(y).bind(y).count == systems.bind(y).count


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Segments(torch.tensor([0.0, 1.0])), "integer"),
        (lambda: Segments(torch.zeros(2, 2, dtype=torch.int64)), "one-dimensional"),
        (lambda: Segments(torch.tensor([0, 3]), 2), r"must lie in 0\.\.1"),
        (lambda: Segments(torch.tensor([-1, 0])), "must lie in"),
        (lambda: Segments(torch.tensor([0, 1])).bind(torch.zeros(3, 2)), "2 entries, but the state is 3 rows"),
        (lambda: Segments(torch.tensor([0, 1])).bind(torch.zeros(())), "a scalar"),
        (lambda: Rows().bind(torch.zeros(())), "at least one dimension"),
        (lambda: Rows().bind(torch.zeros(3, 1)).bind(torch.zeros(2, 1)), "bound to 3 rows"),
        (lambda: Rows().count, "bind"),
        (lambda: Rows().sizes, "bind"),
        (lambda: Rows().spread(torch.ones(1)), "bind"),
        (lambda: Single().sizes, "bind"),
        (lambda: Segments(torch.tensor([0])).sizes, "bind"),
        (lambda: Segments(torch.tensor([0])).spread(torch.ones(1)), "bind"),
    ],
)
def test_wrong_use_is_explained(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_gradients_pass_through() -> None:
    systems = Segments(torch.tensor([1, 0, 1]), 2).bind(torch.zeros(3, 2))
    y = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda y: systems.inner(y, y**2), (y,))
    assert torch.autograd.gradcheck(lambda y: systems.spread(systems.total(y)) * y, (y,))
