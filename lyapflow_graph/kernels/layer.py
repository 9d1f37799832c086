"""A gated layer as a whole, and an energy on such layers with its gradient, differentiated by hand.

Between two matrix products everything that happens to the features of a node happens in one kernel. The gradient of an
energy, which a step goes along, is differentiated once more when a model learns; mixed derivatives commute, so that
this is the derivative of the gradient along a direction: one pass forward and one backward with dual numbers, and no
graph of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu
from .cpu import After, Kept, LayerSums
from .gated import CLOSED, gated_sums, gated_update, has_kernel, row_norm, silu
from .operators import backward_again, backward_of_backward


class LayerWeights(NamedTuple):
    """The parameters of a gated layer.

    Attributes:
        weight: `[4 d, d]`, of the maps to q, v, k and own, one below the other.
        bias: `[4 d]`, likewise.
        norm_weight: `[d]`, of the normalisation; None where rows are not normalised.
        norm_bias: `[d]`, likewise.
    """

    weight: Tensor
    bias: Tensor
    norm_weight: Tensor | None
    norm_bias: Tensor | None


class HeadWeights(NamedTuple):
    """The parameters of a perceptron of one hidden layer and one output: `[d, d]`, `[d]`, `[1, d]`, `[1]`."""

    weight: Tensor
    bias: Tensor
    out_weight: Tensor
    out_bias: Tensor


class Form(NamedTuple):
    """What kind of gated layer it is.

    Attributes:
        residual: Whether it adds what comes in.
        normalize: Whether its gates are shares, which add up to one at every node.
    """

    residual: bool = True
    normalize: bool = True


def gated_layer(h: Tensor, c: Tensor | None, weights: LayerWeights, edges: Tensor, form: Form) -> Tensor:
    r"""A layer of :class:`GatedGCN` with normalised rows and SiLU, without dropout.

    With `[q v k own] = h weight^T + bias` and :func:`gated_sums` of them, the layer is
    :math:`\mathrm{silu}(\mathrm{norm}(\mathrm{own} + \mathrm{num} / (\mathrm{den} + 10^{-6})))`, without the division
    where gates are not normalised, added to h or not.

    Args:
        h: `[n, d]`.
        c: `[E, d]`, of the edges, or None.
        weights: The parameters.
        edges: :attr:`GraphBatch.packed_edges`.
        form: Of the layer.
    """
    if weights.norm_weight is None or not fits(h, c, *weights):
        return _plain_layer(h, c, weights, edges, form)
    return _Layer.apply(h, _padded(c, cpu.width(h.shape[1])), edges, form, *weights)


def gated_energy(
    h: Tensor, c: Tensor | None, layers: Sequence[LayerWeights], head: HeadWeights, edges: Tensor, seed: Tensor | None,
    form: Form,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    r"""An energy density at every node, its features, and the gradient of the sum of the densities, times `seed`.

    The features are :math:`f = \mathrm{silu}(y)` of what the layers make of h, the density is the square of what the
    head makes of f.

    Args:
        h: `[n, d]`.
        c: `[E, d]`, of the edges, or None; with more than one layer None.
        layers: Their parameters.
        head: Those of the perceptron.
        edges: :attr:`GraphBatch.packed_edges`.
        seed: `[n]`, or None for ones.
        form: Of the layers.
    """
    if layers[0].norm_weight is None or not fits(h, c, *head, *(x for layer in layers for x in layer)):
        return _plain_energy(h, c, layers, head, edges, seed, form)
    flat = [x for layer in layers for x in layer]
    return _Energy.apply(h, _padded(c, cpu.width(h.shape[1])), edges, seed, form, *head, *flat)


def fits(h: Tensor, *others: Tensor | None) -> bool:
    """Whether there are kernels for these tensors."""
    return (
        has_kernel(h)
        and cpu.fits(h)  # other devices have kernels for the operators alone
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and all(x is None or (x.dtype == h.dtype and x.device == h.device) for x in others)
    )


# -- in plain torch ---------------------------------------------------------------------------------------------------


def _plain_layer(h: Tensor, c: Tensor | None, weights: LayerWeights, edges: Tensor, form: Form) -> Tensor:
    q, v, k, own = F.linear(h, weights.weight, weights.bias).chunk(4, dim=1)
    num, den = gated_sums(k, q, v, c, edges)
    norm_weight, norm_bias = weights.norm_weight, weights.norm_bias
    if norm_weight is None or norm_bias is None:
        change = silu(own + (num / (den + CLOSED) if form.normalize else num))
    elif form.normalize:
        change = gated_update(own, num, den, norm_weight, norm_bias)
    else:
        change = silu(row_norm(own + num, norm_weight, norm_bias))
    return h + change if form.residual else change


def _plain_energy(
    h: Tensor, c: Tensor | None, layers: Sequence[LayerWeights], head: HeadWeights, edges: Tensor, seed: Tensor | None,
    form: Form,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    record = torch.is_grad_enabled()
    with torch.enable_grad():
        point = h if h.requires_grad else h.detach().requires_grad_()
        y = point
        for weights in layers:
            y = _plain_layer(y, c, weights, edges, form)
        features = silu(y)
        v = F.linear(silu(F.linear(features, head.weight, head.bias)), head.out_weight, head.out_bias)[:, 0]
        density = v.square()
        (gradient,) = torch.autograd.grad(
            density, point, torch.ones_like(density) if seed is None else seed, create_graph=record
        )
    return density, features, gradient


# -- by kernels -------------------------------------------------------------------------------------------------------


@final
class _Gates:
    """A layer with its edges, as the kernels take it: rows of what it keeps are padded to a width that suits them."""

    def __init__(self, weights: Sequence[Tensor], c: Tensor | None, edges: Tensor, form: Form) -> None:
        weight, bias, norm_weight, norm_bias = weights
        self.channels = channels = weight.shape[1]
        self.width = width = cpu.width(channels)
        if width != channels:
            more = width - channels
            weight = F.pad(weight.view(4, channels, channels), (0, 0, 0, more)).flatten(0, 1)
            bias = F.pad(bias.view(4, channels), (0, more))
        self.weight, self.bias = weight.contiguous(), bias.contiguous()
        self.norm = _padded(norm_weight, width), _padded(norm_bias, width)
        self.c, self.edges, self.form = c, edges, form

    def value(self, h: Tensor, features: bool) -> tuple[Tensor, Tensor | None, Kept]:
        """y, silu(y) if asked for, and what the others take."""
        p, bias, form = cpu.product(h, self.weight.T), self.bias, self.form
        if not form.normalize:
            # Every gate of a sum has the bias of v; that of a mean is one of the node, which the kernel adds.
            bias = bias.view(4, self.width).clone()
            p[:, self.width : 2 * self.width] += bias[1]
            bias[1] = 0
        return cpu.layer_value(p, self.c, bias, self.norm, h, self.edges, form.normalize, form.residual, features)

    def backward(
        self, kept: Kept, gy: Tensor, y: Tensor | None, of_edges: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, LayerSums]:
        """The derivatives in h, p and c, and what `slopes` takes, given that in y; or, with y, that in silu(y)."""
        dp, dc, again, sums = cpu.layer_backward(
            kept, self.c, self.norm, gy, y, self.edges, self.form.normalize, of_edges, self.form.residual
        )
        return self._down(dp, again), dp, dc, sums

    def dual_value(self, h: Tensor, h_: Tensor, kept: Kept, last: bool) -> tuple[Tensor, After | None, Kept]:
        """The change of y and of what is kept with h; and, if asked for, what comes after the last layer."""
        p_ = cpu.product(h_, self.weight.T)
        return cpu.layer_dual_value(
            kept, p_, self.c, self.norm, h, h_, self.edges, self.form.normalize, self.form.residual, last
        )

    def dual_backward(
        self, kept: Kept, kept_: Kept, gy: Tensor, gy_: Tensor | None, after: After | None
    ) -> tuple[Tensor, Tensor, Tensor | None, LayerSums]:
        """The change of what `backward` gives, with h and with gy."""
        # Where gy does not change, there is nothing that the derivative in h would be added to.
        residual = self.form.residual and gy_ is not None
        dp_, dc, again, sums = cpu.layer_dual_backward(
            kept, kept_, self.c, self.norm, gy, gy_, after, self.edges, self.form.normalize, residual
        )
        return self._down(dp_, again), dp_, dc, sums

    def _down(self, dp: Tensor, again: Tensor | None) -> Tensor:
        return cpu.product(dp, self.weight) if again is None else again.addmm_(dp, self.weight)

    def slopes(self, dweight: Tensor, sums: LayerSums) -> list[Tensor]:
        """The derivatives in the weights as they were given."""
        channels, width = self.channels, self.width
        (dnorm_weight, dnorm_bias, *others), first = sums[0][:, :channels], sums[1][:, :channels]
        if width != channels:
            dweight = dweight.view(4, width, channels)[:, :channels].reshape(4 * channels, channels)
        return [dweight, torch.cat([*first, *others]), dnorm_weight, dnorm_bias]


@final
class _Layer(torch.autograd.Function):
    """:func:`gated_layer`."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, c: Tensor | None, edges: Tensor, form: Form, *weights: Tensor) -> Tensor:
        h = cpu.in_rows(h)
        y, _, kept = _Gates(weights, c, edges, form).value(h, features=False)
        ctx.save_for_backward(h, c, edges, *weights, *kept)
        ctx.form = form
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        h, c, *weights = _LayerBackward.apply(ctx.needs_input_grad, ctx.form, gy, *ctx.saved_tensors)
        return h, c, None, None, *weights


@final
class _LayerBackward(torch.autograd.Function):
    """Its backward, which is differentiated again where the layer is part of an energy."""

    @staticmethod
    def forward(ctx: Any, needs: Sequence[bool], form: Form, gy: Tensor, *saved: Any) -> Any:
        h, c, edges, *weights = saved[:-3]
        layer, gy = _Gates(weights, c, edges, form), cpu.in_rows(gy)
        dh, dp, dc, sums = layer.backward(Kept(*saved[-3:]), gy, None, of_edges=needs[1])
        slopes = layer.slopes(cpu.product_over_rows((dp, h)), sums) if any(needs[4:]) else [None] * 4
        ctx.save_for_backward(gy, dp, *saved)
        ctx.form = form
        ctx.set_materialize_grads(False)
        return (dh if needs[0] else None, dc, *slopes)

    @staticmethod
    def backward(ctx: Any, h_: Tensor | None, *others: Tensor | None) -> Any:
        gy, dp, h, c, edges, *weights = ctx.saved_tensors[:-3]
        if torch.is_grad_enabled() or h_ is None or any(x is not None for x in others):

            def plain(h: Tensor, c: Tensor | None, *weights: Tensor) -> tuple[Tensor]:
                return (_plain_layer(h, _cut(c, h), LayerWeights(*weights), edges, ctx.form),)

            dgy, dh, dc, *dweights = backward_of_backward(plain, [h, c, *weights], [gy], [h_, *others])
        else:
            layer, h_, kept = _Gates(weights, c, edges, ctx.form), cpu.in_rows(h_), Kept(*ctx.saved_tensors[-3:])
            dgy, _, kept_ = layer.dual_value(h, h_, kept, last=False)
            dh, dp_, dc, sums = layer.dual_backward(kept, kept_, gy, None, None)
            dweights = [*layer.slopes(cpu.product_over_rows((dp, h_), (dp_, h)), sums)]
        return None, None, dgy, dh, dc, None, *dweights, None, None, None


@final
class _Energy(torch.autograd.Function):
    """:func:`gated_energy`."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, c: Tensor | None, edges: Tensor, seed: Tensor | None, form: Form, *weights: Tensor
    ) -> Any:
        head, layers = _ready(weights, c, edges, form)
        h = cpu.in_rows(h)
        y, f, passed = h, None, []
        for layer in layers:
            x = y
            y, f, kept = layer.value(x, features=layer is layers[-1])
            passed.append((layer, x, kept))
        assert f is not None
        t = cpu.product(f, head.weight.T)
        density, gt = cpu.head_value(t, head.bias, head.out_weight, head.out_bias, seed)
        gf = cpu.product(gt, head.weight)
        g, saved = gf, []
        for layer, x, kept in reversed(passed):
            down, dp, _, _ = layer.backward(kept, g, y if layer is layers[-1] else None, of_edges=False)
            saved += [x, *kept, g, dp]
            g = down
        # What the backward can compute again on its way is not kept: y, f and gt.
        ctx.save_for_backward(h, c, edges, seed, t, *weights, *saved)
        ctx.form, ctx.weights = form, len(weights)
        ctx.set_materialize_grads(False)
        return density, f, g

    @staticmethod
    def backward(ctx: Any, seed_: Tensor | None, lf: Tensor | None, h_: Tensor | None) -> Any:
        h, c, edges, seed, t, *rest = ctx.saved_tensors
        weights, saved = rest[: ctx.weights], rest[ctx.weights :]
        if torch.is_grad_enabled():

            def plain(h: Tensor, c: Tensor | None, *weights: Tensor) -> tuple[Tensor, ...]:
                layers = [LayerWeights(*weights[m : m + 4]) for m in range(4, len(weights), 4)]
                return _plain_energy(h, _cut(c, h), layers, HeadWeights(*weights[:4]), edges, seed, ctx.form)

            dh, dc, *rest = backward_again(plain, [h, c, *weights], [seed_, lf, h_])
            return dh, dc, None, None, None, *rest
        head, layers = _ready(weights, c, edges, ctx.form)
        passed = [(x, Kept(*kept), g, dp) for x, *kept, g, dp in (saved[m : m + 6] for m in range(0, len(saved), 6))]
        y_, after, duals = torch.zeros_like(h) if h_ is None else cpu.in_rows(h_), None, []
        for layer, (x, kept, _, _) in zip(layers, reversed(passed), strict=True):
            x_ = y_
            y_, after, kept_ = layer.dual_value(x, x_, kept, last=layer is layers[-1])
            duals.append((x_, kept_))
        assert after is not None
        t_ = cpu.product(after.f_, head.weight.T)
        gt, gt_, sums = cpu.head_dual(t, t_, head.out_weight, head.out_bias, seed, seed_)
        g_ = cpu.product(gt_, head.weight)
        if lf is not None:
            g_ += lf
        dweights = _of_head(cpu.product_over_rows((gt, after.f_), (gt_, after.f)), sums)
        found: list[list[Tensor]] = []
        for layer, (x, kept, g, dp), (x_, kept_) in zip(layers[::-1], passed, duals[::-1], strict=True):
            g_, dp_, dc, sums_of_layer = layer.dual_backward(kept, kept_, g, g_, after)
            found.append(layer.slopes(cpu.product_over_rows((dp, x_), (dp_, x)), sums_of_layer))
            after = None
        for slopes in found[::-1]:
            dweights += slopes
        return g_, dc, None, None, None, *dweights


def _ready(weights: Sequence[Tensor], c: Tensor | None, edges: Tensor, form: Form) -> tuple[HeadWeights, list[_Gates]]:
    """The parameters of an energy, as the kernels take them."""
    weight, bias, out_weight, out_bias = weights[:4]
    width = cpu.width(len(bias))
    if width != len(bias):
        weight = F.pad(weight, (0, 0, 0, width - len(bias)))
    head = HeadWeights(weight, _padded(bias, width), _padded(out_weight[0], width), out_bias)
    return head, [_Gates(weights[m : m + 4], c, edges, form) for m in range(4, len(weights), 4)]


def _of_head(dweight: Tensor, sums: Tensor) -> list[Tensor]:
    """The derivatives in the head's weights as they were given."""
    channels = dweight.shape[1]
    dout, dbias, dout_bias = sums
    return [dweight[:channels], dbias[:channels], dout[None, :channels], dout_bias[:1]]


def _padded(x: Tensor | None, width: int) -> Any:
    return x if x is None or x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def _cut(c: Tensor | None, h: Tensor) -> Tensor | None:
    return None if c is None else c[:, : h.shape[1]]
