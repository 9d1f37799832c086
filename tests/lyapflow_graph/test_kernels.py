"""Operators with kernels of their own: the same as in plain torch, to rounding, and so are their derivatives."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lyapflow_graph import GraphBatch, Tango
from lyapflow_graph.kernels import attention, cpu, gated, gated_sums, gated_update, kernel_backend, row_norm, silu
from lyapflow_graph.kernels.adjacency import ends, unpack
from lyapflow_graph.kernels.gated import EPSILON
from tests.lyapflow_graph.cases import assert_close, batches, example

compiled = pytest.mark.skipif(not cpu.available, reason="the kernels were not compiled here")
WIDTHS = st.sampled_from([1, 2, 3, 7, 16, 30, 63, 64, 65, 128, 130])
SEEDS = st.integers(0, 1000)
DTYPES = st.sampled_from([torch.float64, torch.float32])
OPERATORS = ("gated_sums", "gated_update", "silu")
ON_CPU = (*OPERATORS, "row_norm")
with_scatter = pytest.mark.skipif(
    not importlib.util.find_spec("torch_scatter"), reason="torch_scatter is not installed"
)
LIBRARIES = [pytest.param("torch_scatter", marks=with_scatter)]


def hub(nodes: int, device: Any = "cpu") -> GraphBatch:
    """All nodes point to the first, and it to all of them, twice."""
    spokes = torch.stack([torch.arange(nodes), torch.zeros(nodes, dtype=torch.long)]).to(device)
    return GraphBatch(torch.cat([spokes, spokes.flip(0), spokes.flip(0)], 1), nodes)


def arguments(
    name: str, graphs: GraphBatch, width: int, seed: int, dtype: torch.dtype, edges: bool = True
) -> tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]:
    """An operator as a function of its inputs alone, and these: some are views into a wider tensor, as in a layer."""
    random = torch.Generator().manual_seed(seed)
    device = graphs.edge_index.device

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=dtype).to(device)

    wide = draw(graphs.num_nodes, 3 * width + 1)
    a, b, c = (wide[:, i * width : (i + 1) * width].requires_grad_() for i in range(3))
    if name == "gated_sums":
        e = [draw(width, graphs.num_edges).T.requires_grad_()] if edges else []  # whose rows are not in one piece
        return lambda k, q, v, *e: gated_sums(k, q, v, e[0] if e else None, graphs.packed_edges), [a, b, c, *e]
    if name == "gated_update":
        weight, bias = draw(width).requires_grad_(), draw(width).requires_grad_()
        return lambda own, num, den, w, b: (gated_update(own, num, den.square() + 0.1, w, b),), [a, b, c, weight, bias]
    if name == "row_norm":
        weight, bias = draw(width).requires_grad_(), draw(width).requires_grad_()
        return lambda x, w, b: (row_norm(x, w, b),), [a, weight, bias]
    return lambda x: (silu(x),), [a]


def derivatives(function: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor]) -> list[Tensor]:
    """Values, their derivatives along a cotangent, and those of these, in the cotangent as well."""
    values = function(*inputs)
    random = torch.Generator().manual_seed(1)

    def cotangents(of: Sequence[Tensor]) -> list[Tensor]:
        return [torch.randn(x.shape, generator=random, dtype=x.dtype).to(x.device).requires_grad_() for x in of]

    g = cotangents(values)
    first = torch.autograd.grad(values, inputs, g, create_graph=True)
    second = torch.autograd.grad(first, [*inputs, *g], cotangents(first), materialize_grads=True)
    return [*values, *first, *second]


def check_agreement(
    name: str, graphs: GraphBatch, width: int, seed: int, dtype: torch.dtype, edges: bool, backend: Any = "auto"
) -> None:
    """That values and derivatives are those of plain torch."""
    function, inputs = arguments(name, graphs, width, seed, dtype, edges)
    with kernel_backend(backend):
        found = derivatives(function, inputs)
    with kernel_backend("reference"):
        wanted = derivatives(function, inputs)
    tolerance, size = 50 * torch.finfo(dtype).eps * max(1, graphs.num_edges) ** 0.5, None
    if name == "gated_update":
        # Its terms are about 1 before they cancel; every derivative grows with one over the deviation of a row, and
        # two of them with one over the sum of its gates.
        own, num, den = (x.detach() for x in inputs[:3])
        weight = den.square() + 0.1
        deviation = (own + num / weight).std(1, unbiased=False).amin() if len(own) else own.new_ones(())
        size = max(1.0, float(deviation.clamp(min=EPSILON**0.5) ** -3)) / float(weight.amin()) ** 2
    if name == "row_norm":
        x = inputs[0].detach()
        deviation = x.std(1, unbiased=False).amin() if len(x) else x.new_ones(())
        size = max(1.0, float(deviation.clamp(min=EPSILON**0.5) ** -3))
    for a, b in zip(found, wanted, strict=True):
        assert_close(a, b, tolerance, size)


@compiled
@pytest.mark.parametrize("name", ON_CPU)
@given(graphs=batches() | st.integers(1, 40).map(hub), width=WIDTHS, seed=SEEDS, dtype=DTYPES, edges=st.booleans())
def test_kernels_agree_with_plain_torch(
    name: str, graphs: GraphBatch, width: int, seed: int, dtype: torch.dtype, edges: bool
) -> None:
    check_agreement(name, graphs, width, seed, dtype, edges)


@pytest.mark.parametrize("backend", LIBRARIES)
@given(graphs=batches() | st.integers(1, 40).map(hub), width=WIDTHS, seed=SEEDS, dtype=DTYPES, edges=st.booleans())
def test_libraries_agree_with_plain_torch(
    backend: str, graphs: GraphBatch, width: int, seed: int, dtype: torch.dtype, edges: bool
) -> None:
    check_agreement("gated_sums", graphs, width, seed, dtype, edges, backend)


@pytest.mark.parametrize("backend", ["auto", "reference", *LIBRARIES])
@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("edges", [False, True])
def test_derivatives_are_right(backend: Any, name: str, edges: bool) -> None:
    function, inputs = arguments(name, example(), 3, 0, torch.float64, edges)

    def gradient(*inputs: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(sum(v.sin().sum() for v in function(*inputs)), inputs, create_graph=True)

    with kernel_backend(backend):
        torch.autograd.gradcheck(function, inputs, fast_mode=True)
        torch.autograd.gradgradcheck(function, inputs, fast_mode=True)
        torch.autograd.gradgradcheck(gradient, inputs, fast_mode=True)


@compiled
@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("edges", [False, True])
def test_operators_pass_the_checks_of_torch(name: str, edges: bool) -> None:
    graphs = example()
    _, inputs = arguments(name, graphs, 3, 0, torch.float64, edges)
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    if name == "gated_sums":
        inputs += [None] if not edges else []  # type: ignore[list-item]
        constants: list[Tensor] = [graphs.packed_edges]
        outputs = gated_sums(*inputs, graphs.packed_edges)  # type: ignore[call-arg]
    else:
        constants, outputs = [], (inputs[0],)
    grads = [torch.randn_like(value).requires_grad_() for value in outputs]
    along = [None if x is None else torch.randn_like(x).requires_grad_() for x in inputs]
    for suffix, given_too in (("", []), ("_backward", grads), ("_double_backward", [*grads, *along])):
        operator = getattr(torch.ops.lyapflow, f"{name}{suffix}").default
        torch.library.opcheck(operator, (*inputs, *constants, *given_too))


@compiled
@pytest.mark.parametrize("name", ON_CPU)
def test_results_do_not_depend_on_the_number_of_threads(name: str) -> None:
    torch.manual_seed(0)
    graphs = GraphBatch(torch.randint(0, 3000, (2, 20_000)), 3000)
    function, inputs = arguments(name, graphs, 64, 0, torch.float32)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            values = function(*inputs)
            cotangents = [torch.ones_like(value) for value in values]
            first = torch.autograd.grad(values, inputs, cotangents, create_graph=True)
            second = torch.autograd.grad(first, inputs, [torch.ones_like(x) for x in first], materialize_grads=True)
            results.append([*values, *first, *second])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gates_are_right_however_large_their_arguments(dtype: torch.dtype) -> None:
    z = torch.tensor([-1e30, -1e4, -88.0, -20.0, -1e-8, 0.0, 1e-8, 1.0, 20.0, 88.0, 1e4, 1e30], dtype=dtype)[:, None]
    nodes = len(z)
    loops = GraphBatch(torch.arange(nodes).expand(2, nodes), nodes)
    zeros, ones = torch.zeros_like(z), torch.ones_like(z)
    assert float(silu(torch.tensor([-1e4], dtype=dtype))) == 0
    _, den = gated_sums(z, zeros, ones, None, loops.packed_edges)
    wanted = torch.sigmoid(z.double())
    assert ((den.double() - wanted).abs() <= 4 * torch.finfo(dtype).eps * wanted + 2 * torch.finfo(dtype).tiny).all()


@compiled
def test_what_is_not_a_number_stays_so_and_stays_with_its_neighbours() -> None:
    graphs = GraphBatch(torch.tensor([[0, 1, 3], [1, 2, 3]]), 4)
    k, q, v = (torch.randn(4, 3) for _ in range(3))
    q[0, 1] = float("nan")
    num, den = gated_sums(k, q, v, None, graphs.packed_edges)
    for x in (num, den):
        assert torch.equal(torch.isnan(x), torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]).bool())
    assert torch.isnan(silu(torch.tensor([float("nan"), 1.0]))).tolist() == [True, False]


def test_sums_in_half_precision_are_taken_in_single() -> None:
    """Eight thousand neighbours of weight 1/2: in bfloat16 the sum would stop growing at 128."""
    many = 8000
    graphs = GraphBatch(torch.stack([torch.arange(1, many + 1), torch.zeros(many, dtype=torch.long)]), many + 1)
    zeros, ones = (fill(many + 1, 1, dtype=torch.bfloat16) for fill in (torch.zeros, torch.ones))
    total, weight = gated_sums(zeros, zeros, ones, None, graphs.packed_edges)
    assert total.dtype == torch.bfloat16
    assert abs(float(total[0]) - many / 2) <= 16
    assert abs(float(weight[0]) - many / 2) <= 16


@given(batches())
def test_edges_in_two_orders_are_the_edges(graphs: GraphBatch) -> None:
    source, target = graphs.edge_index
    packed, nodes = graphs.packed_edges, graphs.num_nodes
    assert all(torch.equal(a, b) for a, b in zip(ends(packed, nodes), (source, target), strict=True))
    for order, own, other in zip(unpack(packed, nodes), (target, source), (source, target), strict=True):
        for node in range(nodes):
            mine = order.edge[order.ptr[node] : order.ptr[node + 1]].long()
            assert torch.equal(mine, (own == node).nonzero()[:, 0])  # in the order they were given
            assert torch.equal(order.other[order.ptr[node] : order.ptr[node + 1]].long(), other[mine])


def losses(backend: Any, steps: int = 50, device: Any = "cpu") -> list[float]:
    torch.manual_seed(0)
    edge_index, x, target = torch.randint(0, 40, (2, 160)), torch.randn(40, 8), torch.randint(0, 3, (40,))
    edge_index, x, target = edge_index.to(device), x.double().to(device), target.to(device)
    model = Tango(8, 16, 3, num_steps=4).double().to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    found = []
    with kernel_backend(backend):
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, edge_index), target)
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
    return found


@compiled
def test_a_model_trains_alike_with_kernels_and_without() -> None:
    fused, plain = losses("auto"), losses("reference")
    assert fused[-1] < 0.3 * fused[0]
    assert max(abs(a - b) / b for a, b in zip(fused, plain, strict=True)) < 1e-6


@pytest.mark.parametrize("backend", LIBRARIES)
def test_a_model_trains_alike_with_libraries(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is the library that computes, not a layer as a whole."""
    calls = []
    sums = gated.sums_by_torch_scatter
    monkeypatch.setattr(gated, "sums_by_torch_scatter", lambda *given: (calls.append(1), sums(*given))[1])
    found, plain = losses(backend, 5), losses("reference", 5)
    assert calls
    assert max(abs(a - b) / b for a, b in zip(found, plain, strict=True)) < 1e-9


def test_without_compiled_kernels_everything_works(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = losses("reference", 3)
    monkeypatch.setattr(cpu, "available", False)
    monkeypatch.setattr(cpu, "_cpu", None)
    assert losses("auto", 3) == wanted
    cpu.release()
    assert cpu.held() == (0, 0)


@pytest.mark.parametrize("backend", ["auto", *LIBRARIES])
def test_forward_mode_and_vmap_go_through_plain_torch(backend: Any) -> None:
    x, v = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    edges = hub(4).packed_edges

    def total(x: Tensor) -> Tensor:
        return gated_sums(x, x, x, None, edges)[0] + silu(x)

    with kernel_backend("reference"):
        exact, wanted = torch.autograd.functional.jvp(total, x, v)[1], torch.stack([total(x), total(v)])
    with kernel_backend(backend):
        assert_close(torch.func.jvp(total, (x,), (v,))[1], exact)
        assert_close(torch.func.vmap(total)(torch.stack([x, v])), wanted)


def test_kernels_are_not_given_what_they_cannot_read() -> None:
    """Of several dtypes: plain torch promotes them, or refuses them."""
    single, double = torch.randn(4, 3), torch.randn(4, 3, dtype=torch.float64)
    scale = torch.ones(3)
    with kernel_backend("reference"):
        wanted = gated_update(single, double, double.square(), scale, scale)
    assert torch.equal(gated_update(single, double, double.square(), scale, scale), wanted)
    with pytest.raises(RuntimeError, match="same scalar type"):
        gated_sums(single, single, double, None, hub(4).packed_edges)


def test_an_unknown_backend_is_refused() -> None:
    wanted = "the backend must be one of auto, reference, torch_scatter, got 'fast'"
    with pytest.raises(ValueError, match=wanted), kernel_backend("fast"):  # type: ignore[arg-type]
        pass


def test_a_missing_library_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_scatter", None)
    with (
        pytest.raises(ImportError, match="pip install --no-build-isolation torch_scatter"),
        kernel_backend("torch_scatter"),
    ):
        pass
    assert gated._chosen == "auto"


def test_shapes_that_do_not_fit_are_refused() -> None:
    graphs = example()
    x, edges = torch.zeros(graphs.num_nodes, 3), graphs.packed_edges
    with pytest.raises(ValueError, match=r"q must have shape \[\d+, 3\], got \[2, 3\]"):
        gated_sums(x, x[:2], x, None, edges)
    with pytest.raises(ValueError, match=r"c must have shape \[\d+, 3\], got \[1, 3\]"):
        gated_sums(x, x, x, x[:1], edges)
    with pytest.raises(ValueError, match=r"edges must be what GraphBatch\.packed_edges gives for 2 nodes"):
        gated_sums(x[:2], x[:2], x[:2], torch.zeros(1, 3), edges[:3])
    with pytest.raises(ValueError, match=r"bias must have shape \[3\], got \[2\]"):
        gated_update(x, x, x, x[0], x[0, :2])


def attended(seed: int, graphs: int, heads: int, width: int, channels: int) -> tuple[list[Tensor], Tensor | None]:
    """Queries, keys and values, and which places are taken: one in every graph at least, and sometimes all."""
    random = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(graphs, heads, width, channels, generator=random, dtype=torch.float64) for _ in range(3)]
    present = torch.arange(width) < torch.randint(1, width + 1, (graphs, 1), generator=random)
    return [x.requires_grad_() for x in inputs], None if seed % 3 == 2 else present


@given(SEEDS, st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 6))
def test_attention_agrees_with_plain_torch(seed: int, graphs: int, heads: int, width: int, channels: int) -> None:
    inputs, present = attended(seed, graphs, heads, width, channels)

    def function(*x: Tensor) -> tuple[Tensor]:
        return (attention(*x, present),)  # type: ignore[call-arg]

    found = derivatives(function, inputs)
    with kernel_backend("reference"):
        wanted = derivatives(function, inputs)
    for a, b in zip(found, wanted, strict=True):
        assert_close(a, b, 1e-12)


def test_attention_is_an_operator_with_right_derivatives() -> None:
    inputs, present = attended(0, 2, 2, 4, 3)

    def function(*x: Tensor) -> Tensor:
        return attention(*x, present)  # type: ignore[call-arg]

    torch.autograd.gradcheck(function, inputs, fast_mode=True)
    torch.autograd.gradgradcheck(function, inputs, fast_mode=True)
    g, along = torch.randn_like(inputs[2]).requires_grad_(), [torch.randn_like(x).requires_grad_() for x in inputs]
    for suffix, given_too in (("", []), ("_backward", [g]), ("_double_backward", [g, *along])):
        operator = getattr(torch.ops.lyapflow, f"attention{suffix}").default
        torch.library.opcheck(operator, (*inputs, present, *given_too))


def test_attention_keeps_nothing_of_the_size_of_its_weights() -> None:
    (query, key, value), present = attended(0, 1, 1, 50, 2)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        first = torch.autograd.grad(attention(query, key, value, present).sum(), query, create_graph=True)[0]
        first.square().sum()
    assert max(kept) <= query.numel()


@compiled
def test_rows_of_any_width_fit() -> None:
    # A process that overflows its stack takes the tests with it: so in one of its own.
    code = """
import torch
from lyapflow_graph.kernels import row_norm, silu
x = torch.linspace(-3, 3, 600_000).view(2, -1)
assert torch.allclose(silu(x), torch.nn.functional.silu(x), atol=1e-6)
assert torch.isfinite(row_norm(x, torch.ones(300_000), torch.zeros(300_000))).all()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
