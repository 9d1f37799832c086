"""What a sweep file may say, and what is refused before anything runs."""

from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lyapflow_graph
from lyapflow_graph.sweeping import Choices, Range, Search, Sweep, load_sweep
from lyapflow_graph.training import ConfigError
from tests.lyapflow_graph.sweeping.cases import TOML, write_sweep

FILES = Path(lyapflow_graph.__file__).parent.parent / "experiments" / "configs" / "sweeps"


def with_space(line: str, sweep: str = 'sampler = "grid"') -> str:
    return TOML.split("[sweep]")[0] + f"[sweep]\n{sweep}\n[sweep.space]\n{line}\n"


def test_a_file_is_read(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path), ["sweep.seeds=[3, 4]", "training.epochs=7"])
    assert sweep.space == {"model.num_steps": Choices((1, 2)), "training.lr": Choices((0.01, 0.001))}
    assert (sweep.size, sweep.search.seeds, sweep.base.training.epochs) == (4, (3, 4), 7)
    config = sweep.config({"model.num_steps": 1, "training.lr": 0.001}, seed=4)
    assert (config.model.options["num_steps"], config.training.lr, config.seed) == (1, 0.001, 4)


def test_a_file_may_name_a_configuration(tmp_path: Path) -> None:
    base, own = TOML.split("[sweep]")
    (tmp_path / "base.toml").write_text("seed = 5\n" + base)
    sweep = load_sweep(write_sweep(tmp_path, '[sweep]\nconfig = "base.toml"' + own))
    assert sweep.search.seeds == (5,)
    with pytest.raises(ConfigError, match=r"sweep\.config names a configuration, and the tables data, model"):
        load_sweep(write_sweep(tmp_path, TOML.replace("[sweep]", '[sweep]\nconfig = "base.toml"')))


WRONG = [
    ('"model.num_step" = [1]', "model.num_step = 1: unknown key model.num_step; did you mean model.num_steps?"),
    ('"model.num_steps" = [1, "two"]', "model.num_steps must be a whole number, got 'two'"),
    ('"model.num_steps" = []', "must be a list of choices or a table { low, high, log }"),
    ('"model.num_steps" = 3', "must be a list of choices or a table { low, high, log }"),
    ('"model.num_steps" = [2, 2]', "has the same choice twice"),
    ('"training.lr" = [1e-3, -1.0]', "training.lr = -1.0: training.lr must be positive, got -1.0"),
    ('"model.kind" = ["tango", "gcm"]', "model.kind = 'gcm': unknown model.kind 'gcm'; did you mean 'gcn'"),
    ('"lr" = [1]', 'a key is given as "table.key", got'),
    ('"optimizer.lr" = [1]', "unknown key optimizer"),
    ('"seed" = [1, 2]', "seed must be the same in all trials, or they could not be compared; seeds are given by"),
    ('"data.options.seed" = [1, 2]', "data.options.seed must be the same in all trials"),
    ('"training.lr" = { low = 1e-3 }', "is a range and needs high; it has low"),
    ('"training.lr" = { low = 1, high = 2, lg = true }', "unknown key training.lr.lg; did you mean training.lr.log?"),
    ('"training.lr" = { low = 0, high = 1, log = true }', "low must be positive on a logarithmic scale, got 0"),
    ('"model.num_steps" = { low = 1.5, high = 3 }', "model.num_steps.low must be a whole number, got 1.5"),
    ('"model.backbone" = { low = "a", high = "b" }', "is no number, so it has no range"),
    ('"training.lr" = { low = 1e-3, high = 1e-2 }', 'sweep.sampler "grid" needs a list for training.lr'),
    ("", "sweep.space is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_wrong_spaces_are_refused(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load_sweep(write_sweep(tmp_path, with_space(line)))
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "rings.toml"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('sampler = "gird"', "sweep.sampler must be one of 'grid', 'tpe', 'random', got 'gird'"),
        ('sampler = "tpe"', "sweep.trials is missing: how many shall the sampler 'tpe' try?"),
        ("trials = 0", "sweep.trials must be positive, got 0"),
        ("trails = 3", "unknown key sweep.trails; did you mean sweep.trials?"),
        ("seeds = []", "sweep.seeds must be one or more different numbers, got []"),
        ("seeds = [1, 1]", "sweep.seeds must be one or more different numbers, got [1, 1]"),
        ("seeds = [-1]", "must be in 0 to 2**32 - 1, got -1"),
        ('max_parameters = "many"', "sweep.max_parameters must be a whole number or none, got 'many'"),
    ],
)
def test_wrong_searches_are_refused(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load_sweep(write_sweep(tmp_path, with_space('"model.num_steps" = [1, 2]', line)))
    assert message in str(raised.value)


def test_a_file_without_a_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no table \[sweep\]; `lyapflow train` takes files without one"):
        load_sweep(write_sweep(tmp_path, TOML.split("[sweep]")[0]))


def test_choices_of_any_type(tmp_path: Path) -> None:
    lines = '"training.clip" = ["none", 1]\n"training.neighbors" = [[5], [10, 10]]\n"model.checkpoint" = [true, false]'
    sweep = load_sweep(write_sweep(tmp_path, with_space(lines)))
    points = sweep.points()
    assert len(points) == 8
    assert points[0] == {"training.clip": None, "training.neighbors": "[5]", "model.checkpoint": True}
    training = sweep.config(points[0], seed=0).training
    assert (training.clip, training.neighbors) == (None, (5,))


def test_a_part_of_a_grid_is_drawn_and_grows() -> None:
    space = {"model.num_steps": Choices(tuple(range(1, 6))), "model.num_layers": Choices((1, 2, 3))}
    tables = {"data": {"name": "zinc"}}
    whole = Sweep(tables, space, Search()).points()
    few, more = (Sweep(tables, space, Search(trials=n)).points() for n in (4, 9))
    assert few == more[:4]
    assert few != whole[:4]
    assert all(point in whole for point in more)
    assert len({tuple(point.values()) for point in more}) == 9


DIMENSIONS: dict[str, st.SearchStrategy[Any]] = {
    "model.num_steps": st.lists(st.integers(1, 99), min_size=1, unique=True).map(lambda x: Choices(tuple(x))),
    "model.backbone": st.permutations(["gatedgcn", "gps", "gcn"]).map(lambda x: Choices(tuple(x[:2]))),
    "training.clip": st.sampled_from([Choices((None, 1.0)), Choices((0.5, None)), Range(0.1, 2.0)]),
    "training.lr": st.floats(1e-6, 1.0).flatmap(
        lambda low: st.builds(Range, st.just(low), st.just(2 * low), st.booleans())
    ),
    "model.num_layers": st.builds(Range, st.integers(1, 3), st.integers(4, 9), st.booleans(), st.just(True)),
}  # fmt: skip


@given(st.lists(st.sampled_from(sorted(DIMENSIONS)), min_size=1, unique=True), st.data())
def test_a_sweep_survives_its_file(keys: list[str], data: st.DataObject) -> None:
    space = {key: data.draw(DIMENSIONS[key]) for key in keys}
    trials = data.draw(st.integers(1, 9))
    search = Search("tpe", trials, data.draw(st.sampled_from(["none", "median"])), (1, 0), 7, 500)  # type: ignore[arg-type]
    sweep = Sweep({"data": {"name": "zinc", "pe": {"laplacian_pe": 4}}, "training": {"epochs": 3}}, space, search)
    text = sweep.to_toml()
    assert tomllib.loads(text)["sweep"]["trials"] == trials
    with tempfile.TemporaryDirectory() as folder:
        again = load_sweep(write_sweep(Path(folder), text))
    assert again == sweep
    assert again.hash == sweep.hash
    assert again.differences(sweep) == []


def test_what_makes_two_sweeps_different(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path))
    assert load_sweep(tmp_path / "rings.toml", ["sweep.trials=2", "training.device=cpu"]).hash == sweep.hash
    for setting in ("sweep.pruner=median", "training.epochs=9", "sweep.seeds=[1]", "sweep.seed=1"):
        other = load_sweep(tmp_path / "rings.toml", [setting])
        assert other.hash != sweep.hash
        assert [told.split(":")[0] for told in sweep.differences(other)] == [setting.split("=")[0]]


@pytest.mark.parametrize(
    ("name", "size"), [("property_prediction", 1080), ("graphs", 4050), ("peptides", 4050), ("nodes", 1350)]
)
def test_the_grids_of_the_paper(name: str, size: int) -> None:
    sweep = load_sweep(FILES / f"{name}.toml")
    assert (sweep.search.max_parameters == 500_000) == (name == "peptides")
    assert sweep.size == 100
    whole = load_sweep(FILES / f"{name}.toml", ["sweep.sampler=grid", "sweep.trials=none", "model.backbone=gps"])
    assert whole.size == size
