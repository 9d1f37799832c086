"""The nonlinear and linear solves under the implicit methods."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch import Tensor

from solvers import Newton, Rows
from solvers.root_finding import attach_root, find_root, gmres


@given(size=st.integers(1, 8), batch=st.integers(1, 4), seed=st.integers(0, 999), krylov=st.integers(2, 10))
def test_gmres_solves_batches_of_linear_equations(size: int, batch: int, seed: int, krylov: int) -> None:
    random = torch.Generator().manual_seed(seed)
    matrices = torch.randn(batch, size, size, generator=random, dtype=torch.float64)
    matrices = matrices + 3 * size**0.5 * torch.eye(size, dtype=torch.float64)
    rhs = torch.randn(batch, size, generator=random, dtype=torch.float64)
    rhs[0] = 0 if batch > 1 else rhs[0]
    systems = Rows().bind(rhs)
    x, converged = gmres(lambda v: (matrices @ v.unsqueeze(-1)).squeeze(-1), rhs, systems, 1e-12, krylov, 200)
    assert converged.all()
    assert torch.allclose(x, torch.linalg.solve(matrices, rhs), atol=1e-9)


def test_gmres_says_which_systems_it_could_not_solve() -> None:
    diagonal = torch.tensor([[1.0, 2.0], [0.0, 1.0], [float("nan"), 1.0]], dtype=torch.float64)
    rhs = torch.ones(3, 2, dtype=torch.float64)
    x, converged = gmres(lambda v: diagonal * v, rhs, Rows().bind(rhs), 1e-12, 5, 2)
    assert converged.tolist() == [True, False, False]
    assert torch.allclose(x[0], 1 / diagonal[0])


def cubic(x: Tensor, p: Tensor) -> Tensor:
    return x**3 + p * x - 2


def test_roots_converge_on_their_own() -> None:
    p = torch.tensor([[1.0], [100.0], [1e-3]], dtype=torch.float64)
    x0 = torch.tensor([[3.0], [3.0], [1e-3]], dtype=torch.float64)
    systems = Rows().bind(x0)
    root = find_root(lambda x: cubic(x, p), x0, torch.ones(3, dtype=torch.float64), systems, Newton())
    assert root.converged.all()
    assert cubic(root.x, p).abs().max() < 1e-11
    for i in range(3):
        alone = find_root(
            lambda x, i=i: cubic(x, p[i : i + 1]),
            x0[i : i + 1],
            torch.ones(1, dtype=torch.float64),
            Rows().bind(x0[:1]),
            Newton(),
        )
        assert torch.equal(alone.x, root.x[i : i + 1])
        assert torch.equal(alone.evaluations[0], root.evaluations[i])


def test_no_root_and_not_a_number_are_reported() -> None:
    x0 = torch.tensor([[1.0], [1.0], [1.0]], dtype=torch.float64)

    def residual(x: Tensor) -> Tensor:
        shift = torch.tensor([[-2.0], [2.0], [float("nan")]], dtype=torch.float64)
        return x**2 + shift

    root = find_root(residual, x0, torch.ones(3, dtype=torch.float64), Rows().bind(x0), Newton())
    assert root.converged.tolist() == [True, False, False]
    assert root.finite.tolist() == [True, True, False]
    assert torch.allclose(root.x[0] ** 2, torch.tensor(2.0, dtype=torch.float64))


def test_first_and_second_derivatives_of_a_root() -> None:
    p = torch.tensor([[1.0, 0.5], [4.0, 2.0]], dtype=torch.float64, requires_grad=True)

    def coupled(x: Tensor, p: Tensor) -> Tensor:
        return x**3 + p * x - 2 + 0.3 * p.flip(-1) * x.flip(-1)

    def root_of(p: Tensor) -> Tensor:
        x0 = torch.ones_like(p).detach()
        systems = Rows().bind(x0)
        root = find_root(lambda x: coupled(x, p.detach()), x0, torch.ones(2, dtype=p.dtype), systems, Newton())
        assert root.converged.all()
        return attach_root(lambda x: coupled(x, p), root.x, systems, Newton())

    assert torch.autograd.gradcheck(root_of, (p,))
    assert torch.autograd.gradgradcheck(root_of, (p,))
