"""Sweeps in this process: what a trial is worth, what stops one, and going on."""

from __future__ import annotations

import copy
import math
import signal
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lyapflow_graph.data.dataset import GraphDataset
from lyapflow_graph.sweeping import Choices, Range, Search, Sweep, SweepResult, run_sweep
from lyapflow_graph.sweeping import worker as worker_module
from lyapflow_graph.sweeping.storage import open_storage
from lyapflow_graph.sweeping.trials import Trials
from lyapflow_graph.training import Config, ConfigError, Interrupted, Record, load_config, report, train
from tests.lyapflow_graph.training.cases import assert_same_run, graphs_with_values, one_graph

STEPS = Choices((1, 2))
RATES = Range(1e-4, 1e-1, log=True)


def small(space: Mapping[str, Any], search: Search, **training: Any) -> Sweep:
    settings = {"epochs": 2, "batch_size": 2, **training}
    tables = {"data": {"name": "rings"}, "model": {"hidden_channels": 4, "num_steps": 2}, "training": settings}
    return Sweep(tables, space, search)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs whose outcome is a formula: least at a learning rate of 0.01 and few steps."""

    def fake(config: Config, folder: Path, **given: Any) -> Any:
        value = abs(math.log10(config.training.lr) + 2) + 0.1 * config.model.options["num_steps"] + 0.01 * config.seed
        return types.SimpleNamespace(status="untested", val=value, epochs=2)

    monkeypatch.setattr(worker_module, "train", fake)


def values(found: SweepResult) -> dict[int, tuple[float | None, dict[str, Any]]]:
    return {trial.number: (trial.value, dict(trial.labels)) for trial in found.trials}


def stop_after(lines: int) -> Callable[[str], None]:
    """Ctrl-C between two trials."""
    left = [lines]

    def say(line: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    return say


def with_other_test_labels(data: GraphDataset) -> GraphDataset:
    """Every label of the test set is another one, wherever it can be found."""
    changed = copy.deepcopy(data)
    if data.metric == "roc_auc":  # one graph: the labels are in all three parts
        for graph in (*changed.train, *changed.val, *changed.test):
            graph.y = torch.where(data.test[0].mask[:, None], 1 - graph.y, graph.y)
    else:
        for graph in changed.test:
            graph.y = graph.y + 1e6
    return changed


@pytest.mark.parametrize("make", [graphs_with_values, one_graph])
def test_the_test_set_has_no_say(make: Callable[[], GraphDataset], tmp_path: Path) -> None:
    sweep, data = small({"training.lr": Choices((1e-3, 1e-2))}, Search(pruner="median")), make()
    once = run_sweep(sweep, tmp_path / "a", dataset=data)
    other = run_sweep(sweep, tmp_path / "b", dataset=with_other_test_labels(data))
    assert values(once) == values(other)
    assert len(once.trials) == 2
    for path in (tmp_path / "a" / "runs").iterdir():
        record = Record.load(path)
        assert (record.status, record.test, record.test_loss) == ("untested", None, None)


def test_the_value_is_the_mean_over_seeds_and_the_best_wins(tmp_path: Path) -> None:
    sweep, data = small({"model.num_steps": STEPS}, Search(seeds=(3, 4))), graphs_with_values()
    found = run_sweep(sweep, tmp_path, dataset=data)
    for trial in found.trials:
        records = [Record.load(tmp_path / "runs" / name) for name in trial.runs]
        assert [record.seed for record in records] == [3, 4]
        assert trial.value == pytest.approx((records[0].val + records[1].val) / 2, rel=1e-12)
        assert trial.parameters == records[0].parameters
    assert found.best is not None
    assert found.best.value == min(trial.value for trial in found.trials if trial.value is not None)
    best = load_config(tmp_path / "best.toml")
    assert (best.model.options["num_steps"], best.seed) == (found.best.labels["model.num_steps"], 3)
    for name in ("sweep.md", "sweep.html"):
        assert f"{found.best.value:.5g}" in (tmp_path / name).read_text()


@pytest.mark.usefixtures("quick")
def test_more_is_better_where_it_is(tmp_path: Path) -> None:
    found = run_sweep(small({"training.lr": RATES}, Search("random", 4)), tmp_path, dataset=one_graph())
    assert found.best is not None
    assert found.best.value == max(trial.value for trial in found.trials if trial.value is not None)
    assert len({trial.labels["training.lr"] for trial in found.trials}) == 4


def test_a_trial_is_a_run_that_can_be_repeated_and_tested(tmp_path: Path) -> None:
    data = graphs_with_values()
    found = run_sweep(small({"model.num_steps": Choices((2,))}, Search()), tmp_path / "sweep", dataset=data)
    assert found.best is not None
    folder = tmp_path / "sweep" / "runs" / found.best.runs[0]
    config = load_config(folder / "config.toml")
    assert config == load_config(tmp_path / "sweep" / "best.toml")
    with pytest.raises(FileNotFoundError, match="untested after 2 epochs"):
        report(tmp_path / "sweep")
    repeated = train(config, tmp_path / "again", dataset=data, figures=False)
    tested = train(config, folder, resume=True, dataset=data, figures=False)
    assert tested.test is not None
    assert tested.test == repeated.test
    assert_same_run(folder, tmp_path / "again")


def test_pruned_trials_say_so(tmp_path: Path) -> None:
    """One that starts badly is ended early; the first five are the measure."""
    rates = Choices((1e-3, 1.1e-3, 1.2e-3, 1.3e-3, 1.4e-3, 30.0))
    sweep = small({"training.lr": rates}, Search(pruner="median"), epochs=4)
    found = run_sweep(sweep, tmp_path, dataset=graphs_with_values())
    pruned = [trial for trial in found.trials if trial.status == "pruned"]
    assert [trial.labels["training.lr"] for trial in pruned] == [30.0]
    record = Record.load(tmp_path / "runs" / pruned[0].runs[0])
    assert record.status == "pruned"
    assert record.epochs < 4
    assert pruned[0].why == f"after {record.epochs} epochs"
    assert found.summary() == "6 trials: 5 complete, 1 pruned"


@pytest.mark.usefixtures("quick")
def test_large_models_and_wrong_combinations_are_skipped(tmp_path: Path) -> None:
    space = {"model.hidden_channels": Choices((4, 64)), "training.scheduler": Choices(("none", "plateau"))}
    sweep = small(space, Search(max_parameters=1000), warm_up=0)
    said: list[str] = []
    found = run_sweep(sweep, tmp_path, dataset=graphs_with_values(), say=said.append)
    skipped = [trial for trial in found.trials if trial.status == "skipped"]
    assert [trial.labels["model.hidden_channels"] for trial in skipped] == [64, 64]
    assert all(trial.why.endswith("parameters, 1,000 are allowed") for trial in skipped)
    assert sum("skipped" in line for line in said) == 2
    assert found.summary() == "4 trials: 2 complete, 2 skipped"
    space = {"training.lr": Choices((1e-2, 1e-4)), "training.min_lr": Choices((0.0, 1e-3))}
    found = run_sweep(small(space, Search(), lr=1e-2), tmp_path / "b", dataset=graphs_with_values())
    assert [trial.why for trial in found.trials if trial.status == "skipped"] == [
        "training.min_lr must be at most lr, 0.0001, got 0.001"
    ]


@pytest.mark.usefixtures("quick")
def test_a_search_that_only_skips_ends(tmp_path: Path) -> None:
    sweep = small({"training.lr": RATES}, Search("random", 2, max_parameters=1))
    found = run_sweep(sweep, tmp_path, storage=f"journal:{tmp_path}/log", dataset=graphs_with_values())
    assert found.best is None
    assert {trial.status for trial in found.trials} == {"skipped"}
    assert not (tmp_path / "best.toml").exists()


def test_a_trial_that_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    sweep = small({"training.lr": Choices((1e30, 1e-3))}, Search())
    found = run_sweep(sweep, tmp_path, dataset=graphs_with_values())
    assert [trial.status for trial in found.trials] == ["complete", "failed"]
    assert "NaN or infinite" in found.trials[1].why


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("sampler", "storage"), [("tpe", "journal:{}/of/trials.log"), ("grid", "sqlite:///{}/of/trials.db")]
)
def test_going_on_gives_what_would_have_come(storage: str, sampler: Any, tmp_path: Path) -> None:
    rates = Choices((0.1, 0.01, 0.001)) if sampler == "grid" else RATES
    sweep = small({"model.num_steps": STEPS, "training.lr": rates}, Search(sampler, None if sampler == "grid" else 6))
    data, url = graphs_with_values(), storage.format(tmp_path)
    whole = run_sweep(sweep, tmp_path / "whole", dataset=data)
    with pytest.raises(Interrupted, match=r"interrupted; 2 trials: 2 complete.* with --resume goes on there"):
        run_sweep(sweep, tmp_path / "b", storage=url, dataset=data, say=stop_after(2))
    assert (tmp_path / "b" / "best.toml").exists()
    with pytest.raises(FileExistsError, match="has a sweep already; go on with it by --resume"):
        run_sweep(sweep, tmp_path / "b", storage=url, dataset=data)
    with pytest.raises(FileExistsError, match="has this sweep already"):
        run_sweep(sweep, tmp_path / "elsewhere", storage=url, dataset=data)
    found = run_sweep(sweep, tmp_path / "b", storage=url, dataset=data, resume=True)
    assert sorted(map(repr, values(found).values())) == sorted(map(repr, values(whole).values()))
    again = run_sweep(sweep, tmp_path / "b", storage=url, dataset=data, resume=True)
    assert values(again) == values(found)


def test_interrupted_within_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, data = small({"model.num_steps": STEPS}, Search(pruner="median"), epochs=4), graphs_with_values()
    whole = run_sweep(sweep, tmp_path / "whole", dataset=data)
    epochs: list[int] = []

    def interrupted(*given: Any, on_epoch: Any, **more: Any) -> Record:
        def watch(epoch: int, metrics: Mapping[str, float]) -> None:
            on_epoch(epoch, metrics)
            epochs.append(epoch)
            if len(epochs) == 2:
                signal.raise_signal(signal.SIGINT)

        return train(*given, on_epoch=watch, **more)

    monkeypatch.setattr(worker_module, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, tmp_path / "b", dataset=data)
    found = run_sweep(sweep, tmp_path / "b", dataset=data, resume=True)
    assert epochs == [1, 2, 3, 4, 1, 2, 3, 4]  # none is done twice
    assert {repr(labels): value for value, labels in values(found).values()} == {
        repr(labels): value for value, labels in values(whole).values()
    }
    with open_storage(f"sqlite:///{tmp_path / 'b' / 'sweep.db'}") as storage:
        curves = Trials(sweep, tmp_path / "b", storage).all()
    assert all(len(trial.intermediate_values) == 4 for trial in curves if trial.value is not None)


@pytest.mark.usefixtures("quick")
def test_another_sweep_is_not_gone_on_with(tmp_path: Path) -> None:
    data = graphs_with_values()
    run_sweep(small({"model.num_steps": STEPS}, Search()), tmp_path, dataset=data)
    with pytest.raises(ConfigError, match=r"is another one \(there / here\): training.epochs: 2 / 3"):
        run_sweep(small({"model.num_steps": STEPS}, Search(), epochs=3), tmp_path, dataset=data, resume=True)
    with pytest.raises(ConfigError, match=r"is not in the storage sqlite:///.*: give the --storage it began with"):
        run_sweep(small({"model.num_steps": STEPS}, Search()), tmp_path, storage=f"sqlite:///{tmp_path}/x.db",
                  dataset=data, resume=True)  # fmt: skip


@pytest.mark.usefixtures("quick")
def test_more_trials_are_the_same_sweep(tmp_path: Path) -> None:
    data = graphs_with_values()
    run_sweep(small({"training.lr": RATES}, Search("random", 1)), tmp_path, dataset=data)
    found = run_sweep(small({"training.lr": RATES}, Search("random", 3)), tmp_path, dataset=data, resume=True)
    assert [trial.status for trial in found.trials] == ["complete"] * 3


def test_a_worker_that_is_gone_loses_nothing(tmp_path: Path) -> None:
    """And a trial that takes its worker with it three times is given up."""
    sweep = small({"model.num_steps": STEPS}, Search())
    with open_storage(f"sqlite:///{tmp_path / 'sweep.db'}") as storage:
        trials = Trials(sweep, tmp_path, storage, "mae")
        with trials.worker() as alive:
            held = trials.claim(alive)
            assert held is not None
            for attempt in range(3):
                with trials.worker() as dying:
                    trial = trials.claim(dying)
                    assert trial is not None
                    assert trial.params == {"model.num_steps": 2}
                    assert trials.recover() == []
                    assert trials.claim(dying) is None
                assert trials.recover() == [trial.number]
                assert trials.left() == (attempt < 2)
        states = [(trial.state.name, trial.user_attrs.get("failed")) for trial in trials.all()]
        assert states[0] == ("RUNNING", None)
        assert states[-1] == ("FAIL", "its worker was killed 3 times; out of memory?")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", [None, "x/../../../outside", "../outside", "", "1-abc"])
def test_a_worker_without_a_name_of_its_own_is_dead(name: str | None, tmp_path: Path) -> None:
    """Killed before it could write its name; or somebody else wrote one, which leads to no file."""
    folder = tmp_path / "sweep"
    sweep = small({"model.num_steps": STEPS}, Search())
    with open_storage(f"sqlite:///{folder / 'sweep.db'}") as storage:
        trials = Trials(sweep, folder, storage, "mae")
        (folder / "locks" / "worker-x").mkdir(parents=True)
        (tmp_path / "outside.lock").write_text("precious")
        trial = trials.study.ask()
        if name is not None:
            trial.set_user_attr("worker", name)
        assert trials.recover() == [trial.number]
    assert (tmp_path / "outside.lock").read_text() == "precious"


def test_what_a_storage_says_is_of_the_sweep(tmp_path: Path) -> None:
    sweep = small({"model.num_steps": STEPS}, Search())
    for labels in ({"data.name": "subprocess:getoutput"}, {"model.num_steps": "subprocess:getoutput"}):
        with pytest.raises(ConfigError, match=r"unknown key data\.name|none of the choices"):
            sweep.config(labels, 0)


def test_what_mattered(tmp_path: Path) -> None:
    space = {"training.lr": Choices((1e-3, 3.0)), "training.descent_margin": Choices((0.01, 0.02))}
    found = run_sweep(small(space, Search()), tmp_path, dataset=graphs_with_values())
    assert set(found.importance) == set(space)
    assert found.importance["training.lr"] > found.importance["training.descent_margin"]
    assert math.isclose(sum(found.importance.values()), 1.0)
    assert "What mattered" in found.markdown()


def test_wrong_arguments(tmp_path: Path) -> None:
    sweep = small({"model.num_steps": STEPS}, Search())
    with pytest.raises(ValueError, match="workers must be positive, got 0"):
        run_sweep(sweep, tmp_path, workers=0)
    with pytest.raises(ValueError, match="dataset goes with one worker, got workers=2"):
        run_sweep(sweep, tmp_path, workers=2, dataset=graphs_with_values())
    with pytest.raises(ValueError, match="name must be a data set"):
        run_sweep(sweep, tmp_path)
    with pytest.raises(ConnectionError, match=r"cannot open the storage postgresql\+psycopg://me:\*\*\*@127.0.0.1:1/x"):
        run_sweep(sweep, tmp_path, storage="postgresql://me:secret@127.0.0.1:1/x", dataset=graphs_with_values())
    assert list(tmp_path.iterdir()) == []
