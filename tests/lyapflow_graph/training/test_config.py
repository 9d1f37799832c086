"""Configurations: every wrong key and value is named, and what is written reads back the same."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from lyapflow_graph import GraphNet, Tango
from lyapflow_graph.training import Config, ConfigError, DataConfig, ModelConfig, TrainingConfig, load_config
from lyapflow_graph.training.config import differences
from lyapflow_graph.training.model import kinds, make_model, options_of
from lyapflow_graph.training.toml import to_toml
from tests.lyapflow_graph.training.cases import graphs_with_values, one_graph

MINIMAL = '[data]\nname = "minesweeper"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data]\nnam = 'x'", "data.name is missing"),
        ("[dat]\nname = 'x'", "unknown key dat; did you mean data?"),
        (MINIMAL + "splitt = 3", "unknown key data.splitt; did you mean data.split?"),
        (MINIMAL + "[training]\nephocs = 3", "unknown key training.ephocs; did you mean training.epochs?"),
        (MINIMAL + "[training]\nepochs = 3.5", "training.epochs must be a whole number, got 3.5"),
        (MINIMAL + "[training]\nepochs = true", "training.epochs must be a whole number, got True"),
        (MINIMAL + "[training]\nlr = 'fast'", "training.lr must be a number, got 'fast'"),
        (MINIMAL + "[training]\nlr = nan", "training.lr must be a number, got nan"),
        (MINIMAL + "[training]\nlr = 0", "training.lr must be positive, got 0.0"),
        (MINIMAL + "[training]\noptimizer = 'sgd'", "training.optimizer must be one of 'adam', 'adamw', got 'sgd'"),
        (MINIMAL + "[training]\nclip = 'x'", "training.clip must be a number or none, got 'x'"),
        (MINIMAL + "[training]\nneighbors = [3, 'x']", r"training.neighbors\[1\] must be a whole number, got 'x'"),
        (MINIMAL + "[training]\nneighbors = []", "training.neighbors must be one number for each hop"),
        (MINIMAL + "[training]\nmin_lr = 1.0", "training.min_lr must be at most lr, 0.001, got 1.0"),
        (MINIMAL + "[training]\nwarm_up = 1\nscheduler = 'plateau'", "training.warm_up goes with the schedulers"),
        (MINIMAL + "pe = { random_walk_pe = 'x' }", "data.pe.random_walk_pe must be a whole number, got 'x'"),
        (MINIMAL + "pe = { random_walk_pe = 0 }", "data.pe.random_walk_pe must be positive, got 0"),
        (MINIMAL + "[model]\nkind = 'tengo'", "unknown model.kind 'tengo'; did you mean 'tango'"),
        (MINIMAL + "[model]\nnum_step = 3", "unknown key model.num_step; did you mean model.num_steps?"),
        (MINIMAL + "[model]\npool = 'max'", "model.pool must be one of 'mean', 'sum', got 'max'"),
        (MINIMAL + "[model]\nbackbone = 'gated'", "model.backbone: unknown backbone 'gated'; did you mean 'gatedgcn'"),
        (
            MINIMAL + "[model]\nbackbone_options = { head = 2 }\nbackbone = 'gps'",
            "model.backbone_options.head; did you",
        ),
        (MINIMAL + "[model]\nkind = 'gps'\nnum_steps = 3", "unknown key model.num_steps"),
        ("model = 3\n" + MINIMAL, "model must be a table, got 3"),
        ("seed = -1\n" + MINIMAL, "seed must be in 0 to"),
        ("seed = ", "is not a TOML file"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text))


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("model.num_steps=16", ("model", "num_steps"), 16),
        ("model.step_size=1", ("model", "step_size"), 1.0),
        ("model.method=rk4", ("model", "method"), "rk4"),
        ("model.backbone_options={ residual = false }", ("model", "backbone_options"), {"residual": False}),
        ("model.ablation=none", ("model", "ablation"), None),
        ("model.ablation=non-energy", ("model", "ablation"), "non-energy"),
        ("training.precision=64", ("training", "precision"), "64"),
        ("training.clip=2", ("training", "clip"), 2.0),
        ("training.neighbors=[5, 4, 3]", ("training", "neighbors"), [5, 4, 3]),
        ("data.pe.random_walk_pe=8", ("data", "pe"), {"random_walk_pe": 8}),
        ("data.options.graphs=100", ("data", "options"), {"graphs": 100}),
        ("data.name=a=b", ("data", "name"), "a=b"),
    ],
)
def test_settings_of_the_command_line(override: str, key: tuple[str, str], value: Any, tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL), [override]).to_dict()
    assert config[key[0]][key[1]] == value
    assert type(config[key[0]][key[1]]) is type(value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.num_steps", "a setting is given as table.key=value"),
        ("model..x=1", "a setting is given as table.key=value"),
        ("modle.x=1", "unknown key modle; did you mean model?"),
        ("model.num_stps=1", "unknown key model.num_stps; did you mean model.num_steps?"),
        ("model.num_steps=many", "model.num_steps must be a whole number, got 'many'"),
        ("training.epochs=1.5", "training.epochs must be a whole number, got 1.5"),
        ("training.deterministic=yes", "training.deterministic must be true or false, got 'yes'"),
        ("seed.x=1", "seed"),
        ("data.name.x=1", "data.name.x: name is not a table"),
    ],
)
def test_wrong_settings_of_the_command_line(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, MINIMAL), [override])


def test_the_kind_decides_what_can_be_set(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    assert load_config(path, ["model.kind=gat", "model.heads=2"]).model.options["heads"] == 2
    with pytest.raises(ConfigError, match=r"unknown key model.heads"):
        load_config(path, ["model.kind=gcn", "model.heads=2"])
    assert load_config(path, ["model.kind=gps", "model.local=gatv2", "model.negative_slope=1"])
    assert load_config(path, ["model.kind=gps", "model.normalize=false"]).model.options["normalize"] is False
    with pytest.raises(ConfigError, match=r"unknown key model.negative_slope"):
        load_config(path, ["model.kind=gps", "model.negative_slope=1"])


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    for kind in kinds():
        config = Config(DataConfig("x y/ü", pe={"random_walk_pe": 3}, options={"a": [1, 2]}), ModelConfig(kind), seed=4)
        read = load_config(write(tmp_path, config.to_toml()))
        assert read.to_dict() == config.to_dict()
        assert read.hash == config.hash
        assert Config.from_dict(config.to_dict()).hash == config.hash


def test_the_hash_is_of_the_experiment() -> None:
    config = Config(DataConfig("a"))
    same = Config(
        DataConfig("a", root="/elsewhere"),
        ModelConfig("tango", 64, {"num_steps": 8}),
        TrainingConfig(device="cpu"),
        seed=3,
    )
    assert config.hash == same.hash
    assert differences(config, same) == ["seed: 0 / 3"]
    others = [
        Config(DataConfig("b")),
        Config(DataConfig("a", split=1)),
        Config(DataConfig("a"), ModelConfig("tango", 64, {"num_steps": 9})),
        Config(DataConfig("a"), training=TrainingConfig(lr=0.1)),
    ]
    assert len({config.hash, *(other.hash for other in others)}) == 5
    assert config.family == others[1].family != others[0].family


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inside, max_size=3)
    ),
    max_leaves=6,
)


@hypothesis.given(st.dictionaries(st.text(st.characters(codec="utf-8")), VALUES, max_size=4))
def test_any_tables_can_be_written(tables: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(tables)) == tables


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_model_can_be_made(kind: str) -> None:
    data = graphs_with_values()
    if kind == "gine":
        data = dataclasses.replace(data, edge_dim=2)
        for graph in data.train:
            graph.edge_attr = torch.randn(graph.num_edges, 2)
    config = ModelConfig(kind, 4)
    model = make_model(kind, 4, config.options, data)
    assert isinstance(model, Tango if kind == "tango" else GraphNet)
    assert model(data.train[0]).shape == (1, 1)
    assert set(config.options) <= set(options_of(kind, {}))


@pytest.mark.parametrize(
    ("kind", "options", "edge_dim", "message"),
    [
        ("grand", {}, 3, r"model \(grand\): it has no use for features of edges; .*data.edge_features = false"),
        ("gcn", {}, 3, r"model \(gcn\): 'gcn' cannot use features of edges.*data.edge_features = false"),
        ("tango", {"num_steps": 0}, None, r"model \(tango\): .*steps"),
        ("tango", {"norm": "no"}, None, r"model \(tango\): .*no"),
        ("gatedgcn", {"dropout": 2.0}, None, r"model \(gatedgcn\): dropout must lie in \[0, 1\), got 2.0"),
    ],
)
def test_models_that_cannot_be_made(kind: str, options: dict[str, Any], edge_dim: int | None, message: str) -> None:
    data = dataclasses.replace(one_graph(), edge_dim=edge_dim)
    with pytest.raises(ConfigError, match=message):
        make_model(kind, 4, ModelConfig(kind, 4, options).options, data)
