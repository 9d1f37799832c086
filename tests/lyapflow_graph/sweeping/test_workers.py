"""Workers as processes, on a server of PostgreSQL where one can be started: killed, interrupted, and gone on with."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from lyapflow_graph.sweeping import load_sweep, run_sweep
from lyapflow_graph.training import Interrupted, Record
from tests.lyapflow_graph.sweeping.cases import CannotStart, postgres, rings, write_sweep


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(postgres(tmp_path / "server"))
        except CannotStart as reason:
            if os.environ.get("LYAPFLOW_REQUIRE_POSTGRES"):
                raise
            warnings.warn(f"on SQLite, not on PostgreSQL: {reason}", stacklevel=1)
            url = f"sqlite:///{tmp_path / 'trials.db'}"
        yield url


def test_two_workers_one_killed_then_interrupted(storage: str, tmp_path: Path) -> None:
    """Nothing is lost: in the end every trial has the value that one worker alone finds."""
    E
