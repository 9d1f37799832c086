"""Workers as processes, on a server of PostgreSQL where one can be started: killed, interrupted, and gone on with."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState

from lyapflow_graph.sweeping import Sweep, SweepResult, load_sweep, run_sweep
from lyapflow_graph.sweeping.pool import Pool
from lyapflow_graph.sweeping.storage import open_storage
from lyapflow_graph.sweeping.trials import Trials
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


def by_labels(found: SweepResult) -> dict[str, float | None]:
    assert {trial.status for trial in found.trials} == {"complete"}
    return {repr(sorted(trial.labels.items())): trial.value for trial in found.trials}


def kill_at_work(sweep: Sweep, folder: Path, url: str) -> None:
    """Kill the process of a trial that has done at least an epoch, and that has not ended it meanwhile."""
    with open_storage(url) as storage:
        trials = Trials(sweep, folder, storage)

        def at_work() -> dict[int, int]:
            running = trials.study.get_trials(states=(TrialState.RUNNING,))
            begun = [trial for trial in running if trial.intermediate_values and "worker" in trial.user_attrs]
            return {trial.number: int(trial.user_attrs["worker"].split("-")[0]) for trial in begun}

        for _ in range(600):
            for number, pid in at_work().items():
                os.kill(pid, signal.SIGSTOP)
                held = at_work().get(number) == pid
                os.kill(pid, signal.SIGKILL if held else signal.SIGCONT)
                if held:
                    return
            time.sleep(0.05)
    raise AssertionError("no trial is under way")


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C is listened to: a suite that a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_killed_and_interrupted(server: str | CannotStart, tmp_path: Path) -> None:
    """In the end every trial is there once, with the value that one worker alone finds."""
    sweep = load_sweep(write_sweep(tmp_path, TOML.replace("epochs = 3", "epochs = 30")))  # to outlast the disturbances
    url = f"sqlite:///{tmp_path / 'trials.db'}" if isinstance(server, CannotStart) else server
    said: list[str] = []

    def disturb(line: str) -> None:
        print(line)  # shown when this fails
        said.append(line)
        if len(said) == 1:
            kill_at_work(sweep, tmp_path / "a", url)
        elif line.startswith("a worker was killed"):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match=r"interrupted; .*\. All is kept in .*; the same command with --resume"):
        run_sweep(sweep, tmp_path / "a", workers=2, storage=url, say=disturb)
    assert any(line.startswith("a worker was killed by signal 9; trial ") for line in said)
    assert multiprocessing.active_children() == []
    found = run_sweep(sweep, tmp_path / "a", storage=url, resume=True)
    assert len(found.trials) == 4
    assert by_labels(found) == by_labels(run_sweep(sweep, tmp_path / "b"))
    assert len(list((tmp_path / "a" / "runs").iterdir())) == 4


def test_an_error_of_a_worker_is_told(tmp_path: Path) -> None:
    """One that is no matter of the trial, which is left for another time."""
    sweep = load_sweep(write_sweep(tmp_path))
    (tmp_path / "runs").write_text("no folder")
    with pytest.raises(NotADirectoryError):
        run_sweep(sweep, tmp_path)
    with open_storage(f"sqlite:///{tmp_path / 'sweep.db'}") as storage:
        trials = Trials(sweep, tmp_path, storage)
        assert [trial.state for trial in trials.all()] == [TrialState.FAIL, TrialState.WAITING]
        ours, theirs = multiprocessing.Pipe()
        theirs.send(("error", "OSError: the disk is full"))
        with pytest.raises(RuntimeError, match=r"a worker stopped: OSError: the disk is full; all is kept, and"):
            Pool(trials, "", 2, print)._hear(ours)
        ours.close()
        theirs.close()
