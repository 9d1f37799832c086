"""Tables over many runs, from their records alone, beside what the paper reports."""

from __future__ import annotations

import dataclasses
import html
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path

from lyapflow import DescentCount

from ..metrics import METRICS
from .files import DamagedError, write
from .markup import html_page, html_table, markdown_table
from .record import Record

_HEADER = (
    "model",
    "test",
    "validation",
    "runs",
    "paper",
    "parameters",
    "epochs",
    "time",
    "energy rises",
    "configuration",
)


@dataclasses.dataclass(frozen=True)
class Paper:
    """What the paper reports of a dataset.

    Attributes:
        title: As it calls it.
        figures: By the kind of the model, in the units of the paper.
        same_data: Whether it is the same data, and not one in its likeness.
    """

    title: str
    figures: Mapping[str, float]
    same_data: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """Runs that differ in their seeds and splits only.

    Attributes:
        dataset: The name of the data.
        metric: What is averaged.
        model: What was trained.
        family: The hash of the configuration.
        records: Of the runs.
    """

    dataset: str
    metric: str
    model: str
    family: str
    records: Sequence[Record]

    def mean(self, name: str) -> float:
        """The mean of a number of the records, in units of the report."""
        return METRICS[self.metric].scale * statistics.fmean(self._values(name))

    def deviation(self, name: str) -> float | None:
        """The standard deviation over the runs; None for a single one."""
        values = self._values(name)
        return METRICS[self.metric].scale * statistics.stdev(values) if len(values) > 1 else None

    def _values(self, name: str) -> list[float]:
        return [float(getattr(record, name)) for record in self.records]


@dataclasses.dataclass(frozen=True)
class Report:
    """Tables of runs, one for each dataset.

    Attributes:
        rows: Of all tables, the best of each dataset first.
        notes: What was left out, and why.

    >>> from lyapflow_graph.training import Report
    >>> print(Report([], ["runs/3: it has not ended"]).markdown().splitlines()[-1])
    - runs/3: it has not ended
    """

    rows: Sequence[Row]
    notes: Sequence[str]

    def markdown(self) -> str:
        """As Markdown."""
        parts = ["# Results", "", _ABOUT, ""]
        for title, about, cells in self._tables():
            parts += [f"## {title}", "", about, "", *markdown_table(_HEADER, cells), ""]
        if self.notes:
            parts += ["## Left out", "", *(f"- {note}" for note in self.notes), ""]
        return "\n".join(parts)

    def html(self) -> str:
        """As one HTML page that needs nothing else."""
        parts = [f"<h1>Results</h1><p>{html.escape(_ABOUT)}</p>"]
        for title, about, cells in self._tables():
            parts.append(f"<h2>{html.escape(title)}</h2><p>{html.escape(about)}</p>")
            parts.append(html_table(_HEADER, cells))
        if self.notes:
            parts.append(
                "<h2>Left out</h2><ul>" + "".join(f"<li>{html.escape(note)}</li>" for note in self.notes) + "</ul>"
            )
        return html_page("Results", parts)

    def save(self, folder: str | Path) -> tuple[Path, Path]:
        """Write `report.md` and `report.html`."""
        paths = Path(folder) / "report.md", Path(folder) / "report.html"
        write(paths[0], self.markdown())
        write(paths[1], self.html())
        return paths

    def _tables(self) -> Iterable[tuple[str, str, list[list[str]]]]:
        for name in dict.fromkeys(row.dataset for row in self.rows):
            rows, paper = [row for row in self.rows if row.dataset == name], paper_on(name)
            metric = METRICS[rows[0].metric]
            better, unit = "higher" if metric.maximise else "lower", ", %" if metric.percent else ""
            about = f"{metric.title}{unit}; {better} is better."
            if paper is not None and not paper.same_data:
                about += f" The data is in the likeness of the paper's {paper.title}, not the same."
            title = name if paper is None else f"{paper.title} ({name})"
            yield title, about, [_cells(row, paper) for row in rows]


_ABOUT = (
    "Mean ± standard deviation over runs that differ in seed and split only. `test` is the metric on the test set with "
    "the weights that the validation set chose. Written from the records of the runs."
)


def report(folder: str | Path) -> Report:
    """The tables of all runs below a folder. Runs that have not ended or were pruned are named and left out.

    Args:
        folder: Which has folders of runs, at any depth.

    >>> import tempfile
    >>> from lyapflow_graph.training import report
    >>> report(tempfile.mkdtemp())
    Traceback (most recent call last):
    FileNotFoundError: there are no records of runs (record.json) in ...
    """
    folder = Path(folder)
    found: dict[tuple[str, str], list[Record]] = {}
    notes = []
    for run in sorted({path.parent for name in ("config.toml", "record.json") for path in folder.rglob(name)}):
        where = run.relative_to(folder)
        try:
            record = Record.load(run)
        except FileNotFoundError:
            notes.append(f"{where}: it has not ended")
            continue
        except DamagedError as error:
            notes.append(str(error))
            continue
        if record.status != "finished":
            notes.append(f"{where}: {record.status} after {record.epochs} epochs")
            continue
        if record.metric not in METRICS:
            notes.append(f"{where}: its metric {record.metric} is not known here; import the module that registers it")
            continue
        found.setdefault((record.dataset, record.family), []).append(record)
    if not found:
        unfinished = f"; {'; '.join(notes)}" if notes else ""
        raise FileNotFoundError(f"there are no records of runs (record.json) in {folder}{unfinished}")
    rows = [Row(name, runs[0].metric, label(runs[0]), family, runs) for (name, family), runs in found.items()]
    return Report(sorted(rows, key=lambda row: (row.dataset, _rank(row))), notes)


def label(record: Record) -> str:
    """What was trained, in a few words: `tango gatedgcn`, with the ablation if there is one.

    The names of `paper.toml` are of this form.
    """
    model = record.config["model"]
    words = [model["kind"]]
    if model["kind"] == "tango":
        words += [model.get(name) for name in ("backbone", "ablation")]
    return " ".join(str(word) for word in words if word)


def paper_on(dataset: str) -> Paper | None:
    """What the paper reports of a dataset, if anything.

    >>> from lyapflow_graph.training.report import paper_on
    >>> paper_on("minesweeper").figures["tango gatedgcn"]
    98.32
    """
    text = resources.files(__package__).joinpath("paper.toml").read_text(encoding="utf-8")
    for entry in tomllib.loads(text)["dataset"]:
        if dataset in entry["names"]:
            return Paper(entry["title"], entry["figures"], dataset == entry["names"][0])
    return None


def _rank(row: Row) -> float:
    return -row.mean("test") if METRICS[row.metric].maximise else row.mean("test")


def _cells(row: Row, paper: Paper | None) -> list[str]:
    figure = None if paper is None else paper.figures.get(row.model)
    return [
        row.model,
        spread(row, "test"),
        spread(row, "val"),
        str(len(row.records)),
        "-" if figure is None else f"{figure:g}",
        f"{row.records[0].parameters:,}",
        f"{statistics.fmean(record.epochs for record in row.records):.0f}",
        duration(statistics.fmean(record.seconds for record in row.records)),
        rises(row.records),
        row.family,
    ]


def rises(records: Sequence[Record]) -> str:
    """In how many test graphs of these runs the energy rises, as tables show it."""
    counts = [DescentCount(**record.descent) for record in records if record.descent is not None]
    total = sum(counts, DescentCount())
    shortened = f", {total.shortened_steps:,} of {total.steps:,} steps shortened" if total.shortened_steps else ""
    return f"{total.rising_systems:,} of {total.systems:,}{shortened}" if counts else "-"


def spread(row: Row, name: str) -> str:
    """The mean and standard deviation of a number of the records, as tables show them."""
    deviation = row.deviation(name)
    digits = 2 if METRICS[row.metric].percent else 4
    mean = f"{row.mean(name):.{digits}f}"
    return mean if deviation is None else f"{mean} ± {deviation:.{digits}f}"


def duration(seconds: float) -> str:
    """As tables show it.

    >>> duration(5025)
    '1 h 23 min'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
