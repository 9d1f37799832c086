"""What the command `lyapflow data` can do. Needs Typer and Rich: `pip install "lyapflow[cli]"`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from torch_geometric.data import Data

from ..metrics import METRICS
from .dataset import GraphDataset
from .graphs import GraphSet
from .importing import import_files
from .registry import ENTRIES, load
from .sources import default_root

app = typer.Typer(
    name="lyapflow data",
    help="Data sets: which there are, what is in them, and files that you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
out, errors = Console(highlight=False), Console(stderr=True, highlight=False)

Root = Annotated[
    Path | None, typer.Option(help="The folder for files and caches; $LYAPFLOW_ROOT or ~/.cache/lyapflow.")
]


@app.command("list")
def list_sets(root: Root = None) -> None:
    """List the data sets, and whether their files are there."""
    where = default_root() if root is None else root
    table = _table("name", "files", "about")
    for entry in ENTRIES.values():
        state = "generated" if not entry.sources else "here" if entry.available(where) else "missing"
        table.add_row(entry.name, state, entry.about)
    out.print(table)
    out.print(f"root: {where}", markup=False)


@app.command("import")
def run_import(
    folder: Annotated[
        Path, typer.Argument(help="Where your files are; folders and zip files in it are looked through.")
    ],
    root: Root = None,
) -> None:
    """Copy files of data sets to where they are looked for. The exit code is 2 if one is damaged or none is found."""
    found = import_files(folder, root, progress=True)
    table = _table("file", "belongs to", "outcome")
    for one in found:
        table.add_row(one.found.name, one.path, one.outcome, style="red" if one.outcome == "refused" else None)
    if found:
        out.print(table)
    for one in found:
        if one.reason:
            errors.print(f"error: {one.reason}", markup=False, soft_wrap=True)
    if not found:
        errors.print(f"error: {folder} has no file of a known data set", markup=False, soft_wrap=True)
    raise typer.Exit(0 if found and all(one.outcome != "refused" for one in found) else 2)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="From `lyapflow data list`, module:object, or a folder of npz files.")],
    root: Root = None,
    split: Annotated[int, typer.Option(help="Which, where there are several.")] = 0,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="Of the set, as graphs=100.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Let PyTorch Geometric use the network.")] = False,
) -> None:
    """Load a data set and say what is in it."""
    options = dict(map(_option, option or []))
    dataset = load(name, root, split=split, download=download, progress=True, **options)
    table = _table("part", "graphs", "nodes", "edges", "judged")
    for part, graphs in (("train", dataset.train), ("val", dataset.val), ("test", dataset.test)):
        table.add_row(part, *_sizes(graphs, dataset))
    out.print(table)
    better = "larger" if METRICS[dataset.metric].maximise else "smaller"
    facts: dict[str, object] = {
        "task": dataset.task,
        "loss": dataset.loss,
        "metric": f"{dataset.metric}, better {better}",
        "in_channels": dataset.in_channels,
        "edge_dim": dataset.edge_dim,
        "out_channels": dataset.out_channels,
        **dataset.provenance,
    }
    for key, value in facts.items():
        if value != "":
            out.print(f"{key}: {value}", markup=False, soft_wrap=True)


def _sizes(graphs: Sequence[Data], dataset: GraphDataset) -> list[str]:
    flat = GraphSet.of(graphs)
    nodes, edges = int(flat.node_pointer[-1]), int(flat.pointers["edge_index"][-1])
    mask = flat.tensors.get("mask")
    every = nodes if dataset.task == "node" else len(flat)
    return [f"{count:,}" for count in (len(flat), nodes, edges, every if mask is None else int(mask.sum()))]


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"an option is given as name=value, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a word


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
