"""Files read with their checksums, and without running code that may be in them."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import pickle
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch

from .errors import DamagedDataError

Digest = Literal["sha256", "md5"]
_RATIO = 250  # of a compressed file to what it holds, which real data stays below
_HARMLESS = 2**28  # bytes, below which any ratio is taken
UNREADABLE = (
    OSError, ValueError, TypeError, ArithmeticError, LookupError, EOFError, RuntimeError, MemoryError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def check_digest(path: Path, content: bytes, kind: Digest, expected: str) -> None:
    """That the content is what was published."""
    found = hashlib.new(kind, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DamagedDataError(f"{path} is damaged or another file: its {kind} is {found}, expected {expected}")


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file. Arrays of Python objects, which are pickled, are refused."""
    if path.exists() and not path.is_file():
        raise DamagedDataError(f"{path} is not a file")
    try:
        with path.open("rb") as file:
            return read_arrays(file)
    except FileNotFoundError:
        raise
    except zipfile.BadZipFile:
        raise DamagedDataError(f"{path} cannot be read: it is no npz file") from None
    except UNREADABLE as error:
        raise DamagedDataError(f"{path} cannot be read: {_line(error)}") from None


def read_arrays(file: BinaryIO) -> dict[str, np.ndarray]:
    """The arrays of an npz file, which claims no more memory than its bytes can be worth."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        check_size(sum(member.compress_size for member in members), sum(member.file_size for member in members))
        for member in members:
            _check_claim(archive, member)
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def check_size(packed: int, unpacked: int) -> None:
    """That compressed content is not a bomb: a few bytes that unpack to more than memory has."""
    if unpacked > _HARMLESS and unpacked > _RATIO * packed:
        raise ValueError(f"{packed:,} bytes unpack to {unpacked:,}, more than {_RATIO} times; save it uncompressed")


def _check_claim(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """That an array is as large as its part of the file: NumPy takes the memory for it before it reads it."""
    with archive.open(member) as part:
        version = np.lib.format.read_magic(part)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(part)
        claimed = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and claimed > member.file_size:
            raise ValueError(f"{member.filename} claims {claimed:,} bytes, but has {member.file_size:,}")


def unpack(path: Path, content: bytes) -> bytes:
    """What a compressed file holds, given its content."""
    most = max(_HARMLESS, _RATIO * len(content))
    try:
        with gzip.open(io.BytesIO(content)) as file:
            found = file.read(most + 1)
        check_size(len(content), len(found))
        return found
    except UNREADABLE as error:
        raise DamagedDataError(f"{path} cannot be read: {error}") from None


def read_torch(path: Path) -> Any:
    """What `torch.save` wrote, if it is made of tensors and of classes that PyTorch Geometric vouches for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch wonders about pickles that it then refuses
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except pickle.UnpicklingError as error:
        raise DamagedDataError(f"{path} is damaged, or holds objects that could run code: {_line(error)}") from None
    except UNREADABLE as error:
        raise DamagedDataError(f"{path} cannot be read: {_line(error)}") from None


def read_pickle(path: Path) -> Any:
    """What `pickle.dump` wrote, if it is made of containers, numbers, arrays and tensors only."""
    try:
        return _Restricted(io.BytesIO(path.read_bytes())).load()
    except FileNotFoundError:
        raise
    except pickle.UnpicklingError as error:
        raise DamagedDataError(f"{path} is damaged, or holds objects that could run code: {_line(error)}") from None
    except (*UNREADABLE, AttributeError, ImportError) as error:
        raise DamagedDataError(f"{path} cannot be read: {_line(error)}") from None


class _Restricted(pickle.Unpickler):
    """Knows only what arrays and tensors are made of."""

    _KNOWN = frozenset(
        {
            ("collections", "OrderedDict"),
            ("numpy", "dtype"),
            ("numpy", "ndarray"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy.core.multiarray", "scalar"),
            ("numpy._core.multiarray", "scalar"),
            ("torch._utils", "_rebuild_tensor_v2"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage  # torch's own would unpickle anything
        if name == "_reconstruct" and (module, name) in self._KNOWN:
            return _empty  # NumPy's own takes as much memory as it is told
        if (module, name) == ("numpy", "ndarray"):
            return _Array
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


class _Array:
    """Stands for the class of arrays, which a pickle only names."""


def _empty(kind: type, shape: tuple[int, ...], code: bytes) -> np.ndarray:
    """An array before its content, which NumPy then checks against the bytes that there are."""
    return np.empty(0, dtype=np.int8)


def _storage(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True)


def _line(error: Exception) -> str:
    """The beginning of an error's text, without advice that is not for the user."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
