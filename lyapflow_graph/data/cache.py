"""Tensors that took time to make, kept in files."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import filelock
import numpy as np
import torch
from torch import Tensor

from .reading import UNREADABLE, read_arrays

_FORMAT = "lyapflow-cache 1"

Tensors = dict[str, Tensor]


def cached(root: Path, name: str, key: Mapping[str, object], make: Callable[[], Tensors]) -> Tensors:
    """What `make` gives, from a file if it was made before.

    Files are written whole or not at all, and checked when read: a damaged one is made again, with a warning. Of
    several processes one makes it, and the others wait. Without a folder that can be written to nothing is kept.

    Args:
        root: The folder above `cache/`.
        name: The beginning of the file's name.
        key: Everything that the tensors depend on, with a version of the code that makes them.
        make: Called if there is no good file.

    >>> import pathlib, tempfile, torch
    >>> from lyapflow_graph.data.cache import cached
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = cached(pathlib.Path(folder), "ones", {"count": 3}, lambda: {"x": torch.ones(3)})
    ...     cached(pathlib.Path(folder), "ones", {"count": 3}, lambda: 1 / 0)
    {'x': tensor([1., 1., 1.])}
    """
    text = json.dumps(dict(key), sort_keys=True)
    digest = hashlib.sha256(f"{_FORMAT} {text}".encode()).hexdigest()[:16]
    path = root / "cache" / f"{name.replace('/', '-')}-{digest}.bin"
    if (found := _read(path)) is not None:
        return found
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(filelock.FileLock(path.with_suffix(".lock")))
        except OSError as error:
            _not_kept(name, path, error)
            return make()
        if (found := _read(path, warn=False)) is not None:  # another process may have made it meanwhile
            return found
        found = make()
        try:
            write_atomically(path, _packed(found))
        except OSError as error:
            _not_kept(name, path, error)
        return found


def _not_kept(name: str, path: Path, error: OSError) -> None:
    warnings.warn(f"{path} cannot be written, so {name} is not kept: {error}", stacklevel=3)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that others see it whole or not at all, also if the machine stops."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # tempfile would make it private
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path, warn: bool = True) -> Tensors | None:
    try:
        content = path.read_bytes()
    except OSError:  # there is none, or no place for one
        return None
    header, _, payload = content.partition(b"\n")
    if header.decode(errors="replace") != _header(payload):
        if warn:
            warnings.warn(f"the cache {path} is damaged and is made again", stacklevel=3)
        return None
    try:
        # The name of an array is its number, the type it had, and its own name.
        found, arrays = {}, read_arrays(io.BytesIO(payload))
        for entry in sorted(arrays, key=lambda entry: int(entry.split(":")[0])):
            _, kind, name = entry.split(":", 2)
            found[name] = torch.from_numpy(arrays[entry]).to(_TYPES[kind])
        return found
    except UNREADABLE as error:
        if warn:
            warnings.warn(f"the cache {path} is not one and is made again: {error!r}", stacklevel=3)
        return None


_TYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


def _packed(tensors: Tensors) -> bytes:
    arrays = {}
    for place, (name, tensor) in enumerate(tensors.items()):
        kind = str(tensor.dtype).removeprefix("torch.")
        arrays[f"{place}:{kind}:{name}"] = _smallest(tensor.contiguous().numpy())
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    payload = buffer.getvalue()
    return _header(payload).encode() + b"\n" + payload


def _smallest(array: np.ndarray) -> np.ndarray:
    """Integers in the smallest type that holds them: numbers of nodes within a graph mostly need one byte."""
    if array.dtype.kind != "i" or array.size == 0:
        return array
    low, high = np.min_scalar_type(int(array.min())), np.min_scalar_type(int(array.max()))
    return array.astype(np.promote_types(low, high))


def _header(payload: bytes) -> str:
    return f"{_FORMAT} {hashlib.sha256(payload).hexdigest()}"
