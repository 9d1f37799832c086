"""The property-test kit: a field broken on purpose for every promise has to be caught, and told by its name."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

from lyapflow import (
    Energy,
    LyapunovField,
    MLPEnergy,
    MLPTangent,
    Parts,
    Quadratic,
    Rows,
    Segments,
    newton_split,
    project,
)
from lyapflow.newton import NewtonSplit
from lyapflow.testing import (
    PROMISES,
    BrokenPromise,
    Graphs,
    assert_dissipates,
    assert_newton,
    assert_tangent,
    check_field,
    graphs,
    single,
    states,
    states_like,
)
from lyapflow.testing import systems as divisions
from solvers import Systems


class Honest(nn.Module):
    """A field written by hand, without our classes: the gradient flow of a network's square, and a turn of it."""

    systems: Systems = Rows()

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(3)
        self.a = nn.Parameter(torch.randn(2, 4, generator=random))
        self.b = nn.Parameter(torch.randn(4, generator=random))

    def energy(self, t: Any, h: Tensor) -> Tensor:
        return torch.tanh(h @ self.a + self.b).square().sum(-1) + h.square().sum(-1) / 2

    def gradient(self, t: Any, h: Tensor) -> Tensor:
        z = torch.tanh(h @ self.a + self.b)
        return (2 * z * (1 - z * z)) @ self.a.T + h

    def forward(self, t: Any, h: Tensor) -> Tensor:
        g = self.gradient(t, h)
        return -g + 2 * torch.stack([g[..., 1], -g[..., 0]], -1)


class WrongShape(Honest):
    def energy(self, t: Any, h: Tensor) -> Tensor:
        return super().energy(t, h).sum()


class WrongType(Honest):
    def forward(self, t: Any, h: Tensor) -> Tensor:
        return super().forward(t, h).double()


class InPlace(Honest):
    def forward(self, t: Any, h: Tensor) -> Tensor:
        velocity = super().forward(t, h)
        with torch.no_grad():
            h.mul_(0.5)
        return velocity


class NumbersForTimes(Honest):
    def forward(self, t: Any, h: Tensor) -> Tensor:
        return super().forward(t, h) * (1 + 0 * t.item())


class Dropout(Honest):
    def forward(self, t: Any, h: Tensor) -> Tensor:
        return super().forward(t, h) * (torch.rand(()) + 0.5)


class ModeInEnergy(Honest):
    def energy(self, t: Any, h: Tensor) -> Tensor:
        return super().energy(t, h) * (1.0 if self.training else 0.5)


class NeedsGrad(Honest):
    """The mistake of torchdiffeq's issues 151, 154, 209 and 226."""

    def gradient(self, t: Any, h: Tensor) -> Tensor:
        h = h if h.requires_grad else h.detach().requires_grad_()
        return torch.autograd.grad(self.energy(t, h).sum(), h, create_graph=True)[0]


class Recording(Honest):
    def forward(self, t: Any, h: Tensor) -> Tensor:
        with torch.enable_grad():
            return super().forward(t, h)


class OtherWithoutGrad(Honest):
    def forward(self, t: Any, h: Tensor) -> Tensor:
        return super().forward(t, h) * (1.0 if torch.is_grad_enabled() else 0.9)


class SinglePrecisionInside(Honest):
    def energy(self, t: Any, h: Tensor) -> Tensor:
        return (super().energy(t, h) + 0.0).float()


class Climbing(Honest):
    def forward(self, t: Any, h: Tensor) -> Tensor:
        return -super().forward(t, h)


class ClimbingFarOut(Honest):
    """Broken in a corner only."""

    def forward(self, t: Any, h: Tensor) -> Tensor:
        return torch.where(h.abs().amax(-1, keepdim=True) > 50, -1.0, 1.0) * super().forward(t, h)


class Mixing(Honest):
    def forward(self, t: Any, h: Tensor) -> Tensor:
        return super().forward(t, h) * (1 + h.square().mean())


class MixingEnergy(Honest):
    def energy(self, t: Any, h: Tensor) -> Tensor:
        return super().energy(t, h) * (1 + 0.1 * h.detach().abs().max())


class RowsOnly(Honest):
    """Knows how many rows there are: normalised over the batch, as batch normalisation is."""

    def forward(self, t: Any, h: Tensor) -> Tensor:
        return super().forward(t, h) / len(h)


class Detached(Honest):
    def forward(self, t: Any, h: Tensor) -> Tensor:
        return super().forward(t, h).detach() + 0 * h


class ModeInGradient(Honest):
    """`create_graph` chosen by `self.training`."""

    def gradient(self, t: Any, h: Tensor) -> Tensor:
        g = super().gradient(t, h)
        return g if self.training else g.detach() + 0 * h


class NoParametersWithoutState(Honest):
    """Right in the state, but the parameters get nothing."""

    def gradient(self, t: Any, h: Tensor) -> Tensor:
        z = torch.tanh(h @ self.a.detach() + self.b.detach())
        return (2 * z * (1 - z * z)) @ self.a.detach().T + h + 0 * self.b.sum()


class _WrongSecond(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return slopes[0] * 2 * x.detach()


class WrongSecondDerivative(Honest):
    def forward(self, t: Any, h: Tensor) -> Tensor:
        speed: Tensor = _WrongSecond.apply(h)
        return super().forward(t, h) * (1 + speed.sum(-1, keepdim=True))


class BreaksUnderSolvers(Honest):
    """Works when called at times 0 and 1, and nowhere between."""

    def forward(self, t: Any, h: Tensor) -> Tensor:
        if bool(((torch.as_tensor(t) > 0) & (torch.as_tensor(t) < 1)).any()):
            raise ValueError("time has to be whole")
        return super().forward(t, h)


class BreaksUnderAdjoint(Honest):
    """Its backward pass needs the graph of a call that the adjoint equation has thrown away."""

    def forward(self, t: Any, h: Tensor) -> Tensor:
        if h.requires_grad and h.is_leaf and float(torch.as_tensor(t).abs().max()) > 0:
            raise RuntimeError("the state must not be a leaf")
        return super().forward(t, h)


BROKEN = {
    WrongShape: "shapes and types",
    WrongType: "shapes and types",
    InPlace: "shapes and types",
    NumbersForTimes: "shapes and types",
    Dropout: "function of the state",
    ModeInEnergy: "function of the state",
    NeedsGrad: "no_grad",
    Recording: "no_grad",
    OtherWithoutGrad: "no_grad",
    SinglePrecisionInside: "precision",
    Climbing: "dissipation",
    ClimbingFarOut: "dissipation",
    Mixing: "independence",
    MixingEnergy: "independence",
    RowsOnly: "independence",
    BreaksUnderSolvers: "odeint",
    Detached: "gradients",
    ModeInGradient: "gradients",
    NoParametersWithoutState: "gradients",
    BreaksUnderAdjoint: "odeint_adjoint",
    WrongSecondDerivative: "double backward",
}


def test_an_honest_field_written_by_hand_passes() -> None:
    check_field(Honest(), torch.randn(3, 2), max_examples=10)


@pytest.mark.parametrize("kind", list(BROKEN), ids=lambda kind: kind.__name__)
def test_every_broken_field_is_caught(kind: type[Honest]) -> None:
    with pytest.raises(BrokenPromise) as caught:
        check_field(kind(), torch.randn(3, 2), max_examples=15)
    assert caught.value.promise == BROKEN[kind]
    assert caught.value.state.shape == (3, 2)
    assert str(caught.value).startswith(BROKEN[kind])
    assert "at h = tensor(" in str(caught.value)


class SinglePrecisionVelocity(Honest):
    def forward(self, t: Any, h: Tensor) -> Tensor:
        return super().forward(t, h).float()


class LosesDigits(Honest):
    """Right in float64; in float32 the state is rounded to multiples of 1/16."""

    def forward(self, t: Any, h: Tensor) -> Tensor:
        return super().forward(t, (h + 1e6) - 1e6)


BROKEN_WITHOUT_ENERGY = {
    **{kind: BROKEN[kind] for kind in (WrongType, InPlace, NumbersForTimes, Dropout, Recording, OtherWithoutGrad)},
    SinglePrecisionVelocity: "precision",
    LosesDigits: "precision",
    **{kind: BROKEN[kind] for kind in (Mixing, RowsOnly, BreaksUnderSolvers, Detached, ModeInGradient)},
    **{kind: BROKEN[kind] for kind in (NoParametersWithoutState, BreaksUnderAdjoint, WrongSecondDerivative)},
}


def without_energy(kind: type[Honest]) -> Any:
    return type(kind.__name__, (kind,), {"energy": None})()


def test_an_honest_field_without_an_energy_passes() -> None:
    check_field(without_energy(Honest), torch.randn(3, 2), max_examples=10)
    check_field(without_energy(Climbing), torch.randn(3, 2), max_examples=10)  # there is nothing that it climbs
    check_field(lambda t, h: h.sin(), torch.randn(3, 2), max_examples=10)


@pytest.mark.parametrize("kind", list(BROKEN_WITHOUT_ENERGY), ids=lambda kind: kind.__name__)
def test_every_broken_field_without_an_energy_is_caught(kind: type[Honest]) -> None:
    with pytest.raises(BrokenPromise) as caught:
        check_field(without_energy(kind), torch.randn(3, 2), max_examples=15)
    assert caught.value.promise == BROKEN_WITHOUT_ENERGY[kind]


def test_every_promise_but_those_of_energies_has_a_field_without_one_that_breaks_it() -> None:
    assert set(BROKEN_WITHOUT_ENERGY.values()) == set(PROMISES) - {"dissipation", "orthogonality"}


@pytest.mark.parametrize("promise", ["dissipation", "orthogonality"])
def test_promises_of_energies_cannot_be_asked_of_a_field_without_one(promise: str) -> None:
    with pytest.raises(TypeError, match=rf"'{promise}' needs a field with energy\(t, h\) -> \[S\]; Honest has none"):
        check_field(without_energy(Honest), torch.ones(3, 2), promises=["no_grad", promise])


def test_tangents_that_are_not_orthogonal_are_caught() -> None:
    class Leaning(nn.Module):
        systems = Rows()

        def __init__(self) -> None:
            super().__init__()
            self.inner = LyapunovField(MLPEnergy(2, 8), MLPTangent(2, 8))

        def energy(self, t: Any, h: Tensor) -> Tensor:
            return self.inner.energy(t, h)

        def forward(self, t: Any, h: Tensor) -> Tensor:
            return self.inner(t, h)

        def parts(self, t: Any, h: Tensor) -> Parts:
            parts = self.inner.parts(t, h)
            return dataclasses.replace(parts, tangent=parts.tangent + 1e-3 * parts.gradient)

    with pytest.raises(BrokenPromise) as caught:
        check_field(Leaning(), torch.randn(3, 2), max_examples=15)
    assert caught.value.promise == "orthogonality"


def test_every_promise_has_a_field_that_breaks_it() -> None:
    assert set(BROKEN.values()) | {"orthogonality"} == set(PROMISES)


def test_the_example_is_the_simplest_one() -> None:
    """Shrinking: what breaks everywhere is shown at the example given, not at some state of size 1e3."""
    example = torch.ones(3, 2)
    with pytest.raises(BrokenPromise) as caught:
        check_field(Climbing(), example)
    assert torch.equal(caught.value.state, example)


def test_states_may_come_from_a_strategy() -> None:
    check_field(Honest(), states((2, 2), torch.float32, (0.1, 10.0)), max_examples=5)
    with pytest.raises(BrokenPromise):
        check_field(ClimbingFarOut(), states((2, 2), torch.float32, (100.0, 1000.0)), max_examples=20)
    check_field(ClimbingFarOut(), states((2, 2), torch.float32, (0.1, 1.0)), max_examples=5)


def test_single_promises_and_wrong_arguments() -> None:
    check_field(Climbing(), torch.ones(3, 2), promises=["no_grad"])
    with pytest.raises(ValueError, match="unknown promise 'speed'; known are: shapes and types"):
        check_field(Honest(), torch.ones(3, 2), promises=["speed"])
    with pytest.raises(TypeError, match=r"field must be callable as field\(t, h\), got Tensor"):
        check_field(torch.ones(2), torch.ones(3, 2))
    with pytest.raises(TypeError, match="states must be a tensor or a strategy of tensors, got tuple"):
        check_field(Honest(), (3, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"floating point type, got torch\.int64"):
        check_field(Honest(), torch.ones(3, 2, dtype=torch.int64))


def test_a_field_that_is_never_finite_cannot_pass() -> None:
    class Lost(Honest):
        def forward(self, t: Any, h: Tensor) -> Tensor:
            return super().forward(t, h) / 0

    with pytest.raises(ValueError, match="no state was found at which it can be checked"):
        check_field(Lost(), torch.ones(3, 2))


# -- single checks ------------------------------------------------------------------------------------------------


def test_assert_dissipates_knows_what_is_promised() -> None:
    field = LyapunovField(Quadratic([1.0, 2.0]), MLPTangent(2))
    h = torch.randn(4, 2)
    assert_dissipates(field, h)

    class Twice(Energy):
        def forward(self, h: Tensor) -> Tensor:
            return h.square().sum(-1)

    with pytest.raises(AssertionError, match="the energy of system 0 grows"):
        assert_dissipates(LyapunovField(Twice(), torch.clone, beta=3.0, projection="none"), h)
    slower = LyapunovField(Twice(), torch.clone, beta=0.5, projection="none")  # descends, but not as it says
    with pytest.raises(AssertionError, match="but -alpha"):
        assert_dissipates(slower, h)


def test_assert_dissipates_sees_what_is_lost() -> None:
    class Lost:
        systems = Rows()

        def energy(self, t: Any, h: Tensor) -> Tensor:
            return h.sum(-1) / 0

        def __call__(self, t: Any, h: Tensor) -> Tensor:
            return -h

    with pytest.raises(AssertionError):
        assert_dissipates(Lost(), torch.ones(2, 2))


def test_assert_tangent_is_per_system() -> None:
    gradient = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    tangent = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])  # orthogonal in sum, in no row
    assert_tangent(tangent, gradient, Segments(torch.tensor([0, 0]), 1))
    with pytest.raises(AssertionError, match="system 0"):
        assert_tangent(tangent, gradient, Rows())


@pytest.mark.parametrize("what", ["tangent", "alpha", "direction"])
def test_assert_newton_catches_a_wrong_split(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, **kwargs: Any) -> NewtonSplit:
        split = newton_split(*args, **kwargs)
        change = {
            "tangent": {"tangent": split.tangent + 0.01 * split.gradient},
            "alpha": {"alpha": 1.01 * split.alpha},
            "direction": {"direction": 2 * split.direction, "alpha": 2 * split.alpha, "tangent": 2 * split.tangent,
                          "converged": torch.zeros_like(split.converged)},
        }[what]  # fmt: skip
        return dataclasses.replace(split, **change)

    h = torch.randn(3, 2)
    assert_newton(Quadratic([1.0, 5.0]), h)
    monkeypatch.setattr(single, "newton_split", wrong)
    with pytest.raises(AssertionError):
        assert_newton(Quadratic([1.0, 5.0]), h)


# -- strategies -----------------------------------------------------------------------------------------------------


@given(graphs())
def test_graphs(batch: Graphs) -> None:
    assert batch.nodes == len(batch.batch) > 0
    assert batch.edge_index.dtype == torch.int64
    assert batch.edge_index.shape[0] == 2
    if batch.edge_index.numel():
        assert 0 <= int(batch.edge_index.min()) <= int(batch.edge_index.max()) < batch.nodes
    source, target = batch.edge_index
    assert torch.equal(batch.batch[source], batch.batch[target])
    assert batch.systems.bind(torch.zeros(batch.nodes, 1)).count == batch.count


def test_graphs_have_all_kinds() -> None:
    """Among some hundred there are batches without edges, one-node graphs, empty graphs, loops, isolated nodes."""
    seen: set[str] = set()

    @given(graphs())
    def look(batch: Graphs) -> None:
        sizes = torch.bincount(batch.batch, minlength=batch.count)
        source, target = batch.edge_index
        seen.update(
            name
            for name, there in {
                "no edges": batch.edge_index.numel() == 0,
                "one node": bool((sizes == 1).any()),
                "no nodes": bool((sizes == 0).any()),
                "loop": bool((source == target).any()),
                "isolated": len(torch.unique(batch.edge_index)) < batch.nodes,
            }.items()
            if there
        )

    look()
    assert seen == {"no edges", "one node", "no nodes", "loop", "isolated"}


@given(st.integers(0, 6).flatmap(lambda rows: st.tuples(st.just(rows), divisions(rows))))
def test_divisions_fit_their_state(case: tuple[int, Systems]) -> None:
    rows, division = case
    bound = division.bind(torch.zeros(rows, 2))
    assert int(bound.sizes.sum()) == 2 * rows


@given(states_like(torch.full((2, 3), 1e-3, dtype=torch.float64)))
def test_states_like_an_example_have_its_scale(h: Tensor) -> None:
    assert h.dtype == torch.float64
    assert float(h.abs().max()) < 10


def test_works_in_a_strangers_project(tmp_path: Path) -> None:
    """Plain pytest, plain files, no settings of ours."""
    (tmp_path / "test_mine.py").write_text(
        "import torch\n"
        "from lyapflow import LyapunovField, MLPEnergy, MLPTangent\n"
        "from lyapflow.testing import check_field\n"
        "def test_good():\n"
        "    check_field(LyapunovField(MLPEnergy(2), MLPTangent(2)), torch.randn(3, 2), max_examples=3)\n"
        "def test_bad():\n"
        "    field = LyapunovField(MLPEnergy(2), MLPTangent(2), projection='none')\n"
        "    check_field(field, torch.randn(3, 2), max_examples=10)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_mine.py"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=tmp_path, env=one_thread, capture_output=True, text=True, timeout=300)
    assert "1 failed, 1 passed" in run.stdout, run.stdout + run.stderr
    assert "BrokenPromise: dissipation: " in run.stdout


def test_projection_is_what_the_kit_says_it_is() -> None:
    M, g = torch.randn(5, 3), torch.randn(5, 3)
    assert_tangent(project(M, g), g)
    with pytest.raises(AssertionError):
        assert_tangent(M, g)
