"""Tables as TOML, which the standard library reads but does not write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_toml(tables: Mapping[str, Any]) -> str:
    """A TOML file of nested tables; what is None is left out.

    >>> print(to_toml({"seed": 0, "data": {"name": "zinc", "root": None, "pe": {"random_walk_pe": 20}}}), end="")
    seed = 0
    <BLANKLINE>
    [data]
    name = "zinc"
    pe = { random_walk_pe = 20 }
    """
    lines = [
        f"{_key(key)} = {_value(value)}"
        for key, value in tables.items()
        if not (value is None or isinstance(value, Mapping))
    ]
    for name, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{_key(name)}]"]
            lines += [f"{_key(key)} = {_value(value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines).lstrip("\n") + "\n"


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)  # the shortest that reads back as the same number
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items() if one is not None)
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    raise TypeError(f"TOML has no way to write a {type(value).__name__}: {value!r}")


def _text(value: str) -> str:
    # JSON's strings are TOML's, but for the character that JSON does not escape; surrogates have no place in either.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
