"""The identification example: its systems, its data, its models, its figures of merit, and the promise it shows."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples import identification as example
from lyapflow import LyapunovField

TINY = example.Settings(
    seeds=2, trajectories=4, horizon=2.0, slope_epochs=15, window_epochs=2, starts=3, long=2.5
)  # fmt: skip
PENDULUM, CYCLE = example.PROBLEMS
PROBLEMS = pytest.mark.parametrize("problem", example.PROBLEMS, ids=lambda problem: problem.name)


@pytest.fixture(scope="module")
def outcome() -> tuple[example.Results, list[example.Showcase]]:
    return example.run(TINY)


@pytest.fixture
def phases() -> Tensor:
    return torch.linspace(0, 2 * math.pi, 9, dtype=torch.float64)


# -- systems ----------------------------------------------------------------------------------------------------------


def test_starts_of_the_pendulum_have_the_energy_of_their_largest_angle(phases: Tensor) -> None:
    angle, speed = PENDULUM.state(torch.full_like(phases, 2.5), phases).unbind(-1)
    torch.testing.assert_close(speed**2 / 2 - angle.cos(), torch.full_like(phases, -math.cos(2.5)))
    assert float(angle.max()) == pytest.approx(2.5, rel=1e-12)


def test_the_limit_cycle_follows_its_closed_form(phases: Tensor) -> None:
    radius, times = torch.linspace(0.2, 3, 9, dtype=torch.float64), example.time_grid(4.0, 0.5)
    truth = CYCLE.truth(CYCLE.state(radius, phases), times)
    t = times.unsqueeze(1)
    expected = CYCLE.state((1 + (1 / radius**2 - 1) * torch.exp(-t)).rsqrt(), phases + t)
    torch.testing.assert_close(truth, expected, rtol=0, atol=1e-6)


@PROBLEMS
def test_true_systems_end_up_where_they_say(problem: example.Problem) -> None:
    starts = problem.starts(3, problem.outside, example.generator_of("test", 7))
    ends = problem.truth(starts, torch.tensor([0.0, 100.0], dtype=torch.float64))[-1]
    assert float(problem.distance(starts).min()) > 1
    assert float(problem.distance(ends).max()) < 0.02


# -- data -------------------------------------------------------------------------------------------------------------


@PROBLEMS
def test_no_split_shares_a_start_with_another(problem: example.Problem) -> None:
    drawn = [
        problem.starts(16, problem.inside, example.generator_of(split, seed))
        for split in example.SPLITS
        for seed in range(6)
    ]
    states = torch.cat(drawn)
    assert len(states.unique(dim=0)) == len(states)


@PROBLEMS
def test_training_reads_nothing_of_the_test(
    problem: example.Problem, outcome: tuple[example.Results, list[example.Showcase]], monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = example.generator_of

    def guarded(split: example.Split, seed: int) -> torch.Generator:
        assert split != "test"
        return allowed(split, seed)

    monkeypatch.setattr(example, "generator_of", guarded)
    showcase = next(showcase for showcase in outcome[1] if showcase.problem is problem)
    for kind, field in showcase.fields.items():
        again, _ = example.train(problem, kind, TINY, 0, example.CHOSEN[problem.name, kind])
        for ours, theirs in zip(again.parameters(), field.parameters(), strict=True):
            assert torch.equal(ours, theirs)


@PROBLEMS
def test_validation_has_no_part_in_training(problem: example.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = example.CHOSEN[problem.name, "unconstrained"]
    ours, fit = example.train(problem, "unconstrained", TINY, 0, candidate)
    observe = example.observe

    def shifted(*arguments: Any) -> example.Data:
        data = observe(*arguments)
        return dataclasses.replace(data, validation=data.validation + 1)

    monkeypatch.setattr(example, "observe", shifted)
    theirs, other = example.train(problem, "unconstrained", TINY, 0, candidate)
    assert fit.validation != other.validation
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@PROBLEMS
def test_losses_of_the_true_field_are_those_of_the_discretisation_alone(problem: example.Problem) -> None:
    def losses(spacing: float) -> tuple[float, float]:
        data = example.observe(problem, dataclasses.replace(TINY, noise=0.0, spacing=spacing), 0)
        field: Any = problem.velocity
        return float(example.slope_loss(field, data)()), float(example.window_loss(field, data, 3)())

    coarse, fine = losses(0.25), losses(0.125)
    assert 8 < coarse[0] / fine[0] < 24  # squares of differences of order 2
    assert 300 < coarse[1] / fine[1] < 3000  # squares of steps of order 5
    assert coarse[1] < 1e-5


# -- models -----------------------------------------------------------------------------------------------------------


@PROBLEMS
@pytest.mark.parametrize("candidate", example.CANDIDATES)
def test_both_models_have_as_many_parameters(problem: example.Problem, candidate: example.Candidate) -> None:
    ours, theirs = (example.parameters(example.build(problem, kind, candidate.activation, 0)) for kind in example.KINDS)
    assert abs(theirs / ours - 1) <= 0.05


@PROBLEMS
@pytest.mark.parametrize("kind", example.KINDS)
def test_a_seed_gives_the_same_model_again(problem: example.Problem, kind: example.Kind) -> None:
    one, same, other = (example.build(problem, kind, "tanh", seed) for seed in (3, 3, 4))
    state = problem.starts(4, problem.inside, example.generator_of("training", 0))
    assert torch.equal(one(0.0, state), same(0.0, state))
    assert not torch.equal(one(0.0, state), other(0.0, state))


@pytest.mark.parametrize("kind", example.KINDS)
def test_models_of_the_pendulum_rest_at_zero_and_nowhere_near(kind: example.Kind, phases: Tensor) -> None:
    model = example.build(PENDULUM, kind, "tanh", 0)
    assert float(model(0.0, torch.zeros(2, 2, dtype=torch.float64)).detach().abs().max()) < 1e-15
    assert bool((model(0.0, PENDULUM.state(torch.ones_like(phases), phases)).norm(dim=-1) > 1e-3).all())


def test_energies_of_the_limit_cycle_have_bounded_level_sets(phases: Tensor) -> None:
    energy = example.build(CYCLE, "guaranteed", "tanh", 0).energy_module
    last = energy.network.network[-1].requires_grad_(False)
    bound = float(last.weight.abs().sum() + last.bias.abs().sum())  # of the network, since its last layer sees tanh
    for radius in (1.1 * math.sqrt(bound) + 1, 10.0, 1e3):
        states = radius * torch.stack([phases.cos(), phases.sin()], dim=-1)
        assert bool((energy(states) >= (radius**2 - bound) ** 2 * (1 - 1e-12)).all())


# -- evaluation -------------------------------------------------------------------------------------------------------


def test_scores_count_what_leaves_the_ball_fails_or_is_not_finite() -> None:
    truth = torch.zeros(3, 5, 2, dtype=torch.float64)
    truth[..., 0] = 1.0  # the ball has the radius 3
    states = truth.clone()
    states[1, 1] = torch.tensor([90.0, 0.0])
    states[2, 2] = float("nan")
    states[1, 4, 1] = 0.3
    failed = torch.tensor([False, False, False, True, False])
    energy = torch.tensor([[5.0, 1.0], [4.0, 1.5], [4.25, float("nan")]], dtype=torch.float64)
    score = example.score(
        PENDULUM, "guaranteed", "rk4", "inside", 0, example.Rollout(states, energy, failed), truth
    )  # fmt: skip
    assert score.diverging == pytest.approx(3 / 5)
    assert score.rms == pytest.approx([0, math.sqrt(3), math.sqrt(3), 0, math.sqrt(0.3**2 / 3)])
    assert score.largest_rise == 0.5


@PROBLEMS
def test_energies_do_not_rise_with_a_dissipative_method(
    problem: example.Problem, outcome: tuple[example.Results, list[example.Showcase]]
) -> None:
    showcase = next(showcase for showcase in outcome[1] if showcase.problem is problem)
    field = showcase.fields["guaranteed"]
    assert isinstance(field, LyapunovField)
    energy = field.energy(0.0, showcase.rollouts["guaranteed"].states.flatten(0, 1)).detach()
    energy = energy.reshape(len(showcase.times), -1).clamp(min=problem.floor)
    rises = energy.diff(dim=0) / energy[:-1]
    assert float(rises.max()) <= 1e-14
    assert bool((energy[-1] < energy[0]).all())
    # What was reported is the same, for all seeds.
    scores = [s for s in outcome[0].scores if (s.problem, s.method) == (problem.name, "relaxed_rk4")]
    assert len(scores) == 2 * TINY.seeds
    assert all(s.largest_rise is not None and s.largest_rise <= 1e-14 * float(energy.max()) for s in scores)
    assert all(s.diverging == 0 for s in scores)


def test_energies_would_rise_without(outcome: tuple[example.Results, list[example.Showcase]]) -> None:
    scores = [s for s in outcome[0].scores if (s.problem, s.model, s.method) == (CYCLE.name, "guaranteed", "rk4")]
    assert max(s.largest_rise or 0.0 for s in scores) > 1


# -- results ----------------------------------------------------------------------------------------------------------


def test_results_have_a_score_for_everything(outcome: tuple[example.Results, list[example.Showcase]]) -> None:
    results, showcases = outcome
    assert len(results.fits) == TINY.seeds * 2 * 2
    assert len(results.scores) == TINY.seeds * 2 * 3 * 2
    assert {len(score.rms) for score in results.scores} == {TINY.starts}
    assert {score.model for score in results.scores if score.largest_rise is None} == {"unconstrained"}
    rows = list(example.summary(results.scores))
    assert len({(row.problem, row.model, row.method, row.region) for row in rows}) == len(rows) == 12
    assert all(row.lowest_rms <= row.rms <= row.highest_rms for row in rows)
    for showcase in showcases:
        shape = (len(showcase.times), 2 * TINY.starts, 2)
        assert {rollout.states.shape for rollout in showcase.rollouts.values()} == {shape} == {showcase.truth.shape}


def test_runs_and_writes_results_and_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(example, "QUICK", TINY)
    example.main(["--quick", "--seeds", "1", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "identification.json").read_text())
    assert written["versions"]["torch"] == torch.__version__
    assert written["settings"]["seeds"] == 1
    assert len(written["scores"]) == 12
    assert (tmp_path / "identification.png").stat().st_size > 10_000
    printed = capsys.readouterr()
    assert printed.out.count("relaxed_rk4") >= 4
    assert printed.err.count("trained in") == 4


@pytest.mark.parametrize("seeds", ["0", "-1"])
def test_a_number_of_seeds_that_makes_no_sense_is_refused(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        example.main(["--seeds", seeds])
    assert f"--seeds must be at least 1, got {seeds}" in capsys.readouterr().err
