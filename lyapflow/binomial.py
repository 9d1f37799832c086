"""Confidence bounds for a share, from counts."""

from __future__ import annotations

import math
from collections.abc import Callable


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval for a share of which `hits` of `trials` independent draws were seen.

    It covers the true share with at least the given confidence, also for no hits at all or few trials.

    >>> low, high = clopper_pearson(0, 100)
    >>> low, round(high, 4)
    (0.0, 0.0362)
    """
    if trials < 1 or not 0 <= hits <= trials:
        raise ValueError(f"hits must lie between 0 and trials, trials be positive; got {hits} of {trials}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else _bisect(lambda p: 1 - _at_most(hits - 1, trials, p) < tail)
    high = 1.0 if hits == trials else _bisect(lambda p: _at_most(hits, trials, p) > tail)
    return low, high


def _at_most(hits: int, trials: int, share: float) -> float:
    """The probability of no more than `hits` in `trials`."""
    if share <= 0:
        return 1.0
    if share >= 1:
        return float(hits >= trials)
    log_share, log_rest = math.log(share), math.log1p(-share)
    whole = math.lgamma(trials + 1)
    logs = (
        whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * log_share + (trials - k) * log_rest
        for k in range(hits + 1)
    )
    return min(1.0, math.fsum(math.exp(x) for x in logs))


def _bisect(is_below: Callable[[float], bool]) -> float:
    """Where a condition that holds from 0 on ceases to hold."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if is_below(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2
