"""Flows, the choice of a backend, and the algebra of fields."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
import torchdiffeq
from torch import Tensor, nn

import lyapflow
from lyapflow import (
    Combination,
    DoubleWell,
    Flow,
    LyapunovField,
    MLPCoefficient,
    MLPEnergy,
    MLPTangent,
    Quadratic,
    Rows,
    Segments,
    Single,
    Window,
    odeint,
)
from lyapflow.testing import assert_dissipates, check_field
from solvers import PID, Checkpointed, Fixed, HasEnergy, methods, solve


def small_field(**settings: Any) -> LyapunovField:
    return LyapunovField(MLPEnergy(2, 8), MLPTangent(2, 8), **settings)


# -- flows ------------------------------------------------------------------------------------------------------------


def test_forward_euler_is_what_it_says() -> None:
    field, h = small_field(), torch.randn(5, 2)
    wanted = h
    for _ in range(8):
        wanted = wanted + 0.1 * field(0.0, wanted)
    assert torch.allclose(Flow(field, steps=8, step_size=0.1)(h), wanted, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 3, 7, 10, 49, 100])
@pytest.mark.parametrize("step_size", [0.1, 0.7, 1e-3])
@pytest.mark.parametrize("start", [0.0, 0.3, 12.7])
def test_as_many_steps_as_asked_for(steps: int, step_size: float, start: float) -> None:
    calls = 0

    def field(t: Tensor, h: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.ones_like(h)

    end = Flow(field, steps=steps, step_size=step_size, start=start)(torch.zeros(1, dtype=torch.float64))
    assert calls == steps
    assert float(end) == pytest.approx(steps * step_size, rel=1e-12)


@pytest.mark.parametrize("name", [name for name, method in methods().items() if not method.symplectic])
def test_every_method_of_the_registry(name: str) -> None:
    field = LyapunovField(Quadratic([1.0, 3.0]), lambda h: h.roll(1, -1))
    adaptive = methods()[name].adaptive and not methods()[name].fixed_by_default
    flow = Flow(field, name, time=1.0) if adaptive else Flow(field, name, steps=40, time=1.0)
    h = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    flow.field.double()
    exact = solve(flow.field, h, 0.0, 1.0, controller=PID(1e-10, 1e-12)).y1
    assert torch.allclose(flow(h), exact, rtol=5e-2)


def test_flows_chain_like_layers() -> None:
    first, second = Flow(small_field(), steps=2, step_size=0.1), Flow(small_field(), "rk4", steps=2, step_size=0.1)
    chain = nn.Sequential(nn.Linear(3, 2), first, second, nn.Linear(2, 1))
    x = torch.randn(4, 3)
    assert torch.allclose(chain(x), chain[3](second(first(chain[0](x)))))
    chain(x).sum().backward()
    for name, parameter in chain.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    twin = copy.deepcopy(chain)
    assert torch.equal(twin(x), chain(x))
    twin.load_state_dict(chain.state_dict())


def test_one_long_flow_is_two_short_ones() -> None:
    field, h = small_field(), torch.randn(3, 2)
    halves = nn.Sequential(Flow(field, "rk4", steps=4, step_size=0.1), Flow(field, "rk4", steps=4, step_size=0.1))
    assert torch.allclose(halves(h), Flow(field, "rk4", steps=8, step_size=0.1)(h), atol=1e-6)


def test_solve_shows_the_way() -> None:
    flow = Flow(small_field(), "armijo_euler", steps=5, step_size=10.0)
    solution = flow.solve(torch.randn(3, 2), saveat="steps")
    assert (solution.energy.diff(dim=0) <= 1e-6).all()
    assert torch.allclose(solution.y1, flow(solution.ys[0]))


def test_checkpointed_flows_have_the_same_gradients() -> None:
    field, h = small_field(), torch.randn(3, 2)
    slopes = []
    for adjoint in (None, Checkpointed()):
        end = Flow(field, steps=9, step_size=0.1, adjoint=adjoint)(h)
        slopes.append(torch.autograd.grad(end.square().sum(), list(field.parameters()), allow_unused=True))
    for a, b in zip(*slopes, strict=True):
        assert (a is None and b is None) or torch.allclose(a, b, atol=1e-6)


def test_a_flow_says_what_it_is() -> None:
    assert "method='euler', time=0.8, step_size=0.1" in repr(Flow(small_field(), steps=8, step_size=0.1))
    assert "method='dopri5', time=2" in repr(Flow(small_field(), "dopri5", time=2.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "say how far to go"),
        ({"steps": 3}, "say how far to go"),
        ({"time": 1.0}, "method 'euler' has a fixed step size: give steps or step_size as well"),
        ({"steps": 3, "step_size": 0.1, "time": 0.3}, "leave one out"),
        ({"steps": 0, "step_size": 0.1}, "steps must be positive, got 0"),
        ({"steps": 2.5, "step_size": 0.1}, "steps must be a whole number"),
        ({"steps": 2, "step_size": -0.1}, "step_size must be positive"),
        ({"method": "eulr", "time": 1.0}, "unknown method 'eulr'"),
        ({"method": "dopri5", "time": 1.0, "controller": Fixed()}, "has a fixed step size"),
        ({"backend": "jax", "time": 1.0}, 'backend must be "solvers" or "torchdiffeq", got \'jax\''),
        ({"backend": "torchdiffeq", "steps": 1, "time": 1.0, "adjoint": Checkpointed()}, "adjoint is for backend"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Flow(small_field(), **settings)


def test_a_flow_needs_a_field() -> None:
    with pytest.raises(TypeError, match="field must be callable as field"):
        Flow(3, time=1.0)


# -- backends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4", "dopri5"])
def test_backends_agree(method: str) -> None:
    field, h = small_field().double(), torch.randn(4, 2, dtype=torch.float64)
    t = torch.linspace(0, 1, 5, dtype=torch.float64)
    options = None if method == "dopri5" else {"step_size": 0.05}
    ours, theirs = (
        odeint(field, h, t, method=method, backend=backend, options=options)
        for backend in lyapflow.flow.BACKENDS  # type: ignore[attr-defined]
    )
    assert torch.allclose(ours, theirs, atol=1e-6 if method == "dopri5" else 1e-13)
    assert torch.equal(theirs, torchdiffeq.odeint(field, h, t, method=method, options=options))
    same = {"method": method, "time": 1.0, **({} if options is None else {"step_size": 0.05})}
    assert torch.allclose(
        Flow(field, **same)(h), Flow(field, **same, backend="torchdiffeq")(h), atol=1e-4 if options is None else 1e-13
    )


@pytest.mark.parametrize("backend", ["solvers", "torchdiffeq"])
def test_adjoint_gradients(backend: Any) -> None:
    field, h = small_field().double(), torch.randn(4, 2, dtype=torch.float64)
    t = torch.tensor([0.0, 0.5], dtype=torch.float64)
    slopes = []
    for adjoint in (False, True):
        end = odeint(field, h, t, method="rk4", backend=backend, adjoint=adjoint, options={"step_size": 0.02})[-1]
        slopes.append(torch.autograd.grad(end.square().sum(), list(field.parameters()), allow_unused=True))
    for a, b in zip(*slopes, strict=True):
        if a is not None and b is not None:
            assert torch.allclose(a, b, atol=1e-6)


def test_dissipative_methods_are_the_solvers_own() -> None:
    field, h, t = small_field(), torch.randn(2, 2), torch.tensor([0.0, 1.0])
    assert odeint(field, h, t, method="armijo_euler", options={"step_size": 0.5}).shape == (2, 2, 2)
    with pytest.raises(ValueError, match="armijo_euler"):
        odeint(field, h, t, method="armijo_euler", backend="torchdiffeq")
    with pytest.raises(TypeError, match="method must be a name"):
        odeint(field, h, t, method=methods()["euler"], backend="torchdiffeq")
    with pytest.raises(ValueError, match="backend must be"):
        odeint(field, h, t, backend="scipy")  # type: ignore[arg-type]


def test_without_torchdiffeq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(ImportError, match=r'pip install "lyapflow\[torchdiffeq\]"'):
        odeint(small_field(), torch.ones(1, 2), torch.tensor([0.0, 1.0]), backend="torchdiffeq")
    with pytest.raises(ImportError, match="torchdiffeq"):
        Flow(small_field(), steps=1, step_size=1.0, backend="torchdiffeq")


# -- algebra ----------------------------------------------------------------------------------------------------------


def test_sums_and_multiples() -> None:
    a, b, h = small_field(), small_field(), torch.randn(4, 2)
    plain = torch.nn.Linear(2, 2)

    def wind(t: Any, h: Tensor) -> Tensor:
        return plain(h)

    assert torch.allclose((a + b)(0.0, h), a(0.0, h) + b(0.0, h))
    assert torch.allclose((2 * a - b * 0.5)(0.0, h), 2 * a(0.0, h) - 0.5 * b(0.0, h))
    assert torch.allclose((-a)(0.0, h), -a(0.0, h))
    assert torch.allclose((wind + a)(0.0, h), plain(h) + a(0.0, h))
    assert torch.allclose((a + wind + b)(0.0, h), plain(h) + a(0.0, h) + b(0.0, h))
    assert len((2 * (a + 3 * b)).terms) == 2
    assert [factor for _, factor in (2 * (a + 3 * b)).terms] == [2.0, 6.0]
    with pytest.raises(TypeError):
        a + 3  # type: ignore[operator]
    with pytest.raises(TypeError):
        a * "2"  # type: ignore[operator]


def test_parameters_of_a_combination_are_found() -> None:
    a, b = small_field(), small_field()
    assert set((a + 2 * b).parameters()) == set(a.parameters()) | set(b.parameters())
    gate = nn.Sequential(nn.Linear(1, 1), nn.Sigmoid())
    gated = a.gated(lambda t: t)
    assert set(gated.parameters()) == set(a.parameters())
    learned = a.gated(gate)
    assert set(gate.parameters()) < set(learned.parameters())
    assert torch.isfinite(learned(torch.zeros(1), torch.randn(3, 2))).all()


def test_the_energy_survives_where_it_may() -> None:
    energy = DoubleWell()
    a, b = LyapunovField(energy, MLPTangent(2)), LyapunovField(energy, alpha=0.3)
    other = LyapunovField(DoubleWell())
    kept = [a + b, 2 * a, (a + b) * 0.0, a.gated(Window(0, 1)), (a + b).gated(Window(0, 1)) + b, a + 2 * (b + a)]
    lost = [a - b, -a, a + other, a + (lambda t, h: h), -1 * (a + b), (a - b).gated(Window(0, 1))]
    h = torch.randn(4, 2)
    for field in kept:
        assert isinstance(field, HasEnergy)
        assert torch.equal(field.energy(0.0, h), energy(h))
        assert_dissipates(field, h)
        solve(field, h, 0.0, 1.0, method="armijo_euler", dt0=0.5)
    for field in lost:
        assert not hasattr(field, "energy")
        with pytest.raises(TypeError, match="needs a field with energy"):
            solve(field, h, 0.0, 1.0, method="armijo_euler", dt0=0.5)
    over = [LyapunovField(energy, systems=Single()), LyapunovField(energy, alpha=2.0, systems=Single())]
    assert hasattr(over[0] + over[1], "energy")


def test_combinations_keep_the_contract() -> None:
    energy = MLPEnergy(2, 8)
    field = LyapunovField(energy, MLPTangent(2, 8)) + 0.5 * LyapunovField(energy, alpha=MLPCoefficient(2, 4))
    check_field(field.gated(Window(-1.0, 5.0, ramp=0.5)), torch.randn(3, 2), max_examples=6)


def test_fields_over_different_systems_do_not_add() -> None:
    with pytest.raises(ValueError, match="only over the same systems"):
        LyapunovField(DoubleWell()) + LyapunovField(DoubleWell(), systems=Single())
    division = Segments(torch.tensor([0, 0, 1]), 2)
    both = LyapunovField(DoubleWell(), systems=division) + LyapunovField(DoubleWell(), systems=division)
    assert both.systems is division
    assert isinstance((LyapunovField(DoubleWell()) + LyapunovField(DoubleWell())).systems, Rows)


def test_gates() -> None:
    field, h = LyapunovField(Quadratic([1.0, 1.0])), torch.ones(2, 2)
    backwards = field.gated(lambda t: -1.0)
    assert (backwards(0.0, h) == 0).all()  # time may stand still, but not run back
    per_row = field.gated(Window(0.0, 1.0))(torch.tensor([[0.5], [1.5]]), h)
    assert per_row.tolist() == [[-1.0, -1.0], [0.0, 0.0]]
    stopped = solve(field.gated(Window(0.0, 1.0)), h.double(), 0.0, 3.0, method="rk4", dt0=0.1).y1
    assert torch.allclose(stopped, h.double() * torch.exp(torch.tensor(-1.0, dtype=torch.float64)), rtol=2e-2)
    assert repr(Window(0.0, 1.0, 0.25)) == "Window(0.0, 1.0, ramp=0.25)"
    for wrong in ((1.0, 1.0, 0.0), (0.0, 1.0, 0.6), (0.0, 1.0, -0.1)):
        with pytest.raises(ValueError):
            Window(*wrong)
    with pytest.raises(TypeError, match="gate must be a function of time"):
        field.gated(0.5)  # type: ignore[arg-type]


def test_combinations_can_be_copied() -> None:
    a, b, h = small_field(), small_field(), torch.randn(3, 2)
    field = a + 2 * b
    twin = copy.deepcopy(field)
    assert isinstance(twin, Combination)
    assert torch.equal(twin(0.0, h), field(0.0, h))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not torch.equal(twin(0.0, h), field(0.0, h))
