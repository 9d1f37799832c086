"""TANGO: what its field promises on every kind of graph, and the traps of building it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import solvers.adjoint
from lyapflow import certify, newton_split, odeint
from lyapflow.inspection import ROUNDINGS, length
from lyapflow.testing import check_field
from lyapflow_graph import GPS, GatedGCN, GraphBatch, GraphEnergy, GraphTangent, PooledCoefficient, TangoConv
from solvers import Rows, methods
from tests.lyapflow_graph.cases import (
    CHANNELS,
    NETWORKS,
    alone,
    assert_close,
    batches,
    copies,
    example,
    features,
    renumbered,
)

SEEDS = st.integers(0, 1000)
ABLATIONS = ("non-energy", "non-tangent", "gradient-flow")


def layer(name: str = "gatedgcn", edge_dim: int | None = None, seed: int = 0, **options: Any) -> TangoConv:
    """A layer whose tangential part is not small: its last weights are as large as those of any other layer."""
    torch.manual_seed(seed)
    conv = TangoConv(CHANNELS, name, edge_dim=edge_dim, **options).double()
    if conv.beta is not None:
        nn.init.ones_(conv.beta.head[-1].bias)  # type: ignore[arg-type]
    return conv


# -- what the field promises ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", ["graph", "node"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data(), seed=SEEDS, exponent=st.integers(-6, 6))
def test_the_tangent_does_no_work_in_any_graph(
    granularity: Any, dtype: torch.dtype, data: Any, seed: int, exponent: int
) -> None:
    """Orthogonal to rounding in every graph (traps 1, 2, 3, 5), whatever the length of the gradient (trap 4)."""
    name, edge_dim = data.draw(st.sampled_from(NETWORKS))
    graphs = data.draw(batches(edge_dim))
    reduction = data.draw(st.sampled_from(["sum", "mean"]))
    conv = layer(name, edge_dim, seed, granularity=granularity, reduction=reduction).to(dtype)
    h = features(graphs, seed=seed, scale=10.0**exponent).to(dtype)
    with torch.no_grad():
        parts = conv.bind(graphs).parts(0.0, h)
    systems = graphs.bind(h)
    work = systems.inner(parts.tangent, parts.gradient).abs()
    bound = ROUNDINGS * torch.finfo(dtype).eps * length(systems, parts.tangent) * length(systems, parts.gradient)
    assert (work <= bound).all()
    if granularity == "node":
        nodes = Rows().bind(h)
        work = nodes.inner(parts.tangent, parts.gradient).abs()
        bound = ROUNDINGS * torch.finfo(dtype).eps * length(nodes, parts.tangent) * length(nodes, parts.gradient)
        seen = parts.gradient.abs().amax(1) >= torch.finfo(dtype).tiny  # what is smaller counts as zero
        assert (work <= bound)[seen].all()


@pytest.mark.parametrize(("name", "edge_dim"), NETWORKS)
@given(data=st.data(), seed=SEEDS)
def test_the_energy_falls_at_the_rate_of_the_descent_alone(
    name: str, edge_dim: int | None, data: Any, seed: int
) -> None:
    """dV/dt = -alpha |g|^2, by the energy's own differences along the field."""
    graphs = data.draw(batches(edge_dim, max_graphs=3, max_nodes=5))
    field, h = layer(name, edge_dim, seed).bind(graphs), features(graphs, seed=seed)
    with torch.no_grad():
        parts = field.parts(0.0, h)
        dt = 1e-5 / max(float(parts.velocity.abs().max()), 1.0)
        ahead, behind = (field.energy(0.0, h + way * dt * parts.velocity) for way in (1, -1))
    systems = graphs.bind(h)
    promised = -parts.alpha * systems.inner(parts.gradient, parts.gradient)
    # The largest work that any part of the velocity could do; the third derivative along it is not far from 1.
    size = length(systems, parts.gradient) * length(systems, parts.velocity) + parts.energy + 1e-9
    assert ((ahead - behind) / (2 * dt) - promised).abs().le(1e-4 * size).all()
    assert (parts.rate - promised).abs().le(1e-13 * size).all()
    assert (promised <= 0).all()
    assert ((parts.alpha >= 0) & (parts.alpha <= 1)).all()


@pytest.mark.parametrize(("name", "edge_dim"), NETWORKS)
@given(data=st.data(), seed=SEEDS)
def test_a_graph_flows_the_same_alone_and_in_any_batch(name: str, edge_dim: int | None, data: Any, seed: int) -> None:
    graphs = data.draw(batches(edge_dim, max_graphs=3, max_nodes=4))
    granularity = data.draw(st.sampled_from(["graph", "node"]))
    conv = layer(name, edge_dim, seed, num_steps=2, granularity=granularity)
    h = features(graphs, seed=seed)
    with torch.no_grad():
        found = conv(h, graphs)
        assert torch.isfinite(found).all()
        order = torch.randperm(len(h))
        assert_close(conv(h[order], renumbered(graphs, order)), found[order], 1e-9)
        for i in range(graphs.count):
            single, nodes = alone(graphs, i)
            assert_close(conv(h[nodes], single), found[nodes], 1e-9)


@given(data=st.data(), seed=SEEDS)
def test_values_do_not_depend_on_the_mode(data: Any, seed: int) -> None:
    """Training, evaluation, `no_grad`, `inference_mode`, with and without a gradient in the state (trap 18)."""
    name, edge_dim = data.draw(st.sampled_from(NETWORKS))
    graphs = data.draw(batches(edge_dim))
    conv = layer(name, edge_dim, seed, num_steps=2)
    h = features(graphs, seed=seed)
    training = conv(h.clone().requires_grad_(), graphs).detach()
    conv.eval()
    # Derivatives that are not recorded go through other kernels, so it is the same up to rounding.
    assert_close(conv(h, graphs), training, 1e-13)
    with torch.no_grad():
        assert_close(conv(h, graphs), training, 1e-13)
    with torch.inference_mode():
        assert_close(conv(h.clone(), graphs), training, 1e-13)


@pytest.mark.parametrize(("name", "edge_dim"), NETWORKS)
def test_the_field_keeps_every_promise_of_a_lyapunov_field(name: str, edge_dim: int | None) -> None:
    graphs = example(edge_dim)
    check_field(layer(name, edge_dim).bind(graphs), features(graphs), max_examples=3)


@pytest.mark.parametrize(
    "options",
    [
        {"granularity": "node"},
        {"reduction": "mean", "pool": "sum"},
        {"ablation": "gradient-flow"},
        {"norm": "none", "tangent_act": "tanh", "act": "gelu"},
        {"norm": "graph", "num_layers": 2},
        {"name": "gps", "backbone_options": {"attention": "linear"}},
    ],
)
def test_the_promises_hold_with_any_options(options: dict[str, Any]) -> None:
    graphs = example()
    check_field(layer(**options).bind(graphs), features(graphs), max_examples=3)


@pytest.mark.parametrize("name", [name for name, method in methods().items() if not method.implicit])
def test_every_method_of_the_registry_follows_the_field(name: str) -> None:
    graphs = example()
    conv, h = layer(method=name, num_steps=2, step_size=0.05), features(graphs)
    exact = layer(method="rk4", num_steps=20, step_size=0.005)
    found = conv(h.requires_grad_(), graphs)
    method = methods()[name]
    first_order = method.order == 1 or method.symplectic  # which need a field that is separable
    assert_close(found, exact(h, graphs), 0.05 if first_order else 0.01)
    found.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in conv.parameters())


def test_the_field_goes_through_odeint_and_certify() -> None:
    graphs = example()
    field, h = layer().bind(graphs), features(graphs)
    t = torch.linspace(0, 0.4, 5, dtype=h.dtype)
    ours, theirs = (odeint(field, h, t, method="rk4", backend=backend) for backend in ("solvers", "torchdiffeq"))
    assert_close(ours, theirs, 1e-10)
    certificate = certify(field, h, 1.0, method="armijo_euler", step_size=0.1, samples=3, progress=False)
    assert certificate.holds


# -- the layer --------------------------------------------------------------------------------------------------------


def test_it_takes_the_steps_of_the_paper() -> None:
    """H' = H + eps (-alpha g + beta T), L times, from the parts computed by hand."""
    graphs = example()
    conv = layer(num_steps=3, step_size=0.2, reduction="mean", pool="sum", guard=False)
    h = features(graphs)
    found = h
    for _ in range(3):
        found = found.detach().requires_grad_()
        Ht = torch.nn.functional.silu(conv.energy.gnn(found, graphs))
        M = conv.tangent.gnn(found, graphs)  # type: ignore[union-attr]
        new = torch.zeros_like(found)
        for i in range(graphs.count):
            own = (graphs.graph_of_node == i).nonzero()[:, 0]
            V = conv.energy.head(Ht[own]).square().sum() / len(own)
            g = torch.autograd.grad(V, found, retain_graph=True)[0][own]
            alpha = torch.sigmoid(conv.alpha.head(Ht[own].sum(0)))
            beta = conv.beta.head(M[own].sum(0))  # type: ignore[union-attr]
            T = M[own] - (M[own] * g).sum() / (g * g).sum() * g
            new[own] = (found[own] + 0.2 * (-alpha * g + beta * T)).detach()
        found = new
    assert_close(conv(h, graphs), found, 1e-10)


def test_ablations_are_what_they_say() -> None:
    graphs = example()
    h = features(graphs)
    full = layer()
    weights = full.state_dict()
    fields = {}
    for ablation in ABLATIONS:
        conv = layer(ablation=ablation)
        conv.load_state_dict({name: weights[name] for name in conv.state_dict()})
        fields[ablation] = conv.bind(graphs).parts(0.0, h)
    whole = full.bind(graphs).parts(0.0, h)
    spread = graphs.bind(h).spread
    assert_close(fields["non-tangent"].tangent, whole.direction)
    assert_close(fields["gradient-flow"].velocity, -spread(whole.alpha) * whole.gradient)
    no_energy = fields["non-energy"]
    Ht = full.energy.bind(graphs).value_and_features(h)[1]
    assert_close(no_energy.descent, Ht)
    assert_close(graphs.bind(h).inner(no_energy.tangent, Ht), torch.zeros(graphs.count, dtype=h.dtype))
    assert_close(no_energy.velocity, -spread(no_energy.alpha) * Ht + spread(no_energy.beta) * no_energy.tangent)
    assert not any("tangent" in name or "beta" in name for name in layer(ablation="gradient-flow").state_dict())


def test_checkpoints_change_memory_and_nothing_else() -> None:
    """Per step: the memory of 32 steps is hardly more than that of 8 (trap 19)."""
    graphs = example(3)
    h = features(graphs)

    def run(checkpoint: bool, steps: int) -> tuple[list[Tensor], int]:
        conv = layer("gatedgcn", 3, checkpoint=checkpoint, num_steps=steps, step_size=0.02)
        kept: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = conv(h, graphs).square().sum()
        recorded = sum(kept.values())
        return list(torch.autograd.grad(loss, list(conv.parameters()))), recorded

    (plain, _), (again, few) = run(False, 8), run(True, 8)
    for a, b in zip(plain, again, strict=True):
        assert torch.equal(a, b)
    assert few < run(False, 8)[1] / 5
    assert run(True, 32)[1] - few < 24 * 3 * h.numel() * 8  # no more than a few states a step


def test_every_step_is_a_segment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no more than one of them is computed again at a time."""
    segments = []
    once = solvers.adjoint.checkpoint
    monkeypatch.setattr(solvers.adjoint, "checkpoint", lambda *a, **k: segments.append(1) or once(*a, **k))
    conv = layer(checkpoint=True, num_steps=6)
    conv.flow(example())(features(example()))
    assert len(segments) == 6
    with torch.no_grad():
        conv(features(example()), example())
    assert len(segments) == 6  # there is nothing to save where nothing is recorded


def test_representation_and_reset() -> None:
    conv = layer(method="rk4", granularity="node", ablation="non-energy", checkpoint=True)
    line = repr(conv).splitlines()[1].strip()
    assert line == (
        "4, num_steps=8, step_size=0.1, method='rk4', checkpoint=True, granularity='node', ablation='non-energy'"
    )
    conv = TangoConv(CHANNELS, edge_dim=3)
    before = {name: value.clone() for name, value in conv.state_dict().items()}
    conv.reset_parameters()
    for name, value in conv.state_dict().items():
        constant = "norm" in name
        assert torch.equal(value, before[name]) is constant, name


# -- traps ------------------------------------------------------------------------------------------------------------


def test_the_printed_projection_would_not_be_orthogonal() -> None:
    """Trap 1: M - <M, ghat> g is orthogonal only where |g| = 1."""
    graphs = GraphBatch(torch.tensor([[0, 1], [1, 0]]), 2)
    with torch.no_grad():
        parts = layer().bind(graphs).parts(0.0, features(graphs))
    M, g = parts.direction, parts.gradient
    printed = M - (M * g).sum() / g.norm() * g
    assert abs(float((printed * g).sum())) > 1e-3
    assert abs(float((parts.tangent * g).sum())) < 1e-14


def test_each_graph_has_an_inner_product_of_its_own() -> None:
    """Trap 2: one projection over the batch is orthogonal only in sum."""
    graphs = example()
    parts = layer().bind(graphs).parts(0.0, features(graphs))
    M, g = parts.direction, parts.gradient
    of_batch = M - (M * g).sum() / (g * g).sum() * g
    assert graphs.inner(of_batch, g).abs().max() > 1e-3
    assert graphs.inner(parts.tangent, g).abs().max() < 1e-13


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_small_gradient_is_not_taken_for_zero(reduction: Any) -> None:
    """Trap 4: on a graph of 20,000 nodes with the mean, |g_v|^2 is about 1e-9, and the projection is still at work."""
    torch.manual_seed(0)
    nodes = 20_000
    graphs = GraphBatch(torch.randint(0, nodes, (2, 3 * nodes)), nodes)
    conv = TangoConv(CHANNELS, reduction=reduction)
    with torch.no_grad():
        parts = conv.bind(graphs).parts(0.0, torch.randn(nodes, CHANNELS))
    if reduction == "mean":
        assert parts.gradient.square().mean() < 1e-8
    overlap = float((parts.tangent * parts.gradient).sum() / parts.tangent.norm() / parts.gradient.norm())
    before = float((parts.direction * parts.gradient).sum() / parts.direction.norm() / parts.gradient.norm())
    assert abs(overlap) < 1e-6
    assert abs(before) > 100 * abs(overlap)


def test_one_projection_in_single_precision_leaves_a_residual() -> None:
    """Trap 5: a direction that is nearly along the gradient loses its digits in the first projection."""
    graphs = GraphBatch(torch.empty(2, 0, dtype=torch.long), 64)
    energy = GraphEnergy(GatedGCN(CHANNELS), systems=graphs)
    h = torch.randn(64, CHANNELS, requires_grad=True)
    g = torch.autograd.grad(energy(h).sum(), h)[0]
    M = g + 1e-4 * g.norm() / 16 * torch.randn_like(g)
    once = M - (M * g).sum() / (g * g).sum() * g
    from lyapflow import project

    twice = project(M, g, graphs)

    def overlap(T: Tensor) -> float:
        return abs(float((T.double() * g.double()).sum() / T.double().norm() / g.double().norm()))

    assert overlap(twice) < 1e-6
    assert overlap(once) > 10 * overlap(twice)


def test_where_the_energy_is_flat_the_state_moves_on() -> None:
    """Trap 6: g = 0 is no equilibrium, the velocity is beta M there; and dV/dt = 0."""
    graphs = example()
    conv, h = layer(), features(graphs)
    nn.init.zeros_(conv.energy.head[-1].weight)  # type: ignore[arg-type]
    parts = conv.bind(graphs).parts(0.0, h)
    assert parts.gradient.abs().max() == 0
    assert_close(parts.velocity, graphs.bind(h).spread(parts.beta) * parts.direction)
    assert (parts.rate == 0).all()
    assert parts.velocity.abs().max() > 0.1


def test_forward_euler_has_no_guarantee_and_dissipative_methods_have() -> None:
    """Trap 7."""
    graphs = example()
    rises = {}
    for method in ("euler", "armijo_euler", "relaxed_rk4"):
        conv = layer(method=method, num_steps=3, step_size=2.0, ablation="gradient-flow", guard=False)
        with torch.no_grad():
            conv.energy.head[-1].weight.mul_(5)  # type: ignore[operator]
            energy = conv.solve(features(graphs), graphs, saveat="steps").energy
        assert energy is not None
        rises[method] = float(energy.diff(dim=0).max() / energy.max())
    assert rises["euler"] > 0.01
    assert rises["armijo_euler"] <= 1e-12
    assert rises["relaxed_rk4"] <= 1e-12


def test_newtons_direction_of_a_graph_energy_says_where_the_hessian_is_singular() -> None:
    """Trap 8: where the energy is zero, V = sum v^2 has the Hessian 2 sum grad v grad v^T, of rank n at the most."""
    one = GraphBatch(torch.empty(2, 0, dtype=torch.long), 1)
    energy, h = GraphEnergy(GatedGCN(CHANNELS), systems=one).double(), features(one)
    with torch.no_grad():
        head: Any = energy.head
        head[-1].bias -= head(energy.value_and_features(h)[1])[0]  # now v = 0 here
    hessian = torch.autograd.functional.hessian(lambda h: energy(h).sum(), h).reshape(CHANNELS, CHANNELS)
    assert torch.linalg.matrix_rank(hessian) == 1
    assert "singular" in newton_split(energy, h).report()
    graphs = GraphBatch(torch.tensor([[0, 1], [1, 0]]), 2)
    ordinary = GraphEnergy(GatedGCN(CHANNELS), systems=graphs).double()
    damped = newton_split(ordinary, features(graphs), damping=1.0)
    assert_close(
        damped.alpha * graphs.inner(damped.gradient, damped.gradient), graphs.inner(damped.direction, damped.gradient)
    )


def test_nothing_in_the_energy_changes_from_call_to_call_or_couples_graphs() -> None:
    """Trap 9: by default; chosen all the same, a warning says what is lost."""
    conv = layer(dropout=0.5)
    drop = [part.p for part in conv.energy.modules() if isinstance(part, nn.Dropout)]
    assert set(drop) == {0.0}
    graphs = example()
    field, h = conv.bind(graphs), features(graphs)
    assert not torch.equal(field(0.0, h), field(0.0, h))  # the tangent has dropout
    assert torch.equal(field.energy(0.0, h), field.energy(0.0, h))
    parts = field.parts(0.0, h)
    assert_close(parts.rate, -parts.dissipation)  # and does no work nevertheless
    with pytest.warns(UserWarning, match="depends on the other graphs of a batch"):
        layer(norm="batch")
    with pytest.warns(UserWarning, match="changes from call to call"):
        GraphEnergy(GatedGCN(4, dropout=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GraphTangent(GatedGCN(4, dropout=0.1, norm="batch"))


def test_the_default_activation_has_a_second_derivative() -> None:
    """Trap 10: with ReLU and no norm, V is quadratic between its kinks, and the network has no curvature of its own."""
    graphs = example()

    def third(act: str) -> float:
        """Of the energy along a direction: 0 for what is quadratic piece by piece."""
        torch.manual_seed(0)
        gnn = GatedGCN(CHANNELS, norm="none", act=act)
        with torch.no_grad():  # gates that do not depend on the state
            weight = gnn.layers[0].of_nodes.weight  # type: ignore[union-attr]
            weight[:CHANNELS], weight[2 * CHANNELS : 3 * CHANNELS] = 0, 0  # type: ignore[index, operator]
        energy = GraphEnergy(gnn, act, systems=graphs).double()
        h = features(graphs).requires_grad_()
        value = energy(h).sum()
        for _ in range(3):
            value = torch.autograd.grad(value, h, create_graph=True)[0].sum()
        return abs(float(value.detach()))

    assert third("relu") < 1e-12
    assert third("silu") > 1e-4
    assert isinstance(TangoConv(4).energy.act, nn.SiLU)


def test_the_direction_can_point_anywhere() -> None:
    """Trap 11: after ReLU no entry is negative."""
    graphs = example()
    h = features(graphs)
    default, relu, tanh = (
        layer(tangent_act=act).bind(graphs).parts(0.0, h).direction for act in ("identity", "relu", "tanh")
    )
    assert default.min() < 0 < default.max()
    assert relu.min() >= 0
    assert -1 <= tanh.min() < 0 < tanh.max() <= 1


@pytest.mark.parametrize("name", ["gatedgcn", "gps"])
def test_states_of_edges_start_again_at_every_evaluation(name: str) -> None:
    """Trap 12: or V would not be a function of H."""
    graphs = example(3)
    conv = layer(name, 3, num_layers=3)
    field, h = conv.bind(graphs), features(graphs)
    first = field.energy(0.0, h)
    field(0.0, 2 * h)
    assert torch.equal(field.energy(0.0, h), first)
    assert graphs.edge_attr is not None
    assert graphs.edge_attr.shape[1] == 3  # nothing was written to the batch


def test_fused_attention_is_for_the_tangent_alone() -> None:
    """Trap 14."""
    with pytest.raises(ValueError, match="fused attention has no second derivative"):
        GraphEnergy(GPS(4, fused=True))
    graphs = example()
    conv = TangoConv(4, GPS(4), GPS(4, fused=True), num_steps=2).double()
    conv(features(graphs), graphs).sum().backward()
    assert all(p.grad is not None for p in conv.parameters())


def test_with_the_sum_the_gradient_does_not_fall_with_the_size_of_the_graph() -> None:
    """Trap 15, and 16: a graph of 50 copies of a graph, which are not connected."""
    small = GraphBatch(torch.tensor([[0, 1, 1], [1, 0, 2]]), 3)
    large = copies(small, 50)
    h = features(small)
    many = h.repeat(50, 1)
    for reduction, factor in (("sum", 1), ("mean", 50)):
        conv = layer(reduction=reduction)
        a, b = conv.bind(small).parts(0.0, h), conv.bind(large).parts(0.0, many)
        assert_close(b.gradient, a.gradient.repeat(50, 1) / factor)
    for pool, same in (("mean", True), ("sum", False)):
        conv = layer(pool=pool)
        a, b = conv.bind(small).parts(0.0, h), conv.bind(large).parts(0.0, many)
        for one, other in ((a.alpha, b.alpha), (a.beta, b.beta)):
            assert torch.allclose(one, other, rtol=1e-12) is same


def test_a_linear_map_behind_the_tangent() -> None:
    """The direction is an affine function of what it is without; and it is still made orthogonal."""
    torch.manual_seed(0)
    x, graphs = torch.randn(5, 8), GraphBatch(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), 5)
    conv = TangoConv(8, tangent_linear=True, tangent_act="tanh")
    assert conv.tangent is not None
    mapped = conv.tangent.map
    assert mapped is not None
    parts = conv.bind(graphs).parts(0.0, x)
    torch.testing.assert_close(parts.direction, mapped(conv.tangent.gnn(x, graphs).tanh()))
    assert float((parts.tangent * parts.gradient).sum().abs().detach()) < 1e-6
    assert TangoConv(8).tangent.map is None  # type: ignore[union-attr]


def test_beta_starts_where_it_is_told() -> None:
    x, edge_index = torch.randn(5, 8), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    conv = TangoConv(8, beta_start=2.0)
    for _ in range(2):
        beta = conv.field(edge_index).parts(0.0, x).beta.detach()
        assert abs(float(beta) - 2.0) < 0.2
        conv.reset_parameters()


def test_beta_starts_small() -> None:
    """Trap 16: its size is unbounded, and multiplies a direction that is not small."""
    torch.manual_seed(0)
    heads = [PooledCoefficient(32, "real", gain=0.1).head[-1] for _ in range(5)]
    sizes = [float(head.weight.detach().abs().max()) for head in heads]  # type: ignore[operator, union-attr]
    assert max(sizes) <= 0.1 / 32**0.5
    assert TangoConv(8).beta.gain == 0.1  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [{}, {"granularity": "node"}, {"reduction": "mean"}])
def test_a_graph_of_ten_thousand_nodes_stays_finite(options: dict[str, Any]) -> None:
    """Trap 16: with the sum as pool such a graph overflowed within 8 steps; with the default it hardly moves."""
    torch.manual_seed(0)
    nodes = 10_000
    edge_index, h = torch.randint(0, nodes, (2, 4 * nodes)), torch.randn(nodes, 16)
    conv = TangoConv(16, **options)
    with torch.no_grad():
        moved = conv(h, edge_index) - h
    assert torch.isfinite(moved).all()
    assert 0 < float(moved.norm() / h.norm()) < 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_gradient_and_projection_are_in_single(dtype: torch.dtype) -> None:
    """Trap 17: squares of a gradient of 1e-5 underflow in float16."""
    graphs = example()
    conv = layer(norm="none").float()
    with torch.no_grad():
        conv.energy.head[-1].weight.mul_(1e-3)  # type: ignore[operator]
        conv.energy.head[-1].bias.zero_()  # type: ignore[operator]
    h = features(graphs).to(dtype)
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        parts = conv.bind(graphs).parts(0.0, h)
    assert (parts.gradient.dtype, parts.tangent.dtype, parts.velocity.dtype) == (torch.float32, torch.float32, dtype)
    assert 0 < parts.gradient.square().max() < torch.finfo(torch.float16).tiny
    work = graphs.bind(h).inner(parts.tangent, parts.gradient).abs()
    sizes = length(graphs.bind(h), parts.tangent) * length(graphs.bind(h), parts.gradient)
    assert (work <= ROUNDINGS * torch.finfo(torch.float32).eps * sizes).all()


@pytest.mark.parametrize("name", ["gatedgcn", "gps", "gat"])
def test_the_outer_backward_is_a_directional_derivative(name: str) -> None:
    """Trap 20: d<g, v>/dH by a graph of a graph equals the derivative of an ordinary gradient along v."""
    graphs = example()
    energy = layer(name).energy.bind(graphs)
    h, v = features(graphs), features(graphs, seed=1)

    def gradient(x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: energy(x).sum())(x)

    forward = torch.func.jvp(gradient, (h,), (v,))[1]
    point = h.clone().requires_grad_()
    (g,) = torch.autograd.grad(energy(point).sum(), point, create_graph=True)
    (reverse,) = torch.autograd.grad((g * v).sum(), point)
    assert_close(reverse, forward, 1e-12)


# -- ordinary input that is easily forgotten, and wrong input ---------------------------------------------------------


@pytest.mark.parametrize("name", ["gatedgcn", "gps", "gat", "pna"])
def test_graphs_without_nodes_or_edges_are_ordinary(name: str) -> None:
    """Trap 18."""
    conv = layer(name)
    nothing = torch.empty(2, 0, dtype=torch.long)
    empty = conv(torch.zeros(0, CHANNELS, dtype=torch.float64), nothing)
    assert empty.shape == (0, CHANNELS)
    one = conv(torch.ones(1, CHANNELS, dtype=torch.float64), nothing)
    assert torch.isfinite(one).all()
    gap = torch.tensor([0, 0, 3])
    h = torch.randn(3, CHANNELS, dtype=torch.float64)
    field = conv.field(torch.tensor([[0], [1]]), batch=gap, batch_size=5)
    energy = field.energy(0.0, h)
    assert energy.shape == (5,)
    assert (energy[[1, 2, 4]] == 0).all()
    assert torch.isfinite(field(0.0, h)).all()


@pytest.mark.parametrize(
    ("x", "edge_index", "error", "text"),
    [
        (torch.ones(2, 3), torch.tensor([[0], [1]]), ValueError, r"x must have shape \[num_nodes, 4\], got \[2, 3\]"),
        (torch.ones(2), torch.tensor([[0], [1]]), ValueError, r"x must have shape \[num_nodes, 4\], got \[2\]"),
        (torch.ones(2, 4).long(), torch.tensor([[0], [1]]), TypeError, r"call x\.float\(\)"),
        ([[1.0]], torch.tensor([[0], [1]]), TypeError, "x must be a tensor, got list"),
        (torch.full((2, 4), float("nan")), torch.tensor([[0], [1]]), ValueError, "x is not finite at node 0"),
        (torch.ones(2, 4), torch.tensor([[0], [2]]), ValueError, r"edge_index must lie in 0\.\.1"),
        (torch.ones(2, 4), torch.tensor([[0.0], [1.0]]), TypeError, "edge_index must hold integers"),
    ],
)
def test_wrong_input_is_named(x: Any, edge_index: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        TangoConv(4)(x, edge_index)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"channels": 0}, ValueError, "channels must be positive"),
        ({"num_steps": 0}, ValueError, "steps must be positive, got 0"),
        ({"step_size": -0.1}, ValueError, "step_size must be positive"),
        ({"method": "eulr"}, ValueError, "eulr"),
        ({"granularity": "edge"}, ValueError, 'granularity must be "graph" or "node"'),
        ({"ablation": "all"}, ValueError, "ablation must be None"),
        ({"reduction": "max"}, ValueError, 'reduction must be "sum" or "mean"'),
        ({"pool": "max"}, ValueError, 'pool must be "mean" or "sum"'),
        ({"energy_gnn": GatedGCN(4)}, TypeError, "tangent_gnn must be given"),
        ({"energy_gnn": "gcn", "edge_dim": 2}, ValueError, "'gcn' cannot use features of edges"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        TangoConv(**{"channels": 4, **options})


def test_parts_on_graphs_need_graphs() -> None:
    with pytest.raises(TypeError, match=r"GraphEnergy lives on graphs: bind it with \.bind\(GraphBatch"):
        GraphEnergy(GatedGCN(4))(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="within must be"):
        PooledCoefficient(4, "tanh")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the graphs have 2 nodes, but the state is 3 rows"):
        TangoConv(4).field(torch.tensor([[0], [1]]))(0.0, torch.zeros(3, 4))
