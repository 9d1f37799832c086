"""A bar for what takes time, where Rich is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], total: int, about: str, shown: bool) -> Iterator[T]:
    """The same items, with a bar on the terminal while they are taken.

    >>> from lyapflow_graph.data.progress import track
    >>> list(track("abc", total=3, about="letters", shown=False))
    ['a', 'b', 'c']
    """
    if not shown or importlib.util.find_spec("rich") is None:
        yield from items
        return
    from rich.console import Console
    from rich.progress import track as bar

    yield from bar(items, total=total, description=about, console=Console(stderr=True), transient=True)
