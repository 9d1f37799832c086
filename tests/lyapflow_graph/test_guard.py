"""Guarded graph layers: every step of every graph descends, whatever the graphs, the precision and the step size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from lyapflow import DescentCount, LyapunovField
from lyapflow_graph import GRAFF, DirichletEnergy, DynamicsConv, GraphBatch, Tango, TangoConv
from solvers import SolveError, Status, rises

from .cases import CHANNELS, alone, batches, example, features


def certified(conv: DynamicsConv, graphs: GraphBatch, energy: torch.Tensor, ys: torch.Tensor) -> bool:
    """Whether the energies of the states, computed once more, are those that were given, and never rise."""
    field = conv.bind(graphs)
    again = torch.stack([field.energy(0.0, y) for y in ys]).detach()
    tolerance = 64 * torch.finfo(again.dtype).eps * again.abs().amax(0)
    same = bool(((again - energy).abs() <= tolerance).all())
    return same and bool((again.diff(dim=0) <= tolerance).all()) and not bool(rises(energy).any())


@given(
    batches(max_graphs=4, max_nodes=6),
    st.floats(-3, 3),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(["gatedgcn", "gcn", "gps"]),
    st.sampled_from(["sum", "mean"]),
    st.sampled_from([0.1, 1.0, 30.0]),
    st.integers(0, 99),
)
def test_no_step_of_a_guarded_layer_raises_the_energy(
    graphs: GraphBatch, power: float, dtype: torch.dtype, backbone: str, reduction: Any, scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    conv = TangoConv(CHANNELS, backbone, step_size=10.0**power, num_steps=3, reduction=reduction, beta_start=3.0)
    conv = conv.to(dtype)
    x = features(graphs, seed=seed, scale=scale).to(dtype)
    with torch.no_grad():
        solution = conv.solve(x, graphs, saveat="steps")
        assert certified(conv, graphs, solution.energy, solution.ys)
        assert torch.equal(conv(x, graphs), solution.y1)


def test_the_guard_is_the_default_and_euler_one_argument_away() -> None:
    torch.manual_seed(0)
    graphs = example()
    x = features(graphs)
    guarded = TangoConv(CHANNELS, num_steps=6, step_size=2.0, beta_start=2.0).double()
    assert guarded.guard
    assert "guard=True" in repr(guarded)
    plain = TangoConv(CHANNELS, num_steps=6, step_size=2.0, beta_start=2.0, guard=False).double()
    plain.load_state_dict(guarded.state_dict())
    wanted, field = x, plain.bind(graphs)
    for _ in range(6):
        wanted = wanted + 2.0 * field(0.0, wanted)
    torch.testing.assert_close(plain(x, graphs), wanted)
    assert DescentCount.of(guarded.take_steps(x, graphs)).holds
    assert not DescentCount.of(plain.take_steps(x, graphs)).holds
    plain.guard = True
    assert torch.equal(plain(x, graphs), guarded(x, graphs))


def test_every_graph_is_guarded_by_itself() -> None:
    torch.manual_seed(0)
    graphs = example()
    conv = TangoConv(CHANNELS, num_steps=4, step_size=10.0, beta_start=2.0).double()
    x = features(graphs)
    together = conv.take_steps(x, graphs)
    assert 0 < int((together.fraction < 1).sum()) < together.fraction.numel()
    for i in range(graphs.count):
        single, nodes = alone(graphs, i)
        torch.testing.assert_close(conv(x[nodes], single), together.y1[nodes], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_gradients_through_guarded_steps(checkpoint: bool) -> None:
    torch.manual_seed(0)
    graphs = example()
    conv = TangoConv(CHANNELS, num_steps=2, step_size=10.0, beta_start=2.0, checkpoint=checkpoint).double()
    x = features(graphs).requires_grad_()
    assert bool((conv.take_steps(x, graphs).fraction < 1).any())

    def states_and_energies(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        solution = conv.take_steps(x, graphs)
        return solution.y1, solution.energy

    assert torch.autograd.gradcheck(states_and_energies, x)


def test_a_graph_whose_energy_overflows_is_named_and_leaves_the_others_alone() -> None:
    torch.manual_seed(0)
    graphs = example()
    conv = TangoConv(CHANNELS, num_steps=3, step_size=1.0, norm="none").double()
    x = features(graphs)
    bad = x.clone()
    bad[5] = 1e200  # its square overflows
    with pytest.raises(SolveError, match="system 1"):
        conv(bad, graphs)
    found = conv.solve(bad, graphs, throw=False)
    others = graphs.graph_of_node != 1
    assert found.status.tolist() == [1, Status.NOT_DISSIPATIVE, 1, 1]
    torch.testing.assert_close(found.y1[others], conv(x, graphs)[others], rtol=1e-9, atol=1e-12)
    gradients = torch.autograd.grad(found.y1[others].sum(), list(conv.parameters()), allow_unused=True)
    assert all(bool(one.isfinite().all()) for one in gradients if one is not None)


def test_other_dynamics_with_an_energy_can_be_guarded() -> None:
    class Heat(DynamicsConv):
        def bind(self, graphs: GraphBatch) -> LyapunovField:
            return LyapunovField(DirichletEnergy(systems=graphs))

    graphs, x = example(), features(example())
    assert not DescentCount.of(Heat(CHANNELS, 8, 5.0).take_steps(x, graphs)).holds
    assert DescentCount.of(Heat(CHANNELS, 8, 5.0, guard=True).take_steps(x, graphs)).holds


def test_models_are_guarded_too() -> None:
    torch.manual_seed(0)
    path = Data(x=torch.randn(3, 5), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    model = Tango(5, 8, 1, task="graph", num_steps=5, step_size=5.0)
    solution = model.solve(Batch.from_data_list([path, path]))
    assert solution.energy.shape == (6, 2)
    assert DescentCount.of(solution).holds
    assert not Tango(5, 8, 1, guard=False).conv.guard
    assert all(conv.guard for conv in Tango(5, 8, 1, num_steps=2, share_weights=False).body)


@pytest.mark.parametrize("ablation", ["non-energy", "non-tangent"])
def test_nothing_is_guarded_where_nothing_is_promised(ablation: Any) -> None:
    assert not TangoConv(CHANNELS, ablation=ablation).guard
    with pytest.raises(ValueError, match="promises no descent"):
        TangoConv(CHANNELS, ablation=ablation, guard=True)


def test_methods_without_fixed_steps_are_not_guarded() -> None:
    assert not TangoConv(CHANNELS, method="armijo_euler").guard
    with pytest.raises(ValueError, match="guard=True takes a given number of steps of an explicit method"):
        TangoConv(CHANNELS, method="armijo_euler", guard=True)
    assert not GRAFF(CHANNELS).guard
