"""Things that are asked for by name: what a package brings along, and what users add."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, final

from .importing import import_object

Record = TypeVar("Record")


class UnknownNameError(KeyError, ValueError):
    """A name that a registry does not know."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr


@final
class Registry(Mapping[str, Record], Generic[Record]):
    """Records by name, to look up and to add to.

    Args:
        what: What the records are of, for messages.
        record_of: Makes the record of an object that a user names as `module:object`, given that name and the object.

    >>> from lyapflow.registry import Registry
    >>> colours = Registry("colour", lambda name, found: found)
    >>> colours.add("green", "#0f0")
    '#0f0'
    >>> colours["gren"]
    Traceback (most recent call last):
    lyapflow.registry.UnknownNameError: unknown colour 'gren'; did you mean 'green'? known are: green
    """

    def __init__(self, what: str, record_of: Callable[[str, Any], Record]) -> None:
        self.what, self._record_of = what, record_of
        self._records: dict[str, Record] = {}

    def add(self, name: str, record: Record) -> Record:
        """Add a record under a name that is still free."""
        if name in self._records:
            raise ValueError(f"there is a {self.what} {name!r} already: choose another name")
        self._records[name] = record
        return record

    def import_named(self, name: str) -> None:
        """Import what is named as `module:object`, and know it by that name. Other names are left alone.

        This runs the user's code. Call it for names that the user typed, never for those that are read from the file of
        a model or from a record: looking up a name imports nothing.
        """
        if ":" in name and name not in self._records:
            self._records[name] = self._record_of(name, import_object(name, f"a {self.what}"))

    def __getitem__(self, name: str) -> Record:
        if name not in self._records:
            raise UnknownNameError(f"unknown {self.what} {name!r}; {meant(name, self)}")
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


def meant(name: str, known: Iterable[str]) -> str:
    """Which of the known names may be meant by one that is not.

    >>> meant("dopri", ["euler", "dopri5"])
    "did you mean 'dopri5'? known are: dopri5, euler"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    own = f"{name!r} has to be imported by the one who uses it. " if ":" in name else ""
    return own + (f"did you mean {near[0]!r}? " if near else "") + f"known are: {', '.join(names)}"
