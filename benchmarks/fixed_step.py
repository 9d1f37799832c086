"""Fixed steps cost what a hand-written loop costs.

Claim: 100 steps of `euler` and of `rk4` over a small network take at most 1.10 times as long as a hand-written loop,
and at most half as long as torchdiffeq, forward and forward+backward.

`rk4` is the 3/8 rule here, in torchdiffeq, and in the loop. The loop is written the natural way, with its times made
beforehand; all candidates compute the same numbers up to rounding. How much faster than torchdiffeq the loop itself is
bounds what any solver can reach without compiling; the time outside of the field shows the part that a solver decides.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torchdiffeq
from fields import SmallNetwork
from report import Claim, largest, main, print_table, smallest
from timing import Stopwatch, interleave
from torch import Tensor

from solvers import odeint, solve

STEPS = 100
DT = 1.0 / STEPS
HAND, OTHER = "hand-written loop", "torchdiffeq"

Field = Callable[[Tensor, Tensor], Tensor]
Integrate = Callable[[], Tensor]


def hand_written_euler(field: Field, y0: Tensor) -> Integrate:
    times = torch.linspace(0.0, 1.0, STEPS + 1).unbind()

    def run() -> Tensor:
        y = y0
        for i in range(STEPS):
            y = y + DT * field(times[i], y)
        return y

    return run


def hand_written_rk4(field: Field, y0: Tensor) -> Integrate:
    times = torch.linspace(0.0, 1.0, 3 * STEPS + 1).unbind()

    def run() -> Tensor:
        y = y0
        for i in range(0, 3 * STEPS, 3):
            k1 = field(times[i], y)
            k2 = field(times[i + 1], y + DT / 3 * k1)
            k3 = field(times[i + 2], y + DT * (k2 - k1 / 3))
            k4 = field(times[i + 3], y + DT * (k1 - k2 + k3))
            y = y + DT / 8 * (k1 + 3 * (k2 + k3) + k4)
        return y

    return run


def candidates(method: str, field: Field, y0: Tensor) -> dict[str, Integrate]:
    by_hand = {"euler": hand_written_euler, "rk4": hand_written_rk4}[method]
    ends = torch.tensor([0.0, 1.0])
    options = {"step_size": DT}
    return {
        HAND: by_hand(field, y0),
        "solve": lambda: solve(field, y0, 0.0, 1.0, method=method, dt0=DT).y1,
        "odeint": lambda: odeint(field, y0, ends, method=method, options=options)[-1],
        OTHER: lambda: torchdiffeq.odeint(field, y0, ends, method=method, options=options)[-1],
    }


def forward(run: Integrate) -> Callable[[], Tensor]:
    def timed() -> Tensor:
        with torch.no_grad():
            return run()

    return timed


def forward_and_backward(run: Integrate, field: SmallNetwork) -> Callable[[], tuple[Tensor, ...]]:
    parameters = list(field.parameters())
    return lambda: torch.autograd.grad(run().square().sum(), parameters)


def measure(rounds: int) -> list[Claim]:
    to_hand: dict[str, dict[str, float]] = {"solve": {}, "odeint": {}}
    to_other: dict[str, dict[str, float]] = {"solve": {}, "odeint": {}, HAND: {}}
    outside: dict[str, dict[str, float]] = {"solve": {}, "odeint": {}}
    field = SmallNetwork()
    for method in ("euler", "rk4"):
        runs = candidates(method, field, field.y0)
        for run in runs.values():
            torch.testing.assert_close(run(), runs[HAND](), rtol=1e-4, atol=1e-5)
        watch = Stopwatch()
        watched = candidates(method, watch.around(field), field.y0)
        timings = {
            "forward": interleave({n: forward(run) for n, run in runs.items()}, rounds),
            "forward+backward": interleave({n: forward_and_backward(run, field) for n, run in runs.items()}, rounds),
            "forward, outside of the field": interleave({n: forward(run) for n, run in watched.items()}, rounds, watch),
        }
        for what, of in timings.items():
            case = f"{method}, {what}"
            header = (case, "ms", "spread", "to hand-written", "to torchdiffeq")
            print_table(f"{case}: {STEPS} steps", header, [of.row(name, HAND, OTHER) for name in runs])
            if what.endswith("outside of the field"):
                for name in outside:
                    outside[name][method] = of.ratio(OTHER, name)
                continue
            for name in to_hand:
                to_hand[name][case] = of.ratio(name, HAND)
            for name in to_other:
                to_other[name][case] = of.ratio(OTHER, name)
    claims = []
    for name in to_hand:
        claims.append(largest(f"{name}'s time in units of the hand-written loop's", to_hand[name], at_most=1.10))
        claims.append(smallest(f"{name} faster than torchdiffeq", to_other[name], at_least=2.0))
        claims.append(smallest(f"{name} faster outside of the field, forward", outside[name]))
    claims.append(largest("the hand-written loop itself faster than torchdiffeq, at best", to_other[HAND]))
    return claims


if __name__ == "__main__":
    main(__doc__, measure)
