"""Files that were made to do harm: nothing of them runs, nothing is taken that is not there, and words say why."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lyapflow.importing import NameFromFile
from lyapflow_graph import Tango
from lyapflow_graph.data import GraphDataset
from lyapflow_graph.sweeping import Choices, Search, Sweep, run_sweep
from lyapflow_graph.training import (
    Config,
    ConfigError,
    DamagedError,
    DataConfig,
    ModelConfig,
    Pruned,
    Record,
    export_model,
    load_config,
    load_model,
    predict,
    report,
    train,
)
from lyapflow_graph.training.checkpoint import load_checkpoint
from lyapflow_graph.training.export import load_exported
from lyapflow_graph.training.files import load_tensors, save_tensors, write
from lyapflow_graph.training.toml import to_toml
from tests.lyapflow_graph.training.cases import graphs_with_values, small


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a file when it is imported, and another when its function is called."""
    (tmp_path / "trap.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'sprung')!r}).touch()\n"
        f"def spring(cmd='called'):\n    pathlib.Path({str(tmp_path)!r}, cmd).touch()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trap", raising=False)
    return tmp_path


@pytest.fixture
def model(tmp_path: Path) -> dict[str, Any]:
    """The content of a sound file of a model."""
    about = GraphDataset("mine", "node", [], [], [], 5, 2, None, "cross_entropy", "accuracy")
    config = Config(DataConfig("mine"), ModelConfig("tango", 4, {"num_steps": 1}))
    path = export_model(tmp_path / "sound.pt", Tango(5, 4, 2, num_steps=1), config, about)
    assert load_model(path).hidden_channels == 4
    return load_tensors(path)


def saved(folder: Path, content: dict[str, Any]) -> Path:
    save_tensors(folder / "model.pt", content)
    return folder / "model.pt"


def with_checksum(path: Path, body: bytes) -> Path:
    """Anybody can write a checksum: it has no key."""
    path.write_bytes(body + b"\nsha256 " + hashlib.sha256(body).hexdigest().encode())
    return path


def archive(content: Any, compression: int = zipfile.ZIP_STORED) -> bytes:
    """What torch.save writes, packed again."""
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save(content, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(packed, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return packed.getvalue()


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trap:spring", "subprocess:getoutput", "os:system"])
def test_a_model_file_imports_nothing(trap: Path, model: dict[str, Any], name: str) -> None:
    model["config"]["data"] |= {"name": name, "options": {"cmd": f"touch {trap / 'sprung'}"}}
    path = saved(trap, model)
    assert load_model(path).hidden_channels == 4
    with pytest.raises(ValueError, match=f"a file names the code '{name}' as data"):
        predict(path)
    with pytest.raises(ValueError, match="a file names the code"):
        train(load_exported(path).config, trap / "run")
    again = export_model(trap / "again.pt", load_model(path), *_about(path))
    with pytest.raises(ValueError, match="a file names the code"):
        predict(again)
    assert not (trap / "sprung").exists()


def _about(path: Path) -> tuple[Config, GraphDataset]:
    found = load_exported(path)
    return found.config, found.dataset


def test_code_that_the_caller_names_is_imported(trap: Path, model: dict[str, Any]) -> None:
    model["config"]["data"] |= {"name": "trap:spring"}
    with pytest.raises(ConfigError, match="must be a GraphDataset"):  # it makes no data, but it was called
        predict(saved(trap, model), "trap:spring")
    assert (trap / "called").exists()


def test_a_record_imports_nothing(trap: Path) -> None:
    data = graphs_with_values()
    config = dataclasses.replace(small(data, epochs=1), data=DataConfig("trap:spring"))
    record = train(config, trap / "run", dataset=data)
    read = Record.load(trap / "run")
    assert read.configuration.hash == config.hash == record.hash
    with pytest.raises(ValueError, match="a file names the code"):
        train(read.configuration, trap / "other")
    assert not (trap / "sprung").exists()


def test_the_configuration_in_a_folder_or_a_record_imports_nothing(trap: Path) -> None:
    data = graphs_with_values()
    tables = small(data, epochs=1).to_dict()
    evil = {**tables, "model": {"kind": "trap:spring"}, "data": {"name": "x", "options": {"loss": "trap:spring"}}}
    write(trap / "run" / "config.toml", to_toml(evil))
    write(trap / "run" / "sweep.toml", to_toml({**evil, "sweep": {"space": {"training.lr": [0.1, 0.2]}}}))
    with pytest.raises(ValueError, match="trap:spring"):
        train(small(data, epochs=1), trap / "run", dataset=data, resume=True)
    sweep = Sweep(tables, {"training.lr": Choices((0.1, 0.2))}, Search())
    with pytest.raises(ValueError, match="trap:spring"):
        run_sweep(sweep, trap / "run", dataset=data, resume=True)
    (trap / "record.json").write_text(json.dumps({"config": {**tables, "data": {"name": "trap:spring"}}}))
    with pytest.raises(ValueError, match="a file names the code 'trap:spring'"):
        train(load_config(trap / "record.json"), trap / "other")
    assert not (trap / "sprung").exists()
    with pytest.raises(ConfigError, match="must be a GraphDataset"):  # which the caller has typed
        train(load_config(trap / "record.json", ["data.name=trap:spring"]), trap / "other")
    assert (trap / "called").exists()


def test_a_mark_of_origin_goes_into_no_file() -> None:
    config = Config.from_file({"data": {"name": "zinc"}})
    assert isinstance(config.data.name, NameFromFile)
    assert type(config.to_dict()["data"]["name"]) is str


def test_a_model_file_asks_for_no_download(tmp_path: Path, model: dict[str, Any]) -> None:
    model["config"]["data"] |= {"name": "zinc", "root": str(tmp_path), "options": {"download": True}}
    with pytest.raises(ConfigError, match="a file cannot ask for a download"):
        predict(saved(tmp_path, model))


# -- content ----------------------------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder / "sprung"),)


def legacy(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


@pytest.mark.parametrize("pack", [pickle.dumps, legacy, archive])
def test_a_pickle_is_not_run(tmp_path: Path, pack: Callable[[Any], bytes], model: dict[str, Any]) -> None:
    path = with_checksum(tmp_path / "model.pt", pack({**model, "weights": Bomb(tmp_path)}))
    for load in (load_model, predict):
        with pytest.raises(DamagedError, match=r"model\.pt was not written by lyapflow"):
            load(path)
    (tmp_path / "even.ckpt").write_bytes(path.read_bytes())
    with pytest.raises(DamagedError, match=r"even\.ckpt was not written by lyapflow"):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_a_compressed_file_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    body = archive({"weights": torch.zeros(2**24)}, zipfile.ZIP_DEFLATED)
    assert len(body) < 2**18
    with pytest.raises(DamagedError, match="is compressed, or larger than the file"):
        load_tensors(with_checksum(tmp_path / "model.pt", body))


@pytest.mark.parametrize(
    "content",
    [
        {"a": torch.zeros(1).expand(2**40)},
        {"a": [torch.zeros(2**16)] * 200},
        {"a": torch.zeros(2**40, device="meta")},
        {"a": torch.zeros(4, 4).to_sparse()},
    ],
    ids=["expanded", "shared", "meta", "sparse"],
)
def test_tensors_claim_no_more_than_the_file_has(tmp_path: Path, content: dict[str, Any]) -> None:
    if isinstance(content["a"], list):
        content["a"] = [tensor.view(-1) for tensor in content["a"]]
    with pytest.raises(DamagedError, match=r"claim|no plain array"):
        load_tensors(saved(tmp_path, content))


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def laughs() -> Any:
    found: Any = ["ha"] * 100
    for _ in range(10):
        found = [found] * 100
    return found


@pytest.mark.parametrize(("content", "why"), [(nested(60), "nested deeper"), (laughs(), "more than 1,000,000 values")])
def test_deep_or_repeated_content(tmp_path: Path, model: dict[str, Any], content: Any, why: str) -> None:
    model["config"]["data"]["options"] = {"x": content}
    with pytest.raises(DamagedError, match=why):
        load_model(saved(tmp_path, model))


def test_a_model_is_no_larger_than_its_weights(tmp_path: Path, model: dict[str, Any]) -> None:
    for key, value in (("hidden_channels", 2**20), ("num_layers", 10**9), ("hidden_channels", 10**18)):
        changed = {**model["config"], "model": {**model["config"]["model"], key: value}}
        with pytest.raises(DamagedError, match="describes no model"):
            load_model(saved(tmp_path, {**model, "config": changed}))


KEYS = [
    ("config",),
    ("benchmark",),
    ("weights",),
    ("config", "data"),
    ("config", "model"),
    ("config", "training"),
    ("config", "seed"),
    ("config", "data", "name"),
    ("config", "data", "options"),
    ("config", "data", "pe"),
    ("config", "model", "kind"),
    ("config", "model", "hidden_channels"),
    ("config", "model", "backbone"),
    ("config", "model", "backbone_options"),
    ("config", "model", "act"),
    ("config", "model", "method"),
    ("benchmark", "name"),
    ("benchmark", "task"),
    ("benchmark", "in_channels"),
    ("benchmark", "out_channels"),
    ("benchmark", "edge_dim"),
    ("benchmark", "loss"),
    ("benchmark", "pe"),
]
WRONG: list[Any] = [None, "", "x", 0, -1, 1.5, [], [None], {}, {"x": 1}, {3: 4}, True, torch.ones(2), [[]], 2**70]


@pytest.mark.parametrize("keys", KEYS, ids=".".join)
def test_wrong_fields_of_a_model(tmp_path: Path, model: dict[str, Any], keys: tuple[str, ...]) -> None:
    """Either they are refused as damage, or the model is whole all the same."""
    *above, last = keys
    table = model
    for key in above:
        table = table[key]
    for wrong in WRONG:
        table[last] = wrong
        with contextlib.suppress(DamagedError):
            found = load_exported(saved(tmp_path, model))
            assert set(found.model.state_dict()) == set(model["weights"])
    del table[last]
    if keys in (("config",), ("benchmark",), ("weights",), ("config", "data", "name"), ("benchmark", "in_channels")):
        with pytest.raises(DamagedError):
            load_model(saved(tmp_path, model))


@pytest.mark.parametrize("weights", [{}, {"a": 1}, {"a": torch.ones(2)}, [torch.ones(1)], {3: torch.ones(1)}])
def test_wrong_weights(tmp_path: Path, model: dict[str, Any], weights: Any) -> None:
    with pytest.raises(DamagedError, match="describes no model"):
        load_model(saved(tmp_path, {**model, "weights": weights}))


@given(st.binary(max_size=400))
def test_any_bytes_with_a_checksum(tmp_path_factory: pytest.TempPathFactory, body: bytes) -> None:
    with pytest.raises(DamagedError):
        load_tensors(with_checksum(tmp_path_factory.mktemp("x") / "model.pt", body))


# -- checkpoints and records ------------------------------------------------------------------------------------------


def test_wrong_fields_of_a_checkpoint(tmp_path: Path) -> None:
    data = graphs_with_values()
    config = small(data, epochs=2)

    def stop(epoch: int, metrics: Any) -> None:
        raise Pruned

    train(config, tmp_path / "sound", dataset=data, on_epoch=stop)
    sound = load_tensors(tmp_path / "sound" / "odd.ckpt")
    for key in sound:
        for i, wrong in enumerate((None, [], {}, "x", -1, torch.ones(1), {"x": 1}, {"param_groups": [3], "state": 1})):
            if (key in ("scheduler", "precision") and isinstance(wrong, dict)) or (key, wrong) == ("config_hash", "x"):
                continue  # which make no difference
            folder = tmp_path / f"{key}-{i}"
            write(folder / "config.toml", config.to_toml())
            save_tensors(folder / "odd.ckpt", {**sound, key: wrong})
            with pytest.raises(DamagedError, match=re.escape(str(folder))):
                train(config, folder, resume=True, dataset=data)


RECORD_KEYS = [field.name for field in dataclasses.fields(Record)]


@pytest.fixture
def record(tmp_path: Path) -> dict[str, Any]:
    data = graphs_with_values()
    train(small(data, epochs=1), tmp_path, dataset=data)
    return json.loads((tmp_path / "record.json").read_text())


def test_wrong_fields_of_a_record(tmp_path: Path, record: dict[str, Any]) -> None:
    for key in RECORD_KEYS:
        for wrong in (None, [], {}, "x", [1], {"x": [1]}, True, {"model": 3}, {"holds": 1}):
            (tmp_path / "record.json").write_text(json.dumps({**record, key: wrong}))
            with contextlib.suppress(DamagedError):
                Record.load(tmp_path)
                # A record that has not ended is left out, and then there is none.
                with contextlib.suppress(FileNotFoundError):
                    assert report(tmp_path).html()


@pytest.mark.parametrize("text", ["[" * 10**5, "{}", "[]", "null", "\x00", '{"format": 1}', '{"a":' * 10**5])
def test_a_record_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(DamagedError, match=r"record\.json"):
        Record.load(tmp_path)


def test_names_in_a_record_are_no_html(tmp_path: Path, record: dict[str, Any]) -> None:
    evil = "<script>alert(1)</script>"
    record["config"]["model"]["kind"] = evil
    (tmp_path / "record.json").write_text(json.dumps({**record, "dataset": evil, "family": evil}))
    assert "<script" not in report(tmp_path).html()


# -- configurations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [60, 300, 10**5])
@pytest.mark.parametrize("kind", ["[]", "table", "key"])
def test_deep_toml(tmp_path: Path, depth: int, kind: str) -> None:
    deep = {
        "[]": "x = " + "[" * depth + "]" * depth,
        "table": "x = " + "{a = " * depth + "1" + "}" * depth,
        "key": ".".join("a" * depth) + " = 1",
    }[kind]
    (tmp_path / "run.toml").write_text(f'[data]\nname = "zinc"\n[data.options]\n{deep}\n')
    with pytest.raises(ConfigError, match=r"run\.toml"):
        load_config(tmp_path / "run.toml")


def test_deep_settings() -> None:
    with pytest.raises(ConfigError):
        Config.from_dict({"data": {"name": "zinc", "split": nested(10)}})


# -- links, pipes and places ------------------------------------------------------------------------------------------


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.pt")
    (tmp_path / "even.ckpt").symlink_to("/dev/zero")
    (tmp_path / "record.json").mkdir()
    for load in (load_model, load_checkpoint, Record.load):
        with pytest.raises(DamagedError, match="is not a file"):
            load(tmp_path)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("old")
    for name in ("target.json", f".target.json.{os.getpid()}.tmp"):
        (tmp_path / name).symlink_to(precious)
    write(tmp_path / "target.json", "new")
    assert precious.read_text() == "old"
    assert (tmp_path / "target.json").read_text() == "new"


@pytest.mark.parametrize("name", ["metrics.csv", "odd.ckpt", "certificate.png", "tensorboard"])
def test_a_run_in_a_folder_with_links_is_refused(tmp_path: Path, name: str) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "run"
    precious.mkdir()
    folder.mkdir()
    (folder / name).symlink_to(precious)
    data = graphs_with_values()
    with pytest.raises(DamagedError, match="is a symbolic link"):
        train(small(data, epochs=1), folder, dataset=data, resume=True)
    assert not list(precious.iterdir())
