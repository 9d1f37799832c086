"""Guarded steps: exactly as many as asked for, and none raises the energy of a system."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from solvers import Backsolve, Checkpointed, Rows, Segments, SolveError, Status, methods, rises, take_steps

from .problems import GraphWells, Wells

EXPLICIT = sorted(name for name, method in methods().items() if type(method).__name__ == "ExplicitRK")
STATE = torch.tensor([[1.0, -0.5], [0.3, 2.0], [-1.5, 0.4]], dtype=torch.float64)


def wells(spin: float = 0.7, scale: float = 1.0) -> Wells:
    return Wells(scale * torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64), spin)


def energies(field: Any, ys: Tensor) -> Tensor:
    return torch.stack([field.energy(torch.zeros(()), y) for y in ys])


@pytest.mark.parametrize("method", EXPLICIT)
def test_small_steps_are_those_of_the_method(method: str) -> None:
    field = wells()
    found = take_steps(field, STATE, 4, 0.01, method=method, every_step=True)
    plain = take_steps(field, STATE, 4, 0.01, method=method, guard=False)
    assert bool((found.fraction == 1).all())
    assert torch.equal(found.y1, plain.y1)
    wanted = STATE
    for _ in range(4):
        step = methods()[method].step(found._term, torch.zeros(3), torch.full((3,), 0.01), wanted, None, None)
        wanted = step.y1
    torch.testing.assert_close(found.y1, wanted, rtol=1e-7, atol=0)


@pytest.mark.parametrize("method", EXPLICIT)
@pytest.mark.parametrize("size", [0.5, 3.0, 100.0])
def test_no_step_raises_the_energy(method: str, size: float) -> None:
    field = wells(spin=3.0)
    plain = take_steps(field, STATE, 6, size, method=method, guard=False, throw=False)
    assert bool(rises(plain.energy).any())  # so there is something to guard
    found = take_steps(field, STATE, 6, size, method=method, every_step=True)
    again = energies(field, found.ys)
    assert torch.equal(again, found.energy)
    assert not bool(rises(again).any())
    assert bool((again[-1] < again[0]).all())  # by going down, not by standing still
    assert found.ys.shape[0] == 7
    assert torch.equal(found.ts, size * torch.arange(7, dtype=torch.float64))


def test_the_fraction_is_the_first_power_of_a_half_that_descends() -> None:
    field = wells(spin=3.0)
    found = take_steps(field, STATE, 1, 2.0)
    before = field.energy(torch.zeros(()), STATE)
    for system, fraction in enumerate(found.fraction[0].tolist()):
        tried = 1.0
        while bool((field.energy(0, STATE + 2.0 * tried * field(0, STATE)) > before)[system]):
            tried /= 2
        assert fraction == tried
    assert torch.equal(found.stats["energy_rejected"].double(), -found.fraction[0].log2())


def test_each_system_is_as_it_would_be_alone() -> None:
    field = wells(spin=3.0)
    together = take_steps(field, STATE, 5, 1.0)
    for i in range(3):
        single = Wells(field.lam[i : i + 1], 3.0)
        assert torch.equal(take_steps(single, STATE[i : i + 1], 5, 1.0).y1[0], together.y1[i])


def test_graphs_are_systems_too() -> None:
    index, edges = torch.tensor([0, 0, 1]), torch.tensor([[0], [1]])
    field = GraphWells(torch.full((3, 1), 2.0, dtype=torch.float64), index, 2, edges)
    found = take_steps(field, STATE, 8, 1.0, every_step=True)
    assert found.fraction.shape == (8, 2)
    assert bool((found.fraction < 1).any())
    assert not bool(rises(energies(field, found.ys)).any())


def test_energies_come_with_the_steps() -> None:
    class Counted(Wells):
        both = alone = 0
        energy_is_timed = False

        def velocity_and_energy(self, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            Counted.both += 1
            return Wells.forward(self, t, y), Wells.energy(self, t, y)

        def energy(self, t: Tensor, y: Tensor, args: Any = None) -> Tensor:
            Counted.alone += 1
            return super().energy(t, y)

    field = Counted(torch.ones(3, 1, dtype=torch.float64))
    found = take_steps(field, STATE, 5, 0.1)
    assert (Counted.both, Counted.alone) == (5, 1)  # the energy after the last step is all that is paid
    assert found.energy.shape == (6, 3)


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("every", [1, 2, None])
def test_checkpoints_give_the_same_gradients(guard: bool, every: int | None) -> None:
    field = wells(spin=3.0)

    def gradients(**settings: Any) -> list[Tensor]:
        found = take_steps(field, STATE, 5, 1.0 if guard else 0.1, guard=guard, **settings)
        return list(torch.autograd.grad(found.y1.square().sum() + found.energy.sum(), list(field.parameters())))

    for a, b in zip(gradients(), gradients(adjoint=Checkpointed(every)), strict=True):
        assert torch.equal(a, b)


def test_gradients_treat_the_fractions_as_constants() -> None:
    field = wells(spin=3.0)
    start = STATE.clone().requires_grad_()
    assert bool((take_steps(field, start, 2, 0.8).fraction < 1).any())

    def states_and_energies(y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        field.w = nn.Parameter(w)
        del field._parameters["w"]
        object.__setattr__(field, "w", w)
        found = take_steps(field, y, 2, 0.8)
        return found.y1, found.energy

    weights = torch.tensor([1.0, 0.6], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(states_and_energies, (start, weights))
    assert torch.autograd.gradgradcheck(states_and_energies, (start, weights))


class Bowl(nn.Module):
    """Down the gradient of `scale |y|^2 / 2`, over rows."""

    systems = Rows()

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale, dtype=torch.float64))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return -self.scale * y

    def energy(self, t: Tensor, y: Tensor) -> Tensor:
        return self.scale * y.square().sum(-1) / 2


class Cliff(Bowl):
    """A bowl whose energy is NaN beyond |y| = 10."""

    def energy(self, t: Tensor, y: Tensor) -> Tensor:
        value = super().energy(t, y)
        return torch.where(y.square().sum(-1) > 100, value * float("nan"), value)


@pytest.mark.parametrize("throw", [True, False])
def test_an_energy_that_is_nan_is_reported_and_leaves_the_others_alone(throw: bool) -> None:
    y = torch.tensor([[1.0, 1.0], [50.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    field = Cliff()
    if throw:
        with pytest.raises(SolveError, match=r"energy is NaN or infinite.* in system 1"):
            take_steps(field, y, 4, 0.5)
        return
    found = take_steps(field, y, 4, 0.5, throw=False)
    assert found.status.tolist() == [Status.SUCCESS, Status.NOT_DISSIPATIVE, Status.SUCCESS]
    assert torch.equal(found.y1[1], y[1])
    well = take_steps(field, y[[0, 2]], 4, 0.5)
    assert torch.equal(found.y1[[0, 2]], well.y1)
    (gradient,) = torch.autograd.grad(found.y1[[0, 2]].sum(), field.scale)
    assert torch.equal(gradient, torch.autograd.grad(well.y1.sum(), field.scale)[0])


def test_a_field_that_is_not_finite_is_reported() -> None:
    class Wall(Bowl):
        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return torch.where(y.abs() < 0.5, torch.inf, 1.0) * super().forward(t, y)

    found = take_steps(Wall(), torch.tensor([[0.9], [8.0]], dtype=torch.float64), 2, 0.5, throw=False)
    assert found.status.tolist() == [Status.NOT_DISSIPATIVE, Status.SUCCESS]
    assert found.y1.isfinite().all()


def test_an_energy_without_a_lower_bound_falls_and_stays_finite() -> None:
    class Falling(Bowl):
        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return y.pow(3)

        def energy(self, t: Tensor, y: Tensor) -> Tensor:
            return -y.pow(4).sum(-1) / 4

    y = torch.tensor([[1.0], [1e-3]], dtype=torch.float32)
    found = take_steps(Falling(), y, 40, 1.0, every_step=True)
    assert found.ys.isfinite().all()
    assert found.energy.isfinite().all()
    assert not bool(rises(found.energy).any())


def test_a_system_for_which_nothing_helps_rests_for_that_step() -> None:
    class Uphill(Bowl):
        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return -super().forward(t, y)

    y = torch.ones(2, 1, dtype=torch.float64)
    found = take_steps(Uphill(), y, 3, 0.1)
    assert torch.equal(found.y1, y)
    assert bool((found.fraction == 0).all())
    assert found.success


def test_an_energy_in_time_is_compared_at_the_start_of_the_step() -> None:
    class Heating(Bowl):
        """Its energy grows with time, at any place."""

        def energy(self, t: Tensor, y: Tensor) -> Tensor:
            return (1 + 10 * t.reshape(-1)) * super().energy(t, y)

    y = torch.ones(2, 1, dtype=torch.float64)
    found = take_steps(Heating(), y, 3, 0.01)
    assert bool((found.fraction == 1).all())
    assert bool(rises(found.energy).all())  # by time alone


def test_under_inference_mode_and_no_grad() -> None:
    field = wells(spin=3.0)
    wanted = take_steps(field, STATE, 3, 1.0).y1.detach()
    with torch.no_grad():
        assert torch.equal(take_steps(field, STATE, 3, 1.0).y1, wanted)
    with torch.inference_mode():
        assert torch.equal(take_steps(field, STATE, 3, 1.0).y1, wanted)


def test_progress_is_reported_up_to_the_end() -> None:
    seen: list[float] = []
    take_steps(wells(), STATE, 40, 0.01, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be a positive whole number, got 0"),
        ({"steps": 1.5}, "steps must be a positive whole number, got 1.5"),
        ({"step_size": 0.0}, "step_size must be positive and finite, got 0.0"),
        ({"step_size": float("nan")}, "step_size must be positive"),
        ({"method": "armijo_euler"}, "explicit Runge-Kutta method.* got 'armijo_euler'"),
        ({"adjoint": Backsolve()}, "adjoint must be Direct"),
        ({"y0": torch.zeros(2, dtype=torch.int64)}, "y0 must be a tensor of real numbers, got torch.int64"),
        ({"field": lambda t, y: -y}, r"needs a field with energy\(t, y\)"),
        ({"systems": Segments(torch.tensor([0]), 1)}, "index has 1 entries"),
    ],
)
def test_wrong_arguments_are_named(settings: dict[str, Any], message: str) -> None:
    given = {"field": wells(), "y0": STATE, "steps": 2, "step_size": 0.1} | settings
    with pytest.raises((ValueError, TypeError), match=message):
        take_steps(**given)
