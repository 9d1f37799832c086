"""Workers as processes, on a server of PostgreSQL where one can be started: killed, interrupted, and gone on with."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lyapflow_graph.sweeping import Findings, load_sweep, run_sweep
from lyapflow_graph.training import Interrupted
from tests.lyapflow_graph.sweeping.cases import TOML, CannotStart, postgres, write_sweep


@pytest.fixture(scope="module")
def server() -> Iterator[str | CannotStart]:
    """The URL of a server, or why there is none."""
    try:
        with postgres() as url:
            yield url
    except CannotStart as reason:
        yield reason


def test_there_is_a_server(server: str | CannotStart) -> None:
    if isinstance(server, CannotStart):
        pytest.skip(f"sweeps are tested on SQLite here: {server}")
    assert server.startswith("postgresql+psycopg://")


def by_labels(found: Findings) -> dict[str, float | None]:
    assert {trial.status for trial in found.trials} == {"complete"}
    return {repr(sorted(trial.labels.items())): trial.value for trial in found.trials}


def test_killed_and_interrupted(server: str | CannotStart, tmp_path: Path) -> None:
    """In the end every trial is there once, with the value that one worker alone finds."""
    text = TOML.replace("[0.01, 0.001]", "[0.1, 0.01, 0.001]").replace("epochs = 3", "epochs = 10")
    sweep = load_sweep(write_sweep(tmp_path, text))
    storage = f"sqlite:///{tmp_path / 'trials.db'}" if isinstance(server, CannotStart) else server
    said: list[str] = []

    def disturb(line: str) -> None:
        said.append(line)
        if len(said) == 1:
            victim = multiprocessing.active_children()[0]
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
        elif any("killed" in before for before in said[:-1]):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match=r"interrupted; .*\. All is kept in .*; the same command with --resume"):
        run_sweep(sweep, tmp_path / "a", workers=2, storage=storage, say=disturb)
    assert any(line.startswith("a worker was killed by signal 9; trial ") for line in said)
    assert multiprocessing.active_children() == []
    found = run_sweep(sweep, tmp_path / "a", storage=storage, resume=True)
    assert len(found.trials) == 6
    assert by_labels(found) == by_labels(run_sweep(sweep, tmp_path / "b"))
    assert len(list((tmp_path / "a" / "runs").iterdir())) == 6


def test_an_error_of_a_worker_is_told(tmp_path: Path) -> None:
    """Not one of a trial: there is nowhere to write to."""
    sweep = load_sweep(write_sweep(tmp_path))
    (tmp_path / "a" / "runs").parent.mkdir()
    (tmp_path / "a" / "runs").write_text("no folder")
    with pytest.raises(RuntimeError, match=r"a worker stopped: .*; all is kept, and the same command with --resume"):
        run_sweep(sweep, tmp_path / "a", workers=2)
    assert multiprocessing.active_children() == []
