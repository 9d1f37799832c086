"""A progress bar on the terminal, without dependencies."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[float], None]

STEPS_BETWEEN_REPORTS = 16


def progress_bar(enabled: bool | Progress) -> Progress | None:
    """What `progress=` means: nothing, a bar on standard error, or a function of your own that gets the fraction."""
    if callable(enabled):
        return enabled
    return _Bar() if enabled else None


class _Bar:
    def __init__(self, width: int = 40) -> None:
        self.width = width
        self.start = time.perf_counter()
        self.shown = -1.0

    def __call__(self, fraction: float) -> None:
        # A terminal is slow: draw steps of one per cent and the end, nothing between. A file gets the end alone.
        if fraction < 1 and (fraction - self.shown < 0.01 or not sys.stderr.isatty()):
            return
        self.shown = fraction
        filled = int(self.width * fraction)
        bar = "#" * filled + "." * (self.width - filled)
        seconds = time.perf_counter() - self.start
        end = "\n" if fraction >= 1 else ""
        print(f"\r[{bar}] {int(100 * fraction):3d} % {seconds:6.1f} s", end=end, file=sys.stderr, flush=True)
