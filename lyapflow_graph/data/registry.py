"""Data sets by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lyapflow.registry import Registry, meant

from . import barbells, gnn_benchmark, heterophilous, minesweeper, peptides, properties, sbm, superpixels, zinc
from .dataset import GraphDataset
from .encodings import with_encodings
from .entries import Entry, Request
from .options import check_number
from .own import from_folder, from_object
from .sources import default_root

_FAMILIES = (properties, sbm, minesweeper, barbells, heterophilous, zinc, peptides, superpixels, gnn_benchmark)
ENTRIES: Registry[Entry] = Registry("data set", lambda name, found: found)
"""All data sets by name. Those that are named as `module:object` or by a folder need no entry."""


def register_dataset(entry: Entry) -> Entry:
    """Add a data set, so that :func:`load`, configurations and `lyapflow data list` know it by its name.

    Args:
        entry: Its name, a line about it, and the function that makes it from a :class:`Request` and its options.

    >>> from lyapflow_graph.data import Entry, GraphDataset, register_dataset
    >>> def make(request, *, graphs: int = 10):
    ...     return GraphDataset("rings", "graph", [], [], [], 2, 1, None, "l1", "mae")
    >>> register_dataset(Entry("rings", "graphs that are rings", make)).splits
    1
    """
    return ENTRIES.add(entry.name, entry)


for _family in _FAMILIES:
    for _entry in _family.ENTRIES:
        register_dataset(_entry)


def names() -> list[str]:
    """The names that :func:`load` knows.

    >>> from lyapflow_graph.data import names
    >>> "zinc" in names(), len(names())
    (True, 26)
    """
    return list(ENTRIES)


def load(
    name: str,
    root: str | Path | None = None,
    *,
    split: int = 0,
    pe: Mapping[str, int] | None = None,
    download: bool = False,
    progress: bool = False,
    **options: Any,
) -> GraphDataset:
    """A data set with its protocol.

    Args:
        name: One of :func:`names`; or `module:object`, that is a :class:`GraphDataset`, a data set of PyTorch
            Geometric, a list of graphs, or a callable that makes one of these; or a folder of npz files.
        root: The folder for files and caches; :func:`default_root` if not given.
        split: Which, where there are several.
        pe: Positional encodings that every graph shall have, and their widths: `{"random_walk_pe": 20}`.
        download: Whether PyTorch Geometric may use the network, if files are missing.
        progress: Show bars while graphs are made.
        options: Of the data set; those of generated sets are `graphs` and `seed`, and what the guide says.

    >>> from lyapflow_graph.data import load
    >>> grid = load("minesweeper-grid", size=10, pe={"random_walk_pe": 4})
    >>> grid.train[0]
    Data(x=[100, 7], edge_index=[2, 684], y=[100, 1], mask=[100], random_walk_pe=[100, 4])
    """
    root = default_root() if root is None else Path(root).expanduser()
    check_number("split", split, least=0)
    request = Request(root, split, download, progress)
    dataset = _from_registry(name, request, options) if name in ENTRIES else _own(name, split, options)
    return with_encodings(dataset, pe, root, progress) if pe else dataset


def _from_registry(name: str, request: Request, options: dict[str, Any]) -> GraphDataset:
    entry = ENTRIES[name]
    check_number(f"split of {name}", request.split, least=0, most=entry.splits - 1)
    known = [option for option in inspect.signature(entry.make).parameters if option != "request"]
    for option in options:
        if option not in known:
            raise TypeError(f"{name} has no option {option!r}; it has {', '.join(known) or 'none'}")
    return entry.make(request, **options)


def _own(name: str, split: int, options: dict[str, Any]) -> GraphDataset:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return from_folder(folder, split, options)
    module, _, inside = name.partition(":")
    if not module or not inside:
        wanted = "a data set, module:object or a folder of npz files"
        raise ValueError(f"name must be {wanted}, got {name!r}; {meant(name, ENTRIES)}")
    return from_object(name, split, options)
