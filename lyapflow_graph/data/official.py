"""Files as the loaders of PyTorch Geometric keep them, read without running code that may be in them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from zipfile import BadZipFile

import filelock
import torch
from torch import Tensor
from torch_geometric.data import InMemoryDataset

from .entries import Request
from .errors import DamagedDataError
from .graphs import GraphSet
from .reading import read_npz, read_pickle, read_torch
from .sources import Source, find_source, missing_error


def processed_by(
    loader: type[InMemoryDataset], name: str, sources: tuple[Source, ...], request: Request, /, **arguments: object
) -> Source:
    """The source to read from, after the loader of PyTorch Geometric has done its work, where it has any.

    Args:
        loader: The data set of PyTorch Geometric, which processes raw files, and first downloads those missing.
        name: Of the data set.
        sources: The first is what the loader writes, the second what it writes it from; others are not its own.
        request: Says where, and whether the network may be used.
        arguments: Of the loader.
    """
    root, (processed, raw) = request.root, sources[:2]
    if not processed.missing(root):
        return processed
    if raw.missing(root) and not request.download:
        return find_source(name, sources, root)
    folder = (root / raw.files[0].path).parent.parent
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / "processing.lock"):
        if processed.missing(root):
            _process(_guarded(loader, raw, root), name, sources, root, arguments)
    return processed


def read_processed(path: Path) -> GraphSet:
    """The graphs of a file that `InMemoryDataset.save` wrote."""
    content = read_torch(path)
    try:
        data, pointers = content[:2]
        tensors = data if isinstance(data, dict) else data.to_dict()
        tensors = {key: value for key, value in tensors.items() if isinstance(value, Tensor)}
        if pointers is None:  # of one graph
            pointers = {
                key: torch.tensor([0, len(value.mT if "index" in key else value)]) for key, value in tensors.items()
            }
        return GraphSet(tensors, {key: pointers[key] for key in tensors}, pointers["x"])
    except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
        raise DamagedDataError(f"{path} is no processed file of PyTorch Geometric: {error!r}") from None


_READERS: dict[str, Callable[[Path], object]] = {".pickle": read_pickle, ".pt": read_torch, ".npz": read_npz}


def _guarded(loader: type[InMemoryDataset], raw: Source, root: Path) -> type[InMemoryDataset]:
    """The loader, but raw files are checked before it reads them: it would unpickle whatever is there."""

    class Guarded(loader):
        def process(self) -> None:
            for file in raw.files:
                file.check(root)
                path = root / file.path
                if path.suffix in _READERS:
                    _READERS[path.suffix](path)
            super().process()

    return Guarded


def _process(
    loader: type[InMemoryDataset], name: str, sources: tuple[Source, ...], root: Path, arguments: dict[str, object]
) -> None:
    download = bool(sources[1].missing(root))
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # which the loaders write bars to
            loader(**arguments)
    except DamagedDataError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, EOFError, BadZipFile) as error:
        if download:
            reason = f"The download failed: {type(error).__name__}: {error}"
            raise missing_error(name, sources, root, reason) from error
        files = ", ".join(str(root / file.path) for file in sources[1].files)
        raise DamagedDataError(f"PyTorch Geometric cannot process {files}: {type(error).__name__}: {error}") from error
