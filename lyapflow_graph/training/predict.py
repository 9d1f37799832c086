"""What a trained model says about data, as a table, with a count of the steps in which its energy rises."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet
import torch
from torch import Tensor
from torch_geometric.data import Data

from lyapflow import DescentCount

from ..conv import DynamicsConv
from ..data.dataset import GraphDataset
from ..data.loader import BatchLoader
from ..losses import LOSSES
from .energy_monitor import flow_of, forward_with_energy
from .export import Exported, load_exported
from .files import write
from .run import load_dataset, prepared

Part = Literal["train", "val", "test"]
Columns = Mapping[str, Tensor | list[str]]
_IN_ONE_PASS = 64


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What a model says about the nodes or graphs of some data.

    Attributes:
        table: A row for each: `part`, `graph` (its number in the part), `node` (its number in the graph), and then
            `class` and `probability_0`, ... for classes, `probability` for yes or no, `value` for regression, numbered
            where there are several; `label` likewise, where the data has labels.
        descent: In how many graphs and steps of this data the energy rises; None for a model without an energy.

    >>> import tempfile
    >>> from lyapflow_graph.training import Predictions
    >>> found = Predictions(pa.table({"part": ["test"], "graph": [0], "value": [0.5]}), None)
    >>> found.save(Path(tempfile.mkdtemp(), "out.parquet")).name
    'out.parquet'
    """

    table: pa.Table
    descent: DescentCount | None

    def save(self, path: str | Path) -> Path:
        """Write the table as a Parquet file."""
        sink = pa.BufferOutputStream()
        pyarrow.parquet.write_table(self.table, sink)
        write(Path(path), sink.getvalue().to_pybytes())
        return Path(path)


def predict(
    run: str | Path,
    data: str | GraphDataset | None = None,
    *,
    parts: Iterable[Part] = ("train", "val", "test"),
    root: str | None = None,
) -> Predictions:
    """Apply the model of a run to data.

    Args:
        run: The folder of a run, or a file of `lyapflow export`.
        data: As :func:`lyapflow_graph.data.load` takes it, or the data itself; by default that of the run, unless that
            is code (`module:object`), which is imported only if it is given here. It gets the positional encodings
            that the model was trained with.
        parts: Which parts of it.
        root: The folder of the files; by default that of the run.

    >>> from lyapflow_graph.training import predict
    >>> predict("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: there is no model nowhere; a run writes it when it has ended
    """
    exported, chosen = load_exported(run), tuple(parts)
    for part in chosen:
        if part not in get_args(Part):
            raise ValueError(f"parts must be of {', '.join(get_args(Part))}, got {part!r}")
    found = _data_of(exported, data, root)
    _check(exported.dataset, found)
    columns: list[Columns] = []
    flow = flow_of(exported.model)
    count = None if flow is None else DescentCount()
    for part in chosen:
        rows, counted = _rows(exported, flow, part, getattr(found, part))
        columns += rows
        count = None if count is None else count + counted
    table = pa.concat_tables([pa.table({name: _array(value) for name, value in rows.items()}) for rows in columns])
    table = table.replace_schema_metadata({"dataset": found.name, "run": exported.config.hash})
    return Predictions(table, count)


def _data_of(exported: Exported, data: str | GraphDataset | None, root: str | None) -> GraphDataset:
    if isinstance(data, GraphDataset):
        return prepared(data, exported.config)
    given = exported.config.data
    # Options belong to the data of the run; other data is taken as it is, with the encodings that the model needs.
    changed = given if data in (None, given.name) else dataclasses.replace(given, split=0, options={})
    changed = dataclasses.replace(changed, name=data or given.name, root=root or given.root)
    return prepared(load_dataset(changed), dataclasses.replace(exported.config, data=changed))


def _check(trained: GraphDataset, given: GraphDataset) -> None:
    for name in ("task", "in_channels", "edge_dim", "out_channels"):
        if getattr(trained, name) != getattr(given, name):
            was, now = getattr(trained, name), getattr(given, name)
            raise ValueError(f"the model was trained for {name}={was}, but {given.name} has {name}={now}")


@torch.no_grad()
def _rows(
    exported: Exported, flow: DynamicsConv | None, part: str, graphs: Sequence[Data]
) -> tuple[list[Columns], DescentCount]:
    found: list[Columns] = []
    before, count_of_part = 0, DescentCount()
    for batch in BatchLoader(graphs, _IN_ONE_PASS) if len(graphs) else ():
        several = getattr(batch, "batch", None) is not None
        if flow is None:
            output = exported.model(batch)
        else:
            output, solution = forward_with_energy(exported.model, flow, batch)
            count_of_part += DescentCount.of(solution)
        count = int(batch.num_graphs) if several else 1
        place: dict[str, Tensor | list[str]] = {"part": [part] * len(output)}
        if exported.dataset.task == "graph":
            place["graph"] = before + torch.arange(count)
        else:
            graph = batch.batch if several else torch.zeros(len(output), dtype=torch.long)
            first = batch.ptr if several else torch.zeros(1, dtype=torch.long)
            place |= {"graph": before + graph, "node": torch.arange(len(output)) - first[graph]}
        rows = {**place, **_predicted(output, exported.dataset), **_labels(batch, output)}
        mask = getattr(batch, "mask", None)
        found.append(rows if mask is None else {name: _chosen(value, mask) for name, value in rows.items()})
        before += count
    return found, count_of_part


def _predicted(output: Tensor, dataset: GraphDataset) -> Columns:
    labels = LOSSES[dataset.loss].labels
    if labels == "classes":
        shares = output.double().softmax(1)
        return {"class": output.argmax(1), **{f"probability_{k}": shares[:, k] for k in range(shares.shape[1])}}
    if labels == "binary":
        return _numbered("probability", output.double().sigmoid())
    return _numbered("value", output.double())


def _labels(batch: Any, output: Tensor) -> Columns:
    labels = getattr(batch, "y", None)
    if labels is None:
        return {}
    return _numbered("label", labels.reshape(len(output), -1))


def _numbered(name: str, values: Tensor) -> Columns:
    if values.shape[1] == 1:
        return {name: values[:, 0]}
    return {f"{name}_{k}": values[:, k] for k in range(values.shape[1])}


def _chosen(values: Tensor | list[str], mask: Tensor) -> Tensor | list[str]:
    return values[mask] if isinstance(values, Tensor) else values[: int(mask.sum())]


def _array(values: Tensor | list[str]) -> pa.Array:
    return pa.array(values.numpy() if isinstance(values, Tensor) else values)
