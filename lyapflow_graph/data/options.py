"""Options are checked before any work is done."""

from __future__ import annotations

from collections.abc import Sequence


def check_number(argument: str, value: object, least: int, most: int | None = None) -> None:
    """That it is a whole number within bounds.

    >>> from lyapflow_graph.data.options import check_number
    >>> check_number("seed", -1, least=0)
    Traceback (most recent call last):
    ValueError: seed must be a whole number from 0 on, got -1
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise ValueError(f"{argument} must be a whole number {bounds}, got {value!r}")


def check_choice(argument: str, value: object, choices: Sequence[str]) -> None:
    """That it is one of the choices.

    >>> from lyapflow_graph.data.options import check_choice
    >>> check_choice("scale", "big", ("raw", "normalised"))
    Traceback (most recent call last):
    ValueError: scale must be one of raw, normalised; got 'big'
    """
    if value not in choices:
        raise ValueError(f"{argument} must be one of {', '.join(choices)}; got {value!r}")
