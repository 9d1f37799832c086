"""The command: tables, exit codes, and errors without tracebacks."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import lyapflow
from lyapflow.cli import main
from lyapflow.commands import load_object

MINE = """
from lyapflow import DoubleWell, Flow, LyapunovField, Quadratic

calm = LyapunovField(Quadratic([1.0, 2.0]))
flow = Flow(calm, "rk4", steps=3, step_size=0.1)

def make():
    return calm

def needs(width):
    return calm

class Box:
    inner = LyapunovField(DoubleWell())

number = 3
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of fields, which is where the command runs."""
    (tmp_path / "my_fields.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_fields", raising=False)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    written = capsys.readouterr()
    code = stopped.value.code
    return code if isinstance(code, int) else 0, written.out, written.err


def test_solvers_lists_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "solvers")
    assert code == 0
    from solvers import methods

    assert all(name in text for name in methods())
    _, few, _ = run(capsys, "solvers", "--dissipative")
    assert "armijo_euler" in few
    assert "dopri8" not in few


STEPS = ("--steps", "3", "--step-size", "0.1", "--samples", "4")


@pytest.mark.parametrize("name", ["calm", "make", "Box.inner"])
def test_certify_a_field(capsys: pytest.CaptureFixture[str], name: str, project: Path) -> None:
    code, text, _ = run(capsys, "certify", f"my_fields:{name}", "--shape", "5,2", *STEPS, "--json", "out/c.json")
    assert code == 0
    assert "5 systems (float32), euler, step 0.1" in text
    assert "sampled evidence, not a proof" in " ".join(text.split())
    assert json.loads((project / "out" / "c.json").read_text())["method"] == "euler"


def test_certify_a_flow_and_a_state_from_a_file(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    torch.save(torch.ones(3, 2, dtype=torch.float64), project / "state.pt")
    arguments = ("--state", "state.pt", "--samples", "4", "--plot", "figure.png")
    code, text, _ = run(capsys, "certify", "my_fields:flow", *arguments)
    assert code == 0
    assert "3 systems (float64), rk4, step 0.1" in text
    assert (project / "figure.png").exists()


def test_a_violation_exits_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    steps = ("--steps", "3", "--step-size", "1.5", "--samples", "4")
    code, text, _ = run(capsys, "certify", "my_fields:calm", "--shape", "2,2", *steps)
    assert code == 1
    assert "VIOLATED" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("my_fields",), "a field is named as module:object, got 'my_fields'"),
        (("nowhere:x",), "cannot import 'nowhere'"),
        (("my_fields:x",), "'my_fields' has no object 'x'"),
        (("my_fields:needs",), "cannot be called without arguments to make a field"),
        (("my_fields:calm",), "by one of --shape 16,2 and --state FILE"),
        (("my_fields:calm", "--shape", "2,2", "--state", "x.pt"), "by one of --shape"),
        (("my_fields:calm", "--shape", "two"), "shape must be whole numbers"),
        (("my_fields:calm", "--shape", "0,2"), "shape must be positive numbers"),
        (("my_fields:calm", "--shape", "2,2", "--dtype", "half"), "dtype must be float32 or float64"),
        (("my_fields:calm", "--state", "none.pt"), "No such file"),
        (("my_fields:calm", "--shape", "2,2"), "say how far to go"),
        (("my_fields:calm", "--shape", "2,3", *STEPS), "points of 2 entries"),
        (("my_fields:calm", "--shape", "2,2", "--time", "1", "--method", "eulr"), "unknown method 'eulr'"),
        (("my_fields:number", "--shape", "2,2", *STEPS), "field must be callable"),
    ],
)
def test_errors_are_a_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    code, _, text = run(capsys, "certify", *arguments)
    assert code == 2
    assert message in text
    assert "Traceback" not in text
    assert text.startswith("error: ")


def test_wrong_options(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, text = run(capsys, "certify", "my_fields:calm", "--bogus")
    assert code == 2
    assert "No such option" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[1].strip() == f"lyapflow {lyapflow.__version__}"


def test_demo(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    code, text, _ = run(capsys, "demo", "--out", "shown")
    assert code == 0
    assert text.count("no violation was seen") == 2
    assert text.count("VIOLATED") == 1
    assert {path.suffix for path in (project / "shown").iterdir()} == {".json", ".png"}


def test_without_typer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "typer" else found(name))
    code, _, text = run(capsys, "solvers")
    assert code == 2
    assert 'pip install "lyapflow[cli]"' in text


def test_the_module_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lyapflow", "solvers"], capture_output=True, text=True, timeout=120, check=True
    )
    assert "armijo_euler" in done.stdout


def test_load_object() -> None:
    assert isinstance(load_object("my_fields:make"), lyapflow.LyapunovField)
    function: Any = load_object("my_fields:flow")
    assert isinstance(function, lyapflow.Flow)


def test_doctor_says_what_is_here_and_what_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ['nosuch-package>=1; extra == "graph"'])
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code in (0, None)
    told = capsys.readouterr().out
    assert f"torch:     {torch.__version__}" in told
    assert "kernels:   CPU: " in told
    assert 'nosuch-package: pip install "lyapflow[graph]"' in told
