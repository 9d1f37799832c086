"""TANGO as a layer: node features go down a learned energy, and along a learned direction that does no work on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, final

from torch import Tensor, nn

from lyapflow import LyapunovField
from solvers import ExplicitRK, Method
from solvers.guarded import HALVINGS, ROUNDINGS
from solvers.method.base import find_method

from .backbones import GatedGCN, make_backbone
from .backbones.base import check_edge_attr
from .backbones.gatedgcn import is_watched
from .batch import GraphBatch
from .conv import DynamicsConv
from .kernels.flow import FlowForm, FlowWeights, Steps, TangentWeights, small_flow
from .tango_parts import GraphEnergy, GraphTangent, PooledCoefficient, Reduction, weights_of_perceptron

Ablation = Literal["non-energy", "non-tangent", "gradient-flow"]

_BETA_GAIN = 0.1  # the tangential part starts small: its size is unbounded, and has to be learned


@final
class TangoConv(DynamicsConv):
    r"""The tangential flow of TANGO, as a layer: node features follow

    .. math::
        \frac{dH}{dt} = -\alpha\, \nabla V(H) + \beta\, T(H), \qquad
        T = M - \frac{\langle M, \nabla V \rangle}{\langle \nabla V, \nabla V \rangle} \nabla V

    with a :class:`GraphEnergy` V, a :class:`GraphTangent` M and coefficients of every graph, alpha in [0, 1] from the
    pooled features of the energy, beta of any sign from those of the tangent. Along the differential equation
    :math:`dV/dt = -\alpha |\nabla V|^2`, so that V never grows. Forward Euler steps, the default as in the paper, keep
    this only if they are small; `method="armijo_euler"` and other dissipative ones keep it at any step size.

    The weights are shared by all steps: V is one function. The paper has `reduction="mean"` and `pool="sum"`; the
    defaults here do the same on graphs of ten nodes and of fifty thousand, where those make the descent vanish and the
    coefficients explode.

    Args:
        channels: Features of a node, in and out.
        energy_gnn: The network of the energy: a name from `BACKBONES`, or a module.
        tangent_gnn: The network of the tangent, likewise; None for the same name as the energy's.
        num_steps: How many steps are taken.
        step_size: Their size.
        num_layers: Layers of either network, where they are given by name.
        edge_dim: Features of an edge, None where there are none.
        norm: "layer", "graph", "batch" or "none", of either network. With "batch" the energy is one of the whole batch
            in training mode, and a warning says so.
        act: The activation in and after the energy's network and in the tangent's.
        tangent_act: The activation after the tangent's network.
        tangent_linear: Whether a linear map comes after that; the paper has none, and it helps, see
            :class:`GraphTangent`.
        dropout: In the tangent's network, in training mode. The energy has none, or it would not be a function.
        reduction: "sum" or "mean" of the energy over the nodes of a graph.
        pool: "mean" or "sum" of the features that alpha and beta are made from.
        granularity: "graph" for a direction orthogonal to the gradient in every graph; "node" for one that is so at
            every node, which implies the former.
        beta_start: About what beta is for every graph when training starts: how much of the tangent there is. None
            draws it, near 0, and of either sign.
        ablation: None, or "non-energy" (the features of the energy's network take the place of its gradient),
            "non-tangent" (the direction is not made orthogonal), "gradient-flow" (there is no tangent). The first two
            promise nothing.
        method: A name from :func:`solvers.methods`, or a method.
        checkpoint: Whether to compute every step again when gradients flow back, to save memory.
        guard: Whether every step is guarded, so that no step raises the energy of a graph: see :class:`lyapflow.Flow`.
            None guards wherever there is something to keep: explicit methods, no ablation that promises nothing.
        backbone_options: Further options of networks given by name, as `{"heads": 8}`.

    >>> import torch
    >>> from lyapflow_graph import TangoConv
    >>> conv = TangoConv(8)
    >>> x, edge_index = torch.randn(3, 8), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> conv(x, edge_index).shape
    torch.Size([3, 8])
    >>> parts = conv.field(edge_index).parts(0.0, x)
    >>> torch.allclose(parts.rate, -parts.alpha * parts.gradient.square().sum(), atol=1e-6)
    True
    """

    def __init__(
        self,
        channels: int,
        energy_gnn: str | nn.Module = "gatedgcn",
        tangent_gnn: str | nn.Module | None = None,
        num_steps: int = 8,
        step_size: float = 0.1,
        *,
        num_layers: int = 1,
        edge_dim: int | None = None,
        norm: str = "layer",
        act: str = "silu",
        tangent_act: str = "identity",
        tangent_linear: bool = False,
        dropout: float = 0.0,
        reduction: Reduction = "sum",
        pool: Literal["mean", "sum"] = "mean",
        granularity: Literal["graph", "node"] = "graph",
        beta_start: float | None = None,
        ablation: Ablation | None = None,
        method: str | Method = "euler",
        checkpoint: bool = False,
        guard: bool | None = None,
        backbone_options: Mapping[str, Any] | None = None,
    ) -> None:
        promises = ablation not in ("non-energy", "non-tangent")
        if guard is None:
            guard = promises and isinstance(find_method(method), ExplicitRK)
        elif guard and not promises:
            raise ValueError(
                f"ablation={ablation!r} promises no descent, so there is nothing to guard: leave out guard"
            )
        super().__init__(channels, num_steps, step_size, method, checkpoint, guard)
        if granularity not in ("graph", "node"):
            raise ValueError(f'granularity must be "graph" or "node", got {granularity!r}')
        if ablation not in (None, "non-energy", "non-tangent", "gradient-flow"):
            raise ValueError(f'ablation must be None, "non-energy", "non-tangent" or "gradient-flow", got {ablation!r}')
        if tangent_gnn is None:
            if not isinstance(energy_gnn, str):
                raise TypeError("tangent_gnn must be given where energy_gnn is a module: they do not share weights")
            tangent_gnn = energy_gnn
        self.edge_dim = edge_dim
        options: dict[str, Any] = {"norm": norm, "act": act, **(backbone_options or {})}
        gnn = make_backbone(energy_gnn, channels, num_layers, edge_dim, **options)
        self.energy = GraphEnergy(gnn, act, reduction)
        self.alpha = PooledCoefficient(channels, "sigmoid", pool, act)
        self.tangent: GraphTangent | None = None
        self.beta: PooledCoefficient | None = None
        if ablation != "gradient-flow":
            gnn = make_backbone(tangent_gnn, channels, num_layers, edge_dim, dropout=dropout, **options)
            self.tangent = GraphTangent(gnn, tangent_act, tangent_linear)
            self.beta = PooledCoefficient(channels, "real", pool, act, gain=_BETA_GAIN, start=beta_start)
        self.granularity, self.ablation = granularity, ablation

    def bind(self, graphs: GraphBatch) -> LyapunovField:
        check_edge_attr(graphs.edge_attr, self.edge_dim)  # here, before any work is done
        projection: Literal["system", "row", "none"] = "system" if self.granularity == "graph" else "row"
        return LyapunovField(
            self.energy,
            self.tangent,
            self.alpha,
            0.0 if self.beta is None else self.beta,
            systems=graphs,
            projection="none" if self.ablation == "non-tangent" else projection,
            descent="features" if self.ablation == "non-energy" else "gradient",
        )

    def all_steps(
        self, x: Tensor, graphs: GraphBatch, guard: bool, *, states: bool = False, energies: bool = False
    ) -> Steps | None:
        """All steps in one call, for small graphs and networks of kind "gatedgcn"; see :func:`small_flow`."""
        check_edge_attr(graphs.edge_attr, self.edge_dim)
        form = self._form(guard)
        weights = None if form is None or is_watched(self) else self._weights()
        if form is None or weights is None:
            return None
        networks = [self.energy.gnn] if self.tangent is None else [self.energy.gnn, self.tangent.gnn]
        of_edges = [gnn.of_edges(graphs, x) if isinstance(gnn, GatedGCN) else None for gnn in networks]
        return small_flow(x, (of_edges[0], of_edges[-1]), weights, graphs, form, states, energies)

    def _form(self, guard: bool) -> FlowForm | None:
        gnn, alpha, beta = self.energy.gnn, self.alpha, self.beta
        if self.method != "euler" or self.granularity != "graph" or self.ablation not in (None, "gradient-flow"):
            return None
        if not isinstance(gnn, GatedGCN) or (beta is not None and beta.pool != alpha.pool):
            return None
        if self.tangent is not None and getattr(self.tangent.gnn, "form", None) != gnn.form:
            return None
        return FlowForm(
            gnn.form, self.energy.reduction == "mean", alpha.pool == "mean", self.num_steps, self.step_size,
            HALVINGS if guard else None, ROUNDINGS, self.checkpoint,
        )  # fmt: skip

    def _weights(self) -> FlowWeights | None:
        """The parameters of all parts, if they are of the kind that has kernels as a whole."""
        energy, alpha = self.energy.weights(), weights_of_perceptron(self.alpha.head)
        if energy is None or alpha is None:
            return None
        if self.tangent is None or self.beta is None:
            return FlowWeights(*energy, alpha, None)
        tangent, beta = self.tangent.weights(), weights_of_perceptron(self.beta.head)
        if tangent is None or beta is None or (tangent[0][0].norm_weight is None) != (energy[0][0].norm_weight is None):
            return None
        return FlowWeights(*energy, alpha, TangentWeights(*tangent, beta))

    def extra_repr(self) -> str:
        told = super().extra_repr()
        if self.granularity != "graph":
            told += f", granularity={self.granularity!r}"
        return told if self.ablation is None else f"{told}, ablation={self.ablation!r}"
