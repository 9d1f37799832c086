"""The package as users get it: a wheel, built and installed away from the tree, with and without a C compiler."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREE = ("solvers", "lyapflow", "lyapflow_graph", "setup.py", "pyproject.toml", "README.md", "LICENSE")

CHECK = """
import sys, pathlib
import lyapflow, lyapflow_graph, solvers, torch
from lyapflow.doctor import diagnosis
for package in (lyapflow, lyapflow_graph, solvers):
    assert pathlib.Path(package.__file__).parents[1] == pathlib.Path(sys.argv[1]), package.__file__
from lyapflow_graph import Tango
from torch_geometric.data import Data
edges = torch.tensor([[0, 1], [1, 0]])
Tango(3, 4, 2)(Data(x=torch.randn(2, 3), edge_index=edges)).sum().backward()
print(diagnosis()["kernels"])
"""


def built(folder: Path, **environment: str) -> Path:
    """The wheel of the tree, without what was built in it before."""
    source = folder / "source"
    for name in TREE:
        there = ROOT / name
        if there.is_dir():
            shutil.copytree(there, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd"))
        else:
            shutil.copy(there, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    made = subprocess.run(command, cwd=source, env={**os.environ, **environment}, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def used(wheel: Path, folder: Path) -> str:
    """What a program says that uses the wheel from a folder of its own."""
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHECK, str(site)]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_a_wheel_without_a_compiler_says_so(tmp_path: Path) -> None:
    wheel = built(tmp_path, CC="false", LDSHARED="false")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert not [name for name in names if name.endswith((".so", ".pyd"))]
    assert {"lyapflow/py.typed", "lyapflow_graph/training/paper.toml"} <= set(names)
    assert "plain torch, slower; with a C compiler" in used(wheel, tmp_path)


@pytest.mark.slow
def test_a_wheel_with_a_compiler_has_kernels(tmp_path: Path) -> None:
    if shutil.which("cc") is None or shutil.which("bash") is None:
        pytest.skip("there is no C compiler")
    quick = tmp_path / "quick"  # optimising takes two minutes, and is not what is tested
    quick.write_text('#!/bin/bash\nexec cc "${@/-O3/-O0}"\n')
    quick.chmod(0o755)
    wheel = built(tmp_path, CC=str(quick))
    assert re.search(r"-cp311-abi3-\w+\.whl$", wheel.name)
    assert used(wheel, tmp_path).startswith("CPU: C")


def test_the_tested_set_satisfies_every_range() -> None:
    """constraints.txt is the lock of the tested set: each requirement has a pin in it that its range allows."""
    from packaging.requirements import Requirement

    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = {line.split("==")[0].lower().replace("_", "-"): line.split("==")[1].split(";")[0] for line in lines if line}
    for text in importlib.metadata.requires("lyapflow") or []:
        wanted = Requirement(text)
        name = wanted.name.lower().replace("_", "-")
        if name in ("lyapflow", "torch-scatter", "triton"):  # the last two are built for one torch and one device
            continue
        assert name in pins, f"constraints.txt has no pin of {wanted.name}"
        assert wanted.specifier.contains(pins[name].strip()), f"{text} does not allow the tested {pins[name]}"
