"""What a sweep does: a training configuration, what varies in it, and how it is searched."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import random
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..training.config import Config, differences, import_named, marked, read_toml, set_text, set_value
from ..training.schema import ConfigError, check_names, convert, from_text
from ..training.toml import to_toml
from .space import Dimension, Label, grid, read_space

Sampler = Literal["grid", "tpe", "random"]
Pruner = Literal["none", "median", "halving"]


@dataclasses.dataclass(frozen=True)
class Search:
    """The table `[sweep]`, without its space.

    Args:
        sampler: "grid" tries all combinations; "tpe" learns from the trials so far where to look; "random" draws.
        trials: How many. With "grid" all combinations if not given, else so many of them, drawn at random.
        pruner: "none"; "median" ends a trial that is worse than the median of the others at the same epoch; "halving"
            lets a third go on at a tenth, three tenths and nine tenths of the epochs.
        seeds: A trial is a run for each, and its value the mean of theirs; by default the seed of the configuration.
            The first decides on pruning.
        seed: Of the sampler.
        max_parameters: Configurations whose model has more are skipped.

    >>> from lyapflow_graph.sweeping import Search
    >>> Search("tpe")
    Traceback (most recent call last):
    lyapflow_graph.training.schema.ConfigError: sweep.trials is missing: how many shall the sampler 'tpe' try?
    """

    sampler: Sampler = "grid"
    trials: int | None = None
    pruner: Pruner = "none"
    seeds: Sequence[int] = (0,)
    seed: int = 0
    max_parameters: int | None = None

    def __post_init__(self) -> None:
        if self.trials is None and self.sampler != "grid":
            raise ConfigError(f"sweep.trials is missing: how many shall the sampler {self.sampler!r} try?")
        for name in ("trials", "max_parameters"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"sweep.{name} must be positive, got {value}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"sweep.seeds must be one or more different numbers, got {list(self.seeds)}")
        for seed in (*self.seeds, self.seed):
            if not 0 <= seed < 2**32:
                raise ConfigError(f"sweep.seeds and sweep.seed must be in 0 to 2**32 - 1, got {seed}")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A training configuration, what varies in it, and how it is searched. Everything is checked when it is made.

    Args:
        tables: Of the configuration, as a TOML file for `lyapflow train` has them.
        space: Which keys vary.
        search: How.

    >>> from lyapflow_graph.sweeping import Choices, Search, Sweep
    >>> sweep = Sweep({"data": {"name": "zinc"}}, {"model.num_steps": Choices((2, 4))}, Search())
    >>> sweep.size, sweep.config({"model.num_steps": 4}, seed=1).model.options["num_steps"]
    (2, 4)
    """

    tables: Mapping[str, Any]
    space: Mapping[str, Dimension]
    search: Search

    def __post_init__(self) -> None:
        _ = self.base
        for key, dimension in self.space.items():
            for value in dimension.ends:
                try:
                    _config(self._changed({key: value}))
                except ConfigError as error:
                    raise ConfigError(f"sweep.space: {key} = {value!r}: {error}") from None
        if self.search.sampler == "grid":
            grid(self.space)

    @property
    def base(self) -> Config:
        """The configuration in which nothing is varied yet."""
        return _config(self.tables)

    @property
    def size(self) -> int | None:
        """How many trials there will be at most, without those that are skipped; None where only these set a limit."""
        if self.search.sampler == "grid":
            return len(self.points())
        return self.search.trials

    @property
    def hash(self) -> str:
        """Of everything but the number of trials, paths and the device: more trials are the same sweep."""
        told = {"config": self.base.hash, **self._told()}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    def config(self, labels: Mapping[str, Label], seed: int) -> Config:
        """The configuration of a run.

        Args:
            labels: Of the values of all keys that vary.
            seed: Of the run.
        """
        check_names("", labels, self.space)
        values = {key: self.space[key].value(label) for key, label in labels.items()}
        return _config(self._changed(values) | {"seed": seed})

    def points(self) -> list[dict[str, Label]]:
        """The points of the grid, in the order in which they are tried."""
        found = list(grid(self.space))
        if self.search.trials is None:
            return found
        random.Random(self.search.seed).shuffle(found)
        return found[: self.search.trials]

    def to_toml(self) -> str:
        """As a TOML file; :func:`load_sweep` reads it back."""
        return to_toml({**self.tables, "sweep": {"trials": self.search.trials, **self._told()}})

    def differences(self, other: Sweep) -> list[str]:
        """The keys in which two sweeps differ, other than the number of trials, paths and the device."""
        one, two = self._told(), other._told()
        changed = [f"sweep.{key}: {one[key]} / {two[key]}" for key in one if one[key] != two[key]]
        bases = (dataclasses.replace(sweep.base, seed=0) for sweep in (self, other))
        return [*differences(*bases), *changed]

    def _told(self) -> dict[str, Any]:
        told = dataclasses.asdict(self.search) | {"seeds": list(self.search.seeds)}
        del told["trials"]
        return told | {"space": {key: dimension.written() for key, dimension in self.space.items()}}

    def _changed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        tables = copy.deepcopy(dict(self.tables))
        for key, value in values.items():
            set_value(tables, key, value)
        return tables


def load_sweep(path: str | Path, overrides: Iterable[str] = ()) -> Sweep:
    """Read a TOML file: a training configuration with a table `[sweep]`, or the latter alone with `config = "FILE"`.

    Args:
        path: The file.
        overrides: Settings that replace those of the file, as `training.epochs=20` or `sweep.trials=50`.

    >>> import tempfile
    >>> from lyapflow_graph.sweeping import load_sweep
    >>> file = Path(tempfile.mkdtemp(), "sweep.toml")
    >>> _ = file.write_text('''
    ... [data]
    ... name = "minesweeper"
    ... [sweep]
    ... sampler = "tpe"
    ... trials = 20
    ... [sweep.space]
    ... "model.num_steps" = [2, 4, 8]
    ... "training.lr" = { low = 1e-4, high = 1e-2, log = true }
    ... ''')
    >>> load_sweep(file, ["sweep.trials=50"]).search.trials
    50
    """
    return _sweep(Path(path), read_toml(path), overrides)


def sweep_in(folder: Path) -> Sweep:
    """The sweep of a folder, which may be somebody else's: what it names is not imported."""
    return _sweep(folder / "sweep.toml", marked(read_toml(folder / "sweep.toml")), ())


def _sweep(path: Path, tables: dict[str, Any], overrides: Iterable[str]) -> Sweep:
    try:
        if "sweep" not in tables:
            raise ConfigError("there is no table [sweep]; `lyapflow train` takes files without one")
        own = dict(convert("sweep", tables.pop("sweep"), Mapping))
        space = own.pop("space", {})
        tables = _named(path, own, tables)
        for override in overrides:
            _override(own, tables, override)
        return _made(own, space, tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _config(tables: Mapping[str, Any]) -> Config:
    import_named(tables)  # here, where a worker in another process comes by as well
    return Config.from_dict(tables)


def _named(path: Path, own: dict[str, Any], tables: dict[str, Any]) -> dict[str, Any]:
    """The tables of the configuration, which are here or in the file that is named."""
    if "config" not in own:
        return tables
    if tables:
        raise ConfigError(f"sweep.config names a configuration, and the tables {', '.join(tables)} are another")
    return read_toml(path.parent / convert("sweep.config", own.pop("config"), str))


def _override(own: dict[str, Any], tables: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    name = key.strip().removeprefix("sweep.")
    if name == key.strip() or not equals:
        set_text(tables, text)
        return
    hints = typing.get_type_hints(Search)
    check_names("sweep.", [name], hints)
    own[name] = from_text(f"sweep.{name}", value.strip(), hints[name])


def _made(own: Mapping[str, Any], space: Any, tables: dict[str, Any]) -> Sweep:
    hints = typing.get_type_hints(Search)
    check_names("sweep.", own, [*hints, "space", "config"])
    values = {name: convert(f"sweep.{name}", value, hints[name]) for name, value in own.items()}
    base = _config(tables)
    search = Search(**{"seeds": (base.seed,), **values})
    return Sweep(tables, read_space(convert("sweep.space", space, Mapping), tables), search)
