"""Where the files of data sets belong, what they should be, and how to get them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import final

from .errors import MissingDataError
from .reading import Digest, check_digest, unpack


def default_root() -> Path:
    """The folder for files and caches: `$LYAPFLOW_ROOT`, or `~/.cache/lyapflow`.

    >>> from lyapflow_graph.data import default_root
    >>> default_root().is_absolute()
    True
    """
    return Path(os.environ.get("LYAPFLOW_ROOT") or Path.home() / ".cache" / "lyapflow").expanduser().absolute()


@final
@dataclass(frozen=True)
class SourceFile:
    """A file that a data set is read from.

    Args:
        path: Below the root.
        found_as: The ends of the paths that it may be imported from, as `("molecules/train.pickle",)`.
        digest: What its content should hash to, where that is known.
        kind: Of the digest.
        unpacked: The digest is of the content of a compressed file, which may be compressed in many ways.
    """

    path: str
    found_as: tuple[str, ...]
    digest: str | None = None
    kind: Digest = "sha256"
    unpacked: bool = False

    def check(self, root: Path) -> None:
        """That the file under the root is the right one, as far as that is known."""
        if self.digest is not None:
            self.check_content(root / self.path, (root / self.path).read_bytes())

    def check_content(self, path: Path, content: bytes) -> None:
        """The same of content that was found at some path."""
        if self.digest is not None:
            check_digest(path, unpack(path, content) if self.unpacked else content, self.kind, self.digest)

    def __str__(self) -> str:
        of = "the unpacked file " if self.unpacked else ""
        return self.path if self.digest is None else f"{self.path} ({of}{self.kind} {self.digest})"


@final
@dataclass(frozen=True)
class Source:
    """Files that together are enough for a data set.

    Args:
        about: What they are.
        files: All that are needed.
        published: Where they come from.
        downloaded: Whether the loader of PyTorch Geometric can fetch them.
    """

    about: str
    files: tuple[SourceFile, ...]
    published: str
    downloaded: bool = False

    def missing(self, root: Path) -> list[SourceFile]:
        return [file for file in self.files if not (root / file.path).is_file()]


def find_source(name: str, sources: tuple[Source, ...], root: Path) -> Source:
    """The first source whose files are all there.

    Args:
        name: Of the data set.
        sources: In the order of preference.
        root: The folder to look in.
    """
    for source in sources:
        if not source.missing(root):
            return source
    raise missing_error(name, sources, root)


def missing_error(name: str, sources: tuple[Source, ...], root: Path, reason: str = "") -> MissingDataError:
    """Which files are missing, where they belong, where they come from and what to do."""
    lines = [f"the files of {name!r} are not under {root}; any of these would do:"]
    for source in sources:
        lines.append(f"- {source.about}, from {source.published}:")
        lines += [f"    missing: {root / str(file)}" for file in source.missing(root)]
    lines.append("Put them there, or in any folder and run: lyapflow data import FOLDER")
    if any(source.downloaded for source in sources):
        lines.append(f"With a network, load({name!r}, download=True) lets PyTorch Geometric fetch them.")
    return MissingDataError("\n".join([*lines, reason] if reason else lines))
