"""What can be wrong with files."""

from __future__ import annotations


class MissingDataError(FileNotFoundError):
    """Files of a data set are not there. The message says which, where they belong, and how to get them.

    >>> from lyapflow_graph.data import MissingDataError, load
    >>> try:
    ...     load("questions", "no-such-folder")
    ... except MissingDataError as error:
    ...     print(str(error).splitlines()[0])
    the files of 'questions' are not under no-such-folder; any of these would do:
    """


class DamagedDataError(ValueError):
    """A file is not what it should be: its checksum differs, it cannot be read, or it would run code when read.

    >>> import pathlib, tempfile
    >>> from lyapflow_graph.data import DamagedDataError, load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "graphs.npz")
    ...     _ = file.write_bytes(b"no archive")
    ...     try:
    ...         load(folder)
    ...     except DamagedDataError as error:
    ...         print(str(error).replace(folder, "FOLDER"))
    FOLDER/graphs.npz cannot be read: it is no npz file
    """
