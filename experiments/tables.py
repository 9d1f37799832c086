"""The tables of all studies, from records alone: the page of the docs, and the part of the README."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lyapflow_graph.metrics import METRICS
from lyapflow_graph.training import Record
from lyapflow_graph.training.files import write
from lyapflow_graph.training.markup import markdown_table
from lyapflow_graph.training.report import Row, duration, label, paper_on, rises, spread

from .study import RESULTS, Study, load_study, study_names

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
BEGIN = "<!-- written by `python -m experiments tables`; do not edit -->"
END = "<!-- end of results -->"

_IN_README = ("property_prediction", "heterophilous", "standard_datasets")
_ORDER = ("property_variants", "property_prediction", "heterophilous", "standard_datasets", "options", "depth")


def write_all(results: Path = RESULTS, page: Path = PAGE, readme: Path = README) -> list[Path]:
    """Write the page and the part of the README.

    Args:
        results: The folder of the records.
        page: Of the docs.
        readme: The README.
    """
    found = [study for study in _studies() if _table(study, results)]
    text = ["# Results", "", _INTRODUCTION, ""]
    measured = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    for study in found:
        text += [*_section(study, results), ""]
        text += [line for result in measured if result["after"] == study.name for line in (*_measured(result), "")]
    write(page, "\n".join(text))
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    short = [line for study in found if study.name in _IN_README for line in (*_short(study, results), "")]
    write(readme, "\n".join([before + BEGIN, "", *short, END + after]))
    return [page, readme]


_INTRODUCTION = f"""{BEGIN}

What came out of the paper's experiments on two cores of a CPU, beside what the paper reports. Budgets are far smaller
than the paper's and are stated with every table; model selection was on the validation set only. A figure is the mean
and, over several runs, the standard deviation on the test set, with the weights of the best epoch on the validation
set; *paper* is what the paper on TANGO reports for that cell. Every figure is written from the record of its run in
`experiments/results`, with its configuration, seed, versions and data.

```sh
python -m experiments tables                     # this page, from the records
python -m experiments run heterophilous          # what is missing of a study
python -m experiments run depth --column "L = 8" --row GatedGCN --again   # one cell, once more
```"""


def _studies() -> list[Study]:
    names = study_names()
    return [load_study(name) for name in sorted(names, key=lambda name: (_ORDER + tuple(names)).index(name))]


# -- studies of runs --------------------------------------------------------------------------------------------------


def _row(study: Study, row: str, column: str, results: Path) -> Row | None:
    """The runs of a cell that have ended."""
    cells = [cell for cell in study.cells if (cell.row, cell.column) == (row, column)]
    folders = [results / cell.place for cell in cells]
    records = [Record.load(folder) for folder in folders if (folder / "record.json").exists()]
    if not records:
        return None
    first = records[0]
    return Row(first.dataset, first.metric, label(first), first.family, records)


def _table(study: Study, results: Path) -> dict[tuple[str, str], Row]:
    cells = {(row, column): _row(study, row, column, results) for row in study.rows for column in study.columns}
    return {place: row for place, row in cells.items() if row is not None}


def _section(study: Study, results: Path) -> Iterator[str]:
    found = _table(study, results)
    yield from (f"## {study.title}", "", study.about.strip(), "")
    yield from _main_table(study, found)
    yield from ("", "<details><summary>Runs, budgets and data</summary>", "")
    yield from _details(study, found)
    yield ""
    yield from _data(study, found)
    yield from ("", "</details>")


def _short(study: Study, results: Path) -> Iterator[str]:
    yield from (f"**{study.title}.** {study.about.strip()}", "")
    yield from _main_table(study, _table(study, results))


def _main_table(study: Study, found: Mapping[tuple[str, str], Row]) -> list[str]:
    """A row for each model; a column for each data set, and one beside it where the paper has figures."""
    columns = [column for column in study.columns if any(place[1] == column for place in found)]
    figures = {place: _figure(row, study.papers.get(place[1], row.dataset)) for place, row in found.items()}
    with_paper = [column for column in columns if any(figures[place] for place in figures if place[1] == column)]
    header, cells = ["model"], []
    for column in columns:
        metric = next(METRICS[row.metric] for place, row in found.items() if place[1] == column)
        paper = paper_on(study.papers.get(column, ""))
        header += [f"{column}, {metric.short}{' %' if metric.percent else ''}"]
        header += [] if column not in with_paper else ["paper" if paper is None else f'paper, "{paper.title}"']
    for name in study.rows:
        line = [name]
        for column in columns:
            row = found.get((name, column))
            runs = "" if row is None or len(row.records) == 1 else f" ({len(row.records)})"
            line += ["" if row is None else spread(row, "test") + runs]
            line += [] if column not in with_paper else [figures.get((name, column), "")]
        if any(line[1:]):
            cells.append(line)
    return markdown_table(header, cells)


def _figure(row: Row, dataset: str) -> str:
    paper = paper_on(dataset)
    figure = None if paper is None else paper.figures.get(row.model)
    return "" if figure is None else f"{figure:g}"


def _details(study: Study, found: Mapping[tuple[str, str], Row]) -> list[str]:
    header = ["model", "data", "validation", "seeds", "splits", "epochs", "parameters", "time", "rises", "hash"]
    lines = []
    for (name, column), row in found.items():
        records = row.records
        lines.append(
            [
                name,
                column,
                spread(row, "val"),
                _set(record.seed for record in records),
                _set(record.config["data"]["split"] for record in records),
                f"{statistics.fmean(record.epochs for record in records):.0f}",
                f"{records[0].parameters:,}",
                duration(statistics.fmean(record.seconds for record in records)),
                rises(records),
                f"`{row.family}`",
            ]
        )
    return markdown_table(header, lines)


def _data(study: Study, found: Mapping[tuple[str, str], Row]) -> Iterator[str]:
    """Where the data of each column is from, and the versions."""
    for column in study.columns:
        rows = [row for place, row in found.items() if place[1] == column]
        if rows:
            told = rows[0].records[0].provenance
            yield f"- {column}: " + "; ".join(f"{name} {value}" for name, value in told.items() if value != "")
    versions = {json.dumps(dict(record.versions)) for row in found.values() for record in row.records}
    for one in sorted(versions):
        yield "- " + ", ".join(f"{name} {version}" for name, version in json.loads(one).items())
    yield ""
    yield (
        "*rises* counts the test graphs, over all runs, whose energy rises in some step, and the "
        "steps that the guard shortened; - where it was not counted."
    )


def _set(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(values))))


# -- what scripts measured --------------------------------------------------------------------------------------------


def _measured(result: Mapping[str, Any]) -> Iterator[str]:
    """Tables that a script of `experiments` has written as they are."""
    yield from (f"## {result['title']}", "", result["about"], "")
    for table in result["tables"]:
        if table.get("title"):
            yield from (f"### {table['title']}", "")
        yield from markdown_table(table["header"], table["rows"])
        yield ""
    for image in result.get("images", ()):
        yield from (f"![{image['alt']}](images/{image['file']})", "")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    yield f"Written by `{result['command']}`; seed {result['seed']}; {versions}."


def save_measured(
    name: str,
    *,
    after: str,
    title: str,
    about: str,
    command: str,
    seed: int,
    tables: Sequence[Mapping[str, Any]],
    images: Sequence[Mapping[str, str]] = (),
    results: Path = RESULTS,
) -> Path:
    """What a script measured, for the page.

    Args:
        name: Of the file.
        after: The study that it is shown after.
        title: Of the section.
        about: What is said above the tables.
        command: How to measure it again.
        seed: Of the random numbers.
        tables: Each with `header`, `rows` of texts and if there are several a `title`.
        images: Each with `file`, in `docs/images`, and `alt`.
        results: The folder.
    """
    from lyapflow_graph.training.record import versions

    told = {"after": after, "title": title, "about": about, "command": command, "seed": seed, "versions": versions()}
    path = results / f"{name}.json"
    results.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps({**told, "tables": tables, "images": images}, indent=1) + "\n")
    return path
