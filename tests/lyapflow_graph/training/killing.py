"""Runs that are killed again and again: a process of its own, which imports once and forks every attempt.

    python -m tests.lyapflow_graph.training.killing FOLDER KILLS SEED

`FOLDER/reference` is never killed; `FOLDER/0`, `FOLDER/1`, ... are, and end in the end.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from lyapflow_graph.training import train
from tests.lyapflow_graph.training.cases import graphs_with_values, small


def start(folder: Path) -> int:
    """A run in a process of its own, which goes on with what it finds in the folder."""
    child = os.fork()
    if child == 0:
        data = graphs_with_values()
        config = small(data, epochs=10, scheduler="plateau", plateau_patience=2)
        train(config, folder, resume=True, dataset=data, figures=False)
        os._exit(0)
    return child


def ended_well(child: int) -> bool:
    return os.waitpid(child, 0)[1] == 0


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    assert ended_well(start(folder / "warm-up"))
    begin = time.perf_counter()
    assert ended_well(start(folder / "reference"))
    whole, draw = time.perf_counter() - begin, random.Random(seed)
    killed = run = 0
    while killed < kills:
        child = start(folder / str(run))
        time.sleep(draw.uniform(0, 0.7 * whole))
        os.kill(child, signal.SIGKILL)
        if ended_well(child):
            run += 1
        else:
            killed += 1
    assert ended_well(start(folder / str(run)))
    print(killed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
