"""Does a test fail where the code is wrong? `make mutants` breaks the code in known ways and runs the tests next to it.

Each mutant replaces one snippet, which has to occur exactly once: a snippet that no longer applies is an error, so the
list follows the code. The tree itself is not touched. The counts go to tests/README.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("solvers", "lyapflow", "lyapflow_graph", "tests", "pyproject.toml", "conftest.py")
CERTIFY = ("tests/lyapflow/test_certify.py",)
PROJECTION = ("tests/lyapflow/test_projection.py",)
NEWTON = ("tests/lyapflow/test_newton.py",)
DISSIPATIVE, CONTROL = ("tests/solvers/test_dissipative.py",), ("tests/solvers/test_loop.py",)
SECONDS = 400


@dataclass(frozen=True)
class Mutant:
    """One way to be wrong.

    Args:
        about: What is wrong.
        path: The file.
        old: A snippet of it.
        new: What stands there instead.
        tests: Which have to notice.
    """

    about: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "a lost energy is no rise",
        "lyapflow/certify.py",
        'rises = torch.where(lost, float("inf"),',
        "rises = torch.where(lost, 0.0,",
        CERTIFY,
    ),
    Mutant(
        "a failed step descends",
        "lyapflow/certify.py",
        "return good if step.failed is None else good & ~step.failed",
        "return good",
        CERTIFY,
    ),
    Mutant(
        "the largest step of the best state",
        "lyapflow/certify.py",
        "largest_step=torch.stack(largest_steps).amin(0)",
        "largest_step=torch.stack(largest_steps).amax(0)",
        CERTIFY,
    ),
    Mutant(
        "the smallest rise is told",
        "lyapflow/certify.py",
        "return torch.stack(values).amax(0)",
        "return torch.stack(values).amin(0)",
        CERTIFY,
    ),
    Mutant(
        "small gradients count as zero",
        "lyapflow/projection.py",
        "torch.finfo(gradient.dtype).tiny",
        "1e-3",
        PROJECTION,
    ),
    Mutant(
        "Newton's residual may be 1e5 times larger",
        "lyapflow/newton.py",
        "torch.full_like(residual, tolerance))",
        "torch.full_like(residual, 1e5 * tolerance))",
        NEWTON,
    ),
    Mutant(
        "damping is left in the curvature",
        "lyapflow/newton.py",
        "smallest=curvature.smallest - damping",
        "smallest=curvature.smallest",
        NEWTON,
    ),
    Mutant(
        "rounding excuses a million times more",
        "solvers/method/dissipative.py",
        "-due > 4 * start.rounding",
        "-due > 4e6 * start.rounding",
        DISSIPATIVE,
    ),
    Mutant(
        "an infinite energy at the start is taken",
        "solvers/method/dissipative.py",
        "hopeless = ~torch.isfinite(start.energy)",
        "hopeless = torch.zeros_like(start.energy, dtype=torch.bool)",
        DISSIPATIVE,
    ),
    Mutant(
        "steps shrink without a limit",
        "solvers/method/dissipative.py",
        "-slope / (2 * bend), 0.1).clamp(0.1, 0.5)",
        "-slope / (2 * bend), 0.1).clamp(1e-12, 0.5)",
        DISSIPATIVE,
    ),
    Mutant(
        "a system that cannot move is not at rest",
        "solvers/method/dissipative.py",
        "resting = pending | stuck",
        "resting = pending",
        DISSIPATIVE,
    ),
    Mutant(
        "the plain step may climb",
        "solvers/method/dissipative.py",
        "systems.spread(share.clamp(max=0))",
        "systems.spread(share)",
        DISSIPATIVE,
    ),
    Mutant(
        "a growing field has a slope upwards",
        "solvers/method/dissipative.py",
        "systems.inner(gradient, f0).clamp(max=0)",
        "systems.inner(gradient, f0)",
        DISSIPATIVE,
    ),
    Mutant(
        "an accepted step may shrink the next",
        "solvers/controllers.py",
        "grown.clamp(1.0, self.ifactor)",
        "grown.clamp(0.5, self.ifactor)",
        CONTROL,
    ),
    Mutant(
        "a proposal that was cut short is forgotten",
        "solvers/controllers.py",
        "torch.where(fits, torch.maximum(size * factor, proposal), size * factor)",
        "size * factor",
        CONTROL,
    ),
    Mutant(
        "the first step is not capped",
        "solvers/controllers.py",
        "return dt0.clamp(self.min_step, self.max_step)",
        "return dt0",
        CONTROL,
    ),
    Mutant(
        "rejected systems are not moved back",
        "solvers/loop.py",
        "y_new = torch.where(spread, y_new, state.y)",
        "y_new = y_new",
        CONTROL,
    ),
    Mutant(
        "the mean has no seed",
        "lyapflow_graph/tango_parts.py",
        "seed = None if share is None else share[graphs.graph_of_node]",
        "seed = None",
        ("tests/lyapflow_graph/test_whole_kernels.py",),
    ),
    Mutant(
        "all epochs draw the same",
        "lyapflow_graph/training/callback.py",
        "seed_everything(self.config.seed, len(self.history) + 1, trainer.global_rank)",
        "seed_everything(self.config.seed, 1, trainer.global_rank)",
        ("tests/lyapflow_graph/training/test_runs.py",),
    ),
    Mutant(
        "a worker without a name lives",
        "lyapflow_graph/sweeping/trials.py",
        "if worker is None or not",
        "if worker is not None and not",
        ("tests/lyapflow_graph/sweeping/test_runs.py",),
    ),
    Mutant(
        "code from files is imported",
        "lyapflow/importing.py",
        "if isinstance(path, NameFromFile):",
        "if False:",
        ("tests/lyapflow_graph/training/test_hostile.py",),
    ),
)


def survives(mutant: Mutant) -> bool:
    """Whether the tests pass although the code is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            elif (ROOT / part).exists():
                shutil.copy(ROOT / part, copy / part)
        path = copy / mutant.path
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            sys.exit(f"{mutant.path} has {text.count(mutant.old)} times {mutant.old!r}: bring the list up to date")
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *mutant.tests]
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        try:
            ran = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return False  # a loop without an end is noticed
        if ran.returncode not in (0, 1):
            sys.exit(f"the tests of {mutant.about!r} do not run:\n{ran.stdout.decode()[-2000:]}")
        return ran.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Break the code in known ways and see which tests notice.")
    parser.add_argument("-k", default="", help="only mutants whose file or description has this text")
    chosen = [one for one in MUTANTS if parser.parse_args().k in f"{one.path} {one.about}"]
    begin, alive = time.perf_counter(), []
    for mutant in chosen:
        if survives(mutant):
            alive.append(mutant)
        print(f"{'SURVIVES' if mutant in alive else 'killed':8} {mutant.path}: {mutant.about}", flush=True)
    minutes = (time.perf_counter() - begin) / 60
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants killed in {minutes:.0f} minutes")
    if len(chosen) == len(MUTANTS):
        _write(alive, minutes)


def _write(alive: list[Mutant], minutes: float) -> None:
    lines = ["# Mutants", "", "Written by `make mutants`; the list is in `tests/mutants.py`.", ""]
    killed = len(MUTANTS) - len(alive)
    lines += [f"{killed} of {len(MUTANTS)} mutants are killed by the tests next to them ({minutes:.0f} minutes).", ""]
    lines += ["| file | what is wrong | |", "| --- | --- | --- |"]
    lines += [f"| `{one.path}` | {one.about} | {'survives' if one in alive else 'killed'} |" for one in MUTANTS]
    (ROOT / "tests" / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
