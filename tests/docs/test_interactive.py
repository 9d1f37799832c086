"""The integrator of the interactive page does what lyapflow and solvers do, in double precision."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from solvers import Status
from tests.docs.flows import ENERGIES, FLOWS, ours

SCRIPT = Path(__file__).parents[2] / "docs" / "_static" / "interactive.js"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node, which runs the page's script here, is not installed")

# Starts, and for each energy a step that is small for Euler and one that is not; the time is a few of the latter.
STEPS = {"bowl": (0.01, 0.045), "double_well": (0.05, 0.3), "rosenbrock": (0.0004, 0.004), "himmelblau": (0.004, 0.02)}
STARTS = [(-1.2, 1.0), (2.5, 1.9)]


def node(program: str, given: object = None) -> Any:
    assert NODE is not None
    code = f"const page = require({json.dumps(str(SCRIPT))}); const given = JSON.parse(process.argv[1]); {program}"
    run = subprocess.run(
        [NODE, "-e", code, json.dumps(given)], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def cases(energy: str, flow: str, method: str) -> list[dict[str, Any]]:
    both = itertools.product(STARTS, STEPS[energy])
    return [
        {"energy": energy, "flow": flow, "method": method, "start": start, "step": step, "time": 8.5 * step,
         "alpha": 0.8, "beta": 1.3}
        for start, step in both
    ]  # fmt: skip


METHODS = ("euler", "armijo_euler")


@pytest.fixture(scope="module")
def solved() -> dict[tuple[str, str, str], Any]:
    """What the page computes in all cases, in one run of node."""
    kinds = list(itertools.product(ENERGIES, FLOWS, METHODS))
    program = "process.stdout.write(JSON.stringify(given.map((kind) => kind.map(page.solve))));"
    return dict(zip(kinds, node(program, [cases(*kind) for kind in kinds]), strict=True))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("energy", ENERGIES)
def test_path_and_energy_are_those_of_the_library(solved: Any, energy: str, flow: str, method: str) -> None:
    moved = 0
    for case, theirs in zip(cases(energy, flow, method), solved[energy, flow, method], strict=True):
        solution = ours(case)
        finite = solution.status_of(0) is Status.SUCCESS
        assert theirs["status"] == ("success" if finite else "not finite")
        states = torch.tensor(theirs["y"], dtype=torch.float64)
        # Steps of Euler that explode lose digits with every step; what is compared has not exploded yet.
        sane = int((states.abs().amax(1) < 30).long().cumprod(0).sum())
        if finite:
            assert len(states) == len(solution.ts)
        moved += sane - 1
        close = {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(states[:sane], solution.ys[:sane, 0], **close)
        times = torch.tensor(theirs["t"], dtype=torch.float64)
        torch.testing.assert_close(times[:sane], solution.ts[:sane].reshape(-1), **close)
        energies = torch.tensor(theirs["energy"][:sane], dtype=torch.float64)
        torch.testing.assert_close(energies, solution.energy[:sane, 0], **close)
    assert moved > 18


def test_the_gradients_are_those_of_the_energies() -> None:
    points = [(-1.2, 1.0), (0.3, -0.7), (2.5, 1.9)]
    program = """
        const names = Object.keys(page.ENERGIES);
        const at = (name, what) => given.map((point) => page.ENERGIES[name][what](point));
        const found = names.map((name) => [name, { value: at(name, "value"), gradient: at(name, "gradient") }]);
        process.stdout.write(JSON.stringify(Object.fromEntries(found)));
    """
    found = node(program, points)
    assert set(found) == set(ENERGIES)
    for name, energy in ENERGIES.items():
        h = torch.tensor(points, dtype=torch.float64, requires_grad=True)
        value = energy(h)
        (gradient,) = torch.autograd.grad(value.sum(), h)
        torch.testing.assert_close(torch.tensor(found[name]["value"], dtype=torch.float64), value.detach())
        torch.testing.assert_close(torch.tensor(found[name]["gradient"], dtype=torch.float64), gradient)


@pytest.mark.parametrize("energy", ENERGIES)
def test_where_euler_raises_the_energy_is_said_and_armijo_never_does(energy: str) -> None:
    program = """
        const said = given.map((setting) => {
          const result = page.solve(setting);
          return [result.rises.length, page.describe(result, setting)];
        });
        process.stdout.write(JSON.stringify(said));
    """
    for case, (rises, words) in zip(
        cases(energy, "combined", "euler"), node(program, cases(energy, "combined", "euler")), strict=True
    ):
        energies = ours(case).energy[:, 0]
        if not torch.isfinite(energies).all():
            assert rises
            continue
        expected = int((energies.diff() > 1e-12 * energies[:-1]).sum())
        assert rises == expected
        assert (f"raises the energy in {expected} of" in words) or expected in (0, len(energies) - 1)
        assert ("in none" in words) == (expected == 0)
    assert [rises for rises, _ in node(program, cases(energy, "combined", "armijo_euler"))] == [0] * 4


def test_the_settings_that_the_page_starts_with_show_a_rise_of_euler_and_none_of_armijo() -> None:
    program = """
        const [name, energy] = Object.entries(page.ENERGIES)[0];
        const setting = { ...energy, energy: name, flow: "combined", alpha: 1 };
        const rises = ["euler", "armijo_euler"].map((method) => page.solve({ ...setting, method }).rises.length);
        process.stdout.write(JSON.stringify(rises));
    """
    euler, armijo = node(program)
    assert euler > 0
    assert armijo == 0
