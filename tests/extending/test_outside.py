"""A stranger adds a backbone, dynamics, a loss, a metric, an energy and a data set: each in one file of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from lyapflow.energies import ENERGIES
from lyapflow.registry import Registry
from lyapflow_graph import BACKBONES
from lyapflow_graph.data.registry import ENTRIES
from lyapflow_graph.dynamics import DYNAMICS
from lyapflow_graph.losses import LOSSES
from lyapflow_graph.metrics import METRICS
from lyapflow_graph.training import Config, ConfigError, Record, load_config, load_model

FILES = {
    "own_backbone": """
        from torch import nn
        from torch_geometric.nn import GraphConv
        from lyapflow_graph import ModuleBackbone, register_backbone

        @register_backbone("own", edges="no")
        def own(channels: int, num_layers: int = 1, edge_dim: int | None = None, norm: str = "none", act: str = "tanh",
                dropout: float = 0.0, gain: float = 1.0):
            assert (norm, gain) == ("none", 0.5)
            return ModuleBackbone(GraphConv(channels, channels), channels)
    """,
    "own_dynamics": """
        from lyapflow_graph.dynamics import GraphDynamics, register_dynamics

        @register_dynamics("fade")
        class Fade(GraphDynamics):
            def __init__(self, channels: int, rate: float = 1.0, num_steps: int = 2, step_size: float = 0.1):
                super().__init__(channels, num_steps, step_size)
                self.rate = rate

            def velocity(self, h, graphs):
                return -self.rate * h
    """,
    "own_loss": """
        import torch.nn.functional as F
        from lyapflow_graph.losses import register_loss

        @register_loss("huber-of-outsiders", labels="values", metric="mae")
        def huber(seen):
            return F.huber_loss(seen.prediction, seen.target, reduction="none")
    """,
    "own_metric": """
        import torchmetrics
        from lyapflow_graph.metrics import Metric, register_metric

        def make(dataset):
            return torchmetrics.MeanSquaredError(squared=False)

        rmse = register_metric(Metric("rmse", "root mean squared error", "RMSE", make, maximise=False))
    """,
    "own_energy": """
        from lyapflow import PointwiseEnergy
        from lyapflow.energies import register_energy

        @register_energy("valley", widths=(2, 2))
        class Valley(PointwiseEnergy):
            def density(self, h):
                return (h[..., 0] - h[..., 1].square()).square()
    """,
    "own_data": """
        import torch
        from torch_geometric.data import Data
        from lyapflow_graph.data import Entry, GraphDataset, register_dataset
        import own_loss, own_metric

        def make(request, *, graphs: int = 8):
            ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
            torch.manual_seed(0)
            made = [Data(x=torch.randn(3, 2), edge_index=ring, y=torch.randn(1, 1)) for _ in range(graphs)]
            return GraphDataset("own-rings", "graph", made[:-4], made[-4:-2], made[-2:], 2, 1, None,
                                loss="huber-of-outsiders", metric="rmse")

        entry = register_dataset(Entry("own-rings", "three nodes each", make))
    """,
}
TOML = """
[data]
name = "own-rings"
[model]
{model}
hidden_channels = 4
[training]
epochs = 1
certify = 0
"""
MODELS = {
    "own_backbone": 'kind = "own_backbone:own"\ngain = 0.5\nnorm = "none"',
    "own_backbone in TANGO": 'backbone = "own_backbone:own"\nnorm = "none"\nbackbone_options = { gain = 0.5 }',
    "own_dynamics": 'kind = "own_dynamics:Fade"\nrate = 2.0',
}
REGISTRIES: tuple[Registry[object], ...] = (BACKBONES, DYNAMICS, LOSSES, METRICS, ENERGIES, ENTRIES)  # type: ignore[assignment]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files; afterwards nothing is left of them."""
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = [dict(registry._records) for registry in REGISTRIES]
    yield tmp_path
    for registry, records in zip(REGISTRIES, before, strict=True):
        registry._records.clear()
        registry._records.update(records)
    for name in FILES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_of_parts_from_outside(folder: Path, model: str) -> None:
    """A model named in the TOML, on own data with own loss and metric: trained, reported, loaded again."""
    (folder / "run.toml").write_text(TOML.format(model=MODELS[model]))
    code = "import own_data; from lyapflow.cli import main; main(['train', 'run.toml', '--folder', 'run'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert "rmse: validation" in done.stdout
    record = Record.load(folder / "run")
    assert record.metric == "rmse"
    with pytest.raises(ConfigError, match="has to be imported by the one who uses it"):
        load_model(folder / "run")  # a file of a model imports nothing
    load_config(folder / "run.toml")
    __import__("own_data")
    assert load_model(folder / "run").hidden_channels == 4


def test_names_in_records_and_models_import_nothing(folder: Path) -> None:
    (folder / "bomb.py").write_text("raise AssertionError('imported')")
    tables = {"data": {"name": "zinc", "options": {"loss": "bomb:x", "metric": "bomb:x"}}, "model": {"kind": "bomb:x"}}
    with pytest.raises(ConfigError, match=r"unknown model\.kind 'bomb:x'"):
        Config.from_dict(tables)
    (folder / "record.json").write_text('{"config": {"data": {"name": "zinc"}, "model": {"backbone": "bomb:x"}}}')
    with pytest.raises(ConfigError, match="unknown backbone 'bomb:x'"):
        load_config(folder / "record.json")
    assert "bomb" not in sys.modules


def test_losses_and_metrics_are_named_in_a_file(folder: Path) -> None:
    """For data of one's own in a folder."""
    options = 'options = { loss = "own_loss:huber", metric = "own_metric:rmse" }'
    (folder / "run.toml").write_text(f'[data]\nname = "mine"\n{options}')
    load_config(folder / "run.toml")
    assert LOSSES["own_loss:huber"] is LOSSES["huber-of-outsiders"]
    assert METRICS["own_metric:rmse"] is METRICS["rmse"]


def test_an_energy_from_outside_is_drawn_by_the_tests_of_fields(folder: Path) -> None:
    __import__("own_energy")
    from hypothesis import find, settings

    from lyapflow.testing import energies

    found = find(energies(2), lambda energy: "Valley" in repr(energy), settings=settings(max_examples=2000))
    assert "Valley" in repr(found)


@pytest.mark.parametrize(
    ("registry", "wrong", "near"),
    [
        (BACKBONES, "gatdgcn", "gatedgcn"),
        (DYNAMICS, "graf", "graff"),
        (LOSSES, "cross_entropi", "cross_entropy"),
        (METRICS, "acuracy", "accuracy"),
        (ENERGIES, "quadratik", "quadratic"),
        (ENTRIES, "zink", "zinc"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_name_says_which_one_may_be_meant(registry: Registry[object], wrong: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"unknown .* '{wrong}'; did you mean '{near}'"):
        registry[wrong]
    with pytest.raises(ValueError, match=f"{near!r} already"):
        registry.add(near, registry[near])
