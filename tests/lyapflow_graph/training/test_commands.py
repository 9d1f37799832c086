"""`lyapflow train`, `report`, `predict`, `export`: what they print, leave behind, and end with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import lyapflow_graph.data
from lyapflow.cli import main
from lyapflow_graph.training import Record, load_model
from tests.lyapflow_graph.training.cases import graphs_with_values

TOML = """
[data]
name = "rings"

[model]
num_steps = 2
hidden_channels = 4

[training]
epochs = 2
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, which is where the commands run; the data is made here."""
    (tmp_path / "tango.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lyapflow_graph.data, "load", lambda name, root, **given: graphs_with_values(), raising=False)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    written = capsys.readouterr()
    code = stopped.value.code
    return code if isinstance(code, int) else 0, written.out, written.err


def test_from_a_file_to_predictions(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    for seed in ("0", "1"):
        code, text, problems = run(capsys, "train", "tango.toml", "--set", f"seed={seed}", "--set", "model.num_steps=3")
        assert (code, problems) == (0, "")
        assert "mae: validation" in text
    folders = sorted((project / "runs" / "tango").iterdir())
    assert [folder.name.rsplit("-", 1)[1] for folder in folders] == ["0", "1"]
    code, _, problems = run(capsys, "train", "tango.toml", "--set", "model.num_steps=3")
    assert code == 2
    assert "has a run already" in problems
    code, text, _ = run(capsys, "train", "tango.toml", "--set", "model.num_steps=3", "--resume")
    assert code == 0

    again = project / "again" / "record.json"  # with nothing else of the run beside it
    again.parent.mkdir()
    again.write_bytes((folders[0] / "record.json").read_bytes())
    code, _, problems = run(capsys, "train", str(again), "--set", "training.device=cpu")
    assert (code, problems) == (0, "")
    (repeated,) = (project / "runs" / "again").iterdir()
    assert Record.load(repeated).test == Record.load(folders[0]).test

    code, text, problems = run(capsys, "report", "runs/tango")
    assert code == 0
    assert "| tango gatedgcn |" in text
    assert (project / "runs" / "tango" / "report.html").exists()

    code, text, _ = run(capsys, "predict", str(folders[0]), "rings", "-o", "out.parquet")
    assert code == 0
    assert "11 predictions: out.parquet" in text
    assert "HOLDS: the energy rises in 0 of 11 graphs" in text

    code, text, _ = run(capsys, "export", str(folders[0]), "-o", "tango.pt")
    assert code == 0
    assert load_model("tango.pt").hidden_channels == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nothing.toml"], "nothing.toml"),
        (
            ["train", "tango.toml", "--set", "training.epoch=3"],
            "unknown key training.epoch; did you mean training.epochs?",
        ),
        (["report", "nowhere"], "there are no records of runs"),
        (["predict", "nowhere"], "there is no model"),
        (["export", "nowhere"], "there is no model"),
    ],
)
def test_errors_are_a_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, problems = run(capsys, *arguments)
    assert code == 2
    assert problems.startswith("error: ")
    assert message in problems
    assert len(problems.strip().splitlines()) == 1


def test_interrupting_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        code, _, problems = run(capsys, "train", "tango.toml", "--set", "training.epochs=100000", "--folder", "x")
    finally:
        timer.cancel()
    assert code == 130
    assert "The same command with --resume goes on from there" in problems


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "--help")
    assert code == 0
    assert all(name in text for name in ("solvers", "train", "report", "predict", "export"))


def test_other_commands_load_nothing_of_it() -> None:
    code = "import sys; from lyapflow.cli import main\ntry: main(['solvers'])\nexcept SystemExit: pass\n"
    code += "print('lightning' in sys.modules, 'torch_geometric' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split()[-2:] == ["False", "False"]
