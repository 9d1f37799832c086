"""The configuration of a run: from a TOML file, checked key by key."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lyapflow.importing import NameFromFile, import_object
from lyapflow.registry import Registry

from ..backbones import BACKBONES
from ..conv import DynamicsConv
from ..dynamics import DYNAMICS
from ..losses import LOSSES
from ..metrics import METRICS
from .model import options_of, resolved
from .schema import ConfigError, check_names, convert, from_text, leaves_of
from .toml import to_toml


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The table `[data]`.

    Args:
        name: As :func:`lyapflow_graph.data.load` takes it.
        root: The folder of the files.
        split: Which of the splits of the dataset.
        pe: Positional encodings and their widths.
        edge_features: Whether features of edges are used; without, kinds of models apply that cannot use them.
        options: Anything else that the dataset takes.

    >>> from lyapflow_graph.training import DataConfig
    >>> DataConfig("minesweeper", split=3).split
    3
    """

    name: str
    root: str | None = None
    split: int = 0
    pe: Mapping[str, int] = dataclasses.field(default_factory=dict)
    edge_features: bool = True
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self.name != "", "data.name", self.name, "a name or a path")
        _check(self.split >= 0, "data.split", self.split, "0 or more")
        for name, width in self.pe.items():
            _check(width > 0, f"data.pe.{name}", width, "positive")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The table `[model]`.

    Args:
        kind: "tango", a backbone by its name, or other dynamics: "adgn", "dgc", "graff", "grand", "graphcon", "phdgn",
            "swan".
        hidden_channels: The width inside.
        options: Every other key of the table: what that kind takes, as `num_steps`. What is not given has its default
            here, so that two configurations are equal if and only if the models are.

    >>> from lyapflow_graph.training import ModelConfig
    >>> ModelConfig("tango", 32, {"num_steps": 4}).options["step_size"]
    0.1
    """

    kind: str = "tango"
    hidden_channels: int = 64
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self.hidden_channels > 0, "model.hidden_channels", self.hidden_channels, "positive")
        object.__setattr__(self, "options", resolved(self.kind, self.options))


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The table `[training]`.

    Args:
        epochs: How many at the most.
        batch_size: Graphs of a batch, over all processes; with the loader "neighbor" nodes, with "cluster" clusters.
        optimizer: "adam" or "adamw".
        lr: The learning rate.
        weight_decay: Of the optimizer.
        scheduler: "none"; "cosine" down to `min_lr` at the last epoch; "plateau": by `plateau_factor` whenever the
            validation loss has not improved for `plateau_patience` epochs.
        warm_up: Epochs in which the learning rate rises linearly; not with "plateau".
        plateau_factor: See `scheduler`.
        plateau_patience: See `scheduler`.
        min_lr: Where "cosine" ends; with "plateau" training ends once the learning rate is below it.
        patience: Stop when the validation metric has not improved for so many epochs.
        clip: The largest norm of a gradient; longer ones are shortened.
        precision: "32", "64", or mixed precision with "bf16" or "16".
        accumulate: Batches of a step of the optimizer; their losses are averaged.
        loader: "full" for whole graphs; "neighbor" or "cluster" for parts of one graph that is too large for a pass.
        neighbors: With "neighbor", how many are drawn at each hop.
        clusters: With "cluster", how many the graph is divided into.
        standardize: For regression: whether the readout tells labels in units of their spread on the training set,
            from their mean on; see :meth:`GraphModel.standardize`. Loss and metric are of the labels as they are.
        keep: Which weights are tested in the end: "best" on the validation set, or "last".
        descent_weight: Initial weight of :func:`lyapflow.descent_loss` in the loss of a model with a guard; 0 for no
            such objective. The weight grows in every epoch in which more graphs than tolerated rise or are shortened
            by the guard, up to 1000-fold in a third of the epochs, and falls a quarter as fast in the others.
        descent_margin: The relative decrease of the energy that the objective asks of every step.
        descent_tolerance: The share of training graphs whose energy may rise, or that the guard may shorten.
        guard_from: The share of epochs after which steps are guarded in training too. Evaluation is always guarded,
            where the model has a guard. Guarding from the start hinders learning.
        deterministic: Ask torch for deterministic algorithms, which may be slower on CUDA.
        device: "auto", "cpu" or "cuda".

    >>> from lyapflow_graph.training import TrainingConfig
    >>> TrainingConfig(lr=-1.0)
    Traceback (most recent call last):
    lyapflow_graph.training.schema.ConfigError: training.lr must be positive, got -1.0
    """

    epochs: int = 300
    batch_size: int = 32
    optimizer: Literal["adam", "adamw"] = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    scheduler: Literal["none", "cosine", "plateau"] = "none"
    warm_up: int = 0
    plateau_factor: float = 0.5
    plateau_patience: int = 10
    min_lr: float = 0.0
    patience: int | None = None
    clip: float | None = None
    precision: Literal["32", "64", "bf16", "16"] = "32"
    accumulate: int = 1
    loader: Literal["full", "neighbor", "cluster"] = "full"
    neighbors: Sequence[int] = (10, 10)
    clusters: int = 100
    standardize: bool = False
    keep: Literal["best", "last"] = "best"
    descent_weight: float = 0.1
    descent_margin: float = 0.05
    descent_tolerance: float = 1e-3
    guard_from: float = 2 / 3
    deterministic: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        for name in (
            "epochs",
            "batch_size",
            "lr",
            "plateau_patience",
            "patience",
            "clip",
            "accumulate",
            "clusters",
        ):
            value = getattr(self, name)
            _check(value is None or value > 0, f"training.{name}", value, "positive")
        for name in ("weight_decay", "warm_up", "min_lr", "descent_weight", "descent_margin", "descent_tolerance"):
            _check(getattr(self, name) >= 0, f"training.{name}", getattr(self, name), "0 or more")
        _check(0 < self.plateau_factor < 1, "training.plateau_factor", self.plateau_factor, "between 0 and 1")
        _check(self.min_lr <= self.lr, "training.min_lr", self.min_lr, f"at most lr, {self.lr}")
        _check(0 <= self.guard_from <= 1, "training.guard_from", self.guard_from, "between 0 and 1")
        _check(len(self.neighbors) > 0, "training.neighbors", self.neighbors, "one number for each hop")
        if self.warm_up and self.scheduler == "plateau":
            raise ConfigError(f"training.warm_up goes with the schedulers none and cosine, got {self.warm_up}")


@dataclasses.dataclass(frozen=True)
class Config:
    """All that a run depends on.

    Args:
        data: What is learned from.
        model: What learns.
        training: How.
        seed: Of the weights, the order of the graphs, and dropout.

    >>> from lyapflow_graph.training import Config, DataConfig
    >>> config = Config(DataConfig("minesweeper"))
    >>> config.hash == dataclasses.replace(config, seed=1).hash
    True
    """

    data: DataConfig
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        _check(0 <= self.seed < 2**32, "seed", self.seed, "in 0 to 2**32 - 1")

    @property
    def hash(self) -> str:
        """Of everything but the seed, paths and the device: runs with the same hash repeat one experiment."""
        return _digest(self.to_dict(), leave_out=())

    @property
    def family(self) -> str:
        """The hash without the split as well: what is averaged in a report."""
        return _digest(self.to_dict(), leave_out=(("data", "split"),))

    def to_dict(self) -> dict[str, Any]:
        """As tables, like the TOML file."""
        found = _plain(dataclasses.asdict(self))
        found["model"] |= found["model"].pop("options")
        return found

    def to_toml(self) -> str:
        """As a TOML file with every key; :func:`load_config` reads it back."""
        return to_toml(self.to_dict())

    @classmethod
    def from_file(cls, tables: Mapping[str, Any]) -> Config:
        """From tables of a model, a record or the folder of a run: as :meth:`from_dict`, but they name no code."""
        return cls.from_dict(marked(convert("config", tables, Mapping)))

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> Config:
        """From tables, as :meth:`to_dict` gives them or a TOML file has them."""
        check_names("", tables, [field.name for field in dataclasses.fields(cls)])
        for name in ("data", "model", "training"):
            convert(name, tables.get(name, {}), Mapping)
        if "name" not in tables.get("data", {}):
            raise ConfigError("data.name is missing: which data set is it? `lyapflow data list` knows them")
        model = dict(tables.get("model", {}))
        own = {name: model.pop(name) for name in ("kind", "hidden_channels") if name in model}
        return cls(
            _read(DataConfig, "data.", tables["data"]),
            ModelConfig(**_values(ModelConfig, "model.", own), options=model),
            _read(TrainingConfig, "training.", tables.get("training", {})),
            convert("seed", tables.get("seed", 0), int),
        )


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a TOML file, or the configuration in the record of a run.

    Args:
        path: The file, `*.toml` or `record.json`.
        overrides: Settings that replace those of the file, as `model.num_steps=16`.

    >>> import tempfile
    >>> from lyapflow_graph.training import load_config
    >>> file = Path(tempfile.mkdtemp(), "run.toml")
    >>> _ = file.write_text('[data]\\nname = "minesweeper"')
    >>> load_config(file, ["model.num_steps=16", "training.clip=none"]).model.options["num_steps"]
    16
    """
    written = Path(path).suffix != ".json"
    tables = read_toml(path) if written else marked(_read_record(path))
    for override in overrides:
        set_text(tables, override)
    if written:
        import_named(tables)
    try:
        return Config.from_dict(tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if _LONG_KEY.search(text):
            raise ConfigError("it has a key of more than 50 parts")
        found = tomllib.loads(text)
        leaves_of(found)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a TOML file of a configuration: {error}") from error
    return found


def marked(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of a file that the user did not write, whose texts import no code."""

    def mark(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: mark(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [mark(one) for one in value]
        return NameFromFile(value) if isinstance(value, str) else value

    return {name: mark(value) for name, value in tables.items()}


def import_named(tables: Mapping[str, Any]) -> None:
    """Import the backbones, dynamics, losses and metrics that a configuration names as `module:object`.

    Only for what the user has written: a record or a model may come from somebody else, and its names import nothing.
    """
    model, data = _table(tables, "model"), _table(tables, "data")
    inside, options = _table(model, "backbone_options"), _table(data, "options")
    found: list[tuple[Any, Registry[Any]]] = [(options.get("loss"), LOSSES), (options.get("metric"), METRICS)]
    found += [(name, BACKBONES) for name in (model.get("backbone"), model.get("local"), inside.get("local"))]
    kind = model.get("kind")
    if isinstance(kind, str) and ":" in kind and kind not in {*DYNAMICS, *BACKBONES}:
        made = import_object(kind, "a kind of model")
        dynamics = isinstance(made, type) and issubclass(made, DynamicsConv)
        found.append((kind, DYNAMICS if dynamics else BACKBONES))
    for name, registry in found:
        if isinstance(name, str):
            registry.import_named(name)


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = tables.get(name)
    return found if isinstance(found, Mapping) else {}


def _read_record(path: str | Path) -> dict[str, Any]:
    try:
        found = dict(json.loads(Path(path).read_text(encoding="utf-8"))["config"])
        leaves_of(found)
        return found
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is not the record of a run: {error}") from error


def differences(one: Config, other: Config) -> list[str]:
    """The keys in which two configurations differ, other than paths and the device.

    >>> from lyapflow_graph.training import Config, DataConfig
    >>> differences(Config(DataConfig("zinc"), seed=1), Config(DataConfig("zinc"), seed=2))
    ['seed: 1 / 2']
    """
    a, b = (_flat(config.to_dict()) for config in (one, other))
    changed = sorted(key for key in {*a, *b} if a.get(key) != b.get(key) and tuple(key.split(".")) not in _PLACES)
    return [f"{key}: {a.get(key)} / {b.get(key)}" for key in changed]


# For which the parser takes memory that grows with the square of the parts.
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){50}""")
_PLACES = (("data", "root"), ("training", "device"))  # where a run happens is no part of what it is


def _digest(tables: dict[str, Any], leave_out: Iterable[tuple[str, str]]) -> str:
    del tables["seed"]
    for table, key in (*_PLACES, *leave_out):
        del tables[table][key]
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """With lists and dictionaries only, as TOML and JSON have them."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, str):
        return str(value)  # without the mark of a NameFromFile, which files do not have
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tables.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _values(cls: type, prefix: str, given: Mapping[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    check_names(prefix, given, hints)
    return {name: convert(prefix + name, value, hints[name]) for name, value in given.items()}


def _read(cls: Any, prefix: str, given: Mapping[str, Any]) -> Any:
    return cls(**_values(cls, prefix, given))


def set_text(tables: dict[str, Any], text: str) -> None:
    """Set a key of the tables of a configuration as the command line has it: `model.num_steps=16`."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or "" in key.split("."):
        raise ConfigError(f"a setting is given as table.key=value, got {text!r}")
    table, last = _place(tables, key)
    table[last] = from_text(key, value.strip(), hint_of(tables, key))


def set_value(tables: dict[str, Any], key: str, value: Any) -> None:
    """Set a key of the tables of a configuration.

    >>> tables = {"data": {"name": "zinc"}}
    >>> set_value(tables, "model.num_steps", 16)
    >>> tables
    {'data': {'name': 'zinc'}, 'model': {'num_steps': 16}}
    """
    table, last = _place(tables, key)
    table[last] = value


def hint_of(tables: Mapping[str, Any], key: str) -> Any:
    """The type of a key; anything for one that is not known, which is refused later with all others."""
    path = key.split(".")
    if path == ["seed"]:
        return int
    classes: dict[str, type] = {"data": DataConfig, "model": ModelConfig, "training": TrainingConfig}
    check_names("", path[:1], [*classes, "seed"])
    if path[0] == "seed":
        raise ConfigError(f"{key}: seed is not a table")
    if len(path) == 1:
        return Mapping
    hint = typing.get_type_hints(classes[path[0]]).get(path[1])
    if path[0] == "model" and hint is None:
        model = tables.get("model", {})
        option = options_of(model.get("kind", "tango"), model).get(path[1])
        hint = None if option is None else option.hint
    if len(path) > 2:
        return int if path[:2] == ["data", "pe"] else Any
    return Any if hint is None else hint


def _place(tables: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The table that a key belongs to, made if it is not there, and the last part of the key."""
    *path, last = key.split(".")
    table = tables
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{key}: {name} is not a table")
    return table, last


def _check(good: bool, key: str, value: Any, wanted: str) -> None:
    if not good:
        raise ConfigError(f"{key} must be {wanted}, got {value!r}")
