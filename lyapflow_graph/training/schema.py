"""Values of a configuration against the types of what they are for: read, converted, or refused by their key."""

from __future__ import annotations

import collections
import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin


class ConfigError(ValueError):
    """A setting that is wrong. The message names its key, what came and what was expected.

    >>> from lyapflow_graph.training import ConfigError
    >>> issubclass(ConfigError, ValueError)
    True
    """


_DEEPEST = 50
_MOST = 1_000_000


def leaves_of(content: Any, kinds: tuple[type, ...] = (object,)) -> list[Any]:
    """What nested tables and lists hold, if they are neither too deep nor too many, and hold only some kinds of values.

    A file of a few bytes can nest without end, or hold one list many times over.

    >>> leaves_of({"a": [1, 2], "b": "x"}, (int, str))
    ['x', 1, 2]
    >>> leaves_of({"a": print}, (int, str))
    Traceback (most recent call last):
    lyapflow_graph.training.schema.ConfigError: it holds a builtin_function_or_method
    """
    found: list[Any] = []
    level: list[Any] = [content]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for one in level:
            if type(one) in (dict, collections.OrderedDict):
                if not all(isinstance(key, str | int) for key in one):
                    raise ConfigError("it has a key that is neither a text nor a whole number")
                inner += one.values()
            elif type(one) in (list, tuple):
                inner += one
            elif isinstance(one, kinds):
                found.append(one)
            else:
                raise ConfigError(f"it holds a {type(one).__name__}")
            if len(inner) + len(found) > _MOST:
                raise ConfigError(f"it holds more than {_MOST:,} values")
        level = inner
        if not level:
            return found
    raise ConfigError(f"it is nested deeper than {_DEEPEST} levels")


def convert(key: str, value: Any, hint: Any) -> Any:
    """The value in the type that a hint asks for; lists become tuples, whole numbers floats where these are wanted.

    >>> convert("training.lr", 1, float)
    1.0
    >>> convert("training.epochs", "ten", int)
    Traceback (most recent call last):
    lyapflow_graph.training.schema.ConfigError: training.epochs must be a whole number, got 'ten'
    """
    found = _converted(key, value, hint)
    if found is _REFUSED:
        raise ConfigError(f"{key} must be {describe(hint)}, got {value!r}")
    return found


def from_text(key: str, text: str, hint: Any) -> Any:
    """The value that is meant by a text on the command line: as in a TOML file, but words need no quotes.

    >>> from_text("model.num_steps", "16", int), from_text("model.method", "rk4", str)
    (16, 'rk4')
    >>> from_text("training.precision", "32", Literal["32", "64"]), from_text("training.clip", "none", float | None)
    ('32', None)
    """
    if text.lower() == "none" and NoneType in get_args(hint):
        return None
    value: Any = text
    try:
        parsed = tomllib.loads(f"value = {text}")
        if len(parsed) == 1:
            value = parsed["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        pass  # a word without quotes
    found = _converted(key, value, hint)
    if found is _REFUSED:  # a word that looks like a number
        found = _converted(key, text, hint)
    return convert(key, value, hint) if found is _REFUSED else found


def check_names(prefix: str, given: Iterable[str], known: Iterable[str]) -> None:
    """That all names are known; else say which is not, and which one may be meant.

    >>> check_names("training.", ["ephocs"], ["epochs", "lr"])
    Traceback (most recent call last):
    lyapflow_graph.training.schema.ConfigError: unknown key training.ephocs; did you mean training.epochs? ...
    """
    names = list(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            meant = f"did you mean {prefix}{near[0]}? " if near else ""
            raise ConfigError(f"unknown key {prefix}{name}; {meant}known are: {', '.join(sorted(names))}")


def representable(hint: Any) -> bool:
    """Whether values of a type can be written in a configuration: not modules, tensors and the like.

    >>> import torch
    >>> representable(int | None), representable(torch.nn.Module | None), representable(str | torch.nn.Module)
    (True, False, True)
    """
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(representable(one) for one in get_args(hint) if one is not NoneType)
    if origin is Literal or hint is Any:
        return True
    return hint in (bool, int, float, str) or origin in (Mapping, dict, Sequence, list, tuple) or _is_table(hint)


def describe(hint: Any) -> str:
    """What a type is called in a message."""
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "none"}
    if hint in plain:
        return plain[hint]
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(describe(one) for one in get_args(hint) if one is NoneType or representable(one))
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(hint))
    if origin in (Sequence, list, tuple):
        return f"a list, each {describe(get_args(hint)[0])}"
    return "a table"


_REFUSED = object()


def _converted(key: str, value: Any, hint: Any) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return tuple(value) if isinstance(value, list) else value
    if origin in (Union, UnionType):
        if value is None and NoneType in get_args(hint):
            return None
        for one in get_args(hint):
            found = _converted(key, value, one) if one is not NoneType else _REFUSED
            if found is not _REFUSED:
                return found
        return _REFUSED
    if origin is Literal:
        return next((one for one in get_args(hint) if one == value and _alike(one, value)), _REFUSED)
    if origin in (Mapping, dict) or _is_table(hint):
        return _table(key, value, get_args(hint)[1] if get_args(hint) else Any)
    if origin in (Sequence, list, tuple):
        if not isinstance(value, list | tuple):
            return _REFUSED
        return tuple(convert(f"{key}[{i}]", one, get_args(hint)[0]) for i, one in enumerate(value))
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if not math.isnan(value) else _REFUSED
    if hint is str:
        return value if isinstance(value, str) else _REFUSED
    return value if hint in (bool, int) and type(value) is hint else _REFUSED


def _alike(one: Any, other: Any) -> bool:
    """Of one type: 1 is not True. A text may be marked as one from a file."""
    return type(one) is type(other) or (isinstance(one, str) and isinstance(other, str))


def _table(key: str, value: Any, hint: Any) -> Any:
    if not isinstance(value, Mapping):
        return _REFUSED
    return {name: convert(f"{key}.{name}", one, hint) for name, one in value.items()}


def _is_table(hint: Any) -> bool:
    return hint in (Mapping, dict)
