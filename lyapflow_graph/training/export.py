"""A trained model as one file that runs no code when it is read."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..data.dataset import GraphDataset
from ..models import GraphModel
from .config import Config
from .files import DamagedError, load_tensors, save_tensors
from .model import make_model
from .schema import ConfigError, check_names, convert

_FORMAT = 1
_ABOUT = ("name", "task", "in_channels", "out_channels", "edge_dim", "loss", "metric", "pe")
_PARTS = ("num_layers", "towers", "pre_layers", "post_layers")


@dataclasses.dataclass(frozen=True)
class Exported:
    """A trained model with what is needed to use it.

    Attributes:
        model: In evaluation mode.
        config: Of the run that it is from.
        dataset: What it was trained for, without the graphs: the task, widths, loss and metric.
    """

    model: GraphModel
    config: Config
    dataset: GraphDataset


def export_model(path: str | Path, model: GraphModel, config: Config, dataset: GraphDataset) -> Path:
    """Write a model to a file, for :func:`load_model`.

    Args:
        path: The file.
        model: The model.
        config: Of the run that it is from.
        dataset: What it is for.

    >>> import tempfile
    >>> from lyapflow_graph import Tango
    >>> from lyapflow_graph.training import Config, DataConfig, ModelConfig, export_model, load_model
    >>> about = GraphDataset("mine", "node", [], [], [], 5, 2, None, "cross_entropy", "accuracy")
    >>> config = Config(DataConfig("mine"), ModelConfig("tango", 8))
    >>> path = export_model(Path(tempfile.mkdtemp(), "model.pt"), Tango(5, 8, 2), config, about)
    >>> load_model(path).hidden_channels
    8
    """
    path = Path(path)
    about = {name: _plain(getattr(dataset, name)) for name in _ABOUT}
    weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    save_tensors(path, {"format": _FORMAT, "config": config.to_dict(), "benchmark": about, "weights": weights})
    return path


def load_exported(path: str | Path) -> Exported:
    """A model, its configuration and what it is for, from a file or the folder of a run."""
    path = Path(path)
    path = path / "model.pt" if path.is_dir() else path
    if not path.exists():
        raise FileNotFoundError(f"there is no model {path}; a run writes it when it has ended")
    read = load_tensors(path)
    written = read.get("format")
    if not isinstance(written, int) or written != _FORMAT or not {"config", "benchmark", "weights"} <= set(read):
        raise DamagedError(f"{path} is not a model of format {_FORMAT}")
    try:
        config, dataset = Config.from_file(read["config"]), _dataset(read["benchmark"])
        return Exported(_model(config, dataset, read["weights"]), config, dataset)
    except Exception as error:  # whatever comes of building what the file describes
        raise DamagedError(f"{path} describes no model that this version can build: {error}") from error


def load_model(path: str | Path) -> GraphModel:
    """The trained model of a run, in evaluation mode, from its folder or from an exported file.

    The file cannot run code: it holds tensors, numbers and texts, and names in it import nothing. The model takes no
    more memory than its weights in the file.

    Args:
        path: The folder of a run, or a file of `lyapflow export`.

    >>> from lyapflow_graph.training import load_model
    >>> load_model("nowhere.pt")
    Traceback (most recent call last):
    FileNotFoundError: there is no model nowhere.pt; a run writes it when it has ended
    """
    return load_exported(path).model


def _dataset(read: Any) -> GraphDataset:
    hints = typing.get_type_hints(GraphDataset)
    given = convert("benchmark", read, Mapping)
    check_names("benchmark.", given, _ABOUT)
    about = {name: convert(f"benchmark.{name}", given.get(name), hints[name]) for name in _ABOUT}
    return GraphDataset(train=[], val=[], test=[], **about)


def _model(config: Config, dataset: GraphDataset, read: Any) -> GraphModel:
    weights = convert("weights", read, Mapping)
    made = config.model.kind, config.model.hidden_channels, config.model.options, dataset
    _check_counts(config.model.options, len(weights))
    with torch.device("meta"):  # its sizes, before there is memory for them
        sizes = {name: tuple(value.shape) for name, value in make_model(*made).state_dict().items()}
    if sizes != {name: tuple(value.shape) for name, value in weights.items()}:
        raise ConfigError("its weights are not those of the model that its configuration describes")
    model = make_model(*made)
    model.to(next((value.dtype for value in weights.values() if value.is_floating_point()), torch.float32))
    model.load_state_dict(weights)
    return model.eval()


def _check_counts(options: Mapping[str, Any], weights: int) -> None:
    """That a model has no more parts than there are weights."""
    parts = [*_PARTS, *(() if options.get("share_weights", True) else ("num_steps",))]
    for name, value in {**options, **(options.get("backbone_options") or {})}.items():
        if name in parts and isinstance(value, int) and value > weights:
            raise ConfigError(f"model.{name} is {value}, but there are weights of {weights} parts only")


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
