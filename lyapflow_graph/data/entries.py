"""What the registry knows about a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from .dataset import GraphDataset
from .sources import Source


@final
@dataclass(frozen=True)
class Request:
    """What every data set is asked with, beside its own options.

    Args:
        root: The folder for files and caches.
        split: Which of several splits.
        download: Whether PyTorch Geometric may use the network.
        progress: Whether to show bars.

    >>> from lyapflow_graph.data import Request
    >>> Request(Path("data")).split
    0
    """

    root: Path
    split: int = 0
    download: bool = False
    progress: bool = False


@final
@dataclass(frozen=True)
class Entry:
    """A data set of the registry.

    Args:
        name: What it is asked for by.
        about: In a line.
        make: Called as `make(request, **options)`; its keyword arguments are the options.
        sources: The files that it is read from, any of which will do; nothing, if it is generated.
        splits: How many there are.

    >>> from lyapflow_graph.data.registry import ENTRIES
    >>> ENTRIES["minesweeper"].splits
    10
    """

    name: str
    about: str
    make: Callable[..., GraphDataset]
    sources: tuple[Source, ...] = ()
    splits: int = 1

    def available(self, root: Path) -> bool:
        """Whether it is generated, or its files are there."""
        return not self.sources or any(not source.missing(root) for source in self.sources)
