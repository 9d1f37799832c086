"""What every method of the registry has to do. A method that is added is tested here without a word more."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import solvers
from solvers import PID, Fixed, Rows, Single, Status, methods, solve
from tests.solvers.problems import GraphWells, Wells, field_for

METHODS = dict(methods())
every_method = pytest.mark.parametrize("name", METHODS)


def controller_of(name: str, **settings: float) -> solvers.Controller:
    method = METHODS[name]
    return PID(**settings) if method.adaptive and not method.fixed_by_default else Fixed()


class Linear:
    """`y' = A y` with the energy `|y|^2 / 2`, which falls where A + A' is negative definite."""

    systems = Rows()

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return y @ self.matrix.T

    def energy(self, t: Tensor, y: Tensor) -> Tensor:
        return (y * y).sum(-1) / 2


def random_linear(symplectic: bool) -> Linear:
    r, k = torch.randn(10, 10, dtype=torch.float64), torch.randn(10, 10, dtype=torch.float64)
    if symplectic:  # positions move by momenta only, momenta by positions only
        matrix = torch.zeros_like(r)
        matrix[:5, 5:], matrix[5:, :5] = r[:5, :5] @ r[:5, :5].T / 5, -k[:5, :5] @ k[:5, :5].T / 5
        return Linear(matrix)
    return Linear(-0.03 * r @ r.T - 0.1 * torch.eye(10, dtype=torch.float64) + (k - k.T) / 4)


# Fine enough for the leading term of the error, coarse enough for it to stand out from rounding.
ASYMPTOTIC_STEPS = {
    1: (40, 60, 80),
    2: (20, 30, 40),
    3: (20, 30, 40),
    4: (20, 30, 40),
    5: (40, 60, 80),
    8: (10, 12, 15),
}


def logistic(t: Tensor, y: Tensor) -> Tensor:
    return y * (1 - y)


@every_method
def test_order(name: str) -> None:
    method = METHODS[name]
    if method.order < 8:
        field, span = random_linear(method.symplectic), 1.0
        y0 = torch.randn(1, 10, dtype=torch.float64)
        exact = y0 @ torch.linalg.matrix_exp(field.matrix).T
    else:
        # On linear systems the error of dopri8 falls like that of order nine until it drowns in rounding.
        field, span, y0 = logistic, 6.0, torch.full((1, 1), 0.05, dtype=torch.float64)
        exact = 1 / (1 + 19 * torch.exp(torch.full((1, 1), -6.0, dtype=torch.float64)))
    errors = []
    for steps in ASYMPTOTIC_STEPS[method.order]:
        end = solve(field, y0, 0.0, span, method=method, dt0=span / steps, controller=Fixed()).y1
        errors.append(float((end - exact).norm() / exact.norm()))
    assert min(errors) > 1e-13  # above rounding
    ratio = ASYMPTOTIC_STEPS[method.order][-1] / ASYMPTOTIC_STEPS[method.order][0]
    assert abs(math.log(errors[0] / errors[-1]) / math.log(ratio) - method.order) < 0.2, errors


@every_method
def test_first_and_second_derivatives(name: str) -> None:
    method = METHODS[name]
    y0 = torch.tensor([[0.9, -0.4], [0.3, 0.8]], dtype=torch.float64, requires_grad=True)
    field = field_for(method, torch.tensor([[0.5], [1.5]], dtype=torch.float64))
    start = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    end = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    args = torch.tensor(1.1, dtype=torch.float64, requires_grad=True)
    parameters = tuple(field.parameters())
    names = [name for name, _ in field.named_parameters()]
    # Steps of 0.15 leave a shorter last one, so that the end time matters.

    def end_state(y0: Tensor, t0: Tensor, t1: Tensor, args: Tensor, *values: Tensor) -> Tensor:
        def moving(t: Tensor, y: Tensor, args: Tensor) -> Tensor:
            given = dict(zip(names, values, strict=True))
            return torch.func.functional_call(field, given, (t, y, args)) * (1 + 0.1 * t)

        moving.systems = field.systems  # type: ignore[attr-defined]
        moving.energy = lambda t, y, args: Wells.energy(  # type: ignore[attr-defined]
            _WithParameters(field, values), t, y
        )
        return solve(moving, y0, t0, t1, method=method, dt0=0.15, controller=Fixed(), args=args).y1

    inputs = (y0, start, end, args, *parameters)
    assert torch.autograd.gradcheck(end_state, inputs)
    assert torch.autograd.gradgradcheck(end_state, inputs)


class _WithParameters:
    """The energy of Wells with other parameters."""

    def __init__(self, field: torch.nn.Module, values: tuple[Tensor, ...]) -> None:
        self.w, self.c = values
        self.systems = field.systems


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keeps_the_type_and_converges_in_it(name: str, dtype: torch.dtype, device: torch.device) -> None:
    method = METHODS[name]
    field = field_for(method, torch.ones(1, 1, dtype=dtype)).to(device)
    field.lam = field.lam.to(device)
    y0 = torch.tensor([[0.9, -0.4]], dtype=dtype, device=device)
    settings = {"rtol": 1e-6, "atol": 1e-6}
    with torch.no_grad():
        solution = solve(field, y0, 0.0, 0.5, method=method, dt0=0.005, controller=controller_of(name, **settings))
        precise = solve(field.double(), y0.double(), 0.0, 0.5, method="dopri8", controller=PID(1e-10, 1e-12)).y1
    assert solution.y1.dtype == dtype
    assert solution.success
    assert torch.allclose(solution.y1.double(), precise, atol=3e-3 if method.order == 1 else 2e-4)


@every_method
def test_a_system_in_a_batch_is_the_system_alone_bit_for_bit(name: str) -> None:
    method = METHODS[name]
    lam = torch.tensor([[0.5], [8.0], [40.0], [2.0], [0.1]], dtype=torch.float64)
    y0 = torch.randn(5, 2, dtype=torch.float64)
    saves = [0.0, 0.1, 0.35, 0.5]

    def run(rows: slice) -> solvers.Solution:
        controller = controller_of(name, rtol=1e-4, atol=1e-6)
        return solve(
            field_for(method, lam[rows]),
            y0[rows],
            0.0,
            0.5,
            method=method,
            dt0=0.02,
            controller=controller,
            saveat=saves,
            throw=False,
        )

    with torch.no_grad():
        batch = run(slice(None))
        for i in range(5):
            alone = run(slice(i, i + 1))
            assert torch.equal(alone.ys[:, 0].nan_to_num(7.0), batch.ys[:, i].nan_to_num(7.0))
            assert torch.equal(alone.t1[0], batch.t1[i])
            for key in batch.stats:
                assert torch.equal(alone.stats[key][0], batch.stats[key][i]), key
    if method.adaptive and not method.fixed_by_default:
        assert len(set(batch.stats["accepted"].tolist())) > 2  # the systems really stepped on their own


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.symplectic])
def test_a_graph_in_a_batch_is_the_graph_alone_bit_for_bit(name: str) -> None:
    method = METHODS[name]
    sizes = [3, 1, 4, 2]
    strengths = torch.tensor([1.0, 12.0, 4.0, 0.3], dtype=torch.float64)
    states = [torch.randn(size, 2, dtype=torch.float64) for size in sizes]
    paths = [torch.tensor([[i, i + 1] for i in range(size - 1)] or [[0, 0]]).T for size in sizes]

    def run(order: list[int]) -> solvers.Solution:
        counts = torch.tensor([sizes[g] for g in order])
        index = torch.repeat_interleave(torch.arange(len(order)), counts)
        offsets = counts.cumsum(0) - counts
        edges = torch.cat([paths[g] + offsets[k] for k, g in enumerate(order)], dim=1)
        field = GraphWells(strengths[order][index].unsqueeze(1), index, len(order), edges)
        y0 = torch.cat([states[g] for g in order])
        controller = controller_of(name, rtol=1e-4, atol=1e-6)
        return solve(field, y0, 0.0, 0.4, method=method, dt0=0.02, controller=controller, throw=False)

    with torch.no_grad():
        together, shuffled = run([0, 1, 2, 3]), run([2, 0, 3, 1])
        parts = together.y1.split(sizes)
        moved = shuffled.y1.split([sizes[g] for g in (2, 0, 3, 1)])
        for g in range(4):
            alone = run([g])
            assert torch.equal(alone.y1, parts[g])
            assert torch.equal(alone.y1, moved[(2, 0, 3, 1).index(g)])
            assert torch.equal(alone.stats["nfe"][0], together.stats["nfe"][g])


@every_method
def test_nan_in_one_system_leaves_the_others_alone(name: str) -> None:
    method = METHODS[name]
    lam = torch.tensor([[1.0], [3.0], [0.2]], dtype=torch.float64)
    y0 = torch.tensor([[0.9, -0.4], [0.5, 0.2], [-0.3, 0.7]], dtype=torch.float64)

    def run(poison: float, rows: list[int]) -> tuple[solvers.Solution, list[Tensor]]:
        base = field_for(method, lam[rows])
        hit = torch.tensor([[False], [True], [False]])[rows]

        def field(t: Tensor, y: Tensor) -> Tensor:
            return base(t, y) + torch.where((t > 0.2) & hit, poison, 0.0)

        field.systems, field.energy = base.systems, base.energy  # type: ignore[attr-defined]
        controller = controller_of(name, rtol=1e-4, atol=1e-6)
        start = y0[rows].clone().requires_grad_()
        solution = solve(
            field, start, 0.0, 0.5, method=method, dt0=0.05, controller=controller, throw=False, saveat=[0.1, 0.4, 0.5]
        )
        return solution, [*base.parameters(), start]

    for poison in (float("nan"), float("inf")):
        (bad, bad_inputs), (good, _) = run(poison, [0, 1, 2]), run(0.0, [0, 1, 2])
        assert bad.status_of(1) is Status.NON_FINITE
        assert [bad.status_of(i) for i in (0, 2)] == [Status.SUCCESS] * 2
        # Just before 0.2; but a dissipative method may take one plain descent step over it.
        assert 0.1 < float(bad.t1[1].detach()) < (0.5 if method.dissipative else 0.3)
        assert torch.isfinite(bad.ys).all()
        assert torch.equal(bad.ys[:, [0, 2]], good.ys[:, [0, 2]])
        assert torch.equal(bad.ys[1, 1], bad.ys[2, 1])  # frozen
        # The gradients of what the others did are those of a batch without it.
        twins, inputs = run(0.0, [0, 2])
        expected = torch.autograd.grad(twins.y1.sum(), inputs)
        found = torch.autograd.grad(bad.y1[[0, 2]].sum(), bad_inputs)
        for a, b in zip(found[:-1], expected[:-1], strict=True):
            assert torch.allclose(a, b, rtol=1e-10)
        assert torch.allclose(found[-1][[0, 2]], expected[-1], rtol=1e-10)


@every_method
def test_step_limit_returns_what_was_computed(name: str) -> None:
    method = METHODS[name]
    field = field_for(method, torch.ones(1, 1))
    y0 = torch.tensor([[0.9, -0.4]])
    with torch.no_grad():
        solution = solve(field, y0, 0.0, 10.0, method=method, dt0=0.01, controller=Fixed(), max_steps=7, throw=False)
        expected = solve(field, y0, 0.0, 0.07, method=method, dt0=0.01, controller=Fixed())
    assert solution.status_of(0) is Status.MAX_STEPS
    assert int(solution.stats["steps"]) == 7
    assert math.isclose(float(solution.t1), 0.07, rel_tol=1e-4)
    assert torch.allclose(solution.y1, expected.y1, atol=1e-6)
    with pytest.raises(solvers.SolveError, match=r"step limit reached in system 0 at t=0\.07.*raise max_steps"):
        solve(field, y0, 0.0, 10.0, method=method, dt0=0.01, controller=Fixed(), max_steps=7)


@every_method
def test_single_system_and_time_going_backward(name: str) -> None:
    method = METHODS[name]
    field = field_for(method, torch.ones(1, 1, dtype=torch.float64))
    y0 = torch.tensor([[0.9, -0.4]], dtype=torch.float64)
    with torch.no_grad():
        one = solve(field, y0, 0.0, 0.5, method=method, dt0=0.01, controller=Fixed(), systems=Rows()).y1
        field.systems = Single()
        same = solve(field, y0, 0.0, 0.5, method=method, dt0=0.01, controller=Fixed()).y1
        assert torch.allclose(one, same, rtol=1e-12)
        if method.dissipative:
            with pytest.raises(ValueError, match="only runs forward"):
                solve(field, same, 0.5, 0.0, method=method, dt0=0.01, controller=Fixed())
        else:
            back = solve(field, same, 0.5, 0.0, method=method, dt0=0.01, controller=Fixed()).y1
            assert torch.allclose(back, y0, atol=2e-2 if method.order == 1 else 1e-4)
