"""Several processes that share every batch do what one process does with the whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lyapflow_graph.training.module import GraphTask
from tests.lyapflow_graph.training.sharing import CASES, gradients_of


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In double precision, so that nothing but the order of additions differs; shares are unequal, or empty."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*launcher, "-m", "tests.lyapflow_graph.training.sharing", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    monkeypatch.setattr(
        GraphTask, "on_before_optimizer_step", GraphTask.on_before_optimizer_step
    )  # put back in the end
    for name, (make, batch_size) in CASES.items():
        alone = gradients_of(make(), batch_size, tmp_path / "alone" / name)
        for rank in (0, 1):
            shared = torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True)
            assert len(shared) == len(alone)
            for one, other in zip(alone, shared, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
        assert float(alone[0].abs().max()) > 1e-4
