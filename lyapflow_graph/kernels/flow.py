"""All steps of TANGO on small graphs in one call: see flow_real.h."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu
from .layer import Form, HeadWeights, LayerWeights, fits, gated_energy, gated_layer
from .operators import backward_again

if TYPE_CHECKING:
    from ..batch import GraphBatch

MOST_NODES = 1024
"""Graphs of more nodes are not small: the kernels for single steps use all threads on one of them."""
MOST_CHANNELS = 256
_MOST_LAYERS = 16
_WORK_OF_A_THREAD = 2**16  # entries of all states


class MapWeights(NamedTuple):
    """The parameters of a linear map: `[d, d]`, `[d]`."""

    weight: Tensor
    bias: Tensor


class TangentWeights(NamedTuple):
    """Those of a direction and its coefficient."""

    layers: Sequence[LayerWeights]
    linear: MapWeights | None
    beta: HeadWeights


class FlowWeights(NamedTuple):
    """The parameters of a field; without a tangent that of a gradient flow."""

    layers: Sequence[LayerWeights]
    head: HeadWeights
    alpha: HeadWeights
    tangent: TangentWeights | None


class FlowForm(NamedTuple):
    """What kind of flow it is.

    Attributes:
        layer: The form of the layers of both networks.
        mean: Whether the energy is a mean over the nodes of a graph, or a sum.
        pool_mean: Whether the coefficients are made from means of features, or from sums.
        steps: How many steps.
        step_size: Their size.
        halvings: How often a guard halves a step that would raise the energy; None without a guard.
        roundings: How many machine epsilons of the energy such a guard takes for rounding.
        checkpoint: Whether the backward computes every step again.
    """

    layer: Form
    mean: bool
    pool_mean: bool
    steps: int
    step_size: float
    halvings: int | None = None
    roundings: float = 0.0
    checkpoint: bool = False


class Steps(NamedTuple):
    """What a flow found.

    Attributes:
        last: `[n, d]`, the state after the last step.
        states: `[steps + 1, n, d]`, if asked for.
        energies: `[steps + 1, S]`, if asked for.
        scales: `[steps, S]`, the part of every step that was taken.
    """

    last: Tensor
    states: Tensor | None
    energies: Tensor | None
    scales: Tensor


def small_flow(
    h: Tensor, of_edges: tuple[Tensor | None, Tensor | None], weights: FlowWeights, graphs: GraphBatch, form: FlowForm,
    states: bool = False, energies: bool = False,
) -> Steps | None:  # fmt: skip
    """All steps of a flow on small graphs; None where there is no kernel for them, or where a state is not finite.

    Args:
        h: `[n, d]`, the state at the start.
        of_edges: `[E, d]` for the gates of the energy and of the tangent, or None.
        weights: The parameters.
        graphs: Of at most `MOST_NODES` nodes each.
        form: Of the flow.
        states: Whether all states are asked for.
        energies: Whether the energies are.
    """
    flat = list(_flat(weights))
    if not (cpu.has_flow and h.shape[1] <= MOST_CHANNELS and graphs.largest_graph <= MOST_NODES):
        return None
    if graphs.node_ptr is None or not fits(h, *of_edges, *flat):
        return None
    if max(len(weights.layers), len(weights.tangent.layers) if weights.tangent else 0) > _MOST_LAYERS:
        return None
    found = Steps(*_Flow.apply(_Plan(weights, graphs, form, states, energies), h, *of_edges, *flat))
    finite = torch.isfinite(found.last).all() & torch.isfinite(found.scales).all()
    return found if bool(finite) else None


def flow_in_steps(
    h: Tensor, of_edges: tuple[Tensor | None, Tensor | None], weights: FlowWeights, graphs: GraphBatch, form: FlowForm,
    scales: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The last state, all states and all energies, step by step, with the scales of the steps given."""
    packed, layer = graphs.packed_edges, form.layer
    share = graphs.share_of_node(h.dtype) if form.mean else None
    seed = None if share is None else share[graphs.graph_of_node]
    systems = graphs.bind(h)
    pool: Literal["mean", "sum"] = "mean" if form.pool_mean else "sum"
    states, energies = [h], []
    for step in range(form.steps + 1):
        density, features, g = gated_energy(h, of_edges[0], weights.layers, weights.head, packed, seed, layer)
        value = systems.total(density)
        energies.append(value if share is None else value * share)
        if step == form.steps:
            break
        alpha = _perceptron(graphs.pool(features, pool), weights.alpha).sigmoid()
        if weights.tangent is None:
            velocity = -systems.spread(alpha) * g
        else:
            M = h
            for layer_weights in weights.tangent.layers:
                M = gated_layer(M, of_edges[1], layer_weights, packed, layer)
            if weights.tangent.linear is not None:
                M = F.linear(M, *weights.tangent.linear)
            beta = _perceptron(graphs.pool(M, pool), weights.tangent.beta)
            velocity = systems.combine(M, g, alpha, beta)
        h = h + form.step_size * systems.spread(scales[step]) * velocity
        states.append(h)
    return h, torch.stack(states), torch.stack(energies)


def _perceptron(x: Tensor, weights: HeadWeights) -> Tensor:
    hidden = F.silu(F.linear(x, weights.weight, weights.bias))
    return F.linear(hidden, weights.out_weight, weights.out_bias).squeeze(-1)


# -- parameters as a list and back ------------------------------------------------------------------------------------


def _flat(weights: FlowWeights) -> Iterator[Tensor | None]:
    for layer in weights.layers:
        yield from layer
    yield from weights.head
    yield from weights.alpha
    if weights.tangent is not None:
        for layer in weights.tangent.layers:
            yield from layer
        yield from weights.tangent.linear or ()
        yield from weights.tangent.beta


@final
class _Plan:
    """What is the same forward and backward."""

    def __init__(self, weights: FlowWeights, graphs: GraphBatch, form: FlowForm, states: bool, energies: bool) -> None:
        self.graphs, self.form = graphs, form
        self.states, self.energies = states, energies
        self.layers, self.tangent = len(weights.layers), weights.tangent is not None
        self.tangent_layers = 0 if weights.tangent is None else len(weights.tangent.layers)
        self.linear = weights.tangent is not None and weights.tangent.linear is not None
        self.normed = weights.layers[0].norm_weight is not None

    def weights(self, flat: Sequence[Any]) -> FlowWeights:
        """The parameters, as they were before they were a list."""
        rest = iter(flat)

        def take(kind: Any, count: int) -> Any:
            return kind(*(next(rest) for _ in range(count)))

        layers = [take(LayerWeights, 4) for _ in range(self.layers)]
        head, alpha = take(HeadWeights, 4), take(HeadWeights, 4)
        tangent = None
        if self.tangent:
            of_tangent = [take(LayerWeights, 4) for _ in range(self.tangent_layers)]
            tangent = TangentWeights(of_tangent, take(MapWeights, 2) if self.linear else None, take(HeadWeights, 4))
        return FlowWeights(layers, head, alpha, tangent)

    def run(self, h: Tensor, flat: Sequence[Tensor | None], backward: bool, **tensors: Tensor | None) -> int:
        """The size of the tape; with somewhere to write to, after the flow or its backward was computed."""
        graphs, form = self.graphs, self.form
        nodes, channels = h.shape
        ptr = graphs.node_ptr
        assert ptr is not None
        threads = max(1, min(torch.get_num_threads(), nodes * channels * form.steps // _WORK_OF_A_THREAD))
        numbers = [
            int(x)
            for x in (
                backward, h.dtype == torch.float64, threads, nodes, graphs.count, channels, graphs.num_edges,
                self.layers, self.tangent_layers, self.linear, form.layer.residual, form.layer.normalize, self.normed,
                form.pool_mean, form.mean, form.steps, -1 if form.halvings is None else form.halvings,
            )
        ]  # fmt: skip
        given = {"packed": graphs.packed_edges, "ptr": ptr, "h": h, **tensors}
        addresses = [_address(given.pop(name, None)) for name in _TENSORS]
        assert not given, given.keys()
        allowance = form.roundings * torch.finfo(h.dtype).eps
        return cpu.flow(*numbers, *addresses, form.step_size, allowance, *map(_address, flat))


# In the order of the structure in flow.h.
_TENSORS = (
    "packed", "ptr", "h", "last", "states", "energies", "scales", "tape", "energy_c", "tangent_c", "dlast", "dstates",
    "denergies", "dh", "dweights", "denergy_c", "dtangent_c",
)  # fmt: skip


@final
class _Flow(torch.autograd.Function):
    """:func:`small_flow`."""

    @staticmethod
    def forward(
        ctx: Any, plan: _Plan, h: Tensor, energy_c: Tensor | None, tangent_c: Tensor | None, *weights: Tensor | None
    ) -> Any:
        form, graphs, learns = plan.form, plan.graphs, any(ctx.needs_input_grad)
        h, kept = h.contiguous(), [x if x is None else x.contiguous() for x in weights]
        last = cpu.empty(h.shape, h.dtype)
        scales = h.new_empty(form.steps, graphs.count)
        energies = h.new_empty(form.steps + 1, graphs.count) if plan.energies else None
        states, tape = None, None
        if plan.states or (learns and form.checkpoint):
            states = cpu.empty((form.steps + 1, *h.shape), h.dtype)
        of_edges = {"energy_c": _padded(energy_c), "tangent_c": _padded(tangent_c)}
        if learns and not form.checkpoint:
            tape = cpu.empty((plan.run(h, kept, False),), h.dtype)
        found = {"last": last, "states": states, "energies": energies, "scales": scales, "tape": tape}
        plan.run(h, kept, False, **of_edges, **found)
        if learns:
            ctx.save_for_backward(h, energy_c, tangent_c, last, states, scales, tape, *weights)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(scales)
        return last, states if plan.states else None, energies, scales

    @staticmethod
    def backward(
        ctx: Any, dlast: Tensor | None, dstates: Tensor | None, denergies: Tensor | None, dscales: Tensor | None
    ) -> Any:
        plan: _Plan = ctx.plan
        h, energy_c, tangent_c, last, states, scales, tape, *weights = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(h: Tensor, energy_c: Tensor | None, tangent_c: Tensor | None, *flat: Tensor) -> Any:
                return flow_in_steps(h, (energy_c, tangent_c), plan.weights(flat), plan.graphs, plan.form, scales)

            return None, *backward_again(plain, [h, energy_c, tangent_c, *weights], [dlast, dstates, denergies])
        h, kept = h.contiguous(), [x if x is None else x.contiguous() for x in weights]
        dh, sizes = cpu.empty(h.shape, h.dtype), [0 if x is None else x.numel() for x in kept]
        dweights = h.new_empty(sum(sizes))
        c = {"energy_c": _padded(energy_c), "tangent_c": _padded(tangent_c)}
        dc = {f"d{name}": None if x is None else torch.zeros_like(x) for name, x in c.items()}
        given = {"dlast": dlast, "dstates": dstates, "denergies": denergies}
        given = {name: x if x is None else x.contiguous() for name, x in given.items()}
        plan.run(
            h,
            kept,
            True,
            last=last,
            states=states,
            scales=scales,
            tape=tape,
            dh=dh,
            dweights=dweights,
            **c,
            **dc,
            **given,
        )
        slopes = [
            None if x is None else part.view(x.shape) for x, part in zip(kept, dweights.split(sizes), strict=True)
        ]
        cut = (None if x is None else x[:, : h.shape[1]] for x in dc.values())
        return None, dh, *cut, *slopes


def _padded(c: Tensor | None) -> Tensor | None:
    return None if c is None else F.pad(c, (0, cpu.width(c.shape[1]) - c.shape[1])).contiguous()


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()
