"""Whole models, as users of PyTorch Geometric meet them."""

from __future__ import annotations

import copy
import io
import os
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.loader import DataLoader, NeighborLoader
from torch_geometric.nn import summary
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE

from lyapflow.testing import check_field
from lyapflow_graph import (
    ATOM_FEATURES,
    BACKBONES,
    BOND_FEATURES,
    CategoricalEncoder,
    GatedGCN,
    GraphBatch,
    GraphNet,
    PositionalEncoder,
    Tango,
    TangoConv,
)
from tests.lyapflow_graph.cases import assert_close


def ring(nodes: int, width: int = 5, edge_dim: int | None = None) -> Data:
    there = torch.arange(nodes)
    edge_index = torch.stack([torch.cat([there, (there + 1) % nodes]), torch.cat([(there + 1) % nodes, there])])
    edge_attr = None if edge_dim is None else torch.randn(2 * nodes, edge_dim)
    return Data(x=torch.randn(nodes, width), edge_index=edge_index, edge_attr=edge_attr)


def batch_of_rings(**options: Any) -> Batch:
    return Batch.from_data_list([ring(nodes, **options) for nodes in (3, 5, 4)])


def molecule(atoms: int) -> Data:
    data = ring(atoms)
    data.x = torch.stack([torch.randint(0, count, (atoms,)) for count in ATOM_FEATURES], 1)
    data.edge_attr = torch.stack([torch.randint(0, count, (2 * atoms,)) for count in BOND_FEATURES], 1)
    return data


# -- what goes in and comes out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["node", "graph"])
@pytest.mark.parametrize("edge_dim", [None, 3])
def test_data_batches_and_tensors_give_the_same(task: Any, edge_dim: int | None) -> None:
    batch = batch_of_rings(edge_dim=edge_dim)
    model = Tango(5, 8, 2, task=task, edge_dim=edge_dim, num_steps=2)
    found = model(batch)
    assert found.shape == ((12, 2) if task == "node" else (3, 2))
    tensors = (batch.x, batch.edge_index, batch.edge_attr, batch.batch)
    assert torch.equal(model(*tensors), found)
    assert torch.equal(model(batch.x, GraphBatch.of(batch)), found)
    rows = [model(data) for data in batch.to_data_list()]
    assert_close(torch.cat(rows), found, 1e-5)


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_learns(name: str) -> None:
    """Twenty steps of training lower the loss, and no entry of a gradient is missing or not finite."""
    torch.manual_seed(0)
    edge_dim = 3 if name == "gine" else None
    batch = batch_of_rings(edge_dim=edge_dim)
    target = torch.arange(12) % 3
    model = Tango(5, 16, 3, backbone=name, edge_dim=edge_dim, num_steps=4)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), target)
        loss.backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize(
    ("width", "steps"),
    [
        (8, 3),
        pytest.param(64, 20, marks=pytest.mark.skipif(
            os.environ.get("HYPOTHESIS_PROFILE") != "thorough", reason="takes five minutes: profile thorough"
        )),
    ],
)  # fmt: skip
def test_a_graph_of_fifty_thousand_nodes_trains_with_the_defaults(width: int, steps: int) -> None:
    torch.manual_seed(0)
    nodes = 50_000
    x, edge_index, target = torch.randn(nodes, 16), torch.randint(0, nodes, (2, 300_000)), torch.randint(0, 5, (nodes,))
    model = Tango(16, width, 5)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edge_index), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_molecules_are_encoded_by_embedding() -> None:
    batch = Batch.from_data_list([molecule(6), molecule(9)])
    model = Tango(ATOM_FEATURES, 16, 10, task="graph", edge_dim=BOND_FEATURES, num_steps=2)
    out = model(batch)
    assert out.shape == (2, 10)
    out.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    zinc = Tango([28], 16, 1, task="graph", edge_dim=[4], num_steps=1)
    data = ring(7)
    data.x, data.edge_attr = torch.randint(0, 28, (7, 1)), torch.randint(0, 4, (14,))
    assert zinc(data).shape == (1, 1)


@pytest.mark.parametrize("backbone", ["gatedgcn", "gps"])
def test_positional_encodings_are_those_of_torch_geometrics_transforms(backbone: str) -> None:
    transforms = (AddRandomWalkPE(4), AddLaplacianEigenvectorPE(2, is_undirected=True))
    graphs = [ring(nodes) for nodes in (5, 6)]
    for transform in transforms:
        graphs = [transform(graph) for graph in graphs]
    batch = Batch.from_data_list(graphs)
    widths = {"random_walk_pe": 4, "laplacian_eigenvector_pe": 2}
    model = Tango(5, 8, 1, backbone=backbone, task="graph", pe=widths, num_steps=1).eval()
    found = model(batch)
    encodings = {name: batch[name] for name in widths}
    arguments = {"x": batch.x, "edge_index": batch.edge_index, "batch": batch.batch}
    assert torch.equal(model(**arguments, pe=encodings), found)
    for name in widths:
        assert not torch.equal(model(**arguments, pe={**encodings, name: 0 * batch[name]}), found)


def test_the_sign_of_an_eigenvector_is_not_learned() -> None:
    """In training it is drawn again for every graph and column; not so in evaluation, nor for other encodings."""
    graphs = GraphBatch(torch.empty(2, 0, dtype=torch.long), 4, batch=torch.tensor([0, 0, 1, 1]))
    encoder = PositionalEncoder("laplacian_eigenvector_pe", 2, 2)
    nn.init.eye_(encoder.linear.weight)
    nn.init.zeros_(encoder.linear.bias)
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    seen = set()
    for _ in range(200):
        signs = (encoder(values, graphs) / values).detach().round().int()
        assert torch.equal(signs[0], signs[1])
        assert torch.equal(signs[2], signs[3])
        seen.add(tuple(signs[[0, 2]].flatten().tolist()))
    assert len(seen) == 16
    assert torch.equal(encoder.eval()(values, graphs), values)
    walk = PositionalEncoder("random_walk_pe", 2, 2)
    assert torch.equal(walk(values, graphs), walk(values, graphs))


@pytest.mark.parametrize("backbone", ["gatedgcn", "gps", "gat", "pna"])
def test_inference_mode(backbone: str) -> None:
    """With everything made inside of it; an energy takes its gradient all the same."""
    torch.manual_seed(0)
    batch = Batch.from_data_list([molecule(6), molecule(9)])
    model = Tango(ATOM_FEATURES, 8, 2, backbone, edge_dim=BOND_FEATURES, task="graph", num_steps=2)
    wanted = model(batch).detach()
    with torch.inference_mode():
        inside = batch.clone()
        assert inside.x.is_inference()
        assert_close(model(inside).clone(), wanted, 1e-5)


def test_any_method_takes_the_place_of_euler() -> None:
    batch = batch_of_rings()
    model = Tango(5, 8, 2, method="armijo_euler", num_steps=3, step_size=1.0)
    energy = model.solve(batch, saveat="steps").energy
    assert energy is not None
    assert energy.shape[1] == 3
    assert (energy.diff(dim=0) <= 1e-6).all()
    model(batch).sum().backward()


def test_weights_of_every_step() -> None:
    """Without shared weights every step has an energy of its own, and there is no field of the whole."""
    batch = batch_of_rings()
    shared, layers = Tango(5, 8, 2, num_steps=3), Tango(5, 8, 2, num_steps=3, share_weights=False)
    flows = [module for module in layers.modules() if isinstance(module, TangoConv)]
    assert len(flows) == 3
    count = sum(p.numel() for p in shared.conv.parameters())
    assert sum(p.numel() for flow in flows for p in flow.parameters()) == 3 * count
    for flow in flows:
        flow.load_state_dict(shared.conv.state_dict())
    layers.load_state_dict(layers.state_dict() | encoders(shared))
    assert_close(layers(batch), shared(batch), 1e-5)
    with pytest.raises(RuntimeError, match="every step has a field and an energy of its own"):
        layers.field(batch)


def encoders(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if not name.startswith("body")}


def test_a_backbone_or_another_dynamics_can_take_the_place_of_the_flow() -> None:
    batch = batch_of_rings(edge_dim=3)
    model = GraphNet(5, 8, 2, GatedGCN(8, 2, edge_dim=3), task="graph", edge_dim=3, readout_pool="max")
    assert model(batch).shape == (3, 2)
    conv = TangoConv(8, edge_dim=3)
    assert GraphNet(5, 8, 2, conv, edge_dim=3)(batch).shape == (12, 2)


@pytest.mark.parametrize("edge_dim", [None, 3, [4, 2]])
def test_the_field_of_a_model_keeps_its_promises(edge_dim: Any) -> None:
    batch = batch_of_rings(edge_dim=3 if edge_dim == 3 else None)
    if isinstance(edge_dim, list):
        batch.edge_attr = torch.stack([torch.randint(0, count, (24,)) for count in edge_dim], 1)
    model = Tango(5, 4, 2, edge_dim=edge_dim)
    check_field(model.field(batch), torch.randn(12, 4), max_examples=2)


def test_the_readout_of_all_pools_has_them_side_by_side() -> None:
    batch = batch_of_rings()
    model = Tango(5, 8, 2, task="graph", readout_pool="all", num_steps=1)
    h, graphs = model.encode(batch)
    h = model.body(h, graphs)
    parts = [h[batch.batch == i] for i in range(3)]
    pooled = torch.stack([torch.cat([part.sum(0), part.mean(0), part.amax(0)]) for part in parts])
    torch.testing.assert_close(model(batch), model.readout(pooled))
    assert Tango(5, 8, 2, task="node", readout_pool="all")(batch).shape == (12, 2)


@pytest.mark.parametrize("readout_pool", ["mean", "sum", "max"])
def test_the_readout_pools_the_nodes_of_each_graph(readout_pool: Any) -> None:
    batch = batch_of_rings()
    model = Tango(5, 8, 2, task="graph", readout_pool=readout_pool, num_steps=1)
    h, graphs = model.encode(batch)
    h = model.conv(h, graphs)
    pooled = [getattr(h[batch.batch == i], {"max": "amax"}.get(readout_pool, readout_pool))(0) for i in range(3)]
    assert_close(model(batch), model.readout(torch.stack(pooled)), 1e-5)


# -- living with other tools ------------------------------------------------------------------------------------------


def test_loaders(device: torch.device) -> None:
    model = Tango(5, 8, 2, task="graph", num_steps=1).to(device)
    for batch in DataLoader([ring(n) for n in (3, 4, 5, 6)], batch_size=2):
        assert model(batch.to(device)).shape == (2, 2)


def test_neighbour_loader() -> None:
    pytest.importorskip("pyg_lib", reason="sampling of neighbours needs pyg_lib or torch_sparse")
    model = Tango(5, 8, 2, num_steps=1)
    for batch in NeighborLoader(ring(30), [2, 2], batch_size=10):
        assert model(batch)[: batch.batch_size].shape == (10, 2)


def test_a_sample_of_neighbours_is_one_graph() -> None:
    """What NeighborLoader gives: `batch_size` seeds first, no `batch`."""
    data = ring(12)
    data.batch_size = 4
    model = Tango(5, 8, 2, num_steps=1)
    assert model(data)[: data.batch_size].shape == (4, 2)
    assert GraphBatch.of(data).count == 1


@pytest.mark.parametrize("backbone", ["gatedgcn", "gps", "gat"])
def test_weights_can_be_saved_and_loaded_safely(backbone: str) -> None:
    batch = batch_of_rings()
    model, other = Tango(5, 8, 2, backbone=backbone), Tango(5, 8, 2, backbone=backbone)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(model(batch), other(batch))


@pytest.mark.parametrize("backbone", BACKBONES)
def test_models_can_be_copied_and_pickled(backbone: str) -> None:
    edge_dim = 3 if backbone == "gine" else None
    batch = batch_of_rings(edge_dim=edge_dim)
    model = Tango(5, 8, 2, backbone=backbone, edge_dim=edge_dim, num_steps=1, method="heun2")
    found = model(batch)  # first, so that nothing of the graphs is left on it
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(batch), found)
    names = {name for module in model.modules() for name, value in vars(module).items() if isinstance(value, Tensor)}
    assert not names


def test_summary() -> None:
    data = ring(6)
    table = summary(Tango(5, 8, 2), data.x, data.edge_index)
    assert "TangoConv" in table
    assert "[6, 2]" in table


def explainer(model: nn.Module, edges: bool) -> Explainer:
    return Explainer(
        model, GNNExplainer(epochs=5), explanation_type="model", node_mask_type="attributes",
        edge_mask_type="object" if edges else None,
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )  # fmt: skip


def test_explanations() -> None:
    """Of features with any backbone; of edges with PyTorch Geometric's layers, which know masks of edges."""
    data = ring(6)
    found = explainer(Tango(5, 8, 2, num_steps=2), edges=False)(data.x, data.edge_index, index=2)
    assert found.node_mask is not None
    assert found.node_mask.shape == (6, 5)
    assert found.node_mask.abs().sum() > 0
    found = explainer(Tango(5, 8, 2, backbone="graphsage", num_steps=2), edges=True)(data.x, data.edge_index, index=2)
    assert found.edge_mask is not None
    assert found.edge_mask.abs().sum() > 0
    with pytest.raises(ValueError, match="edges"):
        explainer(Tango(5, 8, 2, num_steps=2), edges=True)(data.x, data.edge_index, index=2)


def test_the_batch_is_not_changed() -> None:
    batch = batch_of_rings(edge_dim=3)
    before = {name: value.clone() for name, value in batch.to_dict().items() if isinstance(value, Tensor)}
    Tango(5, 8, 2, edge_dim=3, num_steps=1)(batch).sum().backward()
    after = {name: value for name, value in batch.to_dict().items() if isinstance(value, Tensor)}
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


# -- devices and types ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backbone", ["gatedgcn", "gps", "gcn", "gatv2"])
def test_devices_and_types(device: torch.device, dtype: torch.dtype, backbone: str) -> None:
    torch.manual_seed(0)
    batch = batch_of_rings()
    model = Tango(5, 8, 2, backbone=backbone).to(dtype)
    batch.x = batch.x.to(dtype)
    wanted = model(batch).detach()
    there = copy.deepcopy(model).to(device)
    found = there(batch.clone().to(str(device)))
    assert (found.dtype, found.device.type) == (dtype, device.type)
    assert_close(found.cpu(), wanted, 1e-4 if dtype == torch.float32 else 1e-10)
    found.sum().backward()
    assert all(p.grad is not None and p.grad.device.type == device.type for p in there.parameters())


@pytest.mark.parametrize("backbone", ["gatedgcn", "gps", "gcn", "gatv2"])
def test_autocast_leaves_the_energy_in_float32(device: torch.device, backbone: str) -> None:
    torch.manual_seed(0)
    batch = batch_of_rings().to(str(device))
    model = Tango(5, 8, 2, backbone=backbone, guard=False).to(device)
    with torch.no_grad():
        wanted = model(batch)
    seen: list[torch.dtype] = []
    for hooked in (model.conv.energy.head, model.conv.energy.gnn):
        hooked.register_forward_hook(lambda module, given, out: seen.append(out.dtype))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        found = model(batch)
        loss = found.float().square().sum()
    loss.backward()
    assert len(seen) == 2 * 8
    assert set(seen) == {torch.float32}
    assert (found.detach().float() - wanted).abs().max() < 0.05 * wanted.abs().max()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by torch.compile itself
@pytest.mark.parametrize(
    "make", [lambda: Tango(5, 8, 2, task="graph", num_steps=2), lambda: GraphNet(5, 8, 2, GatedGCN(8))]
)
def test_compiled_models_are_the_same(make: Any) -> None:
    """In inference and training, for graphs of other sizes; the flow of Tango is left out, as it has to be."""
    torch.compiler.reset()
    model, batch = make(), batch_of_rings()
    compiled = torch.compile(model, backend="aot_eager")
    wanted = model(batch.x, batch.edge_index, batch=batch.batch)
    found = compiled(batch.x, batch.edge_index, batch=batch.batch)
    assert_close(found, wanted, 1e-6)
    for a, b in zip(
        *(torch.autograd.grad(out.square().sum(), list(model.parameters())) for out in (found, wanted)), strict=True
    ):
        assert_close(a, b, 1e-5)
    other = ring(7)
    with torch.no_grad():
        assert_close(compiled(other.x, other.edge_index), model(other.x, other.edge_index), 1e-6)
    with pytest.raises(ValueError, match="edge_index must lie in"):
        compiled(other.x, other.edge_index + 1)


# -- wrong input ------------------------------------------------------------------------------------------------------


def test_wrong_input_is_named() -> None:
    data, model = ring(4), Tango(5, 8, 2)
    with pytest.raises(ValueError, match=r"x must have shape \[num_nodes, 5\], got \[4, 6\]"):
        model(torch.ones(4, 6), data.edge_index)
    with pytest.raises(ValueError, match="x is not finite at node 1"):
        model(torch.tensor([[1.0] * 5, [float("inf")] * 5]), data.edge_index[:, :0])
    with pytest.raises(TypeError, match="edge_index is missing"):
        model(data.x)
    with pytest.raises(TypeError, match="x must be a tensor where edge_index is given"):
        model(data, data.edge_index)
    with pytest.raises(ValueError, match="Data has no node features x"):
        model(Data(edge_index=data.edge_index, num_nodes=4))
    with pytest.raises(ValueError, match="make it with edge_dim=1"):
        model(data.x, data.edge_index, torch.ones(8))
    with pytest.raises(ValueError, match=r"pe must have nothing, as the model was made; got \['random_walk_pe'\]"):
        model(data.x, data.edge_index, pe={"random_walk_pe": torch.ones(4, 2)})
    encoded = Tango(5, 8, 2, pe={"random_walk_pe": 3})
    with pytest.raises(ValueError, match="the data has no 'random_walk_pe'; compute it with a transform"):
        encoded(data)
    with pytest.raises(ValueError, match=r"random_walk_pe must have shape \[num_nodes, 3\], got \[4, 2\]"):
        encoded(data.x, data.edge_index, pe={"random_walk_pe": torch.ones(4, 2)})


def test_wrong_categories_are_named() -> None:
    encoder = CategoricalEncoder([3, 2], 4)
    with pytest.raises(ValueError, match=r"categories must lie below \[3, 2\], got \[0, 0\] to \[3, 1\]"):
        encoder(torch.tensor([[3, 0], [0, 1]]))
    with pytest.raises(ValueError, match=r"integers of shape \[rows, 2\], got torch.int64 of shape \[1, 3\]"):
        encoder(torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"got torch\.float32"):
        encoder(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="categories must be positive numbers"):
        CategoricalEncoder([], 4)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match='task must be "node" or "graph"'):
        Tango(5, 8, 2, task="edge")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='readout_pool must be "mean", "sum", "max" or "all"'):
        Tango(5, 8, 2, readout_pool="last")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown backbone"):
        Tango(5, 8, 2, backbone="mlp")
    with pytest.raises(TypeError, match="unexpected keyword argument 'layers'"):
        Tango(5, 8, 2, layers=3)


def test_predictions_of_a_standardized_model_are_in_the_units_of_the_labels() -> None:
    torch.manual_seed(0)
    model, data = Tango(5, 8, 2), ring(4)
    before = model(data)
    labels = torch.tensor([[100.0, 3.0], [104.0, 3.0], [108.0, 3.0]])
    model.standardize(labels)
    spread = labels[:, 0].std(correction=0)
    assert_close(model(data)[:, 0], 104 + spread * before[:, 0])
    assert_close(model(data)[:, 1], 3 + before[:, 1])  # labels that are all alike have no spread to divide by
    again = Tango(5, 8, 2)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(data), model(data))
    with pytest.raises(ValueError, match=r"labels must have shape \[m, 2\], m > 0, got \[4\]"):
        model.standardize(torch.zeros(4))
