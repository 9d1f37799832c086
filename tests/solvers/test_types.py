"""Annotations are true: shapes and types are checked at run time by jaxtyping and beartype, over the public names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import jaxtyping

import tests.solvers.typechecker

with jaxtyping.install_import_hook("solvers", "tests.solvers.typechecker.check"):
    import solvers

import torch
from solvers import *
from tests.solvers.problems import Springs, Wells

y0 = torch.tensor([[0.9, -0.4], [0.3, 0.8]], dtype=torch.float64, requires_grad=True)
lam = torch.tensor([[0.5], [3.0]], dtype=torch.float64)
for name in ("rk4", "dopri5", "tsit5", "leapfrog", "implicit_midpoint", "armijo_euler", "discrete_gradient"):
    field = Springs(lam) if name == "leapfrog" else Wells(lam)
    adjoint = Checkpointed() if name == "rk4" else Direct()
    solution = solve(field, y0, 0.0, 0.1, method=name, dt0=0.05, saveat=[0.05, 0.1], adjoint=adjoint)
    solution.y1.sum().backward()
    solution.energy, solution.success, solution.error(), solution.status_of(0)
field = Wells(lam)
solve(field, y0, 0.0, 0.2, adjoint=Backsolve()).y1.sum().backward()
solve(field, y0, 0.0, 9.0, stop=SteadyState(), saveat="steps")
solve(field, y0, 0.0, 9.0, stop=EnergyPlateau(), event=lambda t, y: y[:, 0] - 0.1, max_steps=9, throw=False)
solve(field, y0, 0.0, 0.2, dense=True)(0.1)
stepper = Stepper(field, y0, 0.0, 0.2)
stepper.load(stepper.save(stepper.step(stepper.start())))
t = torch.linspace(0, 1, 3, dtype=torch.float64)
pair = (torch.ones(2), torch.ones(3, 1))
odeint(lambda t, y: (-y[0], -y[1]), pair, t)
odeint(lambda t, y: -y, torch.ones(2), t, method="rk4", options={"step_size": 0.1})
odeint_adjoint(field, y0, t, systems=Rows()).sum().backward()
odeint_event(lambda t, y: -y, torch.ones(1), torch.zeros(()), event_fn=lambda t, y: y[0] - 0.5)
Segments(torch.tensor([0, 0, 1]), 2).bind(torch.zeros(3, 2)).sizes

try:
    Segments("not a tensor", 2)
except Exception as error:
    print(type(error).__module__.split(".")[0])
print("checked")
"""


def test_annotations_hold_at_run_time() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["jaxtyping", "checked"]  # the hook was really at work


def test_jaxtyping_is_not_needed_at_run_time() -> None:
    script = "import solvers, sys; print('jaxtyping' in sys.modules, 'torchdiffeq' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
