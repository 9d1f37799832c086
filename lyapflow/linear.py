"""Symmetric linear equations, one for each system: written out for small systems, matrix-free for large ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from solvers import Systems
from solvers.typing import PerSystem, PerSystemBool

Operator = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Curvature:
    """What was seen of the eigenvalues of each system's matrix: the ends of the spectrum, and its gap around zero."""

    smallest: PerSystem
    largest: PerSystem
    singular: PerSystemBool
    indefinite: PerSystemBool
    condition: PerSystem


class Layout:
    """Where each entry of a state belongs: which system, and which place in it. Systems may differ in size."""

    def __init__(self, systems: Systems, like: Tensor) -> None:
        self.shape = like.shape
        count = systems.count
        owner = torch.arange(count, device=like.device, dtype=torch.float64)
        self.owner = systems.spread(owner).expand(like.shape).reshape(-1).long()
        order = torch.argsort(self.owner, stable=True)
        self.sizes = torch.bincount(self.owner, minlength=count)
        starts = self.sizes.cumsum(0) - self.sizes
        place = torch.empty_like(self.owner)
        place[order] = torch.arange(len(order), device=like.device) - starts[self.owner[order]]
        self.place = place
        self.width = int(self.sizes.max()) if count else 0

    def to_rows(self, x: Tensor) -> Tensor:
        """A tensor like the state as `[S, width]`, zero where a system has no entry."""
        rows = x.new_zeros(len(self.sizes), self.width)
        rows[self.owner, self.place] = x.reshape(-1)
        return rows

    def from_rows(self, rows: Tensor) -> Tensor:
        return rows[self.owner, self.place].reshape(self.shape)

    def probe(self, place: int, like: Tensor) -> Tensor:
        """A tensor like the state, 1 at one place of every system."""
        return (self.place == place).to(like.dtype).reshape(self.shape)


@torch.no_grad()
def dense_solve(operator: Operator, rhs: Tensor, systems: Systems) -> tuple[Tensor, Curvature]:
    """Solve with the matrices written out; in the least squares where one is singular.

    The matrices of all systems are probed at once: systems do not act on each other.
    """
    layout = Layout(systems, rhs)
    columns = [layout.to_rows(operator(layout.probe(place, rhs))) for place in range(layout.width)]
    if not columns:
        nothing = rhs.new_zeros(systems.count)
        return torch.zeros_like(rhs), Curvature(nothing, nothing, nothing > 0, nothing > 0, nothing + 1)
    matrix = torch.stack(columns, dim=2)
    matrix = (matrix + matrix.mT) / 2
    finite = torch.isfinite(matrix).all(2).all(1)
    matrix = torch.where(finite[:, None, None], matrix, 0.0)
    # Places that a smaller system does not have get an eigenvalue at the bound of the others, out of the way.
    bound = matrix.abs().sum(2).amax(1)
    missing = torch.arange(layout.width, device=rhs.device) >= layout.sizes[:, None]
    matrix = matrix + torch.diag_embed(torch.where(missing, bound[:, None], 0.0))
    values, vectors = torch.linalg.eigh(matrix)
    size = values.abs()
    smallest, largest = values[:, 0], torch.where(missing.any(1), _largest_but(values, missing), values[:, -1])
    zero = size <= layout.width * torch.finfo(rhs.dtype).eps * bound[:, None]
    inverse = torch.where(zero, 0.0, 1 / torch.where(zero, 1.0, values))
    parts = (vectors.mT @ layout.to_rows(rhs)[:, :, None]).squeeze(2)
    rows = (vectors @ (inverse * parts)[:, :, None]).squeeze(2)
    rows = torch.where(finite[:, None], rows, float("nan"))
    exists = layout.sizes > 0
    singular = zero.any(1) & exists
    least = torch.where(zero, float("inf"), size).amin(1)
    condition = torch.where(torch.isfinite(least) & (bound > 0), size.amax(1) / least, 1.0)
    return layout.from_rows(rows), Curvature(
        smallest, largest, singular | ~finite, (values < 0).logical_and(~zero).any(1), condition
    )


def _largest_but(values: Tensor, missing: Tensor) -> Tensor:
    """The largest eigenvalue of each system without those that stand for missing places, which are the very largest."""
    last = (values.shape[1] - 1 - missing.sum(1)).clamp(min=0)
    return values.gather(1, last[:, None]).squeeze(1)


@torch.no_grad()
def minres(
    operator: Operator, rhs: Tensor, systems: Systems, tolerance: float, max_iterations: int
) -> tuple[Tensor, Curvature]:
    """Solve by MINRES (Paige and Saunders, SIAM J. Numer. Anal. 12, 1975), every system on its own.

    It needs products with the matrix alone, and a few vectors; the matrix may be indefinite, and where it is singular
    the residual is made least. A system that has converged changes no more.
    """

    def keep(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
        return torch.where(systems.spread(active), new, old)

    inner, spread = systems.inner, systems.spread
    start = inner(rhs, rhs).sqrt()
    goal = tolerance * start
    active = torch.isfinite(start) & (start > 0)
    x, w, w_old, v_old = (torch.zeros_like(rhs) for _ in range(4))
    v = rhs / spread(torch.where(active, start, 1.0))
    one, zero = torch.ones_like(start), torch.zeros_like(start)
    c, c_old, s, s_old, beta, eta = one, one, zero, zero, zero, start
    diagonal: list[Tensor] = []  # of Lanczos' tridiagonal matrix, whose eigenvalues approach those of the operator
    beside: list[Tensor] = []
    singular = torch.zeros_like(active)
    for _ in range(max_iterations):
        if not bool(active.any()):
            break
        p = operator(v)
        a = inner(v, p)
        p = p - spread(a) * v - spread(beta) * v_old
        beta_new = inner(p, p).sqrt()
        # A system that has ended goes on as a value that it has shown already, coupled to nothing.
        diagonal.append(torch.where(active, a, diagonal[0] if diagonal else zero))
        beside.append(torch.where(active, beta, 0.0))
        rho = c * a - c_old * s * beta
        length = torch.sqrt(rho**2 + beta_new**2)
        second, third = s * a + c_old * c * beta, s_old * beta
        scale = torch.maximum(a.abs(), beta)
        # A last rotation of length zero: the rest of the right-hand side is out of the matrix' reach.
        stuck = active & (length <= torch.finfo(rhs.dtype).eps * scale)
        singular = singular | stuck
        active = active & ~stuck & torch.isfinite(length)
        safe = torch.where(active, length, 1.0)
        c_old, s_old = torch.where(active, c, c_old), torch.where(active, s, s_old)
        c, s = torch.where(active, rho / safe, c), torch.where(active, beta_new / safe, s)
        w_new = (v - spread(third) * w_old - spread(second) * w) / spread(safe)
        w_old, w = keep(active, w, w_old), keep(active, w_new, w)
        x = keep(active, x + spread(c * eta) * w, x)
        eta = torch.where(active, -s * eta, eta)
        v_old = v
        v = p / spread(torch.where(beta_new > 0, beta_new, 1.0))
        beta = beta_new
        active = active & (eta.abs() > goal)
    residual = rhs - operator(x)
    left = inner(residual, residual).sqrt()
    image = operator(residual)
    seen, condition = _ritz(diagonal, beside, start)
    # What is left over and mapped to nothing is no part of the image of the matrix.
    size = seen.abs().amax(1)
    lost = inner(image, image).sqrt() <= torch.finfo(rhs.dtype).eps ** 0.5 * size * left
    singular = (singular | lost) & (left > goal)
    indefinite = seen[:, 0] < -torch.finfo(rhs.dtype).eps * 32 * size
    return x, Curvature(seen[:, 0], seen[:, -1], singular, indefinite, condition)


def _ritz(diagonal: list[Tensor], beside: list[Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of Lanczos' matrix of each system, ascending `[S, k]`, and the condition number that they show."""
    if not diagonal:
        return like.new_zeros(len(like), 1), torch.ones_like(like)
    matrix = torch.diag_embed(torch.stack(diagonal, dim=1))
    if len(diagonal) > 1:
        upper = torch.diag_embed(torch.stack(beside[1:], dim=1), offset=1)
        matrix = matrix + upper + upper.mT
    values = torch.linalg.eigvalsh(torch.nan_to_num(matrix))
    size = values.abs()
    least = size.amin(1)
    return values, torch.where(least > 0, size.amax(1) / torch.where(least > 0, least, 1.0), 1.0)
