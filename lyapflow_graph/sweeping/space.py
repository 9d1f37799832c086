"""What a sweep varies: lists of choices and ranges, read from TOML and checked against the types of their keys."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, final

from optuna.trial import Trial

from ..training.config import hint_of
from ..training.schema import ConfigError, check_names, convert, from_text

Label = str | int | float | bool | None
"""A value as Optuna keeps it; lists and tables are kept as JSON."""

# What must be the same in all trials, or their validation metrics could not be compared.
_FIXED = ("seed", "data.name", "data.root", "data.split", "data.options")


@final
@dataclasses.dataclass(frozen=True)
class Choices:
    """A key that takes one of some values.

    Args:
        values: The values.

    >>> Choices((2, 4)).labels, Choices(((10, 5), (5, 5))).labels
    ((2, 4), ('[10, 5]', '[5, 5]'))
    """

    values: tuple[Any, ...]

    @property
    def labels(self) -> tuple[Label, ...]:
        """The values as Optuna keeps them."""
        return tuple(one if isinstance(one, Label) else json.dumps(one, sort_keys=True) for one in self.values)

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values that are checked before anything runs."""
        return self.values

    def draw(self, trial: Trial, key: str) -> None:
        """Let Optuna decide."""
        trial.suggest_categorical(key, self.labels)

    def value(self, label: Label) -> Any:
        """What is meant by a label."""
        if label not in self.labels:
            raise ConfigError(f"{label!r} is none of the choices {list(self.labels)}")
        return self.values[self.labels.index(label)]

    def written(self) -> Any:
        """As in a TOML file."""
        return ["none" if one is None else one for one in self.values]


@final
@dataclasses.dataclass(frozen=True)
class Range:
    """A key that takes any number between two.

    Args:
        low: The smallest.
        high: The largest.
        log: Whether it is the logarithm that is drawn evenly.
        whole: Whether it is a whole number.

    >>> Range(1e-4, 1e-2, log=True).ends
    (0.0001, 0.01)
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values that are checked before anything runs."""
        return (self.low, self.high)

    def draw(self, trial: Trial, key: str) -> None:
        """Let Optuna decide."""
        if self.whole:
            trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        else:
            trial.suggest_float(key, self.low, self.high, log=self.log)

    def value(self, label: Label) -> Any:
        """What is meant by a label."""
        return label

    def written(self) -> Any:
        """As in a TOML file."""
        return {"low": self.low, "high": self.high, "log": self.log}


Dimension = Choices | Range


def read_space(given: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Dimension]:
    """What a sweep varies, from the table `[sweep.space]`.

    Args:
        given: Keys of the configuration, with a list of choices or a table of `low`, `high` and `log` each.
        tables: Of the configuration, which know the types of the keys.

    >>> read_space({"model.num_steps": [2, 4]}, {"data": {"name": "zinc"}})
    {'model.num_steps': Choices(values=(2, 4))}
    >>> read_space({"training.lr": {"low": 0.1, "high": 0.01}}, {"data": {"name": "zinc"}})
    Traceback (most recent call last):
    lyapflow_graph.training.schema.ConfigError: sweep.space: training.lr: low must be below high, got 0.1 and 0.01
    """
    if not given:
        raise ConfigError('sweep.space is empty: give at least one key, as "model.num_steps" = [2, 4, 8]')
    found: dict[str, Dimension] = {}
    for key, value in given.items():
        try:
            found[key] = _dimension(key, value, tables)
        except ConfigError as error:
            raise ConfigError(f"sweep.space: {error}") from None
    return found


def grid(space: Mapping[str, Dimension]) -> Iterator[dict[str, Label]]:
    """All combinations of choices, as labels; the last key changes fastest.

    >>> [list(point.values()) for point in grid({"a": Choices((1, 2)), "b": Choices(("x", "y"))})]
    [[1, 'x'], [1, 'y'], [2, 'x'], [2, 'y']]
    """
    labels = []
    for key, dimension in space.items():
        if isinstance(dimension, Range):
            raise ConfigError(f'sweep.sampler "grid" needs a list for {key}, which has a range; use "tpe" or "random"')
        labels.append(dimension.labels)
    return (dict(zip(space, point, strict=True)) for point in itertools.product(*labels))


def _dimension(key: str, value: Any, tables: Mapping[str, Any]) -> Dimension:
    fixed = next((one for one in _FIXED if key == one or key.startswith(f"{one}.")), None)
    if fixed is not None:
        instead = "; seeds are given by sweep.seeds" if fixed == "seed" else ""
        raise ConfigError(f"{key} must be the same in all trials, or they could not be compared{instead}")
    if "" in key.split(".") or "." not in key:
        raise ConfigError(f'a key is given as "table.key", got {key!r}')
    hint = hint_of(tables, key)
    if isinstance(value, Mapping):
        return _range(key, value, hint)
    if not isinstance(value, list | tuple) or not value:
        raise ConfigError(f"{key} must be a list of choices or a table {{ low, high, log }}, got {value!r}")
    choices = Choices(
        tuple(from_text(key, one, hint) if isinstance(one, str) else convert(key, one, hint) for one in value)
    )
    if len(set(choices.labels)) < len(value):
        raise ConfigError(f"{key} has the same choice twice: {value}")
    return choices


def _range(key: str, value: Mapping[str, Any], hint: Any) -> Range:
    check_names(f"{key}.", value, ("low", "high", "log"))
    for name in ("low", "high"):
        if name not in value:
            raise ConfigError(f"{key} is a range and needs {name}; it has {', '.join(value) or 'nothing'}")
    ends = [convert(f"{key}.{name}", value[name], hint) for name in ("low", "high")]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
        raise ConfigError(f"{key} is no number, so it has no range; give a list of choices")
    log = convert(f"{key}.log", value.get("log", False), bool)
    if not ends[0] < ends[1]:
        raise ConfigError(f"{key}: low must be below high, got {value['low']} and {value['high']}")
    if log and ends[0] <= 0:
        raise ConfigError(f"{key}: low must be positive on a logarithmic scale, got {value['low']}")
    return Range(ends[0], ends[1], log=log, whole=all(isinstance(end, int) for end in ends))
