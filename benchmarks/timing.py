"""Times of several functions from one interleaved run.

Two functions timed one after the other are measured under different conditions: clock rates and other programs change
in between. So every function runs once in each round, in an order that changes from round to round, and what is
reported is the median of the ratios *within* the rounds.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

MIN_ROUNDS = 15
DEFAULT_ROUNDS = 31
_WARM_UP_ROUNDS = 3


class Stopwatch:
    """Counts the calls of a function and the time spent in them.

    >>> watch = Stopwatch()
    >>> watch.around(abs)(-1), watch.calls
    (1, 1)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.calls = 0
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function under the watch."""

        def watched(*args: Any) -> Any:
            begin = time.perf_counter()
            result = function(*args)
            self.seconds += time.perf_counter() - begin
            self.calls += 1
            return result

        return watched


@dataclasses.dataclass(frozen=True)
class Timings:
    """Seconds of every function in every round."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def spread(self, name: str) -> float:
        """The distance between the quartiles, as a part of the median."""
        low, _, high = statistics.quantiles(self.seconds[name], n=4)
        return (high - low) / self.median(name)

    def ratio(self, name: str, reference: str) -> float:
        """The median over rounds of the time of `name` in units of that of `reference`."""
        pairs = zip(self.seconds[name], self.seconds[reference], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def row(self, name: str, *references: str) -> list[str]:
        """Cells of a table: the time, its spread, and the ratio to each reference."""
        ratios = [f"{self.ratio(name, reference):.2f}x" for reference in references]
        return [name, f"{1e3 * self.median(name):.2f}", f"{self.spread(name):.0%}", *ratios]


def interleave(
    functions: Mapping[str, Callable[[], object]],
    rounds: int = DEFAULT_ROUNDS,
    without: Stopwatch | None = None,
    least: int = MIN_ROUNDS,
    warm_up: int = _WARM_UP_ROUNDS,
) -> Timings:
    """Time every function in every round; time counted by the watch `without` is taken out.

    Functions that take seconds need fewer rounds (`least`) and less warming up than those that take microseconds.
    """
    if rounds < least:
        raise ValueError(f"rounds must be at least {least}, got {rounds}")
    torch.set_num_threads(1)
    names = list(functions)
    for _ in range(warm_up):
        for name in names:
            functions[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for k in range(rounds):
            gc.collect()
            for name in _order(names, k):
                seconds[name].append(_time_once(functions[name], without))
    finally:
        if was_enabled:
            gc.enable()
    return Timings(seconds)


def _order(names: list[str], k: int) -> list[str]:
    """Another function begins in each round, and every other pass through them runs the other way."""
    shift, turned = k % len(names), (k // len(names)) % 2
    order = names[shift:] + names[:shift]
    return order[::-1] if turned else order


def _time_once(function: Callable[[], object], without: Stopwatch | None) -> float:
    if without is not None:
        without.reset()
    begin = time.perf_counter()
    result = function()
    end = time.perf_counter()
    del result  # after the clock has stopped: taking a graph apart is not part of what is compared
    return end - begin - (0.0 if without is None else without.seconds)
