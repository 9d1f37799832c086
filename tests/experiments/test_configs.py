"""Every cell of the paper's tables has a configuration, and every configuration trains."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from lyapflow_graph.data import import_files, load
from lyapflow_graph.data.registry import ENTRIES
from lyapflow_graph.training import Config, load_config, train
from lyapflow_graph.training.model import make_model
from lyapflow_graph.training.report import label, paper_on, report
from tests.experiments.stand_ins import GRAPHS, KINDS, Kind, stand_in

FOLDER = Path(__file__).parents[2] / "experiments" / "configs"
OTHERS = {"barbell", "sweeps"}  # no cells of the paper
FILES = sorted(path for path in FOLDER.rglob("*.toml") if path.relative_to(FOLDER).parts[0] not in OTHERS)
NAMES = [path.relative_to(FOLDER).with_suffix("").as_posix() for path in FILES]


def stem(kind: str) -> str:
    """The name of a file, from a kind of model as a report has it."""
    return kind.replace(" ", "_").replace("-", "_")


def limited(config: Config) -> Config:
    """The same in two steps of the optimizer and what belongs to the end of a run."""
    single = KINDS[config.data.name].single
    limits = {"epochs": 2 if single else 1, "batch_size": GRAPHS // 2, "warm_up": 0}
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **limits))


def test_every_cell_of_the_paper_has_its_file_and_there_is_no_other() -> None:
    text = resources.files("lyapflow_graph.training").joinpath("paper.toml").read_text(encoding="utf-8")
    cells = {
        f"{entry['names'][0]}/{stem(kind)}" for entry in tomllib.loads(text)["dataset"] for kind in entry["figures"]
    }
    assert cells == set(NAMES)
    assert len(cells) == 15 * 4 + 4 * 4


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_cell_trains_for_two_steps_and_is_reported_beside_the_paper(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    name = path.parent.relative_to(FOLDER).as_posix()
    assert config.data.name == name
    record = train(
        limited(config),
        tmp_path / "run",
        dataset=stand_in(name, dict(config.data.pe), tmp_path),
        figures=False,
        progress=False,
    )
    assert record.status == "finished"
    assert stem(label(record)) == path.stem
    paper, table = paper_on(name), report(tmp_path).markdown()
    assert paper is not None
    assert f"{paper.figures[label(record)]:g}" in table.splitlines()[-1]
    if "peptides" in name:
        assert record.parameters <= 500_000


@pytest.mark.parametrize("name", list(KINDS))
def test_models_of_a_data_set_are_trained_alike(name: str) -> None:
    """So that a difference in a table is one of the models."""
    assert len({load_config(path).training for path in (FOLDER / name).glob("*.toml")}) == 1


@pytest.mark.parametrize("path", [path for path in FILES if "_non_" in path.stem], ids=lambda path: path.stem)
def test_an_ablation_differs_from_the_whole_in_nothing_else(path: Path) -> None:
    whole = load_config(path.with_stem(path.stem.partition("_non_")[0])).to_dict()
    ablated = load_config(path).to_dict()
    assert whole["model"].pop("ablation") is None
    assert ablated["model"].pop("ablation") in ("non-energy", "non-tangent")
    assert whole == ablated


@pytest.mark.parametrize("name", ["gpp/diameter", "gpp/sssp", "gpp/eccentricity"])
def test_stand_ins_are_of_the_kind_of_generated_data(name: str) -> None:
    assert Kind.of(load(name, graphs=11)) == KINDS[name]


def test_stand_ins_are_of_the_kind_of_the_real_data(tmp_path: Path) -> None:
    folder = os.environ.get("LYAPFLOW_DATA")
    if folder is None:
        pytest.skip("LYAPFLOW_DATA is not set to a folder with the real files")
    import_files(folder, tmp_path)
    for name in KINDS:
        if ENTRIES[name].sources and ENTRIES[name].available(tmp_path):
            assert Kind.of(load(name, tmp_path)) == KINDS[name], name


def test_files_in_likeness_that_comments_name_fit_the_models() -> None:
    """`--set data.name=...` of a comment leads to data of the same kind."""
    likenesses = {"mnist": "mnist-superpixels", "pattern": "sbm-pattern", "cluster": "sbm-cluster"}
    likenesses["minesweeper"] = "minesweeper-grid"
    for name, likeness in likenesses.items():
        for path in (FOLDER / name).glob("*.toml"):
            assert f"--set data.name={likeness}`" in path.read_text(encoding="utf-8")
    options = {"sbm-pattern": {"graphs": 11}, "sbm-cluster": {"graphs": 11}, "minesweeper-grid": {"size": 10}}
    for likeness, given in options.items():
        name = next(name for name in likenesses if likenesses[name] == likeness)
        data = load(likeness, **given)  # type: ignore[arg-type]
        assert Kind.of(data) == KINDS[name]
        for path in (FOLDER / name).glob("*.toml"):
            config = load_config(path, [f"data.name={likeness}"])
            model = config.model
            with_pe = dataclasses.replace(data, pe=config.data.pe)
            make_model(model.kind, model.hidden_channels, model.options, with_pe)
