"""The most memory that a training step of TANGO takes, each in a process of its own, on Linux.

Claims: at most a third of what the same TANGO takes in plain torch; with `checkpoint=True` 32 steps take at most 1.3
times as much as 8.
"""

from __future__ import annotations

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from report import Claim, largest, main, print_table
from tango import CASES, graphs_of, step

from lyapflow_graph import Tango

PLAIN_CASES = ("Minesweeper, 64", "Roman-empire, 64", "64 graphs of 30, 30")
CHECKPOINT_CASE = "Roman-empire, 64"


def peak() -> int:
    """The most bytes that this process has had."""
    # Not getrusage: a process inherits that figure from the one that starts it.
    (line,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 1024 * int(line)


def training_step(case: str, backend: str, options: dict[str, Any]) -> int:
    """How many bytes more than before the largest of two training steps takes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    nodes, edges, width, count = CASES[case]
    step(Tango(16, 8, 2, **options), *graphs_of(8, 16, 1), backend)()  # libraries load parts of theirs when first used
    edge_index, batch = graphs_of(nodes, edges, count)
    run = step(Tango(16, width, 2, **options), edge_index, batch, backend)
    before = peak()
    for _ in range(2):
        run()
    return peak() - before


def in_a_process(case: str, backend: str = "auto", **options: Any) -> int:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(training_step, case, backend, options).result()


def measure(rounds: int) -> list[Claim]:
    rows, against_plain = [], {}
    for case in PLAIN_CASES:
        ours, plain = in_a_process(case), in_a_process(case, "reference")
        against_plain[case] = ours / plain
        rows.append([case, f"{ours / 2**20:.0f}", f"{plain / 2**20:.0f}", f"{ours / plain:.2f}x"])
    print_table("Peak memory, MiB", ("", "TANGO", "in plain torch", "ratio"), rows)
    few, many = (in_a_process(CHECKPOINT_CASE, checkpoint=True, num_steps=steps) for steps in (8, 32))
    rows = [[CHECKPOINT_CASE, f"{few / 2**20:.0f}", f"{many / 2**20:.0f}", f"{many / few:.2f}x"]]
    print_table("Peak memory with checkpoint=True, MiB", ("", "8 steps", "32 steps", "ratio"), rows)
    return [
        largest("TANGO's memory in units of plain torch's", against_plain, at_most=1 / 3),
        Claim("memory of 32 checkpointed steps in units of 8's", many / few, at_most=1.3, case=CHECKPOINT_CASE),
    ]


if __name__ == "__main__":
    main(__doc__, measure)
