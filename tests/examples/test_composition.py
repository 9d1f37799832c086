"""Flows train as layers of a model with either backend, and other solvers can be put into it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from examples import composition as example
from lyapflow.flow import Backend


@pytest.fixture
def model() -> nn.Sequential:
    return example.build()


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4"])
def test_backends_agree_at_fixed_steps(model: nn.Sequential, method: str) -> None:
    x, _ = example.spirals(64)
    assert example.largest_difference(model.double(), x.double(), method) < 1e-14


def test_backends_agree_to_the_tolerance_of_adaptive_steps(model: nn.Sequential) -> None:
    x, _ = example.spirals(64)
    assert 0 < example.largest_difference(model.double(), x.double(), "dopri5") < 1e-4


def test_gradients_reach_every_parameter_and_agree(model: nn.Sequential) -> None:
    x, label = example.spirals(64)
    gradients = []
    for backend in example.BACKENDS:
        layers = with_double_flows(model, backend)
        loss = F.cross_entropy(layers(x.double()), label)
        gradients.append(torch.autograd.grad(loss, list(layers.parameters())))
    names = [name for name, _ in model.named_parameters()]
    for part in ("energy_module", "tangent_module", "alpha", "beta", "log_rate", "0.weight", "3.weight"):
        assert any(part in name for name in names), part
    for name, ours, theirs in zip(names, *gradients, strict=True):
        assert bool((ours != 0).any()), name
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-14), name


def with_double_flows(model: nn.Sequential, backend: Backend) -> nn.Sequential:
    return example.with_flows(copy.deepcopy(model).double(), "euler", backend)


@pytest.mark.parametrize("backend", example.BACKENDS)
def test_loss_falls(model: nn.Sequential, backend: Backend) -> None:
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    losses = example.train(example.with_flows(model, "euler", backend), example.spirals(128), 30)
    assert losses[-1] < 0.6 * losses[0]
    assert all(bool((parameter != before[name]).any()) for name, parameter in model.named_parameters())


def test_the_same_losses_by_both_backends(model: nn.Sequential) -> None:
    data = example.spirals(64)
    data = data[0].double(), data[1]
    ours, theirs = (example.train(with_double_flows(model, backend), data, 5) for backend in example.BACKENDS)
    assert ours == pytest.approx(theirs, rel=1e-10)


def test_swapped_solvers_share_the_parameters(model: nn.Sequential) -> None:
    swapped = example.with_flows(model, "rk4")
    assert [id(p) for p in swapped.parameters()] == [id(p) for p in model.parameters()]
    assert [layer.method.name for layer in swapped if isinstance(layer, example.Flow)] == ["rk4", "rk4"]


def test_energies_rise_by_euler_and_not_by_dissipative_methods(model: nn.Sequential) -> None:
    x, _ = example.spirals(32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2  # steep enough for Euler to fail
    model.double()
    rise = {
        method: example.follow(example.with_flows(model, method), x.double()).largest_rise
        for method in ("euler", "armijo_euler", "discrete_gradient")
    }
    assert rise["euler"] > 1e-2
    assert rise["armijo_euler"] < 1e-13
    assert rise["discrete_gradient"] < 1e-13


def test_a_passage_ends_where_the_model_does(model: nn.Sequential) -> None:
    x, _ = example.spirals(16)
    passage = example.follow(model, x)
    assert torch.equal(passage.output, model(x))
    assert passage.evaluations == 2 * example.STEPS
    assert [list(energy.shape) for energy in passage.energies] == [[example.STEPS + 1, 16]] * 2


@pytest.mark.slow
def test_runs_and_writes_its_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--quick", "--out", str(tmp_path)])
    assert (tmp_path / "composition.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    for name in (*example.BACKENDS, *example.SWAPPED):
        assert name in printed
