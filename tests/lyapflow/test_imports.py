"""`import lyapflow` needs torch alone, and loads nothing heavier."""

from __future__ import annotations

import inspect
import subprocess
import sys

import lyapflow
import lyapflow_graph
import lyapflow_graph.data
from lyapflow import symbolic, testing
from lyapflow_graph import training

HEAVY = ("torchdiffeq", "sympy", "hypothesis", "matplotlib", "scipy", "rich", "typer", "torch_geometric", "jaxtyping")
HEAVY += ("lightning", "torchmetrics", "tensorboard", "pyarrow")


def modules_after(statement: str) -> set[str]:
    code = f"import sys, torch; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_import_is_light() -> None:
    loaded = modules_after("import lyapflow")
    assert "lyapflow" in loaded
    assert loaded.isdisjoint(HEAVY), loaded & set(HEAVY)


def test_optional_parts_are_reached_by_name() -> None:
    assert "hypothesis" in modules_after("import lyapflow.testing")
    assert "matplotlib" in modules_after("import lyapflow.plots")


def test_every_public_name_has_an_example() -> None:
    """Which runs as a doctest."""
    for module in (lyapflow, symbolic, testing, lyapflow_graph, lyapflow_graph.data, training):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert thing.__doc__ is not None, name
                assert ">>>" in thing.__doc__, name
