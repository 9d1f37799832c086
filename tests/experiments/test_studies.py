"""Studies say what is run, runs leave records, and the tables are those of the records."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import experiments.__main__ as command
from experiments import tables
from experiments.study import HERE, RESULTS, load_study, slug, study_names
from lyapflow_graph.training import ConfigError, Record

STUDY = """
title = "Bridges"
about = "Tiny."
set = ["training.epochs=1"]
seeds = [3, 4]
[rows."GatedGCN"]
config = "gatedgcn.toml"
set = ["model.num_layers=1"]
[rows."TANGO, GatedGCN"]
config = "tango_gatedgcn.toml"
[columns."short"]
folder = "barbell"
set = ["data.options={ cliques = 2, bridge = 1, graphs = 12 }"]
of = { "TANGO, GatedGCN" = ["model.num_steps=1"] }
[columns."long"]
folder = "barbell"
seeds = [0]
rows = ["GatedGCN"]
paper = "gpp/sssp"
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    shutil.copytree(HERE / "configs" / "barbell", tmp_path / "configs" / "barbell")
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "bridges.toml").write_text(STUDY)
    return tmp_path


@pytest.mark.parametrize("name", study_names())
def test_every_study_can_be_read_and_no_two_of_its_runs_share_a_place(name: str) -> None:
    study = load_study(name)
    assert {cell.row for cell in study.cells} == set(study.rows)
    assert {cell.column for cell in study.cells} == set(study.columns)
    assert len({cell.place for cell in study.cells}) == len(study.cells)
    for cell in study.cells:
        assert cell.config.seed == cell.seed
        assert cell.config.data.split == cell.split


@pytest.mark.parametrize("name", study_names())
def test_records_are_of_the_configurations_that_the_study_has_now(name: str) -> None:
    for cell in load_study(name).cells:
        if (RESULTS / cell.place / "record.json").exists():
            record = Record.load(RESULTS / cell.place)
            # Read anew: an option that is younger than the record has the default that leaves everything as it was.
            found = record.configuration.hash, record.seed, record.status
            assert found == (cell.config.hash, cell.seed, "finished"), str(cell)


def test_the_runs_of_a_study(here: Path) -> None:
    study = load_study("bridges", here)
    assert study.papers == {"long": "gpp/sssp"}
    told = [(cell.row, cell.column, cell.seed) for cell in study.cells]
    assert told == [
        ("GatedGCN", "short", 3),
        ("TANGO, GatedGCN", "short", 3),
        ("GatedGCN", "long", 0),
        ("GatedGCN", "short", 4),
        ("TANGO, GatedGCN", "short", 4),
    ]
    short, flow, long = (cell.config for cell in study.cells[:3])
    assert short.data.options["graphs"] == 12
    assert long.data.options["graphs"] == 1250
    assert (short.model.options["num_layers"], short.training.epochs) == (1, 1)
    assert flow.model.options["num_steps"] == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('rows = ["GatedGCN"]', 'rows = ["GatedGNC"]', "did you mean .*GatedGCN"),
        ("seeds = [0]", "seed = [0]", "unknown key columns.long.seed; did you mean columns.long.seeds"),
        ("epochs=1", "epoch=1", "unknown key training.epoch"),
    ],
)
def test_wrong_words_in_a_study(here: Path, old: str, new: str, said: str) -> None:
    path = here / "studies" / "bridges.toml"
    path.write_text(STUDY.replace(old, new))
    with pytest.raises(ConfigError, match=said):
        _ = [cell.config for cell in load_study("bridges", here).cells]
    with pytest.raises(ConfigError, match="there is no study 'bridge'; there are: bridges"):
        load_study("bridge", here)


def test_what_is_missing_is_run_and_tables_come_of_the_records(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, runs = here / "results", here / "runs"
    monkeypatch.setattr(command, "RESULTS", results)
    monkeypatch.setattr(command, "load_study", lambda name: load_study(name, here))
    monkeypatch.setattr(tables, "_studies", lambda: [load_study("bridges", here)])
    monkeypatch.setattr(tables, "_IN_README", ("bridges",))
    arguments = ["run", "bridges", "--column", "short", "--runs", str(runs)]
    done = CliRunner().invoke(command.app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert done.output.count(": val ") == 4
    assert CliRunner().invoke(command.app, arguments, catch_exceptions=False).output == ""
    wrong = CliRunner().invoke(command.app, ["run", "bridges", "--column", "tall"])
    assert wrong.exit_code != 0
    assert "short" in wrong.output

    readme = here / "README.md"
    readme.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    tables.save_measured(
        "one",
        after="bridges",
        title="Measured",
        about="So.",
        command="x",
        seed=7,
        tables=[{"header": ["a"], "rows": [["42"]]}],
        results=results,
    )
    tables.write_all(results, here / "results.md", readme)
    page = (here / "results.md").read_text()
    cells = [cell for cell in load_study("bridges", here).cells if cell.column == "short"]
    values = [Record.load(results / cell.place).test or 0.0 for cell in cells if cell.row == "GatedGCN"]
    assert f"| GatedGCN | {sum(values) / 2:.4f} ± " in page
    assert "(2)" in page
    assert "long" not in page.split("## Bridges")[1].split("<details>")[0]
    assert "| 42 |" in page
    assert "Written by `x`; seed 7" in page
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| GatedGCN |" in text


def test_the_figures_of_another_data_set_stand_beside_a_column_that_names_it(here: Path) -> None:
    study = load_study("bridges", here)
    record = Record.load(next(RESULTS.rglob("record.json")).parent)
    for cell in study.cells[:3]:
        folder = here / "results" / cell.place
        folder.mkdir(parents=True)
        dataclasses.replace(record, config=cell.config.to_dict(), dataset="barbell", metric="log10_mse").save(folder)
    header, _, first, second = tables._main_table(study, tables._table(study, here / "results"))
    assert 'paper, "SSSP"' in header
    assert "-3.261" in first
    assert "-5.0626" not in second


def test_the_page_and_the_readme_are_those_of_the_records(tmp_path: Path) -> None:
    """`python -m experiments tables` was run after the last record."""
    page, readme = tmp_path / "results.md", tmp_path / "README.md"
    shutil.copy(tables.README, readme)
    tables.write_all(page=page, readme=readme)
    assert page.read_text() == tables.PAGE.read_text()
    assert readme.read_text() == tables.README.read_text()


def test_what_scripts_measured_is_whole() -> None:
    names = study_names()
    for path in RESULTS.glob("*.json"):
        result = json.loads(path.read_text())
        assert result["after"] in names
        for table in result["tables"]:
            assert all(len(row) == len(table["header"]) for row in table["rows"])


def test_names_of_folders() -> None:
    assert slug("TANGO, GatedGCN (ours)") == "tango-gatedgcn-ours"
