"""Where the trials of a sweep are kept: SQLite, PostgreSQL, or a journal."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

_WAIT = 60.0  # seconds for which SQLite waits while another worker writes


@contextmanager
def open_storage(url: str) -> Iterator[BaseStorage]:
    """The storage that is named by a URL, with its connections closed in the end.

    Args:
        url: `sqlite:///PATH`, `postgresql+psycopg://USER:PASSWORD@HOST/DATABASE` or `journal:PATH`.

    >>> with open_storage("mongodb://here"):
    ...     pass
    Traceback (most recent call last):
    ValueError: storage must be sqlite:///PATH, postgresql+psycopg://USER:PASSWORD@HOST/DATABASE or journal:PATH, ...
    """
    storage = _opened(url)
    try:
        yield storage
    finally:
        if isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()


def shown(url: str) -> str:
    """A URL without its password.

    >>> shown("postgresql+psycopg://me:secret@host/trials")
    'postgresql+psycopg://me:***@host/trials'
    """
    return url if url.startswith("journal:") else make_url(url).render_as_string(hide_password=True)


def _opened(url: str) -> BaseStorage:
    if url.startswith("journal:"):
        path = Path(url.removeprefix("journal:").removeprefix("//")).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(path)))
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ValueError(_wanted(url)) from None
    if parsed.drivername == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        return _relational(url, {"connect_args": {"timeout": _WAIT}})
    if parsed.drivername not in ("postgresql", "postgresql+psycopg"):
        raise ValueError(_wanted(shown(url)))
    if importlib.util.find_spec("psycopg") is None:
        raise ImportError('PostgreSQL needs psycopg: pip install "lyapflow[postgres]"')
    whole = parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    # A connection may have died while an epoch went on.
    return _relational(whole, {"pool_pre_ping": True, "pool_size": 1})


def _relational(url: str, settings: dict[str, object]) -> RDBStorage:
    try:
        return RDBStorage(url, engine_kwargs=settings)
    except (SQLAlchemyError, StorageInternalError) as error:
        why = str(error.__cause__ or error).strip().splitlines()[0]
        raise ConnectionError(f"cannot open the storage {shown(url)}: {why}") from error


def _wanted(got: str) -> str:
    wanted = "sqlite:///PATH, postgresql+psycopg://USER:PASSWORD@HOST/DATABASE or journal:PATH"
    return f"storage must be {wanted}, got {got!r}"
