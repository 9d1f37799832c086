"""`lyapflow sweep`: what it prints, leaves behind, and ends with."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from lyapflow.cli import main
from tests.lyapflow_graph.sweeping.cases import write_sweep


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a sweep, which is where the command runs."""
    write_sweep(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["sweep", *arguments])
    written = capsys.readouterr()
    code = stopped.value.code
    return code if isinstance(code, int) else 0, written.out, written.err


def test_from_a_file_to_the_best(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    code, text, problems = run(capsys, "rings.toml", "--set", "sweep.trials=2", "--set", "training.epochs=1")
    assert (code, problems) == (0, "")
    assert "sweep: sweeps/rings, up to 2 trials" in text
    assert "2 trials: 2 complete" in text
    assert "written: sweeps/rings/best.toml, sweeps/rings/sweep.md, sweeps/rings/sweep.html" in text
    code, _, problems = run(capsys, "rings.toml", "--set", "sweep.trials=2", "--set", "training.epochs=1")
    assert code == 2
    assert "has a sweep already" in problems
    with pytest.raises(SystemExit) as stopped:
        main(["train", "sweeps/rings/best.toml", "--folder", "best"])
    assert stopped.value.code in (0, None)
    assert (project / "best" / "record.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.toml"], "nothing.toml"),
        (["rings.toml", "--set", "sweep.trails=3"], "unknown key sweep.trails; did you mean sweep.trials?"),
        (["rings.toml", "--set", "training.epoch=3"], "unknown key training.epoch; did you mean training.epochs?"),
        (["rings.toml", "--storage", "mysql://here/x"], "storage must be sqlite:///PATH"),
        (["rings.toml", "--set", "sweep.max_parameters=1"], "no trial was completed; sweeps/rings/sweep.md says why"),
    ],
)
def test_errors_are_a_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, problems = run(capsys, *arguments)
    assert code == 2
    assert problems.startswith("error: ")
    assert message in problems
    assert len(problems.strip().splitlines()) == 1


def test_interrupting(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        code, _, problems = run(capsys, "rings.toml", "-o", "x", "--set", "training.epochs=100000")
    finally:
        timer.cancel()
    assert code == 130
    assert "the same command with --resume goes on there" in problems
    assert (project / "x" / "sweep.toml").exists()
