"""Functions of torch with kernels of their own for value, backward and double backward.

Each becomes three operators (`lyapflow::name`, `..._backward`, `..._double_backward`), so that `torch.compile` sees
them whole. A third derivative, which is rare, goes through the function in plain torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

Kernel = Callable[..., Sequence[Tensor | None]]
_LIBRARY = torch.library.Library("lyapflow", "DEF")


@final
@dataclasses.dataclass(frozen=True)
class Kernels:
    """How a device computes a function: its value, its backward, and its double backward.

    With inputs x, constants, the cotangents g of the outputs, and those l of the backward's results:
    `value(*x, *constants)` gives the outputs, `backward(*x, *constants, *g)` a derivative for every x, and
    `double_backward(*x, *constants, *g, *l)` one for every g and every x.
    """

    value: Kernel
    backward: Kernel
    double_backward: Kernel


@final
class Operator:
    """A function of tensors that is differentiable any number of times.

    Args:
        name: Of the operator.
        inputs: Their names, with a "?" after those that may be None.
        constants: Names of tensors that nothing is differentiated in, likewise.
        like: For each output, the number of the input that it has the shape of.
        plain: The function in plain torch: `plain(*inputs, *constants)` gives a tuple.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        constants: Sequence[str],
        like: Sequence[int],
        plain: Callable[..., tuple[Tensor, ...]],
    ) -> None:
        self.name, self.plain, self.like = name, plain, tuple(like)
        self.inputs, self.outputs, self.known = len(inputs), len(like), len(inputs) + len(constants)
        kinds, fixed = (
            [f"Tensor? {x[:-1]}" if x.endswith("?") else f"Tensor {x}" for x in names] for names in (inputs, constants)
        )
        grads = [f"Tensor g{m}" for m in range(self.outputs)]
        cotangents = [f"Tensor? l{m}" for m in range(self.inputs)]
        values, slopes = (", ".join(["Tensor"] * count) for count in (self.outputs, self.inputs))
        one = "Tensor" if self.outputs == 1 else f"({values})"
        self._define("", [*kinds, *fixed], one)
        self._define("_backward", [*kinds, *fixed, *grads], slopes if self.inputs == 1 else f"({slopes})")
        self._define("_double_backward", [*kinds, *fixed, *grads, *cotangents], f"({values}, {slopes})")
        qualified = f"lyapflow::{name}"
        torch.library.register_fake(qualified, self._fake_value)
        torch.library.register_fake(f"{qualified}_backward", self._fake_backward)
        torch.library.register_fake(f"{qualified}_double_backward", self._fake_double_backward)
        keep: Any = {"setup_context": _keep}
        torch.library.register_autograd(qualified, self._first, **keep)
        torch.library.register_autograd(f"{qualified}_backward", self._second, **keep)
        torch.library.register_autograd(f"{qualified}_double_backward", self._third, **keep)

    def _define(self, suffix: str, arguments: list[str], results: str) -> None:
        _LIBRARY.define(f"{self.name}{suffix}({', '.join(arguments)}) -> {results}")

    def register(self, device: str, kernels: Kernels) -> None:
        """Say how a device does it."""

        named = {"": kernels.value, "_backward": kernels.backward, "_double_backward": kernels.double_backward}
        for suffix, kernel in named.items():
            torch.library.impl(f"lyapflow::{self.name}{suffix}", device)(_returning_tensors(kernel))

    def __call__(self, *given: Any) -> Any:
        return getattr(torch.ops.lyapflow, self.name)(*given)

    # -- shapes -----------------------------------------------------------------------------------------------------

    def _fake_value(self, *given: Any) -> Any:
        found = tuple(torch.empty(given[m].shape, dtype=given[m].dtype, device=given[m].device) for m in self.like)
        return found[0] if self.outputs == 1 else found

    def _fake_backward(self, *given: Any) -> Any:
        found = _slopes_like(given[: self.inputs])
        return found[0] if self.inputs == 1 else found

    def _fake_double_backward(self, *given: Any) -> Any:
        values = tuple(torch.empty(given[m].shape, dtype=given[m].dtype, device=given[m].device) for m in self.like)
        return (*values, *_slopes_like(given[: self.inputs]))

    # -- derivatives ------------------------------------------------------------------------------------------------

    def _first(self, ctx: Any, *g: Tensor) -> Any:
        saved = ctx.saved_tensors
        slopes = _tuple(getattr(torch.ops.lyapflow, f"{self.name}_backward")(*saved, *g))
        return self._returned([_present(x, slope) for x, slope in zip(saved, slopes, strict=False)], self.known)

    def _second(self, ctx: Any, *cotangents: Tensor) -> Any:
        saved = ctx.saved_tensors
        given = [_present(x, along) for x, along in zip(saved, cotangents, strict=False)]
        found = getattr(torch.ops.lyapflow, f"{self.name}_double_backward")(*saved, *given)
        dg, dx = found[: self.outputs], found[self.outputs :]
        slopes = [_present(x, slope) for x, slope in zip(saved, dx, strict=False)]
        return (*self._returned(slopes, self.known), *dg)

    def _third(self, ctx: Any, *cotangents: Tensor) -> Any:
        saved = ctx.saved_tensors
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            # A way of its own to each argument, also where two of them are one tensor.
            points = [_point(x, again) for x in saved]
            x, constants = points[: self.inputs], points[self.inputs : self.known]
            g, given = points[self.known : self.known + self.outputs], points[self.known + self.outputs :]
            slopes = _grad(self.plain(*x, *constants), x, g, True)
            pairs = [(slope, along) for slope, along in zip(slopes, given, strict=True) if along is not None]
            twice = _grad([slope for slope, _ in pairs], [*g, *x], [along for _, along in pairs], True)
            wanted = [*x, *g, *given]
            found = _grad(twice, wanted, [_present(p, c) for p, c in zip([*g, *x], cotangents, strict=True)], again)
        slopes_of = dict(zip(map(id, wanted), found, strict=True))
        return tuple(None if p is None else slopes_of.get(id(p)) for p in points)

    def _returned(self, slopes: list[Any], count: int) -> tuple[Any, ...]:
        return (*slopes, *[None] * (count - len(slopes)))


def backward_again(
    function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor | None], cotangents: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The backward of a function, computed anew so that it can be differentiated itself."""
    points = [_point(x, True) for x in inputs]
    return _grad(function(*points), points, cotangents, True)


def backward_of_backward(
    function: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor | None],
    g: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The derivatives in g and in the inputs of what the backward makes of them, given those of its results."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        points, along = [_point(x, again) for x in inputs], [_point(x, again) for x in g]
        slopes = _grad(function(*points), points, along, True)
        return _grad(slopes, [*along, *points], cotangents, again)


def _returning_tensors(kernel: Kernel) -> Callable[..., Any]:
    """An operator returns tensors only: what belongs to an input that is None is an empty one."""

    def run(*given: Any) -> Any:
        found = tuple(given[0].new_empty(0) if x is None else x for x in kernel(*given))
        return found[0] if len(found) == 1 else found

    return run


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _present(x: Tensor | None, value: Any) -> Any:
    """What belongs to an input that may be None."""
    return None if x is None else value


def _slopes_like(inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    first: Any = inputs[0]
    shapes = [(0,) if x is None else x.shape for x in inputs]
    return tuple(torch.empty(shape, dtype=first.dtype, device=first.device) for shape in shapes)


def _point(x: Tensor | None, again: bool) -> Tensor | None:
    if x is None or not x.is_floating_point():
        return x
    return x.view_as(x) if again and x.requires_grad else x.detach().requires_grad_()


def _grad(outputs: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Any], create: bool) -> list[Any]:
    """`torch.autograd.grad` that leaves out what is None, and what does not depend on anything."""
    given = zip(outputs, cotangents, strict=True)
    pairs = [(y, c) for y, c in given if y is not None and c is not None and y.requires_grad]
    wanted = [x for x in inputs if x is not None]
    found = iter(
        torch.autograd.grad(
            [y for y, _ in pairs], wanted, [c for _, c in pairs], create_graph=create, materialize_grads=True
        )
        if pairs
        else [torch.zeros_like(x) for x in wanted]
    )
    return [None if x is None else next(found) for x in inputs]
