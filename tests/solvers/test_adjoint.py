"""Ways of differentiating: they agree with each other, and checkpointing saves memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from solvers import PID, Adjoint, Backsolve, Checkpointed, Direct, Fixed, Rows, methods, solve
from tests.solvers.problems import field_for

F64 = torch.float64


def gradients(name: str, adjoint: Adjoint | None, **settings: Any) -> list[Tensor]:
    method = methods()[name]
    field = field_for(method, torch.tensor([[0.5], [3.0]], dtype=F64))
    y0 = torch.tensor([[0.9, -0.4], [0.3, 0.8]], dtype=F64, requires_grad=True)
    t1 = torch.tensor(0.7, dtype=F64, requires_grad=True)
    saves = torch.tensor([0.2, 0.5], dtype=F64, requires_grad=True)
    solution = solve(
        field, y0, 0.0, t1, method=name, adjoint=adjoint, saveat=torch.cat([saves, t1.reshape(1)]), **settings
    )
    weights = torch.arange(1.0, 1 + solution.ys.numel(), dtype=F64).reshape(solution.ys.shape)
    return list(torch.autograd.grad((weights * solution.ys).sum(), [y0, t1, saves, *field.parameters()]))


@pytest.mark.parametrize("name", methods())
def test_checkpointed_gradients_equal_direct_ones(name: str) -> None:
    if methods()[name].name != name:
        pytest.skip("the same method under another name")
    settings: dict[str, Any] = {"dt0": 0.15, "controller": Fixed()}
    for a, b in zip(gradients(name, Direct(), **settings), gradients(name, Checkpointed(), **settings), strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["dopri5", "bosh3", "tsit5", "dopri8"])
def test_checkpointed_backsolve_and_direct_agree_for_adaptive_steps(name: str) -> None:
    settings: dict[str, Any] = {"controller": PID(1e-8, 1e-10)}
    direct = gradients(name, None, **settings)
    for a, b in zip(direct, gradients(name, Checkpointed(), **settings), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)
    for a, b in zip(direct, gradients(name, Backsolve(), **settings), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_backsolve_with_a_fixed_step_and_other_methods() -> None:
    direct = gradients("rk4", None, dt0=0.005)
    for adjoint in (Backsolve(), Backsolve(dt0=0.01), Backsolve(method="dopri5", rtol=1e-9, atol=1e-11)):
        for a, b in zip(direct, gradients("rk4", adjoint, dt0=0.005), strict=True):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_backsolve_wants_to_know_the_parameters() -> None:
    rate = torch.tensor(-1.0, dtype=F64, requires_grad=True)
    y0 = torch.ones(1, dtype=F64)
    with pytest.raises(ValueError, match=r"Backsolve\(params="):
        solve(lambda t, y: rate * y, y0, 0.0, 1.0, adjoint=Backsolve())
    y1 = solve(lambda t, y: rate * y, y0, 0.0, 1.0, adjoint=Backsolve(params=[rate])).y1
    assert torch.allclose(torch.autograd.grad(y1.sum(), rate)[0], rate.exp(), rtol=1e-4)
    for settings in ({"saveat": "steps"}, {"dense": True}, {"event": lambda t, y: y[0] - 0.5}):
        with pytest.raises(ValueError, match="cannot be combined"):
            solve(lambda t, y: rate * y, y0, 0.0, 1.0, adjoint=Backsolve(params=[rate]), **settings)


def test_second_derivatives_through_checkpoints() -> None:
    y0 = torch.tensor([[0.9, -0.4]], dtype=F64, requires_grad=True)
    field = field_for(methods()["rk4"], torch.ones(1, 1, dtype=F64))

    def end(y: Tensor) -> Tensor:
        return solve(field, y, 0.0, 0.5, method="rk4", dt0=0.1, adjoint=Checkpointed()).y1

    assert torch.autograd.gradgradcheck(end, (y0,))


class PeakMemory(TorchDispatchMode):
    """The largest number of bytes in tensors that are alive at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.known, self.now, self.peak = WeakIdKeyDictionary(), 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                if storage not in self.known:
                    self.known[storage] = True
                    size = storage.nbytes()
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    import weakref

                    weakref.finalize(storage, self._free, size)
        return result

    def _free(self, size: int) -> None:
        self.now -= size


def peak(adjoint: Adjoint, settings: dict[str, Any]) -> int:
    y0 = torch.randn(64, 64, requires_grad=True)
    weight = (torch.randn(64, 64) / 64).requires_grad_()
    with PeakMemory() as memory:
        y1 = solve(lambda t, y: torch.tanh(y @ weight), y0, 0.0, 1.0, adjoint=adjoint, **settings).y1
        torch.autograd.grad(y1.sum(), (y0, weight))
    return memory.peak


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_memory_grows_like_the_square_root_of_the_steps(kind: str) -> None:
    def settings(steps: int) -> dict[str, Any]:
        if kind == "fixed":
            return {"method": "euler", "dt0": 1 / steps}
        return {"method": "bosh3", "controller": PID(1e-3, 1e-3, max_step=1 / steps), "systems": Rows()}

    small, large = (peak(Checkpointed(), settings(steps)) for steps in (25, 400))
    assert large < 6 * small  # sixteen times the steps; the square root is four
    assert large < peak(Direct(), settings(400)) / 5
