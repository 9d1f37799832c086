"""Fixed steps inside `torch.compile`.

Claim: `solve` with a fixed step size works inside `torch.compile(fullgraph=True)`, and its states and gradients equal
those of the uncompiled call up to rounding: at most 1e-5 of the largest value.

The speed is shown beside it, and that of torchdiffeq, which does not compile. All steps become one graph, so compiling
takes long and grows with the number of steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torchdiffeq
from fields import SmallNetwork
from report import Claim, largest, main, print_table, smallest
from timing import interleave
from torch import Tensor

from solvers import solve

STEPS = {"euler": 20, "rk4": 10}
EAGER, COMPILED, TORCHDIFFEQ = "eager", "compiled", "torchdiffeq"

Pass = Callable[[Callable[[Tensor], Tensor]], Callable[[], tuple[Tensor, ...]]]


def passes(field: SmallNetwork) -> dict[str, Pass]:
    parameters = list(field.parameters())

    def forward(run: Callable[[Tensor], Tensor]) -> Callable[[], tuple[Tensor, ...]]:
        def timed() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return (run(field.y0),)

        return timed

    def forward_and_backward(run: Callable[[Tensor], Tensor]) -> Callable[[], tuple[Tensor, ...]]:
        return lambda: torch.autograd.grad(run(field.y0).square().sum(), parameters)

    return {"forward": forward, "forward+backward": forward_and_backward}


def difference(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> float:
    """The largest difference, in units of the largest value."""
    scale = max(float(b.abs().max()) for b in wanted)
    return max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True)) / scale


def measure(rounds: int) -> list[Claim]:
    field = SmallNetwork()
    differences: dict[str, float] = {}
    faster: dict[str, float] = {}
    rows = []
    for method, steps in STEPS.items():

        def run(y0: Tensor, method: str = method, steps: int = steps) -> Tensor:
            return solve(field, y0, 0.0, 1.0, method=method, dt0=1.0 / steps).y1

        def theirs(y0: Tensor, method: str = method, steps: int = steps) -> Tensor:
            options = {"step_size": 1.0 / steps}
            return torchdiffeq.odeint(field, y0, torch.tensor([0.0, 1.0]), method=method, options=options)[-1]

        for what, prepare in passes(field).items():
            case = f"{method}, {steps} steps, {what}"
            torch.compiler.reset()
            eager, compiled = prepare(run), prepare(torch.compile(run, fullgraph=True))
            begin = time.perf_counter()
            try:
                differences[case] = difference(compiled(), eager())
            except Exception as error:  # whatever the compiler stumbles over, the benchmark says so and goes on
                print(f"\n{case}: does not compile:\n{error}")
                return [Claim("compiled minus eager, relative to the largest value", float("nan"), 1e-5, unit="")]
            seconds = time.perf_counter() - begin
            timings = interleave({EAGER: eager, COMPILED: compiled, TORCHDIFFEQ: prepare(theirs)}, rounds)
            times = [f"{1e3 * timings.median(name):.2f}" for name in (EAGER, COMPILED, TORCHDIFFEQ)]
            ratio = f"{timings.ratio(COMPILED, EAGER):.2f}x"
            faster[case] = timings.ratio(TORCHDIFFEQ, COMPILED)
            rows.append([case, f"{differences[case]:.1e}", *times, ratio, f"{faster[case]:.2f}x", f"{seconds:.0f}"])
    header = (
        "compiled with fullgraph=True", "difference", "eager ms", "compiled ms", "torchdiffeq ms", "compiled/eager",
        "torchdiffeq/compiled", "compiling s",
    )  # fmt: skip
    print_table("Fixed steps inside torch.compile", header, rows)
    return [
        largest("compiled minus eager, relative to the largest value", differences, at_most=1e-5, unit=""),
        smallest("compiled solve faster than torchdiffeq", faster),
    ]


if __name__ == "__main__":
    main(__doc__, measure)
