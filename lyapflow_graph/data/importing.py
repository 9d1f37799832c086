"""Files that you have, put where data sets look for them."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from .cache import write_atomically
from .errors import DamagedDataError
from .progress import track
from .reading import UNREADABLE, check_size
from .registry import ENTRIES
from .sources import SourceFile, default_root


@final
@dataclass(frozen=True)
class Imported:
    """What became of a file that was recognised.

    Args:
        found: Where it was.
        path: Where it belongs, below the root.
        outcome: Whether it is there now.
        reason: Why it is not.
    """

    found: Path
    path: str
    outcome: Literal["imported", "already there", "refused"]
    reason: str = ""


def import_files(folder: str | Path, root: str | Path | None = None, *, progress: bool = False) -> list[Imported]:
    """Look through a folder, and the zip files in it, for files of data sets, and copy them to the root.

    Files are recognised by their names. Those whose checksum is known are checked, and refused if it differs.

    Args:
        folder: Anywhere.
        root: The folder for files and caches; :func:`default_root` if not given.
        progress: Show a bar.

    >>> import tempfile
    >>> from lyapflow_graph.data import import_files
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     import_files(folder)
    []
    """
    folder = Path(folder).expanduser().resolve()
    root = default_root() if root is None else Path(root).expanduser()
    if not folder.is_dir():
        raise NotADirectoryError(f"folder must be a folder, got {str(folder)!r}")
    known = _known_files()
    candidates = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [
        _place(found, content, file, root)
        for path in track(candidates, len(candidates), "looking for data", progress)
        for found, content, file in _recognised(path, known)
    ]


def _known_files() -> list[SourceFile]:
    files = {file.path: file for entry in ENTRIES.values() for source in entry.sources for file in source.files}
    return list(files.values())


def _recognised(path: Path, known: list[SourceFile]) -> Iterator[tuple[Path, bytes, SourceFile]]:
    """The file if it is of a data set, or the members of a zip file that are."""
    if path.suffix != ".zip":
        for file in known:
            if _matches(path, file):
                yield path, path.read_bytes(), file
        return
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                for file in known:
                    if _matches(path.parent / member.filename, file):
                        check_size(member.compress_size, member.file_size)
                        yield path / member.filename, archive.read(member), file
    except UNREADABLE:
        return  # some other file of that name, or one that is not whole: nothing in it can be recognised


def _matches(path: Path, file: SourceFile) -> bool:
    return any(path.as_posix().endswith(f"/{end}") for end in file.found_as)


def _place(found: Path, content: bytes, file: SourceFile, root: Path) -> Imported:
    target = root / file.path
    try:
        file.check_content(found, content)
    except DamagedDataError as error:
        return Imported(found, file.path, "refused", str(error))
    if target.is_file() and target.read_bytes() == content:
        return Imported(found, file.path, "already there")
    write_atomically(target, content)
    return Imported(found, file.path, "imported")
