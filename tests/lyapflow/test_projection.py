"""The projection: orthogonal to rounding at every scale, exact where the gradient is zero, one system at a time."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from lyapflow import Rows, Segments, Single, Systems, project
from lyapflow.inspection import length
from lyapflow.projection import share_along
from lyapflow.testing import assert_tangent, divided_states, states

SCALES = (1e-6, 1e6)


@st.composite
def pairs(draw: st.DrawFn, scales: tuple[float, float] = SCALES) -> tuple[Systems, Tensor, Tensor]:
    """A division, a direction and a gradient, at scales of their own."""
    division, direction = draw(divided_states(scales=scales))
    return division, direction, draw(states(tuple(direction.shape), direction.dtype, scales))


@given(pairs())
def test_orthogonal_to_rounding(case: tuple[Systems, Tensor, Tensor]) -> None:
    division, direction, gradient = case
    tangent = project(direction, gradient, division)
    bound = division.bind(direction)
    overlap = bound.inner(tangent.double(), gradient.double()).abs()
    # In units of |M| |g|, the only ones that make sense where hardly anything of M is left.
    lengths = length(bound, direction.double()) * length(bound, gradient.double())
    assert (overlap <= 2 * torch.finfo(direction.dtype).eps * lengths).all()


@given(pairs())
def test_what_is_left_is_orthogonal_too(case: tuple[Systems, Tensor, Tensor]) -> None:
    """In units of |T| |g|, unless M is parallel to g and T is nothing but rounding."""
    division, direction, gradient = case
    tangent = project(direction, gradient, division)
    bound = division.bind(direction)
    left = length(bound, tangent) > 1e-3 * length(bound, direction)
    keep = bound.spread(left)
    assert_tangent(torch.where(keep, tangent, 0.0), gradient, division)


@given(pairs())
def test_exact_where_the_gradient_is_zero(case: tuple[Systems, Tensor, Tensor]) -> None:
    division, direction, gradient = case
    bound = division.bind(direction)
    zero = bound.spread(bound.largest(gradient) == 0).expand_as(direction)
    tangent = project(direction, gradient, division)
    assert torch.equal(tangent[zero], direction[zero])
    assert torch.equal(project(direction, torch.zeros_like(gradient), division), direction)


@given(pairs(), st.integers(-30, 30))
def test_only_the_direction_of_the_gradient_counts(case: tuple[Systems, Tensor, Tensor], exponent: int) -> None:
    """To the bit for powers of two; no absolute threshold anywhere between 1e-9 and 1e9 times these scales."""
    division, direction, gradient = case
    scaled = project(direction, gradient * 2.0**exponent, division)
    assert torch.equal(scaled, project(direction, gradient, division))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["small", "large"])
def test_squares_may_leave_the_range_of_the_type(dtype: torch.dtype, kind: str) -> None:
    info = torch.finfo(dtype)
    size = 4 * info.tiny if kind == "small" else info.max / 4
    gradient = torch.tensor([[size, size]], dtype=dtype)
    tangent = project(torch.tensor([[1.0, 0.0]], dtype=dtype), gradient)
    assert torch.allclose(tangent, torch.tensor([[0.5, -0.5]], dtype=dtype))


@given(pairs())
def test_one_system_at_a_time(case: tuple[Systems, Tensor, Tensor]) -> None:
    """Each system alone gives the very bits that it gives in the batch."""
    division, direction, gradient = case
    tangent = project(direction, gradient, division)
    bound = division.bind(direction)
    for s in range(bound.count):
        mine = bound.spread(torch.arange(bound.count) == s).expand_as(direction)[:, 0]
        alone = project(direction[mine], gradient[mine], Segments(torch.zeros(int(mine.sum()), dtype=torch.int64), 1))
        assert torch.allclose(
            alone,
            tangent[mine],
            rtol=0,
            atol=8 * torch.finfo(direction.dtype).eps * float(direction[mine].abs().max() if mine.any() else 0),
        )


def test_one_projection_over_a_batch_would_mix_the_systems() -> None:
    direction = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    gradient = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert torch.equal(project(direction, gradient, Rows()), torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    assert torch.equal(project(direction, gradient, Single()), torch.tensor([[0.5, 0.0], [1.0, -0.5]]))


def test_one_pass_would_not_do_in_single_precision() -> None:
    """What the second pass is for: M almost parallel to g."""
    random = torch.Generator().manual_seed(0)
    gradient = torch.randn(1000, 50, generator=random)
    direction = 1e3 * gradient + torch.randn(1000, 50, generator=random)
    tangent = project(direction, gradient)
    assert_tangent(tangent, gradient)
    once = direction - (direction * gradient).sum(-1, keepdim=True) / gradient.square().sum(-1, keepdim=True) * gradient
    with pytest.raises(AssertionError):
        assert_tangent(once, gradient)


@given(pairs(scales=(0.1, 10.0)))
def test_derivatives(case: tuple[Systems, Tensor, Tensor]) -> None:
    division, direction, gradient = case
    direction, gradient = direction.double(), gradient.double()
    bound = division.bind(direction)
    gradient = torch.where(bound.spread(length(bound, gradient) < 0.3), 0.0, gradient)
    zero = bool((bound.largest(gradient) == 0).any())

    def function(m: Tensor, g: Tensor) -> Tensor:
        return project(m, g, division)

    if zero:  # it jumps there in the gradient; in the direction it is linear all the same, and nothing is NaN
        moving = direction.clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda m: function(m, gradient), (moving,), fast_mode=True)
        both = (moving, gradient.clone().requires_grad_())
        slopes = torch.autograd.grad(function(*both).sum(), both)
        assert all(torch.isfinite(slope).all() for slope in slopes)
    else:
        both = (direction.clone().requires_grad_(), gradient.clone().requires_grad_())
        assert torch.autograd.gradcheck(function, both, fast_mode=True)
        assert torch.autograd.gradgradcheck(function, both, fast_mode=True)


@given(pairs())
def test_share_along(case: tuple[Systems, Tensor, Tensor]) -> None:
    division, direction, gradient = case
    bound = division.bind(direction)
    share = share_along(direction, gradient, bound)
    parallel = share_along(3 * gradient, gradient, bound)
    flat = bound.largest(gradient) == 0
    assert (share[flat] == 0).all()
    assert torch.allclose(parallel[~flat], torch.full_like(parallel[~flat], 3.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    gradient = torch.full((1, 4), 1e-4, dtype=dtype)  # its square underflows in float16
    direction = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=dtype)
    tangent = project(direction, gradient)
    assert tangent.dtype == dtype
    assert tangent.tolist() == [[0.75, -0.25, -0.25, -0.25]]


def test_wrong_input() -> None:
    with pytest.raises(ValueError, match=r"gradient and direction must be alike.*\[2, 3\] and \[2, 2\]"):
        project(torch.ones(2, 2), torch.ones(2, 3))
    with pytest.raises(TypeError, match="direction must be a tensor, got list"):
        project([1.0], torch.ones(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="index has 3 entries"):
        project(torch.ones(2, 2), torch.ones(2, 2), Segments(torch.zeros(3, dtype=torch.int64), 1))


def test_not_a_number_is_not_hidden() -> None:
    gradient = torch.tensor([[float("nan"), 1.0], [1.0, 1.0], [float("inf"), 1.0]])
    tangent = project(torch.ones(3, 2), gradient)
    assert torch.isnan(tangent[0]).any()
    assert torch.isfinite(tangent[1]).all()
    assert torch.isnan(tangent[2]).any()


def test_on_every_device(device: torch.device) -> None:
    M, g = torch.randn(5, 3, device=device), torch.randn(5, 3, device=device)
    for division in (Rows(), Single(), Segments(torch.tensor([0, 0, 1, 1, 1], device=device), 2)):
        assert_tangent(project(M, g, division), g, division)
