"""Files read with their checksums, and without running code that may be in them."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from .errors import DamagedDataError

Digest = Literal["sha256", "md5"]


def check_digest(path: Path, content: bytes, kind: Digest, expected: str) -> None:
    """That the content is what was published."""
    found = hashlib.new(kind, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DamagedDataError(f"{path} is damaged or another file: its {kind} is {found}, expected {expected}")


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file. Arrays of Python objects, which are pickled, are refused."""
    try:
        if path.exists() and not zipfile.is_zipfile(path):
            raise DamagedDataError(f"{path} cannot be read: it is no npz file")
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (FileNotFoundError, DamagedDataError):
        raise
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedDataError(f"{path} cannot be read: {_line(error)}") from None


def unpack(path: Path, content: bytes) -> bytes:
    """What a compressed file holds, given its content."""
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
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
    except (RuntimeError, EOFError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise DamagedDataError(f"{path} cannot be read: {_line(error)}") from None


def read_pickle(path: Path) -> Any:
    """What `pickle.dump` wrote, if it is made of containers, numbers, arrays and tensors only."""
    try:
        return _Restricted(io.BytesIO(path.read_bytes())).load()
    except FileNotFoundError:
        raise
    except pickle.UnpicklingError as error:
        raise DamagedDataError(f"{path} is damaged, or holds objects that could run code: {_line(error)}") from None
    except (EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError, RuntimeError, ImportError) as error:
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
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _storage(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True)


def _line(error: Exception) -> str:
    """The beginning of an error's text, without advice that is not for the user."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
