"""A signal that has to cross a bottleneck: the barbell graph, by gradient flow and by TANGO."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from lyapflow import Coefficient, Flow, LyapunovField, Tangent, project
from lyapflow_graph import DirichletEnergy, GraphBatch
from lyapflow_graph.batch import graphs_of
from solvers.typing import PerSystem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FLUX = 5.0  # the largest weight of a message; an edge of the Dirichlet energy's gradient has 1
_KEPT = 0.2  # of the descent of a pure gradient step, at the least


@final
class FluxTangent(Tangent):
    r"""A learned direction that moves signal along edges, and neither makes nor destroys any.

    .. math::
        M_i = \sum_{j \to i} p_{ij} h_j - \sum_{i \to j} p_{ji} h_i, \qquad p_{ij} = 5 \tanh \mathrm{MLP}(z_i, z_j),

    one round of messages, where :math:`z_i` has two numbers: the logarithm of the degree relative to the graph's mean,
    and :math:`\tanh(h_i / r)` with r the root mean square of h on the graph. A node of zero whose neighbours are zero
    stays at zero, so signal travels one edge a step. The sum over a graph does not change: what arrives has left from
    elsewhere. Scaled features move alike. The state has one channel.

    Args:
        hidden: Of the MLP's one hidden layer.

    >>> import torch
    >>> from lyapflow_graph import GraphBatch
    >>> from examples.barbell_flows import FluxTangent
    >>> path = GraphBatch(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
    >>> M = FluxTangent().bind(path)(torch.tensor([[1.0], [0.0], [0.0]]))
    >>> bool(M[2] == 0), torch.allclose(M.sum(), torch.zeros(()), atol=1e-6)
    (True, True)
    """

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        first, last = nn.Linear(4, hidden), nn.Linear(hidden, 1)
        with torch.no_grad():  # to start near the gradient flow
            last.weight.mul_(0.1)
            last.bias.zero_()
        self.network = nn.Sequential(first, nn.Tanh(), last)

    def forward(self, h: Tensor) -> Tensor:
        graphs = graphs_of(self)
        if h.shape[1:] != (1,):
            raise ValueError(f"FluxTangent moves one channel, a state of shape [num_nodes, 1]; got {list(h.shape)}")
        source, target = graphs.edge_index
        count = graphs.node_counts.clamp(min=1)
        square = graphs.total(h.square()) / count
        size = torch.where(square > 0, square, 1.0).sqrt()
        degree = torch.bincount(target, minlength=graphs.num_nodes).to(h.dtype)
        mean = graphs.total(degree) / count
        relative = torch.log1p(degree) - torch.log1p(mean)[graphs.graph_of_node]
        z = torch.stack([relative, torch.tanh(h[:, 0] / size[graphs.graph_of_node])], dim=1)
        weight = _FLUX * torch.tanh(self.network(torch.cat([z[target], z[source]], dim=1)))
        flux = weight * h[source]
        return torch.zeros_like(h).index_add(0, target, flux).index_add(0, source, flux, alpha=-1)


@final
class EulerBeta(Coefficient):
    r"""As much of a direction as a forward Euler step can take without raising a quadratic energy; 1 at the most.

    The field never raises the energy, but a step of Euler's method may: along the tangent T the energy is curved. With
    a pure gradient step :math:`u = h - \epsilon g`, the largest beta is taken for which

    .. math:: V(u + \epsilon \beta T) \le V(u) + (1 - \kappa) (V(h) - V(u)),

    so that a share :math:`\kappa = 0.2` of the descent remains at least. For each graph there is a closed form, since V
    is quadratic in beta.

    Args:
        energy: V, a quadratic one.
        step_size: :math:`\epsilon`.

    >>> import torch
    >>> from lyapflow import Flow, LyapunovField
    >>> from lyapflow_graph import DirichletEnergy, GraphBatch
    >>> from examples.barbell_flows import EulerBeta
    >>> path = GraphBatch(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
    >>> energy = DirichletEnergy(systems=path)
    >>> far = lambda h: 100 * torch.roll(h, 1, 0)
    >>> way = Flow(LyapunovField(energy, far, beta=EulerBeta(energy, 0.3)), steps=20, step_size=0.3)
    >>> start = torch.eye(3, dtype=torch.float64)[:, :1]
    >>> bool((way.solve(start, saveat="steps").energy.diff(dim=0) <= 1e-12).all())
    True
    """

    takes = ("energy", "gradient", "direction")

    def __init__(self, energy: DirichletEnergy, step_size: float) -> None:
        super().__init__(energy.systems)
        self.quadratic, self.step_size = energy, step_size

    def forward(  # type: ignore[override]
        self, h: Tensor, energy: PerSystem, gradient: Tensor, direction: Tensor
    ) -> PerSystem:
        u = h - self.step_size * gradient
        along = self.step_size * project(direction, gradient, self.systems)
        at_u, curved = self.quadratic(u), self.quadratic(along)
        slope = self.quadratic(u + along) - at_u - curved
        room = (1 - _KEPT) * (energy - at_u).clamp(min=0)
        # curved b^2 + slope b <= room
        tiny = torch.finfo(h.dtype).tiny
        root = (slope.square() + 4 * curved * room).clamp(min=tiny).sqrt()
        return (2 * room / (slope + root).clamp(min=tiny)).clamp(max=1)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Way:
    """How a signal went over the barbell.

    Attributes:
        states: `[steps + 1, n]`.
        energy: `[steps + 1]`, the Dirichlet energy.
        crossed: The share of the signal that is beyond the bridge at the end: the sum of absolute features in the
            clique on the right, of that on all nodes.
        flow: The flow itself, to ask for its influences.
        seconds: To train it, where it is trained, and to follow it.
    """

    states: Tensor
    energy: Tensor
    crossed: float
    flow: Flow = dataclasses.field(repr=False)
    seconds: float

    @property
    def largest_rise(self) -> float:
        """Of the energy in a step; negative if it fell in all of them."""
        return float(self.energy.diff().max())


@final
@dataclasses.dataclass(frozen=True, eq=False)
class BarbellResult:
    """What :func:`barbell` found.

    Attributes:
        graphs: The barbell graph.
        positions: `[n, 2]`, to draw it.
        source: The node that the signal starts from.
        step_size: Of both flows.
        gradient_flow: Of the Dirichlet energy.
        tango: With the tangential direction added.
        uniform: The share of the nodes that are beyond the bridge: what would have crossed after an infinite time.
        losses: Of the training, one for each of its steps.
    """

    graphs: GraphBatch
    positions: Tensor
    source: int
    step_size: float
    gradient_flow: Way
    tango: Way
    uniform: float
    losses: tuple[float, ...] = dataclasses.field(repr=False)

    def plot(self, path: Path | None = None) -> Figure:
        """The start and both ends, at one scale of colours. Needs matplotlib."""
        from examples.barbell_figures import draw_barbell

        return draw_barbell(self, path)


def barbell(
    steps: int = 50,
    *,
    clique: int = 10,
    bridge: int = 4,
    step: float = 1.0,
    train_steps: int = 40,
    seed: int = 0,
) -> BarbellResult:
    r"""Send a signal over a barbell graph, by gradient flow and by TANGO.

    Two cliques are joined by a path. All features are 0, but that of the leftmost node is 1. Gradient flow of the
    Dirichlet energy spreads the signal over the first clique at once, and then waits for it to leak over the bridge:
    the Laplacian's second eigenvalue is small. TANGO adds a learned direction, orthogonal to the energy's gradient,
    with the same energy and as many forward Euler steps of the same size. This is the example of "TANGO: Graph Neural
    Dynamics via Learned Energy and Tangential Flows", which does not say how large its graph and its steps are.

    The tangent is a :class:`FluxTangent`, and beta an :class:`EulerBeta`. It is trained by Adam through all steps, from
    this one start on this one graph, to end as near to the uniform state as it can. Nothing is held out, and the
    settings of the tangent and of its training were chosen by their result here: this shows what tangential motion can
    do while the energy falls, not what a network generalises to. Both flows preserve the sum of the features, so
    signal beyond the bridge has crossed it.

    The step size is `step` divided by the Laplacian's largest eigenvalue. Up to 2 the energy does not rise along
    gradient flow; the signal crosses the faster, the larger it is.

    Args:
        steps: Of forward Euler.
        clique: Nodes of each clique.
        bridge: Nodes of the path between them.
        step: The size of a step, relative to the largest eigenvalue's inverse.
        train_steps: Of Adam.
        seed: Of the tangent's weights.

    >>> from examples.barbell_flows import barbell
    >>> result = barbell(10, clique=4, bridge=1, train_steps=5)
    >>> result.tango.crossed > result.gradient_flow.crossed, result.tango.largest_rise < 0
    (True, True)
    """
    if not 0 < step < 2:
        raise ValueError(f"step must lie between 0 and 2, or the energy rises along gradient flow; got {step}")
    if train_steps < 0:
        raise ValueError(f"train_steps must not be negative, got {train_steps}")
    graphs, positions = barbell_graph(clique, bridge)
    source = int(positions[:clique, 0].argmin())
    start = torch.zeros(graphs.num_nodes, 1, dtype=torch.float64)
    start[source] = 1
    energy = DirichletEnergy(systems=graphs)
    step_size = step / _largest_eigenvalue(energy, start)
    descent = Flow(LyapunovField(energy), steps=steps, step_size=step_size)
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tangent = FluxTangent().double()
    flow = Flow(LyapunovField(energy, tangent, beta=EulerBeta(energy, step_size)), steps=steps, step_size=step_size)
    losses = _train(flow, start, train_steps)
    spent = time.perf_counter() - began
    right = slice(clique + bridge, None)
    return BarbellResult(
        graphs, positions, source, step_size,
        gradient_flow=_follow(descent, start, right, 0.0),
        tango=_follow(flow, start, right, spent),
        uniform=clique / graphs.num_nodes,
        losses=tuple(losses),
    )  # fmt: skip


def barbell_graph(clique: int, bridge: int) -> tuple[GraphBatch, Tensor]:
    """Two cliques and the path between them, from left to right, and positions `[n, 2]` to draw them at.

    >>> from examples.barbell_flows import barbell_graph
    >>> graph, positions = barbell_graph(clique=3, bridge=2)
    >>> graph, positions.shape
    (GraphBatch(graphs=1, nodes=8, edges=18), torch.Size([8, 2]))
    """
    if clique < 2:
        raise ValueError(f"clique must be 2 at the least, got {clique}")
    if bridge < 0:
        raise ValueError(f"bridge must not be negative, got {bridge}")
    within = torch.combinations(torch.arange(clique)).T
    path = torch.arange(clique - 1, clique + bridge + 1)
    edges = torch.cat([within, torch.stack([path[:-1], path[1:]]), within + clique + bridge], dim=1)
    angle = 2 * math.pi / clique * torch.arange(1, clique + 1, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], dim=1)  # its last node lies on the right
    gap = 0.8 * (bridge + 1)
    between = torch.stack([1 + gap * torch.arange(1, bridge + 1) / (bridge + 1), torch.zeros(bridge)], dim=1)
    mirrored = torch.tensor([2 + gap, 0.0]) + circle.roll(1, 0) * torch.tensor([-1.0, 1.0])
    return GraphBatch(torch.cat([edges, edges.flip(0)], dim=1), 2 * clique + bridge), torch.cat(
        [circle, between, mirrored]
    )


def _largest_eigenvalue(energy: DirichletEnergy, like: Tensor) -> float:
    hessian: Any = torch.autograd.functional.hessian(lambda h: energy(h).sum(), like)
    return float(torch.linalg.eigvalsh(hessian.reshape(len(like), len(like)))[-1])


def _train(flow: Flow, start: Tensor, train_steps: int) -> list[float]:
    """Bring the end near to the uniform state. The loss is a logarithm: near it, too, there is something to gain."""
    losses: list[float] = []
    if train_steps == 0:
        return losses
    optimizer = torch.optim.Adam(flow.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=train_steps)
    for _ in range(train_steps):
        loss = torch.log((flow(start) - start.mean()).square().sum())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def _follow(flow: Flow, start: Tensor, right: slice, spent: float) -> Way:
    began = time.perf_counter()
    solution = flow.solve(start, saveat="steps")
    states, energy = solution.ys[..., 0], solution.energy[:, 0]
    share = float(states[-1, right].abs().sum() / states[-1].abs().sum())
    return Way(states, energy, share, flow, spent + time.perf_counter() - began)
