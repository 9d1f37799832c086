"""Annotations are true: shapes and types are checked at run time by jaxtyping and beartype, over the public names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import jaxtyping

import tests.solvers.typechecker

with jaxtyping.install_import_hook(["solvers", "lyapflow"], "tests.solvers.typechecker.check"):
    import lyapflow

import torch
from lyapflow import *
# Without the hook: beartype can check neither SymPy's classes nor hypothesis' protocols.
import lyapflow.testing
from lyapflow.symbolic import SymbolicEnergy

h = torch.randn(3, 2, requires_grad=True)
energies = [
    Quadratic([1.0, 2.0]), DoubleWell(), Rosenbrock(), Himmelblau(), LogSumExp([[1.0, 0.0], [0.0, 1.0]]), MLPEnergy(2),
    ConvexEnergy(2), Annealed(DoubleWell()), SymbolicEnergy("x**2 + a * y**4", "x y", {"a": 2}),
]
for energy in energies:
    for division in (Rows(), Single(), Segments(torch.tensor([0, 0, 1]), 2)):
        beta = MLPCoefficient(2, within="real")
        field = LyapunovField(energy, MLPTangent(2, timed=True), MLPCoefficient(2), beta, systems=division)
        field.parts(0.0, h).rate.sum().backward()
        field(torch.zeros(()), h), field.energy(0.0, h)
        newton_split(energy, h.detach(), division, damping=1.0, solver="krylov").report()
bowl = Quadratic([1.0, 2.0])
newton = LyapunovField(bowl, NewtonTangent(bowl), DescentShare(0.1))
newton_gap(newton, h, newton_split(bowl, h), Rows())
other = LyapunovField(bowl, AntisymmetricTangent(2), alpha=torch.tensor(1.0), projection="row")
both = newton + 2 * other.gated(Window(0.0, 1.0, ramp=0.1))
both(0.5, h), both.energy(0.5, h)
project(h, h.detach(), Single())
t = torch.tensor([0.0, 0.1])
odeint(newton, h, t, method="rk4", backend="torchdiffeq")
for method in ("euler", "armijo_euler"):
    flow = Flow(other, method, steps=2, step_size=0.1)
    flow(h).sum().backward()
    str(certify(flow, h.detach(), samples=2))
certify(other, h.detach(), 0.1, method="dopri5", samples=2, progress=False).plot()
lyapflow.testing.check_field(LyapunovField(MLPEnergy(2), MLPTangent(2)), h.detach(), max_examples=2)
lyapflow.testing.assert_newton(bowl, h.detach())

try:
    Flow(other, steps="many")
except Exception as error:
    print(type(error).__module__.split(".")[0])
print("checked")
"""


def test_annotations_hold_at_run_time() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["jaxtyping", "checked"]  # the hook was really at work
