"""Files that are there as a whole or not at all, and tensors in files that run no code when they are read."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from .schema import leaves_of

_MARK = b"\nsha256 "
_TRAILER = len(_MARK) + 64
_SHARED = 8  # tensors that share memory, as those of one checkpoint do, may have as many times the bytes of their file


class DamagedError(ValueError):
    """A file is not what was written into it.

    >>> from lyapflow_graph.training import DamagedError
    >>> issubclass(DamagedError, ValueError)
    True
    """


def write(path: Path, content: bytes | str) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one.

    A full disk leaves the old one, and is told with what to do.
    """
    content = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # never through a link that somebody put there
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        kept = f"the old {path.name} is as it was" if path.exists() else f"there is no {path.name}"
        what = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        raise OSError(error.errno, f"cannot write {path}: {what}; {kept}") from error
    _sync_folder(path.parent)


def read(path: Path) -> bytes:
    """The content of a file. A pipe or a device, which may never end, is refused."""
    if path.exists() and not path.is_file():
        raise DamagedError(f"{path} is not a file")
    return path.read_bytes()


def refuse_links(folder: Path) -> None:
    """That no file in a folder is a link: what is written there would go elsewhere."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise DamagedError(f"{path} is a symbolic link, and what a run writes there would go elsewhere; remove it")


def remove_leftovers(folder: Path) -> None:
    """What was being written when a process was killed."""
    for file in folder.glob(".*.tmp"):
        file.unlink(missing_ok=True)


def save_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """Write nested dictionaries and lists of tensors, numbers and texts, with a checksum behind them.

    `torch.load(path, weights_only=True)` reads the file as well, without looking at the checksum.
    """
    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    body = buffer.getvalue()
    write(path, body + _MARK + hashlib.sha256(body).hexdigest().encode())


def load_tensors(path: Path) -> dict[str, Any]:
    """Read what :func:`save_tensors` wrote; anything else is refused before a byte of it is understood.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "state.pt")
    >>> save_tensors(file, {"weight": torch.ones(2), "epoch": 3})
    >>> load_tensors(file)
    {'weight': tensor([1., 1.]), 'epoch': 3}
    >>> _ = file.write_bytes(file.read_bytes()[:-100])
    >>> load_tensors(file)
    Traceback (most recent call last):
    lyapflow_graph.training.files.DamagedError: ... is damaged: it does not end with a checksum
    """
    content = read(path)
    body, trailer = content[:-_TRAILER], content[-_TRAILER:]
    if not trailer.startswith(_MARK):
        raise DamagedError(f"{path} is damaged: it does not end with a checksum")
    if hashlib.sha256(body).hexdigest().encode() != trailer[len(_MARK) :]:
        raise DamagedError(f"{path} is damaged: its checksum is not that of its content")
    try:
        _check_archive(body)
        found = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
        _check_tensors(leaves_of(found, (Tensor, str, int, float, NoneType)), len(body))
    except Exception as error:  # there is no end to what a pickle that was made to do harm can raise
        raise DamagedError(f"{path} was not written by lyapflow: {error}") from error
    if not isinstance(found, dict):
        raise DamagedError(f"{path} must hold a dictionary, got {type(found).__name__}")
    return found


def _check_archive(body: bytes) -> None:
    """That nothing in it is compressed: then it takes no more memory than its file has bytes."""
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.file_size > len(body):
                raise DamagedError(f"its part {member.filename!r} is compressed, or larger than the file")


def _check_tensors(leaves: list[Any], size: int) -> None:
    """That tensors are plain ones in memory, and hold no more than the file has."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_nested:
            raise DamagedError("it holds a tensor that is no plain array")
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if total > _SHARED * size:
        raise DamagedError(f"its tensors claim {total:,} bytes, but the file has {size:,}")


def _sync_folder(folder: Path) -> None:
    """So that the new name survives a loss of power as well."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
