"""Objects that a user names as `module:object`."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def import_object(path: str, what: str) -> Any:
    """The object that is named as `module:object`, also of a module in the current folder.

    Args:
        path: Its name; `object` may have dots.
        what: What it is to be, for the error, as "a field".

    >>> from lyapflow.importing import import_object
    >>> import_object("math:pi", "a number")
    3.141592653589793
    """
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
