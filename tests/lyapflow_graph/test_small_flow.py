"""All steps in one call: the states, energies and derivatives that the same field gives step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lyapflow_graph import GraphBatch, Tango, TangoConv
from lyapflow_graph.kernels import cpu, kernel_backend
from lyapflow_graph.kernels.flow import FlowForm, flow_in_steps, small_flow
from solvers import SolveError
from tests.lyapflow_graph.cases import assert_close, batches, example, features, renumbered
from tests.lyapflow_graph.test_kernels import WIDTHS, hub

pytestmark = pytest.mark.skipif(not cpu.has_flow, reason="the kernels were not compiled here")
OPTIONS = st.fixed_dictionaries(
    {
        "num_layers": st.integers(1, 3),
        "norm": st.sampled_from(["layer", "none"]),
        "tangent_linear": st.booleans(),
        "reduction": st.sampled_from(["sum", "mean"]),
        "pool": st.sampled_from(["sum", "mean"]),
        "ablation": st.sampled_from([None, "gradient-flow"]),
        "checkpoint": st.booleans(),
        "guard": st.booleans(),
        "backbone_options": st.fixed_dictionaries({"residual": st.booleans(), "normalize": st.booleans()}),
    }
)


def layer(channels: int, dtype: torch.dtype = torch.float64, **options: Any) -> TangoConv:
    torch.manual_seed(0)
    return TangoConv(channels, **({"num_steps": 3, "beta_start": 0.7, "guard": False} | options)).to(dtype)


def at_once(conv: TangoConv, x: Tensor, graphs: GraphBatch) -> tuple[Tensor, Tensor, Tensor]:
    """The last state, all states and all energies."""
    steps: Any = conv.all_steps(x, graphs, conv.guard, states=True, energies=True)
    return steps.last, steps.states, steps.energies


def through_the_solver(conv: TangoConv, x: Tensor, graphs: GraphBatch) -> tuple[Tensor, Tensor, Tensor]:
    solution = conv.flow(graphs).take_steps(x, every_step=True)
    return solution.y1, solution.ys, solution.energy


def with_slopes(values: tuple[Tensor, ...], conv: TangoConv, x: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """Values, and their derivatives in the features and in all parameters, along random cotangents."""
    random = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(y.shape, generator=random, dtype=y.dtype) for y in values]
    return values, torch.autograd.grad(values, [x, *conv.parameters()], cotangents, materialize_grads=True)


def check(conv: TangoConv, x: Tensor, graphs: GraphBatch, tolerance: float = 1e-11) -> None:
    x = x.requires_grad_()
    found, slopes = with_slopes(at_once(conv, x, graphs), conv, x)
    with kernel_backend("reference"):
        wanted, others = with_slopes(through_the_solver(conv, x, graphs), conv, x)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, tolerance)
    size = max((float(slope.abs().max()) for slope in others if slope.numel()), default=1.0)
    for one, other in zip(slopes, others, strict=True):
        assert_close(one, other, 100 * tolerance, size)


@given(batches(), WIDTHS, OPTIONS)
def test_all_steps_at_once_are_the_steps_one_by_one(graphs: GraphBatch, width: int, options: dict[str, Any]) -> None:
    if graphs.node_ptr is None:
        graphs = renumbered(graphs, torch.argsort(graphs.graph_of_node, stable=True))
    check(layer(width, **options), features(graphs, width), graphs)


@given(batches(), st.sampled_from([3, 30, 64]), OPTIONS)
def test_in_single_precision(graphs: GraphBatch, width: int, options: dict[str, Any]) -> None:
    if graphs.node_ptr is None:
        graphs = renumbered(graphs, torch.argsort(graphs.graph_of_node, stable=True))
    x = features(graphs, width)
    exact, single = (layer(width, dtype, step_size=0.01, **options) for dtype in (torch.float64, torch.float32))
    for found, wanted in zip(at_once(single, x.float(), graphs), at_once(exact, x, graphs), strict=True):
        assert_close(found.double(), wanted, 1e-4)


@pytest.mark.parametrize("width", [5, 16])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_hubs_loops_and_many_blocks(width: int, num_layers: int) -> None:
    check(layer(width, num_layers=num_layers), features(hub(100), width), hub(100))
    graphs = many_graphs(40)
    check(layer(width, num_layers=num_layers), features(graphs, width), graphs)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_features_of_edges(checkpoint: bool) -> None:
    conv, graphs = layer(6, edge_dim=3, checkpoint=checkpoint), example(edge_dim=3)
    check(conv, features(graphs, 6), graphs)


def many_graphs(count: int) -> GraphBatch:
    random = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 40, (count,), generator=random)
    first, batch = sizes.cumsum(0) - sizes, torch.repeat_interleave(torch.arange(count), sizes)
    ends = (torch.rand(2, 3 * len(batch), generator=random) * sizes[batch.repeat(3)]).long()
    return GraphBatch(ends + first[batch.repeat(3)], len(batch), batch=batch)


def test_threads_change_no_bit() -> None:
    graphs, before = many_graphs(60), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            conv, x = layer(30, torch.float32, num_layers=2, num_steps=5), features(graphs, 30).float().requires_grad_()
            values, slopes = with_slopes(at_once(conv, x, graphs), conv, x)
            found.append([*values, *slopes])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "tangent_linear": True, "ablation": "gradient-flow"}])
def test_derivatives_are_right(options: dict[str, Any]) -> None:
    conv, graphs = layer(3, num_steps=2, **options), example()
    weights: Any = conv._weights()
    form: Any = conv._form(conv.guard)
    x = features(graphs, 3).requires_grad_()

    def function(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        head = weights.head._replace(bias=bias)
        steps: Any = small_flow(x, (None, None), weights._replace(head=head), graphs, form, energies=True)
        return steps.last, steps.energies

    inputs = x, weights.head.bias.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def guarded(conv: TangoConv, x: Tensor, graphs: GraphBatch) -> tuple[Any, FlowForm]:
    weights: Any = conv._weights()
    form: Any = conv._form(conv.guard)
    return small_flow(x, (None, None), weights, graphs, form, states=True, energies=True), form


def test_a_guard_shortens_the_steps_of_the_graphs_whose_energy_would_rise() -> None:
    graphs, conv = many_graphs(30), layer(8, num_steps=6, step_size=0.25, num_layers=2, guard=True)
    x = features(graphs, 8).requires_grad_()
    steps, form = guarded(conv, x, graphs)
    energies, scales = steps.energies.detach(), steps.scales
    assert bool((energies[1:] <= energies[:-1] * (1 + 1e-14)).all())
    conv.guard = False
    free = at_once(conv, x, graphs)[2]
    rising = free[1] > free[0]
    assert 0 < int(rising.sum()) < graphs.count  # or this would test nothing
    assert torch.equal(scales[0] < 1, rising)
    # Each is the first of its halvings: twice the scale would have raised the energy.
    weights: Any = conv._weights()
    for step in range(6):
        twice = torch.where(scales[step] < 1, 2 * scales[step], 0)
        _, _, after = flow_in_steps(
            steps.states[step].detach(), (None, None), weights, graphs, form._replace(steps=1), twice[None]
        )
        assert bool((after[1] > after[0])[(scales[step] < 1) & (scales[step] > 0)].all())
    # Gradients take the scales for constants.
    wanted = flow_in_steps(x, (None, None), weights, graphs, form, scales)
    for one, other in zip((steps.last, steps.states, steps.energies), wanted, strict=True):
        assert_close(one, other, 1e-11)
    inputs = [x, *conv.parameters()]
    slopes = [torch.autograd.grad(y.square().sum(), inputs) for y in (steps.last, wanted[0])]
    size = max(float(slope.abs().max()) for slope in slopes[1])
    for one, other in zip(*slopes, strict=True):
        assert_close(one, other, 1e-9, size)


def test_a_state_that_is_not_finite_fails_as_ever() -> None:
    conv, graphs = layer(4, step_size=1e200), example()
    assert conv.all_steps(features(graphs), graphs, conv.guard) is None
    with pytest.raises(SolveError):
        conv(features(graphs), graphs)


@pytest.mark.parametrize(
    "options",
    [
        {"energy_gnn": "gcn"},
        {"granularity": "node"},
        {"ablation": "non-energy"},
        {"ablation": "non-tangent"},
        {"method": "armijo_euler"},
        {"act": "tanh"},
        {"norm": "graph"},
        {"tangent_act": "tanh"},
        {"dropout": 0.5},
    ],
    ids=str,
)
def test_other_options_go_step_by_step(options: dict[str, Any]) -> None:
    conv, graphs = layer(4, **options), example()
    assert conv.all_steps(features(graphs), graphs, conv.guard) is None
    assert conv(features(graphs), graphs).shape == (10, 4)


def test_large_graphs_and_scattered_nodes_go_step_by_step() -> None:
    conv, large = layer(2), hub(2000)
    assert conv.all_steps(features(large, 2), large, conv.guard) is None
    mixed = renumbered(example(), torch.tensor([5, 0, 6, 1, 2, 3, 4, 7, 8, 9]))
    x = features(mixed, 2)
    assert conv.all_steps(x, mixed, conv.guard) is None
    assert conv(x, mixed).shape == x.shape


def test_who_watches_sees_every_step() -> None:
    conv, graphs, calls = layer(4), example(), []
    conv.energy.gnn.register_forward_hook(lambda *given: calls.append(given))
    conv(features(graphs), graphs)
    assert calls


def test_a_model_trains_alike_in_one_call_and_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        model, graphs = Tango(4, 8, 1, task="graph", num_layers=2).double(), many_graphs(10)
        optimizer, x = torch.optim.Adam(model.parameters(), 1e-2), features(graphs)
        target, found = torch.arange(10.0, dtype=torch.float64)[:, None], []
        for _ in range(10):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x, graphs), target)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    found = losses()
    monkeypatch.setattr(TangoConv, "all_steps", lambda *given, **options: None)
    assert found == pytest.approx(losses(), rel=1e-9)
