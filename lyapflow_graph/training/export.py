"""A trained model as one file that runs no code when it is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from ..data.dataset import GraphDataset
from ..models import GraphModel
from .config import Config
from .files import DamagedError, load_tensors, save_tensors
from .model import make_model

_FORMAT = 1


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
    about = {
        "name": dataset.name,
        "task": dataset.task,
        "in_channels": _plain(dataset.in_channels),
        "out_channels": dataset.out_channels,
        "edge_dim": _plain(dataset.edge_dim),
        "loss": dataset.loss,
        "metric": dataset.metric,
        "pe": dict(dataset.pe),
    }
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
    if read.get("format") != _FORMAT or not {"config", "benchmark", "weights"} <= set(read):
        raise DamagedError(f"{path} is not a model of format {_FORMAT}")
    config, dataset = Config.from_dict(read["config"]), _dataset(**read["benchmark"])
    model = make_model(config.model.kind, config.model.hidden_channels, config.model.options, dataset)
    model.to(next(value.dtype for value in read["weights"].values() if value.is_floating_point()))
    model.load_state_dict(read["weights"])
    return Exported(model.eval(), config, dataset)


def load_model(path: str | Path) -> GraphModel:
    """The trained model of a run, in evaluation mode, from its folder or from an exported file.

    Nothing of the file is executed: it holds tensors, numbers and texts.

    Args:
        path: The folder of a run, or a file of `lyapflow export`.

    >>> from lyapflow_graph.training import load_model
    >>> load_model("nowhere.pt")
    Traceback (most recent call last):
    FileNotFoundError: there is no model nowhere.pt; a run writes it when it has ended
    """
    return load_exported(path).model


def _dataset(
    name: str,
    task: Literal["node", "graph"],
    in_channels: int | list[int],
    out_channels: int,
    edge_dim: int | list[int] | None,
    loss: str,
    metric: str,
    pe: dict[str, int],
) -> GraphDataset:
    widths = tuple(in_channels) if isinstance(in_channels, list) else in_channels
    edges = tuple(edge_dim) if isinstance(edge_dim, list) else edge_dim
    return GraphDataset(name, task, [], [], [], widths, out_channels, edges, loss, metric, pe)


def _plain(widths: Any) -> Any:
    return widths if widths is None or isinstance(widths, int) else list(widths)
