"""Dynamics from the literature: what their authors prove, against matrices written out, and the contract of fields."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import scipy.linalg
import scipy.sparse.csgraph
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch_geometric.nn import AntiSymmetricConv, GATv2Conv, GCNConv

import solvers
from lyapflow import Combination, LyapunovField, certify, odeint
from lyapflow.testing import assert_dissipates, check_field, graphs, states
from lyapflow.testing.strategies import Graphs
from lyapflow_graph import DynamicsConv, GraphBatch
from lyapflow_graph.dynamics import ADGN, DGC, GRAFF, GRAND, PHDGN, SWAN, GraphCON
from lyapflow_graph.dynamics.aggregation import log_cosh

EPS = torch.finfo(torch.float64).eps
CHANNELS = 4

LAYERS: dict[str, Callable[..., DynamicsConv]] = {
    "DGC": DGC,
    "DGC, not normalized": lambda c, **more: DGC(c, normalized=False, **more),
    "GRAND": lambda c, **more: GRAND(c, heads=2, **more),
    "linear GRAND": lambda c, **more: GRAND(c, linear=True, attention_channels=3, **more),
    "GraphCON": GraphCON,
    "symmetric GraphCON": lambda c, **more: GraphCON(c, activation="identity", damping=0.5, symmetric=True, **more),
    "GraphCON of GCN": lambda c, **more: GraphCON(c, GCNConv(c, c), **more),
    "ADGN": ADGN,
    "ADGN of GATv2": lambda c, **more: ADGN(c, GATv2Conv(c, c), activation="elu", bias=False, **more),
    "SWAN": SWAN,
    "SWAN, softplus": lambda c, **more: SWAN(c, activation="softplus", beta=0.3, **more),
    "linear SWAN": lambda c, **more: SWAN(c, activation="identity", bias=False, **more),
    "PHDGN": PHDGN,
    "damped PHDGN": lambda c, **more: PHDGN(c, damping=0.3, bias=False, **more),
    "GRAFF": GRAFF,
}
WITH_ENERGY = {
    "DGC",
    "DGC, not normalized",
    "symmetric GraphCON",
    "SWAN",
    "linear SWAN",
    "PHDGN",
    "damped PHDGN",
    "GRAFF",
}
every_layer = pytest.mark.parametrize("name", list(LAYERS))
seeds = st.integers(0, 2**16)

# A triangle with a loop and a tail, a single node, a graph of three nodes without edges, a one-way path with a repeated
# edge, and a graph without nodes; nodes of different graphs lie between each other.
RAGGED = GraphBatch(
    torch.tensor([[0, 2, 2, 5, 5, 0, 0, 5, 7, 3, 6, 6], [2, 0, 5, 2, 0, 5, 0, 7, 5, 6, 8, 8]]),
    num_nodes=11,
    batch=torch.tensor([0, 1, 0, 3, 2, 0, 3, 0, 3, 2, 2]),
    batch_size=5,
)


def made(name: str, seed: int = 0, size: float = 1.0, **options: Any) -> Any:
    """A layer in float64, with parameters of any size."""
    torch.manual_seed(seed)
    layer = LAYERS[name](CHANNELS, **options).double()
    for parameter in layer.parameters():
        parameter.data = size * torch.randn_like(parameter) / CHANNELS**0.5
    return layer


def bound(batch: Graphs) -> GraphBatch:
    return GraphBatch(batch.edge_index, batch.nodes, batch=batch.batch, batch_size=batch.count)


def drawn(data: st.DataObject, batch: Graphs | GraphBatch, width: int = CHANNELS, **limits: Any) -> Tensor:
    nodes = batch.nodes if isinstance(batch, Graphs) else batch.num_nodes
    return data.draw(states((nodes, width), **limits))


def start(layer: Any, rows: int = RAGGED.num_nodes) -> Tensor:
    """A state that is not one that a flow starts from."""
    width = layer.start(torch.zeros(1, CHANNELS)).shape[1]
    return torch.randn(rows, width, dtype=next(layer.parameters(), torch.zeros((), dtype=torch.float64)).dtype)


def adjacency(batch: GraphBatch) -> Tensor:
    """The number of edges from j to i, written out."""
    source, target = batch.edge_index
    ones = torch.ones(batch.num_edges, dtype=torch.float64)
    return torch.zeros(batch.num_nodes, batch.num_nodes, dtype=torch.float64).index_put((target, source), ones, True)


def normalised(A: Tensor) -> Tensor:
    degree = (A.sum(0) + A.sum(1)) / 2
    scale = torch.where(degree > 0, degree, float("inf")).rsqrt()
    return scale[:, None] * A * scale


def is_close(found: Tensor, wanted: Tensor, size: Tensor | float, roundings: float = 64) -> bool:
    """Equal up to so many roundings of the largest of the terms."""
    return bool(((found - wanted).abs() <= roundings * EPS * size).all())


def gradient(field: Any, h: Tensor) -> Tensor:
    with torch.enable_grad():
        point = h.clone().requires_grad_()
        return torch.autograd.grad(field.energy(0.0, point).sum(), point)[0]


def rate(field: Any, h: Tensor) -> tuple[Tensor, Tensor]:
    """dV/dt of every graph, and the product of the lengths, which its rounding is relative to."""
    systems = field.systems.bind(h)
    with torch.no_grad():
        slope, velocity = gradient(field, h), field(0.0, h)
        lengths = (systems.total(slope * slope) * systems.total(velocity * velocity)).sqrt()
    return systems.inner(slope, velocity), lengths


# -- every field ------------------------------------------------------------------------------------------------------


@every_layer
def test_every_field_keeps_the_contract(name: str) -> None:
    field = made(name).field(RAGGED)
    assert hasattr(field, "energy") == (name in WITH_ENERGY)
    check_field(field, start(made(name)), max_examples=3)


@every_layer
def test_every_explicit_method_follows_every_field(name: str) -> None:
    """One step of every method is the exact flow, up to its order."""
    x = torch.randn(RAGGED.num_nodes, CHANNELS, dtype=torch.float64)
    exact = made(name, method="dopri8", num_steps=1, step_size=1e-3)(x, RAGGED)
    for method in (known for known in solvers.methods().values() if isinstance(known, solvers.ExplicitRK)):
        layer = made(name, method=method, num_steps=1, step_size=1e-3)
        assert torch.allclose(layer(x, RAGGED), exact, rtol=1e-4, atol=1e-4)
        if method.order >= 4:
            assert torch.allclose(layer(x, RAGGED), exact, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", sorted(WITH_ENERGY))
@given(data=st.data(), batch=graphs(), seed=seeds, size=st.sampled_from([1.0, 0.01, 10.0]))
@settings(max_examples=5)
def test_energies_never_grow(name: str, data: st.DataObject, batch: Graphs, seed: int, size: float) -> None:
    """At any state, of any size; and in the steps of a dissipative method."""
    layer = made(name, seed, size, method="relaxed_rk4", num_steps=3, step_size=0.05)
    field = layer.field(bound(batch))
    h = drawn(data, batch, start(layer, 1).shape[1])
    assert_dissipates(field, h)
    energy = layer.solve(h[:, :CHANNELS], bound(batch), saveat="steps").energy
    rounding = 64 * EPS * batch.systems.bind(h).total(h * gradient(field, h)).abs()
    assert (energy.diff(dim=0) <= 64 * EPS * energy.abs().amax(0) + rounding).all()


@pytest.mark.parametrize("name", ["DGC", "GRAFF", "damped PHDGN"])
def test_certificates(name: str) -> None:
    layer, path = made(name, size=0.5), GraphBatch(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 3)
    certificate = certify(layer.field(path), start(layer, 3), steps=3, step_size=0.05, samples=16)
    assert certificate.holds, str(certificate)


@every_layer
@given(data=st.data(), batch=graphs(), seed=seeds)
@settings(max_examples=5)
def test_a_graph_moves_alike_alone_in_a_batch_and_in_any_order(
    name: str, data: st.DataObject, batch: Graphs, seed: int
) -> None:
    """Permuted nodes, which also puts the graphs in another order, between each other; and each graph alone."""
    layer, all_of_them = made(name, seed), bound(batch)
    h = drawn(data, batch, start(layer, 1).shape[1], scales=(0.01, 10.0))
    velocity = layer.field(all_of_them)(0.0, h)
    size = velocity.abs().max() + h.abs().max()
    order = torch.randperm(batch.nodes)
    place = torch.argsort(order)
    permuted = GraphBatch(place[batch.edge_index], batch.nodes, batch=batch.batch[order], batch_size=batch.count)
    assert is_close(layer.field(permuted)(0.0, h[order]), velocity[order], size, 512)
    for graph in range(batch.count):
        mine = batch.batch == graph
        number = mine.cumsum(0) - 1
        edges = batch.edge_index[:, mine[batch.edge_index[0]]]
        alone = layer.field(number[edges], num_nodes=int(mine.sum()))
        assert is_close(alone(0.0, h[mine]), velocity[mine], size, 512)
        if name in WITH_ENERGY:
            energy = layer.field(all_of_them).energy(0.0, h)[graph]
            assert is_close(alone.energy(0.0, h[mine])[0], energy, size * (1 + size) * batch.nodes, 512)


@every_layer
def test_copies_pickles_and_saved_parameters_are_the_same(name: str) -> None:
    x = torch.randn(RAGGED.num_nodes, CHANNELS, dtype=torch.float64)
    layer = made(name)
    before = layer(x, RAGGED)
    field, h = layer.field(RAGGED), start(layer)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x, RAGGED), before)
    for twin in (copy.deepcopy(field), pickle.loads(pickle.dumps(field))):
        assert torch.equal(twin(0.0, h), field(0.0, h))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = made(name, seed=1)
    if list(layer.parameters()):
        assert not torch.equal(other(x, RAGGED), before)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x, RAGGED), before)


@every_layer
def test_layers_learn_and_keep_nothing(name: str) -> None:
    layer = made(name, checkpoint=True)
    x = torch.randn(RAGGED.num_nodes, CHANNELS, dtype=torch.float64, requires_grad=True)
    kept = {key: value for module in layer.modules() for key, value in vars(module).items()}
    out = layer(x, RAGGED)
    out.square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    for key, parameter in layer.named_parameters():
        assert parameter.grad is not None, key
        idle = name == "ADGN of GATv2" and key == "phi.lin_l.bias"
        assert idle or parameter.grad.abs().sum() > 0, key
    assert kept == {key: value for module in layer.modules() for key, value in vars(module).items()}
    with torch.no_grad():
        assert torch.equal(layer(x, RAGGED), out)
    with torch.inference_mode():
        assert torch.equal(layer(x, RAGGED), out)
    assert torch.equal(layer(x, RAGGED.edge_index, batch=RAGGED.batch, batch_size=RAGGED.count), out)


@every_layer
def test_parameters_can_be_drawn_again(name: str) -> None:
    layer = LAYERS[name](CHANNELS)
    before = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    again = layer.state_dict()
    zeros = {key for key in before if not before[key].any()}  # biases of networks from PyTorch Geometric
    assert not zeros or " of " in name
    assert all(not torch.equal(before[key], again[key]) for key in before.keys() - zeros)


@every_layer
def test_works_in_single_precision_and_under_autocast(name: str) -> None:
    layer = made(name)
    x = torch.randn(RAGGED.num_nodes, CHANNELS, dtype=torch.float64)
    double = layer(x, RAGGED)
    single = layer.float()(x.float(), RAGGED)
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), double, rtol=1e-5, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer(x.float(), RAGGED)
    assert mixed.dtype == torch.float32
    assert torch.allclose(mixed, single, rtol=0.1, atol=0.1)


@every_layer
def test_fields_can_be_added(name: str) -> None:
    layer = made(name)
    field, h = layer.field(RAGGED), start(layer)
    both = field + 2 * layer.field(RAGGED)
    assert isinstance(both, Combination)
    assert is_close(both(0.0, h), 3 * field(0.0, h), field(0.0, h).abs().max(), 8)
    assert hasattr(both, "energy") == hasattr(field, "energy")
    assert not hasattr(field + (lambda t, h: torch.ones_like(h)), "energy")
    assert not hasattr(-field, "energy")


@every_layer
def test_there_may_be_no_nodes_at_all(name: str) -> None:
    layer = made(name)
    none = GraphBatch(torch.empty(2, 0, dtype=torch.long), 0, batch=torch.empty(0, dtype=torch.long), batch_size=2)
    assert layer.field(none)(0.0, start(layer, 0)).shape == start(layer, 0).shape
    if name in WITH_ENERGY:
        assert torch.equal(layer.field(none).energy(0.0, start(layer, 0)), torch.zeros(2, dtype=torch.float64))


def test_names() -> None:
    assert repr(DGC(4)).startswith(
        "DGC(\n  4, num_steps=8, step_size=0.1\n  (dirichlet): DirichletEnergy(normalized=True)"
    )
    for layer, told in (
        (GRAND(4, heads=2, linear=True), "GRAND(\n  4, num_steps=8, step_size=0.1, heads=2, linear=True\n"),
        (GraphCON(4, method="leapfrog"), "method='leapfrog', activation='tanh', gamma=1.0, damping=1.0\n"),
        (ADGN(4), "ADGN(\n  4, num_steps=8, step_size=0.1, activation='tanh', gamma=0.1\n"),
        (SWAN(4), "SWAN(\n  4, num_steps=8, step_size=0.1, activation='tanh', beta=1.0\n"),
        (PHDGN(4), "PHDGN(\n  4, num_steps=8, step_size=0.1, damping=0.0\n"),
        (GRAFF(4), "GRAFF(\n  4, num_steps=8, step_size=0.1\n"),
    ):
        assert told in repr(layer)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: DGC(0), "channels must be positive, got 0"),
    (lambda: GRAND(4, heads=3), "heads must divide attention_channels, got 3 heads for 4 channels"),
    (lambda: GRAND(4, heads=0), "got 0 heads"),
    (lambda: GraphCON(4, damping=-1.0), "damping must be a finite number that is not negative, got -1.0"),
    (lambda: GraphCON(4, gamma=float("nan")), "gamma must be a finite number"),
    (lambda: GraphCON(4, activation="sin"), "unknown activation 'sin'; known are: silu"),
    (lambda: GraphCON(4, GCNConv(4, 4), symmetric=True), "symmetric=True is about the coupling"),
    (lambda: ADGN(4, gamma=-0.1), "gamma must be a finite number that is not negative"),
    (lambda: ADGN(4, activation="silu"), "one that never decreases: tanh, .*; got 'silu'"),
    (lambda: SWAN(4, activation="gelu"), "one that never decreases"),
    (lambda: SWAN(4, beta=float("inf")), "beta must be finite, got inf"),
    (lambda: PHDGN(4, damping=float("inf")), "damping must be a finite number"),
    (lambda: ADGN(4, GCNConv(4, 3))(torch.ones(2, 4), torch.tensor([[0], [1]])), r"GCNConv must give .* \[2, 4\], got"),
    (lambda: GRAFF(4)(torch.ones(2, 3), torch.tensor([[0], [1]])), r"x must have shape \[num_nodes, 4\], got \[2, 3\]"),
    (lambda: PHDGN(4).field(RAGGED)(0.0, torch.ones(11, 4)), r"state of PHDGN .* shape \[11, 8\], got \[11, 4\]"),
    (lambda: GRAFF(4).field(RAGGED).energy(0.0, torch.ones(9, 4)), r"state of GRAFF .* shape \[11, 4\], got \[9, 4\]"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


WITHOUT_ENERGY: dict[str, Callable[[], Any]] = {
    "SWAN, relu": lambda: SWAN(2, activation="relu"),
    "GraphCON": lambda: GraphCON(2),
    "GraphCON, not symmetric": lambda: GraphCON(2, activation="identity"),
    "GraphCON, tanh": lambda: GraphCON(2, symmetric=True),
    "GRAND": lambda: GRAND(2),
    "ADGN": lambda: ADGN(2),
}


@pytest.mark.parametrize("name", list(WITHOUT_ENERGY))
def test_there_is_no_energy_where_it_could_grow(name: str) -> None:
    layer = WITHOUT_ENERGY[name]()
    edges = torch.tensor([[0], [1]])
    with pytest.raises(AttributeError, match="energy"):
        _ = layer.field(edges).energy
    with pytest.raises(NotImplementedError, match="has no energy with these options"):
        layer.energy(layer.start(torch.ones(2, 2)), GraphBatch(edges, 2))
    layer.method = "relaxed_rk4"
    with pytest.raises((TypeError, ValueError), match="energy"):
        layer(torch.ones(2, 2), edges)


# -- DGC --------------------------------------------------------------------------------------------------------------


def laplacian(batch: GraphBatch, normalized: bool) -> Tensor:
    A = (adjacency(batch) + adjacency(batch).T) / 2
    degree = A.sum(1)
    L = torch.diag(degree) - A
    scale = torch.where(degree > 0, degree, float("inf")).rsqrt()
    return scale[:, None] * L * scale if normalized else L


@given(st.data(), graphs(), st.booleans(), st.floats(0.1, 3.0))
def test_diffusion_is_the_exponential_of_the_laplacian(
    data: st.DataObject, batch: Graphs, normalized: bool, time: float
) -> None:
    x, L = drawn(data, batch), laplacian(bound(batch), normalized)
    field = DGC(CHANNELS, normalized).double().field(bound(batch))
    assert isinstance(field, LyapunovField)
    assert is_close(field(0.0, x), -L @ x, (L.abs() @ x.abs()).max())
    found = odeint(field, x, torch.tensor([0.0, time], dtype=torch.float64), method="dopri8", rtol=1e-10, atol=1e-12)[
        -1
    ]
    exact = torch.from_numpy(scipy.linalg.expm(-time * L.numpy())) @ x
    assert ((found - exact).abs() <= 1e-9 * x.abs().max() + 1e-11).all()


@given(st.data(), graphs())
def test_diffusion_keeps_the_mass_of_every_component(data: st.DataObject, batch: Graphs) -> None:
    x = drawn(data, batch)
    out = DGC(CHANNELS, normalized=False).double()(x, bound(batch))
    count, label = scipy.sparse.csgraph.connected_components(adjacency(bound(batch)).numpy(), directed=False)
    rows = torch.zeros(count, CHANNELS, dtype=torch.float64)
    before, after = (rows.index_add(0, torch.from_numpy(label).long(), state) for state in (x, out))
    assert is_close(after, before, batch.nodes * torch.maximum(x.abs().max(), out.abs().max()))


# -- GRAND ------------------------------------------------------------------------------------------------------------


def hull(x: Tensor, batch: Graphs) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of every feature in the graph of every node."""
    index = batch.batch[:, None].expand_as(x)
    ends = [torch.zeros(batch.count, x.shape[1], dtype=x.dtype).scatter_reduce(0, index, x, how, include_self=False)
            for how in ("amin", "amax")]  # fmt: skip
    return ends[0][batch.batch], ends[1][batch.batch]


@given(st.data(), graphs(), seeds, st.booleans(), st.sampled_from([1.0, 0.01, 0.5]))
def test_attention_keeps_features_between_their_extremes(
    data: st.DataObject, batch: Graphs, seed: int, linear: bool, step_size: float
) -> None:
    layer = made("linear GRAND" if linear else "GRAND", seed, num_steps=4, step_size=step_size)
    x = drawn(data, batch)
    with torch.no_grad():
        velocity = layer.read(layer.field(bound(batch))(0.0, layer.start(x)))
        low, high = hull(x, batch)
        size = 64 * EPS * x.abs().max()
        assert (velocity[x == high] <= size).all()
        assert (velocity[x == low] >= -size).all()
        out = layer(x, bound(batch))
    assert (out <= high + size).all()
    assert (out >= low - size).all()
    alone = torch.bincount(batch.edge_index[1], minlength=batch.nodes) == 0
    assert torch.equal(out[alone], x[alone])


@given(st.data(), graphs(), seeds, st.floats(0.1, 3.0))
def test_linear_attention_is_that_of_the_start(data: st.DataObject, batch: Graphs, seed: int, time: float) -> None:
    """So the flow is an exponential; and the rows of the matrix, by hand, sum to 1."""
    layer, x = made("linear GRAND", seed), drawn(data, batch, scales=(0.01, 10.0))
    with torch.no_grad():
        weights = layer.attention(x, bound(batch))
        field = layer.field(bound(batch))
        t = torch.tensor([0.0, time], dtype=torch.float64)
        found = odeint(field, layer.start(x), t, method="dopri8", rtol=1e-10, atol=1e-12)[-1]
        scores = torch.exp((x @ layer.query.weight.T) @ (x @ layer.key.weight.T).T / 3**0.5 - 40)
    source, target = batch.edge_index
    M = torch.zeros(batch.nodes, batch.nodes, dtype=torch.float64).index_put((target, source), weights, True)
    ended = adjacency(bound(batch)).sum(1) > 0
    assert is_close(M.sum(1), ended.double(), 1.0)
    if bool((scores > 1e-200).all() & (scores < 1e200).all()):
        by_hand = adjacency(bound(batch)) * scores
        assert torch.allclose(M[ended], (by_hand / by_hand.sum(1, keepdim=True))[ended], rtol=1e-9, atol=1e-14)
    exact = torch.from_numpy(scipy.linalg.expm(time * (M - torch.diag(ended.double())).numpy())) @ x
    assert ((layer.read(found) - exact).abs() <= 1e-9 * x.abs().max() + 1e-11).all()
    assert torch.equal(found[:, CHANNELS:], x)


def test_nonlinear_attention_is_that_of_the_state() -> None:
    """So it differs from the linear one after a while, but not at the start."""
    x = 3 * torch.randn(RAGGED.num_nodes, CHANNELS, dtype=torch.float64)
    torch.manual_seed(0)
    layer, linear = (GRAND(CHANNELS, linear=linear, num_steps=2).double() for linear in (False, True))
    linear.load_state_dict(layer.state_dict())
    velocity = linear.field(RAGGED)(0.0, linear.start(x))
    assert torch.equal(layer.field(RAGGED)(0.0, x), velocity[:, :CHANNELS])
    assert (layer(x, RAGGED) - linear(x, RAGGED)).abs().max() > 1e-3


# -- GraphCON ---------------------------------------------------------------------------------------------------------


@given(st.data(), graphs(), seeds, st.booleans(), st.floats(0, 3.0), st.floats(0, 3.0))
def test_oscillators(
    data: st.DataObject, batch: Graphs, seed: int, symmetric: bool, gamma: float, damping: float
) -> None:
    """The equation and, where there is one, the energy, written out."""
    torch.manual_seed(seed)
    activation = "identity" if symmetric else "tanh"
    layer = GraphCON(CHANNELS, None, activation, gamma, damping, symmetric).double()
    h = drawn(data, batch, 2 * CHANNELS)
    x, y = h.chunk(2, -1)
    A, W, b = normalised(adjacency(bound(batch))), layer.coupling.weight.detach().T, layer.coupling.bias.detach()
    if symmetric:
        A, W = (A + A.T) / 2, (W + W.T) / 2
    inside = A @ x @ W + b
    size = (A.abs() @ x.abs() @ W.abs() + b.abs() + (gamma + damping) * h.abs().max()).max()
    field = layer.field(bound(batch))
    force = (inside if symmetric else inside.tanh()) - gamma * x - damping * y
    with torch.no_grad():
        assert torch.equal(field(0.0, h)[:, :CHANNELS], y)
        assert is_close(field(0.0, h)[:, CHANNELS:], force, size)
    if symmetric:
        terms = y * y / 2 + gamma / 2 * x * x - x * (A @ x @ W) / 2 - x * b
        systems = batch.systems.bind(h)
        bounds = systems.total(y * y + gamma * x * x + x.abs() * (A.abs() @ x.abs() @ W.abs() + b.abs()))
        assert is_close(field.energy(0.0, h).detach(), systems.total(terms), bounds)
        change, lengths = rate(field, h)
        assert is_close(change, -damping * systems.total(y * y), lengths)


def test_undamped_oscillators_conserve_their_energy() -> None:
    layer = GraphCON(CHANNELS, None, "identity", damping=0.0, symmetric=True).double()
    field, h = layer.field(RAGGED), start(layer)
    with torch.no_grad():
        end = odeint(field, h, torch.tensor([0.0, 5.0]).double(), method="dopri8", rtol=1e-12, atol=1e-12)[-1]
        assert torch.allclose(field.energy(0.0, end), field.energy(0.0, h), rtol=1e-10, atol=1e-12)
    assert (end - h).abs().max() > 0.1


@pytest.mark.parametrize("name", ["GraphCON", "PHDGN", "damped PHDGN", "linear GRAND"])
def test_doubled_states_start_as_the_features_twice_and_their_first_half_is_read(name: str) -> None:
    layer, x = made(name, num_steps=1, step_size=0.1), torch.randn(RAGGED.num_nodes, CHANNELS, dtype=torch.float64)
    velocity = layer.field(RAGGED)(0.0, torch.cat([x, x], -1))
    assert is_close(layer(x, RAGGED), x + 0.1 * velocity[:, :CHANNELS], x.abs().max() + velocity.abs().max(), 4)


def drift(layer: Any) -> float:
    """How far the energy is off after many steps, in the largest."""
    solution = layer.solve(torch.randn(RAGGED.num_nodes, CHANNELS).double(), RAGGED, saveat="steps")
    return float((solution.energy - solution.energy[0]).detach().abs().max())


@pytest.mark.parametrize("kind", ["GraphCON", "PHDGN"])
def test_leapfrog_is_symplectic_for_undamped_second_order_systems(kind: str) -> None:
    """Half the step, a quarter of the error, which does not accumulate."""

    def layer(**options: Any) -> Any:
        torch.manual_seed(0)
        if kind == "PHDGN":
            return PHDGN(CHANNELS, method="leapfrog", **options).double()
        return GraphCON(CHANNELS, None, "identity", damping=0.0, symmetric=True, method="leapfrog", **options).double()

    coarse, fine = (drift(layer(num_steps=steps, step_size=size)) for steps, size in ((50, 0.2), (100, 0.1)))
    longer = drift(layer(num_steps=200, step_size=0.2))
    assert 3 < coarse / fine < 5
    assert longer < 2 * coarse


# -- ADGN -------------------------------------------------------------------------------------------------------------


@given(seeds, st.sampled_from([0.0, 0.1, 2.0]), st.sampled_from(["tanh", "elu", "softplus", "identity", "relu"]))
def test_a_node_alone_neither_fades_nor_explodes(seed: int, gamma: float, activation: str) -> None:
    torch.manual_seed(seed)
    layer = ADGN(5, gamma=gamma, activation=activation).double()
    field = layer.field(torch.empty(2, 0, dtype=torch.long), num_nodes=1)
    x = torch.randn(1, 5, dtype=torch.float64)
    jacobian = torch.func.jacrev(lambda row: field(0.0, row))(x).reshape(5, 5).detach()
    real = torch.linalg.eigvals(jacobian).real
    rounding = 1e4 * EPS * jacobian.norm()
    assert (real <= rounding).all()
    if gamma == 0:
        assert (real.abs() <= rounding).all()
    elif activation != "relu":
        assert (real < -rounding).all()


@given(st.data(), graphs(), seeds, st.sampled_from([0.0, 0.1]), st.integers(1, 4), st.booleans())
def test_antisymmetric_networks_agree_with_pytorch_geometric(
    data: st.DataObject, batch: Graphs, seed: int, gamma: float, steps: int, bias: bool
) -> None:
    torch.manual_seed(seed)
    theirs = AntiSymmetricConv(CHANNELS, num_iters=steps, epsilon=0.1, gamma=gamma, bias=bias).double()
    ours = ADGN(CHANNELS, theirs.phi, gamma, bias=bias, num_steps=steps, step_size=0.1).double()
    x = drawn(data, batch)
    with torch.no_grad():
        ours.own.weight.copy_(theirs.W)
        if bias:
            ours.own.bias.copy_(theirs.bias.normal_())
        found, wanted = ours(x, bound(batch)), theirs(x, batch.edge_index)
    # tanh has a slope of 1: an error grows by the norm of the weights in every step, and no more.
    size = (1 + x.abs().max()) * (1 + 0.1 * (2 * theirs.W.norm() + theirs.phi.lin.weight.norm() * batch.nodes)) ** steps
    assert is_close(found, wanted, size, 512)


@given(st.data(), graphs(), seeds)
def test_messages_run_along_the_edges(data: st.DataObject, batch: Graphs, seed: int) -> None:
    layer, x = made("ADGN", seed), drawn(data, batch)
    W, V = layer.own.weight.detach(), layer.phi.weight.detach()
    A = normalised(adjacency(bound(batch)))
    inside = x @ (W - W.T - 0.1 * torch.eye(CHANNELS, dtype=torch.float64)).T + A @ x @ V.T + layer.own.bias.detach()
    size = (x.abs().max() + A.abs() @ x.abs()).max() * (W.norm() + V.norm() + 1) * CHANNELS + 1
    with torch.no_grad():
        assert is_close(layer.field(bound(batch))(0.0, x), inside.tanh(), size)


def test_networks_get_what_they_ask_for() -> None:
    class Asking(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor, batch_size: int) -> Tensor:
            assert edge_attr.shape == (1, 3)
            assert batch.tolist() == [0, 0]
            assert batch_size == 1
            return x * edge_attr.sum()

    edges, features = torch.tensor([[0], [1]]), torch.ones(1, 3)
    x = torch.ones(2, 2)
    for layer in (ADGN(2, Asking(), activation="identity"), GraphCON(2, Asking(), activation="identity")):
        assert layer(x, edges, features).shape == (2, 2)
        assert layer.field(edges, features)(0.0, layer.start(x)).isfinite().all()


# -- SWAN -------------------------------------------------------------------------------------------------------------


def whole_jacobian(field: Any, h: Tensor) -> Tensor:
    return torch.func.jacrev(lambda state: field(0.0, state))(h).reshape(h.numel(), h.numel()).detach()


@given(st.data(), graphs(min_nodes=1, max_graphs=2), seeds, st.sampled_from([1.0, 0.0, -2.0]))
def test_the_whole_jacobian_is_antisymmetric(data: st.DataObject, batch: Graphs, seed: int, beta: float) -> None:
    torch.manual_seed(seed)
    layer = SWAN(3, beta, "identity", bias=False).double()
    field, h = layer.field(bound(batch)), drawn(data, batch, 3)
    jacobian = whole_jacobian(field, h)
    A = adjacency(bound(batch))
    A = A / A.sum(1, keepdim=True).clamp(min=1)
    W, V, U = (part.weight.detach() for part in (layer.own, layer.even, layer.odd))
    by_hand = torch.kron(torch.eye(batch.nodes).double(), W - W.T) + torch.kron(A + A.T, V - V.T)
    by_hand += beta * torch.kron(A - A.T, U + U.T)
    assert is_close(jacobian, by_hand, 4 * (1 + abs(beta)) * (1 + A.sum(0).max()))
    assert is_close(jacobian.T, -jacobian, 4 * (1 + abs(beta)) * (1 + A.sum(0).max()))
    with torch.no_grad():
        systems, velocity = batch.systems.bind(h), field(0.0, h)
        lengths = (systems.total(h * h) * systems.total(h * h)).sqrt() * by_hand.norm()
        assert is_close(systems.inner(h, velocity), torch.zeros(batch.count).double(), lengths)


@given(st.data(), graphs(min_nodes=1, max_graphs=2, max_nodes=4), seeds,
       st.sampled_from(["tanh", "softplus", "elu", "relu"]))  # fmt: skip
def test_all_eigenvalues_are_imaginary(data: st.DataObject, batch: Graphs, seed: int, activation: str) -> None:
    torch.manual_seed(seed)
    layer = SWAN(3, activation=activation).double()
    h = drawn(data, batch, 3, scales=(0.01, 1.0))
    jacobian = whole_jacobian(layer.field(bound(batch)), h)
    # Multiple eigenvalues may move by the square root of a rounding; relu makes such of zero.
    assert (torch.linalg.eigvals(jacobian).real.abs() <= 32 * EPS**0.5 * jacobian.norm()).all()


@given(st.data(), graphs(), seeds, st.sampled_from(["tanh", "identity"]), st.booleans())
def test_what_space_weight_antisymmetry_conserves(
    data: st.DataObject, batch: Graphs, seed: int, activation: str, bias: bool
) -> None:
    torch.manual_seed(seed)
    field = SWAN(CHANNELS, activation=activation, bias=bias).double().field(bound(batch))
    change, lengths = rate(field, drawn(data, batch))
    assert is_close(change, torch.zeros(batch.count).double(), lengths)


def test_the_norm_of_every_graph_is_conserved() -> None:
    layer = made("linear SWAN")
    field, h = layer.field(RAGGED), start(layer)
    with torch.no_grad():
        end = odeint(field, h, torch.tensor([0.0, 3.0]).double(), method="dopri8", rtol=1e-12, atol=1e-12)[-1]
    assert torch.allclose(RAGGED.total(end * end), RAGGED.total(h * h), rtol=1e-10)
    assert (end - h).abs().max() > 0.1


# -- PHDGN ------------------------------------------------------------------------------------------------------------


@given(st.data(), graphs(), seeds, st.sampled_from([0.0, 0.3, 5.0]), st.booleans())
def test_port_hamiltonian(data: st.DataObject, batch: Graphs, seed: int, damping: float, bias: bool) -> None:
    """The Hamiltonian written out, the field from its gradient, and what it does to it."""
    torch.manual_seed(seed)
    layer = PHDGN(CHANNELS, damping, bias).double()
    h = drawn(data, batch, 2 * CHANNELS)
    field, systems = layer.field(bound(batch)), batch.systems.bind(h)
    A = normalised(adjacency(bound(batch)))
    total = torch.zeros(batch.count, dtype=torch.float64)
    with torch.no_grad():
        for half, x in zip((layer.positions, layer.momenta), h.chunk(2, -1), strict=True):
            z = x @ half.own.weight.T + A @ x @ half.neighbours.weight.T + (half.own.bias if bias else 0.0)
            total += systems.total(torch.logaddexp(z, -z) - torch.tensor(2.0).double().log())
        assert is_close(field.energy(0.0, h), total, systems.total(1 + h.abs()) * CHANNELS)
        of_q, of_p = gradient(field, h).chunk(2, -1)
        size = (layer.positions.own.weight.norm() + layer.momenta.own.weight.norm() + A.norm()) * CHANNELS
        assert is_close(field(0.0, h), torch.cat([of_p, -of_q - damping * of_p], -1), (1 + damping) * size)
    change, lengths = rate(field, h)
    assert is_close(change, -damping * systems.total(of_p * of_p), lengths)
    if damping:
        assert (change <= 64 * EPS * lengths).all()


def test_hamiltonians_are_conserved() -> None:
    layer = made("PHDGN")
    field, h = layer.field(RAGGED), start(layer)
    with torch.no_grad():
        end = odeint(field, h, torch.tensor([0.0, 5.0]).double(), method="dopri8", rtol=1e-12, atol=1e-12)[-1]
        assert torch.allclose(field.energy(0.0, end), field.energy(0.0, h), rtol=1e-10, atol=1e-12)
    assert (end - h).abs().max() > 0.1


@given(st.floats(-1e6, 1e6))
def test_log_cosh_and_its_derivatives(z: float) -> None:
    x = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    value = log_cosh(x)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert torch.allclose(first, x.tanh(), rtol=1e-14, atol=0.0)
    assert torch.allclose(second, 1 - x.tanh().square(), rtol=1e-12, atol=1e-15)
    if abs(z) < 1e-3:
        assert torch.allclose(value, x**2 / 2 - x**4 / 12, rtol=1e-12, atol=1e-300)
    elif abs(z) < 700:
        assert torch.allclose(value, x.cosh().log(), rtol=1e-9)


# -- GRAFF ------------------------------------------------------------------------------------------------------------


@given(st.data(), graphs(), seeds)
def test_gradient_flow_of_the_parametrised_dirichlet_energy(data: st.DataObject, batch: Graphs, seed: int) -> None:
    layer, h = made("GRAFF", seed), drawn(data, batch)
    Omega, W = layer.Omega.detach(), layer.W.detach()
    assert torch.equal(Omega, Omega.T)
    assert torch.equal(W, W.T)
    assert not torch.equal(layer.pair.weight, layer.pair.weight.T)
    field, systems = layer.field(bound(batch)), batch.systems.bind(h)
    A = normalised(adjacency(bound(batch)))
    A = (A + A.T) / 2
    energy = systems.total(h * (h @ Omega - A @ h @ W)) / 2
    sizes = h.abs() @ Omega.abs() + A @ h.abs() @ W.abs()
    with torch.no_grad():
        assert is_close(field.energy(0.0, h), energy, systems.total(h.abs() * sizes))
        assert is_close(field(0.0, h), -gradient(field, h), sizes.max())
        assert is_close(field(0.0, h), A @ h @ W - h @ Omega, sizes.max())


@pytest.mark.parametrize("kind", [ADGN, DGC, GRAFF, GRAND, GraphCON, PHDGN, SWAN])
def test_features_of_edges_are_not_left_out_without_a_word(kind: Any) -> None:
    edges = torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match=f"edge_attr was given, but {kind.__name__} has no use for features of edges"):
        kind(2)(torch.ones(2, 2), edges, torch.ones(1, 3))
