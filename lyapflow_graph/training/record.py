"""What is left of a run: everything that a report needs, as one JSON file."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import platform
import resource
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

import lyapflow

from .config import Config
from .files import DamagedError, read, write
from .schema import ConfigError, convert, leaves_of

_FORMAT = 2
_LIBRARIES = ("torch", "torch_geometric", "lightning", "torchmetrics", "numpy")


@dataclasses.dataclass(frozen=True)
class Record:
    """A run that has ended.

    Attributes:
        status: "finished"; "untested": finished, but the test set was not to be looked at, as in a sweep; or "pruned":
            stopped by the one who asked for it, and not tested.
        config: The resolved configuration, as tables.
        hash: Of the configuration without its seed.
        family: Of the configuration without its seed and split: what is averaged in a report.
        seed: Of the run.
        dataset: The name of the data.
        metric: What `val` and `test` are.
        provenance: Where the data is from.
        parameters: How many the model has.
        epochs: How many were done.
        best_epoch: The one with the best validation metric.
        val: The metric on the validation set at the epoch that is kept.
        test: The metric on the test set with the same weights; None for a run that was not tested.
        test_loss: The loss there.
        seconds: Wall time, over all resumptions.
        peak_memory: In bytes: of the device where it is CUDA, else of the process.
        descent: Over the test set, as :class:`lyapflow.DescentCount` has it: in how many of the `systems` (graphs) and
            `steps` the energy rises, and how many steps the guard shortened; None for a model without an energy and
            for a run that was not tested.
        versions: Of Python and the libraries.
        machine: What it ran on.

    >>> from lyapflow_graph.training import Record
    >>> [field.name for field in dataclasses.fields(Record)][:3]
    ['status', 'config', 'hash']
    """

    status: Literal["finished", "untested", "pruned"]
    config: Mapping[str, Any]
    hash: str
    family: str
    seed: int
    dataset: str
    metric: str
    provenance: Mapping[str, Any]
    parameters: int
    epochs: int
    best_epoch: int
    val: float
    test: float | None
    test_loss: float | None
    seconds: float
    peak_memory: int
    descent: Mapping[str, int] | None
    versions: Mapping[str, str]
    machine: Mapping[str, Any]

    def save(self, folder: Path) -> Path:
        """Write `record.json`."""
        path = folder / "record.json"
        write(path, json.dumps({"format": _FORMAT, **_plain(dataclasses.asdict(self))}, indent=1) + "\n")
        return path

    @classmethod
    def load(cls, folder: str | Path) -> Record:
        """Read the record of a run."""
        path, hints = Path(folder) / "record.json", typing.get_type_hints(cls)
        try:
            found = json.loads(read(path).decode("utf-8"))
            leaves_of(found)
            if not isinstance(found, dict) or found.pop("format", None) != _FORMAT or set(found) != set(hints):
                raise DamagedError(f"{path} is not a record of format {_FORMAT}")
            record = cls(**{name: _field(name, value, hints[name]) for name, value in found.items()})
            if (record.test is None) == (record.status == "finished"):
                raise DamagedError(f"{path} is damaged: it is {record.status}, with {record.test} as its test metric")
            return record
        except DamagedError:
            raise
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"{path} is damaged: {error}") from error

    @property
    def configuration(self) -> Config:
        """The configuration itself; its data set can name no code."""
        return Config.from_file(self.config)


def versions() -> dict[str, str]:
    """Of Python and the libraries that decide what a run gives."""
    found = {"python": platform.python_version(), "lyapflow": lyapflow.__version__}
    return found | {name: importlib.metadata.version(name) for name in _LIBRARIES}


def machine(device: torch.device, processes: int) -> dict[str, Any]:
    """What a run takes place on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"system": platform.system(), "device": name, "processes": processes, "threads": torch.get_num_threads()}


def peak_memory(device: torch.device) -> int:
    """The most that was in use so far, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(used if sys.platform == "darwin" else 1024 * used)


def _field(name: str, value: Any, hint: Any) -> Any:
    """The value of a field that was read, in the type that it has in a record."""
    if hint in (float, float | None) and isinstance(value, str):
        return float(value)  # numbers that JSON does not have are texts there
    found = convert(name, value, hint)
    if name == "config":
        convert("config.model.kind", convert("config.model", found.get("model"), Mapping).get("kind"), str)
    if name == "descent" and found is not None:
        counts = {field.name for field in dataclasses.fields(lyapflow.DescentCount)}
        if set(found) != counts:
            raise ConfigError(f"descent must have {', '.join(sorted(counts))}, got {', '.join(sorted(found))}")
    return found if isinstance(found, float) else value  # lists stay lists


def _plain(value: Any) -> Any:
    """Without numbers that JSON does not have; they are written as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
