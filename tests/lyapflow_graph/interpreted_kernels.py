"""The kernels in Triton, run by its interpreter on the CPU. `test_cuda_kernels.py` runs this in a process of its own.

Triton decides once, when it is imported, whether it compiles or interprets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lyapflow_graph import GraphBatch
from lyapflow_graph.kernels import cpu, cuda, gated, gated_sums, kernel_backend, silu
from lyapflow_graph.kernels.operators import Operator
from tests.lyapflow_graph.cases import batches
from tests.lyapflow_graph.test_kernels import DTYPES, OPERATORS, SEEDS, arguments, check_agreement, derivatives, hub

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
GRAPHS = batches(max_graphs=2, max_nodes=4) | st.integers(1, 6).map(hub)
WIDTHS = st.sampled_from([1, 2, 3, 7, 16, 30, 63, 64])
# NumPy, with which the interpreter computes, warns of what is not finite.
not_finite = pytest.mark.filterwarnings("ignore::RuntimeWarning")
# A program takes milliseconds there.
few = settings(max_examples=max(1, settings.default.max_examples // 5))  # type: ignore[union-attr]


@pytest.fixture(scope="module", autouse=True)
def _interpreted() -> Iterator[None]:
    """Operators like those that are tested on the CPU, with the kernels of the other device."""
    sums = Operator("interpreted_gated_sums", ["k", "q", "v", "c?"], ["edges"], [0, 0], gated._plain_sums)
    update = Operator("interpreted_gated_update", ["a", "b", "c", "d", "e"], [], [0], gated._plain_update)
    one = Operator("interpreted_silu", ["x"], [], [0], gated._plain_silu)
    for operator, kernels in ((sums, cuda.GATED), (update, cuda.UPDATE), (one, cuda.SILU)):
        operator.register("cpu", kernels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "available", True)
        for name, operator in (("_SUMS", sums), ("_UPDATE", update), ("_SILU", one)):
            patch.setattr(gated, name, operator)
        yield


def crossing() -> GraphBatch:
    """Rows without edges, and one with more than a program takes at a time, both ways."""
    return GraphBatch(torch.tensor([[0, 0, 0, 0, 0, 1, 3], [0, 1, 1, 1, 1, 0, 3]]), 5)


@pytest.mark.parametrize("name", OPERATORS)
@example(graphs=hub(40), width=3, seed=0, dtype=torch.float64, edges=True)
@example(graphs=crossing(), width=130, seed=0, dtype=torch.float32, edges=True)
@example(graphs=crossing(), width=65, seed=0, dtype=torch.float64, edges=False)
@example(graphs=GraphBatch(torch.zeros(2, 0, dtype=torch.long), 2), width=3, seed=0, dtype=torch.float64, edges=True)
@given(graphs=GRAPHS, width=WIDTHS, seed=SEEDS, dtype=DTYPES, edges=st.booleans())
@few
def test_kernels_agree_with_plain_torch(
    name: str, graphs: GraphBatch, width: int, seed: int, dtype: torch.dtype, edges: bool
) -> None:
    check_agreement(name, graphs, width, seed, dtype, edges)


@pytest.mark.parametrize("rows", [1, 30])
@pytest.mark.parametrize("width", [64, 300])
def test_sums_over_rows_are_right_however_they_are_divided(
    rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lyapflow_graph.kernels import triton_update

    monkeypatch.setattr(triton_update, "_MOST_PROGRAMS", 3)
    graphs = GraphBatch(torch.zeros(2, 0, dtype=torch.long), rows)
    check_agreement("gated_update", graphs, width, 0, torch.float64, False)


@pytest.mark.parametrize("name", OPERATORS)
def test_derivatives_are_right(name: str) -> None:
    function, inputs = arguments(name, crossing(), 2, 0, torch.float64)
    torch.autograd.gradcheck(function, inputs, fast_mode=True)
    torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


def test_results_are_the_same_bit_by_bit() -> None:
    function, inputs = arguments("gated_sums", hub(9), 5, 0, torch.float32)
    assert all(map(torch.equal, derivatives(function, inputs), derivatives(function, inputs)))


def test_cotangents_may_be_missing() -> None:
    """Where a loss depends on the derivative in one input alone."""

    def twice(function: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor], x: Tensor) -> tuple[Tensor, ...]:
        (slope,) = torch.autograd.grad(sum(y.square().sum() for y in function(*inputs)), [x], create_graph=True)
        return torch.autograd.grad(slope.sin().sum(), inputs, materialize_grads=True)

    for name in OPERATORS:
        function, inputs = arguments(name, crossing(), 3, 0, torch.float64)
        for x in inputs:
            found = twice(function, inputs, x)
            with kernel_backend("reference"):
                wanted = twice(function, inputs, x)
            for a, b in zip(found, wanted, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@not_finite
def test_what_is_not_a_number_stays_with_its_neighbours() -> None:
    graphs = GraphBatch(torch.tensor([[0, 1, 3, 3, 3], [1, 2, 3, 3, 3]]), 4)
    k, q, v = (torch.randn(4, 3, requires_grad=True) for _ in range(3))
    with torch.no_grad():
        q[0, 1], v[1, 0] = float("nan"), float("inf")
    num, den = gated_sums(k, q, v, None, graphs.packed_edges)
    assert torch.equal(torch.isnan(den), torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]).bool())
    assert torch.isinf(num).nonzero().tolist() == [[2, 0]]
    slopes = torch.autograd.grad((num.sum(), den.sum()), [k, q, v])
    for slope, rows in zip(slopes, ([1, 2], [0, 1], [0, 1]), strict=True):
        assert set((~torch.isfinite(slope)).nonzero()[:, 0].tolist()) <= set(rows)
    # In the rows of a block that there are no edges for, nothing is multiplied with what comes from above.
    g = torch.full_like(den, float("inf"))
    (dk,) = torch.autograd.grad(gated_sums(k, k, k, None, graphs.packed_edges)[1], [k], g)
    assert not torch.isnan(dk).any()
    assert torch.isnan(silu(torch.tensor([float("nan"), 1.0]))).tolist() == [True, False]


@not_finite
def test_gates_are_right_however_large_their_arguments() -> None:
    z = torch.tensor([-1e30, -1e4, -88.0, -20.0, 0.0, 1.0, 88.0, 1e30])
    assert float(silu(z[1:2])) == 0
    torch.testing.assert_close(silu(z[1:]), torch.nn.functional.silu(z[1:]))
