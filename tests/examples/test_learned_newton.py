"""The tangent that learned Newton's direction beats gradient flow, and never raises the energy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples import learned_newton as example
from lyapflow import DescentShare, LyapunovField, MLPTangent, Quadratic


@pytest.fixture(scope="module")
def energy() -> Quadratic:
    torch.manual_seed(0)
    return example.bowl()


@pytest.fixture(scope="module")
def learned(energy: Quadratic) -> LyapunovField:
    torch.manual_seed(1)
    return example.train(energy, example.QUICK)


@pytest.fixture
def starts() -> Tensor:
    torch.manual_seed(2)
    return example.random_states(64)


def test_the_energy_is_as_ill_conditioned_as_it_says_in_any_direction(energy: Quadratic) -> None:
    eigenvalues, basis = torch.linalg.eigh(energy.matrix)
    assert float(eigenvalues[-1] / eigenvalues[0]) == pytest.approx(1e4, rel=1e-10)
    assert float(basis.abs().max()) < 0.95  # no axis is one of its own


def test_learned_flow_takes_a_tenth_of_the_steps_of_gradient_flow(
    energy: Quadratic, learned: LyapunovField, starts: Tensor
) -> None:
    ours = example.descend("", learned, starts, "euler", 1.0, 60)
    size = example.best_gradient_step(energy, starts)
    theirs = example.descend("", LyapunovField(energy), starts, "euler", size, 10 * int(ours.worst))
    assert ours.steps.isfinite().all()
    assert (theirs.steps >= 10 * ours.steps).all()
    # The same by the closed form: after ten times the steps, gradient flow is still above the energy that ours reached.
    eigenvalues, basis = torch.linalg.eigh(energy.matrix)
    assert size == pytest.approx(2 / float(eigenvalues[0] + eigenvalues[-1]), rel=1e-9)
    factors = (1 - size * eigenvalues) ** (10 * ours.steps.unsqueeze(1))
    after = energy.center + (factors * ((starts - energy.center) @ basis)) @ basis.T
    assert (energy(after) > example.GOAL * energy(starts)).all()


def test_steps_of_gradient_flow_are_those_of_the_closed_form() -> None:
    energy = Quadratic(torch.tensor([1.0, 10.0], dtype=torch.float64))
    starts = torch.tensor([[1.0, 1.0], [3.0, 0.1]], dtype=torch.float64)
    size = example.best_gradient_step(energy, starts)
    descent = example.descend("", LyapunovField(energy), starts, "euler", size, 1000)
    # Both eigenvalues contract by 9/11 in each step, so all starts take the same number.
    needed = torch.tensor(example.GOAL).log() / (2 * torch.tensor(9 / 11).log())
    assert descent.steps.tolist() == [float(needed.ceil())] * 2
    assert descent.rises == 0


def test_an_untrained_tangent_does_not_arrive(energy: Quadratic, learned: LyapunovField, starts: Tensor) -> None:
    ours = example.descend("", learned, starts, "armijo_euler", 1.0, 60)
    untrained = LyapunovField(energy, MLPTangent(example.DIMENSION).double(), alpha=DescentShare(rate=1.0))
    control = example.descend("", untrained, starts, "armijo_euler", 1.0, 10 * int(ours.worst))
    assert control.steps.isinf().all()


@pytest.mark.parametrize("step_size", [0.5, 1.0, 2.5])
def test_energies_do_not_rise_with_a_dissipative_method(
    learned: LyapunovField, starts: Tensor, step_size: float
) -> None:
    descent = example.descend("", learned, starts, "armijo_euler", step_size, 60)
    assert descent.energies.diff(dim=0).max() <= 1e-15  # relative to the start
    assert descent.steps.isfinite().all()


def test_rises_are_counted() -> None:
    energy = Quadratic(torch.tensor([1.0], dtype=torch.float64))
    starts = torch.ones(2, 1, dtype=torch.float64)
    descent = example.descend("", LyapunovField(energy), starts, "euler", 2.1, 7)
    assert descent.rises == 14
    assert descent.steps.isinf().all()


def test_the_bent_bowl_has_its_minimum_at_zero_and_a_hessian_that_changes() -> None:
    bent = example.bent_bowl()
    states = example.states_on_the_way(bent, 32)
    assert (bent(states) > 0).all()
    split = example.newton_split(bent, states)
    assert bool(split.ok.all())
    assert split.largest.max() > 1.5 * split.largest.min()
    arrived = example.descend("", example.newton_flow(bent), states, "armijo_euler", 1.0, 30)
    assert arrived.steps.isfinite().all()


@pytest.mark.slow
def test_runs_and_writes_its_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--quick", "--out", str(tmp_path)])
    assert (tmp_path / "learned_newton.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert printed.count("learned flow ") >= 4
