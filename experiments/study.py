"""Studies: tables of runs, each described by a TOML file with its rows, its columns and its budget.

A file of `experiments/studies` has

- `title` and `about`, which go above the table;
- `set`, settings of all runs as `lyapflow train --set` takes them: the budget;
- `seeds` and `splits`, a run for each;
- `[rows.NAME]` with `config`, a file in the folder of the column, and `set`, settings of this row;
- `[columns.NAME]` with `folder`, a folder of `experiments/configs`, `set`, and if they differ `seeds`, `splits`, the
  `rows` that this column has, `of` with settings of single rows in it, and `paper`, the data set whose figures of the
  paper stand beside it, "" for none.

A cell is a row in a column. Its runs keep their checkpoints in `runs/`, and leave `record.json`, which has the
configuration, in `experiments/results/STUDY/ROW/COLUMN/SPLIT-SEED` when they have ended.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lyapflow_graph.training import Config, ConfigError, load_config
from lyapflow_graph.training.schema import check_names

HERE = Path(__file__).parent
RESULTS = HERE / "results"

_STUDY = ("title", "about", "set", "seeds", "splits", "rows", "columns")
_ROW = ("config", "set")
_COLUMN = ("folder", "set", "seeds", "splits", "rows", "of", "paper")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        study: The name of the study.
        row: The name of its row.
        column: The name of its column.
        path: Its configuration.
        settings: What is set otherwise than there.
        seed: Of the run.
        split: Of the data.
    """

    study: str
    row: str
    column: str
    path: Path
    settings: Sequence[str]
    seed: int
    split: int

    @property
    def config(self) -> Config:
        """The whole configuration."""
        return load_config(self.path, [*self.settings, f"seed={self.seed}", f"data.split={self.split}"])

    @property
    def place(self) -> Path:
        """Where the run is kept, below a folder of results or of runs."""
        return Path(self.study, slug(self.row), slug(self.column), f"{self.split}-{self.seed}")

    def __str__(self) -> str:
        return f"{self.study}: {self.row}, {self.column}, split {self.split}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class Study:
    """A table of runs.

    Attributes:
        name: Of its file.
        title: Of the table.
        about: What is said above it.
        rows: Their names.
        columns: Their names.
        papers: Of columns that say so, the data set whose figures of the paper are shown.
        cells: All runs, the first seed and split of every cell first.
    """

    name: str
    title: str
    about: str
    rows: Sequence[str]
    columns: Sequence[str]
    papers: Mapping[str, str]
    cells: Sequence[Cell]


def load_study(name: str, folder: Path = HERE) -> Study:
    """Read a study by its name.

    Args:
        name: Of a file in `studies`, without its ending.
        folder: That of `studies` and of `configs`.
    """
    path = folder / "studies" / f"{name}.toml"
    if not path.exists():
        known = ", ".join(study_names(folder))
        raise ConfigError(f"there is no study {name!r}; there are: {known}")
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    check_names("", tables, _STUDY)
    for row, told in tables["rows"].items():
        check_names(f"rows.{row}.", told, _ROW)
    for column, told in tables["columns"].items():
        check_names(f"columns.{column}.", told, _COLUMN)
        check_names(f"columns.{column}.rows: ", told.get("rows", ()), tables["rows"])
        check_names(f"columns.{column}.of.", told.get("of", ()), tables["rows"])
    cells = sorted(_cells(name, tables, folder), key=lambda found: found[0])
    return Study(
        name,
        tables["title"],
        tables["about"],
        list(tables["rows"]),
        list(tables["columns"]),
        {name: told["paper"] for name, told in tables["columns"].items() if "paper" in told},
        [cell for _, cell in cells],
    )


def study_names(folder: Path = HERE) -> list[str]:
    """Of all studies."""
    return sorted(path.stem for path in (folder / "studies").glob("*.toml"))


def _cells(name: str, tables: Mapping[str, Any], folder: Path) -> Iterator[tuple[int, Cell]]:
    """Every run with its turn: a cell has its second run when all have had their first."""
    for column, of_column in tables["columns"].items():
        seeds = of_column.get("seeds", tables.get("seeds", [0]))
        splits = of_column.get("splits", tables.get("splits", [0]))
        for row in of_column.get("rows", tables["rows"]):
            of_row = tables["rows"][row]
            settings = [*tables.get("set", ()), *of_column.get("set", ()), *of_row.get("set", ())]
            settings += of_column.get("of", {}).get(row, ())
            path = folder / "configs" / of_column["folder"] / of_row["config"]
            for turn, (split, seed) in enumerate((split, seed) for split in splits for seed in seeds):
                yield turn, Cell(name, row, column, path, tuple(settings), seed, split)


def slug(text: str) -> str:
    """As the name of a folder.

    >>> slug("TANGO, GatedGCN (ours)")
    'tango-gatedgcn-ours'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
