"""Objects that a user names as `module:object`."""

from __future__ import annotations

import importlib
import sys
from typing import Any, final


@final
class NameFromFile(str):
    """A name that was read from a file, such as a trained model. It may name data, but it never imports code."""

    __slots__ = ()


def import_object(path: str, what: str) -> Any:
    """The object that is named as `module:object`, also of a module in the current folder.

    Args:
        path: Its name; `object` may have dots. A :class:`NameFromFile` is refused.
        what: What it is to be, for the error, as "a field".

    >>> from lyapflow.importing import NameFromFile, import_object
    >>> import_object("math:pi", "a number")
    3.141592653589793
    >>> import_object(NameFromFile("math:pi"), "a number")
    Traceback (most recent call last):
    ValueError: a file names the code 'math:pi' as a number, and a file imports no code; if you trust it, give that ...
    """
    if isinstance(path, NameFromFile):
        raise ValueError(
            f"a file names the code {str(path)!r} as {what}, and a file imports no code; "
            "if you trust it, give that name yourself"
        )
    module, _, names = path.partition(":")
    if not module or not names:
        raise ValueError(f"{what} is named as module:object, got {path!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules beside the one who calls, as with python -m
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"cannot import {module!r}: {error}") from error
    for name in names.split("."):
        if not hasattr(found, name):
            raise AttributeError(f"{module!r} has no object {names!r}")
        found = getattr(found, name)
    return found
