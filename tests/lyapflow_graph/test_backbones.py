"""Backbones: what they compute, on every kind of graph, twice differentiable."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GINEConv, GraphSAGE

from lyapflow_graph import (
    BACKBONES,
    GPS,
    NORMS,
    GatedGCN,
    GraphAttention,
    GraphBatch,
    GraphEnergy,
    ModuleBackbone,
    PyGBackbone,
    make_backbone,
)
from lyapflow_graph.backbones.norms import RowNorm
from tests.lyapflow_graph.cases import (
    CHANNELS,
    NETWORKS,
    WITH_EDGES,
    alone,
    assert_close,
    batches,
    example,
    features,
    renumbered,
)

SEEDS = st.integers(0, 1000)


def network(name: str, edge_dim: int | None, seed: int = 0, num_layers: int = 2, **options: Any) -> Any:
    torch.manual_seed(seed)
    return make_backbone(name, CHANNELS, num_layers, edge_dim, **options).double()


# -- GatedGCN and GPS, against the formulas written out edge by edge --------------------------------------------------


def layer_norm(x: Tensor) -> Tensor:
    return (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt()


def gated_layer(layer: Any, h: Tensor, e: Tensor | None, graphs: GraphBatch) -> tuple[Tensor, Tensor | None]:
    """The formulas of GatedGCN, edge by edge and node by node."""
    E, B, D, A = layer.of_nodes.weight.chunk(4)
    ee, b, d, a = layer.of_nodes.bias.chunk(4)
    silu = torch.nn.functional.silu
    edges = graphs.edge_index.T.tolist()
    z = [D @ h[i] + d + E @ h[j] + ee for j, i in edges]
    if e is not None:
        z = [z_ij + layer.of_edges.weight @ e_ij + layer.of_edges.bias for z_ij, e_ij in zip(z, e, strict=True)]
    rows = []
    for i in range(len(h)):
        own = [k for k, edge in enumerate(edges) if edge[1] == i]
        total = sum((torch.sigmoid(z[k]) for k in own), torch.zeros_like(h[i])) + 1e-6
        eta = {k: torch.sigmoid(z[k]) / (total if layer.form.normalize else 1) for k in own}
        u = A @ h[i] + a + sum((eta[k] * (B @ h[edges[k][0]] + b) for k in own), torch.zeros_like(h[i]))
        rows.append(h[i] + silu(layer_norm(u)))
    new = None if e is None else torch.stack([e_ij + silu(layer_norm(z_ij)) for e_ij, z_ij in zip(e, z, strict=True)])
    return torch.stack(rows), new


@pytest.mark.parametrize("edge_dim", [None, CHANNELS])
@pytest.mark.parametrize("normalize", [True, False])
def test_gatedgcn_is_the_published_one(edge_dim: int | None, normalize: bool) -> None:
    graphs = example(edge_dim)
    gnn, h = network("gatedgcn", edge_dim, num_layers=3, normalize=normalize).requires_grad_(False), features(graphs)
    found, e = h, graphs.edge_attr
    for layer in gnn.layers:
        found, e = gated_layer(layer, found, e, graphs)
    assert_close(gnn(h, graphs), found)


def test_features_of_edges_of_another_width_are_mapped_first() -> None:
    graphs = example(3)
    gnn, h = network("gatedgcn", 3), features(graphs)
    assert graphs.edge_attr is not None
    encoded = graphs.with_edge_attr(gnn.edge_encoder(graphs.edge_attr))
    same = network("gatedgcn", CHANNELS)
    same.load_state_dict({name: value for name, value in gnn.state_dict().items() if "edge_encoder" not in name})
    assert_close(gnn(h, graphs), same(h, encoded))


@pytest.mark.parametrize(("local", "edge_dim"), [("gatedgcn", None), ("gatedgcn", CHANNELS), ("gcn", None)])
@pytest.mark.parametrize("attention", ["full", "linear"])
@pytest.mark.parametrize("normalize", [True, False])
def test_gps_is_the_published_one(local: str, edge_dim: int | None, attention: str, normalize: bool) -> None:
    graphs = example(edge_dim)
    of_gates = {} if normalize else {"normalize": False}
    if local != "gatedgcn" and of_gates:
        pytest.skip("only GatedGCN has gates")
    gnn = network("gps", edge_dim, num_layers=2, local=local, attention=attention, heads=2, **of_gates)
    gnn.requires_grad_(False)
    h, e = features(graphs), graphs.edge_attr
    found = h
    for layer in gnn.layers:
        if local == "gatedgcn":
            near, e = gated_layer(layer.local, found, e, graphs)
        else:
            near = found + layer.local.conv(found, graphs.edge_index)
        far = found + written_out_attention(layer.attention, found, graphs)
        y = torch.stack([layer_norm(row) for row in near]) + torch.stack([layer_norm(row) for row in far])
        first, second = layer.feed_forward[0], layer.feed_forward[3]
        assert first.out_features == 2 * CHANNELS
        y = y + second(torch.nn.functional.silu(first(y)))
        found = torch.stack([layer_norm(row) for row in y])
    assert_close(gnn(h, graphs), found)


def written_out_attention(attention: GraphAttention, h: Tensor, graphs: GraphBatch) -> Tensor:
    """Attention node by node, as weights over the nodes of its own graph."""
    width = h.shape[1] // attention.heads
    parts = attention.of_nodes(h).reshape(len(h), 3, attention.heads, width)
    found = torch.zeros_like(h).reshape(len(h), attention.heads, width)
    for i in range(len(h)):
        own = (graphs.graph_of_node == graphs.graph_of_node[i]).nonzero()[:, 0]
        for head in range(attention.heads):
            q, k, v = parts[i, 0, head], parts[own, 1, head], parts[own, 2, head]
            if attention.attention == "full":
                weights = torch.exp(k @ q / math.sqrt(width))
            else:
                assert attention.directions is not None
                w, root = attention.directions[head], width**0.25

                def phi(x: Tensor) -> Tensor:
                    return torch.exp(x @ w.T - x.square().sum(-1, keepdim=True) / 2)  # noqa: B023

                weights = phi(k / root) @ phi(q / root)
            found[i, head] = (weights / weights.sum()) @ v
    return attention.out(found.flatten(1))


def test_rows_are_normalised_as_torch_does_and_differentiable_thrice() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    norm, oracle = RowNorm(4).double(), nn.LayerNorm(4).double()
    with torch.no_grad():
        for ours, theirs in zip(norm.parameters(), oracle.parameters(), strict=True):
            theirs.copy_(ours.normal_())
    assert_close(norm(x).detach(), oracle(x).detach())

    def gradient(x: Tensor) -> Tensor:
        return torch.autograd.grad(norm(x).pow(3).sum(), x, create_graph=True)[0]

    torch.autograd.gradgradcheck(gradient, (x,))


# -- attention --------------------------------------------------------------------------------------------------------


def test_linear_attention_comes_close_to_full_attention_with_many_features() -> None:
    graphs, errors = example(), []
    h = features(graphs, 16)
    torch.manual_seed(0)
    full = GraphAttention(16, heads=2, attention="full").double()
    weights = {k: v for k, v in full.state_dict().items() if k != "directions"}
    for count in (64, 65536):
        linear = GraphAttention(16, heads=2, attention="linear", features=count).double()
        linear.load_state_dict(weights, strict=False)
        with torch.no_grad():
            exact = full(h, graphs)
            errors.append(float((linear(h, graphs) - exact).norm() / exact.norm()))
    assert errors[1] < 0.02
    assert errors[1] < errors[0] / 8  # like the root of their number


@given(batches(max_graphs=4), SEEDS, st.sampled_from([1, 2, 3]))
def test_auto_attention_depends_on_the_size_of_the_own_graph_alone(graphs: GraphBatch, seed: int, limit: int) -> None:
    torch.manual_seed(seed)
    auto = GraphAttention(CHANNELS, heads=2, full_up_to=limit).double()
    h = features(graphs, seed=seed)
    found = auto(h, graphs)
    for kind in ("full", "linear"):
        other = GraphAttention(CHANNELS, heads=2, attention=kind).double()  # type: ignore[arg-type]
        other.load_state_dict(auto.state_dict() if kind == "linear" else without_directions(auto))
        chosen = graphs.node_counts[graphs.graph_of_node] <= limit
        chosen = chosen if kind == "full" else ~chosen
        assert_close(found[chosen], other(h, graphs)[chosen])


def without_directions(attention: GraphAttention) -> dict[str, Tensor]:
    return {name: value for name, value in attention.state_dict().items() if name != "directions"}


@pytest.mark.parametrize("attention", ["full", "linear"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_is_finite_at_every_scale(attention: Any, scale: float, dtype: torch.dtype) -> None:
    graphs = example()
    layer = GraphAttention(8, heads=2, attention=attention).to(dtype)
    h = features(graphs, 8, scale=scale).to(dtype).requires_grad_()
    value = layer(h, graphs).square().sum()
    (slope,) = torch.autograd.grad(value, h, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), h)
    for x in (value, slope, curve):
        assert torch.isfinite(x).all()


def test_fused_attention_is_the_same(device: torch.device) -> None:
    graphs = example(device=device)
    plain = GraphAttention(8, heads=2, attention="full").double().to(device)
    fused = GraphAttention(8, heads=2, attention="full", fused=True).double().to(device)
    fused.load_state_dict(plain.state_dict())
    h = features(graphs, 8).to(device)
    assert_close(fused(h, graphs), plain(h, graphs))


def test_random_directions_are_kept_and_orthogonal() -> None:
    layer = GraphAttention(16, heads=2, attention="linear", features=12)
    assert "directions" in layer.state_dict()
    directions = layer.directions
    assert directions is not None
    assert directions.shape == (2, 12, 8)
    block = directions[:, :8]
    gram = block @ block.transpose(1, 2)
    assert (gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))).abs().max() < 1e-4
    h = torch.randn(10, 16)
    assert torch.equal(layer(h, example()), layer(h, example()))


# -- layers of PyTorch Geometric --------------------------------------------------------------------------------------


def test_layers_of_torch_geometric_are_taken_as_they_are() -> None:
    graphs, plain = example(), {"norm": "none", "act": "identity", "residual": False, "num_layers": 1}
    h = features(graphs)
    gnn = network("gcn", None, **plain)
    oracle = GCNConv(CHANNELS, CHANNELS).double()
    oracle.load_state_dict(gnn.layers[0].conv.conv.state_dict())
    with torch.no_grad():
        assert_close(gnn(h, graphs), oracle(h, graphs.edge_index))
    residual = network("gcn", None, num_layers=1)
    inside = torch.nn.functional.silu(torch.stack([layer_norm(row) for row in oracle(h, graphs.edge_index)]))
    assert_close(residual(h, graphs), h + inside)
    graphs = example(CHANNELS)
    gnn = network("gine", CHANNELS, **plain)
    inner = gnn.layers[0].conv.conv
    oracle = GINEConv(inner.nn, edge_dim=CHANNELS).double()
    oracle.load_state_dict(inner.state_dict())
    assert_close(gnn(h, graphs), oracle(h, graphs.edge_index, graphs.edge_attr))


def test_gcnii_gets_what_the_first_layer_got_and_the_number_of_its_layer() -> None:
    graphs, gnn = example(), network("gcnii", None, num_layers=3)
    h = found = features(graphs)
    for i, layer in enumerate(gnn.layers):
        assert layer.conv.conv.beta == pytest.approx(math.log(0.5 / (i + 1) + 1))
        inside = layer.conv.conv(found, h, graphs.edge_index)
        found = found + torch.nn.functional.silu(torch.stack([layer_norm(row) for row in inside]))
    assert_close(gnn(h, graphs), found)


def test_options_reach_the_layers() -> None:
    assert network("gat", None, heads=2).layers[0].conv.conv.heads == 2
    assert network("gatv2", None).layers[0].conv.conv.heads == 4
    assert PyGBackbone("gatv2", 6).layers[0].conv.conv.heads == 3
    assert PyGBackbone("gat", 7).layers[0].conv.conv.heads == 1
    scaled = network("pna", None, deg=torch.tensor([0, 3, 2]))
    assert scaled.layers[0].conv.conv.aggr_module.scaler == ["identity", "amplification", "attenuation"]
    assert network("gcnii", None, alpha=0.3).layers[0].conv.conv.alpha == 0.3


def test_any_module_can_be_a_backbone() -> None:
    graphs = example()
    inner = GraphSAGE(CHANNELS, 8, num_layers=2, out_channels=CHANNELS, act="tanh").double()
    gnn, h = make_backbone(inner, CHANNELS), features(graphs)
    assert isinstance(gnn, ModuleBackbone)
    assert_close(gnn(h, graphs), inner(h, graphs.edge_index))

    class Own(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
            return x + edge_attr.sum() + batch[:, None]

    with_edges = example(3)
    assert with_edges.edge_attr is not None
    wanted = h + with_edges.edge_attr.sum() + with_edges.graph_of_node[:, None]
    assert_close(make_backbone(Own(), CHANNELS, edge_dim=3)(h, with_edges), wanted)
    with pytest.raises(ValueError, match="GraphSAGE must give a tensor of shape"):
        make_backbone(GraphSAGE(CHANNELS, 8, num_layers=1).double(), CHANNELS)(h, graphs)
    with pytest.raises(ValueError, match="takes no edge_attr"):
        make_backbone(nn.Linear(2, 2), CHANNELS, edge_dim=3)


# -- what all of them promise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "edge_dim"), NETWORKS)
def test_second_derivatives_in_the_energy_are_right(name: str, edge_dim: int | None) -> None:
    graphs = example(edge_dim)
    energy = GraphEnergy(network(name, edge_dim), systems=graphs).double()
    h = features(graphs).requires_grad_()

    def gradient(h: Tensor) -> Tensor:
        return torch.autograd.grad(energy(h).sum(), h, create_graph=True)[0]

    torch.autograd.gradcheck(energy, (h,), fast_mode=True)
    torch.autograd.gradgradcheck(energy, (h,), fast_mode=True)
    torch.autograd.gradgradcheck(gradient, (h,), fast_mode=True)  # what training through a step twice would need
    parameters = dict(energy.named_parameters())

    def of_parameters(*values: Tensor) -> Tensor:
        swapped = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(energy, swapped, (h.detach(),))

    values = tuple(value.detach().requires_grad_() for value in parameters.values())
    torch.autograd.gradgradcheck(of_parameters, values, fast_mode=True)


@pytest.mark.parametrize(("name", "edge_dim"), [("gps", None), ("gps", 3)])
def test_second_derivatives_of_linear_attention_in_the_energy_are_right(name: str, edge_dim: int | None) -> None:
    graphs = example(edge_dim)
    energy = GraphEnergy(network(name, edge_dim, attention="linear"), systems=graphs).double()
    torch.autograd.gradgradcheck(energy, (features(graphs).requires_grad_(),), fast_mode=True)


@pytest.mark.parametrize(("name", "edge_dim"), NETWORKS)
@given(data=st.data(), seed=SEEDS)
def test_a_graph_is_the_same_alone_and_in_any_batch(name: str, edge_dim: int | None, data: Any, seed: int) -> None:
    graphs = data.draw(batches(edge_dim, max_graphs=3, max_nodes=5))
    norm = data.draw(st.sampled_from(["layer", "graph", "none"]))
    gnn, h = network(name, edge_dim, seed, norm=norm), features(graphs, seed=seed)
    with torch.no_grad():
        found = gnn(h, graphs)
        assert torch.isfinite(found).all()
        order = torch.randperm(len(h))
        assert_close(gnn(h[order], renumbered(graphs, order)), found[order])
        for i in range(graphs.count):
            single, nodes = alone(graphs, i)
            assert_close(gnn(h[nodes], single), found[nodes], 1e-10)


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("norm", NORMS)
def test_every_norm_and_dropout_is_at_work(name: str, norm: str) -> None:
    edge_dim = 3 if name in WITH_EDGES else None
    graphs = example(edge_dim)
    gnn, h = network(name, edge_dim, norm=norm, dropout=0.5), features(graphs)
    assert not torch.equal(gnn(h, graphs), gnn(h, graphs))
    gnn.eval()
    assert torch.equal(gnn(h, graphs), gnn(h, graphs))
    if norm != "none":
        kinds = {"layer": RowNorm, "batch": nn.BatchNorm1d, "graph": nn.Module}
        assert any(isinstance(part, kinds[norm]) for part in gnn.modules())
    assert set(dict(gnn.named_parameters())) == set(dict(network(name, edge_dim, norm=norm).named_parameters()))


@pytest.mark.parametrize(("name", "edge_dim"), NETWORKS)
def test_every_parameter_is_used_and_can_be_drawn_again(name: str, edge_dim: int | None) -> None:
    graphs = example(edge_dim)
    gnn = network(name, edge_dim)
    gnn(features(graphs), graphs).square().sum().backward()
    assert all(parameter.grad is not None for parameter in gnn.parameters())
    before = [parameter.clone() for parameter in gnn.parameters() if parameter.ndim > 1]
    gnn.reset_parameters()
    after = [parameter for parameter in gnn.parameters() if parameter.ndim > 1]
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# -- traps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [-10.0, -40.0, -800.0])
def test_gates_that_are_all_closed_leave_derivatives_finite_and_right(bias: float) -> None:
    """s / (sum s + 1e-6): where all gates close, the share of a neighbour goes from 1 to 0."""
    graphs = example()
    gnn = network("gatedgcn", None, num_layers=1)
    with torch.no_grad():
        gnn.layers[0].of_nodes.bias[2 * CHANNELS : 3 * CHANNELS] = bias
    energy = GraphEnergy(gnn, systems=graphs).double()
    h = features(graphs).requires_grad_()
    (slope,) = torch.autograd.grad(energy(h).sum(), h, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), h)
    assert torch.isfinite(slope).all()
    assert torch.isfinite(curve).all()
    torch.autograd.gradgradcheck(energy, (h,), fast_mode=True)


# -- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: make_backbone("transformer", 4), "unknown backbone 'transformer'; known are: gat, gatedgcn"),
        (lambda: GatedGCN(0), "channels must be positive, got 0"),
        (lambda: GatedGCN(4, num_layers=0), "num_layers must be positive, got 0"),
        (lambda: GatedGCN(4, dropout=1.0), r"dropout must lie in \[0, 1\), got 1.0"),
        (lambda: GatedGCN(4, norm="huge"), "unknown norm 'huge'; known are: layer, graph, batch, none"),
        (lambda: GatedGCN(4, act="huge"), "unknown activation 'huge'"),
        (lambda: GPS(6, heads=4), "heads must divide channels=6, got 4"),
        (lambda: GPS(4, attention="some"), "attention must be"),  # type: ignore[arg-type]
        (lambda: GPS(4, local="mlp"), "unknown backbone 'mlp'"),
        (
            lambda: PyGBackbone("gcn", 4, edge_dim=2),
            "'gcn' cannot use features of edges .* can: gatedgcn, gps",
        ),
        (lambda: PyGBackbone("gine", 4), "'gine' needs features of edges: give edge_dim"),
        (lambda: make_backbone(GatedGCN(4), 8), "the network has channels=4, but 8 are wanted"),
        (lambda: make_backbone(GatedGCN(4), 4, edge_dim=2), "the network has edge_dim=None, but 2 are wanted"),
    ],
)
def test_wrong_settings_are_named(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        GPS(4, size=3)


def test_wrong_input_is_named() -> None:
    edges, h = torch.tensor([[0], [1]]), torch.zeros(2, 4)
    with pytest.raises(ValueError, match=r"x must have shape \[num_nodes, 4\], got \[2, 3\]"):
        GatedGCN(4)(torch.zeros(2, 3), edges)
    with pytest.raises(ValueError, match="make it with edge_dim=2"):
        GatedGCN(4)(h, edges, torch.zeros(1, 2))
    with pytest.raises(ValueError, match="edge_attr is missing: the network was made with edge_dim=2"):
        GatedGCN(4, edge_dim=2)(h, edges)
    with pytest.raises(ValueError, match=r"edge_attr must have 2 features \(edge_dim\), got 3"):
        GatedGCN(4, edge_dim=2)(h, edges, torch.zeros(1, 3))
    with pytest.raises(ValueError, match="do not give them again"):
        GatedGCN(4)(h, GraphBatch(edges, 2), batch=torch.zeros(2).long())
    with pytest.raises(ValueError, match="x has 2 rows, but the graphs have 3 nodes"):
        GatedGCN(4)(h, GraphBatch(edges, 3))
