"""Whole layers, energies and velocities by kernels: as in plain torch, to rounding, and so are their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lyapflow_graph import GatedGCN, GraphBatch, GraphEnergy, TangoConv
from lyapflow_graph.kernels import cpu, kernel_backend
from lyapflow_graph.kernels.layer import Form, HeadWeights, LayerWeights, gated_energy, gated_layer
from lyapflow_graph.kernels.velocity import velocity
from solvers import Systems
from tests.lyapflow_graph.cases import batches, example
from tests.lyapflow_graph.test_kernels import DTYPES, SEEDS, WIDTHS, hub

pytestmark = pytest.mark.skipif(not cpu.available, reason="the kernels were not compiled here")
Case = tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]
NAMES = ("layer", "energy", "two layers", "velocity")
FORMS = [Form(residual, normalize) for residual in (True, False) for normalize in (True, False)]


def case(
    name: str, graphs: GraphBatch, width: int, seed: int, dtype: torch.dtype, edges: bool = True, form: Form = FORMS[0]
) -> Case:
    """A function of its inputs alone, and these; features of nodes are a view into a wider tensor."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=random)).to(dtype).requires_grad_()  # the same in either type

    nodes, packed = graphs.num_nodes, graphs.packed_edges
    h = draw(nodes, width + 1).detach()[:, :width].requires_grad_()
    if name == "velocity":
        index = None if graphs.batch is None else graphs.graph_of_node
        coefficients, systems = [draw(graphs.count) for _ in range(2)], graphs.bind(h)

        def of_velocity(*x: Tensor) -> tuple[Tensor, ...]:
            found = velocity(*x, systems, index)
            return (Systems.combine(systems, *x) if found is None else found,)

        return of_velocity, [h, draw(nodes, width), *coefficients]

    def layer() -> list[Tensor]:
        scale = width**-0.5
        return [draw(4 * width, width, scale=scale), draw(4 * width), draw(width), draw(width)]

    weights, c = layer(), draw(graphs.num_edges, width) if edges else None
    if name == "layer":

        def of_layer(h: Tensor, *rest: Any) -> tuple[Tensor, ...]:
            *given, last = rest
            return (gated_layer(h, last, LayerWeights(*given), packed, form),)

        inputs = [h, *weights] + ([] if c is None else [c])
        return (of_layer if c is not None else lambda *x: of_layer(*x, None)), inputs
    if name == "two layers":
        weights, c = weights + layer(), None
    head = [draw(width, width, scale=width**-0.5), draw(width), draw(1, width), draw(1)]
    of_nodes = torch.rand(nodes, generator=random).to(dtype) if edges else None

    def of_energy(h: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        given = list(rest)
        last = given.pop() if c is not None else None
        layers = [LayerWeights(*given[m : m + 4]) for m in range(4, len(given), 4)]
        return gated_energy(h, last, layers, HeadWeights(*given[:4]), packed, of_nodes, form)

    return of_energy, [h, *head, *weights] + ([] if c is None else [c])


def first_derivatives(function: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor]) -> list[Tensor]:
    values = function(*inputs)
    random = torch.Generator().manual_seed(1)
    g = [torch.randn(x.shape, generator=random, dtype=x.dtype) for x in values]
    return [*(x.detach() for x in values), *torch.autograd.grad(values, inputs, g)]


@pytest.mark.parametrize("name", NAMES)
@given(
    graphs=batches() | st.integers(1, 40).map(hub), width=WIDTHS, seed=SEEDS, dtype=DTYPES, edges=st.booleans(),
    form=st.sampled_from(FORMS),
)  # fmt: skip
def test_kernels_agree_with_plain_torch(
    name: str, graphs: GraphBatch, width: int, seed: int, dtype: torch.dtype, edges: bool, form: Form
) -> None:
    """Within rounding in double precision; in single no further from the truth than plain torch is, up to a factor."""
    function, inputs = case(name, graphs, width, seed, dtype, edges, form)
    found = first_derivatives(function, inputs)
    with kernel_backend("reference"):
        plain = first_derivatives(function, inputs)
        precise = [x.detach().double().requires_grad_() for x in inputs]
        truth = first_derivatives(case(name, graphs, width, seed, torch.float64, edges, form)[0], precise)
    for ours, theirs, exact in zip(found, plain, truth, strict=True):
        # A row whose entries are all but equal is divided by 0.003, in a third derivative thrice.
        size = max(1.0, float(exact.abs().max())) if exact.numel() else 1.0
        room = 1e-8 if dtype == torch.float64 else 1e-5
        assert _distance(ours, exact) <= 8 * _distance(theirs, exact) + room * size


def _distance(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact).abs().max()) if x.numel() else 0.0


@given(graphs=batches(), width=WIDTHS, seed=SEEDS, edges=st.booleans(), form=st.sampled_from(FORMS))
def test_the_second_derivative_of_a_layer_in_its_input(
    graphs: GraphBatch, width: int, seed: int, edges: bool, form: Form
) -> None:
    """What an energy that holds such a layer among others takes: by kernels, unless weights have a cotangent too."""
    function, (h, *others) = case("layer", graphs, width, seed, torch.float64, edges, form)

    def twice() -> list[Tensor]:
        (y,) = function(h, *others)
        random = torch.Generator().manual_seed(1)
        g, along = (torch.randn(y.shape, generator=random, dtype=y.dtype).requires_grad_() for _ in range(2))
        (first,) = torch.autograd.grad(y, h, g, create_graph=True)
        return [first.detach(), *torch.autograd.grad(first, [g, h, *others], along, materialize_grads=True)]

    found = twice()
    with kernel_backend("reference"):
        wanted = twice()
    for ours, exact in zip(found, wanted, strict=True):
        assert _distance(ours, exact) <= 1e-8 * (max(1.0, float(exact.abs().max())) if exact.numel() else 1.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("width", [3, 16])  # padded, and not
@pytest.mark.parametrize("form", FORMS[:2])
def test_derivatives_are_right(name: str, edges: bool, width: int, form: Form) -> None:
    function, inputs = case(name, example(), width, 0, torch.float64, edges, form)
    torch.autograd.gradcheck(function, inputs, fast_mode=True)
    torch.autograd.gradgradcheck(function, inputs, fast_mode=True, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_results_do_not_depend_on_the_number_of_threads(name: str) -> None:
    torch.manual_seed(0)
    graphs = GraphBatch(torch.randint(0, 3000, (2, 20_000)), 3000)
    function, inputs = case(name, graphs, 64, 0, torch.float32)
    assert_independent_of_threads(lambda: first_derivatives(function, inputs))


@pytest.mark.parametrize("count", [1, 50])
def test_a_flow_does_not_depend_on_the_number_of_threads(count: int) -> None:
    """Its end, and the derivatives of that in all parameters."""
    torch.manual_seed(0)
    size = 3000 // count
    edge_index = size * torch.randint(0, count, (20_000,)) + torch.randint(0, size, (2, 20_000))
    graphs = GraphBatch(edge_index, 3000, batch=None if count == 1 else torch.arange(3000) // size)
    conv, x = TangoConv(30, num_steps=2), torch.randn(3000, 30, requires_grad=True)

    def run() -> list[Tensor]:
        return first_derivatives(lambda *inputs: (conv(inputs[0], graphs),), [x, *conv.parameters()])

    assert_independent_of_threads(run)


def assert_independent_of_threads(run: Callable[[], list[Tensor]]) -> None:
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            results.append(run())
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert [torch.equal(a, b) for a, b in zip(results[0], other, strict=True)] == [True] * len(other)


def test_memory_is_used_again_and_given_back() -> None:
    cpu.release()
    before = cpu.held()
    size = (1000, 1000)
    x = cpu.empty(size, torch.float32)
    place, rows = x.data_ptr(), x[3:5]
    assert cpu.held()[0] - before[0] >= x.nbytes
    del x
    assert cpu.held()[0] > before[0]  # a view is still there
    rows.fill_(1.0)
    del rows
    assert cpu.held()[0] == before[0]
    assert cpu.empty(size, torch.float32).data_ptr() == place
    many = [cpu.empty(size, torch.float64) for _ in range(3)]
    most = cpu.held()[0]
    del many
    other = cpu.empty((3000, 1000), torch.float64)  # none of the free ones fits, and they are too much beside it
    assert sum(cpu.held()) <= max(most, cpu.held()[0])
    del other
    cpu.release()
    assert cpu.held() == (before[0], 0)


def test_large_tensors_of_a_model_are_ordinary_ones() -> None:
    graphs = GraphBatch(torch.randint(0, 20_000, (2, 60_000)), 20_000)
    energy = GraphEnergy(GatedGCN(32), systems=graphs)
    found = energy.with_gradient(torch.randn(20_000, 32, requires_grad=True))
    assert found is not None
    gradient = found[2]
    assert gradient.clone().add_(1).is_contiguous()
    assert torch.equal(torch.from_numpy(gradient.detach().numpy()), gradient)
